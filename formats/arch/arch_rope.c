/* formats/arch/arch_rope.c - rotary positions: the scalings that checkpoints declare, and their tables.
 *
 * Angles follow the float arithmetic of the reference implementation step by step (one rounding per
 * operation), because positions multiply whatever difference the frequencies have.
 * Sources: arXiv:2104.09864 (RoPE), arXiv:2309.00071 (NTK-aware, YaRN), the Llama 3.1 release. */
#include "formats/arch/arch_impl.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

static const double PI = 3.14159265358979323846;

static const struct {
    const char *text;
    arch_rope_kind kind;
} kinds[] = {
    { "default", ROPE_PLAIN },
    { "linear", ROPE_LINEAR },
    { "dynamic", ROPE_DYNAMIC },
    { "llama3", ROPE_LLAMA3 },
    { "yarn", ROPE_YARN },
    { "longrope", ROPE_LONG },
    { "proportional", ROPE_PROPORTIONAL },
};

const char *arch_rope_text(arch_rope_kind k) { return kinds[k].text; }

bool arch_rope_from_text(arch_rope_kind *k, const char *text)
{
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        if (strcmp(kinds[i].text, text) == 0) return *k = kinds[i].kind, true;
    return false;
}

/* ---- config.json ---- */
/* Is it the scaling of gte-multilingual's code (arXiv:2407.19669)? The base is F times as large, and each frequency
 * smaller by F^(2 / dims), whatever the length. */
static bool own_ntk(const arch_config *c, const cJSON *o, const char *where)
{
    const char *text = "";
    return arch_row_knows(c, where, "mixed_b") && !js_str(o, "type", false, &text, NULL) &&
           strcmp(text, "ntk") == 0;
}

static lq_status read_kind(const arch_config *c, arch_rope_kind *k, const cJSON *o,
                           const char *where, lq_err *err)
{
    const char *text = strcmp(where, "rope_parameters") == 0 ? "default" : NULL;
    lq_status s = js_str(o, "type", false, &text, err);
    if (!s) s = js_str(o, "rope_type", false, &text, err);
    if (s) return lq_wrap(err, s, "%s", where);
    if (!text) return lq_fail(err, LQ_EVALUE, "%s: expected a rope_type, found none", where);
    if (strcmp(text, "su") == 0) text = "longrope";    /* as Phi-3 first called it */
    if (strcmp(text, "mrope") == 0) text = "default";  /* of text, see check_rope_keys */
    if (strcmp(text, "xdrope") == 0) text = "dynamic"; /* as Hunyuan's published files call it */
    if (own_ntk(c, o, where)) text = "linear";
    if (arch_rope_from_text(k, text)) return LQ_OK;
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "%s: rope_type: expected default, linear, dynamic, llama3, yarn, longrope or proportional, "
        "found \"%.40s\"",
        where, text);
}

static double mscale(double scale, double m) { return scale <= 1 ? 1 : 0.1 * m * log(scale) + 1; }

static lq_status read_yarn(arch_rope *r, const cJSON *o, lq_err *err)
{
    double m = 0, m_all = 0, given = 0;
    r->beta_fast = r->beta_slow = 0;
    r->truncate = true;
    lq_status s = js_f64(o, "beta_fast", false, 0, 1e9, &r->beta_fast, err);
    if (!s) s = js_f64(o, "beta_slow", false, 0, 1e9, &r->beta_slow, err);
    if (!s) s = js_bool(o, "truncate", false, &r->truncate, err);
    if (!s) s = js_f64(o, "mscale", false, 0, 1e6, &m, err);
    if (!s) s = js_f64(o, "mscale_all_dim", false, 0, 1e6, &m_all, err);
    if (!s) s = js_f64(o, "attention_factor", false, 1e-6, 1e6, &given, err);
    if (s) return s;
    if (!(r->beta_fast > 0)) r->beta_fast = 32; /* zero counts as not given */
    if (!(r->beta_slow > 0)) r->beta_slow = 1;
    r->attention_factor = given > 0            ? given
                          : m > 0 && m_all > 0 ? mscale(r->factor, m) / mscale(r->factor, m_all)
                                               : mscale(r->factor, 1);
    return LQ_OK;
}

