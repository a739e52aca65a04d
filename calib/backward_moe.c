/* calib/backward_moe.c - experts in the MLP's place, forward and backward, one at a time.
 *
 *     s = scores(h2 Wr)   share = of the chosen   y = sum share_e expert_e(h2) + shared(h2)
 *
 * Which experts are chosen has no gradient; the shares have. With t = dy Wd, the gradient at m = act(h2 Wg) (h2 Wu)
 * for a share of one:
 *
 *     dshare = m t + dy bias    dm = share t    dWd += (share dy)^T m
 *
 * The rows of an expert are gathered, so that its products are dense. */
#include <string.h>

#include "calib/backward_impl.h"
#include "calib/gemm.h"
#include "kernels/ops.h"
#include "runtime/forward/choose.h"

int64_t grad_widest_ffn(const arch_config *c)
{
    int64_t widest = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t own = c->expert_ffn > c->shared_ffn ? c->expert_ffn : c->shared_ffn;
        if (c->layer[i].moe && own > widest) widest = own;
        if ((!c->layer[i].moe || c->w.dense_beside) && c->ffn > widest) widest = c->ffn;
    }
    return widest;
}

void grad_made_parts(grad_part p[GRAD_MADE_PARTS], grad_made *m, const arch_config *c, int64_t R)
{
    const int64_t beside = c->w.dense_beside ? R * c->hidden : 0;
    const int64_t apart = c->w.dense_beside || c->latent ? R * arch_expert_width(c) : 0;
    const grad_part parts[GRAD_MADE_PARTS] = { { &m->he, apart },
                                               { &m->hr, beside },
                                               { &m->yd, beside },
                                               { &m->ye, apart },
                                               { &m->scores, R * c->experts },
                                               { &m->share, R * c->experts_used },
                                               { &m->chosen, R * c->experts_used },
                                               { &m->shared, c->shared_ffn ? R : 0 } };
    memcpy(p, parts, sizeof parts);
}

void grad_moe_parts(grad_part p[GRAD_MOE_PARTS], grad_moe *m, const arch_config *c, int64_t R)
{
    const int64_t W = arch_expert_width(c), F = grad_widest_ffn(c);
    const int64_t D = c->hidden > W ? c->hidden : W;
    const int64_t apart = c->w.dense_beside || c->latent ? R * W : 0;
    const grad_part parts[GRAD_MOE_PARTS] = {
        { &m->row, R },
        { &m->place, R },
        { &m->part, R },
        { &m->x, R * D },
        { &m->y, R * D },
        { &m->d, R * D },
        { &m->gate, R * F },
        { &m->up, R * F },
        { &m->mid, R * F },
        { &m->dshare, R * c->experts_used },
        { &m->dshared, c->shared_ffn ? R : 0 },
        { &m->dscores, R * c->experts },
        { &m->group_score, R * c->expert_groups },
        { &m->group_best, R * c->groups_used },
        { &m->dsum, apart },
        { &m->dread, apart },
    };
    memcpy(p, parts, sizeof parts);
}

/* ---- routing ---- */
typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    int64_t R;
} route_job;

static void choose_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const route_job *j = ctx;
    const arch_config *c = j->g->c;
    const grad_made *m = j->g->m;
    const grad_moe *moe = &j->g->moe;
    const int64_t E = c->experts, k = c->experts_used;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const choose_row one = { .scores = m->scores + r * E,
                                 .choice = moe->dscores + r * E,
                                 .group_score = moe->group_score + r * c->expert_groups,
                                 .group_best = moe->group_best + r * c->groups_used,
                                 .chosen = m->chosen + r * k,
                                 .share = m->share + r * k };
        choose_experts(&one, c, j->l->router_corr, j->l->expert_scale);
        if (!m->shared) continue;
        m->shared[r] = j->l->shared_router ? choose_sigmoid(m->shared[r]) : 1;
    }
}

/* What the router reads. */
static const float *read_by_router(const grad_ctx *g) { return g->m->hr ? g->m->hr : g->m->h2; }

