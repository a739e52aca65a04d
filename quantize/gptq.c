/* quantize/gptq.c - GPTQ: factor once per matrix, then tiles of rows in parallel.
 *
 * A row's columns are visited in the order `perm`; B columns make a block:
 *
 *     |  done  | block: errors move at once | rest: errors move after the block, one GEMM |
 *
 * With groups chosen on the way (no static groups) a block never ends inside a group's first use:
 * it is cut so that a group's weights are up to date when its grid is fitted. */
#include "quantize/gptq.h"

#include <cblas.h>
#include <lapacke.h>
#include <stdlib.h>

#include "quantize/rtn.h"

enum { ROWS = 32, BLOCK = 128 };

/* ---- the factor ---- */
static const double ladder[] = { 1, 2, 5, 10, 20, 50, 100 };

static bool finite_matrix(const float *H, int64_t K)
{
    for (int64_t i = 0; i < K * K; i++)
        if (!isfinite(H[i])) return false;
    return true;
}

/* A = J (H' + damp I) J, J the reversal: its Cholesky factor L gives U = J inverse(L) J. */
static void fill_reversed(double *A, const float *H, const int32_t *perm, int64_t K, double add)
{
    for (int64_t i = 0; i < K; i++) {
        const float *row = H + (size_t)perm[K - 1 - i] * (size_t)K;
        double *a = A + (size_t)i * (size_t)K;
        for (int64_t j = 0; j <= i; j++)
            a[j] = (double)row[perm[K - 1 - j]];
        a[i] = (a[i] > 0 ? a[i] : 1) + add;
    }
}

lq_status gptq_factor(float *U, double *damp, const float *H, const int32_t *perm, int64_t K,
                      lq_err *err)
{
    double mean = 0, start = *damp > 0 ? *damp : 0.01;
    for (int64_t k = 0; k < K; k++)
        mean += (double)H[(size_t)k * (size_t)K + (size_t)k];
    mean /= (double)K;
    size_t bytes;
    double *A = NULL;
    if (lq_mul((size_t)K * (size_t)K, sizeof *A, &bytes)) A = malloc(bytes);
    if (!A) return lq_fail(err, LQ_ENOMEM, "no memory to factor a matrix of %lld", (long long)K);
    lq_status s = LQ_ECHECK;
    if (mean > 0 && finite_matrix(H, K)) {
        lapack_int n = (lapack_int)K;
        for (size_t t = 0; t < LQ_COUNT(ladder) && s; t++) {
            *damp = start * ladder[t];
            fill_reversed(A, H, perm, K, *damp * mean);
            /* Lower and row-major is upper and column-major to LAPACK. */
            if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, A, n) == 0 &&
                LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'U', 'N', n, A, n) == 0)
                s = LQ_OK;
        }
    }
    for (int64_t i = 0; i < K && !s; i++) {
        float *u = U + (size_t)i * (size_t)K;
        const double *a = A + (size_t)(K - 1 - i) * (size_t)K;
        for (int64_t j = 0; j < K; j++)
            u[j] = j < i ? 0.0f : (float)a[K - 1 - j];
    }
    free(A);
    return s ? lq_fail(err, s, "H [%lld] is not positive definite at any damping", (long long)K)
             : LQ_OK;
}

/* ---- rows ---- */
typedef struct {
    qz_out *out;
    const gptq_opts *o;
    const float *W, *H, *U; /* U NULL: rounding to nearest only */
    const float *imp;       /* diag(H), or NULL when it is no use */
    const float *imp_perm;  /* the same in the order of perm */
    const int32_t *perm;
    double *loss, *loss_rtn; /* per tile */
    uint8_t *scratch;
    size_t per_thread;
} work;

