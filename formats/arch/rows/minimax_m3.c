/* formats/arch/rows/minimax_m3.c - the text part of MiniMax M3: experts, and layers in which each kv head attends to
 * the blocks of positions that an indexer's head chooses for it (runtime/forward/forward_index.c).
 *
 * Its published config.json has the sparse layers in sparse_attention_config; it is read as
 * transformers writes it. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

static const char FULL[] = "full_attention", SPARSE[] = "minimax_m3_sparse";

/* ---- the publisher's words ---- */

/* The layers' kinds by a number for each, where layer_types says nothing. */
static lq_status name_layers(cJSON *j, const cJSON *freq, lq_err *err)
{
    int64_t one;
    if (js_get(j, "layer_types")) return LQ_OK;
    cJSON *types = cJSON_CreateArray();
    const cJSON *e = cJSON_IsArray(freq) ? freq->child : NULL;
    for (; e && js_whole(e, 0, INT32_MAX, &one); e = e->next)
        cJSON_AddItemToArray(types, cJSON_CreateString(one ? SPARSE : FULL));
    js_put(j, "layer_types", types);
    return cJSON_IsArray(freq) && !e ? LQ_OK
                                     : lq_fail(err, LQ_EVALUE,
                                               "sparse_attention_freq: expected a number for each "
                                               "layer");
}

/* Values of the indexer are in no published layer and have no code. */
static lq_status no_values(const cJSON *j, const cJSON *v, lq_err *err)
{
    const cJSON *t = js_get(j, "layer_types"), *e = cJSON_IsArray(v) ? v->child : NULL;
    bool ok = cJSON_IsTrue(v) || (cJSON_IsArray(v) && cJSON_IsArray(t));
    for (t = t ? t->child : NULL; t && ok && cJSON_IsArray(v); t = t->next, e = e ? e->next : e) {
        const bool off = cJSON_IsTrue(e) || (cJSON_IsNumber(e) && e->valuedouble > 0);
        ok = off || !cJSON_IsString(t) || strcmp(t->valuestring, SPARSE) != 0;
    }
    return ok ? LQ_OK
              : lq_fail(err, LQ_EUNSUPPORTED,
                        "sparse_disable_index_value: expected 1 for each sparse layer");
}

static lq_status read_sparse(cJSON *j, const cJSON *sparse, lq_err *err)
{
    static const char *const words[][2] = { { "sparse_num_index_heads", "index_n_heads" },
                                            { "sparse_index_dim", "index_head_dim" },
                                            { "sparse_block_size", "index_block_size" },
                                            { "sparse_topk_blocks", "index_topk_blocks" },
                                            { "sparse_local_block", "index_local_blocks" } };
    const cJSON *freq = js_get(sparse, "sparse_attention_freq");
    lq_status s = freq ? name_layers(j, freq, err) : LQ_OK;
    for (const cJSON *v = sparse->child; v && !s; v = v->next) {
        char found[64];
        size_t i = 0;
        while (i < LQ_COUNT(words) && strcmp(words[i][0], v->string) != 0)
            i++;
        if (i < LQ_COUNT(words))
            js_put(j, words[i][1], cJSON_Duplicate(v, true));
        else if (strcmp(v->string, "sparse_score_type") == 0)
            s = arch_key_must(v->string, v, "max", err);
        else if (strcmp(v->string, "sparse_disable_index_value") == 0)
            s = no_values(j, v, err);
        else if (v != freq && !cJSON_IsNull(v) &&
                 !(strcmp(v->string, "use_sparse_attention") == 0 && cJSON_IsTrue(v)) &&
                 !(strcmp(v->string, "sparse_init_block") == 0 && cJSON_IsNumber(v) &&
                   !(v->valuedouble < 0 || v->valuedouble > 0)))
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "sparse_attention_config: expected no %.60s in a MiniMax M3, found %s",
                        v->string, js_describe(found, v));
    }
    return s;
}

/* intermediate_size is an expert's. */
static lq_status m3_words(cJSON *j, lq_err *err)
{
    static const char *const widths[][2] = { { "intermediate_size", "moe_intermediate_size" },
                                             { "dense_intermediate_size", "intermediate_size" } };
    static const double widest[] = { 3072, 12288 };
    cJSON *sparse = cJSON_DetachItemFromObjectCaseSensitive(j, "sparse_attention_config");
    const lq_status s = cJSON_IsObject(sparse) ? read_sparse(j, sparse, err) : LQ_OK;
    cJSON_Delete(sparse);
    for (int i = 0; i < 2; i++) {
        cJSON *v = cJSON_DetachItemFromObjectCaseSensitive(j, widths[i][0]);
        js_put(j, widths[i][1], v ? v : cJSON_CreateNumber(widest[i]));
    }
    return s;
}

