/* formats/source/hf_quant.c - what the readers of published quantized layouts share: see hf_quant.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "formats/source/hf_quant.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

const char *hf_module(hf_quant *h, size_t i, const char *suffix)
{
    const char *name = h->s->tensors[i].name;
    const size_t n = strlen(name), m = strlen(suffix);
    if (h->used[i] || n <= m || strcmp(name + n - m, suffix) != 0) return NULL;
    const char *copy = lq_push_str(&h->s->arena, name, n - m);
    if (!copy) h->no_memory = true;
    return copy;
}

const src_tensor *hf_stored(const hf_quant *h, const char *module, const char *suffix)
{
    char name[512];
    const src_tensor key = { .name = name };
    if (snprintf(name, sizeof name, "%s%s", module, suffix) >= (int)sizeof name) return NULL;
    return bsearch(&key, h->s->tensors, h->s->n_tensors, sizeof key, src_by_name);
}

lq_status hf_take(hf_quant *h, const char *module, const char *suffix, bool required,
                  const int *types, int n_dims, const src_tensor **t, lq_err *err)
{
    *t = hf_stored(h, module, suffix);
    if (!*t)
        return required ? lq_fail(err, LQ_EFORMAT, "tensor '%.100s%s' is missing", module, suffix)
                        : LQ_OK;
    char wanted[96] = "";
    bool fits = false;
    for (const int *d = types; *d >= 0; d++) {
        fits = fits || (int)(*t)->raw_dtype == *d;
        size_t at = strlen(wanted);
        snprintf(wanted + at, sizeof wanted - at, "%s%s", at ? ", " : "",
                 lq_dtype_text((lq_dtype)*d));
    }
    if (!fits)
        return lq_fail(err, LQ_EFORMAT, "tensor '%.100s%s': expected %s, found %s", module, suffix,
                       wanted, lq_dtype_text((*t)->raw_dtype));
    if (n_dims >= 0 && (*t)->n_dims != n_dims)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s%s': expected %d dims, found %d", module,
                       suffix, n_dims, (*t)->n_dims);
    if (!(*t)->raw.bytes)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s%s': expected elements, found none", module,
                       suffix);
    h->used[*t - h->s->tensors] = true;
    if (h->n_taken < LQ_COUNT(h->taken)) h->taken[h->n_taken++] = (*t)->raw;
    return LQ_OK;
}

lq_status hf_expect(const src_tensor *t, int64_t rows, int64_t cols, lq_err *err)
{
    const int n = cols < 0 ? 1 : 2;
    if (t->n_dims == n && t->shape[0] == rows && (n == 1 || t->shape[1] == cols)) return LQ_OK;
    char found[96], want[96];
    const src_tensor w = { .n_dims = n, .shape = { rows, cols } };
    return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected shape %s, found %s", t->name,
                   src_shape_text(want, &w), src_shape_text(found, t));
}

/* Room for one weight more. */
static lq_status make_room(hf_quant *h, lq_err *err)
{
    const size_t room = h->room ? 2 * h->room : 64;
    if (h->n_made < h->room) return LQ_OK;
    src_tensor *made = realloc(h->made, room * sizeof *made);
    if (!made) return lq_fail(err, LQ_ENOMEM, "out of memory");
    h->made = made;
    h->room = room;
    return LQ_OK;
}

