/* quantize/mixed/measure.h - the effect of every scheme that an open tensor may take, measured on the
 * unquantized model, a layer at a time.
 *
 * Linears of a layer: sensitivity_of with H of the tensor's inputs on MEASURE_WINDOWS windows and,
 * where the model has a backward pass (calib/backward.h), with the curvature of its answers. Of
 * other models a unit (the tensors of one role in a layer, all experts) is replaced as a whole by
 * its rounding to MEASURE_BITS bits, the layers after it run on (quantize/mixed/perturb.h), and the
 * KL divergence of the answers sets the scale of the unit's effects.
 *
 * Experts: EXPERTS_SEEN of them are measured, evenly spaced, and represent those between; their
 * down projection is measured by the weights alone. Embedding and head: for each scheme the model
 * runs with the rounded matrix, and the effect is the KL divergence itself.
 *
 * Memory: one layer and H of its inputs, hidden states of the windows, and at most
 * PERTURB_STATE_BYTES of states of replaced units. Cost: two forward passes over the windows, the
 * grids of every scheme once, and what perturb.h says. */
#ifndef LLMQ_QUANTIZE_MIXED_MEASURE_H
#define LLMQ_QUANTIZE_MIXED_MEASURE_H

#include "base/comm.h"
#include "calib/fisher.h"
#include "quantize/layer/plan.h"

enum { MEASURE_SCHEMES = 13, MEASURE_WINDOWS = 32, MEASURE_BITS = 3 };

typedef struct {
    const plan_entry *e;
    int n; /* schemes, the same for all */
    qt_scheme scheme[MEASURE_SCHEMES];
    double effect[MEASURE_SCHEMES]; /* nats per token */
} measure_entry;

/* m [n]: in the plan's order, effects zero. curvature: of the source; G NULL: taken here where it
 * can be. ranks: they share the pass, a layer's matrices, and have the same effects; NULL: one process. Errors: those of
 * reading the source, of comm.h, LQ_ENOMEM, LQ_EINTR. */
lq_status measure_run(measure_entry *m, size_t n, src_source *src, const qz_plan *plan,
                      const qz_opts *o, const cal_samples *samples, const fisher *curvature,
                      comm *ranks, pool *p, const lq_job *job, lq_err *err);

#endif