/* One thread's scratch. */
typedef struct {
    float *w, *d, *g, *e;  /* [ROWS][K] permuted weights; errors; errors H; [ROWS][BLOCK] */
    uint8_t *codes, *rtn;  /* [ROWS][K], in the order of the inputs */
    ug_param *params, *pr; /* [ROWS][ng]: GPTQ's grids, plain ones */
    uint8_t *zeros;        /* [ng] */
} tile;

static size_t tile_bytes(int64_t K, int64_t ng)
{
    size_t k = (size_t)K, n = (size_t)ng, f = sizeof(float);
    return lq_round_up(ROWS * (3 * k * f + BLOCK * f + 2 * n * sizeof(ug_param) + 2 * k) + n, 64);
}

static tile tile_at(uint8_t *mem, int64_t K, int64_t ng)
{
    size_t k = (size_t)K, n = (size_t)ng;
    tile t;
    t.w = (float *)(void *)mem;
    t.d = t.w + ROWS * k;
    t.g = t.d + ROWS * k;
    t.e = t.g + ROWS * k;
    t.params = (ug_param *)(void *)(t.e + ROWS * BLOCK);
    t.pr = t.params + ROWS * n;
    t.codes = (uint8_t *)(t.pr + ROWS * n);
    t.rtn = t.codes + ROWS * k;
    t.zeros = t.rtn + ROWS * k;
    return t;
}

static int64_t block_end(int64_t k, int64_t K, int64_t G, bool fit_on_the_way)
{
    int64_t end = k + BLOCK;
    if (fit_on_the_way && G <= BLOCK) end = k + BLOCK / G * G;
    if (fit_on_the_way && G > BLOCK && end > (k / G + 1) * G) end = (k / G + 1) * G;
    return end < K ? end : K;
}

/* Columns k0..k1 of one row: round, and move the errors inside the block. */
static void round_block(const work *c, float *w, float *e, uint8_t *codes, ug_param *params,
                        int64_t k0, int64_t k1)
{
    int64_t K = c->out->t.K, G = c->out->t.scheme.group;
    bool fit = !c->o->static_groups;
    float M = ug_max_code(c->o->spec.bits);
    for (int64_t k = k0; k < k1; k++) {
        const float *u = c->U + (size_t)k * (size_t)K;
        int64_t g = (fit ? k : c->perm[k]) / G;
        if (fit && k % G == 0)
            params[g] = ug_fit(&c->o->spec, w + k, c->imp ? c->imp_perm + k : NULL, G);
        float code = ug_code(w[k], params[g], M);
        float err = (w[k] - ug_value(code, params[g])) / u[k];
        codes[c->perm[k]] = (uint8_t)code;
        e[k - k0] = err;
        for (int64_t j = k + 1; j < k1; j++)
            w[j] -= err * u[j];
    }
}

static void gptq_rows(const work *c, const tile *t, int64_t rows)
{
    int64_t K = c->out->t.K, G = c->out->t.scheme.group, ng = K / G;
    for (int64_t k0 = 0, k1; k0 < K; k0 = k1) {
        k1 = block_end(k0, K, G, !c->o->static_groups);
        for (int64_t r = 0; r < rows; r++)
            round_block(c, t->w + r * K, t->e + r * BLOCK, t->codes + r * K, t->params + r * ng, k0,
                        k1);
        if (k1 < K)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)(K - k1),
                        (int)(k1 - k0), -1, t->e, BLOCK, c->U + (size_t)k0 * (size_t)K + k1, (int)K,
                        1, t->w + k1, (int)K);
    }
}

/* d = w - q and g = d H for a tile. */
static void errors(const work *c, const tile *t, int64_t n0, int64_t rows, const uint8_t *codes,
                   const ug_param *params, const int32_t *gidx)
{
    int64_t K = c->out->t.K, G = c->out->t.scheme.group, ng = K / G;
    for (int64_t r = 0; r < rows; r++) {
        const float *w = c->W + (n0 + r) * K;
        for (int64_t k = 0; k < K; k++) {
            ug_param p = params[r * ng + (gidx ? gidx[k] : k / G)];
            t->d[r * K + k] = w[k] - ug_value((float)codes[r * K + k], p);
        }
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)K, (int)K, 1, t->d,
                (int)K, c->H, (int)K, 0, t->g, (int)K);
}

