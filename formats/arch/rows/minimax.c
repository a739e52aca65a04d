/* formats/arch/rows/minimax.c - MiniMax-Text-01 and M1: lightning attention (arXiv:2401.04658, arXiv:2501.08313) with
 * layers of attention between, experts, and a residual that is what the norms give.
 *
 * Their published config.json is read as transformers writes it. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

static const char FULL[] = "full_attention", LINEAR[] = "linear_attention";

/* ---- the publisher's words ---- */

/* layer_types of a kind for each layer; ones attend. */
static lq_status name_layers(cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "attn_type_list");
    int64_t n = 0, one;
    lq_status s = js_i64(j, "num_hidden_layers", true, 1, ARCH_MAX_LAYERS, &n, err);
    if (s || js_get(j, "layer_types")) return s;
    if (list && cJSON_GetArraySize(list) != n)
        return lq_fail(err, LQ_EVALUE, "attn_type_list: expected %lld of 0 and 1", (long long)n);
    cJSON *types = cJSON_CreateArray();
    const cJSON *e = list ? list->child : NULL;
    for (int64_t i = 0; i < n && !s; i++, e = e ? e->next : e) {
        one = i % 2 == 0;
        if (list && !js_whole(e, 0, 1, &one))
            s = lq_fail(err, LQ_EVALUE, "attn_type_list: expected %lld of 0 and 1", (long long)n);
        cJSON_AddItemToArray(types, cJSON_CreateString(one ? FULL : LINEAR));
    }
    cJSON_DeleteItemFromObjectCaseSensitive(j, "layer_types");
    cJSON_AddItemToObject(j, "layer_types", types);
    return s;
}

/* rotary_dim as the part of a head that it is. */
static lq_status rotated_part(cJSON *j, lq_err *err)
{
    int64_t dims, head = 0, hidden = 0, heads = 0;
    const cJSON *v = js_get(j, "rotary_dim");
    if (!v || js_get(j, "partial_rotary_factor")) return LQ_OK;
    lq_status s = js_i64(j, "hidden_size", true, 1, ARCH_MAX_WIDTH, &hidden, err);
    if (!s) s = js_i64(j, "num_attention_heads", true, 1, ARCH_MAX_WIDTH, &heads, err);
    if (!s) head = hidden / heads;
    if (!s) s = js_i64(j, "head_dim", false, 1, ARCH_MAX_WIDTH, &head, err);
    if (!s && !js_whole(v, 2, head, &dims))
        s = lq_fail(err, LQ_EVALUE, "rotary_dim: expected an integer 2..%lld", (long long)head);
    if (s) return s;
    cJSON_DeleteItemFromObjectCaseSensitive(j, "partial_rotary_factor");
    cJSON_AddNumberToObject(j, "partial_rotary_factor", (double)dims / (double)head);
    return LQ_OK;
}

static lq_status minimax_words(cJSON *j, lq_err *err)
{
    const lq_status s = name_layers(j, err);
    return s ? s : rotated_part(j, err);
}

static lq_status published_words(cJSON *j, lq_err *err)
{
    static const char *const words[][2] = {
        { "layernorm_full_attention_alpha", "full_attn_alpha_factor" },
        { "layernorm_full_attention_beta", "full_attn_beta_factor" },
        { "layernorm_linear_attention_alpha", "linear_attn_alpha_factor" },
        { "layernorm_linear_attention_beta", "linear_attn_beta_factor" },
        { "layernorm_mlp_alpha", "mlp_alpha_factor" },
        { "layernorm_mlp_beta", "mlp_beta_factor" }
    };
    int64_t heads = 0;
    for (size_t i = 0; i < LQ_COUNT(words); i++) {
        cJSON *v = cJSON_DetachItemFromObjectCaseSensitive(j, words[i][0]);
        if (!v) continue;
        if (js_get(j, words[i][1])) {
            cJSON_Delete(v);
            return lq_fail(err, LQ_EVALUE, "%s: expected %s alone", words[i][1], words[i][0]);
        }
        cJSON_DeleteItemFromObjectCaseSensitive(j, words[i][1]);
        cJSON_AddItemToObject(j, words[i][1], v);
    }
    if (!js_get(j, "attn_type_list") && !js_get(j, "layer_types"))
        return lq_fail(err, LQ_EVALUE, "attn_type_list: expected a number for each layer");
    if (!cJSON_IsTrue(js_get(j, "postnorm")))
        return lq_fail(err, LQ_EUNSUPPORTED, "postnorm: expected true");
    lq_status s = js_i64(j, "num_attention_heads", true, 1, ARCH_MAX_WIDTH, &heads, err);
    if (!s && (heads & (heads - 1)))
        s = lq_fail(err, LQ_EUNSUPPORTED,
                    "num_attention_heads: expected a power of two, whose decays are one sequence, "
                    "found %lld",
                    (long long)heads);
    return s ? s : minimax_words(j, err);
}

