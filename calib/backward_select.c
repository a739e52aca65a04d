/* calib/backward_select.c - Mamba's selective scan (arXiv:2312.00752), forward and back (calib/backward_impl.h). Of x, which
 * the convolution gives, activated, and the gate z, as runtime/forward/forward_mixer.c computes it:
 *
 *     [low | B | C] = X x, each normed where there are norms      step = softplus(P low + dt)
 *     S = exp(step rate) S_before + B (step x)    o = C S         t = (o + skip x) silu(z)
 *
 * S has a row for each number of B and C and a lane for each channel, and every pair a rate of its own. Back:
 *
 *     dS += C do     dC = S do     du = dS B     dB = dS (step x)     dx = step du
 *     dstep = x du + <dS, S_before exp(step rate) rate>               dS_before = exp(step rate) dS
 *
 * A window's channels are cut into PIECES, so that what B and C have of all channels is summed in one order. States are
 * made again from every SPAN-th. */
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"
#include "kernels/scan.h"

enum { SPAN = 32, LANES = 16, PIECES = 8 };

/* ---- shapes ---- */
int64_t grad_select_parts(const arch_config *c) { return c->mix_rank + 2 * c->mix_key; }

int64_t grad_select_sums(const arch_config *c) { return PIECES * 2 * c->mix_key; }

/* Of a thread: states before every span, those of a span and one for gradients; decays. */
int64_t grad_select_floats(const arch_config *c, int64_t len)
{
    return (lq_ceil_div(len, SPAN) + SPAN + 3) * c->mix_key * LANES;
}

typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    int64_t R, W, K, P, rank;
    float *x; /* [R, W]: activated */
} select_job;

static select_job job_of(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    const arch_config *c = g->c;
    return (select_job){ .g = g,
                         .l = l,
                         .R = windows * g->len,
                         .W = c->mix_value,
                         .K = c->mix_key,
                         .P = grad_select_parts(c),
                         .rank = c->mix_rank,
                         .x = g->fused };
}

static float silu(float x, float *slope)
{
    const float s = 1 / (1 + k_exp(-x));
    *slope = s * (1 + x * (1 - s));
    return x * s;
}

/* ---- rows ---- */
static void run_rows(select_job *j, void (*fn)(void *, int64_t, int))
{
    pool_run(j->g->p, lq_ceil_div(j->R, GRAD_ROWS), fn, j);
}

static void activate_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    const int64_t at = item * GRAD_ROWS * j->W, end = grad_tile_end(item, j->R) * j->W;
    memcpy(j->x + at, j->g->m->mix.y + at, (size_t)(end - at) * sizeof *j->x);
    k_act(j->x + at, end - at, (k_act_fn)ARCH_SILU);
}

/* The norm of part i of [low | B | C], and where it begins. */
static grad_norm part_norm(const select_job *j, int i, int64_t *at, int64_t *width)
{
    const arch_config *c = j->g->c;
    const arch_name *name = arch_name_of(c, R_MIX_STEP_NORM + (arch_role)i);
    *at = i ? j->rank + (i - 1) * j->K : 0;
    *width = i ? j->K : j->rank;
    return (grad_norm){ .w = j->l->mix_parts[i],
                        .eps = c->w.mix_eps > 0 ? c->w.mix_eps : (float)c->norm_eps,
                        .none = !name };
}

static void norm_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    const grad_mix *m = &j->g->m->mix;
    const int64_t row = item * GRAD_ROWS, n = grad_tile_end(item, j->R) - row;
    const float *from = m->parts + row * j->P;
    float *to = m->normed + row * j->P;
    memcpy(to, from, (size_t)(n * j->P) * sizeof *to);
    for (int i = 0; i < 3; i++) {
        int64_t at, width;
        const grad_norm v = part_norm(j, i, &at, &width);
        if (!v.none) k_rmsnorm(to + at, j->P, from + at, j->P, v.w, 0, n, width, v.eps);
    }
}

static void norm_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++)
        for (int i = 0; i < 3; i++) {
            int64_t at, width;
            const grad_norm v = part_norm(j, i, &at, &width);
            const int64_t first = r * j->P + at;
            if (!v.none)
                grad_rms_back(&v, j->g->mix.low + first, NULL, j->g->m->mix.parts + first, width);
        }
}

static void out_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    const grad_mix *m = &j->g->m->mix;
    float unused;
    for (int64_t i = item * GRAD_ROWS * j->W; i < grad_tile_end(item, j->R) * j->W; i++)
        m->t[i] = (m->o[i] + j->l->mix_skip[i % j->W] * j->x[i]) * silu(m->z[i], &unused);
}

