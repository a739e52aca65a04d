/* quantize/methods/rows_plain.h - the loops of quantize/methods/rows.h, one weight at a time: for
 * loops that blocks would not speed up, and for the end of a run that fills no block. */
#ifndef LLMQ_QUANTIZE_METHODS_ROWS_PLAIN_H
#define LLMQ_QUANTIZE_METHODS_ROWS_PLAIN_H

#include "formats/tensor/qtensor.h"
#include "quantize/methods/rows.h"

enum { QZ_LANES = 32, QZ_PIECE = 256 }; /* running sums of square_error, and how far each goes */

static inline void plain_widen(grid_range *r, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        r->lo = w[i] < r->lo ? w[i] : r->lo;
        r->hi = w[i] > r->hi ? w[i] : r->hi;
    }
}

/* Of zeros 0, not -0. */
static inline float plain_absmax(grid_range r) { return r.hi >= -r.lo ? r.hi : -r.lo; }

/* Eight running sums of each of rows_sums. */
static inline rows_sums plain_rows_sums(float a[6][8])
{
    float t[6];
    for (int i = 0; i < 6; i++)
        t[i] = ((a[i][0] + a[i][1]) + (a[i][2] + a[i][3])) +
               ((a[i][4] + a[i][5]) + (a[i][6] + a[i][7]));
    return (rows_sums){ t[0], t[1], t[2], t[3], t[4], t[5] };
}

static inline void plain_codes(uint8_t *codes, const float *w, int64_t n, grid_param p,
                               float max_code)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)grid_code(w[i], p, max_code);
}

static inline void plain_codes_i8(int8_t *codes, const float *w, int64_t n, float absmax)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (int8_t)grid_round((float)((double)w[i] * 127 / (double)absmax));
}

static inline void plain_pack_table(uint8_t *dst, const float *w, int64_t n, float inv,
                                    const float mid[15], const uint8_t code[16])
{
    for (int64_t i = 0; i < n + n % 2; i++) {
        const float x = i < n ? w[i] * inv : 0;
        int cell = 0;
        for (int m = 0; m < 15; m++)
            cell += x > mid[m];
        dst[i / 2] = (uint8_t)(i & 1 ? dst[i / 2] | code[cell] : code[cell] << 4);
    }
}

static inline void plain_lines(float *A, float *B, const float *v, int dim, int64_t n,
                               const float *y, const float *imp)
{
    for (int64_t p = 0; p < n; p++) {
        float a = 0, b = 0;
        for (int i = 0; i < dim; i++) {
            const float x = v[i * n + p];
            a += y[i] * x;
            b += imp[i] * (x * x);
        }
        A[p] = 2 * a;
        B[p] = b;
    }
}

static inline int plain_lowest_line(const float *A, const float *B, int64_t n, float s)
{
    int best = 0;
    float least = s * B[0] - A[0];
    for (int64_t p = 1; p < n; p++) {
        const float e = s * B[p] - A[p];
        if (e < least) least = e, best = (int)p;
    }
    return best;
}

static inline int plain_lowest_point(const float *v, int dim, int64_t n, const float *m,
                                     const float *b)
{
    int best = 0;
    float least = INFINITY;
    for (int64_t p = 0; p < n; p++) {
        float e = 0;
        for (int i = 0; i < dim; i++) {
            float t = m[i * dim + i] * v[i * n + p] - b[i];
            for (int l = i + 1; l < dim; l++)
                t += m[i * dim + l] * v[l * n + p];
            e += v[i * n + p] * t;
        }
        if (e < least) least = e, best = (int)p;
    }
    return best;
}

static inline void plain_subtract(float *restrict y, float a, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] -= a * x[i];
}

static inline void plain_values(float *w, const uint8_t *codes, int64_t n, grid_param p)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = p.scale * ((float)codes[i] - p.zero);
}

static inline void plain_train(uint8_t *code, float *off, float *m, float *v, const float *dW,
                               int64_t n, const rows_adam *a)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = dW[i] * a->scale;
        m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
        v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
        const float d = sqrtf(v[i] * a->fix2);
        float x = off[i] - a->rate * (d > 0 ? m[i] * a->fix1 / d : 0);
        if (x > 0.5f && code[i] < a->top) code[i]++, x -= 1;
        if (x < -0.5f && code[i] > 0) code[i]--, x += 1;
        off[i] = x > 0.5f ? 0.5f : x < -0.5f ? -0.5f : x;
    }
}

/* What fills no block goes to the first sum. */
static inline void plain_squares(float *acc, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float e = a[i] - b[i];
        acc[0] += e * e;
    }
}

/* Halves onto each other. */
static inline double plain_sum(double sum[QZ_LANES])
{
    for (int half = QZ_LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

#endif
