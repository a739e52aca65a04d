/* quantize/methods/kfac.c - a block of rows at a time, everything in the order of `perm` (columns) and of
 * falling G[n][n] (rows) until the result is stored. */
#include "quantize/methods/kfac.h"

#include <cblas.h>
#include <lapacke.h>
#include <stdlib.h>

#include "quantize/methods/cholesky.h"
#include "quantize/methods/effort.h"
#include "quantize/methods/fp4.h"
#include "quantize/methods/fp8.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

#define CLOSE 1.04 /* of losses after feedback: the descent may turn them round */
/* PANEL: rows of a block whose changes are told to its other rows together. PRODUCTS: rows of K that there is room for, where
 * scales are refitted, and rows of the block whose products are made at once there at most. */
enum { B = KFAC_BLOCK, COLUMNS = 128, PANEL = 32, PRODUCTS = 3 * B, AT_ONCE = 32 };

typedef struct {
    qz_out *out;
    const kfac_opts *o;
    const float *W, *G, *U, *imp;
    const float *H, *Hp; /* by input; in the order of perm, rows and columns */
    float *metric;       /* of lattices: gptq_unit_metrics */
    const int32_t *perm;
    int64_t group, ng, nh;   /* inputs of a group; groups and heads of a row */
    double *loss, *loss_rtn; /* per block of rows */
    bool *failed;            /* per block: G had no factor */
    bool *nearest;           /* per block: rounding to nearest was best */
    uint8_t *scratch;
    size_t per_thread;
} work;

/* One thread's scratch, cut by carve, which returns its bytes; [rows][K] in perm's order unless
 * said otherwise. */
typedef struct {
    float *x, *d, *g, *t; /* targets, of PRODUCTS rows; errors; G d H; d H */
    float *e;             /* [B][COLUMNS] */
    float *G, *L;         /* [B][B] in the order of rows; its unit lower factor, transposed */
    double *A;            /* [B][B] */
    float *feed;          /* [B][LAT_UNIT] */
    float *accs, *acc;    /* [PANEL][K]: what d H lost by each row's changes; the row's at work */
    grid_param *params;   /* [B][ng] */
    uint8_t *codes, *row; /* [B][K]; [K] in the order of inputs */
    row_head *heads;      /* [B][nh] */
    grid_param *best_params; /* of the best rounding so far */
    row_head *best_heads;
    uint8_t *best_codes;
    uint8_t *zeros;   /* [ng] */
    int32_t order[B]; /* rows */
} tile;

static size_t carve(tile *t, uint8_t *mem, int64_t K, int64_t ng, int64_t nh)
{
    size_t at = 0, k = (size_t)K, n = (size_t)ng, h = (size_t)nh;
    const struct {
        void *to;
        size_t bytes;
    } parts[] = {
        { &t->x, PRODUCTS * k * sizeof(float) },
        { &t->d, B * k * sizeof(float) },
        { &t->g, B * k * sizeof(float) },
        { &t->t, B * k * sizeof(float) },
        { &t->e, B * COLUMNS * sizeof(float) },
        { &t->G, (size_t)B * B * sizeof(float) },
        { &t->L, (size_t)B * B * sizeof(float) },
        { &t->A, (size_t)B * B * sizeof(double) },
        { &t->feed, (size_t)B * LAT_UNIT * sizeof(float) },
        { &t->accs, PANEL * k * sizeof(float) },
        { &t->params, B * n * sizeof(grid_param) },
        { &t->heads, B * h * sizeof(row_head) },
        { &t->codes, B * k },
        { &t->best_params, B * n * sizeof(grid_param) },
        { &t->best_heads, B * h * sizeof(row_head) },
        { &t->best_codes, B * k },
        { &t->row, k },
        { &t->zeros, n },
    };
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        void *p = mem ? mem + at : NULL;
        memcpy(parts[i].to, &p, sizeof p);
        at += lq_round_up(parts[i].bytes, 64);
    }
    return at;
}