/* One array of factors, a number for each pair. */
static lq_status read_list(double *out, int64_t n, const cJSON *o, const char *key, lq_err *err)
{
    const cJSON *list = js_get(o, key);
    int64_t i = 0;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++) {
        if (i == n || !cJSON_IsNumber(e) || !(e->valuedouble >= 1e-6 && e->valuedouble <= 1e6)) {
            i = -1;
            break;
        }
        out[i] = e->valuedouble;
    }
    if (i == n) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected an array of %lld positive numbers", key,
                   (long long)n);
}

static lq_status read_long(arch_config *c, arch_rope *r, const cJSON *o, lq_err *err)
{
    const int64_t pairs = c->rope_dims / 2;
    double given = 0;
    r->factors = calloc((size_t)(2 * pairs + 1), sizeof *r->factors);
    if (!r->factors) return lq_fail(err, LQ_ENOMEM, "longrope: out of memory");
    lq_status s = read_list(r->factors, pairs, o, "short_factor", err);
    if (!s) s = read_list(r->factors + pairs, pairs, o, "long_factor", err);
    if (!s) s = js_f64(o, "attention_factor", false, 1e-6, 1e6, &given, err);
    /* Phi-MoE says what its factors are, up to the original length and beyond. */
    if (!s) s = js_f64(o, "short_mscale", false, 1e-6, 1e6, &given, err);
    if (!s) s = js_f64(o, "long_mscale", false, 1e-6, 1e6, &r->long_factor, err);
    r->attention_factor = given > 0 ? given
                          : r->factor <= 1
                              ? 1
                              : sqrt(1 + log(r->factor) / log((double)r->original_max));
    return s;
}

/* Dynamic with an alpha, as Hunyuan's: the base is stretched once, whatever the length. */
static lq_status read_alpha(const arch_config *c, arch_rope *r, const cJSON *o, lq_err *err)
{
    const double dims = (double)c->rope_dims;
    double alpha = 0;
    lq_status s = js_f64(o, "alpha", false, 0, 1e9, &alpha, err);
    if (s || !(alpha > 0) || c->rope_dims < 4) return s;
    *r = (arch_rope){ .kind = ROPE_PLAIN,
                      .theta = r->theta * pow(alpha, dims / (dims - 2)),
                      .factor = 1,
                      .attention_factor = 1,
                      .truncate = true };
    if (r->theta >= 1 && r->theta <= 1e15) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "alpha: expected a base 1..1e15, found %g", r->theta);
}

static lq_status read_scaling(arch_config *c, arch_rope *r, const cJSON *config, const cJSON *o,
                              lq_err *err)
{
    bool own_factor = js_get(o, "factor") != NULL;
    if (r->kind == ROPE_PROPORTIONAL) {
        r->partial = 1;
        lq_status s = js_f64(o, "partial_rotary_factor", false, 0, 1, &r->partial, err);
        return s ? s : js_f64(o, "factor", false, 1e-6, 1e6, &r->factor, err);
    }
    int64_t original = 0;
    lq_status s =
        js_i64(config, "original_max_position_embeddings", false, 1, INT32_MAX, &original, err);
    if (!s) s = js_i64(o, "original_max_position_embeddings", false, 1, INT32_MAX, &original, err);
    if (s) return s;
    /* Long checkpoints may state their two lengths instead of the factor between them. */
    if (original && (r->kind == ROPE_LONG || (r->kind == ROPE_YARN && !own_factor)))
        r->factor = fmax(1, (double)c->max_pos / (double)original);
    else
        s = js_f64(o, "factor", r->kind != ROPE_LONG, 1, 1e6, &r->factor, err);
    if (s) return s;
    r->original_max = original && r->kind != ROPE_DYNAMIC ? original : c->max_pos;
    if (r->kind == ROPE_DYNAMIC) return read_alpha(c, r, o, err);
    if (r->kind == ROPE_LONG) return read_long(c, r, o, err);
    if (r->kind == ROPE_YARN) return read_yarn(r, o, err);
    if (r->kind != ROPE_LLAMA3) return LQ_OK;
    if (!original)
        return lq_fail(err, LQ_EVALUE,
                       "original_max_position_embeddings: expected an integer, found nothing");
    s = js_f64(o, "low_freq_factor", true, 1e-6, 1e6, &r->low_freq, err);
    return s ? s : js_f64(o, "high_freq_factor", true, 1e-6, 1e6, &r->high_freq, err);
}

