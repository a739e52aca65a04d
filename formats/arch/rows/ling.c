/* formats/arch/rows/ling.c - inclusionAI's Ling and Ring, 1 and 2 (3: kda.c): the arithmetic of Aria's text and of GLM-4.5.
 * Source: their own modeling_bailing_moe.py and modeling_bailing_moe_v2.py; mlx_lm/models/bailing_moe.py. */
#include "formats/arch/rows/rows.h"

/* Ling 2's router computes in f32, as all do here. */
static lq_status router_in_f32(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "fp32", err);
}

/* A table of names reads by line. */
/* clang-format off */
#define LING_NAMES \
    { R_QKV, LAYER "attention.query_key_value", 0, BIAS_ATTN }, \
    LING_REST_NAMES
#define LING_REST_NAMES \
    { R_EMBED, "@word_embeddings", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@norm", 0, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    PRE_NORMS(BIAS_NO), \
    { R_O, LAYER "attention.dense", 0, BIAS_NO }, \
    GATED(BIAS_NO), \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), \
    SHARED("mlp.shared_experts")
static const arch_name ling_names[] = { LING_NAMES, END };
static const arch_name ling_apart_names[] = {
    { R_Q, LAYER "attention.q_proj", 0, BIAS_ATTN },
    { R_K, LAYER "attention.k_proj", 0, BIAS_ATTN },
    { R_V, LAYER "attention.v_proj", 0, BIAS_ATTN },
    LING_REST_NAMES,
    END,
};
static const arch_name ling2_names[] = {
    LING_NAMES,
    { R_Q_NORM, LAYER "attention.query_layernorm", 0, BIAS_NO },
    { R_K_NORM, LAYER "attention.key_layernorm", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.gate.expert_bias", NAME_BARE, BIAS_NO },
    END,
};
#define LING_KEYS \
    { "score_function", KEY_FN, 0, NONE, arch_key_scoring_func }, \
    { "use_qkv_bias", KEY_FLAG, AT(attn_bias), 0, NULL }, \
    { "rotary_dim", KEY_INT, AT(rope_dims), NONE, NULL }, \
    { "router_dtype", KEY_FN, 0, NONE, router_in_f32 }, \
    { "moe_shared_expert_intermediate_size", KEY_KNOWN, 0, NONE, NULL }, /* the tensors' sizes tell */ \
    MUST("moe_router_enable_shared_expert", 1), \
    MUST("moe_router_enable_routed_scaling", 1), \
    MUST("use_bias", 0), \
    MUST("norm_head", 0), \
    MUST("norm_softmax", 0)
static const arch_key ling_keys[] = {
    EXPERT_COUNTS("num_experts", 16, 2),
    NORM_TOPK(1),
    LING_KEYS,
    MUST("use_qk_norm", 0),
    MUST("multi_gate", 0),
    MUST("moe_router_enable_expert_bias", 0),
    { "attention_projections_apart", KEY_KNOWN, 0, NONE, NULL }, /* of what is read from GGUF */
    MUST("routed_scaling_factor", 1),
    MUST("n_group", 1),
    MUST("topk_group", 1),
    NO_KEY,
};
static const arch_key ling2_keys[] = {
    GROUP_KEYS(8, 4, 1),
    EXPERT_COUNTS("num_experts", 256, 8),
    EXPERT_FFN(512),
    MUST("norm_topk_prob", 1),
    LING_KEYS,
    MUST("use_qk_norm", 1),
    MUST("moe_router_enable_expert_bias", 1),
    MUST("use_rmsnorm", 1),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_ling[] = {
    { "BailingMoeV2ForCausalLM", "bailing_moe",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE }, MODEL, .names = ling2_names,
      .keys = ling2_keys, .def_kv_heads = 4, .def_head_dim = 128, .def_partial = 0.5,
      .def_theta = 6e5, .def_max_pos = 32768, .def_dense = 1, .def_shared = 1 },
    { "BailingMoeForCausalLM", "bailing_moe_v1", ARCH_APART, "attention_projections_apart=true",
      .w = { RMS_ROPE }, MODEL, .names = ling_apart_names, .keys = ling_keys, .def_eps = 1e-5,
      .def_max_pos = 16384 },
    { "BailingMoeForCausalLM", "bailing_moe_v1", .w = { RMS_ROPE }, MODEL, .names = ling_names,
      .keys = ling_keys, .def_eps = 1e-5, .def_max_pos = 16384 },
    { .arch = NULL },
};
