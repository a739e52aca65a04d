/* calib/gemm.c - tiles of a product. */
#include "calib/gemm.h"

#include <cblas.h>

enum { TILE = 256 };

typedef struct {
    float *C;
    int64_t ldc, M, N, K, across; /* across: tiles along N */
    gemm_in A, B;
    float beta;
} work;

static int64_t upto(int64_t left) { return left < TILE ? left : TILE; }

static void run_tile(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    int64_t m = item / w->across * TILE, n = item % w->across * TILE;
    cblas_sgemm(CblasRowMajor, w->A.t ? CblasTrans : CblasNoTrans,
                w->B.t ? CblasTrans : CblasNoTrans, (int)upto(w->M - m), (int)upto(w->N - n),
                (int)w->K, 1, w->A.p + (w->A.t ? m : m * w->A.ld), (int)w->A.ld,
                w->B.p + (w->B.t ? n * w->B.ld : n), (int)w->B.ld, w->beta, w->C + m * w->ldc + n,
                (int)w->ldc);
}

void gemm_run(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
              float beta, pool *p)
{
    work w = { C, ldc, M, N, K, lq_ceil_div(N, TILE), A, B, beta };
    openblas_set_num_threads(1);
    pool_run(p, lq_ceil_div(M, TILE) * w.across, run_tile, &w);
}