/* he of h2, or y += out of latents. */
static void latents(grad_ctx *g, float *y, const float *x, const float *W, int64_t R, bool out)
{
    const int64_t N = out ? g->c->hidden : g->c->latent, K = out ? g->c->latent : g->c->hidden;
    grad_product(g, y, (gemm_in){ x, K, false }, (gemm_in){ W, K, true }, R, N, K, out ? 1 : 0);
}

/* And back: dx = dy W of latents, or dx of h2 += that. */
static void latents_back(grad_ctx *g, float *dx, const float *dy, const float *W, int64_t R,
                         bool out)
{
    const int64_t N = out ? g->c->hidden : g->c->latent, K = out ? g->c->latent : g->c->hidden;
    grad_product(g, dx, (gemm_in){ dy, N, false }, (gemm_in){ W, K, false }, R, K, N, out ? 0 : 1);
}

void grad_moe_choose(grad_ctx *g, const grad_layer *l, int64_t R)
{
    const int64_t E = g->c->experts, D = g->c->hidden;
    const gemm_in h = { read_by_router(g), D, false };
    route_job j = { g, l, R };
    gemm_run(g->m->scores, E, h, (gemm_in){ l->router, D, true }, R, E, D, 0, g->p);
    grad_add_bias(g, g->m->scores, l->router_bias, 1, R, E);
    if (g->c->latent) latents(g, g->m->he, g->m->h2, l->latent_in, R, false);
    if (l->shared_router)
        gemm_run(g->m->shared, 1, h, (gemm_in){ l->shared_router, D, true }, R, 1, D, 0, g->p);
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), choose_item, &j);
}

/* The gradient at a share before its expert's own factor. */
static double at_share(const float *dshare, const int32_t *chosen, const float *each, int64_t i)
{
    return (double)dshare[i] * (each ? (double)each[chosen[i]] : 1);
}

/* From the gradients of a row's shares to those of its logits. */
static void scores_back(float *dlogit, const float *dshare, const float *score,
                        const int32_t *chosen, const float *each, const arch_config *c)
{
    const int64_t E = c->experts, k = c->experts_used;
    const double scale = c->expert_scale, eps = (double)choose_eps(c);
    double sum = eps, mean = 0, dot = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += (double)score[chosen[i]];
        mean += at_share(dshare, chosen, each, i) * (double)score[chosen[i]];
    }
    memset(dlogit, 0, (size_t)E * sizeof *dlogit);
    for (int64_t i = 0; i < k; i++) {
        const double d = c->w.norm_topk ? (at_share(dshare, chosen, each, i) - mean / sum) / sum
                                        : at_share(dshare, chosen, each, i);
        dlogit[chosen[i]] = (float)(scale * d);
        dot += scale * d * (double)score[chosen[i]];
    }
    for (int64_t e = 0; e < E; e++) {
        const double s = (double)score[e], d = (double)dlogit[e];
        dlogit[e] = (float)(c->w.router == ROUTER_SIGMOID ? d * s * (1 - s) : s * (d - dot));
    }
}

/* The same of two experts by ROUTER_SPARSEMIXER: each has its part of a softmax over those near it, the second without
 * the first. */
static void mixer_back(float *dlogit, const float *dshare, const float *logit,
                       const int32_t *chosen, const arch_config *c)
{
    const int best = logit[chosen[1]] > logit[chosen[0]];
    memset(dlogit, 0, (size_t)c->experts * sizeof *dlogit);
    for (int i = 0; i < 2; i++) {
        const float top = logit[chosen[i]];
        double sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t e = 0; e < c->experts; e++) {
                if (!choose_near(logit[e], top, c) || (i != best && e == chosen[best])) continue;
                const double x = (double)k_exp(logit[e] - top);
                if (!pass)
                    sum += x;
                else
                    dlogit[e] += (float)((double)dshare[i] / sum * ((e == chosen[i]) - x / sum));
            }
    }
}

