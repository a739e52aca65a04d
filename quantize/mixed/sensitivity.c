/* quantize/mixed/sensitivity.c - a scheme and a block of rows at a time. */
#include "quantize/mixed/sensitivity.h"

#include <cblas.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "quantize/methods/gptq.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

enum {
    B = FISHER_BLOCK,
    COLUMNS = 128,
    SEEN = 32 /* rows of a block that are rounded to QT_BLOCKS */
};

typedef struct {
    const qt_scheme *schemes;
    const qt_tensor *W;
    const sensitivity_opts *o;
    const float *imp; /* diag(H), or NULL */
    const float *U;   /* the factor of H's inverse in the order of perm; NULL: no feedback */
    const int32_t *perm;
    gptq_basis
        units[2]; /* for QT_BLOCKS with feedback: columns one by one, and by units of a lattice */
    atomic_int status;
    int64_t blocks;
    double *effect; /* [schemes][blocks] */
    float *scratch;
    size_t per_thread;
} work;

/* One thread's scratch. */
typedef struct {
    float *d;           /* [B][K] weights, then what they lose */
    float *t;           /* [B][K] weights in perm's order; then d H */
    float *e;           /* [B][COLUMNS] */
    float *pairs;       /* [B][B] */
    grid_param *params; /* [B][groups] */
} tile;

static size_t tile_floats(int64_t K)
{
    return (size_t)(2 * B * K + B * COLUMNS + B * B + 2 * B * K);
}

static tile tile_at(float *at, int64_t K)
{
    tile t = { .d = at, .t = at + B * K };
    t.e = t.t + B * K;
    t.pairs = t.e + B * COLUMNS;
    t.params = (grid_param *)(void *)(t.pairs + B * B); /* a group has at least one weight */
    return t;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void fit_grids(const work *w, const tile *t, int64_t rows, const qt_scheme *s)
{
    const int64_t K = w->W->K, G = s->group, ng = K / G;
    const grid_spec spec = rtn_spec(s, w->o->limits, true);
    for (int64_t n = 0; n < rows; n++)
        for (int64_t g = 0; g < ng; g++)
            t->params[n * ng + g] =
                grid_fit(&spec, t->d + n * K + g * G, w->imp ? w->imp + g * G : NULL, G);
}

static void round_to_nearest(const work *w, const tile *t, int64_t rows, const qt_scheme *s)
{
    const int64_t K = w->W->K, G = s->group, ng = K / G;
    const float M = grid_max_code(s->bits);
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < K; k++) {
            const grid_param p = t->params[n * ng + k / G];
            t->d[n * K + k] -= grid_value(grid_code(t->d[n * K + k], p, M), p);
        }
}

/* Each column's error goes to those not yet rounded: inside a block of columns at once, to the rest
 * by one product. */
static void round_with_feedback(const work *w, const tile *t, int64_t rows, const qt_scheme *s)
{
    const int64_t K = w->W->K, G = s->group, ng = K / G;
    const float M = grid_max_code(s->bits);
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < K; k++)
            t->t[n * K + k] = t->d[n * K + w->perm[k]];
    for (int64_t k0 = 0; k0 < K; k0 += COLUMNS) {
        const int64_t k1 = k0 + COLUMNS < K ? k0 + COLUMNS : K;
        for (int64_t n = 0; n < rows; n++)
            for (int64_t k = k0; k < k1; k++) {
                const float *u = w->U + k * K;
                float *x = t->t + n * K;
                const grid_param p = t->params[n * ng + w->perm[k] / G];
                const float q = grid_value(grid_code(x[k], p, M), p), e = (x[k] - q) / u[k];
                t->d[n * K + w->perm[k]] -= q;
                t->e[n * COLUMNS + k - k0] = e;
                cblas_saxpy((int)(k1 - k - 1), -e, u + k + 1, 1, x + k + 1, 1);
            }
        if (k1 < K)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)(K - k1),
                        (int)(k1 - k0), -1, t->e, COLUMNS, w->U + k0 * K + k1, (int)K, 1, t->t + k1,
                        (int)K);
    }
}

/* 1/2 tr(G D H D^T), the trace as the sum over i, j of G[i][j] (D H D^T)[i][j]; of every `step`-th row of G. */
static double effect_of(const work *w, const tile *t, int64_t block, int64_t rows, int64_t step)
{
    const int64_t K = w->W->K;
    if (!w->o->H) return dot(t->d, t->d, rows * K) / 2;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)K, (int)K, 1, t->d,
                (int)K, w->o->H, (int)K, 0, t->t, (int)K);
    if (!w->o->G) return dot(t->d, t->t, rows * K) / 2;
    const float *g = w->o->G + block * B * B;
    double sum = 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)rows, (int)K, 1, t->t,
                (int)K, t->d, (int)K, 0, t->pairs, B);
    for (int64_t i = 0; i < rows; i++) {
        double row = 0;
        for (int64_t j = 0; j < rows; j++)
            row += (double)t->pairs[i * B + j] * (double)g[i * step * B + j * step];
        sum += row;
    }
    return sum > 0 ? sum / 2 : 0;
}

