/* quantize/methods/gptq.c - GPTQ: factor once per matrix, then BATCH rows at a time: what a row does alone
 * is spread over rows, products over tiles of the result (calib/gemm.h).
 *
 * A row's columns are visited in the order `perm`; B columns make a block:
 *
 *     |  done  | block: errors move at once | rest: errors move after the block, one GEMM |
 *
 * With groups chosen on the way (no static groups) a block never ends inside a group's first use:
 * it is cut so that a group's weights are up to date when its grid is fitted. */
#include "quantize/methods/gptq.h"

#include <stdlib.h>

#include "calib/gemm.h"
#include "quantize/methods/cholesky.h"
#include "quantize/methods/dev_row.h"
#include "quantize/methods/fp8.h"
#include "quantize/methods/gptq_dev.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rows.h"
#include "quantize/methods/rtn.h"

enum { BATCH = GPTQ_BATCH, BLOCK = 128 };

/* ---- the factor ---- */
static const double ladder[] = { 1, 2, 5, 10, 20, 50, 100 };

static bool finite_matrix(const float *H, int64_t K)
{
    for (int64_t i = 0; i < K * K; i++)
        if (!isfinite(H[i])) return false;
    return true;
}

static lq_status factor(float *U, double *damp, const float *H, const int32_t *perm, int64_t K,
                        dev *on, comm *ranks, pool *p, lq_err *err)
{
    double mean = 0, start = *damp > 0 ? *damp : 0.01;
    for (int64_t k = 0; k < K; k++)
        mean += (double)H[(size_t)k * (size_t)K + (size_t)k];
    mean /= (double)K;
    lq_status s = LQ_ECHECK;
    if (mean > 0 && finite_matrix(H, K))
        for (size_t t = 0; t < LQ_COUNT(ladder) && s == LQ_ECHECK; t++) {
            *damp = start * ladder[t];
            s = cholesky_upper(U, H, perm, K, *damp * mean, on, ranks, p, err);
        }
    if (s != LQ_ECHECK) return s;
    return lq_fail(err, s, "H [%lld] is not positive definite at any damping", (long long)K);
}

/* ---- rows ---- */
typedef struct {
    qz_out *out;
    const gptq_opts *o;
    const float *W, *H, *U;     /* U NULL: rounding to nearest only */
    const float *imp;           /* diag(H), or NULL when it is no use */
    const float *imp_perm;      /* the same in the order of perm */
    const int32_t *perm, *gidx; /* gidx: with act_order, else NULL */
    pool *p;
    const qz_rows_ops *ops;
    double *loss, *plain; /* per row */
    int64_t G, nh;        /* inputs of a group; heads of a row */
    /* The batch: rows n0 .. n0 + rows; k0 .. k1 the block of columns. */
    int64_t n0, rows, k0, k1;
    float *w, *d, *g, *e;    /* [BATCH][K] permuted weights; errors; errors H; [BATCH][BLOCK] */
    uint8_t *codes, *rtn;    /* [BATCH][K], in the order of the inputs */
    grid_param *params, *pr; /* [BATCH][ng]: GPTQ's grids, plain ones */
    row_head *heads, *hr;    /* [BATCH][nh] of these */
    uint8_t *zeros;          /* [BATCH][ng] */
    gptq_dev *on;            /* where rows are rounded; NULL: here */
    /* Of lattices, else NULL, [K / LAT_UNIT][8][8] in the order of perm: gptq_unit_metrics, and H. */
    float *metric, *near;
} work;

static int64_t batch_rows(int64_t N) { return N < BATCH ? N : BATCH; }

static bool batch_alloc(work *c, lq_arena *a)
{
    const size_t k = (size_t)c->out->t.K, ng = k / (size_t)c->G, nh = (size_t)c->nh;
    const size_t rows = (size_t)batch_rows(c->out->t.N);
    c->w = lq_push(a, rows * k * sizeof *c->w);
    c->d = lq_push(a, rows * k * sizeof *c->d);
    c->g = lq_push(a, rows * k * sizeof *c->g);
    c->e = lq_push(a, rows * BLOCK * sizeof *c->e);
    c->codes = lq_push(a, rows * k);
    c->rtn = lq_push(a, rows * k);
    c->params = lq_push(a, rows * ng * sizeof *c->params);
    c->pr = lq_push(a, rows * ng * sizeof *c->pr);
    c->heads = lq_push(a, (rows * nh + 1) * sizeof *c->heads);
    c->hr = lq_push(a, (rows * nh + 1) * sizeof *c->hr);
    c->zeros = lq_push(a, rows * ng);
    return c->w && c->d && c->g && c->e && c->codes && c->rtn && c->params && c->pr && c->heads &&
           c->hr && c->zeros;
}