/* ---- G of a block: order, damping, factor ---- */
typedef struct {
    float g;
    int32_t n;
} row_key;

static int by_falling_g(const void *a, const void *b)
{
    const row_key *x = a, *y = b;
    if (x->g != y->g) return x->g > y->g ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* t->G: the block in order, its diagonal's mean 1 before damping; t->L [m][n] for n > m: what row
 * n's target gains per unit of row m's error. G = L^T diag L with L unit lower, from the Cholesky
 * factor of the reversed matrix. */
static bool factor_block(tile *t, const work *w, int64_t block, int64_t rows)
{
    const float *G = w->G + (size_t)block * B * B;
    row_key key[B];
    double mean = 0, damp = w->o->damp_g > 0 ? w->o->damp_g : 0.05;
    for (int64_t i = 0; i < rows; i++) {
        key[i] = (row_key){ G[i * B + i], (int32_t)i };
        mean += (double)G[i * B + i] / (double)rows;
    }
    if (!(mean > 0) || !isfinite(mean)) return false;
    qsort(key, (size_t)rows, sizeof *key, by_falling_g);
    for (int64_t i = 0; i < rows; i++)
        t->order[i] = key[i].n;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++)
            t->G[i * B + j] = (float)((double)G[t->order[i] * B + t->order[j]] / mean) +
                              (i == j ? (float)damp : 0);
    /* A = J G J; its factor C (lower, row-major) gives L^T scaled: G = (J C J)(J C^T J). */
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j <= i; j++)
            t->A[i * B + j] = (double)t->G[(rows - 1 - i) * B + rows - 1 - j];
    if (LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', (lapack_int)rows, t->A, B) != 0) return false;
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = m + 1; n < rows; n++) {
            const double *c = t->A + (rows - 1 - m) * B;
            t->L[m * B + n] = (float)(c[rows - 1 - n] / t->A[(rows - 1 - n) * B + rows - 1 - n]);
        }
    return true;
}

/* ---- rounding with feedback ---- */
/* Codes of one row in the unit of columns k.., whose targets are x. */
static void choose(const work *w, uint8_t *code, const float *x, int64_t k, grid_param p)
{
    const grid_spec *spec = &w->o->spec;
    if (spec->points)
        lattice_choose(code, spec->points, w->metric + k * LAT_UNIT, x, p.scale);
    else
        *code = (uint8_t)row_code(spec, *x, p);
}

static void round_columns(const work *w, tile *t, int64_t rows, int64_t k0, int64_t k1)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    const grid_spec *spec = &w->o->spec;
    const int unit = row_unit(spec);
    for (int64_t k = k0; k < k1; k += unit) {
        const int64_t g = w->perm[k] / G;
        memset(t->feed, 0, (size_t)(rows * unit) * sizeof *t->feed);
        for (int64_t n = 0; n < rows; n++) {
            float *x = t->x + n * K, target[LAT_UNIT];
            const grid_param p = t->params[n * ng + g];
            uint8_t *code = t->codes + n * K + k;
            for (int i = 0; i < unit; i++)
                target[i] = x[k + i] + t->feed[n * unit + i];
            choose(w, code, target, k, p);
            for (int i = 0; i < unit; i++)
                cblas_saxpy((int)(rows - n - 1), x[k + i] - row_value(spec, code[i], p),
                            t->L + n * B + n + 1, 1, t->feed + (n + 1) * unit + i, unit);
            for (int64_t i = k; i < k + unit; i++) {
                const float *u = w->U + (size_t)i * (size_t)K;
                const float e = (x[i] - row_value(spec, code[i - k], p)) / u[i];
                t->e[n * COLUMNS + i - k0] = e;
                cblas_saxpy((int)(k1 - i - 1), -e, u + i + 1, 1, x + i + 1, 1);
            }
        }
    }
}

