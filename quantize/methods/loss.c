/* quantize/methods/loss.c - errors of a rounded weight, by tiles of rows. */
#include "quantize/methods/loss.h"

#include <math.h>
#include <stdlib.h>

#include "calib/gemm.h"
#include "formats/tensor/finite.h"
#include "quantize/methods/rows.h"

enum {
    ROWS = 32,                    /* of a tile */
    TILES_WITH_H = LOSS_ROWS / 32 /* whose differences are multiplied with H together */
};

typedef struct {
    const qt_tensor *q;
    const void *W;
    lq_dtype d;
    const float *H;
    qz_fold fold;
    double *square, *plain, *loss; /* per tile; likewise of what H is applied to; per row */
    float *e, *g; /* [rows_at_once][K] each: with H of the tiles from `first` on, else a
                              tile for each thread */
    int64_t first;
} work;

static int64_t rows_at_once(int64_t N, bool h, int threads)
{
    if (!h) return (int64_t)threads * ROWS;
    return N < LOSS_ROWS ? (int64_t)lq_round_up((size_t)N, ROWS) : LOSS_ROWS;
}

size_t qz_loss_bytes(int64_t N, int64_t K, bool h, int threads)
{
    return 2 * (size_t)(rows_at_once(N, h, threads) * K) * sizeof(float);
}

/* Rows n0 .. n1 of W and of what they became. */
static void read_rows(float *w, float *q, const work *c, int64_t n0, int64_t n1)
{
    const size_t K = (size_t)c->q->K, elem = lq_dtype_bytes(c->d);
    qt_dequant(q, c->q, n0, n1);
    qz_rows_get()->to_f32(w, (const uint8_t *)c->W + (size_t)n0 * K * elem, c->d,
                          (size_t)(n1 - n0) * K);
}

/* Of the weights alone, a few rows at a time while they lie in the cache. Infinite where f32 cannot
 * hold the squares. */
static double plain_squares(const work *c, int64_t n0, int64_t n1, float *w, float *q)
{
    enum { NEAR = 1 << 14 }; /* weights: 128 KiB of both */
    const int64_t K = c->q->K, few = K < NEAR ? NEAR / K : 1;
    double square = 0;
    for (int64_t n = n0, rows; n < n1; n += rows) {
        rows = n1 - n < few ? n1 - n : few;
        read_rows(w, q, c, n, n + rows);
        square += qz_rows_get()->square_error(w, q, rows * K);
    }
    return square;
}

static void run_tile(void *ctx, int64_t i, int thread)
{
    const work *c = ctx;
    const int64_t item = c->first + i, place = c->H ? i : thread;
    int64_t N = c->q->N, K = c->q->K, n0 = item * ROWS, rows = N - n0 < ROWS ? N - n0 : ROWS;
    float *e = c->e + place * ROWS * K, *g = c->g + place * ROWS * K;
    double square = 0, plain = 0;
    if (!c->H && !c->fold.cols && !c->fold.rows) {
        c->square[item] = plain_squares(c, n0, n0 + rows, g, e);
        if (isfinite(c->square[item])) return;
    }
    read_rows(g, e, c, n0, n0 + rows);
    for (int64_t j = 0; j < rows * K; j++) {
        e[j] = g[j] - e[j];
        double x = (double)e[j];
        if (c->fold.cols) x /= (double)c->fold.cols[j % K];
        if (c->fold.rows) x *= (double)c->fold.rows[n0 + j / K];
        square += x * x;
        if (c->fold.inputs) e[j] *= c->fold.inputs[j % K];
        plain += (double)e[j] * (double)e[j];
    }
    c->square[item] = square;
    c->plain[item] = plain;
}

lq_status qz_loss_of(qz_loss *out, const qt_tensor *q, const void *W, lq_dtype d, const float *H,
                     qz_fold fold, pool *p, lq_err *err)
{
    const int64_t N = q->N, K = q->K, tiles = lq_ceil_div(N, ROWS);
    const int threads = pool_threads(p);
    work c = { .q = q, .W = W, .d = d, .H = H, .fold = fold };
    c.square = calloc((size_t)(2 * tiles + N), sizeof *c.square);
    c.e = malloc(qz_loss_bytes(N, K, H, threads));
    lq_status s = LQ_OK;
    if (!c.square || !c.e) {
        s = lq_fail(err, LQ_ENOMEM, "no memory to measure a weight of %lld inputs", (long long)K);
    } else {
        double square = 0, loss = 0;
        c.g = c.e + rows_at_once(N, H, threads) * K;
        c.plain = c.square + tiles;
        c.loss = c.plain + tiles;
        for (int64_t n; c.first < tiles; c.first += n) {
            const int64_t n0 = c.first * ROWS;
            n = H && tiles - c.first > TILES_WITH_H ? TILES_WITH_H : tiles - c.first;
            pool_run(p, n, run_tile, &c);
            if (H)
                gemm_quadratic(c.loss + n0, c.e, c.g, H, N - n0 < LOSS_ROWS ? N - n0 : LOSS_ROWS, K,
                               p);
        }
        for (int64_t i = 0; i < N && H; i++)
            loss += c.loss[i];
        for (int64_t i = 0; i < tiles; i++) {
            square += c.square[i];
            loss -= fold.shrink * c.plain[i];
        }
        out->rmse = sqrt(square / ((double)N * (double)K));
        out->loss = !H ? (double)NAN : loss < 0 ? 0 : loss; /* below zero is rounding */
    }
    free(c.e);
    free(c.square);
    return s;
}

/* ---- largest magnitude ---- */
enum { PIECE = 1 << 16 };

typedef struct {
    const void *W;
    lq_dtype d;
    int64_t n;
    struct {
        float absmax;
        int64_t bad; /* first index that is not finite; -1 */
    } * piece;
} scan;

static void run_scan(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const scan *c = ctx;
    const int64_t from = item * PIECE, end = from + PIECE < c->n ? from + PIECE : c->n;
    const size_t elem = lq_dtype_bytes(c->d);
    const uint8_t *w = (const uint8_t *)c->W + (size_t)from * elem;
    c->piece[item].absmax = val_largest(w, c->d, (size_t)(end - from));
    c->piece[item].bad = -1;
    for (int64_t i = from; !isfinite(c->piece[item].absmax) && c->piece[item].bad < 0; i++) {
        float x;
        lq_to_f32(&x, (const uint8_t *)c->W + (size_t)i * elem, c->d, 1);
        if (!isfinite(x)) c->piece[item].bad = i;
    }
}

bool qz_absmax(float *absmax, int64_t *bad, const void *W, lq_dtype d, int64_t n, pool *p)
{
    int64_t items = lq_ceil_div(n, PIECE);
    scan c = { .W = W, .d = d, .n = n };
    c.piece = calloc((size_t)items + 1, sizeof *c.piece);
    *absmax = 0;
    *bad = 0;
    if (!c.piece) return false;
    pool_run(p, items, run_scan, &c);
    *bad = -1;
    for (int64_t i = 0; i < items && *bad < 0; i++) {
        if (c.piece[i].absmax > *absmax) *absmax = c.piece[i].absmax;
        *bad = c.piece[i].bad;
    }
    free(c.piece);
    return *bad < 0;
}
