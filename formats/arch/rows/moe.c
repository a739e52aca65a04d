/* formats/arch/rows/moe.c - mixtures of experts. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* Kinds of attention by layer: 1 is softmax attention, the only one here. */
static lq_status all_softmax(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    for (const cJSON *e = cJSON_IsArray(v) ? v->child : NULL; e; e = e->next) {
        int64_t one;
        if (!js_whole(e, 1, 1, &one))
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected 1 for each layer, found another",
                           key);
    }
    return LQ_OK;
}

/* Off: q is the same at every position. After q_grow's own key. */
static lq_status temperature_tuning(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double on = 1;
    if (v && !cJSON_IsBool(v) && !cJSON_IsNumber(v))
        return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (v) on = cJSON_IsBool(v) ? cJSON_IsTrue(v) : v->valuedouble;
    if (!(on < 0 || on > 0)) c->q_grow = 0;
    return LQ_OK;
}

/* Embeddings are scaled where the key says so. */
static lq_status if_mup(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (cJSON_IsTrue(v)) c->embed_scale = sqrt((double)c->hidden);
    return LQ_OK;
}

/* A gate for each head, or for each of its dims. */
static lq_status laguna_gating(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *text = cJSON_GetStringValue(v);
    c->w.gate_heads = !v || cJSON_IsTrue(v) || (text && strcmp(text, "per-head") == 0);
    if (!v || cJSON_IsBool(v) || c->w.gate_heads || (text && strcmp(text, "per-element") == 0))
        return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected per-head or per-element, found %s", key,
                   js_describe(found, v));
}

/* ---- DBRX ---- */

/* Which norm of the experts' shares is made 1. */
static lq_status dbrx_shares(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    if (!v || (cJSON_IsNumber(v) && !(v->valuedouble < 1 || v->valuedouble > 1))) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected 1 or null, found %s", key,
                   js_describe(found, v));
}

static lq_status dbrx_act(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *name = v ? cJSON_GetStringValue(js_get(v, "name")) : "silu";
    (void)c;
    if (name && strcmp(name, "silu") == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected silu, found %.40s", key, name ? name : "?");
}

/* The base of rotations is in attn_config, as Databricks has it, or where others have it. Shares stay as they
 * are where their norm is null. */
static lq_status dbrx_rest(arch_config *c, const cJSON *j, lq_err *err)
{
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(js_get(j, "ffn_config"),
                                                      "moe_normalize_expert_weights")))
        c->w.norm_topk = false;
    c->ffn = c->expert_ffn; /* of no layer */
    const bool usual = js_get(j, "rope_theta") || js_get(j, "rope_parameters");
    double theta = c->rope[ROPE_MAIN].theta;
    const lq_status s =
        js_f64(js_get(j, "attn_config"), "rope_theta", false, 1.001, 1e15, &theta, err);
    if (s || !(theta < c->rope[ROPE_MAIN].theta || theta > c->rope[ROPE_MAIN].theta)) return s;
    if (usual)
        return lq_fail(err, LQ_EVALUE,
                       "attn_config: rope_theta: expected %g, as elsewhere, found %g",
                       c->rope[ROPE_MAIN].theta, theta);
    c->rope[ROPE_MAIN].theta = c->rope[ROPE_LOCAL].theta = theta;
    return LQ_OK;
}

/* ---- layers that differ ---- */

static lq_status laguna_sizes(arch_config *c, const cJSON *j, arch_sizes *z, lq_err *err)
{
    const cJSON *list = js_get(j, "num_attention_heads_per_layer"),
                *local = js_get(js_get(j, "rope_parameters"), "sliding_attention");
    const cJSON *e = cJSON_IsArray(list) ? list->child : NULL;
    double part = 1;
    if (list && cJSON_GetArraySize(list) != c->layers) e = NULL;
    lq_status s = js_f64(local, "partial_rotary_factor", false, 0, 1, &part, err);
    for (int64_t i = 0; i < c->layers && !s; i++, e = e ? e->next : NULL) {
        const int64_t dims = (int64_t)((double)c->head_dim * part);
        z[i] = arch_sizes_of(c, i);
        if (c->layer[i].rope == ROPE_LOCAL) z[i].rope_dims = dims;
        if (list && (!e || !js_whole(e, 1, ARCH_MAX_WIDTH, &z[i].heads)))
            s = lq_fail(err, LQ_EVALUE,
                        "num_attention_heads_per_layer: expected the heads of %" PRId64 " layers",
                        c->layers);
    }
    return s ? s : arch_set_sizes(c, z, err);
}

lq_status arch_heads_by_layer(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    lq_status s = z ? laguna_sizes(c, j, z, err)
                    : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    free(z);
    return s;
}

/* ---- MiMo-V2: layers with a window have KV heads of another number, and sinks ---- */

