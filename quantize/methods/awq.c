/* quantize/methods/awq.c - search of input scales, folding, clipping. */
#include "quantize/methods/awq.h"

#include <cblas.h>
#include <stdlib.h>

#include "calib/gemm.h"
#include "quantize/methods/awq_dev.h"
#include "quantize/methods/dev_row.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

enum { ALPHAS = 20, MAX_GROUP = 512 };

/* ---- the loss of one choice of s ---- */
typedef struct {
    const awq_site *site;
    const float *s;
    int l;            /* the linear at work */
    double *loss;     /* [AWQ_SEARCH_ROWS] of its rows */
    float *d, *times; /* [rows][K] differences; scratch of gemm_quadratic */
    awq_dev *on;      /* that sums; NULL: the CPU */
    lq_status bad;    /* of it */
    lq_err *err;
} search;

/* Of N rows of K weights. */
static int64_t rows_searched(int64_t N, int64_t K)
{
    int64_t most =
        K < AWQ_SEARCH_WEIGHTS / AWQ_SEARCH_LEAST ? AWQ_SEARCH_WEIGHTS / K : AWQ_SEARCH_LEAST;
    if (most > AWQ_SEARCH_ROWS) most = AWQ_SEARCH_ROWS;
    return N < most ? N : most;
}

static void round_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const search *c = ctx;
    const int64_t K = c->site->K, N = c->site->lin[c->l].N, G = c->site->lin[c->l].group;
    const float *w = c->site->lin[c->l].W + r * N / rows_searched(N, K) * K;
    grid_spec spec = c->site->lin[c->l].spec;
    spec.search = false;
    float *e = c->d + r * K, M = grid_max_code(spec.bits);
    for (int64_t k = 0; k < K; k++)
        e[k] = w[k] * c->s[k];
    for (int64_t k = 0; k < K; k += G) {
        grid_param p = grid_fit(&spec, e + k, NULL, G);
        for (int64_t i = k; i < k + G; i++)
            e[i] = (e[i] - grid_value(grid_code(e[i], p, M), p)) / c->s[i];
    }
}

static double site_loss(search *c, pool *p)
{
    const awq_site *site = c->site;
    double all = 0;
    for (c->l = 0; c->l < site->n; c->l++) {
        const int64_t N = site->lin[c->l].N, rows = rows_searched(N, site->K);
        const double stand_for = site->lin[c->l].stand_for;
        double sum = 0;
        pool_run(p, rows, round_row, c);
        if (!c->on)
            gemm_quadratic(c->loss, c->d, c->times, site->H, rows, site->K, p);
        else if (!c->bad)
            c->bad = awq_dev_losses(c->on, c->loss, c->d, rows, c->err);
        if (c->bad) return (double)INFINITY;
        for (int64_t r = 0; r < rows; r++)
            sum += c->loss[r];
        all += sum * (stand_for > 0 ? stand_for : (double)N) / (double)rows;
    }
    return all;
}

/* ---- candidates ---- */
/* Mean of |w| / (largest |w| of its group) over the rows of all linears. */
static void weight_means(float *v, const awq_site *site)
{
    int64_t K = site->K, n_rows = 0;
    for (int l = 0; l < site->n; l++) {
        int64_t G = site->lin[l].group;
        n_rows += site->lin[l].N;
        for (int64_t n = 0; n < site->lin[l].N; n++)
            for (int64_t k = 0; k < K; k += G) {
                const float *w = site->lin[l].W + n * K + k;
                float a = 0;
                for (int64_t i = 0; i < G; i++)
                    a = fabsf(w[i]) > a ? fabsf(w[i]) : a;
                for (int64_t i = 0; i < G && a > 0; i++)
                    v[k + i] += fabsf(w[i]) / a;
            }
    }
    for (int64_t k = 0; k < K; k++)
        v[k] /= (float)n_rows;
}

/* Inputs that share a scale take the mean of what they have. */
static void tie_means(float *m, const awq_site *site, float *sum, int32_t *count)
{
    if (!site->tie) return;
    for (int64_t k = 0; k < site->K; k++) {
        sum[k] = 0;
        count[k] = 0;
    }
    for (int64_t k = 0; k < site->K; k++) {
        sum[site->tie[k]] += m[k];
        count[site->tie[k]]++;
    }
    for (int64_t k = 0; k < site->K; k++)
        m[k] = sum[site->tie[k]] / (float)count[site->tie[k]];
}

/* False when a scale is not a normal number. */
static bool candidate(float *s, const float *m, const float *v, double alpha, bool by_weight,
                      int64_t K)
{
    float lo = INFINITY, hi = 0;
    for (int64_t k = 0; k < K; k++) {
        double x = pow(fmax((double)m[k], 1e-8), alpha);
        if (by_weight) x /= pow(fmax((double)v[k], 1e-8), 1 - alpha);
        s[k] = (float)fmax(x, 1e-4);
        lo = s[k] < lo ? s[k] : lo;
        hi = s[k] > hi ? s[k] : hi;
    }
    float norm = sqrtf(lo * hi);
    for (int64_t k = 0; k < K; k++) {
        s[k] /= norm;
        if (!isnormal(s[k])) return false;
    }
    return true;
}

