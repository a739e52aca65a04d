/* quantize/methods/grid.h - the uniform grid of one group of weights: its scale and zero point, and the
 * code of a weight. RTN, GPTQ and AWQ share it.
 *
 *     w ~ scale * (code - zero),   code = clamp(round(w / scale) + zero, 0, M),   M = 2^bits - 1
 *
 * round is to the nearest, halves to even. The scale is rounded to the type it is stored in before
 * any code is chosen, so that the codes are the best ones for what a reader will see.
 *
 * How the ends of the grid are laid on a group whose values lie in lo..hi (0 included):
 *   UG_ASYM      scale = (hi - lo) / M, zero = round(-lo / scale), an integer in 0..M
 *   UG_SYM       a = max(|lo|, |hi|), scale = 2a / M, zero = 2^(bits-1): the top end loses half a
 *                step (GPTQ's rule; scales are positive)
 *   UG_SYM_FULL  a = the value of largest magnitude, scale = -a / 2^(bits-1), zero = 2^(bits-1):
 *                code 0 is exactly a; negative scales occur
 * A group of zeros gets scale 1 and codes that give exactly 0.
 *
 * With `search` the ends are also tried drawn in, and the candidate with the least
 * sum_k imp[k] (w - q)^2 wins; imp = diag(H) is the mean square of each input. With `refit` the
 * scale of the winner is then fitted to its codes by least squares, while that lowers the sum.
 * Source: arXiv:2210.17323 (rules), arXiv:2309.05516 (full range), llama.cpp's importance matrix.
 */
#ifndef LLMQ_QUANTIZE_METHODS_GRID_H
#define LLMQ_QUANTIZE_METHODS_GRID_H

#include "base/base.h"

typedef enum { UG_ASYM, UG_SYM, UG_SYM_FULL } ug_mode;

typedef struct {
    int bits; /* 2, 3, 4, 8 */
    ug_mode mode;
    lq_dtype scale_dtype; /* f16, bf16 or f32 */
    bool search;
    bool refit; /* with search, in ug_fit */
} ug_spec;

typedef struct {
    float scale, zero; /* zero is a whole number */
} ug_param;

typedef struct {
    float lo, hi; /* lo <= 0 <= hi */
} ug_range;

/* f16, or f32 where scales for weights up to `absmax` would overflow it or fall below its normal
 * numbers. */
lq_dtype ug_scale_dtype(float absmax, int bits);

ug_range ug_find_range(const float *w, int64_t n);
/* Candidate 0 is the plain rule; the others draw the ends in. A search compares them all. */
int ug_n_candidates(const ug_spec *s);
ug_param ug_candidate(const ug_spec *s, ug_range r, int i);
/* The grid of one group; imp [n] may be NULL (all inputs count alike). */
ug_param ug_fit(const ug_spec *s, const float *w, const float *imp, int64_t n);

/* Halves to even for |x| < 2^22, which holds for every x that is then clamped to a code. */
static inline float ug_round(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum keeps no fraction bits */
    return (x + magic) - magic;
}
static inline float ug_code(float w, ug_param p, float max_code)
{
    float x = w / p.scale, lo = -p.zero, hi = max_code - p.zero;
    x = x < lo ? lo : x > hi ? hi : x;
    return ug_round(x) + p.zero;
}
static inline float ug_value(float code, ug_param p) { return p.scale * (code - p.zero); }
static inline float ug_max_code(int bits) { return (float)((1 << bits) - 1); }

#endif
