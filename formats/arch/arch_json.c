/* formats/arch/arch_json.c - our own spelling of a config, for .llmq (docs/formats/llmq.md).
 *
 * Fields of the first version stand always; later ones only where they differ from what a plain
 * Llama (or the row) has, so that files of either age mean the same. */
#include "formats/arch/arch_fields.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN_REALS(X)                                       \
    X("norm_eps", norm_eps, 0, 1)                          \
    X("attn_scale", attn_scale, 0, 1e9)                    \
    X("rope_theta", rope[ROPE_MAIN].theta, 0, 1e15)        \
    X("rope_factor", rope[ROPE_MAIN].factor, 0, 1e6)       \
    X("rope_low_freq", rope[ROPE_MAIN].low_freq, 0, 1e6)   \
    X("rope_high_freq", rope[ROPE_MAIN].high_freq, 0, 1e6) \
    X("rope_beta_fast", rope[ROPE_MAIN].beta_fast, 0, 1e9) \
    X("rope_beta_slow", rope[ROPE_MAIN].beta_slow, 0, 1e9) \
    X("rope_attention_factor", rope[ROPE_MAIN].attention_factor, 0, 1e6)

/* Of layer_sizes: X(key, field, lowest, highest). */
#define LAYER_INTS(X)                       \
    X("kv_heads", kv_heads, 1, MAX_WIDTH)   \
    X("head_dim", head_dim, 1, MAX_WIDTH)   \
    X("rope_dims", rope_dims, 0, MAX_WIDTH) \
    X("ffn", ffn, 1, MAX_WIDTH)

/* Likewise, left out where they are the model's. */
#define LAYER_LATER_INTS(X)                   \
    X("heads", heads, 1, MAX_WIDTH)           \
    X("rel_extent", rel_extent, 0, MAX_WIDTH) \
    X("q_lora", q_lora, 0, MAX_WIDTH)         \
    X("kv_lora", kv_lora, 0, MAX_WIDTH)       \
    X("v_dim", v_dim, 1, MAX_WIDTH)