/* ---- layers ---- */

static lq_status m3_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *types = js_get(j, "layer_types"), *dims = js_get(j, "rotary_dim");
    int64_t i = 0;
    if (dims && !(cJSON_IsNumber(dims) && (int64_t)dims->valuedouble == c->rope_dims))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rotary_dim: expected the %lld dims that partial_rotary_factor says",
                       (long long)c->rope_dims);
    for (const cJSON *t = types ? types->child : NULL; t; t = t->next, i++) {
        const char *text = cJSON_IsString(t) ? t->valuestring : "";
        const bool full = strcmp(text, FULL) == 0;
        if (i == c->layers || (!full && strcmp(text, SPARSE) != 0)) break;
        c->layer[i].index_off = full;
    }
    if (!types)
        for (; i < c->layers; i++)
            c->layer[i].index_off = true;
    if (i == c->layers && (!types || cJSON_GetArraySize(types) == i)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "layer_types: expected %s or %s for each of %lld layers", FULL,
                   SPARSE, (long long)c->layers);
}

/* Blocks to positions; index_block is known. */
static lq_status topk_blocks(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t n = 16;
    if (v && !js_whole(v, 1, ARCH_MAX_WIDTH, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..%d", key, ARCH_MAX_WIDTH);
    if (c->index_block < 1 || n > ARCH_MAX_WIDTH / c->index_block)
        return lq_fail(err, LQ_EVALUE, "%s: expected at most %d positions in all", key,
                       ARCH_MAX_WIDTH);
    c->index_topk = n * c->index_block;
    return LQ_OK;
}

static lq_status per_head(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "per_head", err);
}

/* Of the kernel's activation, whose sigmoid has a factor of 1.702. */
static lq_status alpha(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    if (!v || (cJSON_IsNumber(v) && fabs(v->valuedouble - 1.702) < 1e-9)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected 1.702, found %s", key,
                   js_describe(found, v));
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name minimax_m3_names[] = {
    LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_INDEX_Q, LAYER "self_attn.index_q_proj", 0, BIAS_NO },
    { R_INDEX_K, LAYER "self_attn.index_k_proj", 0, BIAS_NO },
    { R_INDEX_Q_NORM, LAYER "self_attn.index_q_norm", 0, BIAS_NO },
    { R_INDEX_K_NORM, LAYER "self_attn.index_k_norm", 0, BIAS_NO },
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "block_sparse_moe.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    SHARED("block_sparse_moe.shared_experts"),
    END,
};
static const arch_key minimax_m3_keys[] = {
    EXPERT_COUNTS("num_local_experts", 128, 4),
    { "shared_intermediate_size", KEY_INT, AT(shared_ffn), 3072, NULL },
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 2, NULL },
    { "swiglu_limit", KEY_REAL, AT(act_limit), 7, NULL },
    { "swiglu_alpha", KEY_FN, 0, NONE, alpha },
    { "index_n_heads", KEY_INT, AT(index_heads), 4, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_block_size", KEY_INT, AT(index_block), 128, NULL },
    { "index_topk_blocks", KEY_FN, 0, NONE, topk_blocks },
    { "index_local_blocks", KEY_INT, AT(index_local), 1, NULL },
    { "rotary_dim", KEY_KNOWN, 0, NONE, NULL }, /* m3_layers */
    { "scoring_func", KEY_FN, 0, NONE, arch_key_scoring_func },
    { "qk_norm_type", KEY_FN, 0, NONE, per_head },
    MUST("n_shared_experts", 1),
    MUST("use_qk_norm", 1),
    MUST("use_gemma_norm", 1),
    MUST("use_routing_bias", 1),
    MUST("attention_output_gate", 0),
    NO_KEY,
};
/* clang-format on */

#define M3                                                                                          \
    .w = { RMS_ROPE,           .norm_offset = 1, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID, \
           .index_half = true, .norm_topk = true },                                                 \
    .names = minimax_m3_names, .keys = minimax_m3_keys, .respell = m3_words, .layers = m3_layers,   \
    .def_act = ARCH_SWIGLU_CLAMPED, .fixed_act = true, .def_kv_heads = 4, .def_head_dim = 128,      \
    .def_partial = 1, .def_theta = 5e6, .def_max_pos = 524288
const arch_row arch_rows_minimax_m3[] = {
    { "MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl", .prefix = "language_model.model.",
      .in_text = true, M3 },
    { "MiniMaxM3VLForCausalLM", "minimax_m3_vl_text", MODEL, M3 },
    { .arch = NULL },
};
