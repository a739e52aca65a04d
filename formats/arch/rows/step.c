/* formats/arch/rows/step.c - Step 3.5 and the text part of Step 3.7: experts; layers with a window have heads
 * and a rotation of their own, each head's output a gate, and MLPs a limit by layer.
 *
 * StepFun's config.json has lists for layers behind the last, of MTP, and other words; it is read as
 * transformers writes it. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <stdlib.h>

/* ---- StepFun's words ---- */

static const char FULL[] = "full_attention", SLIDING[] = "sliding_attention";

/* A list for the model's layers and those of MTP: the first alone. */
static void cut_list(cJSON *j, const char *key, int64_t layers, int64_t more)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(j, key);
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers + more) return;
    for (; more > 0; more--)
        cJSON_DeleteItemFromArray(list, (int)layers);
}

/* "3,4,5" or [3, 4, 5]: the layers with experts. */
static lq_status name_mlps(cJSON *j, int64_t layers, lq_err *err)
{
    static const char key[] = "moe_layers_enum";
    const cJSON *v = js_get(j, key);
    const char *text = cJSON_GetStringValue(v);
    if (!v || js_get(j, "mlp_layer_types")) return js_drop(j, key), LQ_OK;
    bool ok = text || cJSON_IsArray(v);
    char *in = calloc((size_t)layers, 1);
    if (!in) return lq_fail(err, LQ_ENOMEM, "no memory for %lld layers", (long long)layers);
    while (text && *text && ok) {
        char *end = NULL;
        const long long i = strtoll(text, &end, 10);
        ok = end != text && i >= 0 && (!*end || *end == ',');
        if (ok && i < layers) in[i] = 1;
        text = ok && *end ? end + 1 : end;
    }
    for (const cJSON *e = !text && ok ? v->child : NULL; e && ok; e = e->next) {
        int64_t i;
        ok = js_whole(e, 0, ARCH_MAX_LAYERS, &i);
        if (ok && i < layers) in[i] = 1;
    }
    if (ok) {
        js_drop(j, key);
        js_drop(j, "mlp_layer_types");
        cJSON *list = cJSON_AddArrayToObject(j, "mlp_layer_types");
        for (int64_t i = 0; i < layers; i++)
            cJSON_AddItemToArray(list, cJSON_CreateString(in[i] ? "sparse" : "dense"));
    }
    free(in);
    return ok ? LQ_OK : lq_fail(err, LQ_EVALUE, "%s: expected numbers of layers", key);
}

/* What a list says of all layers of a kind, into the rotation of that kind. */
static lq_status rotate_kind(cJSON *to, const char *name, const cJSON *j, const char *kind,
                             const char *list_key, lq_err *err)
{
    const cJSON *list = js_get(j, list_key), *types = js_get(j, "layer_types");
    const cJSON *one = cJSON_IsArray(list) ? NULL : list, *e = list ? list->child : NULL;
    const cJSON *t = types ? types->child : NULL;
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) != cJSON_GetArraySize(types))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number for each layer", list_key);
    for (; cJSON_IsArray(list) && t; t = t->next, e = e->next) {
        if (!cJSON_IsString(t) || strcmp(t->valuestring, kind) != 0) continue;
        if (one && !cJSON_Compare(one, e, true))
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected one number for all layers of %s",
                           list_key, kind);
        one = e;
    }
    if (one) cJSON_AddItemToObject(to, name, cJSON_Duplicate(one, true));
    return LQ_OK;
}

