/* calib/gemm.h - dense f32 matrix products over the pool, for backward passes and rounding.
 *
 *     C [M,N] = op(A) op(B) + beta C       op(X) = X or X^T; all row-major, rows ld floats apart
 *
 * C is cut into fixed tiles, each the work of one BLAS call on one thread, so the bytes do not
 * depend on the number of threads. */
#ifndef LLMQ_CALIB_GEMM_H
#define LLMQ_CALIB_GEMM_H

#include "kernels/core/pool.h"

typedef struct {
    const float *p;
    int64_t ld;
    bool t; /* op(X) = X^T */
} gemm_in;

void gemm_run(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
              float beta, pool *p);

/* The tiles of C, for who makes some of them alone: tile i has rows i / across * side .. and columns
 * i % across * side .., at most `side` of both. */
typedef struct {
    int64_t side, across, n;
} gemm_tiles;
gemm_tiles gemm_cut(int64_t M, int64_t N);
/* Tiles first .. end of the product, as gemm_run makes them; the others stay as they are. */
void gemm_some(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
               float beta, int64_t first, int64_t end, pool *p);
/* C [M,M] = x^T x + beta C, x [R,M]: of tiles first .. end those that are not above the diagonal. */
typedef struct {
    float *C;
    const float *x;
    int64_t M, first, end; /* first <= end */
} gemm_square;
/* Of n of them, whose rows are ldc and ldx apart, at once. */
void gemm_lower(const gemm_square *q, int n, int64_t ldc, int64_t ldx, int64_t R, float beta,
                pool *p);
double gemm_lower_part(int64_t M); /* of all tiles */
/* What is above the diagonal of C [M,M], from below it. */
void gemm_mirror(float *C, int64_t ldc, int64_t M);

/* sums[m] = d_m H d_m^T in f64 for the rows of D [M,K]; H [K,K] symmetric. What of H is not on its
 * diagonal is taken once and counts twice: half of a product. G [M,K] is scratch. */
void gemm_quadratic(double *sums, const float *D, float *G, const float *H, int64_t M, int64_t K,
                    pool *p);

#endif
