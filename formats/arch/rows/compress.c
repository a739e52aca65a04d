/* formats/arch/rows/compress.c - DeepSeek V4: attention to a window and to compressed positions, of which an
 * indexer chooses in some layers, several residual streams, and experts by token in the first layers. */
#include "formats/arch/rows/rows.h"

#include <inttypes.h>

#include "base/json.h"

/* ---- keys with a meaning of their own ---- */

static lq_status set_rope_dims(arch_config *c, const char *key, int64_t dims, lq_err *err)
{
    const bool said = c->rope_dims > 0;
    if (said && c->rope_dims != dims)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected what partial_rotary_factor says, %" PRId64
                       " rotated dims, found %" PRId64,
                       key, c->rope_dims, dims);
    c->rope_dims = dims;
    c->nope_dims = c->kv_lora = c->v_dim - dims;
    return LQ_OK;
}

static lq_status rotated_part(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (!v) return LQ_OK;
    if (!cJSON_IsNumber(v) || !(v->valuedouble > 0 && v->valuedouble < 1))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number between 0 and 1", key);
    return set_rope_dims(c, key, (int64_t)((double)c->v_dim * v->valuedouble), err);
}

/* Of 512 dims 64 where nothing says it. */
static lq_status rotated_dims(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t dims = c->v_dim / 8;
    if (!v && c->rope_dims) return LQ_OK;
    if (v && !js_whole(v, 1, c->v_dim - 1, &dims))
        return lq_fail(err, LQ_EVALUE, "%s: expected 1..%" PRId64, key, c->v_dim - 1);
    return set_rope_dims(c, key, dims, err);
}

static lq_status score_function(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    static const struct {
        const char *text;
        arch_router router;
    } known[] = { { "sqrtsoftplus", ROUTER_SQRT_SOFTPLUS },
                  { "sigmoid", ROUTER_SIGMOID },
                  { "softmax", ROUTER_SOFTMAX } };
    const char *text = cJSON_IsString(v) ? v->valuestring : "";
    char found[64];
    if (!v) return LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(known); i++)
        if (strcmp(known[i].text, text) == 0) return c->w.router = known[i].router, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected sqrtsoftplus, sigmoid or softmax, found %s",
                   key, js_describe(found, v));
}

/* ---- layers ---- */
static const struct {
    const char *text;
    int64_t ratio; /* in compress_ratios */
    arch_mixer mixer;
} kinds[] = {
    { "sliding_attention", 0, MIX_ATTENTION },
    { "compressed_sparse_attention", 4, MIX_SPARSE },
    { "heavily_compressed_attention", 128, MIX_HEAVY },
};

static void set_kind(arch_config *c, int64_t i, arch_mixer m)
{
    c->layer[i].mixer = (uint8_t)m;
    c->layer[i].rope = m == MIX_ATTENTION ? ROPE_MAIN : ROPE_LOCAL;
}

/* Words, one for each layer; or ratios, of which those behind the last layer are of heads that guess. */
static lq_status kinds_by_list(arch_config *c, const cJSON *list, bool words, lq_err *err)
{
    int64_t i = 0, ratio = 0;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e && i < c->layers;
         e = e->next, i++) {
        size_t k = 0;
        if (!words && !js_whole(e, 0, INT32_MAX, &ratio)) break;
        while (k < LQ_COUNT(kinds) &&
               (words ? !cJSON_IsString(e) || strcmp(kinds[k].text, e->valuestring) != 0
                      : kinds[k].ratio != ratio))
            k++;
        if (k == LQ_COUNT(kinds)) break;
        set_kind(c, i, kinds[k].mixer);
    }
    if (i == c->layers && (!words || cJSON_GetArraySize(list) == i)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s for each of %" PRId64 " layers",
                   list->string,
                   words ? "sliding_attention, compressed_sparse_attention or "
                           "heavily_compressed_attention"
                         : "0, 4 or 128",
                   c->layers);
}

static lq_status read_kinds(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *types = js_get(j, "layer_types"), *ratios = js_get(j, "compress_ratios");
    if (types) return kinds_by_list(c, types, true, err);
    if (ratios) return kinds_by_list(c, ratios, false, err);
    for (int64_t i = 0; i < c->layers; i++)
        set_kind(c, i, i < 2 || i % 2 == 0 ? MIX_HEAVY : MIX_SPARSE);
    return LQ_OK;
}

static lq_status read_rates(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *rates = js_get(j, "compress_rates");
    const int64_t most = INT32_MAX;
    c->sparse_every = 4;
    c->heavy_every = 128;
    lq_status s = js_i64(rates, kinds[1].text, false, 1, most, &c->sparse_every, err);
    if (!s) s = js_i64(rates, kinds[2].text, false, 1, most, &c->heavy_every, err);
    if (!s) s = js_i64(j, "compress_rate_csa", false, 1, most, &c->sparse_every, err);
    return s ? s : js_i64(j, "compress_rate_hca", false, 1, most, &c->heavy_every, err);
}

static lq_status v4_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t hashed = 3;
    lq_status s = read_rates(c, j, err);
    if (!s) s = read_kinds(c, j, err);
    if (!s) s = js_i64(j, "num_hash_layers", false, 0, INT32_MAX, &hashed, err);
    for (int64_t i = 0; i < c->layers && !s && !js_get(j, "mlp_layer_types"); i++)
        c->layer[i].hashed = i < hashed;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    return s;
}

/* ---- tables ---- */
/* clang-format off */
#define COMPRESSOR(kv, gate, bias, norm, at) \
    { kv, LAYER at ".wkv", 0, BIAS_NO }, \
    { gate, LAYER at ".wgate", 0, BIAS_NO }, \
    { bias, LAYER at ".ape", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO }, \
    { norm, LAYER at ".norm", 0, BIAS_NO }
