/* quantize/mixed/sensitivity.c - a scheme and a block of rows at a time. */
#include "quantize/mixed/sensitivity.h"

#include <cblas.h>
#include <stdlib.h>

#include "quantize/methods/gptq.h"
#include "quantize/methods/rtn.h"

enum { B = FISHER_BLOCK, COLUMNS = 128 };

typedef struct {
    const qt_scheme *schemes;
    const qt_tensor *W;
    const sensitivity_opts *o;
    const float *imp; /* diag(H), or NULL */
    const float *U;   /* the factor of H's inverse in the order of perm; NULL: no feedback */
    const int32_t *perm;
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
    const grid_spec spec = rtn_spec(s, !w->o->narrow, true);
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

/* 1/2 tr(G D H D^T), the trace as the sum over i, j of G[i][j] (D H D^T)[i][j]. */
static double effect_of(const work *w, const tile *t, int64_t block, int64_t rows)
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
    for (int64_t i = 0; i < rows; i++)
        sum += dot(t->pairs + i * B, g + i * B, rows);
    return sum > 0 ? sum / 2 : 0;
}

static void run_block(void *ctx, int64_t item, int thread)
{
    const work *w = ctx;
    const int64_t N = w->W->N, block = item % w->blocks, n0 = block * B;
    const int64_t rows = N - n0 < B ? N - n0 : B;
    const qt_scheme *s = &w->schemes[item / w->blocks];
    const tile t = tile_at(w->scratch + (size_t)thread * w->per_thread, w->W->K);
    if (s->kind == QT_DENSE) return;
    qt_dequant(t.d, w->W, n0, n0 + rows);
    fit_grids(w, &t, rows, s);
    if (w->U)
        round_with_feedback(w, &t, rows, s);
    else
        round_to_nearest(w, &t, rows, s);
    w->effect[item] = effect_of(w, &t, block, rows);
}

/* perm and U [K,K] from H; *has_u: there is a factor. */
static lq_status factor(int32_t *perm, float *U, bool *has_u, const float *imp, int64_t K, pool *p,
                        const sensitivity_opts *o, lq_err *err)
{
    double damp = o->damp;
    if (!gptq_order(perm, imp, K, 1)) return LQ_ENOMEM;
    lq_status s = gptq_factor(U, &damp, o->H, perm, K, p, err);
    *has_u = !s;
    return s == LQ_ENOMEM ? s : LQ_OK;
}

lq_status sensitivity_of(double *effect, const qt_scheme *schemes, int n, const qt_tensor *W,
                         const sensitivity_opts *o, pool *p, lq_err *err)
{
    const int64_t K = W->K;
    const size_t k = (size_t)K;
    const bool feedback = o->H && !o->nearest;
    work w = { .schemes = schemes, .W = W, .o = o, .per_thread = tile_floats(K) };
    bool has_u = false;
    w.blocks = lq_ceil_div(W->N, B);
    w.effect = calloc((size_t)(n * w.blocks), sizeof *w.effect);
    w.scratch = malloc((size_t)pool_threads(p) * w.per_thread * sizeof *w.scratch);
    float *imp = malloc(k * sizeof *imp), *U = feedback ? malloc(k * k * sizeof *U) : NULL;
    int32_t *perm = malloc(k * sizeof *perm);
    lq_status s = w.effect && w.scratch && imp && perm && (U || !feedback) ? LQ_OK : LQ_ENOMEM;
    openblas_set_num_threads(1);
    for (int64_t i = 0; i < K && !s && o->H; i++)
        imp[i] = o->H[i * K + i];
    if (!s && feedback) s = factor(perm, U, &has_u, imp, K, p, o, err);
    if (!s) {
        w.imp = o->H ? imp : NULL;
        w.U = has_u ? U : NULL;
        w.perm = perm;
        pool_run(p, n * w.blocks, run_block, &w);
        for (int64_t i = 0; i < n * w.blocks; i++)
            effect[i / w.blocks] += w.effect[i];
    }
    free(perm);
    free(U);
    free(imp);
    free(w.scratch);
    free(w.effect);
    return s ? lq_fail(err, s, "no memory to measure a weight of %lld inputs", (long long)K)
             : LQ_OK;
}
