/* runtime/forward/follow.h - a rank other than 0 of those that share a model (runtime/model/part.h): it does what rank
 * 0 does to the model, in the same order.
 *
 * Rank 0's fwd_open, fwd_begin and fwd_close tell the others, who have no scheduler, no sampler and no tokenizer: of a
 * step they are told ids, positions and the numbers of blocks, and which blocks were copied before it. */
#ifndef LLMQ_RUNTIME_FORWARD_FOLLOW_H
#define LLMQ_RUNTIME_FORWARD_FOLLOW_H

#include "runtime/forward/forward.h"

/* Until rank 0 closes the model: LQ_OK. Errors: those of fwd_open and fwd_step, which rank 0 hears of too; LQ_EIO,
 * LQ_EINTR: rank 0 or another is gone. */
lq_status fwd_follow(const model *m, pool *p, lq_err *err);
/* On rank 0, when the model is closed: the others' fwd_follow ends. Elsewhere nothing. */
void fwd_dismiss(const model *m);

#endif
