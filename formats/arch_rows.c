/* formats/arch_rows.c - the architectures. A new model is a row here and, where its names differ, a
 * table of names and one of keys. */
#include "formats/arch.h"

static const arch_keys llama_keys = {
    .vocab = "vocab_size",
    .hidden = "hidden_size",
    .layers = "num_hidden_layers",
    .heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .head_dim = "head_dim",
    .ffn = "intermediate_size",
    .max_pos = "max_position_embeddings",
    .norm_eps = "rms_norm_eps",
    .act = "hidden_act",
};

#define LAYER "model.layers.%d."
/* Names of the Llama family; they differ in which linears have biases, and in the q and k norms. */
#define LLAMA_NAMES(qkv_bias, o_bias, mlp_bias)                                                \
    { R_EMBED, "model.embed_tokens", false, BIAS_NO },                                         \
        { R_FINAL_NORM, "model.norm", false, BIAS_NO }, { R_HEAD, "lm_head", false, BIAS_NO }, \
        { R_ATTN_NORM, LAYER "input_layernorm", false, BIAS_NO },                              \
        { R_Q, LAYER "self_attn.q_proj", false, qkv_bias },                                    \
        { R_K, LAYER "self_attn.k_proj", false, qkv_bias },                                    \
        { R_V, LAYER "self_attn.v_proj", false, qkv_bias },                                    \
        { R_O, LAYER "self_attn.o_proj", false, o_bias },                                      \
        { R_MLP_NORM, LAYER "post_attention_layernorm", false, BIAS_NO },                      \
        { R_GATE, LAYER "mlp.gate_proj", false, mlp_bias },                                    \
        { R_UP, LAYER "mlp.up_proj", false, mlp_bias },                                        \
    {                                                                                          \
        R_DOWN, LAYER "mlp.down_proj", false, mlp_bias                                         \
    }
#define END                                \
    {                                      \
        ARCH_N_ROLES, NULL, false, BIAS_NO \
    }

static const arch_name llama_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
static const arch_name mistral_names[] = { LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO), END };
static const arch_name qwen2_names[] = { LLAMA_NAMES(BIAS_YES, BIAS_NO, BIAS_NO), END };
static const arch_name qwen3_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.q_norm", false, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", false, BIAS_NO },
    END,
};

#define LLAMA_LIKE \
    .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_GATED, .keys = &llama_keys

const arch_row arch_rows[] = {
    { "LlamaForCausalLM", "llama", LLAMA_LIKE, .names = llama_names },
    { "MistralForCausalLM", "mistral", LLAMA_LIKE, .names = mistral_names, .window = WINDOW_ALL,
      .def_kv_heads = 8, .def_window = 4096 },
    { "Qwen2ForCausalLM", "qwen2", LLAMA_LIKE, .names = qwen2_names, .window = WINDOW_IF_USED,
      .def_kv_heads = 32, .def_window = 4096 },
    { "Qwen3ForCausalLM", "qwen3", LLAMA_LIKE, .names = qwen3_names, .qk_norm = true,
      .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_head_dim = 128, .def_window = 4096 },
    { .arch = NULL },
};