static void route_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const route_job *j = ctx;
    const arch_config *c = j->g->c;
    const grad_made *m = j->g->m;
    const grad_moe *moe = &j->g->moe;
    const int64_t E = c->experts, k = c->experts_used, D = c->hidden;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        float *dlogit = moe->dscores + r * E;
        if (c->w.router == ROUTER_SPARSEMIXER)
            mixer_back(dlogit, moe->dshare + r * k, m->scores + r * E, m->chosen + r * k, c);
        else
            scores_back(dlogit, moe->dshare + r * k, m->scores + r * E, m->chosen + r * k,
                        j->l->expert_scale, c);
        if (!j->l->shared_router) continue;
        const float d = moe->dshared[r] * m->shared[r] * (1 - m->shared[r]);
        for (int64_t i = 0; i < D; i++)
            j->g->dx[r * D + i] += d * j->l->shared_router[i];
    }
}

/* Through the routers: g->dx += their part of the gradient at h2. */
static void route_back(grad_ctx *g, const grad_layer *l, int64_t R, const grad_out *out)
{
    const int64_t E = g->c->experts, D = g->c->hidden;
    const gemm_in d = { g->moe.dscores, E, false }, dt = { g->moe.dscores, E, true };
    route_job j = { g, l, R };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), route_back_item, &j);
    float *dr = g->m->hr ? g->moe.dread : g->dx;
    gemm_run(dr, D, d, (gemm_in){ l->router, D, false }, R, D, E, g->m->hr ? 0 : 1, g->p);
    if (out->router)
        gemm_run(out->router, D, dt, (gemm_in){ read_by_router(g), D, false }, E, D, R, 1, g->p);
}

/* ---- rows of one expert ---- */
/* Those that chose it, of the shared MLP all; how many. */
static int64_t rows_of(grad_ctx *g, int64_t e, int64_t R)
{
    const int64_t k = g->c->experts_used;
    grad_moe *m = &g->moe;
    int64_t n = 0;
    for (int64_t r = 0; r < R && e == g->c->experts; r++) {
        m->row[r] = m->place[r] = (int32_t)r;
        m->part[r] = g->m->shared[r] * (float)g->c->shared_scale;
    }
    if (e == g->c->experts) return R;
    for (int64_t i = 0; i < R * k; i++) {
        if (g->m->chosen[i] != e) continue;
        m->row[n] = (int32_t)(i / k);
        m->place[n] = (int32_t)i;
        m->part[n++] = g->m->share[i];
    }
    return n;
}

typedef struct {
    const grad_ctx *g;
    const grad_expert *x;
    float *to;
    const float *from;
    int64_t e, n, width;
} rows_job;

static void gather_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const int64_t D = j->width;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++)
        memcpy(j->to + i * D, j->from + j->g->moe.row[i] * D, (size_t)D * sizeof *j->to);
}

/* to [R, hidden] += the rows of `from`, times their shares. */
static void scatter_shares_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const int64_t D = j->width;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++) {
        float *to = j->to + j->g->moe.row[i] * D;
        for (int64_t k = 0; k < D; k++)
            to[k] += j->g->moe.part[i] * j->from[i * D + k];
    }
}

static void times_shares_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++)
        k_scale(j->to + i * j->width, j->g->moe.part[i], j->width);
}

static void scatter_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const int64_t D = j->width;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++)
        k_add(j->to + j->g->moe.row[i] * D, j->from + i * D, D);
}

static void run_rows(const grad_ctx *g, void (*f)(void *, int64_t, int), float *to,
                     const float *from, int64_t n, int64_t width)
{
    rows_job j = { .g = g, .to = to, .from = from, .n = n, .width = width };
    pool_run(g->p, lq_ceil_div(n, GRAD_ROWS), f, &j);
}

