/* quantize/methods/grid.h - the uniform grid of one group of weights: its scale and zero point, and the
 * code of a weight. RTN, GPTQ and AWQ share it.
 *
 *     w ~ scale * (code - zero),   code = clamp(round(w / scale) + zero, 0, M),   M = 2^bits - 1
 *
 * round is to the nearest, halves to even. The scale is rounded to the type it is stored in before
 * any code is chosen, so that the codes are the best ones for what a reader will see.
 *
 * The ends of the grid for a group with values in lo..hi (0 included):
 *   GRID_ASYM      scale = (hi - lo) / M, zero = round(-lo / scale), an integer in 0..M
 *   GRID_SYM       a = max(|lo|, |hi|), scale = 2a / M, zero = 2^(bits-1): the top end loses half a
 *                step (GPTQ's rule; scales are positive)
 *   GRID_SYM_FULL  a = the value of largest magnitude, scale = -a / 2^(bits-1), zero = 2^(bits-1):
 *                code 0 is exactly a; negative scales occur
 * A group of zeros gets scale 1 and codes that give exactly 0.
 *
 * With `search` narrower ends are tried too, and the candidate with the least
 * sum_k imp[k] (w - q)^2 wins; imp = diag(H) is the mean square of each input. With `refit` the
 * scale of the winner is then fitted to its codes by least squares, while that lowers the sum.
 * Source: arXiv:2210.17323 (rules), arXiv:2309.05516 (full range), llama.cpp's importance matrix.
 */
#ifndef LLMQ_QUANTIZE_METHODS_GRID_H
#define LLMQ_QUANTIZE_METHODS_GRID_H

#include "formats/tensor/blocks.h"

typedef enum { GRID_ASYM, GRID_SYM, GRID_SYM_FULL } grid_mode;

/* What the place where grids are stored allows. */
typedef struct {
    bool narrow; /* symmetric grids with positive scales only (GRID_SYM) */
    bool
        zero_from_one; /* zero points from 1 on: the first version of GPTQ's files stores one less */
} grid_limits;
#define GRID_FREE ((grid_limits){ 0 })

typedef struct {
    int bits; /* 2, 3, 4, 8 */
    grid_mode mode;
    bool zero_from_one;   /* GRID_ASYM: as grid_limits has it */
    lq_dtype scale_dtype; /* f16, bf16 or f32 */
    bool search;
    bool refit; /* with search, in grid_fit */
    const blk_type
        *blocks; /* grids of GGUF's blocks (row_grid.h): of the others only bits, the type's, and
                               search count; NULL: as above */
    const int8_t
        *table; /* [1 << bits], rising: what codes stand for, times the scale; NULL: code - zero */
    float tensor_scale; /* NVFP4: that scales of groups are divided by */
    const float
        *floats; /* QT_E4M3: its scales [groups of rows][groups of inputs], which stay; else NULL */
    int64_t float_rows; /* that share them; 0: all */
    const struct lattice *
        points; /* of blocks whose codes are points of a lattice (lattice.h); NULL: each is its own */
} grid_spec;

typedef struct {
    float scale, zero; /* zero is a whole number, but of blocks */
} grid_param;

typedef struct {
    float lo, hi; /* lo <= 0 <= hi */
} grid_range;

/* f16, or f32 where scales for weights up to `absmax` would overflow it or fall below its normal
 * numbers. */
lq_dtype grid_scale_dtype(float absmax, int bits);

grid_range grid_find_range(const float *w, int64_t n);
/* Candidate 0 is the plain rule; the others draw the ends in. A search compares them all. */
int grid_n_candidates(const grid_spec *s);
grid_param grid_candidate(const grid_spec *s, grid_range r, int i);
/* The grid of one group; imp [n] may be NULL (all inputs count alike). */
grid_param grid_fit(const grid_spec *s, const float *w, const float *imp, int64_t n);

/* Halves to even for |x| < 2^22, which holds for every x that is then clamped to a code. */
static inline float grid_round(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum keeps no fraction bits */
    return (x + magic) - magic;
}
static inline float grid_code(float w, grid_param p, float max_code)
{
    float x = w / p.scale, lo = -p.zero, hi = max_code - p.zero;
    x = x < lo ? lo : x > hi ? hi : x;
    return grid_round(x) + p.zero;
}
static inline float grid_value(float code, grid_param p) { return p.scale * (code - p.zero); }
static inline float grid_max_code(int bits) { return (float)((1 << bits) - 1); }

#endif
