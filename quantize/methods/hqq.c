/* quantize/methods/hqq.c - zero points by alternation, group by group. */
#include "quantize/methods/hqq.h"

#include <stdlib.h>

#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

enum { ROUNDS = 20 };
static const double P = 0.7, BETA = 10, GROWTH = 1.01;

/* x^q for normal x > 0, to some 1e-9: only sums, products and quotients of doubles. */
static double power(double x, double q)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) m /= 2, e++;
    /* ln m = 2 atanh t */
    const double t = (m - 1) / (m + 1), u = t * t;
    const double ln =
        2 * t * (1 + u * (1.0 / 3 + u * (1.0 / 5 + u * (1.0 / 7 + u * (1.0 / 9 + u / 11)))));
    const double y = q * ((double)e + ln * 1.4426950408889634);
    const double whole = (double)(int)(y < 0 ? y - 0.5 : y + 0.5);
    const double f = (y - whole) * 0.6931471805599453;
    double exp = 1, term = 1;
    for (int i = 1; i < 11; i++)
        exp += term *= f / i;
    bits = (uint64_t)(1023 + (int)whole) << 52;
    memcpy(&m, &bits, sizeof m);
    return exp * m;
}

/* sum |w - q|^p of one group; codes [n]. */
static double group_loss(const float *w, const uint8_t *codes, float scale, float zero, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double r = fabs((double)w[i] - (double)(scale * ((float)codes[i] - zero)));
        if (r > 1e-30) sum += power(r, P);
    }
    return sum;
}

/* ---- one group ---- */
typedef struct {
    grid_param p;
    uint8_t *codes; /* [n] */
} grid;

static float f16(float x) { return lq_f16_to_f32(lq_f32_to_f16(x)); }

/* Codes on a grid whose zero may be a fraction; returns mean |w - q|. */
static double encode(uint8_t *codes, const float *w, grid_param p, float M, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float c = w[i] / p.scale + p.zero;
        c = c > 0 ? c : 0;
        c = grid_round(c < M ? c : M);
        codes[i] = (uint8_t)c;
        sum += (double)fabsf(w[i] - p.scale * (c - p.zero));
    }
    return sum / (double)n;
}

static double shrink(double r, double beta)
{
    const double a = fabs(r);
    if (a * a < 0.001) return 0; /* a^1.3 < 1 / beta for every beta here */
    const double less = a - power(a, P - 1) / beta;
    return less <= 0 ? 0 : r < 0 ? -less : less;
}

static float next_zero(const float *w, const uint8_t *codes, grid_param p, double beta, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double r = (double)(w[i] - p.scale * ((float)codes[i] - p.zero));
        sum += (double)codes[i] - ((double)w[i] - shrink(r, beta)) / (double)p.scale;
    }
    return (float)(sum / (double)n);
}

static float store_zero(float z, const qt_scheme *s)
{
    const float M = grid_max_code(s->bits);
    if (s->zero == QT_ZERO_F16) return fabsf(z) < 65504 ? f16(z) : z < 0 ? -65504.0f : 65504.0f;
    return z <= 0 ? 0 : z >= M ? M : grid_round(z);
}

static float store_scale(float x, const qt_scheme *s)
{
    if (s->scale_dtype == LQ_F32) return x;
    return x < 0x1p-24f ? 0x1p-24f : x > 65504.0f ? 65504.0f : f16(x);
}

/* The alternation; best->codes and trial are [n]. */
static void alternate(grid *best, uint8_t *trial, const float *w, const qt_scheme *s, int64_t n)
{
    const float M = grid_max_code(s->bits);
    float lo = w[0], hi = w[0];
    for (int64_t i = 1; i < n; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
    const float step = hi / M - lo / M;
    grid_param p = { .scale = store_scale(step > 5e-5f ? step : 5e-5f, s) };
    double least = (double)INFINITY, beta = BETA;
    float z = -lo / p.scale;
    for (int round = 0; round < ROUNDS; round++, beta *= GROWTH) {
        p.zero = store_zero(z, s);
        const double error = encode(trial, w, p, M, n);
        if (!(error < least)) break;
        least = error;
        best->p = p;
        memcpy(best->codes, trial, (size_t)n);
        /* The zero is followed as the fraction it is, whatever is stored. */
        z = next_zero(w, trial, (grid_param){ p.scale, z }, beta, n);
    }
}

/* The scale that suits the codes, by least squares, where it lessens the loss. */
static void refit(grid *g, uint8_t *trial, const float *w, const qt_scheme *s, int64_t n)
{
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        const double c = (double)((float)g->codes[i] - g->p.zero);
        num += c * (double)w[i];
        den += c * c;
    }
    if (!(num > 0) || !(den > 0)) return;
    const grid_param p = { store_scale((float)(num / den), s), g->p.zero };
    encode(trial, w, p, grid_max_code(s->bits), n);
    if (!(group_loss(w, trial, p.scale, p.zero, n) <
          group_loss(w, g->codes, g->p.scale, g->p.zero, n)))
        return;
    g->p = p;
    memcpy(g->codes, trial, (size_t)n);
}