/* Of the n rows of `read` that are gathered, or these times their shares: gate, up and mid. */
static void expert_mid(grad_ctx *g, grad_act act, const grad_expert *x, const float *read,
                       int64_t n, bool by_share)
{
    const int64_t D = x->width, F = x->ffn;
    const grad_moe *m = &g->moe;
    float *gate = x->gate ? m->gate : NULL;
    const gemm_in in = { m->x, D, false };
    run_rows(g, gather_item, m->x, read, n, D);
    if (by_share) run_rows(g, times_shares_item, m->x, NULL, n, D);
    if (gate) grad_product(g, gate, in, (gemm_in){ x->gate, x->ld, true }, n, F, D, 0);
    grad_product(g, m->up, in, (gemm_in){ x->up, x->ld, true }, n, F, D, 0);
    if (gate) grad_add_bias(g, gate, x->gate_bias, x->step, n, F);
    grad_add_bias(g, m->up, x->up_bias, x->step, n, F);
    grad_mid(g, act, m->mid, gate, m->up, n, F);
}

static int64_t n_experts(const arch_config *c) { return c->experts + (c->shared_ffn > 0); }

/* Does it read its rows times their shares, and not put them out so? */
static bool share_in(const arch_config *c, int64_t e) { return c->w.share_in && e < c->experts; }

/* What expert e reads. */
static const float *read_by(const grad_ctx *g, int64_t e)
{
    return e < g->c->experts && g->m->he ? g->m->he : g->m->h2;
}

lq_status grad_moe_forward(grad_ctx *g, const grad_layer *l, float *x, int64_t R, lq_err *err)
{
    const arch_config *c = g->c;
    lq_status s = LQ_OK;
    float *sum = c->latent ? g->m->ye : x;
    if (c->latent) memset(sum, 0, (size_t)(R * c->latent) * sizeof *sum);
    for (int64_t e = 0; e < n_experts(c) && !s; e++) {
        const int64_t n = rows_of(g, e, R);
        grad_expert own;
        if (!n || (s = l->experts->get(l->experts->user, e, &own, err))) continue;
        const bool by_share = share_in(c, e);
        expert_mid(g, grad_act_of(g, e < c->experts), &own, read_by(g, e), n, by_share);
        grad_product(g, g->moe.y, (gemm_in){ g->moe.mid, own.ffn, false },
                     (gemm_in){ own.down, own.ffn, true }, n, own.width, own.ffn, 0);
        grad_add_bias(g, g->moe.y, own.down_bias, 1, n, own.width);
        run_rows(g, by_share ? scatter_item : scatter_shares_item, e < c->experts ? sum : x,
                 g->moe.y, n, own.width);
    }
    if (c->latent && !s) latents(g, x, sum, l->latent_out, R, true);
    return s;
}

/* The gradient of each row's share; then d and dup, the gradient at mid, are scaled by it. */
static void shares_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const grad_moe *m = &j->g->moe;
    const int64_t D = j->width, F = j->x->ffn;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++) {
        float *d = m->d + i * D, *dmid = j->g->dup + i * F;
        double dot = 0;
        for (int64_t k = 0; k < F; k++)
            dot += (double)dmid[k] * (double)m->mid[i * F + k];
        for (int64_t k = 0; k < D && j->x->down_bias; k++)
            dot += (double)d[k] * (double)j->x->down_bias[k];
        if (j->e < j->g->c->experts)
            m->dshare[m->place[i]] = (float)dot;
        else
            m->dshared[i] = (float)(dot * j->g->c->shared_scale);
        k_scale(d, m->part[i], D);
        k_scale(dmid, m->part[i], F);
    }
}

/* The same where x is what is read times the share: of the gradient y at x. */
static void shares_in_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const grad_moe *m = &j->g->moe;
    const int64_t D = j->width;
    for (int64_t i = item * GRAD_ROWS; i < grad_tile_end(item, j->n); i++) {
        const float *read = read_by(j->g, j->e) + m->row[i] * D;
        m->dshare[m->place[i]] = (float)grad_dot(m->y + i * D, read, D);
        k_scale(m->y + i * D, m->part[i], D);
    }
}

/* dW of gate or up: this rank's rows, or all of two that are one matrix. */
static void add_weights(const grad_ctx *g, const grad_expert *x, float *dW, gemm_in dy, gemm_in in,
                        int64_t n)
{
    const int64_t D = x->width, F = x->ffn;
    if (x->fused)
        gemm_dev_run(g->on, dW, x->ld, dy, in, F, D, n, 1, g->p);
    else
        grad_add_rows(g, dW, x->ld, dy, in, F, D, n, 0, F);
}

