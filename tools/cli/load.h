/* tools/cli/load.h - MODEL on the command line, ready to run: kernels chosen, threads started, weights
 * loaded (runtime/load.h). For every command that runs a model. */
#ifndef LLMQ_TOOLS_CLI_LOAD_H
#define LLMQ_TOOLS_CLI_LOAD_H

#include "runtime/engine/sizing.h"
#include "runtime/service.h"
#include "tools/cli/engine_opts.h"
#include "tools/cli/model_opts.h"
#include "tools/cli/opt.h"
#include "tools/cli/progress.h"

/* On another rank than 0, of several (follow_start): loads its part of the model at `path` and follows until rank 0
 * closes it. Errors: those of load_weights and fwd_follow. */
lq_status load_follow(const cmd_ctx *c, const opt_model *o, const char *path, lq_err *err);
/* Before a model is loaded, both: follow_start, and with *over load_follow, whose result is the command's. */
lq_status load_ranks(bool *over, const cmd_ctx *c, const opt_model *o, const char *path,
                     lq_err *err);

/* Kernels and device as the options say, and the pool with --threads threads; pool_close it. */
lq_status load_start(pool **p, const cmd_ctx *c, const opt_model *o, lq_err *err);

/* A model as the user named it: other than `path` where --quantize made that file of it. */
const char *load_named(const cmd_ctx *c, const char *path);
/* The name that a model is served under: ORG/NAME of one in the hub's cache, else the last part of its
 * path, without ".llmq". Returns buf. */
const char *load_name(char *buf, size_t n, const char *path);

/* What a source says about how its files were read, at --log-level info. */
void load_say_notes(const char *path, const src_source *src);
/* load_weights, with times to stderr; load_model_close it. */
lq_status load_model_open(load_model *l, const char *path, const load_opts *how, pool *p,
                          const cmd_ctx *c, lq_err *err);
/* As the options say, notes at --log-level info; what must fit besides the weights is the caller's.
 */
load_opts load_opts_of(const cmd_ctx *c, const opt_model *o);

/* A model that answers requests without HTTP: for `batch` and for the library. */
typedef struct {
    const char *path;
    const opt_list *names; /* that requests may call it by; none: load_name's */
    const opt_engine *engine;
    const opt_model *model;
    int64_t queue; /* requests that may wait */
} load_service_opts;
/* *l and *p, kernels and threads and weights; lm_close and pool_close them, in this order, also
 * after an error. Errors: those of opt_engine_of, load_start and lm_load. */
lq_status load_service(lm **l, pool **p, const cmd_ctx *c, const load_service_opts *o, lq_err *err);

#endif
