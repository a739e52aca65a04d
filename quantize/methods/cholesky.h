/* quantize/methods/cholesky.h - the factor of an inverse: U upper triangular with inverse(H) = U^T U.
 *
 * H = R R^T with R upper, from the last row up, and U = inverse(R): one factorization and one
 * inversion where the textbook has two and one. In tiles of CHOLESKY_TILE rows and columns, in f64,
 * spread over the pool; each tile takes its sums in one order, so threads do not change a bit. Nor do ranks, which have
 * rows of tiles each: N of them receive 6 K^2 (1 - 1/N) bytes, and do 1/N of the work.
 * Memory: the upper half of the tiles, 4 K^2 bytes (3.3 GB at K = 28672), on a device as many. */
#ifndef LLMQ_QUANTIZE_METHODS_CHOLESKY_H
#define LLMQ_QUANTIZE_METHODS_CHOLESKY_H

#include "base/comm.h"
#include "kernels/core/pool.h"
#include "kernels/device.h"

enum {
    CHOLESKY_TILE = 128,
    CHOLESKY_SHARED =
        2048 /* inputs from which on ranks share one: K^3 of work against K^2 to be sent, a message or two for
                              each tile of the diagonal */
};

/* Bytes that cholesky_upper takes while it runs. */
size_t cholesky_bytes(int64_t K);
/* Which of `ranks` has a row of tiles? Rows have 1, 2, 3, ... tiles from below: dealt out to and fro, each rank has about as
 * many. */
static inline int cholesky_owner(int64_t row, int ranks)
{
    const int i = (int)(row % (2 * ranks));
    return i < ranks ? i : 2 * ranks - 1 - i;
}
/* U [K,K] f32 of P H P^T + add I, P the order `perm`: row i is input perm[i]. A diagonal that is
 * not above 0 counts as 1. H [K,K] f32, symmetric, finite. on: the products between tiles are made there,
 * where there is room for them, with the same bits (dev_minus_args); NULL: here. ranks: they all call this with the same
 * H, and have the same U; NULL: each by itself. Errors: LQ_ENOMEM; LQ_ECHECK: not positive definite (U is then not
 * written); those of the device, of comm.h. */
lq_status cholesky_upper(float *U, const float *H, const int32_t *perm, int64_t K, double add,
                         dev *on, comm *ranks, pool *p, lq_err *err);

#endif