/* dout holds the gradient at t, then that at o; dz; of x's the part that goes past the scan. */
static void out_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    const grad_mix *m = &j->g->m->mix;
    const grad_mix_back *b = &j->g->mix;
    for (int64_t i = item * GRAD_ROWS * j->W; i < grad_tile_end(item, j->R) * j->W; i++) {
        const float skip = j->l->mix_skip[i % j->W], d = b->dout[i];
        float slope;
        const float f = silu(m->z[i], &slope);
        b->dz[i] = d * (m->o[i] + skip * j->x[i]) * slope;
        b->dout[i] = d * f;
        b->dc[i] = skip * b->dout[i];
    }
}

/* The pieces' sums of dB and dC, in their order. */
static void sum_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const select_job *j = ctx;
    const int64_t n = 2 * j->K;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float *to = j->g->mix.low + r * j->P + j->rank;
        memset(to, 0, (size_t)n * sizeof *to);
        for (int64_t p = 0; p < PIECES; p++)
            k_add(to, j->g->mix.sums + (p * j->R + r) * n, n);
    }
}

/* ---- the scan ---- */
/* Up to LANES channels of a window, from c0 on. */
typedef struct {
    const select_job *j;
    int64_t row0, c0, n;
    float *kept, *S, *dS, *decay; /* states [K, LANES] */
    float *sums;                  /* [T, 2 K] of the piece */
} block;

/* A position: the lanes' steps and their slopes, x and B and C. */
typedef struct {
    float step[LANES], slope[LANES], x[LANES];
    const float *B, *C;
} position;

static void read_position(const block *b, position *p, int64_t t)
{
    const select_job *j = b->j;
    const int64_t r = b->row0 + t, at = r * j->W + b->c0;
    for (int64_t i = 0; i < b->n; i++) {
        const float a = j->g->m->mix.a[at + i] + j->l->mix_dt[b->c0 + i];
        p->slope[i] = a > 20 ? 1 : 1 / (1 + k_exp(-a));
        p->x[i] = j->x[at + i];
    }
    memcpy(p->step, j->g->m->mix.a + at, (size_t)b->n * sizeof *p->step);
    k_softplus(p->step, j->l->mix_dt + b->c0, b->n);
    p->B = j->g->m->mix.normed + r * j->P + j->rank;
    p->C = p->B + j->K;
    for (int64_t k = 0; k < j->K; k++)
        for (int64_t i = 0; i < b->n; i++)
            b->decay[k * LANES + i] = p->step[i] * j->l->mix_rate[(b->c0 + i) * j->K + k];
    k_exp_minus(b->decay, b->decay, 0, j->K * LANES);
}

static void advance(const block *b, const position *p, float *S)
{
    for (int64_t k = 0; k < b->j->K; k++)
        for (int64_t i = 0; i < b->n; i++) {
            float *s = S + k * LANES + i;
            *s = *s * b->decay[k * LANES + i] + p->B[k] * (p->step[i] * p->x[i]);
        }
}

static void block_forward(const block *b)
{
    const select_job *j = b->j;
    memset(b->S, 0, (size_t)(j->K * LANES) * sizeof *b->S);
    for (int64_t t = 0; t < j->g->len; t++) {
        float *o = j->g->m->mix.o + (b->row0 + t) * j->W + b->c0;
        position p;
        read_position(b, &p, t);
        advance(b, &p, b->S);
        memset(o, 0, (size_t)b->n * sizeof *o);
        for (int64_t k = 0; k < j->K; k++)
            for (int64_t i = 0; i < b->n; i++)
                o[i] += p.C[k] * b->S[k * LANES + i];
    }
}

/* Position t: S is the state after it, `before` the one before; dS that of what comes after it. */
static void step_back(const block *b, const float *S, const float *before, int64_t t)
{
    const select_job *j = b->j;
    const int64_t at = (b->row0 + t) * j->W + b->c0;
    const float *dout = j->g->mix.dout + at;
    float du[LANES] = { 0 }, dstep[LANES] = { 0 }, *sums = b->sums + t * 2 * j->K;
    position p;
    read_position(b, &p, t);
    for (int64_t k = 0; k < j->K; k++) {
        float dB = 0, dC = 0;
        for (int64_t i = 0; i < b->n; i++) {
            const int64_t s = k * LANES + i;
            const float d = b->dS[s] + p.C[k] * dout[i], back = d * b->decay[s];
            dC += S[s] * dout[i];
            dB += d * (p.step[i] * p.x[i]);
            du[i] += d * p.B[k];
            dstep[i] += back * before[s] * j->l->mix_rate[(b->c0 + i) * j->K + k];
            b->dS[s] = back;
        }
        sums[k] += dB;
        sums[j->K + k] += dC;
    }
    for (int64_t i = 0; i < b->n; i++) {
        j->g->mix.dc[at + i] += p.step[i] * du[i];
        j->g->mix.da[at + i] = (dstep[i] + p.x[i] * du[i]) * p.slope[i];
    }
}