static int64_t block_end(int64_t k, int64_t K, int64_t G, bool fit_on_the_way)
{
    int64_t end = k + BLOCK;
    if (fit_on_the_way && G <= BLOCK) end = k + BLOCK / G * G;
    if (fit_on_the_way && G > BLOCK && end > (k / G + 1) * G) end = (k / G + 1) * G;
    return end < K ? end : K;
}

static void unit_metric(float *M, const float *U, int64_t K, int64_t k)
{
    enum { N = LAT_UNIT };
    double inv[N][N] = { { 0 } }; /* of the upper triangle at k: e M e = |e inv|^2 */
    for (int c = 0; c < N; c++)
        for (int r = c; r >= 0; r--) {
            double sum = r == c;
            for (int i = r + 1; i <= c; i++)
                sum -= (double)U[(k + r) * K + k + i] * inv[i][c];
            inv[r][c] = sum / (double)U[(k + r) * K + k + r];
        }
    for (int r = 0; r < N; r++)
        for (int c = 0; c < N; c++) {
            double sum = 0;
            for (int i = 0; i < N; i++)
                sum += inv[r][i] * inv[c][i];
            M[r * N + c] = (float)sum;
        }
}

void gptq_unit_metrics(float *M, const float *U, int64_t K)
{
    for (int64_t k = 0; k < K; k += LAT_UNIT)
        unit_metric(M + k * LAT_UNIT, U, K, k);
}

/* Columns k0..k1 of one row: round, and move the errors inside the block. */
static void round_block(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const work *c = ctx;
    const int64_t K = c->out->t.K, G = c->G, k0 = c->k0, k1 = c->k1;
    const bool fit = !c->o->static_groups;
    const grid_spec *spec = &c->o->spec;
    float *w = c->w + r * K, *e = c->e + r * BLOCK;
    uint8_t *codes = c->codes + r * K;
    grid_param *params = c->params + r * (K / G);
    uint8_t unit[LAT_UNIT];
    for (int64_t k = k0; k < k1; k++) {
        const float *u = c->U + (size_t)k * (size_t)K;
        int64_t g = (fit ? k : c->perm[k]) / G;
        if (fit && k % G == 0)
            params[g] = grid_fit(&c->o->spec, w + k, c->imp ? c->imp_perm + k : NULL, G);
        if (spec->points && k % LAT_UNIT == 0)
            lattice_choose(unit, spec->points, c->metric + k * LAT_UNIT, w + k, params[g].scale);
        float code = spec->points ? unit[k % LAT_UNIT] : row_code(spec, w[k], params[g]);
        float err = (w[k] - row_value(spec, code, params[g])) / u[k];
        codes[c->perm[k]] = (uint8_t)code;
        e[k - k0] = err;
        c->ops->subtract(w + k + 1, err, u + k + 1, k1 - k - 1);
    }
}

static void round_batch(work *c)
{
    const int64_t K = c->out->t.K, G = c->G;
    for (c->k0 = 0; c->k0 < K; c->k0 = c->k1) {
        c->k1 = block_end(c->k0, K, G, !c->o->static_groups);
        pool_run(c->p, c->rows, round_block, c);
        for (int64_t i = 0; i < c->rows * BLOCK; i++)
            c->e[i] = -c->e[i];
        if (c->k1 < K)
            gemm_run(c->w + c->k1, K, (gemm_in){ c->e, BLOCK, false },
                     (gemm_in){ c->U + (size_t)c->k0 * (size_t)K + c->k1, K, false }, c->rows,
                     K - c->k1, c->k1 - c->k0, 1, c->p);
    }
}

