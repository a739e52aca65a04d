/* kernels/simd/ops_tmpl.h - row operations on 16 lanes; step for step those of kmath.h and ops_ref.c, so
 * that the results are the same bits.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/core/k_ops.h"
#include "kernels/simd/v16.h"

#define VF_POLY(name, ...)                        \
    V16 vf name(vf x)                             \
    {                                             \
        static const float c[] = { __VA_ARGS__ }; \
        enum { N = (int)LQ_COUNT(c) };            \
        vf p = vf_set1(c[N - 1]);                 \
        UNROLL                                    \
        for (int i = N - 2; i >= 0; i--)          \
            p = vf_fma(p, x, vf_set1(c[i]));      \
        return p;                                 \
    }
VF_POLY(poly_exp, KM_EXP_POLY)
VF_POLY(poly_tanh, KM_TANH_POLY)
VF_POLY(poly_erf, KM_ERF_POLY)
VF_POLY(poly_erfc, KM_ERFC_POLY)
VF_POLY(poly_atanh, KM_ATANH_POLY)

V16 vf vf_neg(vf x) { return vf_cast(vi_xor(vi_cast(x), vi_set1(INT32_MIN))); }
V16 vf vf_pow2(vi n) { return vf_cast(vi_sll(vi_add(n, vi_set1(127)), 23)); }

/* p * 2^n, rounded once, for a p of 1/2 to 2 and an integer n. */
V16 vf vf_times_pow2(vf p, vf n)
{
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    vi i = vi_round(n), half = vi_sra(i, 1);
    return vf_mul(vf_mul(p, vf_pow2(half)), vf_pow2(vi_sub(i, half)));
#endif
}
V16 vf vf_exp(vf x)
{
    vf n = vf_rint(vf_mul(x, vf_set1(KM_LOG2E)));
    vf r = vf_fma(n, vf_set1(-KM_LN2_LO), vf_fma(n, vf_set1(-KM_LN2_HI), x));
    vf p = vf_add(vf_fma(vf_mul(r, r), poly_exp(r), r), vf_set1(1));
    p = vf_times_pow2(p, n);
    p = vf_sel(vf_lt(vf_set1(KM_EXP_MAX), x), vf_set1(INFINITY), p);
    return vf_sel(vf_lt(x, vf_set1(KM_EXP_MIN)), vf_set1(0), p);
}

V16 vf vf_tanh(vf x)
{
    vf t = vf_abs(x), s = vf_mul(x, x);
    vf small = vf_fma(vf_mul(x, s), poly_tanh(s), x);
    vf e = vf_add(vf_exp(vf_add(t, t)), vf_set1(1));
    vf large = vf_sign(vf_sub(vf_set1(1), vf_div(vf_set1(2), e)), x);
    return vf_sel(vf_lt(t, vf_set1(KM_TANH_SPLIT)), small, large);
}

V16 vf vf_erf(vf x)
{
    vf t = vf_abs(x), s = vf_mul(x, x);
    vf small = vf_fma(x, poly_erf(s), x);
    vf u = vf_sel(vf_lt(vf_set1(KM_ERF_MAX), t), vf_set1(KM_ERF_MAX), t);
    vf large = vf_sign(vf_sub(vf_set1(1), vf_exp(vf_mul(vf_neg(u), poly_erfc(u)))), x);
    return vf_sel(vf_lt(t, vf_set1(KM_ERF_SPLIT)), small, large);
}

V16 vf vf_act(vf x, k_act_fn f)
{
    vf half = vf_mul(vf_set1(0.5f), x), one = vf_set1(1);
    if (f == ACT_SILU) return vf_div(x, vf_add(one, vf_exp(vf_neg(x))));
    if (f == ACT_GELU) return vf_mul(half, vf_add(one, vf_erf(vf_mul(x, vf_set1(KM_SQRT_HALF)))));
    if (f == ACT_GELU_TANH) {
        vf cube = vf_fma(vf_mul(vf_mul(vf_set1(KM_GELU_B), x), x), x, x);
        return vf_mul(half, vf_add(one, vf_tanh(vf_mul(vf_set1(KM_GELU_A), cube))));
    }
    return vf_sel(vf_lt(x, vf_set1(0)), vf_set1(0), f == ACT_RELU2 ? vf_mul(x, x) : x);
}

/* for (v = each 16 of x[0..n), lanes of them) body */
#define EACH16(i, lanes, n) \
    for (int64_t i = 0, lanes = 16; i < (n) && ((lanes = (n)-i < 16 ? (n)-i : 16), true); i += 16)
V16 vf get(const float *p, int64_t n) { return n == 16 ? vf_load(p) : vf_loadn(p, (int)n); }
V16 void put(float *p, vf v, int64_t n)
{
    if (n == 16)
        vf_store(p, v);
    else
        vf_storen(p, v, (int)n);
}

