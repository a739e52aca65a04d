/* tools/bench/bench_profile.h - `bench model --profile`: where the time of a row's steps goes. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_PROFILE_H
#define LLMQ_TOOLS_BENCH_BENCH_PROFILE_H

#include "base/json.h"
#include "runtime/forward/forward.h"

typedef struct {
    pool_times times;
    int64_t steps, tokens, logits; /* measured; rows of a step; those that go on to the head */
} bench_profile;

/* Each stage that took any time: milliseconds of a step, its share, the share of the threads' time
 * that was spent waiting, and of a stage of products how fast they were next to `peak` (operations a
 * second of the whole pool). */
void bench_profile_json(cJSON *row, const bench_profile *b, const model *m, double peak,
                        int threads);
void bench_profile_print(const char *title, const bench_profile *b, const model *m, double peak,
                         int threads);

#endif