/* d = w - q of one row, with the plain grids or GPTQ's. */
static void row_errors(const work *c, int64_t r, const uint8_t *codes, const grid_param *params,
                       const int32_t *gidx)
{
    const int64_t K = c->out->t.K, G = c->G;
    const float *w = c->W + (c->n0 + r) * K;
    float *d = c->d + r * K;
    codes += r * K;
    params += r * (K / G);
    for (int64_t k = 0; k < K; k++)
        d[k] = w[k] - row_value(&c->o->spec, (float)codes[k], params[gidx ? gidx[k] : k / G]);
}

static void new_errors(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const work *c = ctx;
    row_errors(c, r, c->codes, c->params, c->gidx);
}

/* g = d H. */
static void weigh_errors(const work *c)
{
    const int64_t K = c->out->t.K;
    gemm_run(c->g, K, (gemm_in){ c->d, K, false }, (gemm_in){ c->H, K, false }, c->rows, K, K, 0,
             c->p);
}

static double row_loss(const float *d, const float *g, int64_t K)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += (double)d[k] * (double)g[k];
    return sum > 0 ? sum : 0;
}

/* Coordinate descent on one row: with d and g = d H kept up to date, the best real value of q_k is
 * q_k + g_k / H_kk. Returns how many codes moved. With a factor, imp is H's diagonal, whose
 * elements would each be a cache miss in H. */
static int64_t sweep_weights(const work *c, float *d, float *g, uint8_t *codes,
                             const grid_param *params)
{
    const grid_spec *spec = &c->o->spec;
    int64_t K = c->out->t.K, G = c->G, moved = 0;
    for (int64_t i = 0; i < K; i++) {
        int64_t k = c->perm[i];
        const float h = c->imp[k];
        if (!(h > 0)) continue;
        grid_param p = params[c->gidx ? c->gidx[k] : k / G];
        float q = row_value(spec, (float)codes[k], p), code = row_code(spec, q + g[k] / h, p);
        if (code == (float)codes[k]) continue;
        float step = row_value(spec, code, p) - q;
        codes[k] = (uint8_t)code;
        d[k] -= step;
        c->ops->subtract(g, step, c->H + (size_t)k * (size_t)K, K);
        moved++;
    }
    return moved;
}

/* The same of a lattice: the codes of a unit together, by H's part there. */
static int64_t sweep_units(const work *c, float *d, float *g, uint8_t *codes,
                           const grid_param *params)
{
    enum { N = LAT_UNIT };
    const grid_spec *spec = &c->o->spec;
    const int64_t K = c->out->t.K, G = c->G;
    int64_t moved = 0;
    for (int64_t i = 0; i < K; i += N) {
        const int64_t k = c->perm[i];
        const grid_param p = params[k / G];
        uint8_t code[N];
        memcpy(code, codes + k, N);
        if (!lattice_descend(code, spec->points, c->near + i * N, g + k, p.scale)) continue;
        for (int j = 0; j < N; j++) {
            if (code[j] == codes[k + j]) continue;
            const float step = row_value(spec, code[j], p) - row_value(spec, codes[k + j], p);
            codes[k + j] = code[j];
            d[k + j] -= step;
            c->ops->subtract(g, step, c->H + (size_t)(k + j) * (size_t)K, K);
            moved++;
        }
    }
    return moved;
}

static int64_t sweep(const work *c, float *d, float *g, uint8_t *codes, const grid_param *params)
{
    return c->o->spec.points ? sweep_units(c, d, g, codes, params)
                             : sweep_weights(c, d, g, codes, params);
}

/* A row's plain grids, codes and errors. */
static void plain_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const work *c = ctx;
    const int64_t K = c->out->t.K, G = c->G;
    const float *w = c->W + (c->n0 + r) * K;
    uint8_t *codes = c->rtn + r * K;
    grid_param *params = c->pr + r * (K / G);
    grid_spec plain = c->o->spec;
    plain.search = !c->U && plain.search; /* as a fallback it may search */
    row_fit(params, c->hr + r * c->nh, &plain, w, c->U ? NULL : c->imp, c->n0 + r, K, G);
    for (int64_t k = 0; k < K; k += G)
        row_codes(codes + k, &plain, w + k, !c->U && c->imp ? c->imp + k : NULL, G, params[k / G]);
    row_errors(c, r, c->rtn, c->pr, NULL);
}