static void round_with_feedback(const work *w, tile *t, int64_t n0, int64_t rows)
{
    const int64_t K = w->out->t.K;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < K; k++)
            t->x[n * K + k] = w->W[(n0 + t->order[n]) * K + w->perm[k]];
    for (int64_t k0 = 0; k0 < K; k0 += COLUMNS) {
        int64_t k1 = k0 + COLUMNS < K ? k0 + COLUMNS : K;
        round_columns(w, t, rows, k0, k1);
        if (k1 < K)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)(K - k1),
                        (int)(k1 - k0), -1, t->e, COLUMNS, w->U + (size_t)k0 * (size_t)K + k1,
                        (int)K, 1, t->x + k1, (int)K);
    }
}

/* ---- descent ---- */
typedef struct {
    double both;  /* tr(G d H d^T), G as damped */
    double plain; /* tr(d H d^T): all outputs alike */
} losses;

/* d = w - q, g = G d H. */
static losses errors(const work *w, tile *t, int64_t n0, int64_t rows)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    for (int64_t n = 0; n < rows; n++) {
        const float *row = w->W + (n0 + t->order[n]) * K;
        for (int64_t k = 0; k < K; k++)
            t->d[n * K + k] = row[w->perm[k]] - row_value(&w->o->spec, (float)t->codes[n * K + k],
                                                          t->params[n * ng + w->perm[k] / G]);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)K, (int)K, 1, t->d,
                (int)K, w->Hp, (int)K, 0, t->t, (int)K);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)K, (int)rows, 1, t->G, B,
                t->t, (int)K, 0, t->g, (int)K);
    losses l = { 0, 0 };
    for (int64_t i = 0; i < rows * K; i++) {
        l.both += (double)t->d[i] * (double)t->g[i];
        l.plain += (double)t->d[i] * (double)t->t[i];
    }
    return l;
}

/* Rows are changed one after the other, from the first; t->acc is zero. */
static void begin_row(tile *t, int64_t n, int64_t K)
{
    t->acc = t->accs + n % PANEL * K;
    memset(t->acc, 0, (size_t)K * sizeof *t->acc);
}

/* g of rows first .. end loses what those of a panel, from .. to, have in t->accs. */
static void tell(tile *t, int64_t first, int64_t end, int64_t from, int64_t to, int64_t K)
{
    if (first < end)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(end - first), (int)K,
                    (int)(to - from), -1, t->G + first * B + from, B, t->accs, (int)K, 1,
                    t->g + first * K, (int)K);
}

/* Row n's errors changed by -t->acc H^-1, t->acc [K] being what d H lost: the rows of its panel are told at once, the others
 * when the panel is done. */
static void spread(tile *t, int64_t n, int64_t rows, int64_t K, bool changed)
{
    const int64_t from = n - n % PANEL, to = from + PANEL < rows ? from + PANEL : rows;
    if (changed)
        cblas_sger(CblasRowMajor, (int)(to - from), (int)K, -1, t->G + from * B + n, B, t->acc, 1,
                   t->g + from * K, (int)K);
    if (n + 1 < to) return;
    tell(t, 0, from, from, to, K);
    tell(t, to, rows, from, to, K);
}

/* A code of row n became another. */
static void take_step(const work *w, tile *t, int64_t n, int64_t k, uint8_t code, grid_param p)
{
    const int64_t K = w->out->t.K;
    uint8_t *old = t->codes + n * K + k;
    const float step = row_value(&w->o->spec, code, p) - row_value(&w->o->spec, *old, p);
    *old = code;
    t->d[n * K + k] -= step;
    cblas_saxpy((int)K, step, w->Hp + (size_t)k * (size_t)K, 1, t->acc, 1);
}

/* The best real value of q_k with all else held is q_k + g_k / (G_nn H_kk). */
static int64_t move_code(const work *w, tile *t, int64_t n, int64_t k, grid_param p)
{
    const int64_t K = w->out->t.K;
    const float h = w->Hp[(size_t)k * (size_t)K + (size_t)k], gg = t->G[n * B + n];
    const uint8_t old = t->codes[n * K + k];
    if (!(h > 0)) return 0;
    const float q = row_value(&w->o->spec, old, p);
    const float code = row_code(&w->o->spec, q + (t->g[n * K + k] - gg * t->acc[k]) / (gg * h), p);
    if (code == (float)old) return 0;
    take_step(w, t, n, k, (uint8_t)code, p);
    return 1;
}