static void block_back(const block *b)
{
    const int64_t n = b->j->K * LANES, T = b->j->g->len, spans = lq_ceil_div(T, SPAN);
    const size_t bytes = (size_t)n * sizeof(float);
    position p;
    memset(b->kept, 0, bytes);
    for (int64_t i = 1; i < spans; i++) {
        memcpy(b->kept + i * n, b->kept + (i - 1) * n, bytes);
        for (int64_t t = (i - 1) * SPAN; t < i * SPAN; t++) {
            read_position(b, &p, t);
            advance(b, &p, b->kept + i * n);
        }
    }
    memset(b->dS, 0, bytes);
    for (int64_t i = spans; i-- > 0;) {
        const int64_t t0 = i * SPAN, len = T - t0 < SPAN ? T - t0 : SPAN;
        memcpy(b->S, b->kept + i * n, bytes);
        for (int64_t t = 0; t < len; t++) {
            memcpy(b->S + (t + 1) * n, b->S + t * n, bytes);
            read_position(b, &p, t0 + t);
            advance(b, &p, b->S + (t + 1) * n);
        }
        for (int64_t t = len; t-- > 0;)
            step_back(b, b->S + (t + 1) * n, b->S + t * n, t0 + t);
    }
}

/* Item: a piece of a window's channels. */
static void run_piece(const select_job *j, int64_t item, int thread, void (*fn)(const block *))
{
    const int64_t T = j->g->len, K = j->K, state = K * LANES, piece = item % PIECES;
    const int64_t end = j->W * (piece + 1) / PIECES;
    float *at = j->g->mix.scan + thread * grad_select_floats(j->g->c, T);
    block b = { .j = j, .row0 = item / PIECES * T, .S = at };
    b.dS = b.S + (SPAN + 1) * state;
    b.decay = b.dS + state;
    b.kept = b.decay + state;
    b.sums = j->g->mix.sums + (piece * j->R + b.row0) * 2 * K;
    memset(b.sums, 0, (size_t)(T * 2 * K) * sizeof *b.sums);
    memset(b.decay, 0, (size_t)state * sizeof *b.decay);
    for (b.c0 = j->W * piece / PIECES; b.c0 < end; b.c0 += LANES) {
        b.n = end - b.c0 < LANES ? end - b.c0 : LANES;
        fn(&b);
    }
}

static void scan_item(void *ctx, int64_t item, int thread)
{
    run_piece(ctx, item, thread, block_forward);
}

static void scan_back_item(void *ctx, int64_t item, int thread)
{
    run_piece(ctx, item, thread, block_back);
}

/* ---- all of it ---- */
void grad_select_forward(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    select_job j = job_of(g, l, windows);
    const grad_mix *m = &g->m->mix;
    run_rows(&j, activate_item);
    grad_product(g, m->parts, (gemm_in){ j.x, j.W, false }, (gemm_in){ l->mix_x, j.W, true }, j.R,
                 j.P, j.W, 0);
    run_rows(&j, norm_item);
    grad_product(g, m->a, (gemm_in){ m->normed, j.P, false },
                 (gemm_in){ l->mix_step, j.rank, true }, j.R, j.W, j.rank, 0);
    pool_run(g->p, windows * PIECES, scan_item, &j);
    run_rows(&j, out_item);
}

void grad_select_backward(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    select_job j = job_of(g, l, windows);
    const grad_mix_back *b = &g->mix;
    run_rows(&j, activate_item);
    run_rows(&j, out_back_item);
    pool_run(g->p, windows * PIECES, scan_back_item, &j);
    run_rows(&j, sum_item);
    gemm_run(b->low, j.P, (gemm_in){ b->da, j.W, false }, (gemm_in){ l->mix_step, j.rank, false },
             j.R, j.rank, j.W, 0, g->p);
    run_rows(&j, norm_back_item);
    grad_product(g, b->dc, (gemm_in){ b->low, j.P, false }, (gemm_in){ l->mix_x, j.W, false }, j.R,
                 j.W, j.P, 1);
}