/* dx += the gradient at what expert e reads of d, that at what its output joins. */
static void expert_back(grad_ctx *g, const grad_expert *x, int64_t e, float *dx, const float *d,
                        int64_t n, float *const G[GRAD_SUMS])
{
    const bool shared = e == g->c->experts;
    const int64_t D = x->width, F = x->ffn;
    const grad_moe *m = &g->moe;
    const gemm_in dgate = { g->dgate, F, false }, dup = { g->dup, F, false },
                  in = { m->x, D, false };
    const float *gate = x->gate ? m->gate : NULL;
    const bool by_share = share_in(g->c, e);
    const grad_act act = grad_act_of(g, !shared);
    expert_mid(g, act, x, read_by(g, e), n, by_share);
    run_rows(g, gather_item, m->d, d, n, D);
    grad_product(g, g->dup, (gemm_in){ m->d, D, false }, (gemm_in){ x->down, F, false }, n, F, D,
                 0);
    rows_job j = { .g = g, .x = x, .e = e, .n = n, .width = D };
    if (!by_share) pool_run(g->p, lq_ceil_div(n, GRAD_ROWS), shares_item, &j);
    grad_sum_blocks(g, G[shared ? GRAD_SHARED_DOWN : GRAD_EXPERT_DOWN], m->d, D, n);
    if (x->ddown)
        grad_add_rows(g, x->ddown, F, (gemm_in){ m->d, D, true }, (gemm_in){ m->mid, F, false }, D,
                      F, n, 0, D);
    grad_mid_back(g, act, g->dgate, g->dup, gate, m->up, n, F);
    if (gate) grad_sum_blocks(g, shared ? G[GRAD_SHARED_GATE] : NULL, g->dgate, F, n);
    grad_sum_blocks(g, shared ? G[GRAD_SHARED_UP] : NULL, g->dup, F, n);
    if (gate) grad_product(g, m->y, dgate, (gemm_in){ x->gate, x->ld, false }, n, D, F, 0);
    grad_product(g, m->y, dup, (gemm_in){ x->up, x->ld, false }, n, D, F, gate ? 1 : 0);
    if (gate && x->dgate) add_weights(g, x, x->dgate, (gemm_in){ g->dgate, F, true }, in, n);
    if (x->dup) add_weights(g, x, x->dup, (gemm_in){ g->dup, F, true }, in, n);
    if (by_share) pool_run(g->p, lq_ceil_div(n, GRAD_ROWS), shares_in_item, &j);
    run_rows(g, scatter_item, dx, m->y, n, D);
}

lq_status grad_moe_backward(grad_ctx *g, const grad_layer *l, const float *d, int64_t R,
                            const grad_out *out, lq_err *err)
{
    const grad_experts *all = l->experts;
    const int64_t W = g->c->latent;
    float *dx = W ? g->moe.dread : g->dx;
    const float *dsum = W ? g->moe.dsum : d;
    lq_status s = LQ_OK;
    memset(g->dx, 0, (size_t)(R * g->c->hidden) * sizeof *g->dx);
    if (W) memset(dx, 0, (size_t)(R * W) * sizeof *dx);
    if (W) latents_back(g, g->moe.dsum, d, l->latent_out, R, true);
    for (int64_t e = 0; e < n_experts(g->c) && !s; e++) {
        const bool shared = e == g->c->experts;
        const int64_t n = rows_of(g, e, R);
        grad_expert own;
        if (!n || (s = all->get(all->user, e, &own, err))) continue;
        expert_back(g, &own, e, shared ? g->dx : dx, shared ? d : dsum, n, out->G);
        if (all->done) s = all->done(all->user, e, err);
    }
    if (W && !s) latents_back(g, g->dx, dx, l->latent_in, R, false);
    if (!s) route_back(g, l, R, out);
    return s;
}
