/* quantize/rows_tmpl.h - the loops of quantize/rows.h; each including file is compiled for its own
 * instruction set. Blocks have a fixed length, so that compilers use vectors: a lane each, in the
 * order of the plain loop. */
#include "quantize/rows.h"

enum { LANES = 32, PIECE = 256 };

static ug_range tmpl_range(const float *w, int64_t n)
{
    float lo[LANES] = { 0 }, hi[LANES] = { 0 };
    ug_range r = { 0, 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float x[LANES];
        memcpy(x, w + i, sizeof x);
        for (int k = 0; k < LANES; k++)
            lo[k] = x[k] < lo[k] ? x[k] : lo[k];
        for (int k = 0; k < LANES; k++)
            hi[k] = x[k] > hi[k] ? x[k] : hi[k];
    }
    for (; i < n; i++) {
        lo[0] = w[i] < lo[0] ? w[i] : lo[0];
        hi[0] = w[i] > hi[0] ? w[i] : hi[0];
    }
    for (int k = 0; k < LANES; k++) {
        r.lo = lo[k] < r.lo ? lo[k] : r.lo;
        r.hi = hi[k] > r.hi ? hi[k] : r.hi;
    }
    return r;
}

static float tmpl_absmax(const float *w, int64_t n)
{
    ug_range r = tmpl_range(w, n);
    return r.hi >= -r.lo ? r.hi : -r.lo; /* of zeros 0, not -0 */
}

static void tmpl_codes(uint8_t *codes, const float *w, int64_t n, ug_param p, float max_code)
{
    const float lo = -p.zero, hi = max_code - p.zero;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int32_t c[LANES];
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k] / p.scale;
            x = x < lo ? lo : x;
            x = x > hi ? hi : x;
            c[k] = (int32_t)(ug_round(x) + p.zero);
        }
        for (int k = 0; k < LANES; k++)
            codes[i + k] = (uint8_t)c[k];
    }
    for (; i < n; i++)
        codes[i] = (uint8_t)ug_code(w[i], p, max_code);
}

static void tmpl_codes_i8(int8_t *codes, const float *w, int64_t n, float absmax)
{
    const double a = (double)absmax;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int32_t c[LANES];
        for (int k = 0; k < LANES; k++)
            c[k] = (int32_t)ug_round((float)((double)w[i + k] * 127 / a));
        for (int k = 0; k < LANES; k++)
            codes[i + k] = (int8_t)c[k];
    }
    for (; i < n; i++)
        codes[i] = (int8_t)ug_round((float)((double)w[i] * 127 / a));
}

static void tmpl_pack4(uint8_t *dst, const uint8_t *codes, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        uint16_t pair[LANES]; /* the first in the low byte, as everywhere in the file formats */
        memcpy(pair, codes + i, sizeof pair);
        for (int k = 0; k < LANES; k++)
            dst[i / 2 + k] = (uint8_t)((pair[k] & 15) | (pair[k] >> 4 & 0xf0));
    }
    for (; i < n; i += 2)
        dst[i / 2] = (uint8_t)((codes[i] & 15) | (i + 1 < n ? (codes[i + 1] & 15) << 4 : 0));
}

static void tmpl_cells(uint8_t *codes, const float *w, int64_t n, float inv, const float *mid)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float x[LANES];
        int32_t c[LANES] = { 0 };
        for (int k = 0; k < LANES; k++)
            x[k] = w[i + k] * inv;
        for (int m = 0; m < 15; m++)
            for (int k = 0; k < LANES; k++)
                c[k] += x[k] > mid[m];
        for (int k = 0; k < LANES; k++)
            codes[i + k] = (uint8_t)c[k];
    }
    for (; i < n; i++) {
        const float x = w[i] * inv;
        codes[i] = 0;
        for (int m = 0; m < 15; m++)
            codes[i] = (uint8_t)(codes[i] + (x > mid[m]));
    }
}

static void tmpl_subtract(float *restrict y, float a, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            y[i + k] -= a * x[i + k];
    for (; i < n; i++)
        y[i] -= a * x[i];
}

static double tmpl_square_error(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t end = n - i < PIECE ? n : i + PIECE;
        float acc[LANES] = { 0 }, e;
        for (; i + LANES <= end; i += LANES)
            for (int k = 0; k < LANES; k++) {
                e = a[i + k] - b[i + k];
                acc[k] += e * e;
            }
        for (; i < end; i++) {
            e = a[i] - b[i];
            acc[0] += e * e;
        }
        for (int k = 0; k < LANES; k++)
            sum += (double)acc[k];
    }
    return sum;
}

#define QZ_ROWS_TABLE(text)                                                            \
    {                                                                                  \
        .name = text, .range = tmpl_range, .absmax = tmpl_absmax, .codes = tmpl_codes, \
        .codes_i8 = tmpl_codes_i8, .pack4 = tmpl_pack4, .cells = tmpl_cells,           \
        .subtract = tmpl_subtract, .square_error = tmpl_square_error                   \
    }
