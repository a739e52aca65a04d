/* quantize/mixed/bpw.h - `quantize --bpw X`: the bits and groups of every tensor, chosen together.
 *
 *     minimize  sum over tensors of effect(tensor, scheme)    sum of bytes <= X * weights / 8
 *
 * effect: quantize/mixed/measure.h; the choice: quantize/mixed/knapsack.h. Candidates: 2, 3, 4 and 8 bits in groups
 * of 32, 64 and 128 (fitted to the inputs), for GGUF its types of blocks, and the source's own type; of these
 * what the format of the result holds (qz_opts.bpw_for). The budget is of the linears
 * of the layers, with those that --override and --skip settle; where embedding or head take part
 * (--embed auto, --lm-head auto), of all tensors.
 *
 * The parts of a fused linear (q, k, v; gate, up; a layer's experts) share one choice, since
 * runtimes that fuse them take one scheme for all; with opts.untied each role has its own. The
 * experts of a layer and role always share one. Tied embeddings stay one matrix. */
#ifndef LLMQ_QUANTIZE_MIXED_BPW_H
#define LLMQ_QUANTIZE_MIXED_BPW_H

#include "calib/fisher.h"
#include "quantize/layer/plan.h"

/* What a budget can be, from the plan alone. */
typedef struct {
    double weights; /* that the budget counts */
    double fixed;   /* bytes of theirs that are settled already */
    double bpw_least, bpw_most;
    int64_t n_open; /* tensors */
} bpw_range;
/* Candidate c of those for this format; NULL: there are no more. */
const plan_candidate *bpw_candidate(const qz_opts *o, int c);
/* Errors: LQ_EUSAGE (o->bpw is not within the range, or nothing is open), LQ_ESHAPE, LQ_ENOMEM. */
lq_status bpw_check(bpw_range *r, const qz_plan *plan, const qz_opts *o, lq_err *err);

typedef struct {
    double *effect;   /* [plan->n]; NAN: not chosen here. NULL: nothing was. */
    double predicted; /* their sum: mean KL divergence per token, in nats */
    bool measured;    /* false: found in `file` */
    lq_arena arena;
} bpw_choice;

/* Settles the plan's open entries. file: where the choice is kept; read if it is there and fits,
 * else written after measuring. curvature: see measure_run. Errors: bpw_check's, measure_run's,
 * LQ_EIO. */
lq_status bpw_run(bpw_choice *m, qz_plan *plan, src_source *src, const qz_opts *o,
                  const cal_samples *samples, const fisher *curvature, const char *file,
                  comm *ranks, pool *p, const lq_job *job, lq_err *err);
void bpw_free(bpw_choice *m);

#endif
