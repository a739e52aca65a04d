/* tools/bench.h - the kinds of `llmq bench`: one row each in tools/cmd_bench.c, one file each. */
#ifndef LLMQ_TOOLS_BENCH_H
#define LLMQ_TOOLS_BENCH_H

#include "tools/cmds.h"

typedef struct {
    opt_model model;
    const char *scheme, *batch;
    int64_t prompt, context, steps;
} bench_opts;

/* Measure and print (a table, or with --json one document). */
lq_status bench_model(const cmd_ctx *c, const bench_opts *o, lq_err *err);

#endif