/* The codes of a lattice's unit together. */
static int64_t move_unit(const work *w, tile *t, int64_t n, int64_t k, grid_param p)
{
    enum { N = LAT_UNIT };
    const int64_t K = w->out->t.K;
    float M[N * N], r[N];
    uint8_t code[N];
    memcpy(code, t->codes + n * K + k, N);
    for (int i = 0; i < N; i++) {
        memcpy(M + i * N, w->Hp + (k + i) * K + k, N * sizeof *M);
        r[i] = t->g[n * K + k + i] / t->G[n * B + n] - t->acc[k + i];
    }
    if (!lattice_descend(code, w->o->spec.points, M, r, p.scale)) return 0;
    for (int i = 0; i < N; i++)
        if (code[i] != t->codes[n * K + k + i]) take_step(w, t, n, k + i, code[i], p);
    return 1;
}

/* The codes of row n, one after the other. */
static int64_t sweep_row(const work *w, tile *t, int64_t n, int64_t rows)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    const bool units = w->o->spec.points;
    int64_t moved = 0;
    begin_row(t, n, K);
    for (int64_t k = 0; k < K; k += row_unit(&w->o->spec)) {
        const grid_param p = t->params[n * ng + w->perm[k] / G];
        moved += units ? move_unit(w, t, n, k, p) : move_code(w, t, n, k, p);
    }
    spread(t, n, rows, K, moved > 0);
    return moved;
}

/* c = code - zero of group i of rows n .. n + m, [m][G], and v = c H, [K] by input, rows ldv apart. */
static void group_products(const work *w, const tile *t, float *c, float *v, int64_t ldv, int64_t n,
                           int64_t m, int64_t i)
{
    const int64_t K = w->out->t.K, G = w->group;
    const int32_t *place = w->perm + K + i * G;
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < G; j++)
            c[r * G + j] =
                (float)t->codes[(n + r) * K + place[j]] - t->params[(n + r) * w->ng + i].zero;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)K, (int)G, 1, c, (int)G,
                w->H + i * G * K, (int)K, 0, v, (int)ldv);
}

/* The scale of group i of row n by least squares: s += (g c) / (G_nn c H c). lost [K], by input: what d H lost so far. */
static void refit_scale(const work *w, tile *t, int64_t n, int64_t i, const float *v, float *lost)
{
    const int64_t K = w->out->t.K, G = w->group;
    const int32_t *place = w->perm + K + i * G;
    const float gg = t->G[n * B + n];
    grid_param *p = &t->params[n * w->ng + i];
    double num = 0, den = 0;
    for (int64_t j = 0; j < G; j++) {
        const double c = (double)((float)t->codes[n * K + place[j]] - p->zero);
        num += c * (double)(t->g[n * K + place[j]] - gg * lost[i * G + j]);
        den += c * (double)v[i * G + j];
    }
    if (!(den > 0)) return;
    float s = p->scale + (float)(num / (den * (double)gg)), stored;
    uint8_t raw[4];
    lq_from_f32(raw, &s, w->o->spec.scale_dtype, 1);
    lq_to_f32(&stored, raw, w->o->spec.scale_dtype, 1);
    const float step = stored - p->scale;
    if (!(fabsf(step) < 0.5f * fabsf(p->scale)) || stored == 0) return;
    p->scale = stored;
    for (int64_t j = 0; j < G; j++)
        t->d[n * K + place[j]] -= step * ((float)t->codes[n * K + place[j]] - p->zero);
    cblas_saxpy((int)K, step, v, 1, lost, 1);
}

/* The scales of all rows, one group after the other. What codes make of H depends on no scale, so that it is a product
 * of several rows at a time, as many as t->x has room for; it is read once for all of them. */
