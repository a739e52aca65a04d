/* calib/backward_streams.c - several residual streams, of which a layer works on the first (AltUp), and Laurel beside its
 * attention, forward and back (calib/backward_impl.h): runtime/forward/forward_altup.c, its formulas.
 *
 * The first stream is x; the others stay in g, for every layer as they are before it, and so do their gradients on the way
 * back. What the last layer gives is the streams' mean. Of m = tanh(router norm(x) / hidden), a row's streams s and
 * coefficients w = predict m, then w = correct m:
 *
 *     out_j = s_j + sum_i w_ji s_i         ds_i = dout_i + sum_j w_ji dout_j       dw_ji = <dout_j, s_i>
 *     out_j = s_j + (w_j + 1) (y - s_0)    dy = sum_j (w_j + 1) dout_j             dw_j = <dout_j, y - s_0>
 *
 * y being what the layer made of s_0, whose gradient loses dy. */
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

enum { MOST = GRAD_STREAMS_MOST };
#define LEAST 1e-5 /* of the mean square of what is scaled */

static int64_t others(const arch_config *c) { return c->streams ? c->streams - 1 : 0; }

int64_t grad_streams_floats(const arch_config *c, int64_t R)
{
    return (c->layers + 3) * R * others(c) * c->hidden + (c->streams ? R * c->hidden : 0);
}

lq_status grad_open_streams(grad_ctx *g, int64_t R, lq_err *err)
{
    const arch_config *c = g->all;
    const int64_t n = R * others(c) * c->hidden;
    grad_streams *s = &g->streams;
    const grad_part p[] = { { &s->before, c->layers * n },
                            { &s->now, n },
                            { &s->d, n },
                            { &s->made, n },
                            { &s->dfirst, c->streams ? R * c->hidden : 0 } };
    return grad_push(g, p, LQ_COUNT(p), err);
}

/* ---- rows ---- */
typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    const float *x; /* what came into the layer */
    float *to, *d;
    int64_t R, H, n; /* n: streams */
} stream_job;

static stream_job job_of(grad_ctx *g, const grad_layer *l, int64_t R)
{
    return (stream_job){ .g = g, .l = l, .R = R, .H = g->c->hidden, .n = g->c->streams };
}

static void run_rows(stream_job *j, void (*fn)(void *, int64_t, int))
{
    pool_run(j->g->p, lq_ceil_div(j->R, GRAD_ROWS), fn, j);
}

static grad_norm router_norm(const stream_job *j)
{
    const arch_config *c = j->g->c;
    return (grad_norm){ .w = j->l->stream_norm,
                        .offset = arch_norm_offset(c, R_STREAM_NORM),
                        .eps = (float)arch_norm_eps_at(c, R_STREAM_NORM, j->g->layer) };
}

/* m of a row x. */
static void modalities(const stream_job *j, float *m, const float *x)
{
    const grad_norm v = router_norm(j);
    double sq = 0;
    for (int64_t h = 0; h < j->H; h++)
        sq += (double)x[h] * (double)x[h];
    const double inv = 1 / sqrt(sq / (double)j->H + (double)v.eps) / (double)j->H;
    for (int64_t i = 0; i < j->n; i++) {
        double sum = 0;
        for (int64_t h = 0; h < j->H; h++)
            sum += (double)j->l->stream_router[i * j->H + h] * (double)(v.w[h] + v.offset) *
                   (double)x[h];
        m[i] = (float)tanh(sum * inv);
    }
}

/* dx += what x has through m, of the gradients dm. */
static void modalities_back(const stream_job *j, float *dx, const float *dm, const float *m,
                            const float *x)
{
    const grad_norm v = router_norm(j);
    double sq = 0, dot = 0;
    for (int64_t pass = 0; pass < 2; pass++) {
        const double inv = pass ? 1 / sqrt(sq / (double)j->H + (double)v.eps) : 0;
        for (int64_t h = 0; h < j->H; h++) {
            double d = 0;
            for (int64_t i = 0; i < j->n; i++)
                d += (double)dm[i] * (1 - (double)m[i] * (double)m[i]) *
                     (double)j->l->stream_router[i * j->H + h];
            d *= (double)(v.w[h] + v.offset) / (double)j->H;
            if (pass) dx[h] += (float)(inv * (d - (double)x[h] * dot / (double)j->H * inv * inv));
            sq += pass ? 0 : (double)x[h] * (double)x[h];
            dot += pass ? 0 : d * (double)x[h];
        }
    }
}

/* out [rows] = w [rows, n] m; or back, dm = w^T dout. */
static void coefficients(float *out, const float *w, const float *m, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < rows; i++) {
        out[i] = 0;
        for (int64_t k = 0; k < n; k++)
            out[i] += w[i * n + k] * m[k];
    }
}

