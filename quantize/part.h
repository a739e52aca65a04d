/* quantize/part.h - quantizes one part of a plan: a layer, or what is outside the layers.
 *
 * Without statistics each tensor is done alone. With them the linears of a layer are read as f32
 * together, AWQ's scales are folded where the options ask for it, and each linear is rounded by the
 * method of its scheme and of the options:
 *
 *     scheme         rtn, absmax, nf4, fp4, int8   gptq         awq
 *     u{2,3,4,8}     rounding to nearest           gptq_run     awq_round
 *     i8*, nf4, fp4, f32, f16, bf16                alike for every method */
#ifndef LLMQ_QUANTIZE_PART_H
#define LLMQ_QUANTIZE_PART_H

#include "calib/run.h"
#include "quantize/plan.h"

typedef struct {
    const char *name;
    arch_role role;
    char scheme[40], note[120];
    int64_t elements;
    size_t bytes;
    double rmse, loss, loss_rtn; /* losses: NAN without statistics */
} qz_report;

/* A tensor that is not copied from the source. */
typedef struct {
    const plan_entry *e;
    qt_tensor t;
} qz_item;

typedef struct {
    qz_item *items; /* in the plan's order */
    qz_report *reports;
    size_t n_items, n_reports;
    lq_arena arena;
} qz_part;

/* st: statistics of the layer's inputs (changed by folding), or NULL.
 * Errors: LQ_ENOMEM, LQ_EINTR, LQ_EVALUE (a result that is not finite; names the tensor). */
lq_status qz_part_make(qz_part *out, const qz_plan *plan, int64_t part, const qz_opts *o,
                       cal_stats *st, pool *p, const lq_job *job, lq_err *err);
void qz_part_free(qz_part *p);

/* The layer as the quantized model will run it: `l` with the part's tensors in place of the
 * source's. What is packed goes into the arena. */
lq_status qz_part_apply(model_layer *l, const qz_item *items, size_t n, lq_arena *a, pool *p,
                        lq_err *err);

#endif
