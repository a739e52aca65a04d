/* kernels/ops.h - the small operations of a transformer, on rows of f32, and the choice of kernels.
 *
 * Row operations take T rows and run on the calling thread; the caller splits rows over the pool. A
 * row's result never depends on the other rows. Sums over K use 16 interleaved partial sums added
 * pairwise at the end, in every instruction set alike. exp, tanh, erf are our own polynomials: no
 * libm in results. */
#ifndef LLMQ_KERNELS_OPS_H
#define LLMQ_KERNELS_OPS_H

#include "kernels/core/operands.h"

LQ_C_BEGIN

/* Choose the kernels, once, before anything runs. want, of --kernels: NULL or "auto": the fastest
 * here; else a name ("ref", "avx2", "avx512", "vnni", "amx", "bf16", "neon", "neon-dot"): that
 * family and the ones before it. LQ_EUSAGE names what is available, and says of a family of
 * another processor that it is one. */
lq_status k_init(const char *want, lq_err *err);
/* The same for one of several users of a process: until it calls k_release the kernels stay, and to
 * ask for others is LQ_EBUSY, of k_init too. Any thread. */
lq_status k_hold(const char *want, lq_err *err);
void k_release(void);
const char *k_name(void); /* of the fastest family in use */
const char *k_list(void); /* "ref avx2 avx512 ..." usable here */

/* dst[t][k] = x / sqrt(mean(x^2) + eps) * (w + w_offset); dst may be x. w NULL: 1. */
void k_rmsnorm(float *dst, int64_t ldd, const float *x, int64_t ldx, const float *w, float w_offset,
               int64_t T, int64_t K, float eps);
/* dst = (x - mean) / sqrt(var + eps) * (w + w_offset) + b; w, b may be NULL. */
void k_layernorm(float *dst, int64_t ldd, const float *x, int64_t ldx, const float *w,
                 const float *b, float w_offset, int64_t T, int64_t K, float eps);
/* In place on H heads of D: the first R dims of each head are rotated by the row's angles.
 * cos, sin: [R/2] for this row. half: pairs (i, i+R/2); else pairs (2i, 2i+1). */
void k_rope(float *x, int64_t H, int64_t D, int64_t R, const float *cos, const float *sin,
            bool half);
void k_act(float *x, int64_t n, k_act_fn f); /* x = f(x); none with a limit */
/* f(gate) * up; ACT_SWIGLU_CLAMPED, limit L: g sigmoid(1.702 g) * (u + 1), g = min(gate, L),
 * u = min(max(up, -L), L); ACT_SILU_LIMITED: g sigmoid(g) u of the same;
 * ACT_SILU_CAPPED: min(gate sigmoid(gate), L) u. dst may be gate or up. */
void k_act_mul(float *dst, const float *gate, const float *up, int64_t n, k_act_fn f, float limit);
void k_add(float *dst, const float *x, int64_t n);
void k_scale(float *x, float s, int64_t n);
void k_clamp(float *x, float limit, int64_t n); /* to -limit..limit */
void k_softcap(float *x, float cap, int64_t n); /* cap * tanh(x / cap) */
float k_exp(float x);
void k_exp_minus(float *dst, const float *x, float c, int64_t n); /* exp(x - c); dst may be x */
/* max, and log(sum(exp(x - max))) + max, in a fixed order. */
float k_logsumexp(const float *x, int64_t n);

LQ_C_END

#endif
