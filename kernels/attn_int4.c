/* kernels/attn_int4.c - a cached row of 4 bits (attn.h), written.
 *
 * Each block takes the sign of its largest element, and of two steps, the least that does not cut it
 * off and the next below, the one with the smaller squared error, counted in whole numbers: so that
 * no order of sums decides. */
#include "kernels/attn_int4.h"

/* To the nearest whole number, to even between two; |x| < 2^22. */
static float nearest(float x)
{
    const float big = 12582912.0f;
    return x + big - big;
}

static float code_of(float u)
{
    const float q = nearest(u);
    return q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
}

/* The error of x in 64ths of a step 1 / inv, squared: a whole number. */
static float square(float x, float inv)
{
    const float u = x * inv, off = nearest((u - code_of(u)) * ATTN_I4_FINE);
    return off * off;
}

/* Of n numbers; four sums, which compilers keep in a vector. All are whole and below 2^24. */
static int64_t squares(const float *x, int64_t n, float inv)
{
    float sum[4] = { 0 };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int l = 0; l < 4; l++)
            sum[l] += square(x[i + l], inv);
    for (; i < n; i++)
        sum[0] += square(x[i], inv);
    return (int64_t)(sum[0] + sum[1] + sum[2] + sum[3]);
}

/* The block's bits of the head; *inv: 1 / its step. */
static unsigned choose(float *inv, const float *x, int64_t n, float base)
{
    float m = 0;
    for (int64_t i = 0; i < n; i++)
        m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
    const unsigned sign = m > 0 ? ATTN_I4_MINUS : 0;
    const int k = attn_i4_steps(fabsf(m), base);
    int best = k;
    *inv = 1 / attn_i4_scale(base, sign | (unsigned)(k - ATTN_I4_LEAST));
    if (k > ATTN_I4_LEAST) {
        const float other = 1 / attn_i4_scale(base, sign | (unsigned)(k - 1 - ATTN_I4_LEAST));
        if ((k - 1) * (k - 1) * squares(x, n, other) < k * k * squares(x, n, *inv)) {
            *inv = other;
            best = k - 1;
        }
    }
    return sign | (unsigned)(best - ATTN_I4_LEAST);
}

/* Of a row without numbers all are 0. */
static void put_codes(uint8_t *codes, const float *x, int64_t n, float inv, bool some)
{
    for (int64_t i = 0; i < n; i += 2) {
        const float low = some ? code_of(x[i] * inv) : 0;
        const float high = some && i + 1 < n ? code_of(x[i + 1] * inv) : 0;
        codes[i / 2] = (uint8_t)((int)low + 8 + (i + 1 < n ? ((int)high + 8) << 4 : 0));
    }
}

void attn_int4_write(uint8_t *row, const float *x, int64_t D)
{
    const int64_t P = attn_i4_block(D);
    float max = 0, inv = 0;
    bool finite = true;
    for (int64_t i = 0; i < D; i++) {
        finite &= fabsf(x[i]) < INFINITY;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    const bool some = finite && max >= MM_I8_TINY;
    const uint16_t bits = lq_f32_to_bf16(finite ? max / 8 : NAN);
    const float base = lq_bf16_to_f32(bits);
    uint32_t head = some || !finite ? (uint32_t)bits << 16 : 0;
    for (int64_t at = 0, b = 0; at < D; at += P, b++) {
        const int64_t n = D - at < P ? D - at : P;
        if (some) head |= choose(&inv, x + at, n, base) << 4 * b;
        put_codes(row + 4 + at / 2, x + at, n, inv, some);
    }
    memcpy(row, &head, sizeof head);
}