#define LATER_REALS(X)                                                               \
    X("alibi_max", alibi_max, 0, 1e9, 8)                                             \
    X("embed_scale", embed_scale, 0, 1e9, 1)                                         \
    X("residual_scale", residual_scale, 0, 1e9, 1)                                   \
    X("logit_scale", logit_scale, 0, 1e9, 1)                                         \
    X("join_x_attention", join_x[BRANCH_ATTENTION], 0, 1e9, 1)                       \
    X("join_x_state", join_x[BRANCH_STATE], 0, 1e9, 1)                               \
    X("join_x_mlp", join_x[BRANCH_MLP], 0, 1e9, 1)                                   \
    X("join_y_attention", join_y[BRANCH_ATTENTION], 0, 1e9, 1)                       \
    X("join_y_state", join_y[BRANCH_STATE], 0, 1e9, 1)                               \
    X("join_y_mlp", join_y[BRANCH_MLP], 0, 1e9, 1)                                   \
    X("gate_scale", gate_scale, 0, 1e9, 1)                                           \
    X("down_scale", down_scale, 0, 1e9, 1)                                           \
    X("o_scale", o_scale, 0, 1e9, 1)                                                 \
    X("mix_out_scale", mix_out_scale, 0, 1e9, 1)                                     \
    X("mix_scale_gate", mix_scale[0], 0, 1e9, 1)                                     \
    X("mix_scale_x", mix_scale[1], 0, 1e9, 1)                                        \
    X("mix_scale_b", mix_scale[2], 0, 1e9, 1)                                        \
    X("mix_scale_c", mix_scale[3], 0, 1e9, 1)                                        \
    X("mix_scale_dt", mix_scale[4], 0, 1e9, 1)                                       \
    X("attn_softcap", attn_softcap, 0, 1e9, 0)                                       \
    X("final_softcap", final_softcap, 0, 1e9, 0)                                     \
    X("qkv_clip", qkv_clip, 0, 1e9, 0)                                               \
    X("act_limit", act_limit, 0, 1e9, 0)                                             \
    X("post_eps", post_eps, 0, 1, 0)                                                 \
    X("hyper_eps", hyper_eps, 0, 1, 0)                                               \
    X("hyper_post", hyper_post, 0, 1e9, 2)                                           \
    X("q_grow", q_grow, 0, 1e9, 0)                                                   \
    X("dt_min", dt_min, 0, 1e9, 0)                                                   \
    X("dt_max", dt_max, 0, 1e9, 0)                                                   \
    X("decay_span", decay_span, 0, 1e9, 0)                                           \
    X("latent_scale", latent_scale, 0, 1e9, 1)                                       \
    X("expert_scale", expert_scale, 0, 1e9, 1)                                       \
    X("shared_scale", shared_scale, 0, 1e9, 1)                                       \
    X("router_scale", router_scale, 0, 1e9, 1)                                       \
    X("router_softcap", router_softcap, 0, 1e9, 0)                                   \
    X("join_heat", join_heat, 1e-6, 1e9, 1)                                          \
    X("router_jitter", router_jitter, 0, 1e9, 0)                                     \
    X("rope_long_factor", rope[ROPE_MAIN].long_factor, 0, 1e6, 0)                    \
    X("rope_local_theta", rope[ROPE_LOCAL].theta, 0, 1e15, c->rope[ROPE_MAIN].theta) \
    X("rope_local_factor", rope[ROPE_LOCAL].factor, 0, 1e6, 1)                       \
    X("rope_local_low_freq", rope[ROPE_LOCAL].low_freq, 0, 1e6, 0)                   \
    X("rope_local_high_freq", rope[ROPE_LOCAL].high_freq, 0, 1e6, 0)                 \
    X("rope_local_beta_fast", rope[ROPE_LOCAL].beta_fast, 0, 1e9, 0)                 \
    X("rope_local_beta_slow", rope[ROPE_LOCAL].beta_slow, 0, 1e9, 0)                 \
    X("rope_local_attention_factor", rope[ROPE_LOCAL].attention_factor, 0, 1e6, 1)   \
    X("rope_partial", rope[ROPE_MAIN].partial, 0, 1, 0)                              \
    X("rope_local_partial", rope[ROPE_LOCAL].partial, 0, 1, 0)
/* Wiring, where config.json changed the row's. */
#define OWN_WIRING(X)                          \
    X("wiring_parallel", parallel)             \
    X("wiring_rope_half", rope_half)           \
    X("wiring_one_norm", one_norm)             \
    X("wiring_norm_after_add", norm_after_add) \
    X("wiring_qkv_grouped", qkv_grouped)       \
    X("wiring_index_half", index_half)         \
    X("wiring_latent_rescale", latent_rescale) \
    X("wiring_norm_topk", norm_topk)           \
    X("wiring_mix_norm_1st", mix_norm_1st)     \
    X("wiring_mix_tiled", mix_tiled)           \
    X("wiring_mix_beta_2", mix_beta_2)         \
    X("wiring_mix_sigmoid", mix_sigmoid)       \
    X("wiring_group_top2", group_top2)         \
    X("wiring_both_ways", both_ways)           \
    X("wiring_head_rows_1", head_rows_1)       \
    X("wiring_gate_heads", gate_heads)

static const char *const pos_texts[] = { "none", "rope", "alibi", "learned", "sinusoidal" };
static const char *const head_texts[] = { "words", "none", "labels" };
static const char *const norm_texts[] = { "rms", "layer" };
static const char *const router_texts[] = { "softmax", "sigmoid", "sparsemixer", "sqrtsoftplus" };
static const char *const qk_norm_texts[] = { "none", "head", "all", "heads" };

/* ---- out ---- */
static bool differ(double a, double b) { return a < b || a > b; }

