/* quantize/methods/cholesky.h - the factor of an inverse: U upper triangular with inverse(H) = U^T U.
 *
 * H = R R^T with R upper, from the last row up, and U = inverse(R): one factorization and one
 * inversion where the textbook has two and one. In tiles of CHOLESKY_TILE rows and columns, in f64,
 * spread over the pool; each tile takes its sums in one order, so threads do not change a bit.
 * Memory: the upper half of the tiles, 4 K^2 bytes (3.3 GB at K = 28672), on a device as many. */
#ifndef LLMQ_QUANTIZE_METHODS_CHOLESKY_H
#define LLMQ_QUANTIZE_METHODS_CHOLESKY_H

#include "kernels/core/pool.h"
#include "kernels/device.h"

enum { CHOLESKY_TILE = 128 };

/* Bytes that cholesky_upper takes while it runs. */
size_t cholesky_bytes(int64_t K);
/* U [K,K] f32 of P H P^T + add I, P the order `perm`: row i is input perm[i]. A diagonal that is
 * not above 0 counts as 1. H [K,K] f32, symmetric, finite. on: the products between tiles are made there,
 * where there is room for them, with the same bits (dev_minus_args); NULL: here. Errors: LQ_ENOMEM;
 * LQ_ECHECK: not positive definite (U is then not written); those of the device. */
lq_status cholesky_upper(float *U, const float *H, const int32_t *perm, int64_t K, double add,
                         dev *on, pool *p, lq_err *err);

#endif