lq_status hf_make(hf_quant *h, const char *module, const char *suffix, const qt_tensor *q,
                  src_fill_fn *fill, const void *from, size_t from_bytes, lq_err *err)
{
    lq_arena *a = &h->s->arena;
    char name[512];
    lq_status st = make_room(h, err);
    if (st) return st;
    snprintf(name, sizeof name, "%s%s", module, suffix);
    src_tensor *t = &h->made[h->n_made];
    *t = (src_tensor){ .name = lq_push_str(a, name, strlen(name)),
                       .t = *q,
                       .n_dims = 2,
                       .shape = { q->N, q->K },
                       .raw_dtype = LQ_U8 };
    if (q->scheme.kind == QT_DENSE) {
        t->raw_dtype = q->scheme.dtype;
        t->raw = q->plane[QT_CODES];
    }
    void *record = from_bytes ? lq_push(a, from_bytes) : NULL;
    if (!t->name || (from_bytes && !record))
        return lq_fail(err, LQ_ENOMEM, "tensor '%.100s': out of memory", name);
    if (record) memcpy(record, from, from_bytes);
    st = src_make(h->s, t, fill, record, err);
    if (!st) st = src_made_from(h->s, t, h->taken, h->n_taken, err);
    h->n_taken = 0;
    if (!st) h->n_made++;
    return st;
}

float hf_scale(const uint8_t *scales, lq_dtype d, size_t i)
{
    float v;
    if (!lq_dtype_is_float(d)) return lq_e8m0_to_f32(scales[i]);
    lq_to_f32(&v, scales + i * lq_dtype_bytes(d), d, 1);
    return v;
}

void hf_view_f32(qt_tensor *q, qt_plane p, const src_tensor *t)
{
    if (t->raw_dtype == LQ_F32) q->plane[p] = t->raw;
}