typedef bool in_list(const arch_config *c, int64_t layer);
static bool in_window(const arch_config *c, int64_t i) { return c->layer[i].window; }
static bool in_moe(const arch_config *c, int64_t i) { return c->layer[i].moe; }
static bool in_v_is_k(const arch_config *c, int64_t i) { return c->layer[i].v_is_k; }
static bool in_no_mlp(const arch_config *c, int64_t i) { return c->layer[i].no_mlp; }
static bool in_hashed(const arch_config *c, int64_t i) { return c->layer[i].hashed; }
static bool in_ngrams(const arch_config *c, int64_t i) { return c->layer[i].ngrams; }
static bool in_index_shared(const arch_config *c, int64_t i) { return c->layer[i].index_shared; }
static bool in_index_off(const arch_config *c, int64_t i) { return c->layer[i].index_off; }
static bool in_local(const arch_config *c, int64_t i) { return c->layer[i].rope == ROPE_LOCAL; }
static bool in_nope(const arch_config *c, int64_t i)
{
    return c->w.pos == POS_ROPE && c->layer[i].rope == ROPE_OFF;
}

/* The layers of a kind; nothing when there are none and they may be left out. */
static bool put_layers(cJSON *j, const arch_config *c, const char *key, in_list *in, bool always)
{
    cJSON *list = cJSON_CreateArray();
    bool ok = list != NULL;
    for (int64_t i = 0; i < c->layers && ok; i++)
        if (in(c, i)) ok = cJSON_AddItemToArray(list, cJSON_CreateNumber((double)i));
    if (ok && (always || list->child)) return cJSON_AddItemToObject(j, key, list);
    cJSON_Delete(list);
    return ok;
}

/* The layers of each set of sizes that is not the model's, with that. */
static bool put_sizes(cJSON *j, const arch_config *c)
{
    cJSON *list = c->n_sizes ? cJSON_AddArrayToObject(j, "layer_sizes") : NULL;
    bool ok = list || !c->n_sizes;
    for (int64_t n = 0; n < c->n_sizes && ok; n++) {
        const arch_config *own = c->sizes[n];
        cJSON *o = cJSON_CreateObject();
        ok = o && cJSON_AddItemToArray(list, o);
#define X(key, field, lo, hi) ok = ok && cJSON_AddNumberToObject(o, key, (double)own->field);
        LAYER_INTS(X)
#undef X
#define X(key, field, lo, hi) \
    if (own->field != c->field) ok = ok && cJSON_AddNumberToObject(o, key, (double)own->field);
        LAYER_LATER_INTS(X)
#undef X
        cJSON *of = ok ? cJSON_AddArrayToObject(o, "layers") : NULL;
        ok = of != NULL;
        for (int64_t i = 0; i < c->layers && ok; i++)
            if (c->layer[i].own == own)
                ok = cJSON_AddItemToArray(of, cJSON_CreateNumber((double)i));
    }
    return ok;
}

/* A number for each layer; nothing where all are 0. */
typedef double of_layer(const arch_layer *l);
static double kv_back_of(const arch_layer *l) { return (double)l->kv_back; }
static double sparse_of(const arch_layer *l) { return l->sparse; }
static double expert_limit_of(const arch_layer *l) { return l->expert_limit; }
static double mlp_limit_of(const arch_layer *l) { return l->mlp_limit; }

static bool put_numbers(cJSON *j, const arch_config *c, const char *key, of_layer *of)
{
    cJSON *list = cJSON_CreateArray();
    bool ok = list != NULL, any = false;
    for (int64_t i = 0; i < c->layers && ok; i++) {
        const double v = of(&c->layer[i]);
        any |= differ(v, 0);
        ok = cJSON_AddItemToArray(list, cJSON_CreateNumber(v));
    }
    if (ok && any) return cJSON_AddItemToObject(j, key, list);
    cJSON_Delete(list);
    return ok;
}

/* The mixer of each layer, where one is no attention; and the layers without an MLP. */
static bool put_mixers(cJSON *j, const arch_config *c)
{
    cJSON *list = cJSON_CreateArray();
    bool ok = list != NULL, any = false;
    for (int64_t i = 0; i < c->layers && ok; i++) {
        any |= c->layer[i].mixer != MIX_ATTENTION;
        ok = cJSON_AddItemToArray(list, cJSON_CreateString(arch_mixer_text(c->layer[i].mixer)));
    }
    if (ok && any) return cJSON_AddItemToObject(j, "mixers", list);
    cJSON_Delete(list);
    return ok;
}