enum { CANDIDATES = 2 * ALPHAS };

static bool nth_candidate(float *s, const float *m, const float *v, int i, int64_t K)
{
    return candidate(s, m, v, (double)(i % ALPHAS) / ALPHAS, i >= ALPHAS, K);
}

/* Of all candidates, infinite where one has none. c->s: room for the scales. */
static lq_status losses_of(double loss[CANDIDATES], search *c, float *trial, const float *m,
                           const float *v, pool *p)
{
    comm *ranks = c->site->ranks;
    const int rank = comm_rank(ranks), size = comm_size(ranks);
    double theirs[CANDIDATES];
    c->s = trial;
    for (int i = 0; i < CANDIDATES && !c->bad; i++) {
        loss[i] = (double)INFINITY;
        if (i % size == rank && nth_candidate(trial, m, v, i, c->site->K))
            loss[i] = site_loss(c, p);
    }
    lq_status st = c->bad;
    for (int from = 0; from < size && size > 1 && !st; from++) {
        memcpy(theirs, loss, sizeof theirs);
        st = comm_broadcast(ranks, from, theirs, sizeof theirs, c->err);
        for (int i = from; i < CANDIDATES; i += size)
            loss[i] = theirs[i];
    }
    return st;
}

double awq_search_cost(int64_t N, int64_t K)
{
    enum { ROUNDING = 250 }; /* of a weight once */
    return (1 + CANDIDATES) * (double)rows_searched(N, K) * (double)K * ((double)K / 2 + ROUNDING);
}

/* Bytes that awq_search takes while it runs, N the outputs of the largest linear. */
static size_t search_bytes(int64_t N, int64_t K)
{
    return 2 * (size_t)(rows_searched(N, K) * K) * sizeof(float);
}

lq_status awq_search(float *s, awq_report *rep, const awq_site *site, pool *p, lq_err *err)
{
    int64_t K = site->K;
    size_t k = (size_t)K;
    search c = { .site = site, .err = err };
    int64_t rows = 0;
    for (int l = 0; l < site->n; l++) {
        const int64_t own = rows_searched(site->lin[l].N, K);
        rows = own > rows ? own : rows;
    }
    float *m = calloc(4 * k, sizeof *m);
    int32_t *count = calloc(k, sizeof *count);
    c.loss = malloc(AWQ_SEARCH_ROWS * sizeof *c.loss);
    c.d = malloc(search_bytes(rows, K));
    lq_status st = LQ_OK;
    if (!m || !count || !c.loss || !c.d) {
        st = lq_fail(err, LQ_ENOMEM, "no memory to search %lld scales", (long long)K);
        goto done;
    }
    if (site->on && qz_dev_row_fits(site->on, K))
        st = awq_dev_open(&c.on, site->on, site->H, K, rows, err);
    if (st) goto done;
    float *v = m + K, *trial = v + K, *sum = trial + K;
    c.times = c.d + rows * K;
    memcpy(m, site->mean_abs, k * sizeof *m);
    weight_means(v, site);
    tie_means(m, site, sum, count);
    tie_means(v, site, sum, count);
    for (int64_t i = 0; i < K; i++)
        s[i] = 1;
    c.s = s;
    *rep = (awq_report){ .before = site_loss(&c, p) };
    rep->after = rep->before;
    double loss[CANDIDATES];
    int best = -1;
    st = c.bad ? c.bad : losses_of(loss, &c, trial, m, v, p);
    for (int i = 0; i < CANDIDATES && !st; i++) {
        if (!(loss[i] < rep->after)) continue;
        *rep = (awq_report){ (double)(i % ALPHAS) / ALPHAS, i >= ALPHAS, rep->before, loss[i] };
        best = i;
    }
    if (best >= 0) nth_candidate(s, m, v, best, K);
done:
    awq_dev_close(c.on);
    free(c.d);
    free(c.loss);
    free(count);
    free(m);
    return st;
}

/* ---- folding ---- */
typedef struct {
    float *W;
    const float *s;
    int64_t N, K;
    enum { COLUMNS, DIVIDE_ROWS, HESSIAN } what;
} fold;

static void fold_rows(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const fold *f = ctx;
    for (int64_t n = item * QZ_ROWS; n < f->N && n < (item + 1) * QZ_ROWS; n++) {
        float *w = f->W + n * f->K;
        for (int64_t k = 0; k < f->K; k++) {
            if (f->what == COLUMNS) w[k] *= f->s[k];
            if (f->what == DIVIDE_ROWS) w[k] /= f->s[n];
            if (f->what == HESSIAN) w[k] /= f->s[n] * f->s[k];
        }
    }
}

static void fold_run(fold f, pool *p) { pool_run(p, lq_ceil_div(f.N, QZ_ROWS), fold_rows, &f); }

void awq_scale_columns(float *W, const float *s, int64_t N, int64_t K, pool *p)
{
    fold_run((fold){ W, s, N, K, COLUMNS }, p);
}

