/* tools/bench/bench_batch.h - sequences of a model with a filled cache, and timed steps of them. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_BATCH_H
#define LLMQ_TOOLS_BENCH_BENCH_BATCH_H

#include "runtime/forward/forward.h"

typedef struct {
    mm_acts acts;
    kv_types kv;
    pool *p;
} bench_fwd;

typedef struct {
    kv_cache *kv;
    fwd_ctx *f;
    kv_seq *seqs;
    fwd_item *items;
    int32_t *ids;
    int64_t n; /* sequences */
} bench_batch;

/* n sequences of `len` positions in all, which take at most `new` tokens a step. Their cache is
 * written once with zeros in place of a prefill: the time is the same. Close it after an error too.
 */
lq_status bench_batch_open(bench_batch *k, const model *m, const bench_fwd *how, int64_t n,
                           int64_t len, int64_t new, lq_err *err);
void bench_batch_close(bench_batch *k);
/* One step of `new` tokens of each at position pos, the last `logits` of which go through the head.
 */
lq_status bench_batch_step(double *seconds, bench_batch *k, int64_t new, int64_t logits,
                           int64_t pos, lq_err *err);

#endif
