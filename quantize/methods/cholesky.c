/* quantize/methods/cholesky.c - tiles (I, J), I <= J, of an upper triangle, one after the other in memory.
 *
 *     for J = last .. 0:   A_JJ = R_JJ R_JJ^T;  R_IJ = A_IJ R_JJ^-T;  A_IL -= R_IJ R_LJ^T, I<=L<J
 *     for J = 0 .. last:   U_JJ = R_JJ^-1;  U_IJ = -(sum over L = I..J-1 of U_IL R_LJ) U_JJ
 *
 * Several ranks have rows of tiles each. Of the first loop each gets all R_IJ, column after column; in the second a row
 * takes nothing of another row; then rows of U go to all.
 *
 * On a device the tiles are there too. It takes products by R_LJ, of a whole column of tiles at a time, with
 * the bits that OpenBLAS's have; a column comes here for what is of one tile, and goes back. */
#include "quantize/methods/cholesky.h"

#include <cblas.h>
#include <lapacke.h>
#include <stdlib.h>

enum { T = CHOLESKY_TILE };

typedef struct {
    double *A;      /* tiles, column of tiles after column */
    double *column; /* [nt] tiles: R of column tj while U takes its place */
    double *sums;   /* [threads] tiles */
    int64_t K, nt, tj;
    const float *H;
    const int32_t *perm;
    double add;
    float *U;
    comm *ranks;       /* NULL: all rows of tiles are ours */
    size_t *at;        /* [ranks + 1] bytes of what goes to all (comm_allgather) */
    dev *on;           /* NULL: none */
    double *there, *R; /* on it: A; as column */
} work;

static double *tile(const work *w, int64_t i, int64_t j)
{
    return w->A + (j * (j + 1) / 2 + i) * T * T;
}

static int owner_of(const work *w, int64_t ti) { return cholesky_owner(ti, comm_size(w->ranks)); }
static bool ours(const work *w, int64_t ti) { return owner_of(w, ti) == comm_rank(w->ranks); }

/* Where column tj begins, here and there. */
static size_t column_at(int64_t tj) { return (size_t)(tj * (tj + 1) / 2) * T * T; }

/* The first n tiles of column tj go up. */
static void send(const work *w, int64_t tj, int64_t n)
{
    if (w->on)
        w->on->ops->upload(w->on, w->there + column_at(tj), w->A + column_at(tj),
                           (size_t)n * T * T * sizeof *w->A);
}
/* They come down. */
static lq_status receive(const work *w, int64_t tj, int64_t n, lq_err *err)
{
    if (!w->on) return LQ_OK;
    w->on->ops->download(w->on, w->A + column_at(tj), w->there + column_at(tj),
                         (size_t)n * T * T * sizeof *w->A);
    return w->on->ops->sync(w->on, err);
}

/* The first n tiles of column `to` -= those of `of` times the tile `by`, or its transpose. */
static void subtract_there(const work *w, int64_t to, int64_t of, const double *by, bool tb,
                           int64_t n)
{
    w->on->ops->minus(w->on, &(dev_minus_args){ .C = w->there + column_at(to),
                                                .A = w->there + column_at(of),
                                                .B = by,
                                                .ldc = T,
                                                .lda = T,
                                                .ldb = T,
                                                .M = n * T,
                                                .N = T,
                                                .K = T,
                                                .tb = tb });
}

/* Rows of tile i that are there; the rest are those of the identity. */
static int64_t rows(const work *w, int64_t i) { return w->K - i * T < T ? w->K - i * T : T; }

size_t cholesky_bytes(int64_t K)
{
    const size_t nt = (size_t)lq_ceil_div(K, T);
    return (nt * (nt + 1) / 2 + nt) * T * T * sizeof(double);
}

/* Item: a column of tiles. */
static void fill_tile(void *ctx, int64_t tj, int thread)
{
    (void)thread;
    const work *w = ctx;
    for (int64_t ti = 0; ti <= tj; ti++) {
        if (!ours(w, ti)) continue;
        double *t = tile(w, ti, tj);
        memset(t, 0, (size_t)T * T * sizeof *t);
        for (int64_t r = 0; r < T; r++) {
            const int64_t i = ti * T + r;
            if (i >= w->K) {
                if (ti == tj) t[r * T + r] = 1;
                continue;
            }
            const float *h = w->H + (size_t)w->perm[i] * (size_t)w->K;
            for (int64_t c = 0; c < rows(w, tj); c++)
                t[r * T + c] = (double)h[w->perm[tj * T + c]];
            if (ti == tj) t[r * T + r] = (t[r * T + r] > 0 ? t[r * T + r] : 1) + w->add;
        }
    }
}

