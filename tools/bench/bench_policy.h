/* tools/bench/bench_policy.h - the same requests under each batching policy of the engine. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_POLICY_H
#define LLMQ_TOOLS_BENCH_BENCH_POLICY_H

#include "base/json.h"
#include "runtime/engine/engine.h"
#include "tools/bench/bench_batch.h"

typedef struct {
    eng_batching batching;
    double seconds, tok_s, speedup; /* over static */
    double rows;                    /* of a step, in the mean */
    double overhead; /* of the engine: what is neither model nor sampling, of a step */
    uint64_t steps;
} bench_policy_row;

typedef struct {
    int64_t requests, places, tokens, n_long; /* tokens: of all answers; n_long: of them are long */
    bench_policy_row rows[ENG_N_BATCHINGS];
} bench_policy;

/* n requests at once, for `places` sequences: prompts of 16 tokens, answers whose lengths are
 * spread as an exponential distribution of mean 32, at most 256. */
lq_status bench_policy_run(bench_policy *b, const model *m, const bench_fwd *how, int64_t n,
                           int64_t places, const lq_job *job, lq_err *err);
void bench_policy_json(cJSON *doc, const bench_policy *b);
void bench_policy_print(const bench_policy *b);

#endif
