/* tools/bench/bench.h - the kinds of `llmq bench`: one row each in tools/cmd_bench.c, one file each. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_H
#define LLMQ_TOOLS_BENCH_BENCH_H

#include "kernels/bench/bench.h"
#include "tools/cli/model_opts.h"
#include "tools/cli/opt.h"
#include "tools/cli/progress.h"

typedef struct {
    opt_model model;
    const char *scheme, *batch;
    int shape; /* of model_shape_names */
    int64_t prompt, context, steps;
    double accept;         /* of guesses; 0: no speculation */
    int attention;         /* of bench_attentions */
    int64_t longest;       /* prompt of `attention` */
    int64_t mixed, places; /* mixed: requests under each batching; 0: none */
    int fusion;            /* FUSION_... */
    const char *rows;      /* of `kernels` of a device: those that begin so, or NULL */
    bool profile;          /* of `model`: where the time goes */
    /* of `serve` (tools/bench/bench_serve.h) */
    const char *concurrency, *goodput, *key, *name, *served; /* served: as name */
    const char *loras;                                       /* --lora-modules, as it was given */
    double rate;
    int64_t num_prompts, input_len, output_len, prefix_len, long_len, turns, warmups, seed;
    int load;
    bool insecure;
} bench_cmd;

/* `bench kernels --fusion`: kernels one by one, or a layer's steps. */
enum { FUSION_NONE, FUSION_ON, FUSION_OFF };

/* Measure and print (a table, or with --json one document). */
lq_status bench_kernels(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
/* Of the device that is asked for: kernels/bench/bench_dev.h. */
lq_status bench_device(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
extern const char *const bench_attentions[]; /* both, naive, flash */
lq_status bench_attention(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
lq_status bench_serve(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
lq_status bench_model(const cmd_ctx *c, const bench_cmd *o, lq_err *err);

/* The machine's limits as the member `name` of a document, and as a line of text. */
void bench_add_limits(cJSON *doc, const char *name, const bench_limits *l);
void bench_print_limits(const bench_limits *l);

#endif
