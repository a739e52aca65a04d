/* calib/backward_norm.c - norms of a layer, forward and back (calib/backward_impl.h). Both kinds are
 *
 *     n = (x - m) / sqrt(mean (x - m)^2 + eps),   y = n w + b
 *
 * with m the row's mean, or 0 and no b for RMS norms. */
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

const arch_role grad_norm_roles[GRAD_NORMS] = {
    R_ATTN_NORM,        R_MLP_NORM,      R_Q_NORM, R_K_NORM,      R_Q_A_NORM,    R_KV_A_NORM,
    R_ATTN_POST_NORM,   R_MLP_POST_NORM, R_V_NORM, R_ROUTER_NORM, R_EXPERT_NORM, R_DENSE_POST_NORM,
    R_EXPERT_POST_NORM, R_PLE_POST_NORM, R_O_NORM, R_DOWN_NORM
};

typedef struct {
    const grad_norm *v;
    const float *x;
    float *y, *d, *dw; /* dw: one row of K for each tile; NULL: not wanted */
    bool centered;
    int64_t R, K;
} norm_job;

static int64_t parts_of(const grad_norm *v) { return v->parts ? v->parts : 1; }

/* The norm of the part that begins at `at`. */
static grad_norm part_at(const grad_norm *v, int64_t at)
{
    grad_norm part = *v;
    part.w = v->w ? v->w + at : NULL;
    part.bias = v->bias ? v->bias + at : NULL;
    return part;
}

static void norm_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const norm_job *j = ctx;
    const int64_t K = j->K, r = item * GRAD_ROWS, n = grad_tile_end(item, j->R) - r;
    const int64_t each = K / parts_of(j->v);
    for (int64_t at = 0; at < K; at += each) {
        const grad_norm v = part_at(j->v, at);
        float *y = j->y + r * K + at;
        const float *x = j->x + r * K + at;
        if (j->centered)
            k_layernorm(y, K, x, K, v.w, v.bias, v.offset, n, each, v.eps);
        else
            k_rmsnorm(y, K, x, K, v.w, v.offset, n, each, v.eps);
    }
}

/* dx = (d w - n mean(d w n)) / rms,  dw = sum d n. */
void grad_rms_back(const grad_norm *v, float *d, float *dw, const float *x, int64_t K)
{
    const float *w = v->w, offset = v->offset;
    double sq = 0, dot = 0;
    for (int64_t k = 0; k < K; k++) {
        sq += (double)x[k] * (double)x[k];
        dot += (double)d[k] * (double)(w ? w[k] + offset : 1) * (double)x[k];
    }
    const double inv = 1 / sqrt(sq / (double)K + (double)v->eps);
    const float a = (float)inv, b = (float)(dot / (double)K * inv * inv * inv);
    for (int64_t k = 0; k < K; k++) {
        if (dw) dw[k] += d[k] * x[k] * a;
        d[k] = d[k] * (w ? w[k] + offset : 1) * a - x[k] * b;
    }
}

/* dx = (d w - mean(d w) - n mean(d w n)) / sqrt(var + eps),  dw = sum d n. */
static void layer_back(const grad_norm *v, float *d, float *dw, const float *x, int64_t K)
{
    const float *w = v->w, offset = v->offset;
    double mean = 0, sq = 0, sum = 0, dot = 0;
    for (int64_t k = 0; k < K; k++)
        mean += (double)x[k] / (double)K;
    for (int64_t k = 0; k < K; k++) {
        const double c = (double)x[k] - mean, dk = (double)d[k] * (double)(w ? w[k] + offset : 1);
        sq += c * c;
        sum += dk;
        dot += dk * c;
    }
    const double inv = 1 / sqrt(sq / (double)K + (double)v->eps);
    const float m = (float)mean, a = (float)inv, s = (float)(sum / (double)K * inv);
    const float b = (float)(dot / (double)K * inv * inv * inv);
    for (int64_t k = 0; k < K; k++) {
        const float c = x[k] - m;
        if (dw) dw[k] += d[k] * c * a;
        d[k] = d[k] * (w ? w[k] + offset : 1) * a - s - c * b;
    }
}

static void norm_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const norm_job *j = ctx;
    const int64_t K = j->K, each = K / parts_of(j->v);
    float *dw = j->dw ? j->dw + item * K : NULL;
    if (dw) memset(dw, 0, (size_t)K * sizeof *dw);
    for (int64_t at = item * GRAD_ROWS * K; at < grad_tile_end(item, j->R) * K; at += each) {
        const grad_norm v = part_at(j->v, at % K);
        (j->centered ? layer_back : grad_rms_back)(&v, j->d + at, dw ? dw + at % K : NULL,
                                                   j->x + at, each);
    }
}

void grad_norm_run(const grad_ctx *g, float *y, const float *x, const grad_norm *v, int64_t R,
                   int64_t K)
{
    norm_job j = { .v = v, .x = x, .y = y, .centered = g->c->w.norm == NORM_LAYER, .R = R, .K = K };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), norm_item, &j);
}

void grad_norm_back(const grad_ctx *g, float *d, float *dw, const float *x, const grad_norm *v,
                    int64_t R, int64_t K)
{
    norm_job j = { .v = v,
                   .x = x,
                   .d = d,
                   .dw = dw ? g->tile_dw : NULL,
                   .centered = g->c->w.norm == NORM_LAYER,
                   .R = R,
                   .K = K };
    const int64_t n = lq_ceil_div(R, GRAD_ROWS);
    pool_run(g->p, n, norm_back_item, &j);
    for (int64_t i = 0; i < n && dw; i++)
        for (int64_t k = 0; k < K; k++)
            dw[k] += g->tile_dw[i * K + k];
}

grad_norm grad_norm_of(const grad_ctx *g, const grad_layer *l, int k)
{
    const arch_role r = grad_norm_roles[k];
    const arch_name *name = arch_name_of(g->c, r);
    return (grad_norm){ .w = l->norm[k],
                        .bias = l->norm_bias[k],
                        .offset = arch_norm_offset(g->c, r),
                        .eps = (float)arch_norm_eps_at(g->c, r, g->layer),
                        .none = !l->norm[k] && !(name && (name->flags & NAME_ONES)) };
}

static grad_norm final_norm(const grad_ctx *g, const float *w, const float *bias)
{
    return (grad_norm){ .w = w,
                        .bias = bias,
                        .offset = arch_norm_offset(g->c, R_FINAL_NORM),
                        .eps = (float)arch_norm_eps_at(g->all, R_FINAL_NORM, -1) };
}

void grad_norm_forward(grad_ctx *g, float *y, const float *x, const float *w, const float *bias,
                       int64_t R)
{
    const grad_norm v = final_norm(g, w, bias);
    grad_norm_run(g, y, x, &v, R, g->c->hidden);
}

void grad_norm_backward(grad_ctx *g, float *d, float *dw, const float *x, const float *w, int64_t R)
{
    const grad_norm v = final_norm(g, w, NULL);
    grad_norm_back(g, d, dw, x, &v, R, g->c->hidden);
}