/* How many factors there are: two sets of them, or (arch_rope_turn) one. */
static int64_t n_factors(const arch_config *c, const arch_rope *r)
{
    return c->rope_dims / 2 * (r->kind == ROPE_LONG ? 2 : 1);
}

static bool put_factors(cJSON *j, const arch_config *c, const char *key, const arch_rope *r)
{
    if (!r->factors || (r->kind != ROPE_LONG && r != &c->rope[ROPE_MAIN])) return true;
    cJSON *list = cJSON_AddArrayToObject(j, key);
    bool ok = list != NULL;
    for (int64_t i = 0; i < n_factors(c, r) && ok; i++)
        ok = cJSON_AddItemToArray(list, cJSON_CreateNumber(r->factors[i]));
    return ok;
}

static bool put_later(cJSON *j, const arch_config *c)
{
    const arch_rope *local = &c->rope[ROPE_LOCAL];
    bool ok = true;
#define X(key, field, lo, hi, neutral) \
    if (ok && c->field != (neutral)) ok = cJSON_AddNumberToObject(j, key, (double)c->field);
    LATER_INTS(X)
#undef X
#define X(key, field, lo, hi, neutral) \
    if (ok && differ(c->field, neutral)) ok = cJSON_AddNumberToObject(j, key, c->field);
    LATER_REALS(X)
#undef X
#define X(key, field) \
    if (ok && c->w.field != c->row->w.field) ok = cJSON_AddBoolToObject(j, key, c->w.field);
    OWN_WIRING(X)
#undef X
    if (c->row->variant) ok = ok && cJSON_AddStringToObject(j, "variant", c->row->variant);
    if (c->w.pos != c->row->w.pos)
        ok = ok && cJSON_AddStringToObject(j, "wiring_pos", pos_texts[c->w.pos]);
    if (c->w.qk_norm != c->row->w.qk_norm)
        ok = ok && cJSON_AddStringToObject(j, "wiring_qk_norm", qk_norm_texts[c->w.qk_norm]);
    if (c->w.norm != c->row->w.norm)
        ok = ok && cJSON_AddStringToObject(j, "wiring_norm", norm_texts[c->w.norm]);
    if (c->w.router != c->row->w.router)
        ok = ok && cJSON_AddStringToObject(j, "wiring_router", router_texts[c->w.router]);
    if (strcmp(c->prefix, c->row->prefix) != 0)
        ok = ok && cJSON_AddStringToObject(j, "prefix", c->prefix);
    if (local->kind != ROPE_PLAIN)
        ok = ok && cJSON_AddStringToObject(j, "rope_local", arch_rope_text(local->kind));
    if (local->kind == ROPE_YARN)
        ok = ok && cJSON_AddBoolToObject(j, "rope_local_truncate", local->truncate);
    ok = ok && put_factors(j, c, "rope_factors", &c->rope[ROPE_MAIN]);
    ok = ok && put_factors(j, c, "rope_local_factors", local);
    return ok && put_layers(j, c, "moe_layers", in_moe, false) &&
           put_layers(j, c, "v_is_k_layers", in_v_is_k, false) &&
           put_layers(j, c, "index_shared_layers", in_index_shared, false) &&
           put_layers(j, c, "index_off_layers", in_index_off, false) &&
           put_layers(j, c, "local_rope_layers", in_local, false) &&
           put_layers(j, c, "no_rope_layers", in_nope, false) && put_sizes(j, c) &&
           put_numbers(j, c, "kv_back", kv_back_of) && put_numbers(j, c, "mlp_sparse", sparse_of) &&
           put_numbers(j, c, "expert_limits", expert_limit_of) &&
           put_numbers(j, c, "mlp_limits", mlp_limit_of) && put_mixers(j, c) &&
           put_layers(j, c, "no_mlp_layers", in_no_mlp, false) &&
           put_layers(j, c, "hash_layers", in_hashed, false) &&
           put_layers(j, c, "ngram_layers", in_ngrams, false);
}