static double row_loss(const float *d, const float *g, int64_t K)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += (double)d[k] * (double)g[k];
    return sum > 0 ? sum : 0;
}

/* Coordinate descent on one row: with d and g = d H kept up to date, the best real value of q_k is
 * q_k + g_k / H_kk. Returns how many codes moved. */
static int64_t sweep(const work *c, float *d, float *g, uint8_t *codes, const ug_param *params,
                     const int32_t *gidx)
{
    int64_t K = c->out->t.K, G = c->out->t.scheme.group, moved = 0;
    float M = ug_max_code(c->o->spec.bits);
    for (int64_t i = 0; i < K; i++) {
        int64_t k = c->perm[i];
        const float *h = c->H + (size_t)k * (size_t)K;
        if (!(h[k] > 0)) continue;
        ug_param p = params[gidx ? gidx[k] : k / G];
        float q = ug_value((float)codes[k], p), code = ug_code(q + g[k] / h[k], p, M);
        if (code == (float)codes[k]) continue;
        float step = ug_value(code, p) - q;
        codes[k] = (uint8_t)code;
        d[k] -= step;
        for (int64_t j = 0; j < K; j++)
            g[j] -= step * h[j];
        moved++;
    }
    return moved;
}

/* The row's plain grids and codes. */
static void rtn_row(const work *c, const float *w, uint8_t *codes, ug_param *params)
{
    int64_t K = c->out->t.K, G = c->out->t.scheme.group;
    ug_spec plain = c->o->spec;
    plain.search = !c->U && plain.search; /* as a fallback it may search */
    for (int64_t k = 0; k < K; k++) {
        if (k % G == 0)
            params[k / G] = ug_fit(&plain, w + k, c->U || !c->imp ? NULL : c->imp + k, G);
        codes[k] = (uint8_t)ug_code(w[k], params[k / G], ug_max_code(plain.bits));
    }
}

