/* formats/tensor/error_bound.c */
#include "formats/tensor/error_bound.h"
#include "formats/tensor/blocks.h"

#include <float.h>
#include <stdlib.h>

static const float ROOM = 1.0f / 64; /* of a step, for the arithmetic that chose the code */

static void set_step(float *lo, float *hi, float *tol, float a, float b, float step)
{
    *lo = fminf(a, b);
    *hi = fmaxf(a, b);
    *tol = fabsf(step) * (0.5f + ROOM);
}

static void dense_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n,
                      lq_dtype source)
{
    const lq_dtype d = t->scheme.dtype;
    const bool exact = d == source || d == LQ_F32;
    qt_dequant(hi, t, n, n + 1);
    for (int64_t k = 0; k < t->K; k++) {
        float w = fabsf(hi[k]);
        tol[k] = exact ? 0.0f : d == LQ_BF16 ? w * 0x1p-8f : fmaxf(w * 0x1p-11f, 0x1p-25f);
        lo[k] = -FLT_MAX;
        hi[k] = FLT_MAX;
    }
}

static void uint_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const int64_t ng = t->K / s->group;
    const uint8_t *zeros = t->plane[QT_ZEROS].data, *scales = t->plane[QT_SCALES].data;
    const float top = (float)((1 << s->bits) - 1);
    for (int64_t k = 0; k < t->K; k++) {
        int32_t gi;
        int64_t g = k / s->group;
        if (s->act_order) {
            memcpy(&gi, (const uint8_t *)t->plane[QT_GIDX].data + 4 * k, sizeof gi);
            g = gi;
        }
        float scale, zero = (float)(1 << (s->bits - 1));
        const size_t at = (size_t)(n * ng + g);
        lq_to_f32(&scale, scales + at * lq_dtype_bytes(s->scale_dtype), s->scale_dtype, 1);
        if (s->zero == QT_ZERO_INT)
            zero = (float)qt_get(zeros + (size_t)n * qt_row_bytes(ng, s->zbits), g, s->zbits);
        else if (s->zero == QT_ZERO_F16)
            lq_to_f32(&zero, zeros + 2 * at, LQ_F16, 1);
        else if (s->zero == QT_ZERO_BIAS) {
            lq_to_f32(&zero, zeros + at * lq_dtype_bytes(s->scale_dtype), s->scale_dtype, 1);
            set_step(&lo[k], &hi[k], &tol[k], zero, scale * top + zero, scale);
            continue;
        }
        set_step(&lo[k], &hi[k], &tol[k], scale * (0.0f - zero), scale * (top - zero), scale);
    }
}

static void i8_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    float scale, zero = 0;
    memcpy(&scale, (const uint8_t *)t->plane[QT_SCALES].data + 4 * n, sizeof scale);
    if (s->div127) scale /= 127.0f;
    if (s->zero) zero = (float)((const int8_t *)t->plane[QT_ZEROS].data)[n];
    for (int64_t k = 0; k < t->K; k++)
        set_step(&lo[k], &hi[k], &tol[k], scale * (-128.0f - zero), scale * (127.0f - zero), scale);
    for (int64_t i = 0; i < s->n_out; i++) {
        int32_t k;
        uint16_t v;
        memcpy(&k, (const uint8_t *)t->plane[QT_OUT_IDX].data + 4 * i, sizeof k);
        memcpy(&v, (const uint8_t *)t->plane[QT_OUT_VALS].data + 2 * (n * s->n_out + i), sizeof v);
        lo[k] = -FLT_MAX;
        hi[k] = FLT_MAX;
        tol[k] = fabsf(lq_bf16_to_f32(v)) * 0x1p-8f;
    }
}