static void coefficients_back(float *dm, const float *w, const double *dout, int64_t rows,
                              int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        double sum = 0;
        for (int64_t i = 0; i < rows; i++)
            sum += (double)w[i * n + k] * dout[i];
        dm[k] = (float)sum;
    }
}

/* Number h of stream i of a row: the first is in x, the others in s. */
static float *stream_at(const stream_job *j, float *x, float *s, int64_t i, int64_t h)
{
    return i ? &s[(i - 1) * j->H + h] : &x[h];
}

/* ---- before the layer ---- */
static void predict_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float m[MOST], w[MOST * MOST], *x = j->to + r * j->H;
        float *s = j->g->streams.now + r * (j->n - 1) * j->H;
        modalities(j, m, x);
        coefficients(w, j->l->stream_predict, m, j->n * j->n, j->n);
        for (int64_t h = 0; h < j->H; h++) {
            float was[MOST];
            for (int64_t i = 0; i < j->n; i++)
                was[i] = *stream_at(j, x, s, i, h);
            for (int64_t k = 0; k < j->n; k++) {
                float sum = 0;
                for (int64_t i = 0; i < j->n; i++)
                    sum += was[i] * w[k * j->n + i];
                *stream_at(j, x, s, k, h) = sum + was[k];
            }
        }
    }
}

static float *before_layer(const grad_ctx *g)
{
    return g->streams.before + g->layer * g->rows * others(g->c) * g->c->hidden;
}

void grad_streams_enter(grad_ctx *g, const grad_layer *l, float *x, int64_t R, bool again)
{
    stream_job j = job_of(g, l, R);
    const size_t bytes = (size_t)(R * (j.n - 1) * j.H) * sizeof *x;
    float *before = before_layer(g);
    memcpy(again ? g->streams.now : before, again ? before : g->streams.now, bytes);
    j.to = x;
    run_rows(&j, predict_item);
    if (x != g->m->x1) memcpy(g->m->x1, x, (size_t)(R * j.H) * sizeof *x);
}

static void predict_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    const float *all = before_layer(j->g);
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const int64_t at = r * (j->n - 1) * j->H;
        const float *x = j->x + r * j->H, *s = all + at;
        float m[MOST], dm[MOST], w[MOST * MOST], *d = j->d + r * j->H;
        float *ds = j->g->streams.d + at;
        double dw[MOST * MOST] = { 0 };
        modalities(j, m, x);
        coefficients(w, j->l->stream_predict, m, j->n * j->n, j->n);
        for (int64_t h = 0; h < j->H; h++) {
            float dout[MOST];
            for (int64_t k = 0; k < j->n; k++)
                dout[k] = *stream_at(j, d, ds, k, h);
            for (int64_t i = 0; i < j->n; i++) {
                const float was = i ? s[(i - 1) * j->H + h] : x[h];
                float sum = dout[i];
                for (int64_t k = 0; k < j->n; k++) {
                    sum += dout[k] * w[k * j->n + i];
                    dw[k * j->n + i] += (double)dout[k] * (double)was;
                }
                *stream_at(j, d, ds, i, h) = sum;
            }
        }
        coefficients_back(dm, j->l->stream_predict, dw, j->n * j->n, j->n);
        modalities_back(j, d, dm, m, x);
    }
}

void grad_streams_enter_back(grad_ctx *g, const grad_layer *l, const float *x, float *d, int64_t R)
{
    stream_job j = job_of(g, l, R);
    k_add(d, g->streams.dfirst, R * j.H);
    j.x = x;
    j.d = d;
    run_rows(&j, predict_back_item);
}

/* ---- after the layer ---- */
/* The first stream of a row after the layer. */
static void corrected(const stream_job *j, float *to, const float *w, int64_t r)
{
    const float *x1 = j->g->m->x1 + r * j->H, *x3 = j->g->m->x3 + r * j->H;
    for (int64_t h = 0; h < j->H; h++)
        to[h] = (x3[h] - x1[h]) * (w[0] + 1) + x1[h];
}

static void correct_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const float *x1 = j->g->m->x1 + r * j->H, *x3 = j->g->m->x3 + r * j->H;
        float m[MOST], w[MOST], *s = j->g->streams.now + r * (j->n - 1) * j->H;
        modalities(j, m, x3);
        coefficients(w, j->l->stream_correct, m, j->n, j->n);
        corrected(j, j->to + r * j->H, w, r);
        for (int64_t i = 1; i < j->n; i++)
            for (int64_t h = 0; h < j->H; h++)
                s[(i - 1) * j->H + h] += (x3[h] - x1[h]) * (w[i] + 1);
    }
}