static void refit(const work *w, tile *t, int64_t rows)
{
    const int64_t K = w->out->t.K, ng = w->ng, room = PRODUCTS / ng,
                  at_once = room < AT_ONCE ? room : AT_ONCE;
    const int32_t *place = w->perm + K;
    float *v = t->x, *lost = t->t, *c = t->t + K;
    for (int64_t n = 0; n < rows; n++) {
        const int64_t r = at_once ? n % at_once : 0, left = rows - n;
        for (int64_t i = 0; i < ng && at_once && r == 0; i++)
            group_products(w, t, c, v + i * K, ng * K, n, left < at_once ? left : at_once, i);
        memset(lost, 0, (size_t)K * sizeof *lost);
        for (int64_t i = 0; i < ng; i++) {
            if (!at_once) group_products(w, t, c, v, K, n, 1, i);
            refit_scale(w, t, n, i, v + (at_once ? (r * ng + i) * K : 0), lost);
        }
        begin_row(t, n, K);
        for (int64_t k = 0; k < K; k++)
            t->acc[place[k]] = lost[k];
        spread(t, n, rows, K, true);
    }
}

/* A group of a row, with another scale. */
typedef struct {
    float H[FP4_GROUP * FP4_GROUP]; /* of its inputs */
    float value[FP4_GROUP];         /* of its codes */
    float slope[FP4_GROUP]; /* g / G_nn: half of what the loss falls by per unit of a value */
    float at[FP4_GROUP], left[FP4_GROUP];
    uint8_t code[FP4_GROUP];
} regroup;

/* Codes for that scale, by descent from where the values are; returns by how much the loss changes, over G_nn. */
static double rescale(regroup *x, const grid_spec *s, int G, grid_param p)
{
    enum { PASSES = 2 };
    double change = 0;
    memcpy(x->at, x->value, (size_t)G * sizeof *x->at);
    memcpy(x->left, x->slope, (size_t)G * sizeof *x->left);
    for (int pass = 0; pass < PASSES; pass++)
        for (int j = 0; j < G; j++) {
            const float *h = x->H + j * G;
            const float code = row_code(s, h[j] > 0 ? x->at[j] + x->left[j] / h[j] : x->at[j], p);
            const float step = row_value(s, code, p) - x->at[j];
            x->code[j] = (uint8_t)code;
            x->at[j] += step;
            for (int l = 0; l < G && step != 0; l++)
                x->left[l] -= step * h[l];
        }
    for (int j = 0; j < G; j++)
        change -= (double)(x->at[j] - x->value[j]) * (double)(x->slope[j] + x->left[j]);
    return change;
}

/* The scales of row n, of few values, one group after the other: that with which the loss is least, with its codes. */
static void move_scales(const work *w, tile *t, int64_t n, int64_t rows, const int32_t *place)
{
    const int64_t K = w->out->t.K, ng = w->ng;
    const int G = (int)w->group;
    const grid_spec *s = &w->o->spec;
    regroup x;
    begin_row(t, n, K);
    for (int64_t i = 0; i < ng; i++, place += G) {
        grid_param near[2 * FP4_NEAR], *p = &t->params[n * ng + i];
        const int choices = fp4_near(near, s, *p);
        double best = 0;
        int to = -1;
        for (int j = 0; j < G; j++) {
            const int64_t k = place[j];
            x.value[j] = row_value(s, t->codes[n * K + k], *p);
            x.slope[j] = t->g[n * K + k] / t->G[n * B + n] - t->acc[k];
            for (int l = 0; l < G; l++)
                x.H[j * G + l] = w->Hp[k * K + place[l]];
        }
        for (int c = 0; c < choices; c++) {
            const double change = rescale(&x, s, G, near[c]);
            if (change < best) best = change, to = c;
        }
        if (to < 0) continue;
        rescale(&x, s, G, *p = near[to]);
        for (int j = 0; j < G; j++) {
            const float step = x.at[j] - x.value[j];
            t->codes[n * K + place[j]] = x.code[j];
            cblas_saxpy((int)K, step, w->Hp + (size_t)place[j] * (size_t)K, 1, t->acc, 1);
        }
    }
    spread(t, n, rows, K, true);
}