cJSON *arch_config_json(const arch_config *c)
{
    cJSON *j = cJSON_CreateObject();
    bool ok = j && cJSON_AddStringToObject(j, "arch", c->row->arch);
#define X(key, field, lo, hi) ok = ok && cJSON_AddNumberToObject(j, key, (double)c->field);
    OWN_INTS(X)
    OWN_REALS(X)
#undef X
    if (c->head != HEAD_WORDS) ok = ok && cJSON_AddStringToObject(j, "head", head_texts[c->head]);
    ok = ok && cJSON_AddStringToObject(j, "act", arch_act_text(c->act));
    ok = ok && cJSON_AddStringToObject(j, "rope", arch_rope_text(c->rope[ROPE_MAIN].kind));
    ok = ok && cJSON_AddBoolToObject(j, "rope_truncate", c->rope[ROPE_MAIN].truncate);
    ok = ok && cJSON_AddStringToObject(j, "dtype", lq_dtype_text(c->dtype));
    ok = ok && cJSON_AddBoolToObject(j, "tied", c->tied);
    ok = ok && cJSON_AddNumberToObject(j, "attn_bias", c->attn_bias);
    ok = ok && cJSON_AddNumberToObject(j, "mlp_bias", c->mlp_bias);
    ok = ok && cJSON_AddNumberToObject(j, "bos", c->bos);
    cJSON *eos = ok ? cJSON_AddArrayToObject(j, "eos") : NULL;
    ok = eos != NULL;
    for (int i = 0; i < c->n_eos && ok; i++)
        ok = cJSON_AddItemToArray(eos, cJSON_CreateNumber(c->eos[i]));
    ok = ok && put_layers(j, c, "window_layers", in_window, true) && put_later(j, c);
    if (ok) return j;
    cJSON_Delete(j);
    return NULL;
}

/* ---- in ---- */
static lq_status read_layers(arch_config *c, const cJSON *j, const char *key, bool required,
                             uint8_t rope, lq_err *err)
{
    const cJSON *list = js_get(j, key);
    if (!list && !required) return LQ_OK;
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EVALUE, "%s: expected an array", key);
    const bool window = strcmp(key, "window_layers") == 0, moe = strcmp(key, "moe_layers") == 0,
               same = strcmp(key, "v_is_k_layers") == 0, no_mlp = strcmp(key, "no_mlp_layers") == 0,
               off = strcmp(key, "index_off_layers") == 0,
               index = off || strcmp(key, "index_shared_layers") == 0,
               hash = strcmp(key, "hash_layers") == 0, ngrams = strcmp(key, "ngram_layers") == 0;
    for (const cJSON *e = list->child; e; e = e->next) {
        int64_t i;
        if (!js_whole(e, 0, c->layers - 1, &i) || (window && !c->window) || (moe && !c->experts) ||
            (index && !arch_indexed(c)) || (hash && !arch_name_of(c, R_EXPERTS_OF)) ||
            (ngrams && !c->ngram) ||
            (!window && !moe && !same && !no_mlp && !index && !hash && !ngrams &&
             c->w.pos != POS_ROPE))
            return lq_fail(err, LQ_EVALUE, "%s: expected layers 0..%" PRId64 " of a model with %s",
                           key, c->layers - 1,
                           window   ? "a window"
                           : moe    ? "experts"
                           : hash   ? "experts by token"
                           : ngrams ? "n-grams"
                           : index  ? "indexers"
                                    : "rotary positions");
        if (window)
            c->layer[i].window = true;
        else if (moe)
            c->layer[i].moe = true;
        else if (same)
            c->layer[i].v_is_k = true;
        else if (off)
            c->layer[i].index_off = true;
        else if (index)
            c->layer[i].index_shared = true;
        else if (no_mlp)
            c->layer[i].no_mlp = true;
        else if (hash)
            c->layer[i].hashed = true;
        else if (ngrams)
            c->layer[i].ngrams = 1;
        else
            c->layer[i].rope = rope;
    }
    return LQ_OK;
}

