/* quantize/job/job_layers.c - layer after layer: statistics of its inputs, rounding by them, the state of
 * the calibration text through what was made. */
#include <stdlib.h>

#include "quantize/job/job_impl.h"
#include "quantize/layer/apply.h"

static bool has_work(const job_run *r, int64_t layer)
{
    for (size_t i = 0; i < r->plan.n; i++)
        if (r->plan.e[i].layer == layer && r->plan.e[i].quantize) return true;
    return false;
}

/* stages: the state is before the last of the layer's linears, or what an MLP begins with; by: and so is the original's. */
static lq_status advance(job_run *r, int64_t layer, const model_layer *l, const cal_original *by,
                         bool stages, lq_err *err)
{
    if (layer + 1 == r->plan.cfg.layers) return LQ_OK; /* nothing reads its outputs */
    progress_phase(&r->progress, PROGRESS_ADVANCING, layer);
    return stages ? cal_stage(r->cal, NULL, layer, l, by, FWD_AT_END, r->job, err)
                  : cal_advance(r->cal, layer, l, r->job, err);
}

/* Experts whose H fits in the memory set apart for it, at least one for each rank. */
static int64_t experts_at_once(const job_run *r, int64_t layer)
{
    const arch_config *c = &r->plan.cfg;
    const int64_t all = c->layer[layer].moe ? c->experts : 0;
    if (!qz_needs_h(r->j->o) || !r->memory.experts) return all;
    size_t one = 0;
    for (int s = CAL_N_SHARED; s < CAL_N_SITES; s++) {
        const size_t K = (size_t)cal_site_width(c, (cal_site)s);
        if (s != CAL_EXPERT_IN || !r->j->o->all_experts) one += K * K * sizeof(float);
    }
    int64_t n = one ? (int64_t)(r->memory.experts / one) : all;
    if (n > all) n = all;
    n = (n < 1 ? 1 : n) * comm_size(r->j->ranks);
    return n < all ? n : all;
}

/* Of what is matched: folding first, for which all of the layer is looked at. */
static lq_status change_first(job_run *r, qz_layer_work *w, int64_t layer, model_layer *l,
                              qz_item *items, lq_arena *a, lq_err *err)
{
    const bool folds = qz_folds(r->j->o);
    size_t n = 0;
    lq_status s = LQ_OK;
    progress_phase(&r->progress, PROGRESS_STATISTICS, layer);
    if (folds) s = cal_glance(r->cal, &r->st, layer, l, r->job, err);
    progress_phase(&r->progress, PROGRESS_ROUNDING, layer);
    if (!s) s = qz_layer_change(w, folds ? &r->st : NULL, items, &n, err);
    return s ? s : qz_layer_apply(l, &r->plan.cfg, items, n, a, r->p, err);
}

/* Statistics of everything the layer has once and of some experts, then of the next experts. */
static lq_status by_experts(job_run *r, qz_layer_work *w, int64_t layer, const model_layer *l,
                            lq_err *err)
{
    const arch_config *c = &r->plan.cfg;
    const int64_t all = c->layer[layer].moe ? c->experts : 0, batch = experts_at_once(r, layer);
    lq_status s = LQ_OK;
    for (int64_t first = 0; (first == 0 || first < all) && !s; first += batch ? batch : 1) {
        const int64_t n = first + batch < all ? batch : all - first;
        progress_phase(&r->progress, PROGRESS_STATISTICS, layer);
        s = r->j->stats ? stats_read(r->j->stats, &r->st, src_config(r->src), layer, first, n,
                                     qz_needs_h(r->j->o), err)
                        : cal_statistics(r->cal, &r->st, layer, l, first, n, r->job, err);
        progress_phase(&r->progress, PROGRESS_ROUNDING, layer);
        if (!s) s = qz_layer_round(w, &r->st, first, n, err);
    }
    return s;
}

/* Point after point: statistics there, its linears rounded, and put into the layer that the state
 * goes on through; then what comes after the last point, if it does. */
static lq_status by_points(job_run *r, qz_layer_work *w, int64_t layer, model_layer *l,
                           cal_original *by, qz_item *items, lq_arena *a, lq_err *err)
{
    const arch_config *c = &r->plan.cfg;
    const bool last = layer + 1 == c->layers;
    fwd_point at = fwd_first_point(c, layer);
    lq_status s = by ? change_first(r, w, layer, l, items, a, err) : LQ_OK;
    for (fwd_point next; at < FWD_AT_END && !s; at = next) {
        size_t n = 0;
        next = fwd_next_point(c, layer, at);
        progress_phase(&r->progress, PROGRESS_STATISTICS, layer);
        if (by) {
            qz_layer_original(w, by, at);
            by->scale = fwd_join_scale(c, l, layer, at);
        }
        s = cal_stage(r->cal, &r->st, layer, l, by, at, r->job, err);
        progress_phase(&r->progress, PROGRESS_ROUNDING, layer);
        if (!s) s = qz_layer_round_at(w, &r->st, at, items, &n, err);
        if (!s && !(last && next == FWD_AT_END && fwd_points_to_end(c, layer)))
            s = qz_layer_apply(l, c, items, n, a, r->p, err);
    }
    return s || fwd_points_to_end(c, layer) ? s : by_experts(r, w, layer, l, err);
}

