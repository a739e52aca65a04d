/* runtime/forward/whole.h - the logits of one sequence, all of them. */
#ifndef LLMQ_RUNTIME_FORWARD_WHOLE_H
#define LLMQ_RUNTIME_FORWARD_WHOLE_H

#include "runtime/forward/forward.h"

/* The cache and the steps that n ids take. */
void fwd_whole_size(kv_opts *kv, fwd_opts *step, int64_t n, mm_acts acts, kv_dtype dtype);
/* *out: f32 [n, vocabulary], malloc'ed. lora: an adapter to m, or NULL. The job may be NULL. LQ_ENOMEM; LQ_EINTR: the job was stopped; LQ_EVALUE: some are not
 * finite; fwd_step's. */
lq_status fwd_whole(float **out, const model *m, const lora_adapter *lora, const int32_t *ids,
                    int64_t n, mm_acts acts, kv_dtype dtype, pool *p, const lq_job *job,
                    lq_err *err);

#endif
