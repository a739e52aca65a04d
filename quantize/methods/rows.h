/* quantize/methods/rows.h - the inner loops of rounding, on runs of weights.
 *
 * Once in plain C (rows_ref.c) and once in 256-bit registers (rows_avx2.c), chosen as the kernels
 * are (k_name: also by --kernels). Every lane does what the plain text does, in its order, so both
 * give the same bits. Weights are finite f32. */
#ifndef LLMQ_QUANTIZE_METHODS_ROWS_H
#define LLMQ_QUANTIZE_METHODS_ROWS_H

#include "quantize/methods/grid.h"

/* Grids w ~ scale * v + least, v a whole number in lo..hi or, where there is a table of 16, one of its values, with
 * mid between them; and a weight's importance (imp NULL: 1). */
typedef struct {
    float lo, hi;
    const float *mid, *table;
} rows_grid;
typedef struct {
    float scale, least;
} rows_line;
/* Sums over weights w and their nearest v: importance times (w - scale v - least)^2, v^2, v, w v, w, 1. */
typedef struct {
    float e, vv, v1, wv, w1, one;
} rows_sums;

/* A step of codes that are trained, all of one group: the weight at code + off, |off| <= 1/2, moves by Adam
 * (moments m, v; fix1, fix2 correct their start) against dW * scale. */
typedef struct {
    float scale, rate, beta1, beta2, fix1, fix2;
    int top; /* the largest code */
} rows_adam;

typedef struct {
    const char *name; /* of the family, as in k_list */
    /* as lq_to_f32, of finite numbers */
    void (*to_f32)(float *dst, const void *src, lq_dtype d, size_t n);
    /* grid_find_range */
    grid_range (*range)(const float *w, int64_t n);
    float (*absmax)(const float *w, int64_t n);
    /* codes[i] = grid_code(w[i], p, max_code) */
    void (*codes)(uint8_t *codes, const float *w, int64_t n, grid_param p, float max_code);
    /* codes[i] = round(w[i] * 127 / absmax) in f64, absmax > 0 */
    void (*codes_i8)(int8_t *codes, const float *w, int64_t n, float absmax);
    /* as qt_pack_row with 4 bits: first code low */
    void (*pack4)(uint8_t *dst, const uint8_t *codes, int64_t n);
    /* Codes of 4 bits through a table: code[how many of mid[15], rising, are below w[i] * inv],
     * the first of two in the high half of a byte; after an odd n as if a 0 followed. */
    void (*pack_table)(uint8_t *dst, const float *w, int64_t n, float inv, const float mid[15],
                       const uint8_t code[16]);
    /* For each of `lines` lines; n a multiple of 8: eight running sums of each, added in pairs */
    void (*sums)(rows_sums *out, const float *w, const float *imp, int64_t n, const rows_grid *g,
                 const rows_line *line, int lines);
    /* Of n points, a multiple of 8, v [dim][n], dim 4 or 8: lines of their errors, B[p] = sum_i imp[i] v[i][p]^2 and
     * A[p] = 2 sum_i y[i] v[i][p] */
    void (*lines)(float *A, float *B, const float *v, int dim, int64_t n, const float *y,
                  const float *imp);
    /* The first p with the least s B[p] - A[p]; n a multiple of 8 */
    int (*lowest_line)(const float *A, const float *B, int64_t n, float s);
    /* The first point with the least sum_i v[i] (m[i][i] v[i] - b[i] + sum_l>i m[i][l] v[l]); m [dim][dim] */
    int (*lowest_point)(const float *v, int dim, int64_t n, const float *m, const float *b);
    /* y[i] -= a * x[i], rounded twice; y and x do not overlap */
    void (*subtract)(float *y, float a, const float *x, int64_t n);
    /* w[i] = scale * (codes[i] - zero) */
    void (*values)(float *w, const uint8_t *codes, int64_t n, grid_param p);
    /* One step; a weight beyond half a step takes the next code */
    void (*train)(uint8_t *code, float *off, float *m, float *v, const float *dW, int64_t n,
                  const rows_adam *a);
    /* sum (a - b)^2: f32 sums of up to 256, added in f64 */
    double (*square_error)(const float *a, const float *b, int64_t n);
} qz_rows_ops;

const qz_rows_ops *qz_rows_get(void); /* of the kernels in use */

extern const qz_rows_ops qz_rows_ref;
#if defined(__x86_64__)
extern const qz_rows_ops qz_rows_avx2; /* for later families too: memory is the limit */
#endif

#endif