/* codes, trial [n] */
static grid_param fit_group(uint8_t *codes, uint8_t *trial, const float *w, const qt_scheme *s,
                            int64_t n)
{
    const grid_spec plain = rtn_spec(s, GRID_FREE, false);
    const grid_param rtn = grid_fit(&plain, w, NULL, n);
    grid g = { rtn, codes };
    alternate(&g, trial, w, s, n);
    if (s->zero == QT_ZERO_INT) refit(&g, trial, w, s, n);
    encode(trial, w, rtn, grid_max_code(s->bits), n);
    if (group_loss(w, codes, g.p.scale, g.p.zero, n) <=
        group_loss(w, trial, rtn.scale, rtn.zero, n))
        return g.p;
    memcpy(codes, trial, (size_t)n);
    return rtn;
}

/* ---- all of them ---- */
typedef struct {
    qz_out *out;
    const void *W;
    lq_dtype d;
    uint8_t *scratch;
    size_t per_thread, o_params, o_codes, o_trial, o_zeros;
} work;

static void run_rows(void *ctx, int64_t item, int thread)
{
    const work *k = ctx;
    const qt_scheme *s = &k->out->t.scheme;
    const int64_t N = k->out->t.N, K = k->out->t.K, G = s->group;
    uint8_t *mem = k->scratch + (size_t)thread * k->per_thread;
    grid_param *params = (grid_param *)(void *)(mem + k->o_params);
    uint8_t *codes = mem + k->o_codes;
    for (int64_t n = item * QZ_ROWS; n < N && n < (item + 1) * QZ_ROWS; n++) {
        const float *w = qz_rows((float *)(void *)mem, k->W, k->d, K, n, 1);
        for (int64_t g = 0; g * G < K; g++)
            params[g] = fit_group(codes + g * G, mem + k->o_trial, w + g * G, s, G);
        row_store(k->out, n, params, NULL, codes, mem + k->o_zeros);
    }
}

lq_status hqq_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err)
{
    const size_t K = (size_t)out->t.K, G = (size_t)out->t.scheme.group, ng = K / G;
    work k = { .out = out, .W = W, .d = d };
    k.o_params = K * sizeof(float);
    k.o_codes = k.o_params + ng * sizeof(grid_param);
    k.o_trial = k.o_codes + K;
    k.o_zeros = k.o_trial + G;
    k.per_thread = lq_round_up(k.o_zeros + ng, 64);
    k.scratch = calloc((size_t)pool_threads(p), k.per_thread);
    if (!k.scratch) return lq_fail(err, LQ_ENOMEM, "no memory to round rows of %zu weights", K);
    pool_run(p, lq_ceil_div(out->t.N, QZ_ROWS), run_rows, &k);
    free(k.scratch);
    return LQ_OK;
}

/* ---- the method ---- */
static lq_status hqq_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err)
{
    return out->t.scheme.zero != QT_ZERO_NONE ? hqq_run(out, m->W, m->d, p, err)
                                              : rtn_round(out, r, m, p, err);
}

static lq_status hqq_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    return qz_scheme_uint(s, o, "-fzero", err);
}

const qz_method qz_method_hqq = {
    .name = "hqq",
    .help = "half-quadratic: fractional zero points that follow the errors",
    .schemes = "u2 u3 u4 u8",
    .options = QZ_OPT_BITS | QZ_OPT_GROUP,
    .bits = 4,
    .group = 64,
    .bounded = true,
    .alone = true,
    .fractional = true,
    .scheme = hqq_scheme,
    .round = hqq_round,
};
