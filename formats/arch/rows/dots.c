/* formats/arch/rows/dots.c - the text part of dots.3 note: latent attention whose ranks and heads differ between layers
 * that an indexer chooses for and those with a window, each head's output a gate, keys normed before they rotate.
 *
 * Its publisher has the text part's numbers at the top of config.json and those of layers with a window as swa_...;
 * transformers has a text_config, and these in per_layer_config. Both become the publisher's here. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char FULL[] = "full_attention", INDEXED[] = "indexed_attention",
                  SLIDING[] = "sliding_attention";

static bool is_word(const cJSON *e, const char *word)
{
    return cJSON_IsString(e) && strcmp(e->valuestring, word) == 0;
}

/* ---- words ---- */

/* What each layer is, without layer_types too; use_dsa says of those without a window if they have an indexer. */
static lq_status name_kinds(cJSON *j, int64_t layers, lq_err *err)
{
    bool window = true, indexed = true;
    const cJSON *dsa = cJSON_GetObjectItemCaseSensitive(j, "use_dsa"); /* null: as the list says */
    const bool said = dsa ? !cJSON_IsNull(dsa) : !js_get(j, "per_layer_config");
    lq_status s = js_bool(j, "use_sliding_window", false, &window, err);
    if (!s) s = js_bool(j, "use_dsa", false, &indexed, err);
    if (s) return s;
    const cJSON *types = js_get(j, "layer_types"), *e = types ? types->child : NULL;
    if (types && !(cJSON_IsArray(types) && cJSON_GetArraySize(types) == layers))
        return lq_fail(err, LQ_EVALUE, "layer_types: expected an array of %" PRId64 " strings",
                       layers);
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < layers && !s; i++, e = e ? e->next : e) {
        const bool near = types ? is_word(e, SLIDING) : window && i >= 2 && i % 4 != 1;
        if (types && !near && !is_word(e, FULL) && !is_word(e, INDEXED))
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "layer_types: expected indexed_attention, full_attention or "
                        "sliding_attention, found \"%.40s\"",
                        cJSON_IsString(e) ? e->valuestring : "");
        const bool chosen = said || !types ? indexed : is_word(e, INDEXED);
        cJSON_AddItemToArray(list, cJSON_CreateString(near ? SLIDING : chosen ? INDEXED : FULL));
    }
    js_put(j, "layer_types", list);
    js_drop(j, "use_dsa");
    js_drop(j, "use_sliding_window");
    return s;
}

/* Of layers with a window: the key, that of per_layer_config, and what is assumed; 0: what the two before leave. */
static const struct {
    const char *own, *all;
    int64_t def;
} near_keys[] = {
    { "swa_num_attention_heads", "num_attention_heads", 64 },
    { "swa_num_key_value_heads", "num_key_value_heads", 64 },
    { "swa_q_lora_rank", "q_lora_rank", 1024 },
    { "swa_kv_lora_rank", "kv_lora_rank", 1024 },
    { "swa_head_dim", "head_dim", 256 },
    { "swa_qk_nope_head_dim", "qk_nope_head_dim", 192 },
    { "swa_qk_rope_head_dim", "qk_rope_head_dim", 0 },
    { "swa_v_head_dim", "v_head_dim", 128 },
};

static lq_status known_numbers(const cJSON *o, lq_err *err)
{
    for (const cJSON *v = o->child; v; v = v->next) {
        size_t k = 0;
        while (k < LQ_COUNT(near_keys) && strcmp(near_keys[k].all, v->string) != 0)
            k++;
        if (k == LQ_COUNT(near_keys))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "per_layer_config: expected heads, ranks and widths of attention, found "
                           "%.40s",
                           v->string);
    }
    return LQ_OK;
}