/* rope_scaling is of the layers without a window. */
static lq_status name_rotations(cJSON *j, lq_err *err)
{
    static const char *const kinds[] = { FULL, SLIDING };
    cJSON *rope = js_get(j, "rope_parameters") ? NULL : cJSON_CreateObject();
    lq_status s = LQ_OK;
    for (int i = 0; rope && i < 2 && !s; i++) {
        cJSON *one = cJSON_AddObjectToObject(rope, kinds[i]);
        s = rotate_kind(one, "rope_theta", j, kinds[i], "rope_theta", err);
        if (!s)
            s = rotate_kind(one, "partial_rotary_factor", j, kinds[i], "partial_rotary_factors",
                            err);
        const cJSON *scaling = i == 0 ? js_get(j, "rope_scaling") : NULL;
        for (const cJSON *v = scaling ? scaling->child : NULL; v && v->string; v = v->next)
            cJSON_AddItemToObject(one, v->string, cJSON_Duplicate(v, true));
    }
    if (rope) {
        js_drop(j, "rope_parameters");
        cJSON_AddItemToObject(j, "rope_parameters", rope);
        js_drop(j, "rope_scaling");
    }
    js_drop(j, "rope_theta");
    js_drop(j, "partial_rotary_factors");
    return s;
}

/* Heads of the layers with a window, in Laguna's list. */
static lq_status name_heads(cJSON *j, lq_err *err)
{
    static const char key[] = "attention_other_setting";
    const cJSON *other = js_get(j, key), *all = js_get(j, "num_attention_heads");
    const cJSON *own = js_get(j, "num_sliding_attention_heads"), *types = js_get(j, "layer_types");
    if (!own) own = js_get(other, "num_attention_heads");
    static const char *const same[][2] = { { "num_attention_groups", "num_key_value_heads" },
                                           { "head_dim", "head_dim" },
                                           { "true_head_dim", "head_dim" } };
    for (size_t i = 0; i < LQ_COUNT(same); i++) {
        const cJSON *a = js_get(other, same[i][0]), *b = js_get(j, same[i][1]);
        if (a && b && !cJSON_Compare(a, b, true))
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: %s: expected that of the other layers", key,
                           same[i][0]);
    }
    for (const cJSON *l = js_get(j, "per_layer_config"), *o = l ? l->child : NULL; o; o = o->next)
        if (!o->child || o->child->next || !cJSON_Compare(js_get(o, all->string), own, true))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "per_layer_config: expected num_attention_heads alone, as "
                           "num_sliding_attention_heads says, found another in layer %s",
                           o->string ? o->string : "of a list");
    cJSON *list = own && cJSON_IsArray(types) ? cJSON_CreateArray() : NULL;
    for (const cJSON *t = list ? types->child : NULL; t; t = t->next) {
        const bool window = cJSON_IsString(t) && strcmp(t->valuestring, SLIDING) == 0;
        cJSON_AddItemToArray(list, cJSON_Duplicate(window ? own : all, true));
    }
    if (list) cJSON_AddItemToObject(j, "num_attention_heads_per_layer", list);
    js_drop(j, key);
    js_drop(j, "per_layer_config");
    js_drop(j, "num_sliding_attention_heads");
    return LQ_OK;
}

static lq_status step_words(cJSON *j, lq_err *err)
{
    static const char *const lists[] = { "layer_types",   "mlp_layer_types",
                                         "rope_theta",    "partial_rotary_factors",
                                         "swiglu_limits", "swiglu_limits_shared" };
    int64_t layers = 0, more = 0;
    lq_status s = js_i64(j, "num_hidden_layers", true, 1, ARCH_MAX_LAYERS, &layers, err);
    if (!s) s = js_i64(j, "num_nextn_predict_layers", false, 0, 1024, &more, err);
    if (!s && !cJSON_IsNumber(js_get(j, "num_attention_heads")))
        s = lq_fail(err, LQ_EVALUE, "num_attention_heads: expected an integer");
    if (s) return s;
    for (size_t i = 0; i < LQ_COUNT(lists); i++)
        cut_list(j, lists[i], layers, more);
    js_rename(j, "num_attention_groups", "num_key_value_heads");
    js_rename(j, "moe_top_k", "num_experts_per_tok");
    js_rename(j, "share_expert_dims", "share_expert_dim");
    if (!js_get(j, "layer_types")) {
        js_drop(j, "layer_types");
        cJSON *types = cJSON_AddArrayToObject(j, "layer_types");
        for (int64_t i = 0; i < layers; i++)
            cJSON_AddItemToArray(types, cJSON_CreateString(FULL));
    }
    s = name_mlps(j, layers, err);
    if (!s) s = name_rotations(j, err);
    return s ? s : name_heads(j, err);
}

