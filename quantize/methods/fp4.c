/* quantize/methods/fp4.c - see fp4.h. */
#include "quantize/methods/fp4.h"

/* Twice the values, and the last once more: 16 places. */
static const int8_t table[16] = { -12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 12 };
static const uint8_t stored[16] = { 15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7, 7 };

enum { E4M3_MOST = 126, E8M0_MOST = 254 };

grid_spec fp4_spec(const qt_scheme *s, bool search)
{
    return (grid_spec){ .bits = 4,
                        .scale_dtype = s->scale_dtype,
                        .search = search,
                        .table = table,
                        .tensor_scale = 1 };
}

float fp4_tensor_scale(float absmax)
{
    const float s = 448.0f * 6 / absmax;
    return isfinite(s) && s > 0 ? s : 1;
}

static float scale_of(const grid_spec *s, int code)
{
    return s->scale_dtype == LQ_F8_E8M0 ? lq_e8m0_to_f32((uint8_t)code)
                                        : lq_e4m3_to_f32((uint8_t)code) / s->tensor_scale;
}

/* That plain rounding takes; above 0. */
static int plain_code(const grid_spec *s, float absmax)
{
    int e;
    if (s->scale_dtype == LQ_F8_E8M0) {
        frexpf(absmax, &e); /* below 2^e */
        const int code = absmax > 0 ? e - 1 - 2 + 127 : 127;
        return code < 1 ? 1 : code > E8M0_MOST ? E8M0_MOST : code;
    }
    const float x = absmax / 6 * s->tensor_scale;
    const int code = lq_f32_to_e4m3(x < 448 ? x : 448);
    return code < 1 ? 1 : code;
}

grid_param fp4_fit(const grid_spec *s, const float *w, const float *imp, int64_t n)
{
    const qz_rows_ops *ops = qz_rows_get();
    const float absmax = ops->absmax(w, n);
    int best = plain_code(s, absmax);
    if (s->search && absmax > 0) {
        const bool mx = s->scale_dtype == LQ_F8_E8M0;
        const int most = mx ? E8M0_MOST : E4M3_MOST, plain = best;
        const int lo = plain - (mx ? 1 : 8), hi = plain + (mx ? 1 : 3);
        float mid[15], v[16], least = INFINITY;
        for (int i = 0; i < 16; i++)
            v[i] = table[i];
        for (int i = 0; i < 15; i++)
            mid[i] = 0.5f * (v[i] + v[i + 1]);
        const rows_grid g = { .mid = mid, .table = v };
        for (int c = lo < 1 ? 1 : lo; c <= hi && c <= most; c++) {
            const rows_line line = { scale_of(s, c) / 2, 0 };
            rows_sums sums;
            ops->sums(&sums, w, imp, n, &g, &line, 1);
            if (sums.e < least) least = sums.e, best = c;
        }
    }
    return (grid_param){ scale_of(s, best) / 2, 0 };
}

int fp4_near(grid_param near[2 * FP4_NEAR], const grid_spec *s, grid_param p)
{
    const bool mx = s->scale_dtype == LQ_F8_E8M0;
    const float x = 2 * p.scale;
    const int at = mx ? (int)(lq_f32_bits(x) >> 23) : lq_f32_to_e4m3(x * s->tensor_scale);
    const int most = mx ? E8M0_MOST : E4M3_MOST, far = mx ? 1 : FP4_NEAR;
    int n = 0;
    for (int c = at - far; c <= at + far; c++)
        if (c != at && c >= 1 && c <= most) near[n++] = (grid_param){ scale_of(s, c) / 2, 0 };
    return n;
}

void fp4_store(qz_out *out, int64_t n, const grid_param *params, const uint8_t *codes)
{
    const qt_scheme *s = &out->t.scheme;
    const int64_t K = out->t.K, ng = K / s->group;
    uint8_t *scales = (uint8_t *)out->w[QT_SCALES] + n * ng;
    uint8_t *to = (uint8_t *)out->w[QT_CODES] + (size_t)n * qt_row_bytes(K, 4);
    float second = 1;
    if (out->w[QT_SCALES2]) memcpy(&second, out->w[QT_SCALES2], sizeof second);
    for (int64_t g = 0; g < ng; g++) {
        const float x = 2 * params[g].scale;
        scales[g] = s->scale_dtype == LQ_F8_E8M0 ? (uint8_t)(lq_f32_bits(x) >> 23)
                                                 : lq_f32_to_e4m3(x * second);
    }
    for (int64_t k = 0; k < K; k += 2)
        to[k / 2] = (uint8_t)(stored[codes[k]] | stored[codes[k + 1]] << 4);
}

void fp4_load(grid_param *params, uint8_t *codes, const qt_tensor *t, int64_t n)
{
    grid_spec s = fp4_spec(&t->scheme, false);
    const int64_t K = t->K, ng = K / t->scheme.group;
    const uint8_t *scales = (const uint8_t *)t->plane[QT_SCALES].data + n * ng;
    const uint8_t *from = (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * qt_row_bytes(K, 4);
    uint8_t place[16] = { [8] = 7 }; /* of what is stored; -0 is 0 */
    for (int i = 14; i >= 0; i--)
        place[stored[i]] = (uint8_t)i;
    if (t->plane[QT_SCALES2].data)
        memcpy(&s.tensor_scale, t->plane[QT_SCALES2].data, sizeof s.tensor_scale);
    for (int64_t g = 0; g < ng; g++)
        params[g] = (grid_param){ scale_of(&s, scales[g]) / 2, 0 };
    for (int64_t k = 0; k < K; k++)
        codes[k] = place[from[k / 2] >> (k & 1 ? 4 : 0) & 15];
}
