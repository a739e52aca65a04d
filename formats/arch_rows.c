/* formats/arch_rows.c - the architectures. A new model is a row here and, where its names differ, a
 * table of names. */
#include "formats/arch.h"

#define LAYER "@layers.%d."
/* Names of the Llama family; they differ in which linears have biases, and in the q and k norms. */
#define LLAMA_NAMES(qkv_bias, o_bias, mlp_bias)                                                  \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, { R_FINAL_NORM, "@norm", 0, BIAS_NO },             \
        { R_HEAD, "lm_head", 0, BIAS_NO }, { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO }, \
        { R_Q, LAYER "self_attn.q_proj", 0, qkv_bias },                                          \
        { R_K, LAYER "self_attn.k_proj", 0, qkv_bias },                                          \
        { R_V, LAYER "self_attn.v_proj", 0, qkv_bias },                                          \
        { R_O, LAYER "self_attn.o_proj", 0, o_bias },                                            \
        { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },                            \
        { R_GATE, LAYER "mlp.gate_proj", 0, mlp_bias },                                          \
        { R_UP, LAYER "mlp.up_proj", 0, mlp_bias },                                              \
    {                                                                                            \
        R_DOWN, LAYER "mlp.down_proj", 0, mlp_bias                                               \
    }
#define END                            \
    {                                  \
        ARCH_N_ROLES, NULL, 0, BIAS_NO \
    }

static const arch_name llama_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
static const arch_name mistral_names[] = { LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO), END };
static const arch_name qwen2_names[] = { LLAMA_NAMES(BIAS_YES, BIAS_NO, BIAS_NO), END };
static const arch_name qwen3_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.q_norm", 0, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", 0, BIAS_NO },
    END,
};

#define LLAMA_WIRING .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_GATED
#define LLAMA_LIKE .w = { LLAMA_WIRING }, .prefix = "model."

const arch_row arch_rows[] = {
    { "LlamaForCausalLM", "llama", LLAMA_LIKE, .names = llama_names },
    { "MistralForCausalLM", "mistral", LLAMA_LIKE, .names = mistral_names, .window = WINDOW_ALL,
      .def_kv_heads = 8, .def_window = 4096 },
    { "Qwen2ForCausalLM", "qwen2", LLAMA_LIKE, .names = qwen2_names, .window = WINDOW_IF_USED,
      .def_kv_heads = 32, .def_window = 4096 },
    { "Qwen3ForCausalLM", "qwen3", .w = { LLAMA_WIRING, .qk_norm = QK_NORM_HEAD },
      .prefix = "model.", .names = qwen3_names, .window = WINDOW_IF_USED, .def_kv_heads = 32,
      .def_head_dim = 128, .def_window = 4096 },
    { .arch = NULL },
};
