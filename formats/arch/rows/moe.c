/* formats/arch/rows/moe.c - mixtures of experts. */
#include "formats/arch/rows/rows.h"

/* A table of names reads by line. */
/* clang-format off */
static const arch_name mixtral_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
static const arch_name qwen2_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    { R_SHARED_ROUTER, LAYER "mlp.shared_expert_gate", 0, BIAS_NO },
    SHARED("mlp.shared_expert"),
    END,
};
static const arch_name qwen3_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
static const arch_name glm4_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name dots1_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name granite_moe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_ROUTER, LAYER "block_sparse_moe.router.layer", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "block_sparse_moe.input_linear", NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "block_sparse_moe.output_linear", NAME_STACKED, BIAS_NO },
    END,
};
static const arch_name gpt_oss_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_SINKS, LAYER "self_attn.sinks", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "mlp.router", 0, BIAS_YES },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj",
      NAME_BARE | NAME_STACKED | NAME_TRANSPOSED, BIAS_YES },
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED | NAME_TRANSPOSED,
      BIAS_YES },
    END,
};
static const arch_key granite_moe_keys[] = {
    GRANITE_KEYS,
    EXPERT_COUNTS("num_local_experts", 8, 2),
    NO_KEY,
};
static const arch_key mixtral_keys[] = { EXPERT_COUNTS("num_local_experts", 8, 2), NO_KEY };
static const arch_key qwen2_moe_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 60, 4),
    EXPERT_FFN(1408),
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 5632, NULL },
    { "qkv_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    NO_KEY,
};
static const arch_key qwen3_moe_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 128, 8),
    EXPERT_FFN(768),
    NO_KEY,
};
static const arch_key gpt_oss_keys[] = {
    { "swiglu_limit", KEY_REAL, AT(act_limit), 7, NULL },
    EXPERT_COUNTS("num_local_experts", 128, 4),
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    NO_KEY,
};
static const arch_key glm4_moe_keys[] = {
    GROUP_KEYS(1, 1, 1), EXPERT_COUNTS("n_routed_experts", 128, 8),        EXPERT_FFN(1408),
    NORM_TOPK(1),        { "use_qk_norm", KEY_FN, 0, NONE, arch_key_head_qk_norm }, NO_KEY,
};
static const arch_key dots1_keys[] = { GROUP_KEYS(1, 1, 1), NORM_TOPK(0), EXPERT_FFN(1408),
                                       NO_KEY };
static const arch_key olmoe_keys[] = { NORM_TOPK(0), EXPERT_COUNTS("num_experts", 64, 8),
                                       MUST("clip_qkv", 0), NO_KEY };
/* clang-format on */

const arch_row arch_rows_moe[] = {
    { "MixtralForCausalLM", "mixtral", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = mixtral_names, .keys = mixtral_keys, .window = WINDOW_ALL, .def_kv_heads = 8,
      .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 131072 },
    { "Qwen2MoeForCausalLM", "qwen2_moe", .w = { RMS_ROPE }, MODEL, .names = qwen2_moe_names,
      .keys = qwen2_moe_keys, .window = WINDOW_ALL_IF_USED, .def_window = 4096, .def_kv_heads = 16,
      .def_max_pos = 32768 },
    { "Qwen3MoeForCausalLM", "qwen3_moe", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = qwen3_moe_names, .keys = qwen3_moe_keys, .window = WINDOW_ALL_IF_USED,
      .def_window = 4096, .def_kv_heads = 4, .def_max_pos = 32768 },
    { "Glm4MoeForCausalLM", "glm4_moe", .w = { RMS_ROPE, SIGMOID_MOE }, MODEL,
      .names = glm4_moe_names, .keys = glm4_moe_keys, .def_kv_heads = 8, .def_partial = 0.5,
      .def_eps = 1e-5, .def_max_pos = 131072, .def_dense = 1, .def_shared = 1 },
    { "Dots1ForCausalLM", "dots1", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE }, MODEL,
      .names = dots1_names, .keys = dots1_keys, .window = WINDOW_ALL, .def_kv_heads = 32 },
    { "OlmoeForCausalLM", "olmoe", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = qwen3_moe_names, .keys = olmoe_keys, .def_kv_heads = 16, .def_eps = 1e-5,
      .def_max_pos = 4096 },
    { "GraniteMoeForCausalLM", "granitemoe", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = granite_moe_names, .keys = granite_moe_keys },
    { "GptOssForCausalLM", "gpt_oss", .w = { RMS_ROPE, .norm_topk = true, .gate_up_mixed = true },
      MODEL, .names = gpt_oss_names, .keys = gpt_oss_keys, .def_act = ARCH_SWIGLU_CLAMPED,
      .fixed_act = true, .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 128,
      .def_kv_heads = 8, .def_head_dim = 64, .def_eps = 1e-5, .def_theta = 150000,
      .def_max_pos = 131072 },
    { .arch = NULL },
};
