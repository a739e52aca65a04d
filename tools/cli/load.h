/* tools/cli/load.h - MODEL on the command line, ready to run: kernels chosen, threads started, weights
 * loaded (runtime/load.h). For every command that runs a model. */
#ifndef LLMQ_TOOLS_CLI_LOAD_H
#define LLMQ_TOOLS_CLI_LOAD_H

#include "runtime/engine/sizing.h"
#include "tools/cmds.h"

/* Kernels and device as the options say, and the pool with --threads threads; pool_close it. */
lq_status load_start(pool **p, const cmd_ctx *c, const opt_model *o, lq_err *err);

/* The name that a model is served under: the last part of its path, without ".llmq". Returns buf.
 */
const char *load_name(char *buf, size_t n, const char *path);

/* load_weights, with times to stderr; load_model_close it. */
lq_status load_model_open(load_model *l, const char *path, const load_opts *how, pool *p,
                          const cmd_ctx *c, lq_err *err);
/* As the options say, notes at --log-level info; what is to lie beside the weights is the caller's.
 */
load_opts load_opts_of(const cmd_ctx *c, const opt_model *o);

#endif
