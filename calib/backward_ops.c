/* calib/backward_ops.c - what all parts have in common (calib/backward_impl.h). */
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/core/kmath.h"
#include "kernels/ops.h"

/* ---- buffers ---- */
lq_status grad_push(grad_ctx *g, const grad_part *p, int n, lq_err *err)
{
    for (int i = 0; i < n; i++) {
        void *v = p[i].n ? lq_push(&g->arena, (size_t)p[i].n * sizeof(float)) : NULL;
        if (p[i].n && !v) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
        memcpy(p[i].to, &v, sizeof v);
    }
    return LQ_OK;
}

/* ---- sums in f64, of four partial ones ---- */
double grad_sum(const float *x, int64_t n)
{
    double a = 0, b = 0, c = 0, d = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a += (double)x[i];
        b += (double)x[i + 1];
        c += (double)x[i + 2];
        d += (double)x[i + 3];
    }
    for (; i < n; i++)
        a += (double)x[i];
    return (a + c) + (b + d);
}

double grad_dot(const float *x, const float *y, int64_t n)
{
    double a = 0, b = 0, c = 0, d = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a += (double)x[i] * (double)y[i];
        b += (double)x[i + 1] * (double)y[i + 1];
        c += (double)x[i + 2] * (double)y[i + 2];
        d += (double)x[i + 3] * (double)y[i + 3];
    }
    for (; i < n; i++)
        a += (double)x[i] * (double)y[i];
    return (a + c) + (b + d);
}

/* ---- biases ---- */
typedef struct {
    float *y;
    const float *bias;
    int64_t step, R, N;
} bias_job;

static void bias_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const bias_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++)
        for (int64_t n = 0; n < j->N; n++)
            j->y[r * j->N + n] += j->bias[n * j->step];
}

void grad_add_bias(const grad_ctx *g, float *y, const float *bias, int64_t step, int64_t R,
                   int64_t N)
{
    bias_job j = { y, bias, step, R, N };
    if (bias) pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), bias_item, &j);
}

/* ---- several matrices as one ---- */
/* `unit` parts of a row of x at once: of parts whose rows have `n` numbers the next n / units. */
typedef struct {
    float *part[3], *x;
    int64_t n[3], parts, units, R;
    bool join;
} split_job;

static void split_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const split_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float *x = j->x + r * (j->n[0] + j->n[1] + j->n[2]);
        for (int64_t u = 0; u < j->units; u++)
            for (int64_t i = 0; i < j->parts; i++) {
                const int64_t n = j->n[i] / j->units;
                float *part = j->part[i] + r * j->n[i] + u * n;
                memcpy(j->join ? x : part, j->join ? part : x, (size_t)n * sizeof *x);
                x += n;
            }
    }
}

void grad_split_qkv(const grad_ctx *g, float *q, float *k, float *v, float *x, int64_t R, bool join)
{
    const arch_config *c = g->c;
    const int64_t Q = c->heads * c->head_dim, G = c->kv_heads, K = G * c->head_dim;
    const int64_t units = c->w.qkv_grouped ? G : c->w.qkv_quarters ? 4 : 1;
    split_job j = { { q, k, v }, x, { Q, K, G * c->v_dim }, 3, units, R, join };
    if (c->w.qkv_quarters) { /* q, v, k; k and v have the same width */
        j.part[1] = v;
        j.part[2] = k;
    }
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), split_item, &j);
}

void grad_split_gated(const grad_ctx *g, float *q, float *gate, float *x, int64_t R, bool join)
{
    const int64_t Q = g->c->heads * g->c->head_dim;
    split_job j = { { q, gate }, x, { Q, Q }, 2, g->c->heads, R, join };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), split_item, &j);
}

void grad_split_gate_up(const grad_ctx *g, float *gate, float *up, float *x, int64_t R, bool join)
{
    const int64_t F = g->c->ffn;
    split_job j = { { gate, up }, x, { F, F }, 2, 1, R, join };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), split_item, &j);
}

/* ---- the MLP's middle ---- */
grad_act grad_act_of(const grad_ctx *g, bool expert)
{
    const arch_config *c = g->c;
    const arch_layer *own = &c->layer[g->layer];
    const double limit = expert ? own->expert_limit : own->mlp_limit;
    grad_act act = { c->act, (float)c->act_limit };
    if (expert && c->w.limit_experts && c->act_limit > 0) act.f = ARCH_SILU_LIMITED;
    if (c->act == ARCH_SILU_CAPPED) act.limit = limit > 0 ? (float)limit : INFINITY;
    return act;
}

typedef struct {
    const grad_ctx *g;
    grad_act act;
    const float *gate, *up;
    float *mid, *dgate, *dup;
    int64_t R, F;
} mid_job;

/* f'(x), and *value = f(x), of xIELU (arXiv:2411.13010). */
static float xielu_slope(const grad_ctx *g, float x, float *value)
{
    const float e = k_exp(x < g->xielu.eps ? x : g->xielu.eps);
    const bool above = x > 0;
    *value =
        above ? g->xielu.p * x * x + g->xielu.b * x : g->xielu.m * (e - 1 - x) + g->xielu.b * x;
    if (above) return 2 * g->xielu.p * x + g->xielu.b;
    return g->xielu.m * ((x < g->xielu.eps ? e : 0) - 1) + g->xielu.b;
}

