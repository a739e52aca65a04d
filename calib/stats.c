/* calib/stats.c - sums over calibration tokens. */
#include "calib/stats.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

enum { TILE = 256 }; /* of H: 256 KiB of f32, and enough work for one BLAS call */

lq_status cal_stats_init(cal_stats *s, int64_t K, bool want_h, dev *on, lq_err *err)
{
    cal_stats_free(s);
    openblas_set_num_threads(1); /* the pool splits the work, so that its order is ours */
    size_t k = (size_t)K;
    s->K = K;
    s->sum_abs = calloc(2 * k, sizeof *s->sum_abs);
    s->reached = calloc(k, sizeof *s->reached);
    s->mean_abs = calloc(3 * k, sizeof *s->mean_abs);
    if (want_h) s->H = calloc(k * k, sizeof *s->H);
    if (!s->sum_abs || !s->reached || !s->mean_abs || (want_h && !s->H)) {
        cal_stats_free(s);
        return lq_fail(err, LQ_ENOMEM, "no memory for the statistics of %lld inputs", (long long)K);
    }
    if (want_h && on) { /* a failure there is found by cal_stats_finish */
        s->on = on;
        on->ops->bind(on);
        s->H_on = on->ops->alloc(on, k * k * sizeof *s->H_on);
        if (s->H_on) on->ops->zero(on, s->H_on, k * k * sizeof *s->H_on);
    }
    s->sum_sq = s->sum_abs + k;
    s->max_abs = s->mean_abs + k;
    s->mean_sq = s->max_abs + k;
    return LQ_OK;
}

lq_status cal_stats_match(cal_stats *s, int64_t D, lq_err *err)
{
    const size_t n = (size_t)(D * s->K);
    if (!s->H || !D) return LQ_OK;
    s->M = calloc(n, sizeof *s->M);
    if (!s->M)
        return lq_fail(err, LQ_ENOMEM, "no memory for the statistics of %lld inputs",
                       (long long)s->K);
    s->D = D;
    if (!s->on) return LQ_OK;
    s->on->ops->bind(s->on);
    s->M_on = s->on->ops->alloc(s->on, n * sizeof *s->M_on);
    if (s->M_on) s->on->ops->zero(s->on, s->M_on, n * sizeof *s->M_on);
    return LQ_OK;
}

void cal_stats_free(cal_stats *s)
{
    if (s->on) {
        s->on->ops->free(s->on, s->H_on);
        s->on->ops->free(s->on, s->M_on);
        s->on->ops->free(s->on, s->x_on);
        s->on->ops->free(s->on, s->d_on);
    }
    free(s->H);
    free(s->M);
    free(s->weighed);
    free(s->sum_abs);
    free(s->reached);
    free(s->mean_abs);
    memset(s, 0, sizeof *s);
}

typedef struct {
    cal_stats *s;
    const float *x, *wx, *wd; /* wx, wd: what H and M are summed of */
    int64_t ldx, ldwx, ldwd, T;
    int64_t from, to, n; /* inputs of ours; blocks of them */
} work;

static void add_columns(const work *w, int64_t k0, int64_t k1)
{
    double *restrict abs = w->s->sum_abs, *restrict sq = w->s->sum_sq;
    int64_t *restrict reached = w->s->reached;
    float *restrict most = w->s->max_abs;
    const float limit = w->s->limit;
    for (int64_t t = 0; t < w->T; t++) {
        const float *restrict x = w->x + t * w->ldx;
        for (int64_t k = k0; k < k1; k++) {
            const float a = fabsf(x[k]);
            abs[k] += (double)a;
            sq[k] += (double)a * (double)a;
            reached[k] += a >= limit;
            most[k] = a <= most[k] || isnan(most[k]) ? most[k] : a; /* a NaN stays */
        }
    }
}

/* ---- tiles of H's lower triangle, then of M ---- */
typedef struct {
    float *at; /* its first, rows K apart */
    bool of_m;
    int64_t i, j; /* its first row and column */
    int64_t rows, columns;
} tile;

