/* calib/gemm.c - tiles of a product. */
#include "calib/gemm.h"

#include <cblas.h>

/* Large tiles are faster; small ones where large ones are too few to share out. */
enum { TILE = 256, SMALL_TILE = 128, FEW = 16 };

typedef struct {
    float *C;
    int64_t ldc, M, N, K, first;
    gemm_tiles cut;
    gemm_in A, B;
    float beta;
} work;

static int upto(int64_t tile, int64_t left) { return (int)(left < tile ? left : tile); }

static void run_tile(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    const int64_t at = w->first + item, side = w->cut.side;
    const int64_t m = at / w->cut.across * side, n = at % w->cut.across * side;
    cblas_sgemm(CblasRowMajor, w->A.t ? CblasTrans : CblasNoTrans,
                w->B.t ? CblasTrans : CblasNoTrans, upto(side, w->M - m), upto(side, w->N - n),
                (int)w->K, 1, w->A.p + (w->A.t ? m : m * w->A.ld), (int)w->A.ld,
                w->B.p + (w->B.t ? n * w->B.ld : n), (int)w->B.ld, w->beta, w->C + m * w->ldc + n,
                (int)w->ldc);
}

gemm_tiles gemm_cut(int64_t M, int64_t N)
{
    const bool few = lq_ceil_div(M, TILE) * lq_ceil_div(N, TILE) < FEW;
    const int64_t side = few ? SMALL_TILE : TILE, across = lq_ceil_div(N, side);
    return (gemm_tiles){ side, across, lq_ceil_div(M, side) * across };
}

void gemm_some(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
               float beta, int64_t first, int64_t end, pool *p)
{
    work w = { C, ldc, M, N, K, first, gemm_cut(M, N), A, B, beta };
    openblas_set_num_threads(1);
    if (end > first) pool_run(p, end - first, run_tile, &w);
}

typedef struct {
    const gemm_square *q;
    int n;
    int64_t ldc, ldx, R;
    float beta;
} squares;

/* Items: the tiles of one after those of another. */
static void run_square(void *ctx, int64_t item, int thread)
{
    const squares *all = ctx;
    const gemm_square *q = all->q;
    for (; item >= q->end - q->first; q++)
        item -= q->end - q->first;
    const gemm_in x = { q->x, all->ldx, false }, turned = { q->x, all->ldx, true };
    work w = { q->C,   all->ldc, q->M,     q->M, all->R, q->first, gemm_cut(q->M, q->M),
               turned, x,        all->beta };
    const int64_t at = w.first + item;
    if (at % w.cut.across <= at / w.cut.across) run_tile(&w, item, thread);
}

void gemm_lower(const gemm_square *q, int n, int64_t ldc, int64_t ldx, int64_t R, float beta,
                pool *p)
{
    squares all = { q, n, ldc, ldx, R, beta };
    int64_t items = 0;
    for (int i = 0; i < n; i++)
        items += q[i].end - q[i].first;
    openblas_set_num_threads(1);
    if (items > 0) pool_run(p, items, run_square, &all);
}

double gemm_lower_part(int64_t M)
{
    const double across = (double)gemm_cut(M, M).across;
    return (across + 1) / (2 * across);
}

void gemm_mirror(float *C, int64_t ldc, int64_t M)
{
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = m + 1; n < M; n++)
            C[m * ldc + n] = C[n * ldc + m];
}

void gemm_run(float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
              float beta, pool *p)
{
    gemm_some(C, ldc, A, B, M, N, K, beta, 0, gemm_cut(M, N).n, p);
}

/* ---- quadratic forms ---- */
typedef struct {
    double *sums;
    const float *D, *H;
    float *G;
    int64_t M, K, rows; /* rows of D that an item takes */
} quadratic;

/* A tile of G = D H', H' the lower triangle of H, twice, with the tiles on the diagonal once and
 * whole; the longest items come first. */
static void quadratic_tile(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const quadratic *q = ctx;
    const int64_t K = q->K, down = lq_ceil_div(q->M, q->rows);
    const int64_t m = item % down * q->rows, k = item / down * TILE;
    const int rows = upto(q->rows, q->M - m), cols = upto(TILE, K - k), rest = (int)(K - k) - cols;
    const float *d = q->D + m * K + k, *h = q->H + k * K + k;
    float *g = q->G + m * K + k;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, cols, 1, d, (int)K, h,
                (int)K, 0, g, (int)K);
    if (rest)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, rest, 2, d + cols,
                    (int)K, h + cols * K, (int)K, 1, g, (int)K);
}

static void quadratic_row(void *ctx, int64_t m, int thread)
{
    (void)thread;
    const quadratic *q = ctx;
    const float *d = q->D + m * q->K, *g = q->G + m * q->K;
    double sum = 0;
    for (int64_t k = 0; k < q->K; k++)
        sum += (double)d[k] * (double)g[k];
    q->sums[m] = sum;
}

void gemm_quadratic(double *sums, const float *D, float *G, const float *H, int64_t M, int64_t K,
                    pool *p)
{
    const bool few = lq_ceil_div(M, TILE) * lq_ceil_div(K, TILE) < FEW;
    quadratic q = { sums, D, H, G, M, K, few ? SMALL_TILE : TILE };
    openblas_set_num_threads(1);
    pool_run(p, lq_ceil_div(M, q.rows) * lq_ceil_div(K, TILE), quadratic_tile, &q);
    pool_run(p, M, quadratic_row, &q);
}
