/* convert/layouts/layout.c - what published quantized layouts share: see layout.h. */
#include "convert/layouts/layout.h"
#include "formats/tensor/blocks_uint.h"

#include <stdio.h>

/* ---- shapes ---- */
void layout_part(conv_weight *w, const char *suffix, lq_dtype d, int64_t rows, int64_t cols)
{
    conv_part *p = &w->parts[w->n_parts++];
    *p = (conv_part){ .suffix = suffix, .dtype = d, .shape = { rows, cols } };
    p->n_dims = rows < 0 ? 0 : cols < 0 ? 1 : 2;
}

lq_status layout_multiples(const conv_weight *w, int64_t N, int64_t K, lq_err *err)
{
    if (w->N % N == 0 && w->K % K == 0) return LQ_OK;
    return lq_fail(err, LQ_ESHAPE,
                   "expected outputs in multiples of %lld and inputs in multiples of %lld, found "
                   "%lld and %lld",
                   (long long)N, (long long)K, (long long)w->N, (long long)w->K);
}

/* ---- schemes ---- */
lq_status layout_no_act(const qt_scheme *s, const char *layout, lq_err *err)
{
    char text[40];
    if (!s->act) return LQ_OK;
    qt_scheme_text(text, s);
    return lq_fail(err, LQ_EUNSUPPORTED, "%s cannot say that inputs are rounded, as %s says",
                   layout, text);
}

lq_status layout_is_uint(const qt_scheme *s, const char *layout, lq_err *err)
{
    char text[40];
    qt_scheme_text(text, s);
    if (s->kind != QT_UINT)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s holds codes with a scale for each group of inputs, found %s", layout,
                       text);
    if (s->zero == QT_ZERO_F16 || s->zero == QT_ZERO_BIAS)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s holds whole zero points, found %s of %s", layout,
                       s->zero == QT_ZERO_F16 ? "fractional ones" : "biases", text);
    return LQ_OK;
}

lq_status layout_half_scales(const qt_scheme *s, const char *layout, lq_err *err)
{
    if (s->scale_dtype != LQ_F32) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s holds scales in f16 or bf16, found f32", layout);
}

qt_scheme layout_round_uint(const qt_scheme *from, int64_t K)
{
    static const int64_t groups[] = { 128, 64, 32 };
    const qt_scheme tiled = from->kind == QT_BLOCKS ? blk_uint(blk_find(from->blocks)) : *from;
    from = &tiled;
    const bool wide = (from->kind == QT_UINT && from->bits == 8) || from->kind == QT_I8 ||
                      from->kind == QT_I8_OUTLIER || from->kind == QT_E4M3;
    qt_scheme s = { .kind = QT_UINT, .bits = wide ? 8 : 4, .scale_dtype = LQ_F16, .group = K };
    for (size_t i = 0; i < LQ_COUNT(groups) && s.group == K; i++)
        if (K % groups[i] == 0) s.group = groups[i];
    if (from->kind == QT_UINT && from->group % 32 == 0) s.group = from->group;
    s.zbits = s.bits;
    return s;
}

unsigned layout_zero(const qt_tensor *q, int64_t n, int64_t g)
{
    const qt_scheme *s = &q->scheme;
    if (s->zero == QT_ZERO_NONE) return 1u << (s->bits - 1);
    const size_t row = qt_row_bytes(q->K / s->group, s->zbits);
    return qt_get((const uint8_t *)q->plane[QT_ZEROS].data + (size_t)n * row, g, s->zbits);
}

lq_status layout_split(qt_tensor *out, const qt_tensor *q, int64_t group, lq_arena *a, lq_err *err)
{
    const int64_t was = q->K / q->scheme.group, ng = q->K / group;
    const size_t size = lq_dtype_bytes(q->scheme.scale_dtype),
                 row = qt_row_bytes(ng, q->scheme.zbits);
    qt_scheme s = q->scheme;
    void *w[QT_N_PLANES];
    s.group = group;
    lq_status st = qt_alloc(out, w, &s, q->N, q->K, a, err);
    if (st) return st;
    memcpy(w[QT_CODES], q->plane[QT_CODES].data, q->plane[QT_CODES].bytes);
    for (int64_t n = 0; n < q->N; n++)
        for (int64_t g = 0; g < ng; g++) {
            const int64_t from = g * group / q->scheme.group;
            memcpy((uint8_t *)w[QT_SCALES] + (size_t)(n * ng + g) * size,
                   (const uint8_t *)q->plane[QT_SCALES].data + (size_t)(n * was + from) * size,
                   size);
            if (!w[QT_ZEROS]) continue;
            const unsigned z = layout_zero(q, n, from);
            const size_t bit = (size_t)g * (size_t)s.zbits;
            uint8_t *at = (uint8_t *)w[QT_ZEROS] + (size_t)n * row + bit / 8;
            at[0] |= (uint8_t)(z << bit % 8);
            if (bit % 8 + (size_t)s.zbits > 8) at[1] |= (uint8_t)(z >> (8 - bit % 8));
        }
    return LQ_OK;
}

/* ---- bytes ---- */
void layout_transpose(void *dst, const void *src, int64_t rows, int64_t cols, size_t size)
{
    enum { TILE = 16 }; /* a line of the cache each way */
    uint8_t *d = dst;
    const uint8_t *s = src;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t end = r0 + TILE < rows ? r0 + TILE : rows;
            uint8_t *to = d + (size_t)(c * rows + r0) * size;
            const uint8_t *from = s + (size_t)(r0 * cols + c) * size;
            if (size == 4)
                for (int64_t r = r0; r < end; r++, to += 4, from += 4 * cols)
                    memcpy(to, from, 4);
            else
                for (int64_t r = r0; r < end; r++, to += 2, from += 2 * cols)
                    memcpy(to, from, 2);
        }
}

/* ---- configs ---- */
bool layout_is_kept(const conv_weight *w)
{
    return (w->foreign || (w->linear && w->slot.role != R_HEAD)) && w->module && !w->quantized;
}

cJSON *layout_kept(const conv_plan *p)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < p->n; i++)
        if (layout_is_kept(&p->w[i]))
            cJSON_AddItemToArray(list, cJSON_CreateString(p->w[i].module));
    return list;
}

bool layout_by_row(const conv_plan *p)
{
    int64_t one = 0;
    bool differ = false;
    for (size_t i = 0; i < p->n; i++) {
        if (!p->w[i].quantized) continue;
        if (p->w[i].scheme.group != p->w[i].K) return false;
        differ = differ || (one && one != p->w[i].K);
        one = p->w[i].K;
    }
    return differ;
}

bool layout_has_head(const conv_plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->w[i].quantized && p->w[i].slot.role == R_HEAD) return true;
    return false;
}

bool layout_head_is_kept(const conv_plan *p, char *module, size_t n)
{
    if (layout_has_head(p)) return false;
    if (!p->config) return snprintf(module, n, "lm_head") > 0;
    if (!arch_tensor_name(p->config, R_HEAD, -1, -1, false, module, n)) return false;
    char *end = strrchr(module, '.');
    if (end) *end = 0; /* ".weight" */
    return true;
}

void layout_pattern(char *out, size_t n, const char *before, const char *module)
{
    size_t at = (size_t)snprintf(out, n, "%s^", before);
    for (const char *m = module; *m && at + 4 < n; m++) {
        if (*m == '.') out[at++] = '\\';
        out[at++] = *m;
    }
    snprintf(out + at, n - at, "$");
}