/* Rounds a layer and keeps it; in stages `l` takes what is rounded. */
static lq_status make_layer(job_run *r, int64_t layer, model_layer *l, cal_original *by,
                            bool stages, qz_item *items, lq_arena *a, lq_err *err)
{
    qz_layer_work *w;
    qz_layer made = { 0 };
    const qz_rounding how = { .plan = &r->plan,
                              .o = r->j->o,
                              .curvature = r->curvature.G ? &r->curvature : NULL,
                              .residual = r->codes,
                              .ranks = r->j->ranks,
                              .p = r->p,
                              .job = r->job };
    lq_status s = qz_layer_begin(&w, &how, layer, err);
    if (!s)
        s = stages ? by_points(r, w, layer, l, by, items, a, err) : by_experts(r, w, layer, l, err);
    qz_layer_end(s ? NULL : &made, w);
    if (!s) s = src_unchanged(r->src, err); /* else nothing of it is kept */
    if (!s) s = qz_state_add(&r->state, layer, &made, err);
    qz_layer_free(&made);
    src_release_all(r->src);
    return s;
}

/* A finished layer that the state will go through at once: the original's has gone, and l has what was made. own may be l. */
static lq_status put_made(job_run *r, int64_t layer, model_layer *l, const model_layer *own,
                          qz_item *items, lq_arena *a, lq_err *err)
{
    size_t n = 0;
    progress_phase(&r->progress, PROGRESS_ADVANCING, layer);
    lq_status s = cal_follow(r->cal, layer, own, r->job, err);
    if (!s) s = qz_state_items(&r->state, &r->plan, layer, items, &n, err);
    return s ? s : qz_layer_apply(l, &r->plan.cfg, items, n, a, r->p, err);
}

/* One layer with calibration: statistics, rounding, what is finished kept, the state advanced; or
 * only the last when it was done. */
static lq_status calibrated_layer(job_run *r, int64_t layer, qz_item *items, lq_err *err)
{
    lq_arena a = { 0 };
    model_layer l, own;
    cal_original original = { .own = &own }, *by = NULL;
    const arch_config *c = &r->plan.cfg;
    const bool done = qz_state_done(&r->state, layer), last = layer + 1 == c->layers;
    const bool stages = !done && qz_in_stages(r->j->o) && fwd_has_points(c, layer),
               whole = !stages || !fwd_points_to_end(c, layer); /* is how the state goes on */
    lq_status s = LQ_OK;
    if (r->j->stats) { /* nothing goes through it */
        if (!done) s = make_layer(r, layer, NULL, NULL, false, items, &a, err);
        qz_state_drop(&r->state, layer);
        return s;
    }
    s = model_load_layer(&l, cal_model(r->cal), layer, &a, r->p, err);
    if (!s && stages && qz_matches(r->j->o)) {
        own = l; /* what is rounded takes a place of its own */
        by = &original;
    }
    if (!s && !done) s = make_layer(r, layer, &l, by, stages, items, &a, err);
    if (!s && whole && !last) s = put_made(r, layer, &l, by ? &own : &l, items, &a, err);
    if (!s) s = advance(r, layer, &l, by, !whole, err);
    lq_arena_free(&a);
    qz_state_drop(&r->state, layer); /* else they would add up to the whole result */
    return s;
}

static lq_status plain_layer(job_run *r, int64_t i, lq_err *err)
{
    if (qz_state_done(&r->state, i) || !has_work(r, i)) return LQ_OK;
    qz_layer made;
    const qz_rounding how = {
        .plan = &r->plan, .o = r->j->o, .ranks = r->j->ranks, .p = r->p, .job = r->job
    };
    progress_phase(&r->progress, PROGRESS_ROUNDING, i);
    lq_status s = qz_layer_make(&made, &how, i, NULL, err);
    if (!s) s = src_unchanged(r->src, err);
    if (!s) s = qz_state_add(&r->state, i, &made, err);
    qz_layer_free(&made);
    src_release_all(r->src);
    return s;
}

int64_t job_last_calibrated(const job_run *r)
{
    int64_t last = -1;
    for (int64_t i = 0; i < r->plan.cfg.layers && r->j->samples; i++)
        if (!qz_state_done(&r->state, i)) last = i;
    return last;
}

/* Statistics and states are of no use to the layers that need none. */
static void end_calibration(job_run *r)
{
    cal_layer_stats_free(&r->st);
    cal_close(r->cal);
    r->cal = NULL;
}

lq_status job_layers(job_run *r, lq_err *err)
{
    int64_t n = r->state.n_layers, look = job_last_calibrated(r);
    lq_status s = LQ_OK;
    qz_item *items = calloc(r->plan.n, sizeof *items);
    if (!items) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    if (look >= 0 && !r->j->stats) {
        cal_opts o = { .spill_dir = r->memory.spill ? r->state.at.dir : NULL,
                       .want_h = qz_needs_h(r->j->o),
                       .staged = qz_in_stages(r->j->o),
                       .match = qz_matches(r->j->o),
                       .keep_rows = r->memory.keep_rows,
                       .looks = qz_matches(r->j->o) && qz_folds(r->j->o),
                       .outlier = (float)qz_outlier_threshold(r->j->o),
                       .all_experts = r->j->o->all_experts,
                       .weight = r->curvature.weight,
                       .ranks = r->j->ranks,
                       .on = r->j->o->on };
        s = cal_open(&r->cal, r->src, r->j->samples, &o, r->p, err);
    }
    for (int64_t i = 0; i < n && !s; i++) {
        if (i > look) end_calibration(r);
        if (lq_stopped(r->job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else
            s = i <= look ? calibrated_layer(r, i, items, err) : plain_layer(r, i, err);
    }
    end_calibration(r);
    free(items);
    return s;
}