/* What no kind above reads would change the angles, or be of another implementation. Sections are
 * of images: text has the same position in each. */
static lq_status check_rope_keys(const arch_config *c, arch_rope_kind kind, const cJSON *o,
                                 const char *where, lq_err *err)
{
    static const char *const read[] = {
        "type",
        "rope_type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
        "finetuned",
        "low_freq_factor",
        "high_freq_factor",
        "mrope_section",
        "xdrope_section",
        "mrope_interleaved",
        "interleaved", /* Qwen3-Omni, beside mrope_interleaved */
    };
    for (const cJSON *v = o->child; v; v = v->next) {
        char found[64];
        size_t i = 0;
        while (i < LQ_COUNT(read) && strcmp(read[i], v->string) != 0)
            i++;
        const bool one = cJSON_IsNumber(v) && !(v->valuedouble < 1 || v->valuedouble > 1);
        const bool alpha = kind == ROPE_DYNAMIC && strcmp(v->string, "alpha") == 0;
        if (i < LQ_COUNT(read) || one || alpha || cJSON_IsNull(v) || cJSON_IsFalse(v) ||
            arch_row_knows(c, where, v->string))
            continue;
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: %.80s: expected no such key, found %s", where,
                       v->string, js_describe(found, v));
    }
    return LQ_OK;
}

/* An object without members says nothing, as none. */
static const cJSON *table_of(const cJSON *config, const char *key)
{
    const cJSON *o = js_get(config, key);
    return cJSON_IsObject(o) && !o->child ? NULL : o;
}

/* One table: `o` is rope_scaling, or rope_parameters or its part for a layer type. */
static lq_status read_table(arch_config *c, arch_rope *r, const cJSON *config, const cJSON *o,
                            const char *where, lq_err *err)
{
    if (!o) return LQ_OK;
    if (!cJSON_IsObject(o)) {
        char found[64];
        return lq_fail(err, LQ_EVALUE, "%s: expected an object, found %s", where,
                       js_describe(found, o));
    }
    lq_status s = js_f64(o, "rope_theta", false, 1.001, 1e15, &r->theta, err);
    if (!s) s = read_kind(c, &r->kind, o, where, err);
    if (!s) s = check_rope_keys(c, r->kind, o, where, err);
    if (!s && r->kind != ROPE_PLAIN) {
        s = read_scaling(c, r, config, o, err);
        if (s) lq_wrap(err, s, "%s", where);
        if (!s && own_ntk(c, o, where) && c->rope_dims > 0) {
            r->theta *= r->factor;
            r->factor = pow(r->factor, 2 / (double)c->rope_dims);
        }
    }
    return s;
}

/* factors: of each, where it is long. */
static bool same_table(const arch_rope *a, const arch_rope *b, int64_t factors)
{
    const double x[] = { a->theta,     a->factor,    a->low_freq,         a->high_freq,
                         a->beta_fast, a->beta_slow, a->attention_factor, a->long_factor,
                         a->partial },
                 y[] = { b->theta,     b->factor,    b->low_freq,         b->high_freq,
                         b->beta_fast, b->beta_slow, b->attention_factor, b->long_factor,
                         b->partial };
    if (a->kind != b->kind || a->original_max != b->original_max || a->truncate != b->truncate)
        return false;
    return memcmp(x, y, sizeof x) == 0 &&
           (!a->factors || memcmp(a->factors, b->factors, (size_t)factors * sizeof *x) == 0);
}