void grad_streams_correct(grad_ctx *g, const grad_layer *l, float *x, int64_t R)
{
    stream_job j = job_of(g, l, R);
    memcpy(g->m->x3, x, (size_t)(R * j.H) * sizeof *x);
    j.to = x;
    run_rows(&j, correct_item);
}

static void correct_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const float *x1 = j->g->m->x1 + r * j->H, *x3 = j->g->m->x3 + r * j->H;
        float m[MOST], dm[MOST], w[MOST], *d = j->d + r * j->H;
        float *ds = j->g->streams.d + r * (j->n - 1) * j->H;
        float *dfirst = j->g->streams.dfirst + r * j->H;
        double dw[MOST] = { 0 };
        modalities(j, m, x3);
        coefficients(w, j->l->stream_correct, m, j->n, j->n);
        for (int64_t h = 0; h < j->H; h++) {
            float dnews = 0;
            for (int64_t i = 0; i < j->n; i++) {
                const float dout = *stream_at(j, d, ds, i, h);
                dnews += dout * (w[i] + 1);
                dw[i] += (double)dout * (double)(x3[h] - x1[h]);
            }
            dfirst[h] = d[h] - dnews;
            d[h] = dnews;
        }
        coefficients_back(dm, j->l->stream_correct, dw, j->n, j->n);
        modalities_back(j, d, dm, m, x3);
    }
}

void grad_streams_correct_back(grad_ctx *g, const grad_layer *l, float *d, int64_t R)
{
    stream_job j = job_of(g, l, R);
    j.d = d;
    run_rows(&j, correct_back_item);
}

/* ---- what per-layer embeddings read, and join ---- */
void grad_streams_ple(grad_ctx *g, const grad_layer *l, float *y, const float *x, int64_t R)
{
    const int64_t H = g->c->hidden;
    for (int64_t i = 0; i < R * H; i++)
        y[i] = x[i] * l->stream_scale[i % H];
}

void grad_streams_join(grad_ctx *g, const float *y, int64_t R)
{
    const int64_t H = g->c->hidden, n = others(g->c);
    for (int64_t i = 0; i < R * n; i++)
        k_add(g->streams.now + i * H, y + i / n * H, H);
}

void grad_streams_join_back(const grad_ctx *g, float *d, int64_t R)
{
    const int64_t H = g->c->hidden, n = others(g->c);
    memset(d, 0, (size_t)(R * H) * sizeof *d);
    for (int64_t i = 0; i < R * n; i++)
        k_add(d + i / n * H, g->streams.d + i * H, H);
}

/* ---- the end ---- */
static double mean_square(const float *x, int64_t n) { return grad_dot(x, x, n) / (double)n; }

/* made [R, others, H] := the others' products. */
static void make_others(grad_ctx *g, const grad_layer *l, int64_t R)
{
    const int64_t H = g->c->hidden, n = others(g->c);
    for (int64_t i = 0; i < n; i++)
        gemm_run(g->streams.made + i * H, n * H, (gemm_in){ g->streams.now + i * H, n * H, false },
                 (gemm_in){ l->stream_out[i], H, true }, R, H, H, 0, g->p);
}

static void end_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float *x = j->to + r * j->H;
        const float *made = j->g->streams.made + r * (j->n - 1) * j->H;
        const double size = sqrt(mean_square(x, j->H));
        for (int64_t i = 0; i < j->n - 1; i++) {
            const float *y = made + i * j->H;
            const float f = (float)(size / sqrt(fmax(mean_square(y, j->H), LEAST)));
            for (int64_t h = 0; h < j->H; h++)
                x[h] += f * y[h];
        }
        k_scale(x, 1 / (float)j->n, j->H);
    }
}

void grad_streams_end(grad_ctx *g, const grad_layer *l, float *x, int64_t R)
{
    stream_job j = job_of(g, l, R);
    make_others(g, l, R);
    j.to = x;
    run_rows(&j, end_item);
}

/* made becomes the gradients there. */
static void end_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const stream_job *j = ctx;
    const double H = (double)j->H;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float m[MOST], w[MOST], *d = j->d + r * j->H, *x = j->g->dx + r * j->H;
        float *made = j->g->streams.made + r * (j->n - 1) * j->H;
        modalities(j, m, j->g->m->x3 + r * j->H);
        coefficients(w, j->l->stream_correct, m, j->n, j->n);
        corrected(j, x, w, r);
        const double size = sqrt(mean_square(x, j->H));
        double dsize = 0;
        k_scale(d, 1 / (float)j->n, j->H);
        for (int64_t i = 0; i < j->n - 1; i++) {
            float *y = made + i * j->H;
            const double square = mean_square(y, j->H), by = sqrt(fmax(square, LEAST));
            const double dot = grad_dot(d, y, j->H), f = size / by;
            const double along = square > LEAST ? f * dot / (by * by * H) : 0;
            dsize += dot / by;
            for (int64_t h = 0; h < j->H; h++)
                y[h] = (float)(f * (double)d[h] - along * (double)y[h]);
        }
        for (int64_t h = 0; h < j->H && size > 0; h++)
            d[h] += (float)(dsize / (H * size) * (double)x[h]);
    }
}