#define HYPER(fn, base, scale, at) \
    { fn, at "_fn", NAME_BARE, BIAS_NO }, \
    { base, at "_base", NAME_BARE, BIAS_NO }, \
    { scale, at "_scale", NAME_BARE, BIAS_NO }
static const arch_name v4_names[] = {
    { R_EMBED, "@embed", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "^head", 0, BIAS_NO },
    HYPER(R_HYPER_END_FN, R_HYPER_END_BASE, R_HYPER_END_SCALE, "@hc_head"),
    HYPER(R_HYPER_ATTN_FN, R_HYPER_ATTN_BASE, R_HYPER_ATTN_SCALE, LAYER "hc_attn"),
    HYPER(R_HYPER_MLP_FN, R_HYPER_MLP_BASE, R_HYPER_MLP_SCALE, LAYER "hc_ffn"),
    { R_ATTN_NORM, LAYER "attn_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "ffn_norm", 0, BIAS_NO },
    { R_Q_A, LAYER "attn.wq_a", 0, BIAS_NO },
    { R_Q_A_NORM, LAYER "attn.q_norm", 0, BIAS_NO },
    { R_Q_B, LAYER "attn.wq_b", 0, BIAS_NO },
    { R_KV_A, LAYER "attn.wkv", 0, BIAS_NO },
    { R_KV_A_NORM, LAYER "attn.kv_norm", 0, BIAS_NO },
    { R_SINKS, LAYER "attn.attn_sink", NAME_BARE, BIAS_NO },
    { R_O_A, LAYER "attn.wo_a", 0, BIAS_NO },
    { R_O, LAYER "attn.wo_b", 0, BIAS_NO },
    COMPRESSOR(R_SPARSE_KV, R_SPARSE_GATE, R_SPARSE_BIAS, R_SPARSE_NORM, "attn.compressor"),
    COMPRESSOR(R_HEAVY_KV, R_HEAVY_GATE, R_HEAVY_BIAS, R_HEAVY_NORM, "attn.compressor"),
    COMPRESSOR(R_INDEX_K, R_INDEX_GATE, R_INDEX_BIAS, R_INDEX_K_NORM, "attn.indexer.compressor"),
    { R_INDEX_Q, LAYER "attn.indexer.wq_b", 0, BIAS_NO },
    { R_INDEX_W, LAYER "attn.indexer.weights_proj", 0, BIAS_NO },
    /* first: else it is taken for the next one's bias */
    { R_ROUTER_CORR, LAYER "ffn.gate.bias", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "ffn.gate", 0, BIAS_NO },
    { R_EXPERTS_OF, LAYER "ffn.gate.tid2eid", NAME_BARE | NAME_HEAD_ROWS | NAME_IDS, BIAS_NO },
    EXPERTS("ffn", "w1", "w3", "w2"),
    { R_SHARED_GATE, LAYER "ffn.shared_experts.w1", 0, BIAS_NO },
    { R_SHARED_UP, LAYER "ffn.shared_experts.w3", 0, BIAS_NO },
    { R_SHARED_DOWN, LAYER "ffn.shared_experts.w2", 0, BIAS_NO },
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_key v4_keys[] = {
    { "head_dim", KEY_INT, AT(v_dim), 512, NULL },
    { "partial_rotary_factor", KEY_FN, 0, NONE, rotated_part },
    { "qk_rope_head_dim", KEY_FN, 0, NONE, rotated_dims },
    { "q_lora_rank", KEY_INT, AT(q_lora), 1024, NULL },
    { "o_groups", KEY_INT, AT(o_groups), 8, NULL },
    { "o_lora_rank", KEY_INT, AT(o_lora), 1024, NULL },
    { "sliding_window", KEY_INT, AT(window), 128, NULL },
    { "index_n_heads", KEY_INT, AT(index_heads), 64, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 512, NULL },
    { "hc_mult", KEY_INT, AT(hyper), 4, NULL },
    { "hc_sinkhorn_iters", KEY_INT, AT(hyper_steps), 20, NULL },
    { "hc_eps", KEY_REAL, AT(hyper_eps), 1e-6, NULL },
    { "swiglu_limit", KEY_REAL, AT(act_limit), 10, NULL },
    EXPERT_COUNTS("n_routed_experts", 256, 6),
    EXPERT_FFN(2048),
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 1.5, NULL },
    { "scoring_func", KEY_FN, 0, NONE, score_function },
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    MUST("norm_topk_prob", 1),
    MUST("num_key_value_heads", 1),
    MUST("attention_bias", 0),
    MUST("mlp_bias", 0),
    KNOWN("compress_rates"), /* by v4_layers and arch_rope_parse, as these: */
    KNOWN("compress_ratios"),
    KNOWN("compress_rate_csa"),
    KNOWN("compress_rate_hca"),
    KNOWN("compress_rope_theta"),
    KNOWN("num_hash_layers"),
    KNOWN("expert_dtype"), /* how they are stored: of weights that is checked */
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_compress[] = {
    { "DeepseekV4ForCausalLM", "deepseek_v4",
      .w = { RMS_PAIRS, .mla = true, .kv_one = true, .router = ROUTER_SQRT_SOFTPLUS,
             .norm_topk = true },
      .prefix = "", .names = v4_names, .keys = v4_keys, .mixer = MIX_SPARSE, .window = WINDOW_OWN,
      .layers = v4_layers, .def_kv_heads = 1, .def_max_pos = 1048576, .def_ffn = 1, .def_shared = 1,
      .def_act = ARCH_SILU_LIMITED, .fixed_act = true },
    { .arch = NULL },
};