/* per_layer_config as swa_...: layers with a window have one another's numbers, others those of all. */
static lq_status name_sizes(cJSON *j, lq_err *err)
{
    const cJSON *per = js_get(j, "per_layer_config"), *one = NULL, *own = NULL;
    if (!per) return LQ_OK;
    if (!cJSON_IsObject(per))
        return lq_fail(err, LQ_EVALUE, "per_layer_config: expected an object");
    int64_t i = 0;
    lq_status s = LQ_OK;
    cJSON *none = cJSON_CreateObject();
    for (const cJSON *t = js_get(j, "layer_types")->child; t && !s; t = t->next, i++) {
        char name[24];
        snprintf(name, sizeof name, "%" PRId64, i);
        own = js_get(per, name);
        if (!own) own = none;
        s = cJSON_IsObject(own)
                ? known_numbers(own, err)
                : lq_fail(err, LQ_EVALUE, "per_layer_config: expected objects by layers");
        const cJSON *want = is_word(t, SLIDING) ? one ? one : own : none;
        if (is_word(t, SLIDING)) one = want;
        if (!s && !cJSON_Compare(own, want, true))
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "per_layer_config: expected one set of numbers for all layers with a "
                        "window, found another for layer %" PRId64,
                        i);
    }
    for (size_t k = 0; k < LQ_COUNT(near_keys) && !s; k++) {
        const cJSON *v = one ? js_get(one, near_keys[k].all) : NULL;
        if (one && !v) v = js_get(j, near_keys[k].all);
        js_drop(j, near_keys[k].own);
        if (v) cJSON_AddItemToObject(j, near_keys[k].own, cJSON_Duplicate(v, true));
    }
    cJSON_Delete(none);
    js_drop(j, "per_layer_config");
    return s;
}

/* rope_parameters of both kinds of layers, whose rotated dims are said elsewhere. */
static lq_status name_rotations(cJSON *j, lq_err *err)
{
    const cJSON *said = js_get(j, "rope_parameters");
    const cJSON *scaling = js_get(j, "rope_scaling");
    if (!said && scaling && (scaling->child || !cJSON_IsObject(scaling))) said = scaling;
    const bool nested = js_get(said, FULL) || js_get(said, INDEXED) || js_get(said, SLIDING);
    if (js_get(said, FULL) && js_get(said, INDEXED) &&
        !cJSON_Compare(js_get(said, FULL), js_get(said, INDEXED), true))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope_parameters: expected one rotation for all layers without a window");
    const char *full = js_get(said, INDEXED) ? INDEXED : FULL;
    const cJSON *theta = js_get(j, "rope_theta"), *near = js_get(j, "swa_rope_theta");
    cJSON *rope = cJSON_CreateObject();
    for (int i = 0; i < 2; i++) {
        const cJSON *from = nested ? js_get(said, i ? SLIDING : full) : said;
        cJSON *one = from ? cJSON_Duplicate(from, true) : cJSON_CreateObject();
        const cJSON *base = i && !said ? near : theta;
        js_drop(one, "partial_rotary_factor");
        if (!js_get(one, "rope_theta"))
            js_put(one, "rope_theta",
                   base ? cJSON_Duplicate(base, true) : cJSON_CreateNumber(i && !said ? 5e4 : 8e7));
        cJSON_AddItemToObject(rope, i ? SLIDING : FULL, one);
    }
    js_put(j, "rope_parameters", rope);
    js_drop(j, "rope_scaling");
    js_drop(j, "rope_theta");
    js_drop(j, "swa_rope_theta");
    return LQ_OK;
}

/* The first of these keys, or a number. */
static lq_status read_one(const cJSON *j, const char *first, const char *other, int64_t def,
                          int64_t *n, lq_err *err)
{
    *n = def;
    return js_i64(j, js_get(j, first) ? first : other, false, 1, ARCH_MAX_WIDTH, n, err);
}

