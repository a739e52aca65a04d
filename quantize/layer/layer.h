/* quantize/layer/layer.h - quantizes one part of a plan: a layer, or what is outside the layers.
 *
 * Without statistics each matrix is done alone. With them the linears that a layer has once are
 * read as f32 together, scales are folded where the options ask for it (quantize/transform/fold.h), and each
 * is rounded by the method of its scheme and of the options; then one expert after the other
 * likewise (auto: without curvature as gptq). Where nothing is folded and the layer has points
 * (runtime/forward/forward.h), statistics come point after point, each of inputs that the quantized linears
 * before made:
 *
 *     scheme         rtn, absmax, nf4, fp4, int8   gptq         awq         auto       (hqq:
 * hqq_run) u{2,3,4,8}     rounding to nearest           gptq_run     awq_round   kfac_run i8*, nf4,
 * fp4, f32, f16, bf16                alike for every method
 *
 * Experts: each is rounded by the statistics of the rows that were sent to it. One that got fewer
 * tokens than a quarter of its inputs is starved: its statistics say more about those tokens than
 * about its inputs. Its gate and up then take the statistics of all tokens of the layer, its down
 * is rounded to nearest, and the report says so. Experts stacked in one tensor stay one tensor,
 * each with its own statistics (i8-outlier: one set of columns, of all experts). */
#ifndef LLMQ_QUANTIZE_LAYER_LAYER_H
#define LLMQ_QUANTIZE_LAYER_LAYER_H

#include "calib/fisher.h"
#include "calib/forward_pass.h"
#include "quantize/layer/plan.h"
#include "quantize/layer/report.h"

/* A tensor that is not copied from the source. */
typedef struct {
    const plan_entry *e;
    qt_tensor t;
    const int8_t *rest; /* [N,K]: what rounding left (quantize/layer/residual.h); NULL: not kept */
} qz_item;

typedef struct {
    qz_item *items; /* in the plan's order */
    qz_report *reports;
    size_t n_items, n_reports;
    lq_arena arena;
} qz_part;

/* Where statistics come from. */
typedef struct {
    /* Of the part's sites, and of experts first .. first + n (calib/forward_pass.h). They stay until the
     * next call, and are changed by folding. */
    lq_status (*look)(void *user, cal_layer_stats **st, int64_t first, int64_t n, lq_err *err);
    /* In stages, where the part is a layer that allows it; else both are NULL. Statistics at a
     * point, FWD_AT_QKV first; and the linears that read there, once they are rounded. */
    lq_status (*look_at)(void *user, cal_layer_stats **st, fwd_point at, lq_err *err);
    lq_status (*take)(void *user, const qz_item *items, size_t n, lq_err *err);
    void *user;
    bool hessian;            /* they hold H */
    size_t limit;            /* bytes of experts' H at once, at least one expert's; 0: no limit */
    bool all_experts;        /* gate and up of experts: all tokens */
    const fisher *curvature; /* of the whole model; NULL: none */
    bool rest;               /* keep what rounding left of weights that tuning can train */
} qz_eyes;

/* eyes: NULL without statistics.
 * Errors: LQ_ENOMEM, LQ_EINTR, LQ_EVALUE (a result that is not finite; names the tensor), look's.
 */
lq_status qz_part_make(qz_part *out, const qz_plan *plan, int64_t part, const qz_opts *o,
                       const qz_eyes *eyes, pool *p, const lq_job *job, lq_err *err);
/* One entry of a part alone, without statistics: its one item and report. It is one that the plan
 * quantizes. */
lq_status qz_part_entry(qz_part *out, const qz_plan *plan, const plan_entry *e, const qz_opts *o,
                        pool *p, const lq_job *job, lq_err *err);
void qz_part_free(qz_part *p);

#endif