/* ---- groups of inputs ---- */
int64_t hf_even_group(int64_t K, int64_t group)
{
    int64_t a = group < K ? group : K, b = K % a;
    while (b) { /* the greatest common divisor */
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t group_at(const uint8_t *stored, int64_t k, int64_t ng)
{
    const int64_t g = (int32_t)hf_word(stored, k);
    return g < 0 ? g + ng : g;
}

/* The part of each input: inputs of one group fill its parts in their order. count[ng] is 0. */
static lq_status number_parts(int32_t *parts, int64_t *count, const qt_tensor *q,
                              const src_tensor *g_idx, int64_t group, lq_err *err)
{
    const int64_t ng = lq_ceil_div(q->K, group), even = q->scheme.group;
    for (int64_t k = 0; k < q->K; k++) {
        const int64_t g = group_at(g_idx->raw.data, k, ng);
        if (g < 0 || g >= ng)
            return lq_fail(err, LQ_EVALUE, "tensor '%.100s': [%lld]: expected a group below %lld",
                           g_idx->name, (long long)k, (long long)ng);
        parts[k] = (int32_t)(g * (group / even) + count[g]++ / even);
    }
    for (int64_t g = 0; g < ng; g++) {
        const int64_t want = g + 1 < ng ? group : q->K - g * group;
        if (count[g] != want)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "tensor '%.100s': expected %lld inputs in group %lld, found %lld",
                           g_idx->name, (long long)want, (long long)g, (long long)count[g]);
    }
    return LQ_OK;
}

lq_status hf_order(hf_quant *h, qt_tensor *q, const src_tensor *g_idx, int64_t group, lq_err *err)
{
    lq_status st = hf_expect(g_idx, q->K, -1, err);
    if (st) return st;
    const size_t bytes = (size_t)q->K * sizeof(int32_t);
    int64_t *count = calloc((size_t)lq_ceil_div(q->K, group), sizeof *count);
    int32_t *parts = malloc(bytes);
    st = count && parts ? number_parts(parts, count, q, g_idx, group, err)
                        : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t k = 0; k < q->K && !st; k++)
        q->scheme.act_order = q->scheme.act_order || parts[k] != k / q->scheme.group;
    if (!st && q->scheme.act_order) {
        void *kept = lq_push(&h->s->arena, bytes);
        if (kept) memcpy(kept, parts, bytes);
        q->plane[QT_GIDX] = (qt_span){ kept, bytes };
        if (!kept) st = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    free(parts);
    free(count);
    return st;
}

lq_status hf_group_size(const cJSON *q, const char *key, int64_t *group, lq_err *err)
{
    lq_status st = js_i64(q, key, false, -1, INT32_MAX, group, err);
    if (st || !js_get(q, key) || *group) return st;
    return lq_fail(err, LQ_EVALUE, "%s: expected inputs that share a scale, or -1, found 0", key);
}

lq_status hf_block_size(const cJSON *q, const char *key, int64_t *rows, int64_t *cols, lq_err *err)
{
    const cJSON *block = js_get(q, key);
    long long r = 0, c = 0;
    int end = 0;
    *rows = *cols = 0;
    if (!block) return LQ_OK;
    if (cJSON_IsString(block) && strlen(block->valuestring) < 24 &&
        sscanf(block->valuestring, "%lldx%lld%n", &r, &c, &end) == 2 && !block->valuestring[end] &&
        r > 0 && c > 0 && r <= INT32_MAX && c <= INT32_MAX) {
        *rows = r;
        *cols = c;
        return LQ_OK;
    }
    if (cJSON_IsArray(block) && cJSON_GetArraySize(block) == 2 &&
        js_whole(block->child, 1, INT32_MAX, rows) &&
        js_whole(block->child->next, 1, INT32_MAX, cols))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected two sizes", key);
}

lq_status hf_extra(const cJSON **rule, const hf_quant *h, const char *module, lq_err *err)
{
    const cJSON *extra = js_get(h->q, "extra_config");
    char found[64];
    *rule = NULL;
    if (extra && !cJSON_IsObject(extra))
        return lq_fail(err, LQ_EVALUE,
                       "quantization_config: extra_config: expected an object, found %s",
                       js_describe(found, extra));
    for (const cJSON *e = extra ? extra->child : NULL; e; e = e->next) {
        if (!cJSON_IsObject(e))
            return lq_fail(err, LQ_EVALUE,
                           "quantization_config: extra_config: %.80s: expected an object, found %s",
                           e->string, js_describe(found, e));
        if (strcmp(e->string, module) == 0) {
            *rule = e;
            return LQ_OK;
        }
        bool yes = false;
        if (!*rule && strpbrk(e->string, "*+?[(|^$\\")) {
            const lq_status st = hf_matches(&yes, e->string, module, true, err);
            if (st) return st;
        }
        if (yes) *rule = e;
    }
    return LQ_OK;
}

lq_status hf_note_cache(hf_quant *h, const char *key, lq_err *err)
{
    return src_note(h->s, err, "%s is not applied: --kv-cache-dtype chooses the cache's type", key);
}

lq_status hf_note_weight_only(hf_quant *h, const char *what, lq_err *err)
{
    return src_note(h->s, err,
                    "%s: weights are as stored; inputs, which the file wants rounded too, are not",
                    what);
}

lq_status hf_one_float(float *v, const src_tensor *t, lq_err *err)
{
    if (src_elements(t) != 1)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected one number", t->name);
    lq_to_f32(v, t->raw.data, t->raw_dtype, 1);
    if (*v > 0 && isfinite(*v)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected a number above 0, found %g", t->name,
                   (double)*v);
}

lq_status hf_matches(bool *yes, const char *pattern, const char *name, bool anywhere, lq_err *err)
{
    int code;
    size_t at;
    *yes = false;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   anywhere ? 0 : PCRE2_ANCHORED, &code, &at, NULL);
    if (!re)
        return lq_fail(err, LQ_EVALUE,
                       "quantization_config: expected a regular expression, found \"%.80s\" "
                       "(character %zu)",
                       pattern, at);
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (m && limits) {
        pcre2_set_match_limit(limits, 100000);
        rc = pcre2_match(re, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, m, limits);
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    *yes = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return LQ_OK;
    return lq_fail(err, rc == PCRE2_ERROR_NOMEMORY ? LQ_ENOMEM : LQ_EVALUE,
                   "quantization_config: \"%.80s\" cannot be matched against %.100s", pattern,
                   name);
}
