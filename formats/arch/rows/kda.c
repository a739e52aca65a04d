/* formats/arch/rows/kda.c - Kimi Delta Attention (arXiv:2510.26692) with layers of latent attention between:
 * Kimi-Linear, Ling 3. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* ---- keys with a meaning of their own ---- */

/* exp(bound) is the least decay, if kda_safe_gate. */
static lq_status lower_bound(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->decay_span = v ? -v->valuedouble : 5;
    if ((!v || cJSON_IsNumber(v)) && c->decay_span > 0 && c->decay_span <= 1e9) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a negative number", key);
}

static lq_status safe_gate(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (v && !cJSON_IsTrue(v)) c->decay_span = 0;
    return LQ_OK;
}

/* Heads of both kinds of layers are as many; head_dim is of those with a state. */
static lq_status same_heads(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->mix_heads = c->heads;
    c->mix_key = 128;
    if (v && !js_whole(v, 1, 1 << 20, &c->mix_key))
        return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
    return LQ_OK;
}

static lq_status key_is_value(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)v, (void)err;
    c->mix_groups = c->mix_heads;
    c->mix_value = c->mix_key;
    return LQ_OK;
}

/* ---- which layers attend ---- */

/* Layers of linear_attn_config, counted from 1, which attend. */
static lq_status kimi_layers(arch_config *c, const cJSON *config, lq_err *err)
{
    const cJSON *own = js_get(config, "linear_attn_config"),
                *full = own ? js_get(own, "full_attn_layers") : NULL;
    if (js_get(config, "layer_types")) return LQ_OK;
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].mixer = full || !i || i % 4 ? MIX_KDA : MIX_ATTENTION;
    for (const cJSON *e = full ? full->child : NULL; e; e = e->next) {
        int64_t i;
        if (!js_whole(e, 1, c->layers, &i))
            return lq_fail(err, LQ_EVALUE, "full_attn_layers: expected layers 1..%lld",
                           (long long)c->layers);
        c->layer[i - 1].mixer = MIX_ATTENTION;
    }
    return LQ_OK;
}

/* Of each group the last layer attends. */
static lq_status ling_layers(arch_config *c, const cJSON *config, lq_err *err)
{
    int64_t group = 6;
    lq_status s = js_i64(config, "layer_group_size", false, 1, INT32_MAX, &group, err);
    for (int64_t i = 0; i < c->layers && !s && !js_get(config, "layer_types"); i++)
        c->layer[i].mixer = (i + 1) % group ? MIX_KDA : MIX_ATTENTION;
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
/* Attention is called so in files, delta attention as well. */
#define KDA_NAMES(at, o) \
    PRE_NORMS(BIAS_NO), \
    { R_Q, LAYER at ".q_proj", 0, BIAS_NO }, \
    { R_KV_A, LAYER at ".kv_a_proj_with_mqa", 0, BIAS_ATTN }, \
    { R_KV_A_NORM, LAYER at ".kv_a_layernorm", 0, BIAS_NO }, \
    { R_KV_B, LAYER at ".kv_b_proj", 0, BIAS_NO }, \
    { R_O, LAYER at "." o, 0, BIAS_ATTN }, \
    { R_MIX_Q, LAYER at ".q_proj", 0, BIAS_NO }, \
    { R_MIX_K, LAYER at ".k_proj", 0, BIAS_NO }, \
    { R_MIX_V, LAYER at ".v_proj", 0, BIAS_NO }, \
    { R_MIX_B, LAYER at ".b_proj", 0, BIAS_NO }, \
    { R_MIX_CONV, LAYER at ".q_conv1d", NAME_TAPS, BIAS_NO }, \
    { R_MIX_CONV_K, LAYER at ".k_conv1d", NAME_TAPS, BIAS_NO }, \
    { R_MIX_CONV_V, LAYER at ".v_conv1d", NAME_TAPS, BIAS_NO }, \
    { R_MIX_DT, LAYER at ".dt_bias", NAME_BARE, BIAS_NO }, \
    { R_MIX_NORM, LAYER at ".o_norm", 0, BIAS_NO }, \
    { R_MIX_OUT, LAYER at "." o, 0, BIAS_NO }, \
    GATED(BIAS_NO)
static const arch_name kimi_linear_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    KDA_NAMES("self_attn", "o_proj"),
    { R_Q_A, LAYER "self_attn.q_a_proj", 0, BIAS_ATTN },
    { R_Q_A_NORM, LAYER "self_attn.q_a_layernorm", 0, BIAS_NO },
    { R_Q_B, LAYER "self_attn.q_b_proj", 0, BIAS_NO },
    { R_MIX_GATE_DOWN, LAYER "self_attn.g_a_proj", 0, BIAS_NO },
    { R_MIX_GATE_UP, LAYER "self_attn.g_b_proj", 0, BIAS_NO },
    { R_MIX_A_LOG, LAYER "self_attn.A_log", NAME_BARE | NAME_4D, BIAS_NO },
    { R_MIX_A_DOWN, LAYER "self_attn.f_a_proj", 0, BIAS_NO },
    { R_MIX_A_UP, LAYER "self_attn.f_b_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "block_sparse_moe.gate.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    SHARED("block_sparse_moe.shared_experts"),
    END,
};
static const arch_name ling3_names[] = {
    { R_EMBED, "@word_embeddings", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    KDA_NAMES("attention", "dense"),
    { R_HEAD_GATE, LAYER "attention.g_proj", 0, BIAS_NO },
    { R_MIX_GATE, LAYER "attention.g_proj", 0, BIAS_NO },
    { R_MIX_A_LOG, LAYER "attention.A_log", NAME_BARE, BIAS_NO },
    { R_MIX_A, LAYER "attention.f_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.gate.expert_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
#define KDA_KEYS(n, ffn, scale, n_groups, used) \
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu }, \
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL }, \
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 128, NULL }, \
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL }, \
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL }, \
    { "model_max_length", KEY_INT, AT(max_pos), NONE, NULL }, \
    { "num_experts", KEY_INT, AT(experts), n, NULL }, \
    { "num_experts_per_token", KEY_INT, AT(experts_used), 8, NULL }, \
    EXPERT_FFN(ffn), \
    { "moe_renormalize", KEY_BOOL, AT(w.norm_topk), 1, NULL }, \
    { "num_expert_group", KEY_INT, AT(expert_groups), n_groups, NULL }, \
    { "topk_group", KEY_INT, AT(groups_used), used, NULL }, \
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), scale, NULL }, \
    { "moe_router_activation_func", KEY_FN, 0, NONE, arch_key_scoring_func }, \
    { "scoring_func", KEY_FN, 0, NONE, arch_key_scoring_func }, \
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc }, \
    KNOWN("qk_head_dim"), KNOWN("use_grouped_topk"), KNOWN("moe_router_enable_expert_bias")
