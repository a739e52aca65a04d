/* calib/backward_mixer.c - layers with a state, forward and back (calib/backward_impl.h): what
 * runtime/forward/forward_mixer.c computes, its formulas and names.
 *
 * Of the recurrence of a head, with S' = decay S_before, u = beta (v - S'^T k) or beta v, S = S' + k u^T, o = S^T q:
 *
 *     dS += q do^T    dq = S do      du = dS^T k    dk = dS u    dv = beta du    dbeta = du (u / beta)
 *     dS' = dS - k (beta du)^T       dk -= S' (beta du)          ddecay = <dS', S_before>    dS_before = decay dS'
 *
 * MIX_KDA has a decay for each dim of a key: that many rows of S, S' and dS have one of their own, and ddecay is by rows.
 * States are made again from every SPAN-th, so that few are in memory. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"
#include "kernels/scan.h"

enum { SPAN = 32 };
#define L2_EPS 1e-6 /* of q's and k's lengths, whatever the config says */

/* ---- shapes ---- */
typedef struct {
    arch_mixer m;
    int64_t D, H, G, K, V; /* hidden, heads, key heads, dims of a key and of a value */
    int64_t C, W;          /* channels of the convolution, values of all heads */
    int64_t q, k, v;       /* where each begins among the channels */
    int64_t in;            /* what the layer's linears make, but beta and decay of MIX_DELTA */
    int64_t A;             /* decays of a row */
    bool delta, keys;      /* keys: a decay for each dim of a key */
} shape;

static shape shape_of(const arch_config *c)
{
    const arch_mixer m = c->row->mixer == MIX_BOTH ? MIX_MAMBA : c->row->mixer;
    const int64_t W = arch_mix_width(c, m), keys = c->mix_groups * c->mix_key;
    shape s = { .m = m,
                .D = c->hidden,
                .H = c->mix_heads,
                .G = c->mix_groups,
                .K = c->mix_key,
                .V = c->mix_value,
                .C = arch_conv_channels(c, m),
                .W = W,
                .A = arch_mix_decays(c),
                .delta = m == MIX_DELTA || m == MIX_KDA,
                .keys = m == MIX_KDA };
    s.q = s.delta ? 0 : W + keys;
    s.k = s.delta ? keys : W;
    s.v = s.delta ? 2 * keys : 0;
    s.in = m == MIX_CONV ? 3 * W : s.C + W + (m == MIX_MAMBA ? s.H : 0);
    return s;
}

/* The key head of a value head. */
static int64_t key_of(const arch_config *c, int64_t h)
{
    return c->w.mix_tiled ? h % c->mix_groups : h / (c->mix_heads / c->mix_groups);
}

void grad_mix_parts(grad_part p[GRAD_MIX_PARTS], grad_mix *m, const arch_config *c, int64_t R)
{
    const shape s = shape_of(c);
    const bool conv = s.m == MIX_CONV;
    const grad_part parts[GRAD_MIX_PARTS] = {
        { &m->in, conv ? R * s.in : 0 },
        { &m->y, R * s.C },
        { &m->z, conv ? 0 : R * s.W },
        { &m->o, conv ? 0 : R * s.W },
        { &m->t, R * s.W },
        { &m->b, s.delta ? R * s.H : 0 },
        { &m->a, conv ? 0 : R * s.A },
        { &m->parts, s.m == MIX_SELECT ? R * grad_select_parts(c) : 0 },
        { &m->normed, s.m == MIX_SELECT ? R * grad_select_parts(c) : 0 },
    };
    memcpy(p, parts, sizeof parts);
}

/* Numbers between two small matrices. */
static int64_t low_rank(const arch_config *c)
{
    static const arch_role roles[] = { R_MIX_A_DOWN, R_MIX_GATE_DOWN, R_MIX_X };
    int64_t most = 0, N, K;
    for (size_t i = 0; i < LQ_COUNT(roles); i++) {
        if (!arch_name_of(c, roles[i])) continue;
        arch_role_shape(c, roles[i], &N, &K);
        most = N > most ? N : most;
    }
    return most;
}

/* Floats of a thread: q and k of a window and their gradients; states; u and v - S'^T k of a span; four rows; decays and
 * their slopes. */
static int64_t scan_floats(const arch_config *c, int64_t len)
{
    const shape s = shape_of(c);
    if (s.m == MIX_SELECT) return grad_select_floats(c, len);
    return 4 * len * s.K + (lq_ceil_div(len, SPAN) + SPAN + 3) * s.K * s.V + (2 * SPAN + 4) * s.V +
           (s.keys ? 3 * s.K : 0);
}