/* In Xiaomi's config.json a list of ones and zeros says which have a window. */
static lq_status mimo_v2_windows(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "hybrid_layer_pattern");
    const cJSON *e = cJSON_IsArray(list) ? list->child : NULL;
    int64_t size = 0;
    if (list && cJSON_GetArraySize(list) != c->layers)
        return lq_fail(err, LQ_EVALUE,
                       "hybrid_layer_pattern: expected 0 or 1 for %" PRId64 " layers", c->layers);
    lq_status s = js_i64(j, "sliding_window_size", false, 1, INT32_MAX - 1, &size, err);
    if (size) c->window = size + 1; /* besides the query */
    for (int64_t i = 0; i < c->layers && !s; i++, e = e ? e->next : NULL) {
        int64_t window = i > 0 && (i + 1) % 6 != 0;
        if (list && !js_whole(e, 0, 1, &window))
            s = lq_fail(err, LQ_EVALUE, "hybrid_layer_pattern: expected 0 or 1, layer by layer");
        const bool typed = js_get(j, "layer_types");
        if (list && typed && c->layer[i].window != (window != 0))
            return lq_fail(err, LQ_EVALUE,
                           "hybrid_layer_pattern: expected what layer_types says, found another "
                           "kind for layer %" PRId64,
                           i);
        if (!list && typed) window = c->layer[i].window;
        c->layer[i].window = window;
        c->layer[i].rope = window ? ROPE_LOCAL : ROPE_MAIN;
    }
    return s;
}

static lq_status mimo_v2_sizes(arch_config *c, const cJSON *j, arch_sizes *z, lq_err *err)
{
    const int64_t wide = ARCH_MAX_WIDTH;
    int64_t heads = c->heads, kv = 2 * c->kv_heads, dim = c->head_dim, v = c->v_dim;
    double part = 0.334;
    const cJSON *local = js_get(js_get(j, "rope_parameters"), "sliding_attention");
    lq_status s = js_i64(j, "swa_num_attention_heads", false, 1, wide, &heads, err);
    if (!s) s = js_i64(j, "swa_num_key_value_heads", false, 1, wide, &kv, err);
    if (!s) s = js_i64(j, "swa_head_dim", false, 1, wide, &dim, err);
    if (!s) s = js_i64(j, "swa_v_head_dim", false, 1, wide, &v, err);
    if (!s && (dim != c->head_dim || v != c->v_dim))
        s = lq_fail(err, LQ_EUNSUPPORTED,
                    "swa_head_dim: expected heads of %" PRId64 " and %" PRId64 " in all layers",
                    c->head_dim, c->v_dim);
    if (!s) s = js_f64(j, "partial_rotary_factor", false, 0, 1, &part, err);
    if (!s) s = js_f64(local, "partial_rotary_factor", false, 0, 1, &part, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        z[i] = arch_sizes_of(c, i);
        if (!c->layer[i].window) continue;
        z[i].kv_heads = kv;
        z[i].heads = heads;
        z[i].rope_dims = (int64_t)((double)c->head_dim * part);
    }
    return s ? s : arch_set_sizes(c, z, err);
}

static lq_status mimo_v2_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    lq_status s = z ? mimo_v2_windows(c, j, err)
                    : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    if (!s) s = mimo_v2_sizes(c, j, z, err);
    free(z);
    return s;
}

/* Cohere 2 with experts: every so many layers one sees all and does not rotate; those before the experts
 * have a pattern of their own, and where that is 1 all of them see all and rotate. */
static lq_status cohere2_moe_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t first = 1, rest = 4, dense = 0;
    const char *how = "average";
    const bool listed = js_get(j, "layer_types"), said = js_get(j, "sliding_window_pattern");
    lq_status s =
        js_i64(j, "prefix_dense_sliding_window_pattern", false, 1, ARCH_MAX_LAYERS, &first, err);
    if (!s) s = js_i64(j, "sliding_window_pattern", false, 1, ARCH_MAX_LAYERS, &rest, err);
    if (!s) s = js_i64(j, "first_k_dense_replace", false, 0, ARCH_MAX_LAYERS, &dense, err);
    if (!s) s = js_str(j, "shared_expert_combination_strategy", false, &how, err);
    if (!s && strcmp(how, "average") != 0 && strcmp(how, "sum") != 0)
        s = lq_fail(err, LQ_EVALUE,
                    "shared_expert_combination_strategy: expected average or sum, found %.40s",
                    how);
    if (c->shared_ffn && strcmp(how, "average") == 0) c->expert_scale = c->shared_scale = 0.5;
    while (listed && dense < c->layers && !c->layer[dense].moe)
        dense++; /* mlp_layer_types may say so alone */
    for (int64_t i = 0; i < c->layers && !s; i++) {
        arch_layer *l = &c->layer[i];
        const bool window = i < dense ? (i + 1) % first != 0 : (i - dense + 1) % rest != 0;
        if (!listed) l->window = window;
        if (said && l->window != window)
            return lq_fail(err, LQ_EVALUE,
                           "sliding_window_pattern: expected what layer_types says, found %" PRId64
                           ", and another kind for layer %" PRId64 " there",
                           rest, i);
        l->rope = l->window || (!l->moe && first == 1) ? ROPE_MAIN : ROPE_OFF;
    }
    return s;
}

/* Flint rotates the layers that have a window. Where nothing says so, the first two layers have no experts,
 * and they, every fourth and the last see all. */