/* GPTQ's grids and permuted weights. */
static void start_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const work *c = ctx;
    const int64_t K = c->out->t.K, G = c->G, ng = K / G;
    const float *w = c->W + (c->n0 + r) * K;
    for (int64_t k = 0; k < K; k++)
        c->w[r * K + k] = w[c->perm[k]];
    if (c->o->static_groups)
        row_fit(c->params + r * ng, c->heads + r * c->nh, &c->o->spec, w, c->imp, c->n0 + r, K, G);
}

static void end_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const work *c = ctx;
    const int64_t K = c->out->t.K, ng = K / c->G, n = c->n0 + r;
    float *d = c->d + r * K, *g = c->g + r * K;
    uint8_t *codes = c->codes + r * K;
    grid_param *params = c->params + r * ng;
    for (int i = 0; c->U && !c->on && i < c->o->sweeps && sweep(c, d, g, codes, params); i++) {
    }
    const double loss = !c->U ? c->plain[n] : c->on ? c->loss[n] : row_loss(d, g, K);
    const bool keep = c->U && (loss <= c->plain[n] || c->gidx);
    c->loss[n] = keep ? loss : c->plain[n];
    row_store(c->out, n, keep ? params : c->pr + r * ng, (keep ? c->heads : c->hr) + r * c->nh,
              keep ? codes : c->rtn + r * K, c->zeros + r * ng);
}

/* What follows the choice of grids, on the device. */
static lq_status round_there(work *c, lq_err *err)
{
    const gptq_dev_rows r = { .W = c->W + c->n0 * c->out->t.K,
                              .w = c->w,
                              .rtn = c->rtn,
                              .pr = c->pr,
                              .params = c->params,
                              .codes = c->codes,
                              .plain = c->plain + c->n0,
                              .loss = c->loss + c->n0,
                              .n = c->rows,
                              .sweeps = c->o->sweeps,
                              .most = grid_max_code(c->o->spec.bits) };
    pool_run(c->p, c->rows, start_row, c);
    const lq_status s = gptq_dev_run(c->on, &r, err);
    for (int64_t i = 0; i < c->rows; i++) /* a loss below zero is rounding */
        if (!(r.loss[i] > 0)) r.loss[i] = 0;
    return s;
}

static lq_status run_batch(work *c, lq_err *err)
{
    pool_run(c->p, c->rows, plain_row, c);
    if (c->on) {
        const lq_status s = round_there(c, err);
        if (!s) pool_run(c->p, c->rows, end_row, c);
        return s;
    }
    gemm_quadratic(c->plain + c->n0, c->d, c->g, c->H, c->rows, c->out->t.K, c->p);
    if (c->U) {
        pool_run(c->p, c->rows, start_row, c);
        round_batch(c);
        pool_run(c->p, c->rows, new_errors, c);
        weigh_errors(c);
    }
    pool_run(c->p, c->rows, end_row, c);
    return LQ_OK;
}

/* ---- the order of columns ---- */
typedef struct {
    float h;
    int32_t k;
} column;

static int by_falling_h(const void *a, const void *b)
{
    const column *x = a, *y = b;
    if (x->h != y->h) return x->h > y->h ? -1 : 1;
    return x->k < y->k ? -1 : x->k > y->k;
}

/* perm [K]: units of inputs by falling imp, equal ones in order. False: out of memory. */
static bool order(int32_t *perm, const float *imp, int64_t K, int unit)
{
    const int64_t n = K / unit;
    column *c = malloc((size_t)n * sizeof *c);
    if (!c) return false;
    for (int64_t i = 0; i < n; i++) {
        c[i] = (column){ 0, (int32_t)(i * unit) };
        for (int k = 0; k < unit; k++)
            c[i].h += imp[i * unit + k];
    }
    qsort(c, (size_t)n, sizeof *c, by_falling_h);
    for (int64_t k = 0; k < K; k++)
        perm[k] = c[k / unit].k + (int32_t)(k % unit);
    free(c);
    return true;
}

static bool make_perm(int32_t *perm, const float *imp, int64_t K, bool act_order, int unit)
{
    for (int64_t k = 0; k < K; k++)
        perm[k] = (int32_t)k;
    return !act_order || order(perm, imp, K, unit);
}

