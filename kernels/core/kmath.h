/* kernels/core/kmath.h - exp, tanh, erf in f32: range reductions and polynomials, once in plain C here
 * and once in vectors (v16.h) with the same steps, so that they agree to the bit.
 *
 * Coefficients are our own fits (weighted minimax by Lawson's iteration in double, then rounded).
 * Errors against the exact value, checked in tests/unit/test_ops.c over the whole range:
 *   exp   1.5 ulp; 0 where the result is below the least normal number, Inf above the largest
 *   tanh  3 ulp;  erf  3 ulp;  softplus  2e-7 of it (test_scan.c) */
#ifndef LLMQ_KERNELS_CORE_KMATH_H
#define LLMQ_KERNELS_CORE_KMATH_H

#include "base/base.h"

#define KM_LOG2E 0x1.715476p+0f
#define KM_LN2_HI 0x1.62e400p-1f /* 16 bits: n * LN2_HI is exact for |n| <= 151 */
#define KM_LN2_LO 0x1.7f7d1cp-20f
#define KM_EXP_MAX 0x1.62e42ep+6f  /* above: Inf */
#define KM_EXP_MIN -0x1.5d589ep+6f /* below: 0 */
/* exp(r) = 1 + r + r^2 P(r), |r| <= ln2/2; error 0.06 ulp before rounding */
#define KM_EXP_POLY 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239e2p-7f, 0x1.6a2434p-10f
/* tanh(x) = x + x s P(s), s = x^2, |x| < 0.625; beyond: 1 - 2 / (exp(2|x|) + 1) */
#define KM_TANH_POLY \
    -0x1.555534p-2f, 0x1.110768p-3f, -0x1.b84448p-5f, 0x1.5256d8p-6f, -0x1.76ac1ap-8f
#define KM_TANH_SPLIT 0.625f
/* erf(x) = x + x P(s), |x| < 0.9375; beyond: 1 - exp(-t P(t)), t = |x| */
#define KM_ERF_POLY                                                                   \
    0x1.06eba8p-3f, -0x1.812742p-2f, 0x1.ce2df4p-4f, -0x1.b80cb4p-6f, 0x1.54b5e4p-8f, \
        -0x1.a99ef6p-11f, 0x1.5ac332p-14f
#define KM_ERFC_POLY                                                                 \
    0x1.20e5f0p+0f, 0x1.457f6ep-1f, 0x1.af0c46p-4f, -0x1.76c334p-6f, 0x1.a4ba8ep-9f, \
        -0x1.bf7ad4p-13f
#define KM_ERF_SPLIT 0.9375f
#define KM_ERF_MAX 4.0f /* erf is 1 from 3.92 on; the fit ends at 4 */
/* atanh(z) = z + z s P(s), s = z^2 <= 1/9 */
#define KM_ATANH_POLY 0x1.555558p-2f, 0x1.9996a8p-3f, 0x1.250974p-3f, 0x1.b6d666p-4f, 0x1.f1afe2p-4f
#define KM_SOFTPLUS_MAX 20.0f
#define KM_SQRT_HALF 0x1.6a09e6p-1f
#define KM_GELU_A 0x1.988454p-1f /* sqrt(2/pi) */
#define KM_GELU_B 0.044715f

LQ_INLINE float km_poly(const float *c, int n, float x)
{
    float p = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = fmaf(p, x, c[i]);
    return p;
}