/* rope_parameters counts, the name in transformers 5, so rope_scaling beside it must say the same. */
static lq_status check_both(arch_config *c, const cJSON *config, lq_err *err)
{
    static const char OLD[] = "rope_scaling";
    const cJSON *scaling = table_of(config, OLD);
    const arch_rope *main = &c->rope[ROPE_MAIN];
    arch_rope r = { .kind = ROPE_PLAIN,
                    .theta = main->theta,
                    .factor = 1,
                    .attention_factor = 1,
                    .truncate = true };
    if (!scaling) return LQ_OK;
    lq_status s = read_table(c, &r, config, scaling, OLD, err);
    const bool same = !s && same_table(&r, main, c->rope_dims / 2 * 2);
    free(r.factors);
    if (s || same) return s;
    return lq_fail(err, LQ_EVALUE,
                   "rope_scaling: expected none beside rope_parameters, or one that says the same, "
                   "found another (%s)",
                   arch_rope_text(r.kind));
}

bool arch_rope_local(const arch_config *c, const cJSON *config)
{
    return c->row->def_local_theta < 0 || c->row->def_local_theta > 0 ||
           js_get(js_get(config, "rope_parameters"), "sliding_attention");
}

/* Rotated dims of a head, from the part that rotates; MLA and GPT-J said them already. */
static lq_status read_dims(arch_config *c, const cJSON *config, const cJSON *params, lq_err *err)
{
    const char *kind = NULL;
    double partial = c->row->def_partial > 0 ? c->row->def_partial : 1;
    if (c->rope_dims) return LQ_OK;
    js_str(params, "rope_type", false, &kind, NULL);
    if (kind && strcmp(kind, "proportional") == 0) params = NULL; /* the rest turns by nothing */
    lq_status s = js_f64(config, "rotary_pct", false, 0, 1, &partial, err);
    if (!s) s = js_f64(config, "partial_rotary_factor", false, 0, 1, &partial, err);
    if (!s) s = js_f64(params, "partial_rotary_factor", false, 0, 1, &partial, err);
    if (!s && !(c->row->def_partial > 0) && partial < 1)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "partial_rotary_factor: expected 1 in a %s, which rotates whole heads, found %g",
            c->row->arch, partial);
    if (!s) c->rope_dims = (int64_t)((double)c->head_dim * partial);
    return s;
}

/* Layers that compress have the second table: its own base, and the scaling, which the first has not. A
 * length factor is not assumed. */
static lq_status parse_compressed(arch_config *c, const cJSON *config, lq_err *err)
{
    const cJSON *params = js_get(config, "rope_parameters"), *main = js_get(params, "main"),
                *compress = js_get(params, "compress");
    arch_rope *local = &c->rope[ROPE_LOCAL];
    const arch_rope plain = {
        .kind = ROPE_PLAIN, .theta = 10000, .factor = 1, .attention_factor = 1, .truncate = true
    };
    c->rope[ROPE_MAIN] = *local = plain;
    local->theta = 160000;
    lq_status s = js_f64(config, "rope_theta", false, 1.001, 1e15, &c->rope[ROPE_MAIN].theta, err);
    const bool nested = main && compress;
    const cJSON *scaling = nested ? compress : params ? params : js_get(config, "rope_scaling");
    if (!s && nested) s = read_table(c, &c->rope[ROPE_MAIN], config, main, "main", err);
    if (!s && !nested && (main || compress))
        s = lq_fail(err, LQ_EVALUE,
                    "rope_parameters: expected main and compress, found one of them");
    if (!s) s = read_table(c, local, config, scaling, "compress", err);
    if (!js_get(scaling, "attention_factor")) local->attention_factor = 1;
    if (!s && !nested) local->theta = 160000;
    if (!s && !nested)
        s = js_f64(config, "compress_rope_theta", false, 1.001, 1e15, &local->theta, err);
    return s;
}