lq_status gptq_prepare(gptq_basis *b, const float *H, int64_t K, double damp, bool act_order,
                       int unit, dev *on, comm *ranks, pool *p, lq_err *err)
{
    const size_t k = (size_t)K;
    *b = (gptq_basis){ .H = H, .K = K, .damp = damp, .unit = unit, .finite = finite_matrix(H, K) };
    b->U = malloc(k * k * sizeof *b->U);
    b->imp = malloc(2 * k * sizeof *b->imp);
    b->perm = malloc(k * sizeof *b->perm);
    lq_status s = LQ_ENOMEM;
    if (!b->U || !b->imp || !b->perm) goto done;
    for (int64_t i = 0; i < K; i++) {
        b->imp[i] = b->finite ? H[(size_t)i * k + (size_t)i] : 0;
        b->dead += !(b->imp[i] > 0);
    }
    if (!make_perm(b->perm, b->imp, K, act_order, unit)) goto done;
    s = factor(b->U, &b->damp, H, b->perm, K, on, ranks, p, err);
    if (s == LQ_ECHECK) { /* rounding to nearest needs neither factor nor order */
        free(b->U);
        b->U = NULL;
        b->damp = 0;
        s = make_perm(b->perm, b->imp, K, false, unit) ? LQ_OK : LQ_ENOMEM;
    }
    for (int64_t i = 0; i < K; i++)
        b->imp[K + i] = b->imp[b->perm[i]];
done:
    if (!s) return LQ_OK;
    gptq_basis_free(b);
    if (s != LQ_ENOMEM) return s;
    return lq_fail(err, s, "no memory for GPTQ on %lld inputs", (long long)K);
}

void gptq_basis_free(gptq_basis *b)
{
    free(b->U);
    free(b->imp);
    free(b->perm);
    *b = (gptq_basis){ 0 };
}

/* What the choice of units takes. False: out of memory. */
static bool prepare_units(work *c, lq_arena *a)
{
    enum { N = LAT_UNIT };
    const int64_t K = c->out->t.K;
    if (!c->o->spec.points || !c->U) return true;
    c->metric = lq_push(a, (size_t)(K * N) * sizeof *c->metric);
    c->near = lq_push(a, (size_t)(K * N) * sizeof *c->near);
    if (!c->metric || !c->near) return false;
    gptq_unit_metrics(c->metric, c->U, K);
    for (int64_t k = 0; k < K; k++)
        memcpy(c->near + k * N, c->H + c->perm[k] * K + c->perm[k / N * N], N * sizeof *c->near);
    return true;
}

lq_status gptq_run(qz_out *out, gptq_report *rep, const float *W, const gptq_basis *b,
                   const gptq_opts *opts, pool *p, lq_err *err)
{
    const int64_t N = out->t.N, K = out->t.K, own = row_group(&out->t.scheme), G = own ? own : K;
    lq_arena a = { 0 };
    *rep = (gptq_report){ .damp = b->damp, .dead = b->dead, .fallback = !b->U };
    work c = { .out = out,
               .o = opts,
               .W = W,
               .H = b->H,
               .U = b->U,
               .imp = b->dead < K ? b->imp : NULL,
               .imp_perm = b->imp + K,
               .perm = b->perm,
               .p = p,
               .ops = qz_rows_get(),
               .G = G,
               .nh = row_heads(&opts->spec, K) };
    c.loss = lq_push(&a, 2 * (size_t)N * sizeof *c.loss);
    lq_status s = LQ_OK;
    if (!c.loss || !batch_alloc(&c, &a) || !prepare_units(&c, &a))
        s = lq_fail(err, LQ_ENOMEM, "no memory for GPTQ on %lld inputs", (long long)K);
    if (s) goto done;
    c.plain = c.loss + N;
    if (out->t.scheme.act_order) {
        c.gidx = out->w[QT_GIDX];
        for (int64_t i = 0; i < K; i++)
            ((int32_t *)out->w[QT_GIDX])[b->perm[i]] = (int32_t)(i / G);
    }
    if (opts->on && b->U && opts->static_groups && !c.gidx && !opts->spec.blocks &&
        !opts->spec.table && !opts->spec.floats && qz_dev_row_fits(opts->on, K))
        s = gptq_dev_open(&c.on, opts->on,
                          &(gptq_dev_basis){ b->H, b->U, b->imp, b->perm, K, G, batch_rows(N) },
                          err);
    for (c.n0 = 0; c.n0 < N && !s; c.n0 += c.rows) {
        c.rows = batch_rows(N - c.n0);
        s = run_batch(&c, err);
    }
    gptq_dev_close(c.on);
    for (int64_t n = 0; n < N && !s; n++) {
        rep->loss += c.loss[n];
        rep->loss_rtn += c.plain[n];
    }
    if (!b->finite) rep->loss = rep->loss_rtn = (double)NAN;
done:
    lq_arena_free(&a);
    return s;
}

