/* quantize/job/rank_plan.h - what several ranks take of a quantization with calibration and scale folding (gptq, awq),
 * counted from the config alone: `llmq plan --ranks N`.
 *
 * Work is counted in multiply-adds of the calibration pass, others by the usual speeds of quantize/job/progress.c. It is that of
 * the rank that has most: windows, tiles, pieces of rows and experts are dealt out as calib/share.h and quantize/layer/
 * layer_share.c do it. Without embedding and head, reading and packing. */
#ifndef LLMQ_QUANTIZE_JOB_RANK_PLAN_H
#define LLMQ_QUANTIZE_JOB_RANK_PLAN_H

#include "formats/arch/arch.h"
#include "quantize/methods/effort.h"

typedef struct {
    int ranks;
    double work;     /* of the rank that has most */
    double all;      /* of a single process */
    double received; /* bytes, by a rank, all in all */
    double memory;   /* bytes of a rank: its largest layer and what is beside it */
} rank_plan;

/* Weights of 16 bits that become 4; `windows` of `len` tokens. Errors: LQ_ENOMEM. */
lq_status rank_plan_of(rank_plan *p, const arch_config *c, int ranks, int64_t windows, int64_t len,
                       lq_err *err);
/* What auto adds to that by its curvature and `steps` steps of training (calib/backward.h): work, all and received; of the
 * original's answers too, not of weights that all ranks expand. false: no passes go back through layers of this kind. */
bool rank_plan_back(rank_plan *p, const arch_config *c, int ranks, const qz_effort *e, int steps,
                    int64_t len);
/* The share of all ranks' time that is work: 1 where none waits. */
static inline double rank_plan_efficiency(const rank_plan *p)
{
    return p->work > 0 ? p->all / (p->work * p->ranks) : 1;
}

#endif