/* ---- layers ---- */

static lq_status minimax_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *dims = js_get(j, "rotary_dim"), *list = js_get(j, "attn_type_list");
    int64_t i = 0, n, one;
    c->mix_heads = c->mix_groups = c->heads;
    c->mix_key = c->mix_value = c->head_dim;
    c->conv_taps = 1;
    if (dims && !(js_whole(dims, 0, ARCH_MAX_WIDTH, &n) && n == c->rope_dims))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rotary_dim: expected the %lld dims that partial_rotary_factor says",
                       (long long)c->rope_dims);
    for (const cJSON *e = list ? list->child : NULL; e; e = e->next, i++)
        if (i >= c->layers || !js_whole(e, 0, 1, &one) ||
            (one > 0) != (c->layer[i].mixer == MIX_ATTENTION))
            return lq_fail(err, LQ_EVALUE, "attn_type_list: expected what layer_types says");
    return LQ_OK;
}

static lq_status no_window(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    return !v ? LQ_OK
              : lq_fail(err, LQ_EUNSUPPORTED, "%s: expected null, found %s", key,
                        js_describe(found, v));
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name minimax_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_MIX_IN, LAYER "self_attn.qkv_proj", 0, BIAS_NO },
    { R_MIX_GATE, LAYER "self_attn.output_gate", 0, BIAS_NO },
    { R_MIX_NORM, LAYER "self_attn.norm", 0, BIAS_NO },
    { R_MIX_OUT, LAYER "self_attn.out_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
#define JOINS(what, branch) \
    { what "_alpha_factor", KEY_REAL, AT(join_x[branch]), 1, NULL }, \
    { what "_beta_factor", KEY_REAL, AT(join_y[branch]), 1, NULL }
static const arch_key minimax_keys[] = {
    EXPERT_COUNTS("num_local_experts", 8, 2),
    JOINS("full_attn", BRANCH_ATTENTION),
    JOINS("linear_attn", BRANCH_STATE),
    JOINS("mlp", BRANCH_MLP),
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "sliding_window", KEY_FN, 0, NONE, no_window },
    MUST("postnorm", 1),
    MUST("shared_intermediate_size", 0),
    { "shared_moe_mode", KEY_KNOWN, 0, NONE, NULL }, /* of shared experts */
    { "rotary_dim", KEY_KNOWN, 0, NONE, NULL }, /* minimax_layers */
    { "attn_type_list", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
/* clang-format on */

#define MINIMAX                                                                                    \
    .w = { RMS_ROPE, .norm_topk = true, .norm_stays = true, .mix_mixed = true, .mix_eps = 1e-6f }, \
    MODEL, .names = minimax_names, .keys = minimax_keys, .mixer = MIX_LIGHTNING,                   \
    .layers = minimax_layers, .def_kv_heads = 8, .def_eps = 1e-5, .def_theta = 1e6,                \
    .def_partial = 1, .def_max_pos = 131072
const arch_row arch_rows_minimax[] = {
    { "MiniMaxForCausalLM", "minimax", .respell = minimax_words, MINIMAX },
    { "MiniMaxText01ForCausalLM", "minimax_text_01", .respell = published_words, MINIMAX },
    { "MiniMaxM1ForCausalLM", "minimax_m1", .respell = published_words, MINIMAX },
    { .arch = NULL },
};