void grad_mix_back_parts(grad_part p[GRAD_MIX_BACK_PARTS], grad_mix_back *b, const arch_config *c,
                         int64_t R, int64_t len, int threads)
{
    const shape s = shape_of(c);
    const bool scan = s.m != MIX_CONV;
    const grad_part parts[GRAD_MIX_BACK_PARTS] = {
        { &b->dc, R * s.C },
        { &b->dz, R * s.W },
        { &b->dout, R * s.W },
        { &b->db, scan ? 2 * R * s.H : 0 },
        { &b->da, scan ? R * s.A : 0 },
        { &b->low, R * low_rank(c) },
        { &b->scan, scan ? scan_floats(c, len) * threads : 0 },
        { &b->sums, s.m == MIX_SELECT ? R * grad_select_sums(c) : 0 },
    };
    memcpy(p, parts, sizeof parts);
}

/* ---- rows ---- */
typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    shape s;
    int64_t R;
    float *in; /* [R, s.in]: outputs of the linears, or their gradients; or scratch */
} rows_job;

typedef void row_fn(const rows_job *j, int64_t r);
typedef struct {
    const rows_job *j;
    row_fn *fn;
} each_job;

static void each_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const each_job *e = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, e->j->R); r++)
        e->fn(e->j, r);
}

static void each_row(const rows_job *j, row_fn *fn)
{
    each_job e = { j, fn };
    pool_run(j->g->p, lq_ceil_div(j->R, GRAD_ROWS), each_item, &e);
}

/* n numbers, of a row of outputs to its part, or back; times f. */
static float *move(float *row, float *part, int64_t n, float f, bool back)
{
    float *to = back ? row : part;
    memcpy(to, back ? part : row, (size_t)n * sizeof *to);
    if (f != 1) k_scale(to, f, n);
    return row + n;
}

/* Of a row of outputs the convolution's inputs x, the gate z, and of MIX_MAMBA a; or their gradients back. */
static void split_row(const rows_job *j, float *row, float *x, float *z, float *a, bool back)
{
    const arch_config *c = j->g->c;
    const shape *s = &j->s;
    const int64_t of = s->H / s->G * s->V;
    if (s->m == MIX_SELECT) {
        row = move(row, x, s->W, 1, back);
        move(row, z, s->W, 1, back);
    } else if (!s->delta) {
        const float f[] = { (float)c->mix_scale[0], (float)c->mix_scale[1], (float)c->mix_scale[2],
                            (float)c->mix_scale[3], (float)c->mix_scale[4] };
        row = move(row, z, s->W, f[0], back);
        row = move(row, x, s->W, f[1], back);
        row = move(row, x + s->k, s->G * s->K, f[2], back);
        row = move(row, x + s->q, s->G * s->K, f[3], back);
        move(row, a, s->H, f[4], back);
    } else {
        for (int64_t g = 0; g < s->G; g++) {
            row = move(row, x + s->q + g * s->K, s->K, 1, back);
            row = move(row, x + s->k + g * s->K, s->K, 1, back);
            row = move(row, x + s->v + g * of, of, 1, back);
            row = move(row, z + g * of, of, 1, back);
        }
    }
}

static float sigmoid(float x) { return 1 / (1 + k_exp(-x)); }

/* What the output is times, of z, and its slope. */
static float gate(const shape *s, float z, float *slope);

/* silu(x), and its slope. */
static float silu(float x, float *slope)
{
    const float s = sigmoid(x);
    *slope = s * (1 + x * (1 - s));
    return x * s;
}

static float gate(const shape *s, float z, float *slope)
{
    if (!s->keys) return silu(z, slope);
    const float f = sigmoid(z);
    *slope = f * (1 - f);
    return f;
}

/* ---- before the scan ---- */
static void split_forward(const rows_job *j, int64_t r)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    float *y = m->y + r * s->C, *in = j->in + r * s->in;
    if (s->m == MIX_CONV) {
        memcpy(m->in + r * s->in, in, (size_t)s->in * sizeof *in);
        for (int64_t i = 0; i < s->D; i++)
            y[i] = in[i] * in[2 * s->D + i];
        return;
    }
    split_row(j, in, y, m->z + r * s->W, m->a + r * s->A, false);
}

typedef struct {
    const grad_ctx *g;
    const grad_layer *l;
    float *x; /* [R, C], in place */
    int64_t C;
} conv_job;

enum { CONV_CHANNELS = 64 };

static int64_t conv_pieces(int64_t C) { return lq_ceil_div(C, CONV_CHANNELS); }