static int by_value(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* The table's values in order; gap[i] of sorted[i]: to the farther of its two neighbours. */
static void table_gaps(float *sorted, float *gap, const void *map, size_t n)
{
    memcpy(sorted, map, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    for (size_t i = 0; i < n; i++)
        gap[i] = fmaxf(i ? sorted[i] - sorted[i - 1] : 0.0f,
                       i + 1 < n ? sorted[i + 1] - sorted[i] : 0.0f);
}

static void lut4_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const uint8_t *codes = t->plane[QT_CODES].data;
    float map[16], sorted[256], gap[256], by_code[16], widest = 0;
    memcpy(map, t->plane[QT_MAP].data, sizeof map);
    table_gaps(sorted, gap, map, 16);
    for (size_t c = 0; c < 16; c++)
        for (size_t i = 0; i < 16; i++)
            if (memcmp(&map[c], &sorted[i], sizeof *map) == 0) by_code[c] = gap[i];
    const float low = sorted[0], high = sorted[15];
    if (s->dbl) {
        table_gaps(sorted, gap, t->plane[QT_MAP2].data, 256);
        for (int i = 0; i < 256; i++)
            widest = fmaxf(widest, gap[i]);
    }
    for (int64_t k = 0; k < t->K; k++) {
        const int64_t i = n * t->K + k, block = i / s->group;
        const unsigned c = i & 1 ? codes[i / 2] & 15u : codes[i / 2] >> 4;
        const float a = qt_lut_absmax(t, block);
        set_step(&lo[k], &hi[k], &tol[k], low * a, high * a, by_code[c] * a);
        if (!s->dbl) continue;
        float a2;
        memcpy(&a2, (const uint8_t *)t->plane[QT_SCALES2].data + 4 * (block / 256), sizeof a2);
        tol[k] += fabsf(a2) * widest * 0.5f;
    }
}

/* Half the gap to either side of a number of a small float format, times its scale. */
static void small_float_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n)
{
    const bool e4m3 = t->scheme.kind == QT_E4M3;
    const float top = e4m3 ? 448.0f : 6.0f;
    const int mantissa = e4m3 ? 3 : 1, least = e4m3 ? -6 : 0; /* exponent of the least normal */
    qt_dequant(hi, t, n, n + 1);
    for (int64_t k = 0; k < t->K; k++) {
        const float scale = qt_scale(t, n, k);
        const float code = scale > 0 || scale < 0 ? hi[k] / scale : 0.0f;
        int e = least + 1;
        if (code > 0 || code < 0) frexpf(code, &e); /* x 2^e, x in [0.5, 1) */
        const float gap = ldexpf(1.0f, (e - 1 > least ? e - 1 : least) - mantissa);
        set_step(&lo[k], &hi[k], &tol[k], -top * scale, top * scale, gap * scale);
    }
}

/* Steps of a group alike: of a table its widest gap; of points, which are chosen for several weights together, all of
 * the table. */
static void blocks_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const uint8_t *p =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * blk_row_bytes(type, t->K);
    const size_t count = (size_t)1 << type->bits;
    float value[64], sorted[64], gap[64], widest = 0;
    for (size_t c = 0; c < count; c++)
        value[c] = (float)blk_value(type, (unsigned)c);
    table_gaps(sorted, gap, value, count);
    for (size_t c = 0; c < count; c++)
        widest = fmaxf(widest, gap[c]);
    const blk_made *made = blk_made_of(type);
    if (made && made->book) widest = 2 * (sorted[count - 1] - sorted[0]);
    blk_parts b;
    for (int64_t k = 0; k < t->K; k++) {
        const int at = (int)(k % type->elements), g = at / type->group;
        if (at == 0) {
            blk_take(&b, type, p);
            p += type->bytes;
        }
        const float s = blk_scale(type, &b, g), add = type->bias ? blk_bias(type, &b, g) : 0;
        set_step(&lo[k], &hi[k], &tol[k], s * sorted[0] + add, s * sorted[count - 1] + add,
                 widest * s);
    }
}

void bound_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n, lq_dtype source)
{
    switch (t->scheme.kind) {
    case QT_DENSE:
        dense_row(lo, hi, tol, t, n, source);
        break;
    case QT_UINT:
        uint_row(lo, hi, tol, t, n);
        break;
    case QT_LUT4:
        lut4_row(lo, hi, tol, t, n);
        break;
    case QT_E4M3:
    case QT_E2M1:
        small_float_row(lo, hi, tol, t, n);
        break;
    case QT_BLOCKS:
        blocks_row(lo, hi, tol, t, n);
        break;
    default:
        i8_row(lo, hi, tol, t, n);
        break;
    }
}

void bound_add_row(bound_state *s, const float *w, const float *q, const float *lo, const float *hi,
                   const float *tol, int64_t row, int64_t K)
{
    double err2 = 0, step2 = 0;
    for (int64_t k = 0; k < K; k++) {
        double d = (double)w[k] - (double)q[k], step = 2 * (double)tol[k];
        double excess =
            fabs((double)fminf(fmaxf(w[k], lo[k]), hi[k]) - (double)q[k]) - (double)tol[k];
        double steps = 0; /* where there is no step, any difference is infinitely many of them */
        if (!(excess <= 0)) steps = step > 0 && !isnan(excess) ? excess / step : (double)INFINITY;
        if (steps > s->r.max_excess) {
            s->r.max_excess = steps;
            s->r.row = row;
            s->r.col = k;
        }
        err2 += d * d;
        step2 += step * step;
    }
    s->sum += err2;
    s->rows++;
    if (step2 > 0) s->r.worst_rms = fmax(s->r.worst_rms, sqrt(err2 / step2));
}

bound_report bound_end(const bound_state *s, int64_t K)
{
    bound_report r = s->r;
    if (s->rows) r.rmse = sqrt(s->sum / ((double)s->rows * (double)K));
    return r;
}
