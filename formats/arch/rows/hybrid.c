/* formats/arch/rows/hybrid.c - models whose layers carry a state: gated delta rule, short convolution,
 * Mamba-2; most have some layers of attention between. */
#include "formats/arch/rows/rows.h"

/* A table of names reads by line. */
/* clang-format off */
#define DELTA_NET \
    { R_MIX_CONV, LAYER "linear_attn.conv1d", NAME_TAPS, BIAS_NO }, \
    { R_MIX_DT, LAYER "linear_attn.dt_bias", NAME_BARE, BIAS_NO }, \
    { R_MIX_A_LOG, LAYER "linear_attn.A_log", NAME_BARE, BIAS_NO }, \
    { R_MIX_NORM, LAYER "linear_attn.norm", 0, BIAS_NO }, \
    { R_MIX_OUT, LAYER "linear_attn.out_proj", 0, BIAS_NO }
#define QWEN_EXPERTS \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), \
    { R_SHARED_ROUTER, LAYER "mlp.shared_expert_gate", 0, BIAS_NO }, \
    SHARED("mlp.shared_expert")
#define QWEN35_DELTA \
    { R_MIX_IN, LAYER "linear_attn.in_proj_qkv", 0, BIAS_NO }, \
    { R_MIX_GATE, LAYER "linear_attn.in_proj_z", 0, BIAS_NO }, \
    { R_MIX_B, LAYER "linear_attn.in_proj_b", 0, BIAS_NO }, \
    { R_MIX_A, LAYER "linear_attn.in_proj_a", 0, BIAS_NO }, \
    DELTA_NET
static const arch_name qwen3_next_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_MIX_IN, LAYER "linear_attn.in_proj_qkvz", 0, BIAS_NO },
    { R_MIX_BA, LAYER "linear_attn.in_proj_ba", 0, BIAS_NO },
    DELTA_NET,
    QWEN_EXPERTS,
    END,
};
static const arch_name qwen35_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    QWEN35_DELTA,
    END,
};
static const arch_name qwen35_moe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    QWEN35_DELTA,
    QWEN_EXPERTS,
    END,
};
#define DELTA_KEYS \
    { "linear_num_value_heads", KEY_INT, AT(mix_heads), 32, NULL }, \
    { "linear_num_key_heads", KEY_INT, AT(mix_groups), 16, NULL }, \
    { "linear_key_head_dim", KEY_INT, AT(mix_key), 128, NULL }, \
    { "linear_value_head_dim", KEY_INT, AT(mix_value), 128, NULL }, \
    { "linear_conv_kernel_dim", KEY_INT, AT(conv_taps), 4, NULL }, \
    { "attn_output_gate", KEY_MUST, 0, 1, NULL }
#define QWEN_EXPERT_KEYS(n, used) \
    EXPERT_COUNTS("num_experts", n, used), \
    EXPERT_FFN(512), \
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 512, NULL }
static const arch_key qwen3_next_keys[] = {
    DELTA_KEYS, NORM_TOPK(1), QWEN_EXPERT_KEYS(512, 10), NO_KEY,
};
static const arch_key qwen35_keys[] = { DELTA_KEYS, NO_KEY };
static const arch_key qwen35_moe_keys[] = { DELTA_KEYS, QWEN_EXPERT_KEYS(256, 8), NO_KEY };
#define QWEN_GATED RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD, .q_gated = true
#define QWEN_DELTA \
    .mixer = MIX_DELTA, .def_full_every = 4, .def_head_dim = 256, .def_partial = 0.25, \
    .def_max_pos = 32768
/* clang-format on */

const arch_row arch_rows_hybrid[] = {
    { "Qwen3NextForCausalLM", "qwen3_next",
      .w = { QWEN_GATED, .mix_mixed = true, .mix_norm_1st = true, .norm_topk = true }, MODEL,
      .names = qwen3_next_names, .keys = qwen3_next_keys, QWEN_DELTA, .def_kv_heads = 2 },
    { "Qwen3_5ForCausalLM", "qwen3_5_text", .w = { QWEN_GATED, .mix_norm_1st = true }, MODEL,
      .names = qwen35_names, .keys = qwen35_keys, QWEN_DELTA, .def_kv_heads = 4 },
    { "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text",
      .w = { QWEN_GATED, .mix_norm_1st = true, .norm_topk = true }, MODEL,
      .names = qwen35_moe_names, .keys = qwen35_moe_keys, QWEN_DELTA, .def_kv_heads = 2,
      .def_ffn = 1 },
    { .arch = NULL },
};