static lq_status dots_words(cJSON *j, lq_err *err)
{
    static const char *const shared[] = { "moe_shared_expert_intermediate_size",
                                          "shared_experts_intermediate_size" };
    int64_t layers = 46, window, width, experts = 1;
    lq_status s = js_i64(j, "num_hidden_layers", true, 1, ARCH_MAX_LAYERS, &layers, err);
    if (!s) s = name_kinds(j, layers, err);
    if (!s) s = name_sizes(j, err);
    if (!s) s = name_rotations(j, err);
    if (!s) s = read_one(j, "sliding_window", "sliding_window_size", 512, &window, err);
    if (!s) s = read_one(j, shared[0], shared[1], 1536, &width, err);
    if (!s) s = js_i64(j, "n_shared_experts", false, 1, 1024, &experts, err);
    if (s) return s;
    js_put(j, "sliding_window", cJSON_CreateNumber((double)window));
    js_drop(j, "sliding_window_size");
    js_drop(j, shared[0]);
    js_drop(j, shared[1]);
    js_put(j, "shared_expert_intermediate_size", cJSON_CreateNumber((double)(width * experts)));
    return LQ_OK;
}

/* ---- layers ---- */

static lq_status near_sizes(arch_sizes *near, const arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t n[LQ_COUNT(near_keys)];
    lq_status s = LQ_OK;
    for (size_t k = 0; k < LQ_COUNT(near_keys) && !s; k++) {
        n[k] = near_keys[k].def;
        if (!n[k]) n[k] = n[k - 2] - n[k - 1]; /* what does not rotate is the rest of a head */
        s = js_i64(j, near_keys[k].own, false, 1, ARCH_MAX_WIDTH, &n[k], err);
    }
    if (!s && (n[0] != n[1] || c->heads != c->kv_heads))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "num_key_value_heads: expected as many as heads, in layers with a window "
                       "and in others");
    if (!s && n[4] != n[5] + n[6])
        return lq_fail(err, LQ_EVALUE,
                       "swa_head_dim: expected the sum of swa_qk_nope_head_dim %" PRId64
                       " and swa_qk_rope_head_dim %" PRId64 ", found %" PRId64,
                       n[5], n[6], n[4]);
    if (!s)
        *near = (arch_sizes){ .heads = n[0],
                              .kv_heads = n[1],
                              .q_lora = n[2],
                              .kv_lora = n[3],
                              .head_dim = n[4],
                              .rope_dims = n[6],
                              .v_dim = n[7],
                              .ffn = c->ffn };
    return s;
}

/* Experts begin after the first layers, whatever a list of them says. */
static lq_status first_dense(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t dense = c->row->def_dense;
    if (js_get(j, "mlp_layer_types") || !cJSON_IsArray(js_get(j, "moe_layer_freq"))) return LQ_OK;
    const lq_status s = js_i64(j, "first_k_dense_replace", false, 0, ARCH_MAX_LAYERS, &dense, err);
    for (int64_t i = 0; i < c->layers && i < dense && !s; i++)
        c->layer[i].moe = false;
    return s;
}

static lq_status dots_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes near = { 0 };
    bool any = false;
    if (c->q_lora < 1 || c->kv_lora < 1 || c->head_dim < 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "q_lora_rank: expected a rank of queries");
    lq_status s = js_i64(j, "sliding_window", true, 1, INT32_MAX, &c->window, err);
    if (!s) s = near_sizes(&near, c, j, err);
    if (!s) s = first_dense(c, j, err);
    arch_sizes *z = s ? NULL : calloc((size_t)c->layers, sizeof *z);
    if (!s && !z) s = lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    if (s) return s;
    if (c->w.latent_rescale) {
        c->attn_scale *= sqrt((double)c->hidden / (double)c->q_lora);
        c->latent_scale = sqrt((double)c->hidden / (double)c->kv_lora);
    }
    const cJSON *t = js_get(j, "layer_types")->child;
    for (int64_t i = 0; i < c->layers; i++, t = t->next) {
        arch_layer *l = &c->layer[i];
        l->window = is_word(t, SLIDING);
        l->index_off = !is_word(t, INDEXED);
        l->rope = l->window ? ROPE_LOCAL : ROPE_MAIN;
        z[i] = l->window ? near : arch_sizes_of(c, i);
        any |= l->window;
    }
    if (!any) c->window = 0;
    s = arch_set_sizes(c, z, err);
    free(z);
    return s;
}