lq_status arch_rope_parse(arch_config *c, const cJSON *config, lq_err *err)
{
    if (c->row->mixer == MIX_SPARSE) return parse_compressed(c, config, err);
    static const char PARAMS[] = "rope_parameters";
    const cJSON *params = table_of(config, PARAMS), *full = js_get(params, "full_attention"),
                *sliding = js_get(params, "sliding_attention");
    const double theta = c->row->def_theta > 0 ? c->row->def_theta : 10000;
    arch_rope *main = &c->rope[ROPE_MAIN], *local = &c->rope[ROPE_LOCAL];
    *main = (arch_rope){
        .kind = ROPE_PLAIN, .theta = theta, .factor = 1, .attention_factor = 1, .truncate = true
    };
    lq_status s = read_dims(c, config, full ? full : params, err);
    if (!s) s = js_f64(config, "rotary_emb_base", false, 1.001, 1e15, &main->theta, err);
    if (!s) s = js_f64(config, "rope_theta", false, 1.001, 1e15, &main->theta, err);
    *local = *main;
    if (!s) s = js_f64(config, "global_rope_theta", false, 1.001, 1e15, &main->theta, err);
    if (c->row->def_local_theta > 0) local->theta = c->row->def_local_theta;
    if (!s) s = js_f64(config, "rope_local_base_freq", false, 1.001, 1e15, &local->theta, err);
    if (!s) s = js_f64(config, "local_rope_theta", false, 1.001, 1e15, &local->theta, err);
    if (s) return s;
    if (!full && !sliding) {
        s = read_table(c, main, config, params ? params : table_of(config, "rope_scaling"),
                       params ? PARAMS : "rope_scaling", err);
        if (!(c->row->def_local_theta > 0)) local->theta = main->theta;
    } else {
        s = read_table(c, main, config, full, PARAMS, err);
        if (!s) s = read_table(c, local, config, sliding, PARAMS, err);
    }
    return s || !params ? s : check_both(c, config, err);
}

static lq_status check_table(const arch_rope *r, int64_t dims, lq_err *err)
{
    if (r->kind == ROPE_DYNAMIC && dims < 4)
        return lq_fail(err, LQ_EVALUE,
                       "rope: dynamic: expected at least 4 rotated dims, found %lld",
                       (long long)dims);
    if (r->kind == ROPE_LLAMA3 && r->high_freq < r->low_freq)
        return lq_fail(err, LQ_EVALUE,
                       "rope: expected high_freq_factor of low_freq_factor %g or above, found %g",
                       r->low_freq, r->high_freq);
    if (r->kind == ROPE_LONG && !r->factors)
        return lq_fail(err, LQ_EVALUE, "rope: longrope: expected factors, found none");
    return LQ_OK;
}

lq_status arch_rope_check(const arch_config *c, lq_err *err)
{
    if (c->w.mla_shared && !c->rope_dims) return LQ_OK;
    if (c->rope_dims < 2 || c->rope_dims % 2 || c->rope_dims > c->head_dim)
        return lq_fail(err, LQ_EVALUE,
                       "rope: expected an even number of rotated dims within a head of %lld, found "
                       "%lld",
                       (long long)c->head_dim, (long long)c->rope_dims);
    lq_status s = check_table(&c->rope[ROPE_MAIN], c->rope_dims, err);
    return s ? s : check_table(&c->rope[ROPE_LOCAL], c->rope_dims, err);
}