static void mid_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const mid_job *j = ctx;
    const int64_t at = item * GRAD_ROWS * j->F, n = grad_tile_end(item, j->R) * j->F - at;
    if (!j->gate) {
        memcpy(j->mid + at, j->up + at, (size_t)n * sizeof *j->mid);
        for (int64_t i = 0; i < n && j->act.f == ARCH_XIELU; i++)
            xielu_slope(j->g, j->up[at + i], &j->mid[at + i]);
        if (j->act.f == ARCH_XIELU) return;
        k_act(j->mid + at, n, (k_act_fn)j->act.f);
        return;
    }
    k_act_mul(j->mid + at, j->gate + at, j->up + at, n, (k_act_fn)j->act.f, j->act.limit);
}

void grad_mid(const grad_ctx *g, grad_act act, float *mid, const float *gate, const float *up,
              int64_t R, int64_t F)
{
    mid_job j = { .g = g, .act = act, .gate = gate, .up = up, .mid = mid, .R = R, .F = F };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), mid_item, &j);
}

enum { CHUNK = 256 };

/* f(x) and f'(x), but for SiLU. */
static float act_slope(arch_act f, float x, float *value)
{
    const float positive = x > 0 ? x : 0;
    if (f == ARCH_RELU) return *value = positive, x > 0 ? 1.0f : 0.0f;
    if (f == ARCH_RELU2) return *value = positive * positive, 2 * positive;
    if (f == ARCH_GELU_TANH) {
        float t = km_tanh(KM_GELU_A * (x + KM_GELU_B * x * x * x));
        *value = 0.5f * x * (1 + t);
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * KM_GELU_A * (1 + 3 * KM_GELU_B * x * x);
    }
    float cdf = 0.5f * (1 + km_erf(x * KM_SQRT_HALF));
    *value = x * cdf;
    return cdf + x * 0.39894228f * km_exp(-0.5f * x * x);
}

/* Of n <= CHUNK values; SiLU, which most models have, in vectors. */
static void act_slopes(const grad_ctx *g, arch_act act, const float *x, int64_t n, float *f,
                       float *slope)
{
    for (int64_t i = 0; i < n && act == ARCH_XIELU; i++)
        slope[i] = xielu_slope(g, x[i], &f[i]);
    if (act == ARCH_XIELU) return;
    if (act != ARCH_SILU) {
        for (int64_t i = 0; i < n; i++)
            slope[i] = act_slope(act, x[i], &f[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        f[i] = -x[i];
    k_exp_minus(f, f, 0, n);
    for (int64_t i = 0; i < n; i++) {
        const float s = 1 / (1 + f[i]);
        f[i] = x[i] * s;
        slope[i] = s * (1 + x[i] * (1 - s));
    }
}

/* g sigmoid(a g) (u + 1) with g = min(gate, L), u = up within L; beyond the limits nothing changes. */
static void clamped_back(const mid_job *j, int64_t at, int64_t n)
{
    const float L = j->act.limit, a = 1.702f;
    for (int64_t i = at; i < at + n; i++) {
        const float x = j->gate[i], v = j->up[i], d = j->dup[i];
        const float g = x < L ? x : L, u = v > L ? L : v < -L ? -L : v;
        const float s = 1 / (1 + k_exp(-a * g));
        j->dgate[i] = x <= L ? d * (u + 1) * s * (1 + a * g * (1 - s)) : 0;
        j->dup[i] = v >= -L && v <= L ? d * g * s : 0;
    }
}

/* f u with f = silu(gate) and u = up, of which the gate or f is bounded above by L, u on both sides. */
static void limited_back(const mid_job *j, int64_t at, int64_t n)
{
    const float L = j->act.limit;
    const bool capped = j->act.f == ARCH_SILU_CAPPED;
    float f[CHUNK], slope[CHUNK], gate[CHUNK];
    for (int64_t i = 0; i < n; i++)
        gate[i] = capped || j->gate[at + i] < L ? j->gate[at + i] : L;
    act_slopes(j->g, ARCH_SILU, gate, n, f, slope);
    for (int64_t i = 0; i < n; i++) {
        const float d = j->dup[at + i], v = j->up[at + i], u = v > L ? L : v < -L ? -L : v;
        const bool moves = capped ? f[i] <= L : j->gate[at + i] <= L;
        j->dgate[at + i] = moves ? d * u * slope[i] : 0;
        j->dup[at + i] = v >= -L && v <= L ? d * (capped && f[i] > L ? L : f[i]) : 0;
    }
}

static void mid_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const mid_job *j = ctx;
    const int64_t from = item * GRAD_ROWS * j->F, end = grad_tile_end(item, j->R) * j->F;
    const bool limited = j->act.f == ARCH_SILU_LIMITED || j->act.f == ARCH_SILU_CAPPED;
    if (j->act.f == ARCH_SWIGLU_CLAMPED) {
        clamped_back(j, from, end - from);
        return;
    }
    for (int64_t at = from; at < end; at += CHUNK) {
        const int64_t n = end - at < CHUNK ? end - at : CHUNK;
        float f[CHUNK], slope[CHUNK];
        if (limited) {
            limited_back(j, at, n);
            continue;
        }
        act_slopes(j->g, j->act.f, (j->gate ? j->gate : j->up) + at, n, f, slope);
        for (int64_t i = 0; i < n; i++) {
            const float d = j->dup[at + i];
            if (j->gate) j->dgate[at + i] = d * j->up[at + i] * slope[i];
            j->dup[at + i] = d * (j->gate ? f[i] : slope[i]);
        }
    }
}

void grad_mid_back(const grad_ctx *g, grad_act act, float *dgate, float *dup, const float *gate,
                   const float *up, int64_t R, int64_t F)
{
    mid_job j = {
        .g = g, .act = act, .gate = gate, .up = up, .dgate = dgate, .dup = dup, .R = R, .F = F
    };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), mid_back_item, &j);
}