static int64_t h_tiles(const cal_stats *s)
{
    const int64_t n = lq_ceil_div(s->K, TILE);
    return n * (n + 1) / 2;
}

static int64_t all_tiles(const cal_stats *s)
{
    if (!s->H || s->on) return 0;
    return h_tiles(s) + lq_ceil_div(s->D, TILE) * lq_ceil_div(s->K, TILE);
}

static tile tile_at(const cal_stats *s, int64_t t)
{
    const int64_t K = s->K, of_h = h_tiles(s), across = lq_ceil_div(K, TILE);
    const bool m = t >= of_h;
    int64_t i = 0, j = m ? (t - of_h) % across : t;
    if (m) i = (t - of_h) / across;
    for (; !m && j > i; j -= ++i) {
    } /* rows of the triangle hold 1, 2, 3, ... tiles */
    i *= TILE;
    j *= TILE;
    const int64_t N = m ? s->D : K;
    return (tile){ (m ? s->M : s->H) + i * K + j, m, i, j, N - i < TILE ? N - i : TILE,
                   K - j < TILE ? K - j : TILE };
}

static int64_t n_parts(const cal_stats *s) { return s->parts ? s->parts : 1; }

/* The first is part 0's and so on: how many are this part's. */
static int64_t tiles_of(const cal_stats *s, int part)
{
    const int64_t all = all_tiles(s);
    return all > part ? lq_ceil_div(all - part, n_parts(s)) : 0;
}

size_t cal_stats_tiles(cal_stats *s, int part, float *box, bool from_box)
{
    size_t n = 0;
    for (int64_t k = 0; k < tiles_of(s, part); k++) {
        const tile t = tile_at(s, k * n_parts(s) + part);
        for (int64_t r = 0; r < t.rows; r++, n += (size_t)t.columns) {
            float *h = t.at + r * s->K;
            if (box)
                memcpy(from_box ? h : box + n, from_box ? box + n : h,
                       (size_t)t.columns * sizeof *h);
        }
    }
    return n;
}

void cal_stats_columns(const cal_stats *s, int part, int64_t *from, int64_t *to)
{
    *from = s->K * part / n_parts(s);
    *to = s->K * (part + 1) / n_parts(s);
}

/* Items: the n column blocks, then our tiles. */
static void add_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    const int64_t K = w->s->K;
    if (item < w->n) {
        const int64_t k0 = w->from + item * TILE;
        add_columns(w, k0, k0 + TILE < w->to ? k0 + TILE : w->to);
        return;
    }
    const tile t = tile_at(w->s, (item - w->n) * n_parts(w->s) + w->s->part);
    if (t.of_m && !w->wd) return;
    if (!t.of_m && t.i == t.j)
        cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int)t.rows, (int)w->T, 1, w->wx + t.i,
                    (int)w->ldwx, 1, t.at, (int)K);
    else
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)t.rows, (int)t.columns, (int)w->T,
                    1, (t.of_m ? w->wd : w->wx) + t.i, (int)(t.of_m ? w->ldwd : w->ldwx),
                    w->wx + t.j, (int)w->ldwx, 1, t.at, (int)K);
}

/* Rows of K floats to the device; in one piece where they are together. */
static void rows_there(dev *d, float *to, const float *x, int64_t ldx, int64_t T, int64_t K)
{
    const size_t row = (size_t)K * sizeof *x;
    for (int64_t t = 0; t < (ldx == K ? 1 : T); t++)
        d->ops->upload(d, to ? to + t * K : NULL, x + t * ldx, ldx == K ? (size_t)T * row : row);
}

