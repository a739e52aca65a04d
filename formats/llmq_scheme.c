/* formats/llmq_scheme.c - a scheme as it stands in the header of a .llmq file. */
#include "formats/json.h"
#include "formats/llmq.h"

const uint8_t llmq_magic[8] = { 'L', 'L', 'M', 'Q', '\r', '\n', 0x1a, '\n' };

static const char *const kind_names[QT_N_KINDS] = {
    [QT_DENSE] = "dense",           [QT_UINT] = "uint", [QT_I8] = "i8",
    [QT_I8_OUTLIER] = "i8-outlier", [QT_LUT4] = "lut4",
};
static const char *const zero_names[] = { "none", "int", "f16" };

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
             put_bool(j, "irregular", s->irregular);
        return ok && (s->zero != QT_ZERO_INT || put_int(j, "zbits", s->zbits));
    case QT_I8:
        return ok && put_text(j, "zero", zero_names[s->zero]) && put_bool(j, "div127", s->div127);
    case QT_I8_OUTLIER:
        return ok && put_int(j, "n_out", s->n_out) && put_bool(j, "div127", s->div127);
    default:
        ok = ok && put_int(j, "group", s->group) && put_bool(j, "fp4", s->fp4) &&
             put_bool(j, "double", s->dbl);
        return ok && (!s->dbl || cJSON_AddNumberToObject(j, "offset", (double)s->offset));
    }
}

cJSON *llmq_scheme_json(const qt_scheme *s)
{
    cJSON *j = cJSON_CreateObject();
    if (j && put_fields(j, s)) return j;
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
             : lq_fail(err, LQ_EUNSUPPORTED, "zero: expected none, int or f16, found \"%.40s\"",
                       text);
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
        if (!st) st = js_bool(j, "irregular", true, &s->irregular, err);
        s->bits = (int)bits;
        s->zbits = (int)zbits;
        return st;
    case QT_I8:
        st = read_zero(&s->zero, j, err);
        return st ? st : js_bool(j, "div127", true, &s->div127, err);
    case QT_I8_OUTLIER:
        st = js_i64(j, "n_out", true, 0, INT32_MAX, &s->n_out, err);
        return st ? st : js_bool(j, "div127", true, &s->div127, err);
    default:
        st = js_i64(j, "group", true, 1, INT32_MAX, &s->group, err);
        if (!st) st = js_bool(j, "fp4", true, &s->fp4, err);
        if (!st) st = js_bool(j, "double", true, &s->dbl, err);
        if (!st && s->dbl) st = js_f64(j, "offset", true, -1e30, 1e30, &offset, err);
        s->offset = (float)offset;
        return st;
    }
}

lq_status llmq_scheme_from_json(qt_scheme *s, const cJSON *j, lq_err *err)
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
                       "scheme: kind: expected dense, uint, i8, i8-outlier, lut4 or raw, found "
                       "\"%.40s\"",
                       kind);
    s->kind = (qt_kind)k;
    st = read_fields(s, j, err);
    if (st) return lq_wrap(err, st, "scheme");
    cJSON *own = llmq_scheme_json(s); /* a field that we would not write means something unknown */
    if (!own) return lq_fail(err, LQ_ENOMEM, "scheme: out of memory");
    int extra = cJSON_GetArraySize(j) - cJSON_GetArraySize(own);
    cJSON_Delete(own);
    return extra ? lq_fail(err, LQ_EUNSUPPORTED, "scheme: %s: %d fields that are not known", kind,
                           extra)
                 : LQ_OK;
}

lq_hash llmq_header_hash(const uint8_t *preamble, const void *header, size_t n)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return (lq_hash){ { 0 } };
    lq_hasher_add(h, preamble, 48);
    lq_hasher_add(h, header, n);
    return lq_hasher_end(h);
}