void grad_streams_end_back(grad_ctx *g, const grad_layer *l, float *d, int64_t R)
{
    stream_job j = job_of(g, l, R);
    const int64_t H = j.H, n = j.n - 1;
    make_others(g, l, R);
    j.d = d;
    run_rows(&j, end_back_item);
    for (int64_t i = 0; i < n; i++)
        gemm_run(g->streams.d + i * H, n * H, (gemm_in){ g->streams.made + i * H, n * H, false },
                 (gemm_in){ l->stream_out[i], H, false }, R, H, H, 0, g->p);
}

/* ---- Laurel ---- */
static grad_norm laurel_norm(const grad_ctx *g, const grad_layer *l)
{
    return (grad_norm){ .w = l->laurel_norm,
                        .offset = arch_norm_offset(g->c, R_LAUREL_NORM),
                        .eps = (float)arch_norm_eps_at(g->c, R_LAUREL_NORM, g->layer) };
}

void grad_laurel(grad_ctx *g, const grad_layer *l, float *x, int64_t R)
{
    const int64_t H = g->c->hidden, n = g->c->laurel;
    const grad_made *m = g->m;
    const grad_norm v = laurel_norm(g, l);
    gemm_run(m->laurel, n, (gemm_in){ m->h, H, false }, (gemm_in){ l->laurel_left, H, true }, R, n,
             H, 0, g->p);
    gemm_run(m->laurel_y, H, (gemm_in){ m->laurel, n, false },
             (gemm_in){ l->laurel_right, n, true }, R, H, n, 0, g->p);
    grad_norm_run(g, g->dx, m->laurel_y, &v, R, H);
    k_add(x, g->dx, R * H);
    k_add(x, m->h, R * H);
    k_scale(x, (float)sqrt(0.5), R * H);
}

void grad_laurel_back(grad_ctx *g, const grad_layer *l, float *dh, const float *d, int64_t R)
{
    const int64_t H = g->c->hidden, n = g->c->laurel;
    const grad_norm v = laurel_norm(g, l);
    float *dy = g->streams.made; /* free between layers */
    memcpy(dy, d, (size_t)(R * H) * sizeof *dy);
    k_add(dh, d, R * H);
    grad_norm_back(g, dy, NULL, g->m->laurel_y, &v, R, H);
    float *dlow = g->m->laurel; /* not read again */
    gemm_run(dlow, n, (gemm_in){ dy, H, false }, (gemm_in){ l->laurel_right, n, false }, R, n, H, 0,
             g->p);
    gemm_run(dh, H, (gemm_in){ dlow, n, false }, (gemm_in){ l->laurel_left, H, false }, R, H, n, 1,
             g->p);
}

/* ---- gates of which the least are cut off ---- */
typedef struct {
    grad_ctx *g;
    double z;
    int64_t R, F;
    bool back;
} cut_job;

static void cut_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const cut_job *j = ctx;
    const int64_t F = j->F;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const float *gate = j->g->m->gate + r * F;
        float *cut = j->g->m->cut + r * F, *d = j->g->dgate + r * F;
        const double mean = grad_sum(gate, F) / (double)F;
        double square = 0, dcut = 0;
        for (int64_t i = 0; i < F; i++)
            square += ((double)gate[i] - mean) * ((double)gate[i] - mean) / (double)F;
        const double width = sqrt(square);
        const float least = (float)(mean + width * j->z);
        for (int64_t i = 0; i < F && !j->back; i++)
            cut[i] = gate[i] > least ? gate[i] - least : 0;
        for (int64_t i = 0; i < F && j->back; i++) {
            if (!(gate[i] > least)) d[i] = 0;
            dcut -= (double)d[i];
        }
        for (int64_t i = 0; i < F && j->back; i++)
            d[i] += (float)(dcut / (double)F *
                            (1 + (width > 0 ? j->z * ((double)gate[i] - mean) / width : 0)));
    }
}

void grad_cut(grad_ctx *g, int64_t R, bool back)
{
    const double share = g->c->layer[g->layer].sparse;
    cut_job j = { g, arch_normal_quantile(share), R, g->c->ffn, back };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), cut_item, &j);
}