/* x = conv(x) of some channels of a window. */
static void conv_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const conv_job *j = ctx;
    const int64_t T = j->g->len, taps = j->g->c->conv_taps, w = item / conv_pieces(j->C);
    const int64_t from = item % conv_pieces(j->C) * CONV_CHANNELS;
    const int64_t end = from + CONV_CHANNELS < j->C ? from + CONV_CHANNELS : j->C;
    for (int64_t t = T - 1; t >= 0; t--) {
        float *x = j->x + (w * T + t) * j->C;
        for (int64_t i = from; i < end; i++) {
            const float *tap = j->l->mix_conv + i * taps;
            float y = j->l->mix_conv_bias ? j->l->mix_conv_bias[i] : 0;
            for (int64_t k = t < taps - 1 ? taps - 1 - t : 0; k < taps; k++)
                y = fmaf(tap[k], x[(k - taps + 1) * j->C + i], y);
            x[i] = y;
        }
    }
}

/* The gradient there: a position's is that of those after it. */
static void conv_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const conv_job *j = ctx;
    const int64_t T = j->g->len, taps = j->g->c->conv_taps, w = item / conv_pieces(j->C);
    const int64_t from = item % conv_pieces(j->C) * CONV_CHANNELS;
    const int64_t end = from + CONV_CHANNELS < j->C ? from + CONV_CHANNELS : j->C;
    for (int64_t t = 0; t < T; t++) {
        float *d = j->x + (w * T + t) * j->C;
        const int64_t after = T - t < taps ? T - t : taps;
        for (int64_t i = from; i < end; i++) {
            const float *tap = j->l->mix_conv + i * taps + taps - 1;
            float y = 0;
            for (int64_t k = 0; k < after; k++)
                y = fmaf(tap[-k], d[k * j->C + i], y);
            d[i] = y;
        }
    }
}

/* ---- the scan ---- */
typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    shape s;
} scan_job;

/* A head at one position. */
typedef struct {
    float beta, decay;
    float dbeta, ddecay; /* by what makes them */
} pace;

static pace pace_of(const scan_job *j, int64_t r, int64_t h)
{
    const arch_config *c = j->g->c;
    const grad_mix *m = &j->g->m->mix;
    pace p = { 0 };
    if (j->s.keys) {
        p.beta = sigmoid(m->b[r * j->s.H + h]);
        p.dbeta = p.beta * (1 - p.beta);
        return p;
    }
    const float x = m->a[r * j->s.H + h] + j->l->mix_dt[h], rate = j->l->mix_rate[h];
    float step = x, slope = x > 20 ? 1 : sigmoid(x);
    k_softplus(&step, &(float){ 0 }, 1);
    if (j->s.delta) {
        const float twice = c->w.mix_beta_2 ? 2 : 1, s = sigmoid(m->b[r * j->s.H + h]);
        p.beta = twice * s;
        p.dbeta = twice * s * (1 - s);
    } else {
        const float min = (float)c->dt_min, max = (float)c->dt_max;
        const bool low = step<min, high = max> 0 && step > max;
        step = low ? min : high ? max : step;
        if (low || high) slope = 0;
        p.beta = step;
        p.dbeta = slope;
    }
    p.decay = k_exp(rate * step);
    p.ddecay = p.decay * rate * slope;
    return p;
}

/* The decays of a key's dims, and by what makes them. */
static void decays_of(const scan_job *j, float *decay, float *slope, int64_t r, int64_t h)
{
    const int64_t K = j->s.K;
    const float *a = j->g->m->mix.a + r * j->s.A + h * K, *dt = j->l->mix_dt + h * K;
    const float rate = j->l->mix_rate[h], span = (float)j->g->c->decay_span;
    for (int64_t i = 0; i < K; i++) {
        float step = a[i] + dt[i], s = sigmoid(span > 0 ? -rate * step : step);
        if (span > 0) {
            decay[i] = k_exp(-span * s);
            slope[i] = decay[i] * span * s * (1 - s) * rate;
        } else {
            k_softplus(&step, &(float){ 0 }, 1);
            decay[i] = k_exp(rate * step);
            slope[i] = decay[i] * rate * s;
        }
    }
}

/* One window and one key head. */
typedef struct {
    const scan_job *j;
    int64_t row0, g, T;
    float *q, *k, *dq, *dk; /* [T, K] */
    float *S, *kept, *u, *rest, *tmp;
    float *decay, *slope, *row; /* [K] where each dim of a key has a decay */
} head_scan;