static void run_tile(void *ctx, int64_t item, int thread)
{
    const work *c = ctx;
    int64_t N = c->out->t.N, K = c->out->t.K, G = c->out->t.scheme.group, ng = K / G;
    int64_t n0 = item * ROWS, rows = N - n0 < ROWS ? N - n0 : ROWS;
    tile t = tile_at(c->scratch + (size_t)thread * c->per_thread, K, ng);
    const int32_t *gidx = c->out->t.scheme.irregular ? c->out->w[QT_GIDX] : NULL;
    double plain[ROWS];
    for (int64_t r = 0; r < rows; r++)
        rtn_row(c, c->W + (n0 + r) * K, t.rtn + r * K, t.pr + r * ng);
    errors(c, &t, n0, rows, t.rtn, t.pr, NULL);
    for (int64_t r = 0; r < rows; r++) {
        plain[r] = row_loss(t.d + r * K, t.g + r * K, K);
        c->loss_rtn[item] += plain[r];
    }
    if (c->U) {
        for (int64_t r = 0; r < rows; r++) {
            const float *w = c->W + (n0 + r) * K;
            for (int64_t k = 0; k < K; k++)
                t.w[r * K + k] = w[c->perm[k]];
            for (int64_t g = 0; g < ng && c->o->static_groups; g++)
                t.params[r * ng + g] =
                    ug_fit(&c->o->spec, w + g * G, c->imp ? c->imp + g * G : NULL, G);
        }
        gptq_rows(c, &t, rows);
        errors(c, &t, n0, rows, t.codes, t.params, gidx);
    }
    for (int64_t r = 0; r < rows; r++) {
        float *d = t.d + r * K, *g = t.g + r * K;
        uint8_t *codes = t.codes + r * K;
        ug_param *params = t.params + r * ng;
        for (int i = 0; c->U && i < c->o->sweeps && sweep(c, d, g, codes, params, gidx); i++) {
        }
        double loss = c->U ? row_loss(d, g, K) : plain[r];
        bool keep = c->U && (loss <= plain[r] || gidx);
        c->loss[item] += keep ? loss : plain[r];
        rtn_store_row(c->out, n0 + r, keep ? params : t.pr + r * ng, keep ? codes : t.rtn + r * K,
                      t.zeros);
    }
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

bool gptq_order(int32_t *perm, const float *imp, int64_t K)
{
    column *c = malloc((size_t)K * sizeof *c);
    if (!c) return false;
    for (int64_t k = 0; k < K; k++)
        c[k] = (column){ imp[k], (int32_t)k };
    qsort(c, (size_t)K, sizeof *c, by_falling_h);
    for (int64_t k = 0; k < K; k++)
        perm[k] = c[k].k;
    free(c);
    return true;
}

static bool make_perm(int32_t *perm, const float *imp, int64_t K, bool act_order)
{
    for (int64_t k = 0; k < K; k++)
        perm[k] = (int32_t)k;
    return !act_order || gptq_order(perm, imp, K);
}

lq_status gptq_run(qz_out *out, gptq_report *rep, const float *W, const float *H,
                   const gptq_opts *opts, pool *p, lq_err *err)
{
    int64_t N = out->t.N, K = out->t.K, G = out->t.scheme.group, tiles = lq_ceil_div(N, ROWS);
    size_t k = (size_t)K;
    memset(rep, 0, sizeof *rep);
    work c = { .out = out, .o = opts, .W = W, .H = H, .per_thread = tile_bytes(K, K / G) };
    float *U = malloc(k * k * sizeof *U), *imp = calloc(2 * k, sizeof *imp);
    int32_t *perm = calloc(k, sizeof *perm);
    c.loss = calloc((size_t)tiles * 2, sizeof *c.loss);
    c.scratch = calloc((size_t)pool_threads(p), c.per_thread);
    lq_status s = LQ_ENOMEM;
    if (!U || !imp || !perm || !c.loss || !c.scratch) goto done;
    bool finite = finite_matrix(H, K);
    for (int64_t i = 0; i < K; i++) {
        imp[i] = finite ? H[(size_t)i * k + (size_t)i] : 0;
        rep->dead += !(imp[i] > 0);
    }
    if (!make_perm(perm, imp, K, opts->act_order)) goto done;
    rep->damp = opts->damp;
    s = gptq_factor(U, &rep->damp, H, perm, K, err);
    if (s == LQ_ENOMEM) goto done;
    rep->fallback = s == LQ_ECHECK;
    if (rep->fallback) rep->damp = 0;
    s = LQ_OK;
    if (rep->fallback && out->t.scheme.irregular) make_perm(perm, imp, K, false);
    if (out->t.scheme.irregular)
        for (int64_t i = 0; i < K; i++)
            ((int32_t *)out->w[QT_GIDX])[perm[i]] = (int32_t)(i / G);
    c.U = rep->fallback ? NULL : U;
    c.imp = rep->dead < K ? imp : NULL;
    for (int64_t i = 0; i < K; i++)
        imp[K + i] = imp[perm[i]];
    c.imp_perm = imp + K;
    c.perm = perm;
    c.loss_rtn = c.loss + tiles;
    pool_run(p, tiles, run_tile, &c);
    for (int64_t i = 0; i < tiles; i++) {
        rep->loss += c.loss[i];
        rep->loss_rtn += c.loss_rtn[i];
    }
    if (!finite) rep->loss = rep->loss_rtn = (double)NAN;
done:
    free(c.scratch);
    free(c.loss);
    free(perm);
    free(imp);
    free(U);
    return s ? lq_fail(err, s, "no memory for GPTQ on %lld inputs", (long long)K) : LQ_OK;
}
