/* tools/cli/models.h - models that a command line names: a local path, ORG/NAME on a hub, or "demo" (demo.h).
 *
 * "hf:ORG/NAME[@REVISION][:FILE-OR-QUANTIZATION]" is a name. So is the same without "hf:" where
 * nothing here has that path and no folder here is called ORG (then it is a path with a slip in
 * it). */
#ifndef LLMQ_TOOLS_CLI_MODELS_H
#define LLMQ_TOOLS_CLI_MODELS_H

#include "tools/cli/opt.h"

/* What follows "hf:", or the whole of a name without it; NULL: it is none. */
const char *models_name(const char *value);
/* Every value of the command that names a model (opt_row.files, opt_arg.files) becomes its path:
 * from the hub's cache, else fetched into it. Errors: hub_find's, demo_find's. models_drop, also after one. */
lq_status models_find(cmd_ctx *c, void *opts, lq_err *err);
/* After LQ_ENOENT: where a word in place of a model is what was not found, the message says what it may be. */
void models_explain(cmd_ctx *c, void *opts, lq_err *err);
/* The values hold no more. */
void models_drop(cmd_ctx *c);

#endif