LQ_INLINE float km_pow2(int n) /* -126 <= n <= 127 */
{
    uint32_t u = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

LQ_INLINE float km_exp(float x)
{
    static const float c[] = { KM_EXP_POLY };
    if (x != x) return x;
    if (x > KM_EXP_MAX) return INFINITY;
    if (x < KM_EXP_MIN) return 0.0f;
    float n = rintf(x * KM_LOG2E);
    float r = fmaf(n, -KM_LN2_LO, fmaf(n, -KM_LN2_HI, x));
    float p = fmaf(r * r, km_poly(c, LQ_COUNT(c), r), r) + 1.0f;
    int half = (int)n >> 1; /* two steps: 2^128 is no float */
    return p * km_pow2(half) * km_pow2((int)n - half);
}

LQ_INLINE float km_tanh(float x)
{
    static const float c[] = { KM_TANH_POLY };
    float t = fabsf(x), s = x * x;
    if (t < KM_TANH_SPLIT) return fmaf(x * s, km_poly(c, LQ_COUNT(c), s), x);
    return copysignf(1.0f - 2.0f / (km_exp(t + t) + 1.0f), x);
}

LQ_INLINE float km_erf(float x)
{
    static const float c[] = { KM_ERF_POLY }, d[] = { KM_ERFC_POLY };
    float t = fabsf(x), s = x * x;
    if (t < KM_ERF_SPLIT) return fmaf(x, km_poly(c, LQ_COUNT(c), s), x);
    if (t > KM_ERF_MAX) t = KM_ERF_MAX;
    return copysignf(1.0f - km_exp(-t * km_poly(d, LQ_COUNT(d), t)), x);
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|) <= 1, and that is 2 atanh(z), z = e / (2 + e), of
 * which what its division lost is made good; x above KM_SOFTPLUS_MAX, as torch has it. */
LQ_INLINE float km_softplus(float x)
{
    static const float c[] = { KM_ATANH_POLY };
    if (x > KM_SOFTPLUS_MAX) return x;
    const float e = km_exp(-fabsf(x)), t = e + 2, z = e / t, s = z * z, y = z + z;
    const float lost = fmaf(-z, e - (t - 2), fmaf(-z, t, e)) / t;
    return (x > 0 ? x : 0) + (y + fmaf(y * s, km_poly(c, LQ_COUNT(c), s), lost + lost));
}

LQ_INLINE float km_silu(float x) { return x / (1.0f + km_exp(-x)); }
LQ_INLINE float km_gelu(float x) { return 0.5f * x * (1.0f + km_erf(x * KM_SQRT_HALF)); }
LQ_INLINE float km_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + km_tanh(KM_GELU_A * fmaf(KM_GELU_B * x * x, x, x)));
}

/* ACT_SWIGLU_CLAMPED of ops.h. NaN stays NaN. */
#define KM_SWIGLU_ALPHA 1.702f
LQ_INLINE float km_swiglu_clamped(float gate, float up, float limit)
{
    float g = limit < gate ? limit : gate, u = limit < up ? limit : up;
    u = u < -limit ? -limit : u;
    return g / (1.0f + km_exp(-(KM_SWIGLU_ALPHA * g))) * (u + 1.0f);
}

/* ACT_SILU_LIMITED, likewise. */
LQ_INLINE float km_silu_limited(float gate, float up, float limit)
{
    const float u = limit < up ? limit : up;
    return km_silu(limit < gate ? limit : gate) * (u < -limit ? -limit : u);
}

/* ACT_SILU_CAPPED, likewise. */
LQ_INLINE float km_silu_capped(float gate, float up, float limit)
{
    const float g = km_silu(gate), u = limit < up ? limit : up;
    return (limit < g ? limit : g) * (u < -limit ? -limit : u);
}

/* Pairwise: lanes i and i+8, then i+4, i+2, i+1. */
LQ_INLINE float km_sum16(const float *v)
{
    float t[8];
    for (int i = 0; i < 8; i++)
        t[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; i++)
        t[i] += t[i + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* log of a positive normal f32, in double: m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1))
 * by its series; error below 1e-13. */
LQ_INLINE double km_log(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 23) - 127;
    u = (u & 0x7fffffu) | 0x3f800000u;
    float f;
    memcpy(&f, &u, sizeof f);
    double m = (double)f;
    if (m > 1.4142135623730951) m *= 0.5, e++;
    double z = (m - 1) / (m + 1), s = z * z, p = 0;
    for (int k = 17; k >= 1; k -= 2)
        p = p * s + 1.0 / k;
    return 2 * z * p + e * 0.6931471805599453;
}

#endif
