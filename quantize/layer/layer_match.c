/* quantize/layer/layer_match.c - weights that make up for what quantizing changed before them (cal_original in
 * calib/forward_pass.h):
 *
 *     W + W M / (H + r I)     of linears that read what comes of a norm
 *     W + M / (H + r I)       of a branch's last linear
 *
 * They are rounded in place of W. */
#include <math.h>

#include "calib/gemm_dev.h"
#include "quantize/layer/layer_impl.h"
#include "quantize/methods/cholesky.h"

/* r, of H's mean diagonal: text says little of directions that it hardly has. How few tokens there are is in H
 * (cal_stats_shrink). */
static const double ridge = 0.02;

size_t layer_match_bytes(int64_t N, int64_t K, int64_t D)
{
    const size_t k = (size_t)K, factor = cholesky_bytes(K),
                 rows = (size_t)(D > N ? D : N) * k * sizeof(float);
    return k * k * sizeof(float) + (factor > rows ? factor : rows) + k * sizeof(int32_t);
}

lq_status layer_own(unit *u, lq_arena *a, lq_err *err)
{
    const size_t n = (size_t)u->N * (size_t)u->K;
    if (u->own) return LQ_OK;
    u->own = lq_push(a, n * sizeof *u->own);
    if (!u->own) return layer_no_memory(n * sizeof *u->own, err);
    lq_to_f32(u->own, u->W, u->d, n);
    u->W = u->own;
    u->d = LQ_F32;
    return LQ_OK;
}

/* M := M / (H + r I), by U of its inverse U^T U. LQ_ECHECK: H is not usable. */
static lq_status solve(work *w, cal_stats *st, gemm_dev *on, lq_err *err)
{
    const int64_t K = st->K, D = st->D;
    const size_t k = (size_t)K, n = (size_t)(D * K);
    lq_arena a = { 0 };
    double sum = 0;
    int32_t *order = lq_push(&a, k * sizeof *order);
    float *U = lq_push(&a, k * k * sizeof *U), *half = NULL;
    lq_status s = order && U ? LQ_OK : layer_no_memory(k * k * sizeof *U, err);
    for (int64_t i = 0; i < K && !s; i++) {
        order[i] = (int32_t)i;
        sum += (double)st->H[i * K + i];
    }
    if (!s)
        s = cholesky_upper(U, st->H, order, K, ridge * sum / (double)K, w->o->on, w->how.ranks,
                           w->p, err);
    if (!s && !(half = lq_push(&a, n * sizeof *half))) s = layer_no_memory(n * sizeof *half, err);
    if (!s) {
        gemm_dev_keep(on, U, K * K);
        gemm_dev_run(on, half, K, (gemm_in){ st->M, K, false }, (gemm_in){ U, K, true }, D, K, K, 0,
                     w->p);
        gemm_dev_run(on, st->M, K, (gemm_in){ half, K, false }, (gemm_in){ U, K, false }, D, K, K,
                     0, w->p);
        gemm_dev_forget(on, U);
        s = gemm_dev_check(on, err);
    }
    lq_arena_free(&a);
    return s;
}

typedef struct {
    float *own;
    const float *more;
    int64_t n;
} add_job;

enum { ADDED = 1 << 16 };

static void add_item(void *ctx, int64_t item, int thread)
{
    const add_job *j = ctx;
    const int64_t from = item * ADDED, to = from + ADDED < j->n ? from + ADDED : j->n;
    (void)thread;
    for (int64_t i = from; i < to; i++)
        j->own[i] += j->more[i];
}

/* ends: by outputs. */
static lq_status change(work *w, unit *u, const cal_stats *st, gemm_dev *on, bool ends, lq_err *err)
{
    const int64_t N = u->N, K = u->K;
    add_job j = { u->own, st->M, N * K };
    lq_arena temp = { 0 };
    lq_status s = LQ_OK;
    if (!ends) {
        float *more = lq_push(&temp, (size_t)(N * K) * sizeof *more);
        if (!more) s = layer_no_memory((size_t)(N * K) * sizeof *more, err);
        if (!s)
            gemm_dev_run(on, more, K, (gemm_in){ u->own, K, false }, (gemm_in){ st->M, K, false },
                         N, K, K, 0, w->p);
        if (!s) s = gemm_dev_check(on, err);
        j.more = more;
    }
    if (!s) pool_run(w->p, lq_ceil_div(j.n, ADDED), add_item, &j);
    lq_arena_free(&temp);
    return s;
}

/* Outputs may overflow f32; the layer that reads them will be named. */
static bool is_finite(const cal_stats *st)
{
    for (int64_t i = 0; i < st->D * st->K; i++)
        if (!isfinite(st->M[i])) return false;
    return true;
}

lq_status layer_match_group(work *w, group *g, lq_err *err)
{
    const bool ends = cal_ends_branch(w->at);
    cal_stats *st = g->n ? g->u[0].st : NULL;
    gemm_dev *on = NULL;
    if (!st || !st->M) return LQ_OK;
    cal_stats_shrink(st);
    lq_status s = w->o->on ? gemm_dev_open(&on, w->o->on, err) : LQ_OK;
    if (!s) s = solve(w, st, on, err);
    const bool usable = !s && is_finite(st);
    for (size_t i = 0; i < g->n && !s && usable; i++)
        if (layer_matches(&g->u[i])) s = change(w, &g->u[i], st, on, ends, err);
    gemm_dev_close(on);
    return s == LQ_ECHECK ? LQ_OK : s; /* H is not usable: rounding will say so */
}

void qz_layer_original(const qz_layer_work *w, cal_original *by, fwd_point at)
{
    by->match = false;
    by->cols = by->W = NULL;
    for (size_t i = 0; i < w->kept.n; i++) {
        const unit *u = &w->kept.u[i];
        if (cal_point_of(w->c, w->layer, u->t->e->role) != at || !layer_matches(u)) continue;
        by->match = true;
        by->cols = u->fold.cols;
        by->W = u->own;
    }
}