lq_status arch_rope_rescale(arch_config *c, const char *text, lq_err *err)
{
    arch_rope *r = &c->rope[ROPE_MAIN];
    const size_t n = strcspn(text, ",");
    char *end = NULL;
    const double factor = text[n] ? strtod(text + n + 1, &end) : 0;
    const bool yarn = n == 4 && strncmp(text, "yarn", n) == 0;
    const arch_rope_kind kind = yarn ? ROPE_YARN : ROPE_LINEAR;
    if ((!yarn && (n != 6 || strncmp(text, "linear", n) != 0)) || !end || *end ||
        !(factor >= 1 && factor <= 1024))
        return lq_fail(err, LQ_EUSAGE,
                       "--rope-scaling: expected yarn,F or linear,F with F 1..1024, found '%.60s'",
                       text);
    bool rotates = false;
    for (int64_t i = 0; i < c->layers; i++)
        rotates |= c->layer[i].rope == ROPE_MAIN;
    if (!rotates || c->kv_lora)
        return lq_fail(err, LQ_EUNSUPPORTED, "--rope-scaling: the model %s",
                       rotates ? "attends by MLA" : "rotates no positions");
    if (c->row->ends_at)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--rope-scaling: the model computes otherwise beyond its %s",
                       c->row->ends_at);
    if (r->kind != ROPE_PLAIN && r->kind != kind)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--rope-scaling: expected a model that is not scaled, found rope %s",
                       arch_rope_text(r->kind));
    const int64_t from = r->kind == ROPE_PLAIN ? c->max_pos : r->original_max;
    if (from < 1 || (double)from * factor > INT32_MAX)
        return lq_fail(err, LQ_EUSAGE, "--rope-scaling: %g times %lld positions are too many",
                       factor, (long long)from);
    if (r->kind != ROPE_YARN) {
        r->beta_fast = 32;
        r->beta_slow = 1;
    }
    r->kind = kind;
    r->factor = factor;
    r->original_max = from;
    r->attention_factor = yarn ? mscale(factor, 1) : 1;
    c->max_pos = (int64_t)((double)from * factor);
    return LQ_OK;
}

lq_status arch_rope_turn(arch_config *c, const float *log, lq_err *err)
{
    enum { MOST = 13 };
    const int64_t n = c->rope_dims / 2;
    arch_rope *r = &c->rope[ROPE_MAIN];
    double *f = calloc((size_t)(2 * n + 1), sizeof *f); /* as many as ROPE_LONG has */
    if (!f) return lq_fail(err, LQ_ENOMEM, "rope: out of memory");
    free(r->factors);
    r->factors = f;
    for (int64_t i = 0; i < c->n_sizes; i++)
        c->sizes[i]->rope[ROPE_MAIN].factors = f;
    for (int64_t i = 0; i < n; i++) {
        if (!(fabsf(log[i]) <= MOST))
            return lq_fail(err, LQ_EVALUE,
                           "rope: expected the log of a factor on each frequency, -%d..%d, found "
                           "%g for pair %lld",
                           MOST, MOST, (double)log[i], (long long)i);
        f[i] = expf(log[i]);
    }
    return LQ_OK;
}

bool arch_rope_by_length(const arch_rope *r)
{
    return r->kind == ROPE_DYNAMIC || r->kind == ROPE_LONG;
}

/* ---- tables ---- */
typedef struct {
    float base;            /* of the powers; dynamic: grown with the sequence */
    float low, span;       /* yarn: where the ramp begins and how long it is, in pairs of dims */
    const double *factors; /* long: of this length */
} rope_consts;

static float powf_rounded(float x, float y) { return (float)pow((double)x, (double)y); }

/* Dims that turn `rotations` times within the original length lie below this one. */
static double yarn_dim(const arch_rope *r, int64_t dims, double rotations)
{
    return (double)dims * log((double)r->original_max / (rotations * 2 * PI)) / (2 * log(r->theta));
}

static rope_consts constants(const arch_rope *r, int64_t dims, int64_t seq_len)
{
    rope_consts k = { .base = (float)r->theta };
    if (r->kind == ROPE_LONG) k.factors = r->factors + (seq_len > r->original_max ? dims / 2 : 0);
    if (r->kind == ROPE_DYNAMIC && seq_len > r->original_max) {
        float f = (float)r->factor;
        float grown = f * (float)seq_len / (float)r->original_max - (f - 1);
        k.base *= powf_rounded(grown, (float)((double)dims / (double)(dims - 2)));
    }
    if (r->kind == ROPE_YARN) {
        double low = yarn_dim(r, dims, r->beta_fast), high = yarn_dim(r, dims, r->beta_slow);
        if (r->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, (double)(dims - 1));
        if (!(high > low) && !(high < low)) high += 0.001; /* no division by zero */
        k.low = (float)low;
        k.span = (float)(high - low);
    }
    return k;
}