static inline void tmpl_rmsnorm(float *dst, const float *x, const float *w, float off, int64_t K,
                                float eps)
{
    vf part = vf_set1(0), o = vf_set1(off);
    EACH16(i, n, K)
    {
        vf v = get(x + i, n);
        part = vf_fma(v, v, part);
    }
    vf r = vf_set1(1.0f / sqrtf(vf_sum(part) / (float)K + eps));
    EACH16(i, n, K)
    {
        vf v = vf_mul(get(x + i, n), r);
        if (w) v = vf_mul(v, vf_add(get(w + i, n), o));
        put(dst + i, v, n);
    }
}

static inline void tmpl_layernorm(float *dst, const float *x, const float *w, const float *b,
                                  float off, int64_t K, float eps)
{
    vf part = vf_set1(0), o = vf_set1(off);
    EACH16(i, n, K) part = vf_add(part, get(x + i, n));
    vf mean = vf_set1(vf_sum(part) / (float)K);
    part = vf_set1(0);
    EACH16(i, n, K)
    {
        vf d = vf_sub(get(x + i, n), mean);
        if (n < 16) { /* lanes after the end hold -mean */
            float t[16];
            vf_store(t, d);
            d = vf_loadn(t, (int)n);
        }
        part = vf_fma(d, d, part);
    }
    vf r = vf_set1(1.0f / sqrtf(vf_sum(part) / (float)K + eps));
    EACH16(i, n, K)
    {
        vf v = vf_mul(vf_sub(get(x + i, n), mean), r);
        if (w) v = vf_mul(v, vf_add(get(w + i, n), o));
        if (b) v = vf_add(v, get(b + i, n));
        put(dst + i, v, n);
    }
}

static inline void tmpl_act(float *dst, const float *x, int64_t n, k_act_fn f)
{
#define ACT(fn)                                                     \
    case fn:                                                        \
        EACH16(i, m, n) put(dst + i, vf_act(get(x + i, m), fn), m); \
        break
    switch (f) {
        ACT(ACT_SILU);
        ACT(ACT_GELU);
        ACT(ACT_GELU_TANH);
        ACT(ACT_RELU2);
    default:
        EACH16(i, m, n) put(dst + i, vf_act(get(x + i, m), ACT_RELU), m);
    }
#undef ACT
}

static inline void tmpl_mul(float *dst, const float *x, int64_t n)
{
    EACH16(i, m, n) put(dst + i, vf_mul(get(dst + i, m), get(x + i, m)), m);
}

static inline void tmpl_swiglu_clamped(float *dst, const float *gate, const float *up, int64_t n,
                                       float limit)
{
    vf hi = vf_set1(limit), lo = vf_set1(-limit), one = vf_set1(1);
    EACH16(i, m, n)
    {
        vf g = get(gate + i, m), u = get(up + i, m);
        g = vf_sel(vf_lt(hi, g), hi, g);
        u = vf_sel(vf_lt(hi, u), hi, u);
        u = vf_sel(vf_lt(u, lo), lo, u);
        vf e = vf_exp(vf_neg(vf_mul(vf_set1(KM_SWIGLU_ALPHA), g)));
        put(dst + i, vf_mul(vf_div(g, vf_add(one, e)), vf_add(u, one)), m);
    }
}

static inline void tmpl_softcap(float *x, float cap, int64_t n)
{
    vf c = vf_set1(cap);
    EACH16(i, m, n) put(x + i, vf_mul(c, vf_tanh(vf_div(get(x + i, m), c))), m);
}

static inline void tmpl_exp_minus(float *dst, const float *x, float c, int64_t n)
{
    EACH16(i, m, n) put(dst + i, vf_exp(vf_sub(get(x + i, m), vf_set1(c))), m);
}

V16 vf vf_softplus(vf x)
{
    const vf two = vf_set1(2), e = vf_exp(vf_neg(vf_abs(x))), t = vf_add(e, two), z = vf_div(e, t);
    const vf s = vf_mul(z, z), y = vf_add(z, z);
    vf lost = vf_fnma(z, vf_sub(e, vf_sub(t, two)), vf_fnma(z, t, e));
    lost = vf_div(lost, t);
    const vf log = vf_add(y, vf_fma(vf_mul(y, s), poly_atanh(s), vf_add(lost, lost)));
    return vf_sel(vf_lt(vf_set1(KM_SOFTPLUS_MAX), x), x, vf_add(vf_max(x, vf_set1(0)), log));
}

static inline void tmpl_softplus(float *x, const float *add, int64_t n)
{
    EACH16(i, m, n) put(x + i, vf_softplus(vf_add(get(x + i, m), get(add + i, m))), m);
}

static inline float tmpl_logsumexp(const float *x, int64_t n)
{
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    if (max == -INFINITY || max == INFINITY) return max;
    vf part = vf_set1(0), m = vf_set1(max);
    for (int64_t i = 0; i + 16 <= n; i += 16)
        part = vf_add(part, vf_exp(vf_sub(vf_load(x + i), m)));
    float lanes[16];
    vf_store(lanes, part);
    for (int64_t i = n / 16 * 16; i < n; i++)
        lanes[i % 16] += km_exp(x[i] - max);
    return (float)(km_log(km_sum16(lanes)) + (double)max);
}
