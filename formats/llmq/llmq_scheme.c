/* formats/llmq/llmq_scheme.c - a scheme as it stands in the header of a .llmq file. */
#include "base/json.h"
#include "formats/llmq/llmq.h"
#include "formats/tensor/blocks.h"

#include <float.h>

const uint8_t lqf_magic[8] = { 'L', 'L', 'M', 'Q', '\r', '\n', 0x1a, '\n' };

static const char *const kind_names[QT_N_KINDS] = {
    [QT_DENSE] = "dense", [QT_UINT] = "uint", [QT_I8] = "i8",     [QT_I8_OUTLIER] = "i8-outlier",
    [QT_LUT4] = "lut4",   [QT_E4M3] = "e4m3", [QT_E2M1] = "e2m1", [QT_BLOCKS] = "blocks",
};
static const char *const zero_names[QT_N_ZEROS] = { "none", "int", "f16", "bias" };
static const char *const act_names[QT_N_ACTS] = { "none", "i8", "f8" };

static bool put_bool(cJSON *j, const char *key, bool v) { return cJSON_AddBoolToObject(j, key, v); }
static bool put_int(cJSON *j, const char *key, int64_t v)
{
    return cJSON_AddNumberToObject(j, key, (double)v);
}
static bool put_text(cJSON *j, const char *key, const char *v)
{
    return cJSON_AddStringToObject(j, key, v);
}

static bool put_fields(cJSON *j, const qt_scheme *s)
{
    bool ok = put_text(j, "kind", kind_names[s->kind]);
    switch (s->kind) {
    case QT_DENSE:
        return ok && put_text(j, "dtype", lq_dtype_text(s->dtype));
    case QT_UINT:
        ok = ok && put_int(j, "bits", s->bits) && put_int(j, "group", s->group) &&
             put_text(j, "zero", zero_names[s->zero]) &&
             put_text(j, "scale_dtype", lq_dtype_text(s->scale_dtype)) &&
             put_bool(j, "irregular", s->act_order);
        return ok && (s->zero != QT_ZERO_INT || put_int(j, "zbits", s->zbits));
    case QT_I8:
        return ok && put_text(j, "zero", zero_names[s->zero]) && put_bool(j, "div127", s->div127);
    case QT_I8_OUTLIER:
        return ok && put_int(j, "n_out", s->n_out) && put_bool(j, "div127", s->div127);
    case QT_E4M3:
        return ok && put_int(j, "group", s->group) && put_int(j, "rows", s->rows);
    case QT_E2M1:
        ok = ok && put_text(j, "scale_dtype", lq_dtype_text(s->scale_dtype));
        return ok && (s->scale_dtype == LQ_F8_E8M0 ||
                      (put_int(j, "rows", s->rows) && put_bool(j, "recip", s->recip)));
    case QT_BLOCKS:
        return ok && put_text(j, "type", blk_find(s->blocks)->name);
    default:
        ok = ok && put_int(j, "group", s->group) && put_bool(j, "fp4", s->fp4) &&
             put_bool(j, "double", s->dbl);
        return ok && (!s->dbl || cJSON_AddNumberToObject(j, "offset", (double)s->offset));
    }
}

static bool put_act(cJSON *j, const qt_scheme *s)
{
    return !s->act ||
           (put_text(j, "act", act_names[s->act]) && put_int(j, "act_group", s->act_group) &&
            cJSON_AddNumberToObject(j, "act_scale", (double)s->act_scale));
}

cJSON *lqf_scheme_json(const qt_scheme *s)
{
    cJSON *j = cJSON_CreateObject();
    if (j && put_fields(j, s) && put_act(j, s)) return j;
    cJSON_Delete(j);
    return NULL;
}

static lq_status read_dtype(lq_dtype *d, const cJSON *j, const char *key, lq_err *err)
{
    const char *text;
    lq_status s = js_str(j, key, true, &text, err);
    if (s || (lq_dtype_from_text(d, text) && lq_dtype_is_float(*d))) return s;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected f32, f16 or bf16, found \"%.40s\"", key,
                   text);
}

static lq_status read_zero(qt_zero *z, const cJSON *j, lq_err *err)
{
    const char *text;
    lq_status s = js_str(j, "zero", true, &text, err);
    for (size_t i = 0; i < LQ_COUNT(zero_names) && !s; i++)
        if (strcmp(zero_names[i], text) == 0) return *z = (qt_zero)i, LQ_OK;
    return s ? s
             : lq_fail(err, LQ_EUNSUPPORTED,
                       "zero: expected none, int, f16 or bias, found \"%.40s\"", text);
}

static lq_status read_act(qt_scheme *s, const cJSON *j, lq_err *err)
{
    const char *text = "none";
    double scale = 0;
    size_t i = 0;
    lq_status st = js_str(j, "act", false, &text, err);
    if (st || !js_get(j, "act")) return st;
    while (i < QT_N_ACTS && strcmp(act_names[i], text) != 0)
        i++;
    if (i == QT_ACT_NONE || i == QT_N_ACTS)
        return lq_fail(err, LQ_EUNSUPPORTED, "act: expected i8 or f8, found \"%.40s\"", text);
    s->act = (qt_act)i;
    st = js_i64(j, "act_group", true, 0, INT32_MAX, &s->act_group, err);
    if (!st) st = js_f64(j, "act_scale", true, 0, FLT_MAX, &scale, err);
    s->act_scale = (float)scale;
    return st;
}