/* Has each group of a row a scale of its own, of any value? Of few values? */
static bool refits(const grid_spec *s) { return !s->blocks && !s->table && !s->floats; }
static bool moves(const grid_spec *s, int64_t G)
{
    return s->table && !s->blocks && s->search && G <= FP4_GROUP;
}

static losses descend(const work *w, tile *t, int64_t n0, int64_t rows, const int32_t *place)
{
    int rounds = w->o->rounds > 0 ? w->o->rounds : 1;
    for (int r = 0; r < rounds; r++) {
        errors(w, t, n0, rows); /* afresh: rounding errors of the updates do not pile up */
        if (w->o->rounds > 0 && refits(&w->o->spec)) refit(w, t, rows);
        for (int64_t n = 0; n < rows && r == 0 && w->o->rounds > 0 && moves(&w->o->spec, w->group);
             n++)
            move_scales(w, t, n, rows, place);
        for (int i = 0; i < w->o->sweeps; i++) {
            int64_t moved = 0;
            for (int64_t n = 0; n < rows; n++)
                moved += sweep_row(w, t, n, rows);
            if (!moved) break;
        }
    }
    return errors(w, t, n0, rows);
}

/* ---- a block of rows ---- */
static void fit_grids(const work *w, tile *t, int64_t n0, int64_t rows, bool plain)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    grid_spec spec = w->o->spec;
    if (plain) spec.search = false;
    for (int64_t n = 0; n < rows; n++)
        row_fit(t->params + n * ng, t->heads + n * w->nh, &spec, w->W + (n0 + t->order[n]) * K,
                plain ? NULL : w->imp, n0 + t->order[n], K, G);
}

static void round_plain(const work *w, tile *t, int64_t n0, int64_t rows)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    for (int64_t n = 0; n < rows; n++) {
        const float *row = w->W + (n0 + t->order[n]) * K;
        for (int64_t k = 0; k < K; k += G)
            row_codes(t->row + k, &w->o->spec, row + k, NULL, G, t->params[n * ng + k / G]);
        for (int64_t k = 0; k < K; k++)
            t->codes[n * K + k] = t->row[w->perm[k]];
    }
}

static void store(const work *w, tile *t, int64_t n0, int64_t rows)
{
    const int64_t K = w->out->t.K, ng = w->ng;
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t k = 0; k < K; k++)
            t->row[w->perm[k]] = t->codes[n * K + k];
        row_store(w->out, n0 + t->order[n], t->params + n * ng, t->heads + n * w->nh, t->row,
                  t->zeros);
    }
}

/* Where tuning starts from: not how far a weight was from its code, which later codes have made up for, but from what
 * is best beside them; a code that is as good as its neighbour is nearly in the middle. */
static void store_rest(const work *w, tile *t, int64_t n0, int64_t rows)
{
    const int64_t K = w->out->t.K, G = w->group, ng = w->ng;
    errors(w, t, n0, rows);
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < K; k++) {
            const float scale = t->params[n * ng + w->perm[k] / G].scale;
            const float h = t->G[n * B + n] * w->Hp[k * K + k] * scale;
            w->o->rest[(n0 + t->order[n]) * K + w->perm[k]] =
                row_rest(w->o->spec.table, w->o->spec.bits, t->codes[n * K + k],
                         h != 0 ? t->g[n * K + k] / h : 0);
        }
}

static void keep_tile(const work *w, tile *t, int64_t rows)
{
    memcpy(t->best_codes, t->codes, (size_t)(rows * w->out->t.K));
    memcpy(t->best_params, t->params, (size_t)(rows * w->ng) * sizeof *t->params);
    memcpy(t->best_heads, t->heads, (size_t)(rows * w->nh) * sizeof *t->heads);
}