static head_scan scan_at(const scan_job *j, int64_t item, int thread)
{
    const shape *s = &j->s;
    const int64_t T = j->g->len, n = T * s->K, state = s->K * s->V;
    float *at = j->g->mix.scan + thread * scan_floats(j->g->c, T);
    head_scan h = { .j = j,
                    .row0 = item / s->G * T,
                    .g = item % s->G,
                    .T = T,
                    .q = at,
                    .k = at + n,
                    .dq = at + 2 * n,
                    .dk = at + 3 * n };
    h.S = at + 4 * n;                                  /* SPAN + 2 states, the last for gradients */
    h.kept = h.S + (SPAN + 2) * state;                 /* before every span */
    h.u = h.kept + (lq_ceil_div(T, SPAN) + 1) * state; /* [SPAN, V] */
    h.rest = h.u + SPAN * s->V;
    h.tmp = h.rest + SPAN * s->V;
    h.decay = h.tmp + 4 * s->V;
    h.slope = h.decay + s->K;
    h.row = h.slope + s->K;
    return h;
}

/* q and k as the scan takes them: of MIX_DELTA to length 1, q / sqrt(K) besides. */
static void read_keys(const head_scan *h)
{
    const shape *s = &h->j->s;
    const float root = 1 / sqrtf((float)s->K);
    float unused;
    for (int64_t t = 0; t < h->T; t++)
        for (int which = 0; which < 2; which++) {
            const float *y =
                h->j->g->m->mix.y + (h->row0 + t) * s->C + (which ? s->k : s->q) + h->g * s->K;
            float *to = (which ? h->k : h->q) + t * s->K;
            for (int64_t i = 0; i < s->K; i++)
                to[i] = silu(y[i], &unused);
            if (!s->delta) continue;
            const double inv = 1 / sqrt(grad_dot(to, to, s->K) + L2_EPS);
            k_scale(to, (float)inv * (which ? 1 : root), s->K);
        }
}

/* The gradients at q and k to those at what the convolution gave, before its silu's slope. */
static void write_keys(const head_scan *h)
{
    const shape *s = &h->j->s;
    const double root = 1 / sqrt((double)s->K);
    for (int64_t t = 0; t < h->T; t++)
        for (int which = 0; which < 2; which++) {
            const int64_t at = (h->row0 + t) * s->C + (which ? s->k : s->q) + h->g * s->K;
            const float *y = h->j->g->m->mix.y + at, *d = (which ? h->dk : h->dq) + t * s->K;
            float *to = h->j->g->mix.dc + at;
            double sq = 0, dot = 0, f = 1, along = 0;
            float unused;
            for (int64_t i = 0; i < s->K && s->delta; i++) {
                const double x = (double)silu(y[i], &unused);
                sq += x * x;
                dot += x * (double)d[i];
            }
            if (s->delta) {
                f = 1 / sqrt(sq + L2_EPS) * (which ? 1 : root);
                along = dot * f / (sq + L2_EPS);
            }
            for (int64_t i = 0; i < s->K; i++)
                to[i] = (float)(f * (double)d[i] - along * (double)silu(y[i], &unused));
        }
}

/* v of a head at row r. */
static void read_value(const scan_job *j, float *v, int64_t r, int64_t h)
{
    const float *y = j->g->m->mix.y + r * j->s.C + j->s.v + h * j->s.V;
    float unused;
    for (int64_t i = 0; i < j->s.V; i++)
        v[i] = silu(y[i], &unused);
}

/* S [K,V] := that after position t; u := what it took; rest: u / beta. */
static void scan_step(const head_scan *a, float *S, int64_t t, int64_t h, float *u, float *rest)
{
    const shape *s = &a->j->s;
    const pace p = pace_of(a->j, a->row0 + t, h);
    const int K = (int)s->K, V = (int)s->V;
    if (s->keys) decays_of(a->j, a->decay, a->slope, a->row0 + t, h);
    for (int64_t i = 0; i < s->K && s->keys; i++)
        k_scale(S + i * s->V, a->decay[i], s->V);
    if (!s->keys) k_scale(S, p.decay, s->K * s->V);
    read_value(a->j, rest, a->row0 + t, h);
    if (s->delta)
        cblas_sgemv(CblasRowMajor, CblasTrans, K, V, -1, S, V, a->k + t * K, 1, 1, rest, 1);
    memcpy(u, rest, (size_t)V * sizeof *u);
    k_scale(u, p.beta, V);
    cblas_sger(CblasRowMajor, K, V, 1, a->k + t * K, 1, u, 1, S, V);
}

