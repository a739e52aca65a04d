/* runtime/engine/sizing.h - the engine's defaults, and how much context the KV pool is for. */
#ifndef LLMQ_RUNTIME_ENGINE_SIZING_H
#define LLMQ_RUNTIME_ENGINE_SIZING_H

#include "runtime/engine/engine_opts.h"
#include "runtime/load.h"
#include "runtime/model/kv.h"

/* LQ_EUSAGE: a figure out of range, or of another batching; err names the option. */
lq_status eng_check_policy(const eng_policy *p, lq_err *err);
/* Fills in the options that are 0 and do not depend on memory. */
void eng_defaults(eng_opts *o);
/* What an engine with these options needs besides the weights. */
load_beside eng_beside(const eng_opts *o);
/* `want` with the defaults filled in, and the pool for it. At least one sequence of max_len fits
 * the pool (and that of a draft model, which has as many blocks), so every request that max_len
 * admits can run: where max_len was not asked for it is lowered to what fits, else the pool must
 * hold it (LQ_EVALUE names both sizes). on: the device whose memory it is, but for the layers
 * before `first`; NULL: the host's. */
lq_status eng_size(eng_opts *out, kv_opts *kv, const arch_config *c, const eng_opts *want, dev *on,
                   int64_t first, lq_err *err);
/* Of a step, of options that eng_size has filled in. */
fwd_opts eng_step(const eng_opts *o);
/* Of the draft's, or the head's, where o->draft is one. */
fwd_opts eng_draft_step(const eng_opts *o);

/* Bytes that an engine with these options takes besides the weights; a draft model's included. */
typedef struct {
    size_t kv;               /* the blocks, and what is kept of them */
    size_t step;             /* buffers of a step, and of drawing on each thread */
    size_t disk;             /* queues of the KV cache on disk */
    size_t running, waiting; /* sequences: what they take besides, when all places are taken */
} eng_need;
void eng_need_of(eng_need *n, const arch_config *c, const eng_opts *o, const kv_opts *kv,
                 int threads);

#endif