static const arch_key kimi_linear_keys[] = {
    KDA_KEYS(256, 1024, 2.446, 1, 1),
    { "q_lora_rank", KEY_INT, AT(q_lora), 0, NULL },
    { "linear_num_heads", KEY_INT, AT(mix_heads), 32, NULL },
    { "linear_head_dim", KEY_INT, AT(mix_key), 128, NULL },
    { "linear_conv_kernel_dim", KEY_INT, AT(conv_taps), 4, NULL },
    KNOWN("linear_attn_config"),
    { "linear_attn_config.num_heads", KEY_INT, AT(mix_heads), NONE, NULL },
    { "linear_attn_config.head_dim", KEY_INT, AT(mix_key), NONE, NULL },
    { "linear_attn_config.short_conv_kernel_size", KEY_INT, AT(conv_taps), NONE, NULL },
    { "linear_attn_config.head_dim", KEY_FN, 0, NONE, key_is_value },
    MUST("mla_use_nope", 1),
    NO_KEY,
};
static const arch_key ling3_keys[] = {
    KDA_KEYS(512, 768, 2.5, 8, 4),
    { "head_dim", KEY_FN, 0, NONE, same_heads },
    { "linear_head_dim", KEY_INT, AT(mix_key), NONE, NULL },
    { "linear_num_heads", KEY_INT, AT(mix_heads), NONE, NULL },
    { "short_conv_kernel_size", KEY_INT, AT(conv_taps), 4, NULL },
    { "num_attention_heads", KEY_FN, 0, NONE, key_is_value },
    { "kda_lower_bound", KEY_FN, 0, NONE, lower_bound },
    { "kda_safe_gate", KEY_FN, 0, NONE, safe_gate },
    KNOWN("layer_group_size"), KNOWN("linear_conv_kernel_dim"),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_kda[] = {
    { "KimiLinearForCausalLM", "kimi_linear",
      .w = { .norm = NORM_RMS, .mlp = MLP_GATED, .mla = true, SIGMOID_MOE }, MODEL,
      .names = kimi_linear_names, .keys = kimi_linear_keys, .mixer = MIX_KDA, .layers = kimi_layers,
      .def_eps = 1e-5, .def_max_pos = 1048576, .def_dense = 1, .def_shared = 1 },
    { "BailingHybridForCausalLM", "bailing_hybrid", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE },
      MODEL, .names = ling3_names, .keys = ling3_keys, .mixer = MIX_KDA, .layers = ling_layers,
      .def_max_pos = 262144, .def_theta = 6e6, .def_dense = 2, .def_shared = 1 },
    { .arch = NULL },
};
