/* quantize/layer/layer.h - quantizes one layer of a plan, or what is outside the layers.
 *
 * The caller first gathers statistics (calib/forward_pass.h), then has what they cover rounded:
 *
 *     qz_layer_begin
 *     all at once:          qz_layer_round(statistics of all sites and experts 0 .. n)
 *       more experts:       qz_layer_round(statistics of experts n .. 2 n) ...
 *     or point after point: qz_layer_round_at(statistics of the inputs that are read there) ...
 *       where matched:      qz_layer_change(statistics of all sites) before, qz_layer_original at each point
 *       where experts come after the last point: qz_layer_round(...) as above, of what reads at none
 *     qz_layer_end          the tensors and a report of each
 *
 * Without statistics each matrix is done alone. With them the linears that a layer has once are read
 * as f32 together, scales are folded where the options ask for it (quantize/transform/fold.h), and each
 * is rounded; then one expert after the other likewise. Where the layer has points
 * (runtime/forward/forward.h), and nothing is folded or it is matched to the original (cal_original
 * in calib/forward_pass.h), statistics come point after point, each of inputs that the quantized
 * linears before made. A uniform grid is rounded by the method (quantize/methods/method.h); other
 * schemes are made alike under every method.
 *
 * Experts: each is rounded by the statistics of the rows that were sent to it. One that got fewer
 * tokens than a quarter of its inputs has too few: its statistics say more about those tokens than
 * about its inputs. Its gate and up then take the statistics of all tokens of the layer, its down
 * is rounded to nearest, and the report says so. Experts stacked in one tensor stay one tensor,
 * each with its own statistics (i8-outlier: one set of columns, of all experts). */
#ifndef LLMQ_QUANTIZE_LAYER_LAYER_H
#define LLMQ_QUANTIZE_LAYER_LAYER_H

#include "base/comm.h"
#include "calib/fisher.h"
#include "calib/forward_pass.h"
#include "quantize/layer/plan.h"
#include "quantize/layer/report.h"

/* A tensor that is not copied from the source. */
typedef struct {
    const plan_entry *e;
    qt_tensor t;
    const int8_t
        *residual; /* [N,K]: what rounding left (quantize/layer/residual.h); NULL: not kept */
} qz_item;

/* A layer that is finished. */
typedef struct {
    qz_item *items; /* in the plan's order */
    qz_report *reports;
    size_t n_items, n_reports;
    lq_arena arena;
} qz_layer;

typedef struct {
    const qz_plan *plan;
    const qz_opts *o;
    const fisher *curvature; /* of the whole model; NULL: none */
    bool residual;           /* keep what rounding left of weights that tuning can train */
    comm *
        ranks; /* they share the work, all make the same calls, and have the same result; NULL: one process */
    pool *p;
    const lq_job *job;
} qz_rounding;

typedef struct qz_layer_work qz_layer_work;

/* Loads the layer's tensors; layer = plan->cfg.layers: what is outside the layers; how is copied.
 * Errors: LQ_ENOMEM, LQ_EVALUE (a weight that is not finite). */
lq_status qz_layer_begin(qz_layer_work **w, const qz_rounding *how, int64_t layer, lq_err *err);
/* What the layer has once, when `first` is 0, and experts first .. first + n, by st, which folding
 * changes; NULL: without statistics. Errors: LQ_ENOMEM, LQ_EINTR, LQ_EDEVICE, LQ_EVALUE (a result
 * that is not finite; names the tensor). */
lq_status qz_layer_round(qz_layer_work *w, cal_layer_stats *st, int64_t first, int64_t n,
                         lq_err *err);
/* Before the first point, of what is matched (qz_matches): the layer's linears are read; with st,
 * of all sites, scales are folded. items [plan->n]: norms and the like that took factors, borrowed from w. Errors: those
 * of qz_layer_round. */
lq_status qz_layer_change(qz_layer_work *w, cal_layer_stats *st, qz_item *items, size_t *n,
                          lq_err *err);
/* What a point's inputs are compared with, but for `own` and `scale`. */
void qz_layer_original(const qz_layer_work *w, cal_original *by, fwd_point at);
/* The linears that read at a point. items [plan->n]: they, borrowed from w. Errors: the same. */
lq_status qz_layer_round_at(qz_layer_work *w, cal_layer_stats *st, fwd_point at, qz_item *items,
                            size_t *n, lq_err *err);
/* Ends the work; out NULL: what was made is dropped. */
void qz_layer_end(qz_layer *out, qz_layer_work *w);

/* The three together, without statistics; `only`: one entry that the plan quantizes, or NULL: all
 * of the layer. */
lq_status qz_layer_make(qz_layer *out, const qz_rounding *how, int64_t layer,
                        const plan_entry *only, lq_err *err);
void qz_layer_free(qz_layer *l);

/* Bytes that matching a matrix [N,K] to an original takes besides it, D rows of M (calib/stats.h). */
size_t layer_match_bytes(int64_t N, int64_t K, int64_t D);

#endif