static void scan_item(void *ctx, int64_t item, int thread)
{
    const scan_job *j = ctx;
    const shape *s = &j->s;
    const head_scan a = scan_at(j, item, thread);
    const int K = (int)s->K, V = (int)s->V;
    read_keys(&a);
    for (int64_t h = 0; h < s->H; h++) {
        if (key_of(j->g->c, h) != a.g) continue;
        memset(a.S, 0, (size_t)(K * V) * sizeof *a.S);
        for (int64_t t = 0; t < a.T; t++) {
            scan_step(&a, a.S, t, h, a.u, a.rest);
            cblas_sgemv(CblasRowMajor, CblasTrans, K, V, 1, a.S, V, a.q + t * K, 1, 0,
                        j->g->m->mix.o + (a.row0 + t) * s->W + h * V, 1);
        }
    }
}

/* dS, that of S', to that of the state before; and what the decays have. */
static void decays_back(const head_scan *a, float *dS, const float *before, int64_t r, int64_t h)
{
    const shape *s = &a->j->s;
    float *da = a->j->g->mix.da + r * s->A + h * s->K;
    for (int64_t i = 0; i < s->K; i++) {
        da[i] = (float)grad_dot(dS + i * s->V, before + i * s->V, s->V) * a->slope[i];
        k_scale(dS + i * s->V, a->decay[i], s->V);
    }
}

/* Position t of a span: S is the state after it, before[0] the one before; dS that of what comes after it. */
static void step_back(const head_scan *a, const float *S, float *dS, int64_t t, int64_t h,
                      const float *u, const float *rest)
{
    const shape *s = &a->j->s;
    const int64_t r = a->row0 + t, n = s->K * s->V;
    const int K = (int)s->K, V = (int)s->V;
    const pace p = pace_of(a->j, r, h);
    const float *before = S - n, *dout = a->j->g->mix.dout + r * s->W + h * V;
    const float *q = a->q + t * K, *k = a->k + t * K;
    float *du = a->tmp, *dk = a->dk + t * K;
    cblas_sgemv(CblasRowMajor, CblasNoTrans, K, V, 1, S, V, dout, 1, 1, a->dq + t * K, 1);
    cblas_sger(CblasRowMajor, K, V, 1, q, 1, dout, 1, dS, V);
    cblas_sgemv(CblasRowMajor, CblasTrans, K, V, 1, dS, V, k, 1, 0, du, 1);
    cblas_sgemv(CblasRowMajor, CblasNoTrans, K, V, 1, dS, V, u, 1, 1, dk, 1);
    const float dbeta = (float)grad_dot(du, rest, V);
    k_scale(du, p.beta, V);
    k_add(a->j->g->mix.dc + r * s->C + s->v + h * V, du, V);
    if (s->delta) {
        if (s->keys) {
            decays_of(a->j, a->decay, a->slope, r, h);
            cblas_sgemv(CblasRowMajor, CblasNoTrans, K, V, 1, before, V, du, 1, 0, a->row, 1);
            for (int64_t i = 0; i < s->K; i++)
                dk[i] -= a->decay[i] * a->row[i];
        } else {
            cblas_sgemv(CblasRowMajor, CblasNoTrans, K, V, -p.decay, before, V, du, 1, 1, dk, 1);
        }
        cblas_sger(CblasRowMajor, K, V, -1, k, 1, du, 1, dS, V);
    }
    if (s->delta) a->j->g->mix.db[r * s->H + h] = dbeta * p.dbeta;
    if (s->keys) {
        decays_back(a, dS, before, r, h);
        return;
    }
    const float ddecay = (float)grad_dot(dS, before, n);
    k_scale(dS, p.decay, n);
    a->j->g->mix.da[r * s->H + h] = ddecay * p.ddecay + (s->delta ? 0 : dbeta * p.dbeta);
}

static void head_back(const head_scan *a, int64_t h)
{
    const shape *s = &a->j->s;
    const int64_t n = s->K * s->V, spans = lq_ceil_div(a->T, SPAN);
    const size_t bytes = (size_t)n * sizeof(float);
    float *dS = a->S + (SPAN + 1) * n;
    memset(a->kept, 0, bytes);
    for (int64_t i = 1; i < spans; i++) {
        memcpy(a->kept + i * n, a->kept + (i - 1) * n, bytes);
        for (int64_t t = (i - 1) * SPAN; t < i * SPAN; t++)
            scan_step(a, a->kept + i * n, t, h, a->u, a->rest);
    }
    memset(dS, 0, bytes);
    for (int64_t i = spans; i-- > 0;) {
        const int64_t t0 = i * SPAN, len = a->T - t0 < SPAN ? a->T - t0 : SPAN;
        memcpy(a->S, a->kept + i * n, bytes);
        for (int64_t t = 0; t < len; t++) {
            memcpy(a->S + (t + 1) * n, a->S + t * n, bytes);
            scan_step(a, a->S + (t + 1) * n, t0 + t, h, a->u + t * s->V, a->rest + t * s->V);
        }
        for (int64_t t = len; t-- > 0;)
            step_back(a, a->S + (t + 1) * n, dS, t0 + t, h, a->u + t * s->V, a->rest + t * s->V);
    }
}