void awq_divide_rows(float *W, const float *s, int64_t N, int64_t K, pool *p)
{
    fold_run((fold){ W, s, N, K, DIVIDE_ROWS }, p);
}

void awq_scale_h(float *H, const float *s, int64_t K, pool *p)
{
    fold_run((fold){ H, s, K, K, HESSIAN }, p);
}

/* ---- rounding with drawn-in ends ---- */
typedef struct {
    qz_out *out;
    const float *W, *H, *imp;
    const grid_spec *spec;
    int n_cand;
    uint8_t *scratch;
    size_t per_thread;
} clip;

/* The grid of one group with the least d H_gg d^T; d, g [n_cand][G]. */
static grid_param best_grid(const clip *c, const float *w, int64_t k, int64_t G, float *d, float *g)
{
    int64_t K = c->out->t.K;
    grid_range range = grid_find_range(w, G);
    float M = grid_max_code(c->spec->bits);
    for (int i = 0; i < c->n_cand; i++) {
        grid_param p = grid_candidate(c->spec, range, i);
        for (int64_t j = 0; j < G; j++)
            d[i * G + j] = w[j] - grid_value(grid_code(w[j], p, M), p);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, c->n_cand, (int)G, (int)G, 1, d, (int)G,
                c->H + k * K + k, (int)K, 0, g, (int)G);
    double least = (double)INFINITY;
    int best = 0;
    for (int i = 0; i < c->n_cand; i++) {
        double e = 0;
        for (int64_t j = 0; j < G; j++)
            e += (double)d[i * G + j] * (double)g[i * G + j];
        if (e < least) {
            least = e;
            best = i;
        }
    }
    return grid_candidate(c->spec, range, best);
}

static void clip_rows(void *ctx, int64_t item, int thread)
{
    const clip *c = ctx;
    int64_t N = c->out->t.N, K = c->out->t.K, G = c->out->t.scheme.group, ng = K / G;
    float *d = (float *)(void *)(c->scratch + (size_t)thread * c->per_thread);
    float *g = d + c->n_cand * G, M = grid_max_code(c->spec->bits);
    grid_param *params = (grid_param *)(void *)(g + c->n_cand * G);
    uint8_t *codes = (uint8_t *)(params + ng), *zeros = codes + K;
    for (int64_t n = item * QZ_ROWS; n < N && n < (item + 1) * QZ_ROWS; n++) {
        const float *w = c->W + n * K;
        for (int64_t k = 0; k < K; k++) {
            if (k % G == 0)
                params[k / G] = G <= MAX_GROUP ? best_grid(c, w + k, k, G, d, g)
                                               : grid_fit(c->spec, w + k, c->imp + k, G);
            codes[k] = (uint8_t)grid_code(w[k], params[k / G], M);
        }
        row_store(c->out, n, params, NULL, codes, zeros);
    }
}

lq_status awq_round(qz_out *out, const float *W, const float *H, const grid_spec *spec, pool *p,
                    lq_err *err)
{
    int64_t K = out->t.K, G = out->t.scheme.group, ng = K / G;
    clip c = { .out = out, .W = W, .H = H, .spec = spec, .n_cand = grid_n_candidates(spec) };
    float *imp = calloc((size_t)K, sizeof *imp);
    size_t trial = G <= MAX_GROUP ? (size_t)(2 * c.n_cand * G) * sizeof(float) : 0;
    if (!trial) c.n_cand = 0; /* no trial rows: d and g are empty */
    c.per_thread = lq_round_up(trial + (size_t)ng * (sizeof(grid_param) + 1) + (size_t)K, 64);
    c.scratch = calloc((size_t)pool_threads(p), c.per_thread);
    lq_status s = LQ_OK;
    if (!imp || !c.scratch) {
        s = lq_fail(err, LQ_ENOMEM, "no memory to round rows of %lld weights", (long long)K);
    } else {
        for (int64_t k = 0; k < K; k++)
            imp[k] = H[k * K + k];
        c.imp = imp;
        pool_run(p, lq_ceil_div(out->t.N, QZ_ROWS), clip_rows, &c);
    }
    free(c.scratch);
    free(imp);
    return s;
}

/* ---- the method ---- */
static lq_status clip_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err)
{
    (void)r;
    const grid_spec spec = rtn_spec(&out->t.scheme, m->o->limits, !m->o->no_clip);
    return awq_round(out, m->W, m->H, &spec, p, err);
}

static size_t awq_scratch(const qz_room *r)
{
    const size_t least = search_bytes(r->N, r->K);
    return r->loss > least ? r->loss : least;
}

const qz_method qz_method_awq = {
    .name = "awq",
    .help = "salient inputs are scaled up, the inverse is folded into the layer before; clipping",
    .schemes = "u2 u3 u4 u8",
    .options = QZ_OPTS_H,
    .on = QZ_OPT_CLIP | QZ_OPT_FOLD,
    .bits = 4,
    .group = 128,
    .needs = QZ_NEEDS_H,
    .alone = true,
    .plan = 3,
    .scheme = qz_scheme_grid,
    .scratch = awq_scratch,
    .round = clip_round,
};