static lq_status flint_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)err;
    const bool listed = js_get(j, "layer_types"),
               dense = js_get(j, "mlp_only_layers") || js_get(j, "mlp_layer_types");
    for (int64_t i = 0; i < c->layers; i++) {
        arch_layer *l = &c->layer[i];
        if (!listed) l->window = c->window && i > 1 && i % 4 != 1 && i + 1 < c->layers;
        l->rope = l->window ? ROPE_MAIN : ROPE_OFF;
        if (!dense && i < 2) l->moe = false;
    }
    return LQ_OK;
}

/* "sigmoid" or "softmax", whose shares then sum to 1. After norm_topk_prob. */
static lq_status expert_selection(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *how = cJSON_IsString(v) ? v->valuestring : v ? "" : "softmax";
    if (strcmp(how, "sigmoid") == 0)
        c->w.router = ROUTER_SIGMOID;
    else if (strcmp(how, "softmax") == 0)
        c->w.norm_topk = true;
    else
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected softmax or sigmoid, found \"%.40s\"",
                       key, how);
    return LQ_OK;
}

/* With a number all norms are RMSNorm; null: layer norms. */
static lq_status rms_norms(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)err;
    if (v) c->w.norm = NORM_RMS;
    return LQ_OK;
}

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
static const arch_name mimo_v2_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_NO),
    { R_SINKS, LAYER "self_attn.attention_sink_bias", NAME_BARE | NAME_OPTIONAL, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
static const arch_name cohere2_moe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    GATED(BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
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
static const arch_name aria_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_ROUTER, LAYER "mlp.router", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.fc1", NAME_STACKED | NAME_TRANSPOSED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "mlp.experts.fc2", NAME_STACKED | NAME_TRANSPOSED, BIAS_NO },
    SHARED("mlp.shared_experts"),
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
static const arch_name granite_moe_shared_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_ROUTER, LAYER "block_sparse_moe.router.layer", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "block_sparse_moe.input_linear", NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "block_sparse_moe.output_linear", NAME_STACKED, BIAS_NO },
    { R_SHARED_GATE_UP, LAYER "shared_mlp.input_linear", 0, BIAS_NO },
    { R_SHARED_DOWN, LAYER "shared_mlp.output_linear", 0, BIAS_NO },
    END,
};
static const arch_name minimax_m2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "block_sparse_moe.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
static const arch_name exaone_moe_names[] = {
    LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name ernie_moe_names[] = {
    LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.moe_statics.e_score_correction_bias", NAME_BARE | NAME_ROW,
      BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
/* Of its experts the first half is text's: those of images are tensors that no row names. */
static const arch_name ernie_vl_names[] = {
    LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", NAME_TRANSPOSED, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.moe_statics.e_score_correction_bias", NAME_BARE | NAME_ROW,
      BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name hunyuan_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.query_layernorm", 0, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.key_layernorm", 0, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate.wg", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_mlp"),
    END,
};
static const arch_name hy_v3_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.router.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.expert_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_mlp"),
    END,
};
static const arch_name flex_olmo_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
/* Published files have [experts, inputs, outputs], transformers 5 saves [experts, outputs, inputs]. */
#define QWEN3_VL_MOE_NAMES(turned) \
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO), \
    QK_NORMS, \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj", NAME_BARE | NAME_STACKED | (turned), \
      BIAS_NO }, \
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED | (turned), BIAS_NO }
static const arch_name qwen3_vl_moe_names[] = { QWEN3_VL_MOE_NAMES(NAME_TRANSPOSED), END };
static const arch_name qwen3_vl_moe_rows_names[] = { QWEN3_VL_MOE_NAMES(0), END };
static const arch_name phimoe_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_YES },
    { R_HEAD, "^lm_head", 0, BIAS_OWN },
    PRE_NORMS(BIAS_YES),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