static float plain_freq(const arch_rope *r, int64_t dims, const rope_consts *k, int64_t i)
{
    float f = (float)r->factor;
    if (r->kind == ROPE_PROPORTIONAL && i >= (int64_t)(r->partial * (double)dims / 2)) return 0;
    float turn = powf_rounded(k->base, (float)(2 * i) / (float)dims);
    if (r->kind == ROPE_LONG) return 1.0f / ((float)k->factors[i] * turn);
    float freq = 1.0f / turn;
    if (r->kind == ROPE_LINEAR || r->kind == ROPE_PROPORTIONAL) return freq / f;
    if (r->kind == ROPE_YARN) {
        float ramp = fminf(fmaxf(((float)i - k->low) / k->span, 0.0f), 1.0f);
        float keep = 1.0f - ramp; /* 1: as trained; 0: slowed by the factor */
        return 1.0f / (f * turn) * (1.0f - keep) + freq * keep;
    }
    if (r->kind == ROPE_LLAMA3) {
        float len = (float)r->original_max, wave = (float)(2 * PI) / freq;
        float low = (float)r->low_freq;
        if (wave > (float)((double)r->original_max / r->low_freq)) return freq / f;
        if (wave < (float)((double)r->original_max / r->high_freq)) return freq;
        if (!(r->high_freq > r->low_freq)) return freq; /* no lengths between the two */
        float smooth = (len / wave - low) / (float)(r->high_freq - r->low_freq);
        return (1.0f - smooth) * freq / f + smooth * freq;
    }
    return freq;
}

static float inv_freq(const arch_rope *r, int64_t dims, const rope_consts *k, int64_t i)
{
    const bool own = r->factors && r->kind != ROPE_LONG;
    return plain_freq(r, dims, k, i) * (own ? (float)r->factors[i] : 1);
}

void arch_rope_table(const arch_config *c, arch_rope_use which, int64_t pos0, int64_t T,
                     int64_t seq_len, float *cos_out, float *sin_out)
{
    const arch_rope *r = &c->rope[which];
    const rope_consts k = constants(r, c->rope_dims, seq_len);
    const bool beyond = r->long_factor > 0 && seq_len > r->original_max;
    const float scale = (float)(beyond ? r->long_factor : r->attention_factor);
    const int64_t pairs = c->rope_dims / 2;
    const float turn = c->w.rope_back ? -scale : scale;
    for (int64_t i = 0; i < pairs; i++) {
        float freq = inv_freq(r, c->rope_dims, &k, i);
        for (int64_t t = 0; t < T; t++) {
            float angle = (float)(pos0 + t) * freq;
            cos_out[t * pairs + i] = (float)cos((double)angle) * scale;
            sin_out[t * pairs + i] = (float)sin((double)angle) * turn;
        }
    }
}

float arch_q_factor(const arch_config *c, int64_t layer, int64_t pos)
{
    if (!(c->q_grow > 0) || !c->q_grow_every) return 1;
    if (c->w.q_grow_nope && c->layer[layer].rope != ROPE_OFF) return 1;
    if (c->w.q_grow_full) {
        const float turns = (float)(pos + 1) / (float)c->q_grow_every;
        return c->layer[layer].window || turns < 1 ? 1 : 1 + (float)c->q_grow * logf(turns);
    }
    if (c->w.q_grow_power)
        return expf((float)c->q_grow * log1pf((float)(pos + 1) / (float)c->q_grow_every));
    const float turns = floorf((float)(pos + c->w.q_grow_nope) / (float)c->q_grow_every);
    return 1 + (float)c->q_grow * logf(1 + turns);
}

/* ---- ALiBi ---- */

/* Of n heads, n a power of two, head i (from 1) has 2^(-max i / n). The heads beyond the largest
 * power of two take the odd ones of twice as many. */
void arch_alibi_slopes(const arch_config *c, float *slopes)
{
    int64_t n = 1;
    while (2 * n <= c->heads)
        n *= 2;
    for (int64_t h = 0; h < c->heads; h++) {
        const double i = (double)(h < n ? 2 * (h + 1) : 2 * (h - n) + 1);
        slopes[h] = (float)exp2(-c->alibi_max * i / (double)(2 * n));
    }
}