/* R_JJ with A_JJ = R R^T: the Cholesky factor of the tile read backwards. */
static bool factor_diagonal(double *t)
{
    double back[T * T];
    for (int i = 0; i < T * T; i++)
        back[i] = t[T * T - 1 - i];
    if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', T, back, T) != 0) return false; /* rows: lower */
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++)
            t[i * T + j] = j < i ? 0 : back[T * T - 1 - (i * T + j)];
    return true;
}

static void solve_panel(void *ctx, int64_t ti, int thread)
{
    (void)thread;
    const work *w = ctx;
    if (!ours(w, ti)) return;
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasUpper, CblasTrans, CblasNonUnit, T, T, 1,
                tile(w, w->tj, w->tj), T, tile(w, ti, w->tj), T);
}

/* Item: a pair ti <= tl < tj, numbered as tiles are. */
static void update(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    int64_t tl = 0, ti = item;
    for (; ti > tl; ti -= ++tl) {
    }
    if (!ours(w, ti)) return;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, T, T, T, -1, tile(w, ti, w->tj), T,
                tile(w, tl, w->tj), T, 1, tile(w, ti, tl), T);
}

static void invert_panel(void *ctx, int64_t ti, int thread)
{
    const work *w = ctx;
    double *sum = w->sums + (size_t)thread * T * T;
    if (!ours(w, ti)) return;
    for (int64_t tl = ti; tl < w->tj; tl++)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, T, T, T, -1, tile(w, ti, tl), T,
                    w->column + tl * T * T, T, tl == ti ? 0 : 1, sum, T);
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit, T, T, 1,
                tile(w, w->tj, w->tj), T, sum, T);
    memcpy(tile(w, ti, w->tj), sum, (size_t)T * T * sizeof *sum);
}

/* Where the sum is there already. */
static void finish_panel(void *ctx, int64_t ti, int thread)
{
    (void)thread;
    const work *w = ctx;
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit, T, T, 1,
                tile(w, w->tj, w->tj), T, tile(w, ti, w->tj), T);
}

/* Item: a row of tiles. */
static void store(void *ctx, int64_t ti, int thread)
{
    (void)thread;
    const work *w = ctx;
    if (!ours(w, ti)) return;
    for (int64_t r = 0; r < rows(w, ti); r++) {
        float *u = w->U + (size_t)(ti * T + r) * (size_t)w->K;
        memset(u, 0, (size_t)(ti * T) * sizeof *u);
        for (int64_t tj = ti; tj < w->nt; tj++)
            for (int64_t c = 0; c < rows(w, tj); c++)
                u[tj * T + c] = (float)tile(w, ti, tj)[r * T + c];
    }
}

static lq_status not_positive(const work *w, lq_err *err)
{
    return lq_fail(err, LQ_ECHECK, "a matrix of %lld is not positive definite", (long long)w->K);
}

/* ---- between ranks ---- */
/* R_JJ of column tj, by the rank that has it. */
static lq_status diagonal(const work *w, lq_err *err)
{
    double *d = tile(w, w->tj, w->tj);
    if (ours(w, w->tj) && !factor_diagonal(d)) d[0] = (double)NAN;
    const lq_status s =
        comm_broadcast(w->ranks, owner_of(w, w->tj), d, (size_t)T * T * sizeof *d, err);
    return s ? s : isnan(d[0]) ? not_positive(w, err) : LQ_OK;
}

/* Between the box and what row ti of tiles has for the others; in: from the box. Returns its bytes. */
typedef size_t (*mover)(const work *w, int64_t ti, uint8_t *box, bool out, bool in);

/* Rows 0 .. n - 1 of tiles, each from the rank that has it to all. */
static lq_status share(work *w, int64_t n, mover move, void *box, lq_err *err)
{
    const int size = comm_size(w->ranks);
    lq_status s = LQ_OK;
    if (size < 2) return LQ_OK;
    for (int in = 0; in <= 1 && !s; in++) {
        size_t at = w->at[0] = 0;
        for (int r = 0; r < size; r++) {
            for (int64_t ti = 0; ti < n; ti++)
                if (owner_of(w, ti) == r)
                    at += move(w, ti, (uint8_t *)box + at, !in && ours(w, ti), in && !ours(w, ti));
            w->at[r + 1] = at;
        }
        if (!in) s = comm_allgather(w->ranks, box, w->at, err);
    }
    return s;
}

/* A tile of column tj. */
static size_t move_tile(const work *w, int64_t ti, uint8_t *box, bool out, bool in)
{
    const size_t bytes = (size_t)T * T * sizeof *w->A;
    if (out) memcpy(box, tile(w, ti, w->tj), bytes);
    if (in) memcpy(tile(w, ti, w->tj), box, bytes);
    return bytes;
}