/* H += x^T x and M += d^T x there, while the pool sums the rest. */
static void add_there(cal_stats *s, const work *w)
{
    dev *d = s->on;
    d->ops->bind(d);
    if (w->T > s->x_rows) {
        d->ops->free(d, s->x_on);
        d->ops->free(d, s->d_on);
        s->x_on = d->ops->alloc(d, (size_t)(w->T * s->K) * sizeof *s->x_on);
        s->d_on = s->D ? d->ops->alloc(d, (size_t)(w->T * s->D) * sizeof *s->d_on) : NULL;
        s->x_rows = w->T;
    }
    rows_there(d, s->x_on, w->wx, w->ldwx, w->T, s->K);
    dev_gemm_args a = { .C = s->H_on,
                        .A = s->x_on,
                        .B = s->x_on,
                        .ldc = s->K,
                        .lda = s->K,
                        .ldb = s->K,
                        .M = s->K,
                        .N = s->K,
                        .K = w->T,
                        .ta = true,
                        .lower = true,
                        .beta = 1 };
    d->ops->gemm(d, &a);
    if (!s->D || !w->wd) return;
    rows_there(d, s->d_on, w->wd, w->ldwd, w->T, s->D);
    a.C = s->M_on;
    a.A = s->d_on;
    a.lda = a.M = s->D;
    a.lower = false;
    d->ops->gemm(d, &a);
}

/* ---- weights ---- */
enum { ROWS = 64 };

static float *squares_of(const cal_stats *s)
{
    return s->weighed + s->weighed_rows * (s->K + s->D);
}

static void square_rows(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    const int64_t K = w->s->K;
    for (int64_t t = item * ROWS; t < w->T && t < (item + 1) * ROWS; t++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += (double)w->x[t * w->ldx + k] * (double)w->x[t * w->ldx + k];
        squares_of(w->s)[t] = (float)sum;
    }
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A token that is not known. */
static double guessed(double square, double median)
{
    return square > CAL_LARGE * median ? CAL_LARGE * median / square : 1;
}

static void weigh_rows(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    const int64_t K = w->s->K, D = w->s->D;
    const float *square = squares_of(w->s), *sorted = square + w->T;
    float *x = w->s->weighed, *d = x + w->s->weighed_rows * K;
    for (int64_t t = item * ROWS; t < w->T && t < (item + 1) * ROWS; t++) {
        const float c = w->s->weight[w->s->tokens + t];
        const float root =
            (float)sqrt(c >= 0 ? (double)c : guessed((double)square[t], (double)sorted[w->T / 2]));
        for (int64_t k = 0; k < K; k++)
            x[t * K + k] = root * w->x[t * w->ldx + k];
        for (int64_t k = 0; k < D && w->wd; k++)
            d[t * D + k] = root * w->wd[t * w->ldwd + k];
    }
}

/* wx and wd become the chunk's rows times the roots of their weights. */
static lq_status weigh(work *w, pool *p, lq_err *err)
{
    cal_stats *s = w->s;
    const size_t T = (size_t)w->T, row = (size_t)(s->K + s->D);
    if (w->T > s->weighed_rows) {
        free(s->weighed);
        s->weighed_rows = w->T;
        s->weighed = malloc(T * (row + 2) * sizeof *s->weighed);
        if (!s->weighed) {
            s->weighed_rows = 0;
            return lq_fail(err, LQ_ENOMEM, "no memory for weighed rows of %lld inputs",
                           (long long)s->K);
        }
    }
    float *square = squares_of(s);
    pool_run(p, lq_ceil_div(w->T, ROWS), square_rows, w);
    memcpy(square + T, square, T * sizeof *square);
    qsort(square + T, T, sizeof *square, by_size);
    pool_run(p, lq_ceil_div(w->T, ROWS), weigh_rows, w);
    w->wx = s->weighed;
    w->ldwx = s->K;
    if (w->wd) w->wd = s->weighed + s->weighed_rows * s->K;
    w->ldwd = s->D;
    return LQ_OK;
}

lq_status cal_stats_add_with(cal_stats *s, const float *x, int64_t ldx, const float *d, int64_t ldd,
                             int64_t T, pool *p, lq_err *err)
{
    work w = { .s = s, .x = x, .wx = x, .wd = d, .ldx = ldx, .ldwx = ldx, .ldwd = ldd, .T = T };
    const lq_status e = s->weight && s->H && T > 0 ? weigh(&w, p, err) : LQ_OK;
    if (e) return e;
    cal_stats_columns(s, s->part, &w.from, &w.to);
    w.n = lq_ceil_div(w.to - w.from, TILE);
    if (s->on) add_there(s, &w);
    pool_run(p, w.n + tiles_of(s, s->part), add_item, &w);
    s->tokens += T;
    return LQ_OK;
}

lq_status cal_stats_add(cal_stats *s, const float *x, int64_t ldx, int64_t T, pool *p, lq_err *err)
{
    return cal_stats_add_with(s, x, ldx, NULL, 0, T, p, err);
}

lq_status cal_stats_finish(cal_stats *s, lq_err *err)
{
    int64_t K = s->K;
    if (s->on) {
        s->on->ops->bind(s->on);
        s->on->ops->download(s->on, s->H, s->H_on, (size_t)(K * K) * sizeof *s->H);
        if (s->M) s->on->ops->download(s->on, s->M, s->M_on, (size_t)(s->D * K) * sizeof *s->M);
        const lq_status e = s->on->ops->sync(s->on, err);
        if (e) return lq_wrap(err, e, "statistics of %lld inputs", (long long)K);
    }
    free(s->weighed);
    s->weighed = NULL;
    s->weighed_rows = 0;
    double n = s->tokens ? (double)s->tokens : 1;
    for (int64_t k = 0; k < K; k++) {
        s->mean_abs[k] = (float)(s->sum_abs[k] / n);
        s->mean_sq[k] = (float)(s->sum_sq[k] / n);
    }
    for (int64_t i = 0; i < K && s->H; i++)
        for (int64_t j = 0; j <= i; j++)
            s->H[j * K + i] = s->H[i * K + j] = (float)((double)s->H[i * K + j] / n);
    for (int64_t i = 0; i < s->D * K; i++)
        s->M[i] = (float)((double)s->M[i] / n);
    return LQ_OK;
}

double cal_shrink(float *A, int64_t n, int64_t ld, int64_t tokens)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)A[i * ld + i];
    const double add = 4 * sum / (double)tokens;
    for (int64_t i = 0; i < n; i++)
        A[i * ld + i] = (float)((double)A[i * ld + i] + add);
    return add;
}