/* ---- layers ---- */

/* A limit for each layer; 0 or null: none. */
static lq_status read_limits(arch_config *c, const cJSON *j, const char *key, bool routed,
                             lq_err *err)
{
    const cJSON *list = js_get(j, key), *e = cJSON_IsArray(list) ? list->child : NULL;
    if (!list) return LQ_OK;
    for (int64_t i = 0; i < c->layers; i++, e = e->next) {
        const double v = !e || cJSON_IsNull(e) ? 0 : e->valuedouble;
        if (!e || (!cJSON_IsNull(e) && !cJSON_IsNumber(e)) || !(v >= 0 && v <= 1e9))
            return lq_fail(err, LQ_EVALUE, "%s: expected a number or null for each of %lld layers",
                           key, (long long)c->layers);
        if (v > 0) c->act = ARCH_SILU_CAPPED;
        *(routed ? &c->layer[i].expert_limit : &c->layer[i].mlp_limit) = v;
    }
    return LQ_OK;
}

static lq_status step_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    lq_status s = read_limits(c, j, "swiglu_limits", true, err);
    if (!s) s = read_limits(c, j, "swiglu_limits_shared", false, err);
    return s ? s : arch_heads_by_layer(c, j, err);
}

static lq_status router_by_sigmoid(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "sigmoid", err);
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name step_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ATTN_GATE, LAYER "self_attn.g_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "moe.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "moe.router_bias", NAME_BARE, BIAS_NO },
    { R_EXPERT_GATE, LAYER "moe.gate_proj", NAME_STACKED, BIAS_NO },
    { R_EXPERT_UP, LAYER "moe.up_proj", NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "moe.down_proj", NAME_STACKED, BIAS_NO },
    SHARED("share_expert"),
    END,
};
static const arch_key step_keys[] = {
    EXPERT_COUNTS("n_routed_experts", 288, 8),
    EXPERT_FFN(1280),
    { "share_expert_dim", KEY_INT, AT(shared_ffn), 1280, NULL },
    { "moe_router_scaling_factor", KEY_REAL, AT(expert_scale), 1, NULL },
    { "query_pre_attn_scalar", KEY_RSQRT, AT(attn_scale), NONE, NULL },
    { "swiglu_limits", KEY_KNOWN, 0, NONE, NULL }, /* step_layers, as these: */
    { "swiglu_limits_shared", KEY_KNOWN, 0, NONE, NULL },
    { "num_attention_heads_per_layer", KEY_KNOWN, 0, NONE, NULL },
    { "mtp_mlp_layer_types", KEY_KNOWN, 0, NONE, NULL },
    { "need_fp32_gate", KEY_KNOWN, 0, NONE, NULL }, /* the router's arithmetic is in f32 */
    { "moe_router_activation", KEY_FN, 0, NONE, router_by_sigmoid },
    MUST("use_head_wise_attn_gate", 1),
    MUST("use_moe_router_bias", 1),
    MUST("norm_expert_weight", 1),
    MUST("zero_centered", 1),
    MUST("use_moe", 1),
    MUST("mlp_bias", 0),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_step[] = {
    { "Step3p5ForCausalLM", "step3p5", .def_partial = 1,
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID,
             .norm_topk = true, .gate_heads = true },
      MODEL, .names = step_names, .keys = step_keys, .respell = step_words, .layers = step_layers,
      .window = WINDOW_ALL, .def_kv_heads = 8, .def_head_dim = 128, .def_eps = 1e-5,
      .def_max_pos = 128000, .def_dense = 3 },
    { .arch = NULL },
};
