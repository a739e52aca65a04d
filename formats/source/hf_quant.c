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

static const src_tensor *stored(const hf_quant *h, const char *module, const char *suffix)
{
    char name[512];
    const src_tensor key = { .name = name };
    if (snprintf(name, sizeof name, "%s%s", module, suffix) >= (int)sizeof name) return NULL;
    return bsearch(&key, h->s->tensors, h->s->n_tensors, sizeof key, src_by_name);
}

lq_status hf_take(hf_quant *h, const char *module, const char *suffix, bool required,
                  const int *types, int n_dims, const src_tensor **t, lq_err *err)
{
    *t = stored(h, module, suffix);
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

lq_status hf_make(hf_quant *h, const char *module, const char *suffix, const qt_tensor *q,
                  src_fill_fn *fill, const void *from, size_t from_bytes, lq_err *err)
{
    lq_arena *a = &h->s->arena;
    char name[512];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    src_tensor *t = &h->made[h->n_made];
    *t = (src_tensor){ .name = lq_push_str(a, name, strlen(name)),
                       .t = *q,
                       .n_dims = 2,
                       .shape = { q->N, q->K },
                       .raw_dtype = LQ_U8 };
    void *record = from_bytes ? lq_push(a, from_bytes) : NULL;
    if (!t->name || (from_bytes && !record))
        return lq_fail(err, LQ_ENOMEM, "tensor '%.100s': out of memory", name);
    if (record) memcpy(record, from, from_bytes);
    lq_status st = src_make(h->s, t, fill, record, err);
    if (!st) st = src_made_from(h->s, t, h->taken, h->n_taken, err);
    h->n_taken = 0;
    if (!st) h->n_made++;
    return st;
}

void hf_view_f32(qt_tensor *q, qt_plane p, const src_tensor *t)
{
    if (t->raw_dtype == LQ_F32) q->plane[p] = t->raw;
}

static int64_t group_at(const uint8_t *stored, int64_t k, int64_t ng)
{
    const int64_t g = (int32_t)hf_word(stored, k);
    return g < 0 ? g + ng : g;
}

lq_status hf_order(qt_scheme *s, const src_tensor *g_idx, int64_t K, lq_err *err)
{
    const int64_t ng = K / s->group;
    lq_status st = hf_expect(g_idx, K, -1, err);
    if (st) return st;
    int64_t *count = calloc((size_t)ng, sizeof *count);
    if (!count) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t k = 0; k < K && !st; k++) {
        const int64_t g = group_at(g_idx->raw.data, k, ng);
        if (g < 0 || g >= ng)
            st = lq_fail(err, LQ_EVALUE, "tensor '%.100s': [%lld]: expected a group below %lld",
                         g_idx->name, (long long)k, (long long)ng);
        else
            count[g]++;
        s->act_order = s->act_order || g != k / s->group;
    }
    for (int64_t g = 0; g < ng && !st; g++)
        if (count[g] != s->group)
            st = lq_fail(err, LQ_EUNSUPPORTED,
                         "tensor '%.100s': expected %lld inputs in group %lld, found %lld",
                         g_idx->name, (long long)s->group, (long long)g, (long long)count[g]);
    free(count);
    return st;
}

void hf_fill_order(void *gidx, const qt_tensor *t, const uint8_t *stored)
{
    for (int64_t k = 0; k < t->K; k++) {
        const int32_t g = (int32_t)group_at(stored, k, t->K / t->scheme.group);
        memcpy((uint8_t *)gidx + 4 * k, &g, 4);
    }
}

lq_status hf_group_size(const cJSON *q, const char *key, int64_t *group, lq_err *err)
{
    lq_status st = js_i64(q, key, false, -1, INT32_MAX, group, err);
    if (st || !js_get(q, key) || *group) return st;
    return lq_fail(err, LQ_EVALUE, "%s: expected inputs that share a scale, or -1, found 0", key);
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

lq_status hf_matches(bool *yes, const char *pattern, const char *name, lq_err *err)
{
    int code;
    size_t at;
    *yes = false;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
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
