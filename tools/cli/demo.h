/* tools/cli/demo.h - the model inside the program, which `demo` names: models/novels-1m, unquantized. For a first
 * answer where no model and no network are at hand. */
#ifndef LLMQ_TOOLS_CLI_DEMO_H
#define LLMQ_TOOLS_CLI_DEMO_H

#include "base/base.h"

/* Is it a value that means the model? Not where something here has that path. */
bool demo_is(const char *value);
/* Its folder, $XDG_CACHE_HOME/llmq/demo (or in ~/.cache), path[n]; files that are not there or have other bytes are
 * written. Errors: LQ_EUSAGE - neither variable is set; LQ_EIO; LQ_EVALUE - too long. */
lq_status demo_find(char *path, size_t n, lq_err *err);

#endif