/* By attention_gate_type and the same of layers with a window. */
static lq_status gate_by_head(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "headwise", err);
}

static lq_status norm_rms(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "RMSNorm", err);
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name dots_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_Q_A, LAYER "self_attn.q_a_proj", 0, BIAS_ATTN },
    { R_Q_A_NORM, LAYER "self_attn.q_a_layernorm", 0, BIAS_NO },
    { R_Q_B, LAYER "self_attn.q_b_proj", 0, BIAS_NO },
    { R_KV_A, LAYER "self_attn.kv_a_proj_with_mqa", 0, BIAS_ATTN },
    { R_KV_A_NORM, LAYER "self_attn.kv_a_layernorm", 0, BIAS_NO },
    { R_K_ROPE_NORM, LAYER "self_attn.k_rope_only_layernorm", 0, BIAS_NO },
    { R_KV_B, LAYER "self_attn.kv_b_proj", 0, BIAS_NO },
    { R_HEAD_GATE, LAYER "self_attn.g_proj", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_ATTN },
    { R_INDEX_Q, LAYER "self_attn.indexer.wq_b", 0, BIAS_NO },
    { R_INDEX_K, LAYER "self_attn.indexer.wk", 0, BIAS_NO },
    { R_INDEX_K_NORM, LAYER "self_attn.indexer.k_norm", 0, BIAS_YES },
    { R_INDEX_W, LAYER "self_attn.indexer.weights_proj", 0, BIAS_NO },
    GATED(BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_key dots_keys[] = {
    { "q_lora_rank", KEY_INT, AT(q_lora), 1024, NULL },
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 128, NULL },
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL },
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL },
    GROUP_KEYS(1, 1, 1),
    EXPERT_COUNTS("n_routed_experts", 256, 8),
    { "num_local_experts", KEY_INT, AT(experts), NONE, NULL },
    EXPERT_FFN(1536),
    NORM_TOPK(1),
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    { "index_n_heads", KEY_INT, AT(index_heads), 64, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL },
    { "apply_mla_qkv_lora_rescale", KEY_BOOL, AT(w.latent_rescale), 1, NULL },
    { "attention_gate_type", KEY_FN, 0, NONE, gate_by_head },
    { "swa_attention_gate_type", KEY_FN, 0, NONE, gate_by_head },
    { "normalization", KEY_FN, 0, NONE, norm_rms },
    { "final_norm", KEY_FN, 0, NONE, norm_rms },
    MUST("k_rope_only_layernorm", 1),
    MUST("use_dynamic_rsf", 0),
    MUST("mlp_bias", 0),
    KNOWN("moe_gating_fp32"), /* the router's arithmetic is in f32 */
    KNOWN("swa_num_attention_heads"), KNOWN("swa_num_key_value_heads"), KNOWN("swa_q_lora_rank"), /* dots_layers */
    KNOWN("swa_kv_lora_rank"), KNOWN("swa_head_dim"), KNOWN("swa_qk_nope_head_dim"),
    KNOWN("swa_qk_rope_head_dim"), KNOWN("swa_v_head_dim"),
    NO_KEY,
};
/* clang-format on */

#define DOTS3                                                                                 \
    .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE, .latent_eps = true, .latent_rescale = true }, \
    MODEL, .in_text = true, .names = dots_names, .keys = dots_keys, .respell = dots_words,    \
    .layers = dots_layers, .window = WINDOW_OWN, .def_eps = 1e-5, .def_theta = 8e7,           \
    .def_local_theta = 5e4, .def_max_pos = 524288, .def_dense = 1
const arch_row arch_rows_dots[] = {
    { "Dots3NoteForConditionalGeneration", "dots3_note", DOTS3 },
    { "Dots3NoteForCausalLM", "dots3_note_text", DOTS3 },
    { .arch = NULL },
};