/* Grids, and codes by one pass with feedback; their loss. */
static double feed(const work *w, tile *t, int64_t n0, int64_t rows, bool plain)
{
    fit_grids(w, t, n0, rows, plain);
    round_with_feedback(w, t, n0, rows);
    return errors(w, t, n0, rows).both;
}

/* Grids with their ends drawn in, grids that cover all, rounding to nearest: the best is kept. A descent takes eight times
 * as long as the pass before it; where grids that cover all have a loss after the pass that is not CLOSE they were never
 * better in the end. */
static void run_block(void *ctx, int64_t item, int thread)
{
    const work *w = ctx;
    const int64_t N = w->out->t.N, K = w->out->t.K;
    const int64_t n0 = item * B, rows = N - n0 < B ? N - n0 : B;
    tile t;
    carve(&t, w->scratch + (size_t)thread * w->per_thread, K, w->ng, w->nh);
    bool usable = w->U && factor_block(&t, w, item, rows);
    w->failed[item] = !usable;
    if (!usable) {
        for (int64_t n = 0; n < rows; n++)
            t.order[n] = (int32_t)n;
        fit_grids(w, &t, n0, rows, !w->imp);
        round_plain(w, &t, n0, rows);
        store(w, &t, n0, rows);
        return;
    }
    losses best, l;
    fit_grids(w, &t, n0, rows, true);
    round_plain(w, &t, n0, rows);
    best = errors(w, &t, n0, rows);
    w->loss_rtn[item] = best.plain > 0 ? best.plain : 0;
    w->nearest[item] = true;
    keep_tile(w, &t, rows);
    const bool both = w->o->spec.search;
    const double covering = both ? feed(w, &t, n0, rows, true) : 0,
                 fed = feed(w, &t, n0, rows, !both);
    for (int second = 0; second <= both; second++) {
        if (second && covering > CLOSE * fed) continue;
        if (second) feed(w, &t, n0, rows, true); /* again */
        l = descend(w, &t, n0, rows, w->perm + K);
        if (!(l.both < best.both)) continue;
        best = l;
        w->nearest[item] = false;
        keep_tile(w, &t, rows);
    }
    memcpy(t.codes, t.best_codes, (size_t)(rows * K));
    memcpy(t.params, t.best_params, (size_t)(rows * w->ng) * sizeof *t.params);
    memcpy(t.heads, t.best_heads, (size_t)(rows * w->nh) * sizeof *t.heads);
    w->loss[item] = best.plain > 0 ? best.plain : 0;
    store(w, &t, n0, rows);
    if (w->o->rest) store_rest(w, &t, n0, rows);
}

lq_status kfac_run(qz_out *out, gptq_report *rep, const float *W, const gptq_basis *b,
                   const float *G, const kfac_opts *opts, pool *p, lq_err *err)
{
    const int64_t N = out->t.N, K = out->t.K;
    const int64_t blocks = lq_ceil_div(N, B);
    const size_t k = (size_t)K, n = (size_t)blocks;
    tile none;
    *rep = (gptq_report){ .damp = b->damp, .dead = b->dead, .fallback = !b->U };
    work w = { .out = out, .o = opts, .W = W, .G = G, .U = b->U };
    w.group = row_group(&out->t.scheme);
    if (!w.group) w.group = K;
    w.ng = K / w.group;
    w.nh = row_heads(&opts->spec, K);
    w.per_thread = carve(&none, NULL, K, w.ng, w.nh);
    float *Hp = malloc(k * k * sizeof *Hp);
    w.metric = opts->spec.points ? malloc(k * LAT_UNIT * sizeof *w.metric) : NULL;
    int32_t *perm = malloc(2 * k * sizeof *perm); /* and its inverse */
    w.loss = calloc(2 * n, sizeof *w.loss);
    w.failed = calloc(2 * n, sizeof *w.failed);
    w.scratch = calloc((size_t)pool_threads(p), w.per_thread);
    lq_status s = LQ_ENOMEM;
    if ((opts->spec.points && !w.metric) || !Hp || !perm || !w.loss || !w.failed || !w.scratch)
        goto done;
    memcpy(perm, b->perm, k * sizeof *perm);
    for (size_t i = 0; i < k; i++)
        perm[k + (size_t)perm[i]] = (int32_t)i;
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < k; j++)
            Hp[i * k + j] = b->H[(size_t)perm[i] * k + (size_t)perm[j]];
    s = LQ_OK;
    if (w.U && w.metric) gptq_unit_metrics(w.metric, w.U, K);
    w.imp = rep->fallback || b->dead == K ? NULL : b->imp;
    w.H = b->H;
    w.Hp = Hp;
    w.perm = perm;
    w.loss_rtn = w.loss + n;
    w.nearest = w.failed + n;
    pool_run(p, blocks, run_block, &w);
    for (size_t i = 0; i < n; i++) {
        rep->loss += w.loss[i];
        rep->loss_rtn += w.loss_rtn[i];
        rep->fallback = rep->fallback || w.failed[i];
        rep->nearest += w.nearest[i];
    }
    if (rep->fallback) rep->loss = rep->loss_rtn = (double)NAN;