static void scan_back_item(void *ctx, int64_t item, int thread)
{
    const scan_job *j = ctx;
    const head_scan a = scan_at(j, item, thread);
    memset(a.dq, 0, (size_t)(2 * a.T * j->s.K) * sizeof *a.dq);
    read_keys(&a);
    for (int64_t h = 0; h < j->s.H; h++)
        if (key_of(j->g->c, h) == a.g) head_back(&a, h);
    write_keys(&a);
}

/* ---- after the scan: t from o and z ---- */
/* The output's norm over parts of n values, from p; and its gradient d at p. */
typedef struct {
    const float *w;
    int64_t n, step; /* a part's weights begin `step` after those of the one before */
    float eps;
} out_norm;

static out_norm norm_of(const rows_job *j)
{
    const arch_config *c = j->g->c;
    const bool own = j->s.delta && c->w.mix_eps > 0;
    const int64_t n = j->s.delta ? j->s.V : j->s.W / j->s.G;
    return (out_norm){ j->l->mix_norm, n, j->s.delta ? 0 : n,
                       own ? c->w.mix_eps : (float)c->norm_eps };
}

static void norm_parts(const rows_job *j, float *x)
{
    const out_norm v = norm_of(j);
    for (int64_t i = 0; v.w && i < j->s.W / v.n; i++)
        k_rmsnorm(x + i * v.n, v.n, x + i * v.n, v.n, v.w + i * v.step, 0, 1, v.n, v.eps);
}

static void norm_parts_back(const rows_job *j, float *d, const float *x)
{
    const out_norm v = norm_of(j);
    for (int64_t i = 0; v.w && i < j->s.W / v.n; i++) {
        const grad_norm one = { .w = v.w + i * v.step, .eps = v.eps };
        grad_rms_back(&one, d + i * v.n, NULL, x + i * v.n, v.n);
    }
}

/* What the scan gave at row r, and of MIX_MAMBA what goes past it. */
static void read_out(const rows_job *j, float *x, int64_t r)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    float unused;
    memcpy(x, m->o + r * s->W, (size_t)s->W * sizeof *x);
    for (int64_t i = 0; i < s->W && !s->delta; i++)
        x[i] += j->l->mix_skip[i / s->V] * silu(m->y[r * s->C + s->v + i], &unused);
}

static bool norm_first(const rows_job *j) { return j->s.delta || j->g->c->w.mix_norm_1st; }

static void out_forward(const rows_job *j, int64_t r)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    float *t = m->t + r * s->W, unused;
    if (s->m == MIX_CONV) {
        for (int64_t i = 0; i < s->D; i++)
            t[i] = m->in[r * s->in + s->D + i] * m->y[r * s->C + i];
        return;
    }
    read_out(j, t, r);
    if (norm_first(j)) norm_parts(j, t);
    for (int64_t i = 0; i < s->W; i++)
        t[i] *= gate(s, m->z[r * s->W + i], &unused);
    if (!norm_first(j)) norm_parts(j, t);
    if (j->g->c->mix_out_scale != 1) k_scale(t, (float)j->g->c->mix_out_scale, s->W);
}

/* dout holds the gradient at t, then that at o; dz; of MIX_MAMBA the part of v's that goes past the scan. x: W floats. */
static void out_back(const rows_job *j, int64_t r, float *x)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    const grad_mix_back *b = &j->g->mix;
    const float *z = m->z + r * s->W;
    float *d = b->dout + r * s->W, *dz = b->dz + r * s->W, slope;
    if (j->g->c->mix_out_scale != 1) k_scale(d, (float)j->g->c->mix_out_scale, s->W);
    read_out(j, x, r);
    if (norm_first(j)) {
        norm_parts(j, x);
        for (int64_t i = 0; i < s->W; i++) {
            const float f = gate(s, z[i], &slope);
            dz[i] = d[i] * x[i] * slope;
            d[i] *= f;
        }
        read_out(j, x, r);
        norm_parts_back(j, d, x);
    } else {
        float unused;
        for (int64_t i = 0; i < s->W; i++)
            x[i] *= gate(s, z[i], &unused);
        norm_parts_back(j, d, x);
        read_out(j, x, r);
        for (int64_t i = 0; i < s->W; i++) {
            const float f = gate(s, z[i], &slope);
            dz[i] = d[i] * x[i] * slope;
            d[i] *= f;
        }
    }
    for (int64_t i = 0; i < s->W; i++)
        b->dc[r * s->C + s->v + i] = s->delta ? 0 : j->l->mix_skip[i / s->V] * d[i];
}

