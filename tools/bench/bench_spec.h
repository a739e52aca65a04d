/* tools/bench/bench_spec.h - one sequence of a model with guesses whose acceptance is given. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_SPEC_H
#define LLMQ_TOOLS_BENCH_BENCH_SPEC_H

#include "base/json.h"
#include "tools/bench/bench_batch.h"

enum { BENCH_ACCEPTS = 5 };

typedef struct {
    int64_t guesses; /* a step */
    double accepted; /* of them, a step */
    double tok_s, plain_tok_s, speedup;
    double at[BENCH_ACCEPTS]; /* the speed-up that the same steps give at another acceptance */
} bench_spec_row;
typedef struct {
    double accept;
    int64_t draft_layers;
    bench_spec_row rows[8];
    int n_rows;
} bench_spec;
lq_status bench_spec_run(bench_spec *b, const model *m, const bench_fwd *how, double accept,
                         int64_t context, const lq_job *job, lq_err *err);
void bench_spec_json(cJSON *doc, const bench_spec *b);
void bench_spec_print(const bench_spec *b);

#endif