/* One item of layer_sizes; `own` are the model's. */
static lq_status read_size(arch_sizes *z, const cJSON *o, int64_t layers, arch_sizes own,
                           lq_err *err)
{
    lq_status s = LQ_OK;
#define X(key, field, lo, hi) \
    if (!s) s = js_i64(o, key, true, lo, hi, &own.field, err);
    LAYER_INTS(X)
#undef X
#define X(key, field, lo, hi) \
    if (!s) s = js_i64(o, key, false, lo, hi, &own.field, err);
    LAYER_LATER_INTS(X)
#undef X
    const cJSON *of = js_get(o, "layers");
    if (!s && !cJSON_IsArray(of))
        s = lq_fail(err, LQ_EVALUE, "layer_sizes: expected an array of layers");
    for (const cJSON *e = s ? NULL : of->child; e && !s; e = e->next) {
        int64_t i;
        if (js_whole(e, 0, layers - 1, &i))
            z[i] = own;
        else
            s = lq_fail(err, LQ_EVALUE, "layer_sizes: expected layers 0..%" PRId64, layers - 1);
    }
    return s;
}

/* All else is read. */
static lq_status read_sizes(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "layer_sizes");
    if (!list) return LQ_OK;
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    if (!z) return lq_fail(err, LQ_ENOMEM, "no memory for the sizes of layers");
    for (int64_t i = 0; i < c->layers; i++)
        z[i] = arch_sizes_of(c, i);
    lq_status s =
        cJSON_IsArray(list) ? LQ_OK : lq_fail(err, LQ_EVALUE, "layer_sizes: expected an array");
    for (const cJSON *e = s ? NULL : list->child; e && !s; e = e->next)
        s = read_size(z, e, c->layers, arch_sizes_of(c, -1), err);
    if (!s) s = arch_set_sizes(c, z, err);
    free(z);
    return s;
}

static lq_status read_kv_back(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "kv_back");
    int64_t i = 0;
    if (!list) return LQ_OK;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++)
        if (i == c->layers || !js_whole(e, 0, i, &c->layer[i].kv_back)) break;
    if (i == c->layers && cJSON_GetArraySize(list) == i) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "kv_back: expected how far back for each of %" PRId64 " layers",
                   c->layers);
}

/* A number below `end` for each layer, to a double of arch_layer. */
static lq_status read_reals(arch_config *c, const cJSON *j, const char *key, size_t at, double end,
                            lq_err *err)
{
    const cJSON *list = js_get(j, key);
    int64_t i = 0;
    if (!list) return LQ_OK;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++) {
        if (i == c->layers || !cJSON_IsNumber(e)) break;
        if (!(e->valuedouble >= 0 && e->valuedouble < end)) break;
        memcpy((char *)&c->layer[i] + at, &e->valuedouble, sizeof e->valuedouble);
    }
    if (i == c->layers && cJSON_GetArraySize(list) == i) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a number 0..%g for each of %" PRId64 " layers",
                   key, end, c->layers);
}

static lq_status read_mixers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "mixers"), *e = cJSON_IsArray(list) ? list->child : NULL;
    arch_mixer m = MIX_ATTENTION;
    int64_t i = 0;
    if (!list) return LQ_OK;
    for (; e && i < c->layers; e = e->next, i++) {
        if (!cJSON_IsString(e) || !arch_mixer_from_text(&m, e->valuestring)) break;
        const bool other = m == MIX_HEAVY && c->row->mixer == MIX_SPARSE; /* which has both */
        if (arch_mixer_has_state(m) && m != c->row->mixer && !other) break;
        c->layer[i].mixer = (uint8_t)m;
    }
    if (i == c->layers && !e) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "mixers: expected the mixers of %" PRId64 " layers of a %s",
                   c->layers, c->row->arch);
}

/* A word of a list; missing: left as it is. */
static lq_status read_word(int *out, const cJSON *j, const char *key, const char *const *texts,
                           size_t n, lq_err *err)
{
    const char *text = NULL;
    lq_status s = js_str(j, key, false, &text, err);
    if (s || !text) return s;
    for (size_t i = 0; i < n; i++)
        if (strcmp(texts[i], text) == 0) return *out = (int)i, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: unknown word \"%.40s\"", key, text);
}

static lq_status read_rope_kind(arch_rope *r, const cJSON *j, const char *key, bool required,
                                lq_err *err)
{
    const char *text = "default";
    lq_status s = js_str(j, key, required, &text, err);
    if (!s && !arch_rope_from_text(&r->kind, text))
        s = lq_fail(err, LQ_EUNSUPPORTED, "%s: unknown kind \"%.40s\"", key, text);
    return s;
}