/* Norms of q and k have no weights. */
static const arch_name llama4_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_Q_NORM, LAYER "self_attn.q_norm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_GATE, LAYER "feed_forward.gate_proj", 0, BIAS_NO },
    { R_UP, LAYER "feed_forward.up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "feed_forward.down_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "feed_forward.router", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "feed_forward.experts.gate_up_proj",
      NAME_BARE | NAME_STACKED | NAME_TRANSPOSED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "feed_forward.experts.down_proj",
      NAME_BARE | NAME_STACKED | NAME_TRANSPOSED, BIAS_NO },
    SHARED("feed_forward.shared_expert"),
    END,
};
static const arch_name flint_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_SINKS, LAYER "self_attn.softmax_offset", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_expert"),
    END,
};
static const arch_name kolibri1_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attn_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_ffn_norm", 0, BIAS_NO },
    SELF_ATTN(BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "moe.router.expert_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name granite_moe_swa_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_SINKS, LAYER "self_attn.sinks", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "block_sparse_moe.router", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "block_sparse_moe.experts.gate_up_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "block_sparse_moe.experts.down_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_SHARED_GATE_UP, LAYER "shared_mlp.input_linear", 0, BIAS_NO },
    { R_SHARED_DOWN, LAYER "shared_mlp.output_linear", 0, BIAS_NO },
    END,
};
static const arch_name afmoe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_mlp_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_ATTN_GATE, LAYER "self_attn.gate_proj", 0, BIAS_NO },
    GATED(BIAS_NO),
    { R_ROUTER, LAYER "mlp.router.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.expert_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name laguna_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ATTN_GATE, LAYER "self_attn.g_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.experts.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_expert"),
    END,
};
#define DBRX_STACK NAME_BARE | NAME_STACKED | NAME_FLAT
static const arch_name dbrx_names[] = {
    { R_EMBED, "@wte", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm_f", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, "@blocks.%d.norm_attn_norm.norm_1", 0, BIAS_NO },
    { R_QKV, "@blocks.%d.norm_attn_norm.attn.Wqkv", 0, BIAS_NO },
    { R_O, "@blocks.%d.norm_attn_norm.attn.out_proj", 0, BIAS_NO },
    { R_MLP_NORM, "@blocks.%d.norm_attn_norm.norm_2", 0, BIAS_NO },
    { R_ROUTER, "@blocks.%d.ffn.router.layer", 0, BIAS_NO },
    { R_EXPERT_GATE, "@blocks.%d.ffn.experts.mlp.w1", DBRX_STACK, BIAS_NO },
    { R_EXPERT_UP, "@blocks.%d.ffn.experts.mlp.v1", DBRX_STACK, BIAS_NO },
    { R_EXPERT_DOWN, "@blocks.%d.ffn.experts.mlp.w2", DBRX_STACK | NAME_TRANSPOSED, BIAS_NO },
    END,
};
static const arch_key dbrx_keys[] = {
    { "attn_config.kv_n_heads", KEY_INT, AT(kv_heads), 1, NULL },
    { "attn_config.clip_qkv", KEY_REAL, AT(qkv_clip), NONE, NULL },
    { "attn_config.rope_theta", KEY_KNOWN, 0, NONE, NULL }, /* dbrx_rest */
    { "ffn_config.ffn_hidden_size", KEY_INT, AT(expert_ffn), 3584, NULL },
    { "ffn_config.moe_num_experts", KEY_INT, AT(experts), 4, NULL },
    { "ffn_config.moe_top_k", KEY_INT, AT(experts_used), 1, NULL },
    { "ffn_config.moe_normalize_expert_weights", KEY_FN, 0, NONE, dbrx_shares },
    { "ffn_config.ffn_act_fn", KEY_FN, 0, NONE, dbrx_act },
    /* of training: */
    { "ffn_config.moe_jitter_eps", KEY_KNOWN, 0, NONE, NULL },
    { "ffn_config.moe_loss_weight", KEY_KNOWN, 0, NONE, NULL },
    { "ffn_config.uniform_expert_assignment", KEY_MUST, 0, 0, NULL },
    NO_KEY,
};
static const arch_key afmoe_keys[] = {
    EXPERT_COUNTS("num_experts", 64, 6),
    EXPERT_FFN(1408),
    { "route_scale", KEY_REAL, AT(expert_scale), 1, NULL },
    { "mup_enabled", KEY_FN, 0, NONE, if_mup },
    { "score_func", KEY_FN, 0, NONE, arch_key_scoring_func },
    MUST("route_norm", 1),
    MUST("n_group", 1),
    MUST("topk_group", 1),
    MUST("num_expert_groups", 1),
    MUST("num_limited_groups", 1),
    { "load_balance_coeff", KEY_KNOWN, 0, NONE, NULL }, /* of training */
    { "use_grouped_mm", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key laguna_keys[] = {
    EXPERT_COUNTS("num_experts", 256, 8),
    EXPERT_FFN(512),
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 512, NULL },
    { "moe_routed_scaling_factor", KEY_REAL, AT(expert_scale), 1, NULL },
    { "gating", KEY_FN, 0, NONE, laguna_gating },
    { "num_attention_heads_per_layer", KEY_KNOWN, 0, NONE, NULL }, /* arch_heads_by_layer */
    MUST("moe_apply_router_weight_on_input", 0),
    MUST("moe_router_logit_softcapping", 0),
    NO_KEY,
};
static const arch_key flint_keys[] = {
    NORM_TOPK(1),
    EXPERT_COUNTS("num_experts", 256, 6),
    EXPERT_FFN(512),
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 1024, NULL },
    NO_KEY,
};
static const arch_key kolibri1_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 384, 6),
    EXPERT_FFN(512),
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 512, NULL },
    NO_KEY,
};
static const arch_key mellum_keys[] = {
    NORM_TOPK(1),
    EXPERT_COUNTS("num_local_experts", 64, 8),
    EXPERT_FFN(896),
    { "mtp_layer_types", KEY_KNOWN, 0, NONE, NULL }, /* of layers that are not run */
    { "mtp_mlp_layer_types", KEY_KNOWN, 0, NONE, NULL },
    { "num_mtp_layers", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key granite_moe_swa_keys[] = {
    GRANITE_KEYS,
    EXPERT_COUNTS("num_local_experts", 8, 2),
    { "layer_rope_theta", KEY_KNOWN, 0, NONE, NULL }, /* arch_layer_thetas */
    NO_KEY,
};
static const arch_key phimoe_keys[] = {
    EXPERT_COUNTS("num_local_experts", 16, 2),
    { "router_jitter_noise", KEY_REAL, AT(router_jitter), 0.01, NULL },
    { "lm_head_bias", KEY_FLAG, AT(own_bias), NONE, NULL },
    NO_KEY,
};
static const arch_key llama4_keys[] = {
    EXPERT_COUNTS("num_local_experts", 16, 1),
    { "intermediate_size", KEY_INT, AT(expert_ffn), 8192, NULL },
    { "intermediate_size_mlp", KEY_INT, AT(ffn), 16384, NULL },
    { "attn_scale", KEY_REAL, AT(q_grow), 0.1, NULL },
    { "floor_scale", KEY_INT, AT(q_grow_every), 8192, NULL },
    { "attn_temperature_tuning", KEY_FN, 0, NONE, temperature_tuning },
    { "use_qk_norm", KEY_FN, 0, NONE, arch_key_head_qk_norm },
    { "attention_chunk_size", KEY_KNOWN, 0, NONE, NULL }, /* WINDOW_CHUNKS */
    NO_KEY,
};
static const arch_key granite_moe_keys[] = {
    GRANITE_KEYS,
    EXPERT_COUNTS("num_local_experts", 8, 2),
    NO_KEY,
};
static const arch_key aria_keys[] = {
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu }, /* its experts have silu whatever it says */
    { "moe_num_experts", KEY_INT, AT(experts), 8, NULL },
    { "moe_topk", KEY_INT, AT(experts_used), 2, NULL },
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
static const arch_key mimo_v2_keys[] = {
    NORM_TOPK(1),
    EXPERT_COUNTS("n_routed_experts", 256, 8),
    EXPERT_FFN(2048),
    GROUP_KEYS(1, 1, 1),
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL },
    { "attention_value_scale", KEY_REAL, AT(o_scale), 0.707, NULL },
    { "layernorm_epsilon", KEY_REAL, AT(norm_eps), NONE, NULL },
    MUST("swa_rope_theta", 10000),
    MUST("add_swa_attention_sink_bias", 1),
    MUST("add_full_attention_sink_bias", 0),
    { "attention_chunk_size", KEY_KNOWN, 0, NONE, NULL },
    { "attention_projection_layout", KEY_KNOWN, 0, NONE, NULL },
    { "sliding_window_size", KEY_KNOWN, 0, NONE, NULL },
    { "hybrid_layer_pattern", KEY_KNOWN, 0, NONE, NULL },
    { "hybrid_block_size", KEY_KNOWN, 0, NONE, NULL },
    { "swa_num_attention_heads", KEY_KNOWN, 0, NONE, NULL },
    { "swa_num_key_value_heads", KEY_KNOWN, 0, NONE, NULL },
    { "swa_head_dim", KEY_KNOWN, 0, NONE, NULL },
    { "swa_v_head_dim", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key cohere2_moe_keys[] = {
    NORM_TOPK(1),
    { "expert_selection_fn", KEY_FN, 0, NONE, expert_selection },
    { "rms_norm_eps", KEY_FN, 0, NONE, rms_norms },
    { "logit_scale", KEY_REAL, AT(logit_scale), 0.0625, NULL },
    EXPERT_COUNTS("num_experts", 8, 2),
    { "intermediate_size", KEY_INT, AT(expert_ffn), 22528, NULL },
    { "prefix_dense_intermediate_size", KEY_INT, AT(ffn), NONE, NULL },
    { "prefix_dense_sliding_window_pattern", KEY_KNOWN, 0, NONE, NULL },
    { "shared_expert_combination_strategy", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key qwen3_moe_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 128, 8),
    EXPERT_FFN(768),
    NO_KEY,
};
static const arch_key qwen3_omni_keys[] = {
    NORM_TOPK(1),
    EXPERT_COUNTS("num_experts", 128, 8),
    EXPERT_FFN(768),
    NO_KEY,
};
static const arch_key gpt_oss_keys[] = {
    { "swiglu_limit", KEY_REAL, AT(act_limit), 7, NULL },
    MUST("swiglu_alpha", 1.702),
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
static const arch_key solar_open_keys[] = {
    GROUP_KEYS(1, 1, 1), EXPERT_COUNTS("n_routed_experts", 128, 8), EXPERT_FFN(1280), NORM_TOPK(1),
    MUST("use_qk_norm", 0), NO_KEY,
};
static const arch_key glm4v_moe_keys[] = {
    GROUP_KEYS(1, 1, 1),
    EXPERT_COUNTS("n_routed_experts", 128, 8),
    EXPERT_FFN(1408),
    NORM_TOPK(1),
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    MUST("use_qk_norm", 0),
    NO_KEY,
};
static const arch_key minimax_m2_keys[] = {
    EXPERT_COUNTS("num_local_experts", 256, 8),
    { "rotary_dim", KEY_INT, AT(rope_dims), NONE, NULL },
    { "scoring_func", KEY_FN, 0, NONE, arch_key_scoring_func },
    { "attn_type_list", KEY_FN, 0, NONE, all_softmax },
    MUST("use_qk_norm", 1),
    MUST("use_routing_bias", 1),
    MUST("shared_intermediate_size", 0),
    MUST("swa_rope_theta", -1),
    /* not read by the modelling code: */
    { "qk_norm_type", KEY_KNOWN, 0, NONE, NULL },
    { "shared_moe_mode", KEY_KNOWN, 0, NONE, NULL },
    { "mlp_intermediate_size", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key exaone_moe_keys[] = {
    GROUP_KEYS(1, 1, 2.5),
    EXPERT_COUNTS("num_experts", 64, 8),
    EXPERT_FFN(1024),
    NORM_TOPK(1),
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    NO_KEY,
};
/* What shares are at least divided by: less than any sum of the best of ARCH_MAX_EXPERTS. */
static lq_status least_sum(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    if (!v || (cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble <= 1e-6)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a number 0..1e-6", key);
}
static const arch_key ernie_moe_keys[] = {
    MUST("use_bias", 0),
    EXPERT_COUNTS("moe_num_experts", 64, 6),
    EXPERT_FFN(1536),
    { "moe_norm_min", KEY_FN, 0, NONE, least_sum },
    /* of training: */
    { "moe_capacity", KEY_KNOWN, 0, NONE, NULL },
    { "moe_gate", KEY_KNOWN, 0, NONE, NULL },
    { "moe_use_aux_free", KEY_KNOWN, 0, NONE, NULL },
    { "moe_group", KEY_KNOWN, 0, NONE, NULL },
    { "weight_share_add_bias", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key ernie_vl_keys[] = {
    MUST("use_bias", 0),
    EXPERT_COUNTS("moe_num_experts", 64, 6),
    EXPERT_FFN(1536),
    { "moe_norm_min", KEY_FN, 0, NONE, least_sum },
    NO_KEY,
};
/* "moe_intermediate_size": of text's experts, of images'. */
static lq_status ernie_vl_words(cJSON *j, lq_err *err)
{
    static const char key[] = "moe_intermediate_size";
    const cJSON *both = js_get(j, key);
    int64_t n;
    if (!both) return LQ_OK;
    if (cJSON_GetArraySize(both) != 2 || !js_whole(both->child, 1, INT32_MAX, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected two widths, of experts of text and images", key);
    cJSON_DeleteItemFromObjectCaseSensitive(j, key);
    cJSON_AddItemToObject(j, key, cJSON_CreateNumber((double)n));
    return LQ_OK;
}
/* In text all three positions of a token are its place. */
static lq_status ernie_vl_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(js_get(j, "rope_parameters"), "mrope_section");
    int64_t n[3] = { 0 }, i = 0;
    if (!list) return LQ_OK;
    for (const cJSON *e = list->child; e && i < 3 && js_whole(e, 0, c->rope_dims, &n[i]); e = e->next)
        i++;
    if (cJSON_GetArraySize(list) == 3 && i == 3 && n[0] == n[1] && n[0] + n[1] + n[2] == c->rope_dims / 2)
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "mrope_section: expected three parts of half a head, two of them equal");
}
static const arch_key hunyuan_moe_keys[] = {
    EXPERT_COUNTS("num_experts", 1, 1),
    MUST("norm_topk_prob", 1),
    MUST("use_mixed_mlp_moe", 1),
    MUST("use_qk_norm", 1),
    MUST("use_rotary_pos_emb", 1),
    MUST("mlp_bias", 0),
    MUST("use_cla", 0),
    MUST("moe_layer_num_skipped", 0),
    { "norm_type", KEY_KNOWN, 0, NONE, NULL }, /* not read by the modelling code, like these: */
    { "attention_head_dim", KEY_KNOWN, 0, NONE, NULL },
    { "routed_scaling_factor", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key hy_v3_keys[] = {
    EXPERT_COUNTS("num_experts", 192, 8),
    EXPERT_FFN(1536),
    { "router_scaling_factor", KEY_REAL, AT(expert_scale), 2.826, NULL },
    MUST("qk_norm", 1),
    MUST("route_norm", 1),
    MUST("moe_router_use_sigmoid", 1),
    MUST("moe_router_enable_expert_bias", 1),
    /* all sums here are in f32: */
    { "enable_moe_fp32_combine", KEY_KNOWN, 0, NONE, NULL },
    { "enable_attention_fp32_softmax", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key flex_olmo_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 7, 5),
    NO_KEY,
};
static const arch_key qwen3_vl_moe_keys[] = {
    MUST("norm_topk_prob", 1),
    EXPERT_COUNTS("num_experts", 60, 4),
    EXPERT_FFN(1408),
    NO_KEY,
};
static const arch_key olmoe_keys[] = { NORM_TOPK(0), EXPERT_COUNTS("num_experts", 64, 8),
                                       MUST("clip_qkv", 0), NO_KEY };
#define QWEN3_VL_MOE(variant_, when_, names_) \
    { "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", variant_, when_, \
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .norm_topk = true }, \
      .prefix = "model.language_model.", .in_text = true, .names = names_, \
      .keys = qwen3_vl_moe_keys, .def_kv_heads = 16, .def_theta = 5e5, .def_max_pos = 128000, \
      .def_tied = true }
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
    { "MiMoV2FlashForCausalLM", "mimo_v2_flash", .w = { RMS_ROPE, SIGMOID_MOE, .v_apart = true },
      MODEL, .names = mimo_v2_names, .keys = mimo_v2_keys, .layers = mimo_v2_layers,
      .window = WINDOW_PATTERN, .def_pattern = 6, .def_window = 129, .def_kv_heads = 4,
      .def_head_dim = 192, .def_partial = 0.334, .def_eps = 1e-5, .def_theta = 5e6,
      .def_local_theta = 1e4, .def_max_pos = 131072, .def_dense = 1 },
    { "Cohere2MoeForCausalLM", "cohere2_moe",
      .w = { .norm = NORM_LAYER,
             .pos = POS_ROPE,
             .mlp = MLP_GATED,
             .parallel = true,
             .one_norm = true },
      MODEL, .names = cohere2_moe_names, .keys = cohere2_moe_keys, .layers = cohere2_moe_layers,
      .window = WINDOW_PATTERN, .def_pattern = 4, .def_window = 4096, .def_head_dim = 128,
      .def_eps = 1e-5, .def_max_pos = 8192, .def_tied = true },
    { "DbrxForCausalLM", "dbrx", .w = { LN_ROPE, .mlp = MLP_GATED, .norm_topk = true },
      .prefix = "transformer.", .names = dbrx_names, .keys = dbrx_keys, .layers = dbrx_rest,
      .def_ffn = 1, .def_eps = 1e-5 },
    { "Glm4MoeForCausalLM", "glm4_moe", .w = { RMS_ROPE, SIGMOID_MOE }, MODEL,
      .names = glm4_moe_names, .keys = glm4_moe_keys, .mtp = &arch_mtp_deepseek, .def_kv_heads = 8,
      .def_partial = 0.5, .def_eps = 1e-5, .def_max_pos = 131072, .def_dense = 1, .def_shared = 1 },
    { "Dots1ForCausalLM", "dots1", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE }, MODEL,
      .names = dots1_names, .keys = dots1_keys, .window = WINDOW_FROM, .def_window = 4096,
      .def_window_from = 62, .def_kv_heads = 32 },
    { "OlmoeForCausalLM", "olmoe", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = qwen3_moe_names, .keys = olmoe_keys, .def_eps = 1e-5, .def_max_pos = 4096 },
    { "GraniteMoeForCausalLM", "granitemoe", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = granite_moe_names, .keys = granite_moe_keys },
    { "AriaTextForCausalLM", "aria_text", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = aria_names, .keys = aria_keys, .def_shared = 2 },
    { "GptOssForCausalLM", "gpt_oss", .w = { RMS_ROPE, .norm_topk = true, .gate_up_mixed = true },
      MODEL, .names = gpt_oss_names, .keys = gpt_oss_keys, .def_act = ARCH_SWIGLU_CLAMPED,
      .fixed_act = true, .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 128,
      .def_kv_heads = 8, .def_head_dim = 64, .def_eps = 1e-5, .def_theta = 150000,
      .def_max_pos = 131072,
      .def_rope = "{\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"truncate\":false,\"original_max_position_embeddings\":4096}" },
    { "GraniteMoeSharedForCausalLM", "granitemoeshared", .w = { RMS_ROPE, .norm_topk = true },
      MODEL, .names = granite_moe_shared_names, .keys = granite_moe_keys },
    { "SolarOpenForCausalLM", "solar_open", .w = { RMS_ROPE, SIGMOID_MOE }, MODEL,
      .names = glm4_moe_names, .keys = solar_open_keys, .def_ffn = 1, .def_kv_heads = 8,
      .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 131072,
      .def_shared = 1 },
    { "MiniMaxM2ForCausalLM", "minimax_m2", .def_partial = 1,
      .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL, SIGMOID_MOE }, MODEL, .names = minimax_m2_names,
      .keys = minimax_m2_keys, .def_kv_heads = 8, .def_head_dim = 128, .def_theta = 5e6,
      .def_max_pos = 196608 },
    { "ExaoneMoeForCausalLM", "exaone_moe", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE },
      MODEL, .names = exaone_moe_names, .keys = exaone_moe_keys, .window = WINDOW_PATTERN,
      .def_pattern = 4, .def_window = 4096, .nope_full = true, .def_kv_heads = 32, .def_eps = 1e-5,
      .def_dense = 1, .def_shared = 1 },
    { "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", .w = { RMS_PAIRS, .norm_topk = true }, MODEL,
      .names = ernie_moe_names, .keys = ernie_moe_keys, .def_kv_heads = 4, .def_eps = 1e-5,
      .def_theta = 5e5, .def_max_pos = 131072, .def_dense = 1, .def_shared = 2, .def_tied = true },
#define ERNIE_VL(arch)                                                                        \
    {                                                                                         \
        arch, "ernie4_5_vl_moe",                                                              \
            .w = { RMS_PAIRS, .norm_topk = true, .corr_more = true }, MODEL, .in_text = true, \
            .names = ernie_vl_names, .keys = ernie_vl_keys, .respell = ernie_vl_words,        \
            .layers = ernie_vl_layers, .def_kv_heads = 4, .def_eps = 1e-5, .def_theta = 5e5,  \
            .def_max_pos = 131072, .def_dense = 1, .def_shared = 2, .def_tied = true          \
    }
    ERNIE_VL("Ernie4_5_VLMoeForConditionalGeneration"),
    ERNIE_VL("Ernie4_5_VL_MoeForConditionalGeneration"), /* what it was called before */
    { "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .qk_norm_late = true, .norm_topk = true }, MODEL,
      .names = hunyuan_moe_names, .keys = hunyuan_moe_keys, .def_eps = 1e-5, .def_shared = 1 },
    { "HYV3ForCausalLM", "hy_v3", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE }, MODEL,
      .names = hy_v3_names, .keys = hy_v3_keys, .def_kv_heads = 8, .def_head_dim = 128,
      .def_eps = 1e-5, .def_theta = 11158840, .def_max_pos = 131072, .def_dense = 1,
      .def_shared = 1 },
    { "FlexOlmoForCausalLM", "flex_olmo", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = flex_olmo_names, .keys = flex_olmo_keys, .def_theta = 5e5, .def_max_pos = 4096 },
    { "PhimoeForCausalLM", "phimoe",
      .w = { LN_ROPE, .mlp = MLP_GATED, .router = ROUTER_SPARSEMIXER }, MODEL,
      .names = phimoe_names, .keys = phimoe_keys, .window = WINDOW_ALL, .def_kv_heads = 8,
      .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 131072 },
    { "Llama4ForCausalLM", "llama4_text",
      .w = { RMS_PAIRS, .qk_norm = QK_NORM_HEAD, .qk_norm_late = true, .qk_norm_rotated = true,
             .q_grow_nope = true, .router = ROUTER_SIGMOID, .share_in = true },
      MODEL, .names = llama4_names, .keys = llama4_keys, .window = WINDOW_CHUNKS,
      .def_window = 8192, .def_nope_every = 4, .def_kv_heads = 8, .def_head_dim = 128,
      .def_eps = 1e-5, .def_theta = 5e5, .def_max_pos = 131072, .def_shared = 1 },
    { "AfmoeForCausalLM", "afmoe",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID, .norm_topk = true },
      MODEL, .names = afmoe_names, .keys = afmoe_keys, .window = WINDOW_PATTERN, .def_pattern = 4,
      .def_window = 1024, .nope_full = true, .def_head_dim = 128, .def_eps = 1e-5,
      .def_max_pos = 16384, .def_dense = 1, .def_shared = 2 },
    { "LagunaForCausalLM", "laguna",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .gate_softplus = true, .router = ROUTER_SIGMOID,
             .norm_topk = true },
      MODEL, .names = laguna_names, .keys = laguna_keys, .layers = arch_heads_by_layer,
      .window = WINDOW_PATTERN, .def_pattern = 1, .def_window = 512, .def_kv_heads = 8,
      .def_head_dim = 128, .def_partial = 1, .def_max_pos = 131072, .def_dense = 1,
      .def_theta = 5e5, .def_local_theta = 1e4,
      .def_rope = "{\"full_attention\":{\"rope_theta\":500000,\"partial_rotary_factor\":0.5},"
                  "\"sliding_attention\":{\"rope_theta\":10000}}" },
    { "MellumForCausalLM", "mellum", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = qwen3_moe_names, .keys = mellum_keys, .window = WINDOW_PATTERN, .def_pattern = 1,
      .def_window = 1024, .def_kv_heads = 4, .def_head_dim = 128, .def_max_pos = 131072,
      .def_theta = 5e5, .def_local_theta = 1e4 },
    { "FlintForCausalLM", "flint",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID }, MODEL,
      .names = flint_names, .keys = flint_keys, .layers = flint_layers, .window = WINDOW_PATTERN,
      .def_window = 513, .def_kv_heads = 4, .def_head_dim = 128, .def_max_pos = 262144 },
    { "Kolibri1ForCausalLM", "kolibri1",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID, .corr_logits = true },
      MODEL, .names = kolibri1_names, .keys = kolibri1_keys, .window = WINDOW_PATTERN,
      .def_pattern = 5, .def_window = 513, .nope_full = true, .def_kv_heads = 4,
      .def_head_dim = 128, .def_ffn = 1, .def_max_pos = 262144 },
    { "GraniteMoeSWAForCausalLM", "granitemoe_swa", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = granite_moe_swa_names, .keys = granite_moe_swa_keys, .layers = arch_layer_thetas,
      .window = WINDOW_PATTERN, .def_pattern = 4, .full_first = true, .def_window = 128 },
    /* The text parts of models that see or hear. */
    { "Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .norm_topk = true }, .prefix = "thinker.model.",
      .in_text = true, .names = qwen3_moe_names, .keys = qwen3_omni_keys, .def_kv_heads = 4,
      .def_theta = 1e6, .def_max_pos = 32768 },
    QWEN3_VL_MOE(ARCH_STACKED_ROWS, "-", qwen3_vl_moe_rows_names),
    QWEN3_VL_MOE(NULL, NULL, qwen3_vl_moe_names),
    { "Glm4vMoeForConditionalGeneration", "glm4v_moe", .w = { RMS_ROPE, SIGMOID_MOE },
      .prefix = "model.language_model.", .in_text = true, .names = glm4_moe_names,
      .keys = glm4v_moe_keys, .def_kv_heads = 8, .def_partial = 0.5, .def_eps = 1e-5,
      .def_max_pos = 65536, .def_dense = 1, .def_shared = 1 },
    { .arch = NULL },
};
