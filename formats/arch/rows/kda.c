/* formats/arch/rows/kda.c - Kimi Delta Attention (arXiv:2510.26692) with layers of latent attention between:
 * Kimi-Linear, Ling 3, and with hyper-connections and an indexer GLM-5-Next. */
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

/* The same where the key is there. */
static lq_status own_bound(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return v ? lower_bound(c, key, v, err) : LQ_OK;
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

/* Of each four the last attends, to what its own indexer chooses. */
static lq_status glm_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *types = js_get(j, "layer_types"), *indexers = js_get(j, "indexer_types");
    const cJSON *t = types ? types->child : NULL, *x = indexers ? indexers->child : NULL;
    if ((types && cJSON_GetArraySize(types) != c->layers) ||
        (indexers && cJSON_GetArraySize(indexers) != c->layers))
        return lq_fail(err, LQ_EVALUE, "%s: expected a string for each of %lld layers",
                       types && cJSON_GetArraySize(types) != c->layers ? "layer_types"
                                                                       : "indexer_types",
                       (long long)c->layers);
    for (int64_t i = 0; i < c->layers; i++, t = t ? t->next : t, x = x ? x->next : x) {
        const char *word = t && cJSON_IsString(t) ? t->valuestring : "";
        const bool state = t ? strcmp(word, "linear_attention") == 0 : i % 4 != 3;
        if (t && !state && strcmp(word, "indexed_attention") != 0 &&
            strcmp(word, "full_attention") != 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected linear_attention or indexed_attention, found "
                           "\"%.40s\"",
                           word);
        if (x && !state && !(cJSON_IsString(x) && strcmp(x->valuestring, "full") == 0))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "indexer_types: expected full for each layer that attends");
        c->layer[i].mixer = state ? MIX_KDA : MIX_ATTENTION;
    }
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, "linear_lower_bound")) &&
        !js_get(j, "linear_attn_config"))
        c->decay_span = 0;
    return LQ_OK;
}

static lq_status every_layer(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    if (!v || (cJSON_IsNumber(v) && v->valuedouble <= 1)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected an indexer in each layer that attends", key);
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
#define HYPER(fn, base, scale, at) \
    { fn, at "_fn", NAME_BARE, BIAS_NO }, \
    { base, at "_base", NAME_BARE, BIAS_NO }, \
    { scale, at "_scale", NAME_BARE, BIAS_NO }
static const arch_name glm5_next_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    KDA_NAMES("self_attn", "o_proj"),
    { R_Q_A, LAYER "self_attn.q_a_proj", 0, BIAS_ATTN },
    { R_Q_A_NORM, LAYER "self_attn.q_a_layernorm", 0, BIAS_NO },
    { R_Q_B, LAYER "self_attn.q_b_proj", 0, BIAS_NO },
    { R_INDEX_Q, LAYER "self_attn.indexer.wq_b", 0, BIAS_NO },
    { R_INDEX_K, LAYER "self_attn.indexer.wk", 0, BIAS_NO },
    { R_INDEX_K_NORM, LAYER "self_attn.indexer.k_norm", 0, BIAS_YES },
    { R_INDEX_W, LAYER "self_attn.indexer.weights_proj", 0, BIAS_NO },
    { R_INDEX_GATE, LAYER "self_attn.indexer.index_kpool_compress_gate", NAME_BARE, BIAS_NO },
    { R_INDEX_BIAS, LAYER "self_attn.indexer.index_kpool_compress_ape", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO },
    { R_MIX_GATE_DOWN, LAYER "self_attn.g_a_proj", 0, BIAS_NO },
    { R_MIX_GATE_UP, LAYER "self_attn.g_b_proj", 0, BIAS_NO },
    { R_MIX_A_LOG, LAYER "self_attn.A_log", NAME_BARE, BIAS_NO },
    { R_MIX_A_DOWN, LAYER "self_attn.f_a_proj", 0, BIAS_NO },
    { R_MIX_A_UP, LAYER "self_attn.f_b_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    HYPER(R_HYPER_ATTN_FN, R_HYPER_ATTN_BASE, R_HYPER_ATTN_SCALE, LAYER "hc_attn"),
    HYPER(R_HYPER_MLP_FN, R_HYPER_MLP_BASE, R_HYPER_MLP_SCALE, LAYER "hc_ffn"),
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
static const arch_key glm5_next_keys[] = {
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "swiglu_limit", KEY_REAL, AT(act_limit), 10, NULL },
    { "q_lora_rank", KEY_INT, AT(q_lora), 1536, NULL },
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 256, NULL },
    { "v_head_dim", KEY_INT, AT(v_dim), 256, NULL },
    MUST("qk_rope_head_dim", 0),
    KNOWN("qk_head_dim"),
    GROUP_KEYS(1, 1, 2.5),
    EXPERT_COUNTS("n_routed_experts", 288, 8),
    EXPERT_FFN(2048),
    NORM_TOPK(1),
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    { "index_n_heads", KEY_INT, AT(index_heads), 32, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL },
    { "index_kpool", KEY_INT, AT(index_every), 16, NULL },
    MUST("index_kpool_always_select_tail", 1),
    { "index_topk_freq", KEY_FN, 0, NONE, every_layer },
    { "index_topk_pattern", KEY_FN, 0, NONE, every_layer },
    KNOWN("index_skip_topk_offset"),
    { "hc_mult", KEY_INT, AT(hyper), 4, NULL },
    { "hc_sinkhorn_iters", KEY_INT, AT(hyper_steps), 20, NULL },
    { "hc_eps", KEY_REAL, AT(hyper_eps), 1e-6, NULL },
    { "linear_num_heads", KEY_INT, AT(mix_heads), 64, NULL },
    { "linear_head_dim", KEY_INT, AT(mix_key), 128, NULL },
    { "linear_conv_kernel_dim", KEY_INT, AT(conv_taps), 4, NULL },
    { "linear_lower_bound", KEY_FN, 0, NONE, lower_bound },
    KNOWN("linear_attn_config"),
    { "linear_attn_config.num_heads", KEY_INT, AT(mix_heads), NONE, NULL },
    { "linear_attn_config.head_dim", KEY_INT, AT(mix_key), NONE, NULL },
    { "linear_attn_config.short_conv_kernel_size", KEY_INT, AT(conv_taps), NONE, NULL },
    { "linear_attn_config.gate_lower_bound", KEY_FN, 0, NONE, own_bound },
    MUST("linear_attn_config.safe_gate", 1),
    { "linear_attn_config.head_dim", KEY_FN, 0, NONE, key_is_value },
    MUST("mlp_bias", 0),
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
    { "Glm5NextForConditionalGeneration", "glm5_next",
      .w = { .norm = NORM_RMS,
             .mlp = MLP_GATED,
             .mla = true,
             SIGMOID_MOE,
             .latent_eps = true,
             .hyper_mean = true },
      .prefix = "model.language_model.", .in_text = true, .names = glm5_next_names,
      .keys = glm5_next_keys, .mixer = MIX_KDA, .window = WINDOW_OWN, .layers = glm_layers,
      .def_eps = 1e-5, .def_max_pos = 1048576, .def_dense = 3, .def_shared = 1,
      .def_act = ARCH_SILU_LIMITED, .fixed_act = true },
    { "BailingHybridForCausalLM", "bailing_hybrid", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE },
      MODEL, .names = ling3_names, .keys = ling3_keys, .mixer = MIX_KDA, .layers = ling_layers,
      .def_max_pos = 262144, .def_theta = 6e6, .def_dense = 2, .def_shared = 1 },
    { .arch = NULL },
};