static lq_status read_factors(arch_config *c, arch_rope *r, const cJSON *j, const char *key,
                              lq_err *err)
{
    const int64_t n = n_factors(c, r);
    const cJSON *list = js_get(j, key);
    const bool turned = list && r == &c->rope[ROPE_MAIN] && arch_name_of(c, R_ROPE_LOG);
    if (r->kind != ROPE_LONG && !turned) return LQ_OK;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n || !n)
        return lq_fail(err, LQ_EVALUE, "%s: expected an array of %" PRId64 " numbers", key, n);
    r->factors = calloc((size_t)c->rope_dims, sizeof *r->factors);
    if (!r->factors) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", key);
    int64_t i = 0;
    for (const cJSON *e = list->child; e; e = e->next) {
        if (!cJSON_IsNumber(e) || !(e->valuedouble >= 1e-6 && e->valuedouble <= 1e6))
            return lq_fail(err, LQ_EVALUE, "%s: expected numbers 1e-6..1e6", key);
        r->factors[i++] = e->valuedouble;
    }
    return LQ_OK;
}

static lq_status read_words(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *dtype = NULL, *act = NULL, *prefix = c->prefix;
    int64_t attn_bias = 0, mlp_bias = 0, bos = 0;
    int pos = (int)c->w.pos, qk = (int)c->w.qk_norm, head = HEAD_WORDS;
    int norm = (int)c->w.norm, router = (int)c->w.router;
    lq_status s = js_str(j, "act", true, &act, err);
    if (!s && !arch_act_from_text(&c->act, act))
        s = lq_fail(err, LQ_EUNSUPPORTED, "act: unknown activation \"%.40s\"", act);
    if (!s) s = js_bool(j, "rope_truncate", true, &c->rope[ROPE_MAIN].truncate, err);
    if (!s) s = js_bool(j, "rope_local_truncate", false, &c->rope[ROPE_LOCAL].truncate, err);
    if (!s) s = js_str(j, "dtype", true, &dtype, err);
    if (!s && (!lq_dtype_from_text(&c->dtype, dtype) || !lq_dtype_is_float(c->dtype)))
        s = lq_fail(err, LQ_EUNSUPPORTED, "dtype: expected f32, f16 or bf16, found \"%.40s\"",
                    dtype);
    if (!s) s = js_bool(j, "tied", true, &c->tied, err);
    if (!s) s = js_i64(j, "attn_bias", true, -1, 1, &attn_bias, err);
    if (!s) s = js_i64(j, "mlp_bias", true, -1, 1, &mlp_bias, err);
    if (!s) s = js_i64(j, "bos", true, -1, INT32_MAX, &bos, err);
    if (!s) s = js_str(j, "prefix", false, &prefix, err);
    if (!s && strlen(prefix) >= sizeof c->prefix)
        s = lq_fail(err, LQ_EVALUE, "prefix: expected at most %zu bytes", sizeof c->prefix - 1);
    if (!s && prefix != c->prefix) snprintf(c->prefix, sizeof c->prefix, "%s", prefix);
    if (!s) s = read_word(&pos, j, "wiring_pos", pos_texts, LQ_COUNT(pos_texts), err);
    if (!s) s = read_word(&qk, j, "wiring_qk_norm", qk_norm_texts, LQ_COUNT(qk_norm_texts), err);
    if (!s) s = read_word(&norm, j, "wiring_norm", norm_texts, LQ_COUNT(norm_texts), err);
    if (!s) s = read_word(&router, j, "wiring_router", router_texts, LQ_COUNT(router_texts), err);
    if (!s) s = read_word(&head, j, "head", head_texts, LQ_COUNT(head_texts), err);
    c->head = (arch_head)head;
    c->w.pos = (arch_pos)pos;
    c->w.qk_norm = (arch_qk_norm)qk;
    c->w.norm = (arch_norm)norm;
    c->w.router = (arch_router)router;
    c->attn_bias = (int)attn_bias;
    c->mlp_bias = (int)mlp_bias;
    c->bos = (int32_t)bos;
    return s;
}