/* Rows of U, of each what is not below the diagonal. */
static size_t move_rows(const work *w, int64_t ti, uint8_t *box, bool out, bool in)
{
    const size_t skip = (size_t)(ti * T), bytes = ((size_t)w->K - skip) * sizeof *w->U;
    for (int64_t i = 0; i < rows(w, ti) && (out || in); i++, box += bytes) {
        float *u = w->U + (skip + (size_t)i) * (size_t)w->K;
        if (out) memcpy(box, u + skip, bytes);
        if (!in) continue;
        memset(u, 0, skip * sizeof *u);
        memcpy(u + skip, box, bytes);
    }
    return (size_t)rows(w, ti) * bytes;
}

static lq_status factor(work *w, pool *p, lq_err *err)
{
    for (w->tj = w->nt - 1; w->tj >= 0; w->tj--) {
        lq_status s = w->tj + 1 < w->nt ? receive(w, w->tj, w->tj + 1, err) : LQ_OK;
        if (!s) s = diagonal(w, err);
        if (s) return s;
        pool_run(p, w->tj, solve_panel, w);
        if ((s = share(w, w->tj, move_tile, w->column, err))) return s;
        send(w, w->tj, w->tj + 1);
        if (!w->on) pool_run(p, w->tj * (w->tj + 1) / 2, update, w);
        for (int64_t tl = 0; w->on && tl < w->tj; tl++)
            subtract_there(w, tl, w->tj, w->there + column_at(w->tj) + tl * T * T, true, tl + 1);
    }
    return LQ_OK;
}

/* The sums of column tj, from R on. */
static lq_status sums_there(work *w, lq_err *err)
{
    const size_t n = (size_t)w->tj * T * T * sizeof *w->R;
    double *const column = w->there + column_at(w->tj);
    w->on->ops->upload(w->on, w->R, w->column, n);
    w->on->ops->zero(w->on, column, n);
    for (int64_t tl = 0; tl < w->tj; tl++)
        subtract_there(w, w->tj, tl, w->R + tl * T * T, false, tl + 1);
    return receive(w, w->tj, w->tj, err);
}

static lq_status invert(work *w, pool *p, lq_err *err)
{
    for (w->tj = 0; w->tj < w->nt; w->tj++) {
        double *d = tile(w, w->tj, w->tj);
        memcpy(w->column, tile(w, 0, w->tj), (size_t)w->tj * T * T * sizeof *d);
        /* Upper and row-major is lower and column-major to LAPACK. */
        if (LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'L', 'N', T, d, T) != 0)
            return not_positive(w, err);
        if (!w->on) {
            pool_run(p, w->tj, invert_panel, w);
            continue;
        }
        const lq_status s = sums_there(w, err);
        if (s) return s;
        pool_run(p, w->tj, finish_panel, w);
        send(w, w->tj, w->tj + 1);
    }
    return LQ_OK;
}

/* Room for the tiles on the device; where there is none it is done here. */
static void open_there(work *w, dev *on, size_t bytes)
{
    const size_t column = (size_t)w->nt * T * T * sizeof *w->R;
    if (!on || w->nt < 2) return;
    on->ops->bind(on);
    if (on->ops->room(on) / 8 * 7 < bytes + column) return;
    w->on = on;
    w->there = on->ops->alloc(on, bytes);
    w->R = on->ops->alloc(on, column);
    for (int64_t tj = 0; tj < w->nt; tj++)
        send(w, tj, tj + 1);
}

lq_status cholesky_upper(float *U, const float *H, const int32_t *perm, int64_t K, double add,
                         dev *on, comm *ranks, pool *p, lq_err *err)
{
    work w = {
        .K = K, .nt = lq_ceil_div(K, T), .H = H, .perm = perm, .add = add, .U = U, .ranks = ranks
    };
    const size_t tiles = (size_t)(w.nt * (w.nt + 1) / 2);
    w.A = malloc(tiles * T * T * sizeof *w.A);
    w.column = malloc((size_t)w.nt * T * T * sizeof *w.column);
    w.sums = malloc((size_t)pool_threads(p) * T * T * sizeof *w.sums);
    w.at = malloc(((size_t)comm_size(ranks) + 1) * sizeof *w.at);
    lq_status s = LQ_OK;
    if (!w.A || !w.column || !w.sums || !w.at) {
        s = lq_fail(err, LQ_ENOMEM, "no memory to factor a matrix of %lld", (long long)K);
    } else {
        pool_run(p, w.nt, fill_tile, &w);
        open_there(&w, on, tiles * T * T * sizeof *w.A);
        s = factor(&w, p, err);
        if (!s) s = invert(&w, p, err);
        if (!s) pool_run(p, w.nt, store, &w);
        if (!s) s = share(&w, w.nt, move_rows, w.A, err);
    }
    if (w.on) {
        lq_err again;
        (void)w.on->ops->sync(w.on, &again); /* what is queued reads it */
        w.on->ops->free(w.on, w.R);
        w.on->ops->free(w.on, w.there);
    }
    free(w.at);
    free(w.sums);
    free(w.column);
    free(w.A);
    return s;
}