done:
    free(w.scratch);
    free(w.failed);
    free(w.loss);
    free(perm);
    free(w.metric);
    free(Hp);
    if (s != LQ_ENOMEM) return s;
    return lq_fail(err, s, "no memory to round a weight of %lld inputs", (long long)K);
}

/* ---- the method ---- */
enum { ROUNDS = 3 };

static lq_status auto_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err)
{
    if (!m->G) return gptq_round(out, r, m, p, err);
    gptq_report rep;
    const kfac_opts o = { .spec = rtn_spec_of(out, m->o->limits, !m->o->no_clip),
                          .sweeps = GPTQ_SWEEPS,
                          .rounds = ROUNDS,
                          .rest = qz_effort_of(m->o)->from_loss ? m->rest : NULL };
    lq_status s = gptq_share(out, m, NULL, p, err);
    if (!s && o.spec.floats) s = fp8_scales(out, m->W, m->d, p, err);
    if (!s) s = kfac_run(out, &rep, m->W, m->basis, m->G, &o, p, err);
    if (s) return s;
    r->measure_rtn = true; /* its losses are by G too */
    r->damp = rep.damp;
    r->dead = rep.dead;
    r->nearest = rep.nearest;
    r->fallback = rep.fallback;
    r->rested = o.rest && !rep.fallback;
    return LQ_OK;
}

static size_t auto_scratch(const qz_room *r)
{
    const size_t K = (size_t)r->K, F = sizeof(float), factor = cholesky_bytes(r->K);
    if (!r->curvature) return gptq_scratch(r);
    const size_t tiles = K * ((PRODUCTS + 3 * B + PANEL) * F + 2 * B),
                 rows = (size_t)r->threads * tiles + (size_t)r->N * KFAC_BLOCK * F;
    return 2 * K * K * F + (factor > rows ? factor : rows);
}

const qz_method qz_method_auto = {
    .name = "auto",
    .help = "rounding weighted by the curvature of the output distribution, then codes, scales "
            "and norms are trained jointly",
    .schemes = "u2 u3 u4 u8, GGUF blocks, nvfp4, mxfp4, fp8-e4m3",
    .options = QZ_OPTS_H | QZ_OPT_MATCH | QZ_OPT_DAMP | QZ_OPT_EFFORT,
    .on = QZ_OPT_CLIP | QZ_OPT_FOLD | QZ_OPT_TUNE,
    .always = QZ_OPT_MATCH,
    .bits = 4,
    .group = 128,
    .needs = QZ_NEEDS_H | QZ_NEEDS_CURVATURE,
    .without_curvature = "rounding as gptq, no tuning",
    .plan = 6,
    .blocks = true,
    .floats = true,
    .scheme = qz_scheme_grid,
    .scratch = auto_scratch,
    .share = gptq_share,
    .round = auto_round,
};