/* ---- the method ---- */
/* The factor of H: of the matrix before, where it read the same input. */
static lq_status basis_of(const qz_matrix *m, int unit, comm *ranks, pool *p, lq_err *err)
{
    if (m->basis->H == m->H && m->basis->unit == unit) return LQ_OK;
    gptq_basis_free(m->basis);
    return gptq_prepare(m->basis, m->H, m->K, m->o->damp, !m->o->no_act_order, unit, m->o->on,
                        ranks, p, err);
}

lq_status gptq_share(const qz_out *out, const qz_matrix *m, comm *ranks, pool *p, lq_err *err)
{
    const grid_spec spec = rtn_spec_of(out, m->o->limits, !m->o->no_clip);
    return basis_of(m, row_unit(&spec), ranks, p, err);
}

lq_status gptq_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err)
{
    gptq_report rep;
    const gptq_opts o = { .spec = rtn_spec_of(out, m->o->limits, !m->o->no_clip),
                          .static_groups = !m->o->no_static_groups || m->stacked ||
                                           out->t.scheme.kind != QT_UINT,
                          .sweeps = GPTQ_SWEEPS,
                          .on = m->o->on };
    lq_status s = basis_of(m, row_unit(&o.spec), NULL, p, err);
    if (!s && o.spec.floats) s = fp8_scales(out, m->W, m->d, p, err);
    if (!s) s = gptq_run(out, &rep, m->W, m->basis, &o, p, err);
    if (!s)
        *r = (qz_rounded){ .loss = rep.loss,
                           .loss_rtn = rep.loss_rtn,
                           .damp = rep.damp,
                           .dead = rep.dead,
                           .fallback = rep.fallback };
    return s;
}

size_t gptq_scratch(const qz_room *r)
{
    const size_t K = (size_t)r->K, F = sizeof(float), factor = cholesky_bytes(r->K);
    const size_t rows = (size_t)(r->N < GPTQ_BATCH ? r->N : GPTQ_BATCH) * K * (3 * F + 2);
    const size_t rest = rows > r->loss ? rows : r->loss;
    return K * K * F + (factor > rest ? factor : rest);
}

/* Without training, codes at 2 bits make up for each other's errors best when nothing else is
 * moved: drawn-in grids and input scales lower the loss of nearest rounding, but raise theirs. */
static bool shapes_grids(const qz_opts *o) { return qz_bits(o) != 2 || o->bpw > 0 || o->tune > 0; }

const qz_method qz_method_gptq = {
    .name = "gptq",
    .help = "each weight's error moves onto those not yet rounded, by second-order information",
    .schemes = "u2 u3 u4 u8, GGUF blocks, nvfp4, mxfp4, fp8-e4m3",
    .options = QZ_OPTS_H | QZ_OPT_MATCH | QZ_OPT_ACT_ORDER | QZ_OPT_STATIC | QZ_OPT_DAMP,
    .on = QZ_OPT_CLIP | QZ_OPT_FOLD,
    .on_when = "not at 2 bits without --tune",
    .is_on = shapes_grids,
    .always = QZ_OPT_MATCH,
    .bits = 4,
    .group = 128,
    .needs = QZ_NEEDS_H,
    .plan = 5,
    .blocks = true,
    .floats = true,
    .scheme = qz_scheme_grid,
    .scratch = gptq_scratch,
    .share = gptq_share,
    .round = gptq_round,
};
