/* calib/gemm.c - tiles of a product. */
#include "calib/gemm.h"

#include <cblas.h>

/* Large tiles are faster; small ones where large ones are too few to share out. */
enum { TILE = 256, SMALL_TILE = 128, FEW = 16 };

typedef struct {
    float *C;
    int64_t ldc, M, N, K, tile, across; /* across: tiles along N */
    gemm_in A, B;
    float beta;
} work;

static int upto(int64_t tile, int64_t left) { return (int)(left < tile ? left : tile); }

static void run_tile(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    int64_t m = item / w->across * w->tile, n = item % w->across * w->tile;
    cblas_sgemm(CblasRowMajor, w->A.t ? CblasTrans : CblasNoTrans,
                w->B.t ? CblasTrans : CblasNoTrans, upto(w->tile, w->M - m),
                upto(w->tile, w->N - n), (int)w->K, 1, w->A.p + (w->A.t ? m : m * w->A.ld),
                (int)w->A.ld, w->B.p + (w->B.t ? n * w->B.ld : n), (int)w->B.ld, w->beta,
                w->C + m * w->ldc + n, (int)w->ldc);
}

void gemm_run(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
              float beta, pool *p)
{
    const bool few = lq_ceil_div(M, TILE) * lq_ceil_div(N, TILE) < FEW;
    const int64_t tile = few ? SMALL_TILE : TILE;
    work w = { C, ldc, M, N, K, tile, lq_ceil_div(N, tile), A, B, beta };
    openblas_set_num_threads(1);
    pool_run(p, lq_ceil_div(M, tile) * w.across, run_tile, &w);
}