static void back_to_scan(const rows_job *j, int64_t r)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    if (s->m == MIX_CONV) { /* at the convolution's output, and of what it is multiplied with */
        for (int64_t i = 0; i < s->D; i++) {
            const float d = j->g->mix.dout[r * s->W + i];
            j->g->mix.dc[r * s->C + i] = d * m->in[r * s->in + s->D + i];
            j->g->mix.dz[r * s->W + i] = d * m->y[r * s->C + i];
        }
        return;
    }
    out_back(j, r, j->in + r * s->in);
}

static void silu_back(const rows_job *j, int64_t r)
{
    const shape *s = &j->s;
    float *d = j->g->mix.dc + r * s->C, slope;
    for (int64_t i = 0; i < s->C; i++) {
        silu(j->g->m->mix.y[r * s->C + i], &slope);
        d[i] *= slope;
    }
}

static void split_back(const rows_job *j, int64_t r)
{
    const shape *s = &j->s;
    const grad_mix_back *b = &j->g->mix;
    float *in = j->in + r * s->in, *dc = b->dc + r * s->C;
    const float *was = j->g->m->mix.in + r * s->in;
    if (s->m != MIX_CONV) {
        split_row(j, in, dc, b->dz + r * s->W, b->da + r * s->A, true);
        return;
    }
    for (int64_t i = 0; i < s->D; i++) {
        in[i] = dc[i] * was[2 * s->D + i];
        in[s->D + i] = b->dz[r * s->W + i];
        in[2 * s->D + i] = dc[i] * was[i];
    }
}

/* ---- beta and decay of MIX_DELTA and MIX_KDA, and a gate by two small matrices ---- */
/* Rows of R_MIX_BA's [R, 2 heads] to or from b and a: of each key head its values' b, a; else all b, all a. */
static void pace_row(const rows_job *j, int64_t r, float *ba, float *b, float *a, bool back)
{
    const shape *s = &j->s;
    const int64_t of = s->H / s->G;
    float *row = ba + r * 2 * s->H;
    for (int64_t g = 0; g < s->G; g++) {
        row = move(row, b + r * s->H + g * of, of, 1, back);
        row = move(row, a + r * s->H + g * of, of, 1, back);
    }
}

static void pace_forward(const rows_job *j, int64_t r)
{
    pace_row(j, r, j->g->mix.db, j->g->m->mix.b, j->g->m->mix.a, false);
}

static int64_t rank_of(const rows_job *j, arch_role down)
{
    int64_t N, K;
    arch_role_shape(j->g->c, down, &N, &K);
    return N;
}

/* y [R,N] = up (down h). */
static void low_forward(const rows_job *j, float *y, const float *down, const float *up,
                        arch_role role, int64_t N)
{
    const int64_t n = rank_of(j, role), D = j->s.D;
    float *low = j->g->mix.low;
    gemm_run(low, n, (gemm_in){ j->g->m->h, D, false }, (gemm_in){ down, D, true }, j->R, n, D, 0,
             j->g->p);
    gemm_run(y, N, (gemm_in){ low, n, false }, (gemm_in){ up, n, true }, j->R, N, n, 0, j->g->p);
}

/* dx += the gradient at h of dy. */
static void low_back(const rows_job *j, float *dx, const float *dy, const float *down,
                     const float *up, arch_role role, int64_t N)
{
    const int64_t n = rank_of(j, role), D = j->s.D;
    float *low = j->g->mix.low;
    gemm_run(low, n, (gemm_in){ dy, N, false }, (gemm_in){ up, n, false }, j->R, n, N, 0, j->g->p);
    gemm_run(dx, D, (gemm_in){ low, n, false }, (gemm_in){ down, D, false }, j->R, D, n, 1,
             j->g->p);
}