static lq_status read_numbers(arch_config *c, const cJSON *j, lq_err *err)
{
    lq_status s = LQ_OK;
#define X(key, field, lo, hi) \
    if (!s) s = js_i64(j, key, true, lo, hi, &c->field, err);
    OWN_INTS(X)
#undef X
#define X(key, field, lo, hi) \
    if (!s) s = js_f64(j, key, true, lo, hi, &c->field, err);
    OWN_REALS(X)
#undef X
#define X(key, field, lo, hi, neutral) \
    c->field = neutral;                \
    if (!s) s = js_i64(j, key, false, lo, hi, &c->field, err);
    LATER_INTS(X)
#undef X
#define X(key, field, lo, hi, neutral) \
    c->field = neutral;                \
    if (!s) s = js_f64(j, key, false, lo, hi, &c->field, err);
    LATER_REALS(X)
#undef X
#define X(key, field) \
    if (!s) s = js_bool(j, key, false, &c->w.field, err);
    OWN_WIRING(X)
#undef X
    return s;
}

static lq_status read_lists(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *eos = js_get(j, "eos");
    if (!cJSON_IsArray(eos)) return lq_fail(err, LQ_EVALUE, "eos: expected an array");
    c->layer = calloc((size_t)c->layers, sizeof *c->layer);
    if (!c->layer) return lq_fail(err, LQ_ENOMEM, "no memory for layers");
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].rope = c->w.pos == POS_ROPE ? ROPE_MAIN : ROPE_OFF;
    lq_status s = arch_read_eos(c, eos, err);
    if (!s) s = read_layers(c, j, "window_layers", true, 0, err);
    if (!s) s = read_layers(c, j, "moe_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "v_is_k_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "index_shared_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "index_off_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "local_rope_layers", false, ROPE_LOCAL, err);
    if (!s) s = read_layers(c, j, "no_rope_layers", false, ROPE_OFF, err);
    if (!s) s = read_kv_back(c, j, err);
    if (!s) s = read_reals(c, j, "mlp_sparse", offsetof(arch_layer, sparse), 1, err);
    if (!s) s = read_reals(c, j, "expert_limits", offsetof(arch_layer, expert_limit), 1e9, err);
    if (!s) s = read_reals(c, j, "mlp_limits", offsetof(arch_layer, mlp_limit), 1e9, err);
    if (!s) s = read_layers(c, j, "no_mlp_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "hash_layers", false, 0, err);
    if (!s) s = read_layers(c, j, "ngram_layers", false, 0, err);
    if (!s) s = read_mixers(c, j, err);
    if (!s) s = read_factors(c, &c->rope[ROPE_MAIN], j, "rope_factors", err);
    if (!s) s = read_factors(c, &c->rope[ROPE_LOCAL], j, "rope_local_factors", err);
    return s ? s : read_sizes(c, j, err);
}

lq_status arch_config_from_json(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *arch = NULL, *variant = NULL;
    memset(c, 0, sizeof *c);
    lq_status s = js_str(j, "arch", true, &arch, err);
    if (!s) s = js_str(j, "variant", false, &variant, err);
    if (s) return s;
    const arch_row *row = arch_find(arch, variant);
    if (!row)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "arch: expected an architecture of this version, found "
                       "\"%.80s\" %.40s",
                       arch, variant ? variant : "");
    arch_config_init(c, row);
    if (arch_is_eagle(c)) return arch_refuse_draft(err);
    s = read_rope_kind(&c->rope[ROPE_MAIN], j, "rope", true, err);
    if (!s) s = read_rope_kind(&c->rope[ROPE_LOCAL], j, "rope_local", false, err);
    c->rope[ROPE_LOCAL].truncate = true;
    if (!s) s = read_numbers(c, j, err);
    if (!s) s = read_words(c, j, err);
    if (!s) s = read_lists(c, j, err);
    if (!s) s = arch_ngrams_fit(c, err);
    if (!s) s = arch_config_check(c, err);
    if (s) arch_config_free(c);
    return s;
}