/* Rows as a matrix of their own: t->d becomes what they lose. */
static lq_status round_blocks(const work *w, const tile *t, int64_t rows, const qt_scheme *s,
                              lq_err *err)
{
    const int64_t K = w->W->K;
    const gptq_opts how = { .spec = rtn_spec(s, w->o->limits, true), .static_groups = true };
    const gptq_basis *basis = &w->units[row_unit(&how.spec) > 1];
    gptq_report rep;
    lq_arena a = { 0 };
    qz_out q;
    lq_status st = qz_out_alloc(&q, s, rows, K, &a, err);
    if (!st)
        st = w->U ? gptq_run(&q, &rep, t->d, basis, &how, NULL, err)
                  : rtn_run(&q, t->d, LQ_F32, w->imp, &how.spec, NULL, err);
    if (!st) qt_dequant(t->t, &q.t, 0, rows);
    for (int64_t i = 0; i < rows * K && !st; i++)
        t->d[i] -= t->t[i];
    lq_arena_free(&a);
    return st;
}

/* By SEEN of the rows, evenly spaced: the search for points takes long. */
static double effect_of_blocks(work *w, const tile *t, int64_t block, int64_t rows,
                               const qt_scheme *s)
{
    const int64_t step = rows > SEEN ? rows / SEEN : 1, seen = lq_ceil_div(rows, step);
    lq_err none;
    for (int64_t i = 0; i < seen; i++)
        qt_dequant(t->d + i * w->W->K, w->W, block * B + i * step, block * B + i * step + 1);
    const lq_status st = round_blocks(w, t, seen, s, &none);
    if (st) atomic_store(&w->status, (int)st);
    return st ? 0 : effect_of(w, t, block, seen, step) * (double)rows / (double)seen;
}

/* The first that is the same scheme: of rows that blocks of 256 do not divide several types become one. */
static int64_t same_as(const work *w, int64_t i)
{
    for (int64_t k = 0; k < i; k++)
        if (memcmp(&w->schemes[k], &w->schemes[i], sizeof *w->schemes) == 0) return k;
    return i;
}

static void run_block(void *ctx, int64_t item, int thread)
{
    work *w = ctx;
    const int64_t N = w->W->N, block = item % w->blocks, n0 = block * B;
    const int64_t rows = N - n0 < B ? N - n0 : B;
    const qt_scheme *s = &w->schemes[item / w->blocks];
    const tile t = tile_at(w->scratch + (size_t)thread * w->per_thread, w->W->K);
    if (s->kind == QT_DENSE || same_as(w, item / w->blocks) != item / w->blocks) return;
    if (s->kind == QT_BLOCKS) {
        w->effect[item] = effect_of_blocks(w, &t, block, rows, s);
        return;
    }
    qt_dequant(t.d, w->W, n0, n0 + rows);
    fit_grids(w, &t, rows, s);
    if (w->U)
        round_with_feedback(w, &t, rows, s);
    else
        round_to_nearest(w, &t, rows, s);
    w->effect[item] = effect_of(w, &t, block, rows, 1);
}

/* What feedback goes by; w->U stays NULL where H has no factor. */
static lq_status prepare(work *w, pool *p, const sensitivity_opts *o, int n, lq_err *err)
{
    bool wanted[2] = { true, false };
    for (int i = 0; i < n; i++) {
        const qt_scheme *s = &w->schemes[i];
        const grid_spec spec = rtn_spec(s, GRID_FREE, false);
        if (s->kind == QT_BLOCKS && row_unit(&spec) > 1) wanted[1] = true;
    }
    for (int i = 0; i < 2; i++) {
        if (!wanted[i]) continue;
        const lq_status s = gptq_prepare(&w->units[i], o->H, w->W->K, o->damp, true,
                                         i ? LAT_UNIT : 1, NULL, NULL, p, err);
        if (s) return s;
    }
    w->U = w->units[0].U;
    w->perm = w->units[0].perm;
    return LQ_OK;
}

lq_status sensitivity_of(double *effect, const qt_scheme *schemes, int n, const qt_tensor *W,
                         const sensitivity_opts *o, pool *p, lq_err *err)
{
    const int64_t K = W->K;
    work w = { .schemes = schemes, .W = W, .o = o, .per_thread = tile_floats(K) };
    w.blocks = lq_ceil_div(W->N, B);
    w.effect = calloc((size_t)(n * w.blocks), sizeof *w.effect);
    w.scratch = malloc((size_t)pool_threads(p) * w.per_thread * sizeof *w.scratch);
    float *imp = malloc((size_t)K * sizeof *imp);
    lq_status s = w.effect && w.scratch && imp ? LQ_OK : LQ_ENOMEM;
    openblas_set_num_threads(1);
    for (int64_t i = 0; i < K && !s && o->H; i++)
        imp[i] = o->H[i * K + i];
    if (!s && o->H && !o->nearest) s = prepare(&w, p, o, n, err);
    if (!s) {
        w.imp = o->H ? imp : NULL;
        pool_run(p, n * w.blocks, run_block, &w);
        s = (lq_status)atomic_load(&w.status);
    }
    for (int64_t i = 0; i < n && !s; i++)
        for (int64_t k = 0; k < w.blocks; k++)
            effect[i] += w.effect[same_as(&w, i) * w.blocks + k];
    gptq_basis_free(&w.units[0]);
    gptq_basis_free(&w.units[1]);
    free(imp);
    free(w.scratch);
    free(w.effect);
    return s ? lq_fail(err, s, "no memory to measure a weight of %lld inputs", (long long)K)
             : LQ_OK;
}