static void make_pace(const rows_job *j)
{
    const shape *s = &j->s;
    const grad_mix *m = &j->g->m->mix;
    const gemm_in h = { j->g->m->h, s->D, false };
    pool *p = j->g->p;
    if (!s->delta) return;
    if (j->l->mix_ba) {
        gemm_run(j->g->mix.db, 2 * s->H, h, (gemm_in){ j->l->mix_ba, s->D, true }, j->R, 2 * s->H,
                 s->D, 0, p);
        each_row(j, pace_forward);
        return;
    }
    gemm_run(m->b, s->H, h, (gemm_in){ j->l->mix_b, s->D, true }, j->R, s->H, s->D, 0, p);
    if (j->l->mix_a)
        gemm_run(m->a, s->A, h, (gemm_in){ j->l->mix_a, s->D, true }, j->R, s->A, s->D, 0, p);
    else
        low_forward(j, m->a, j->l->mix_a_down, j->l->mix_a_up, R_MIX_A_DOWN, s->A);
    if (j->l->mix_gate_down)
        low_forward(j, m->z, j->l->mix_gate_down, j->l->mix_gate_up, R_MIX_GATE_DOWN, s->W);
}

/* dx += what beta and decay depend on: those that are kept in f32 have no gradient of their own. */
static void pace_back(const rows_job *j, float *dx)
{
    const shape *s = &j->s;
    const grad_mix_back *b = &j->g->mix;
    const int64_t H = s->H;
    if (!s->delta) return;
    for (int64_t g = 0; g < s->G && j->l->mix_ba; g++) {
        const int64_t of = H / s->G;
        const float *w = j->l->mix_ba + 2 * g * of * s->D;
        gemm_run(dx, s->D, (gemm_in){ b->db + g * of, H, false }, (gemm_in){ w, s->D, false }, j->R,
                 s->D, of, 1, j->g->p);
        gemm_run(dx, s->D, (gemm_in){ b->da + g * of, H, false },
                 (gemm_in){ w + of * s->D, s->D, false }, j->R, s->D, of, 1, j->g->p);
    }
    if (j->l->mix_ba) return;
    gemm_run(dx, s->D, (gemm_in){ b->db, H, false }, (gemm_in){ j->l->mix_b, s->D, false }, j->R,
             s->D, H, 1, j->g->p);
    if (j->l->mix_a)
        gemm_run(dx, s->D, (gemm_in){ b->da, s->A, false }, (gemm_in){ j->l->mix_a, s->D, false },
                 j->R, s->D, s->A, 1, j->g->p);
    else
        low_back(j, dx, b->da, j->l->mix_a_down, j->l->mix_a_up, R_MIX_A_DOWN, s->A);
    if (j->l->mix_gate_down)
        low_back(j, dx, b->dz, j->l->mix_gate_down, j->l->mix_gate_up, R_MIX_GATE_DOWN, s->W);
}

/* ---- all of it ---- */
void grad_mix_columns(grad_ctx *g, int k, float *x, int64_t R, bool back)
{
    const shape s = shape_of(g->c);
    const int64_t at = k == GRAD_MIX_Q ? s.q : k == GRAD_MIX_K ? s.k : s.v;
    const int64_t n = k == GRAD_MIX_V ? s.W : s.G * s.K;
    for (int64_t r = 0; r < R; r++)
        move(x + r * n, (back ? g->mix.dc : g->m->mix.y) + r * s.C + at, n, 1, back);
}

void grad_mix_split(grad_ctx *g, float *x, int64_t R, bool back)
{
    const rows_job j = { g, NULL, shape_of(g->c), R, x };
    each_row(&j, back ? split_back : split_forward);
}

void grad_mix_forward(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    const shape s = shape_of(g->c);
    const rows_job j = { g, l, s, windows * g->len, NULL };
    conv_job conv = { g, l, g->m->mix.y, s.C };
    scan_job scan = { g, l, s };
    pool_run(g->p, windows * conv_pieces(s.C), conv_item, &conv);
    if (s.m == MIX_SELECT) {
        grad_select_forward(g, l, windows);
        return;
    }
    make_pace(&j);
    if (s.m != MIX_CONV) pool_run(g->p, windows * s.G, scan_item, &scan);
    each_row(&j, out_forward);
}

void grad_mix_backward(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    const shape s = shape_of(g->c);
    const rows_job j = { g, l, s, windows * g->len, g->fused };
    conv_job conv = { g, l, g->mix.dc, s.C };
    scan_job scan = { g, l, s };
    if (s.m == MIX_SELECT) {
        grad_select_backward(g, l, windows);
    } else {
        each_row(&j, back_to_scan);
        if (s.m != MIX_CONV) pool_run(g->p, windows * s.G, scan_back_item, &scan);
    }
    if (s.m != MIX_CONV) each_row(&j, silu_back);
    pool_run(g->p, windows * conv_pieces(s.C), conv_back_item, &conv);
}

void grad_mix_pace_back(grad_ctx *g, const grad_layer *l, float *dx, int64_t R)
{
    const rows_job j = { g, l, shape_of(g->c), R, NULL };
    pace_back(&j, dx);
}
