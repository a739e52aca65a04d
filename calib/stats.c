/* calib/stats.c - sums over calibration tokens. */
#include "calib/stats.h"

#include <cblas.h>
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

void cal_stats_free(cal_stats *s)
{
    if (s->on) {
        s->on->ops->free(s->on, s->H_on);
        s->on->ops->free(s->on, s->x_on);
    }
    free(s->H);
    free(s->sum_abs);
    free(s->reached);
    free(s->mean_abs);
    memset(s, 0, sizeof *s);
}

typedef struct {
    cal_stats *s;
    const float *x;
    int64_t ldx, T;
    int64_t from, to, n; /* inputs of ours; blocks of them */
} work;

static void add_columns(const work *w, int64_t k0, int64_t k1)
{
    for (int64_t t = 0; t < w->T; t++)
        for (int64_t k = k0; k < k1; k++) {
            float a = fabsf(w->x[t * w->ldx + k]);
            w->s->sum_abs[k] += (double)a;
            w->s->sum_sq[k] += (double)a * (double)a;
            w->s->reached[k] += a >= w->s->limit;
            if (a > w->s->max_abs[k] || isnan(a)) w->s->max_abs[k] = a; /* a NaN stays */
        }
}

/* ---- tiles of H's lower triangle ---- */
typedef struct {
    int64_t i, j; /* its first row and column */
    int64_t rows, columns;
} tile;

static tile tile_at(int64_t K, int64_t t)
{
    int64_t i = 0, j = t;
    for (; j > i; j -= ++i) {
    } /* rows of the triangle hold 1, 2, 3, ... tiles */
    i *= TILE;
    j *= TILE;
    return (tile){ i, j, K - i < TILE ? K - i : TILE, K - j < TILE ? K - j : TILE };
}

static int64_t all_tiles(const cal_stats *s)
{
    const int64_t n = lq_ceil_div(s->K, TILE);
    return s->H && !s->on ? n * (n + 1) / 2 : 0;
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
        const tile t = tile_at(s->K, k * n_parts(s) + part);
        for (int64_t r = 0; r < t.rows; r++, n += (size_t)t.columns) {
            float *h = s->H + (t.i + r) * s->K + t.j;
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
    const tile t = tile_at(K, (item - w->n) * n_parts(w->s) + w->s->part);
    const int64_t ri = t.i, rj = t.j, ni = t.rows, nj = t.columns;
    float *h = w->s->H + ri * K + rj;
    if (ri == rj)
        cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int)ni, (int)w->T, 1, w->x + ri,
                    (int)w->ldx, 1, h, (int)K);
    else
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)ni, (int)nj, (int)w->T, 1,
                    w->x + ri, (int)w->ldx, w->x + rj, (int)w->ldx, 1, h, (int)K);
}

/* H += x^T x there, while the pool sums the rest. */
static void add_there(cal_stats *s, const float *x, int64_t ldx, int64_t T)
{
    dev *d = s->on;
    const size_t row = (size_t)s->K * sizeof *x;
    d->ops->bind(d);
    if (T > s->x_rows) {
        d->ops->free(d, s->x_on);
        s->x_on = d->ops->alloc(d, (size_t)T * row);
        s->x_rows = T;
    }
    for (int64_t t = 0; t < (ldx == s->K ? 1 : T); t++) /* together where they lie so */
        d->ops->upload(d, s->x_on ? s->x_on + t * s->K : NULL, x + t * ldx,
                       ldx == s->K ? (size_t)T * row : row);
    d->ops->gemm(d, &(dev_gemm_args){ .C = s->H_on,
                                      .A = s->x_on,
                                      .B = s->x_on,
                                      .ldc = s->K,
                                      .lda = s->K,
                                      .ldb = s->K,
                                      .M = s->K,
                                      .N = s->K,
                                      .K = T,
                                      .ta = true,
                                      .lower = true,
                                      .beta = 1 });
}

void cal_stats_add(cal_stats *s, const float *x, int64_t ldx, int64_t T, pool *p)
{
    work w = { .s = s, .x = x, .ldx = ldx, .T = T };
    cal_stats_columns(s, s->part, &w.from, &w.to);
    w.n = lq_ceil_div(w.to - w.from, TILE);
    if (s->on) add_there(s, x, ldx, T);
    pool_run(p, w.n + tiles_of(s, s->part), add_item, &w);
    s->tokens += T;
}

lq_status cal_stats_finish(cal_stats *s, lq_err *err)
{
    int64_t K = s->K;
    if (s->on) {
        s->on->ops->bind(s->on);
        s->on->ops->download(s->on, s->H, s->H_on, (size_t)(K * K) * sizeof *s->H);
        const lq_status e = s->on->ops->sync(s->on, err);
        if (e) return lq_wrap(err, e, "statistics of %lld inputs", (long long)K);
    }
    double n = s->tokens ? (double)s->tokens : 1;
    for (int64_t k = 0; k < K; k++) {
        s->mean_abs[k] = (float)(s->sum_abs[k] / n);
        s->mean_sq[k] = (float)(s->sum_sq[k] / n);
    }
    for (int64_t i = 0; i < K && s->H; i++)
        for (int64_t j = 0; j <= i; j++)
            s->H[j * K + i] = s->H[i * K + j] = (float)((double)s->H[i * K + j] / n);
    return LQ_OK;
}

int64_t cal_stats_bad(const cal_stats *s)
{
    for (int64_t k = 0; k < s->K; k++)
        if (!isfinite(s->max_abs[k])) return k;
    return -1;
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