/* nvfp4 and mxfp4 have one size of group each. */
static lq_status read_e2m1(qt_scheme *s, const cJSON *j, lq_err *err)
{
    const char *text;
    lq_status st = js_str(j, "scale_dtype", true, &text, err);
    if (st) return st;
    const bool mx = strcmp(text, lq_dtype_text(LQ_F8_E8M0)) == 0;
    if (!mx && strcmp(text, lq_dtype_text(LQ_F8_E4M3)) != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "scale_dtype: expected f8_e8m0 or f8_e4m3, found \"%.40s\"", text);
    s->scale_dtype = mx ? LQ_F8_E8M0 : LQ_F8_E4M3;
    s->group = mx ? 32 : 16;
    if (!mx) st = js_i64(j, "rows", true, 0, INT64_C(1) << 48, &s->rows, err);
    if (!mx && !st) st = js_bool(j, "recip", true, &s->recip, err);
    return st;
}

static lq_status read_blocks(qt_scheme *s, const cJSON *j, lq_err *err)
{
    const char *text;
    lq_status st = js_str(j, "type", true, &text, err);
    if (st) return st;
    const blk_type *t = blk_named(text);
    if (!t)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "type: expected a type of GGUF's blocks, found \"%.40s\"", text);
    s->blocks = (int)t->id;
    return LQ_OK;
}

static lq_status read_fields(qt_scheme *s, const cJSON *j, lq_err *err)
{
    int64_t bits = 0, zbits = 0;
    double offset = 0;
    lq_status st = LQ_OK;
    switch (s->kind) {
    case QT_DENSE:
        return read_dtype(&s->dtype, j, "dtype", err);
    case QT_UINT:
        st = js_i64(j, "bits", true, 2, 8, &bits, err);
        if (!st) st = js_i64(j, "group", true, 1, INT32_MAX, &s->group, err);
        if (!st) st = read_zero(&s->zero, j, err);
        if (!st && s->zero == QT_ZERO_INT) st = js_i64(j, "zbits", true, 2, 8, &zbits, err);
        if (!st) st = read_dtype(&s->scale_dtype, j, "scale_dtype", err);
        if (!st) st = js_bool(j, "irregular", true, &s->act_order, err);
        s->bits = (int)bits;
        s->zbits = (int)zbits;
        return st;
    case QT_I8:
        st = read_zero(&s->zero, j, err);
        return st ? st : js_bool(j, "div127", true, &s->div127, err);
    case QT_I8_OUTLIER:
        st = js_i64(j, "n_out", true, 0, INT32_MAX, &s->n_out, err);
        return st ? st : js_bool(j, "div127", true, &s->div127, err);
    case QT_E4M3:
        st = js_i64(j, "group", true, 0, INT32_MAX, &s->group, err);
        return st ? st : js_i64(j, "rows", true, 0, INT64_C(1) << 48, &s->rows, err);
    case QT_E2M1:
        return read_e2m1(s, j, err);
    case QT_BLOCKS:
        return read_blocks(s, j, err);
    default:
        st = js_i64(j, "group", true, 1, INT32_MAX, &s->group, err);
        if (!st) st = js_bool(j, "fp4", true, &s->fp4, err);
        if (!st) st = js_bool(j, "double", true, &s->dbl, err);
        if (!st && s->dbl) st = js_f64(j, "offset", true, 0, FLT_MAX, &offset, err);
        s->offset = (float)offset;
        return st;
    }
}

lq_status lqf_scheme_from_json(qt_scheme *s, const cJSON *j, lq_err *err)
{
    const char *kind;
    memset(s, 0, sizeof *s);
    lq_status st = js_str(j, "kind", true, &kind, err);
    if (st) return lq_wrap(err, st, "scheme");
    size_t k = 0;
    while (k < QT_N_KINDS && strcmp(kind_names[k], kind) != 0)
        k++;
    if (k == QT_N_KINDS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "scheme: kind: expected dense, uint, i8, i8-outlier, lut4, e4m3, e2m1, "
                       "blocks or raw, found "
                       "\"%.40s\"",
                       kind);
    s->kind = (qt_kind)k;
    st = read_fields(s, j, err);
    if (!st) st = read_act(s, j, err);
    if (st) return lq_wrap(err, st, "scheme");
    cJSON *own = lqf_scheme_json(s); /* a field that we would not write means something unknown */
    if (!own) return lq_fail(err, LQ_ENOMEM, "scheme: out of memory");
    int extra = cJSON_GetArraySize(j) - cJSON_GetArraySize(own);
    cJSON_Delete(own);
    return extra ? lq_fail(err, LQ_EUNSUPPORTED, "scheme: %s: %d fields that are not known", kind,
                           extra)
                 : LQ_OK;
}

bool lqf_header_hash(lq_hash *out, const uint8_t *preamble, const void *header, size_t n)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return false;
    lq_hasher_add(h, preamble, 48);
    lq_hasher_add(h, header, n);
    *out = lq_hasher_end(h);
    return true;
}