void cal_stats_shrink(cal_stats *s)
{
    if (s->H && s->tokens && s->shrink == 0) s->shrink = cal_shrink(s->H, s->K, s->K, s->tokens);
}

int64_t cal_stats_bad(const cal_stats *s)
{
    for (int64_t k = 0; k < s->K; k++)
        if (!isfinite(s->max_abs[k])) return k;
    return -1;
}

void cal_layer_stats_shrink(cal_layer_stats *s)
{
    for (int i = 0; i < CAL_N_SHARED; i++)
        cal_stats_shrink(&s->site[i]);
    for (int i = 0; i < CAL_N_OF_EXPERT; i++)
        for (int64_t e = 0; s->expert[i] && e < s->n_experts; e++)
            cal_stats_shrink(&s->expert[i][e]);
}

void cal_layer_stats_free(cal_layer_stats *s)
{
    for (int i = 0; i < CAL_N_SHARED; i++)
        cal_stats_free(&s->site[i]);
    for (int i = 0; i < CAL_N_OF_EXPERT; i++) {
        for (int64_t e = 0; s->expert[i] && e < s->n_experts; e++)
            cal_stats_free(&s->expert[i][e]);
        free(s->expert[i]);
    }
    memset(s, 0, sizeof *s);
}

cal_stats *cal_stats_of(cal_layer_stats *s, const arch_config *c, arch_role r, int64_t expert)
{
    cal_site site;
    cal_stats *st;
    if (!cal_site_of(&site, c, r)) return NULL;
    if (site < CAL_N_SHARED) {
        st = &s->site[site];
    } else {
        if (expert < s->first || expert >= s->first + s->n_experts) return NULL;
        st = &s->expert[site - CAL_N_SHARED][expert - s->first];
    }
    return st->K ? st : NULL;
}
