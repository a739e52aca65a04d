/* tools/server/serve_limits.h - `llmq serve --print-limits`: everything that bounds the server, by option
 * or fixed, and what memory that makes at most. */
#ifndef LLMQ_TOOLS_SERVER_SERVE_LIMITS_H
#define LLMQ_TOOLS_SERVER_SERVE_LIMITS_H

#include "tools/cli/model_opts.h"
#include "tools/cli/opt.h"
#include "tools/cli/progress.h"
#include "tools/server/serve_budget.h"

/* opts: the command's, as parsed; http: what it opens its server with. */
void limits_print(const cmd_row *cmd, const void *opts, const http_opts *http, const budget *b);
/* {"limits": [{name, option (null: fixed), default, value, memory (key of a part, or null)}],
 * "memory": budget_json}; NULL: out of memory. */
cJSON *limits_json(const cmd_row *cmd, const void *opts, const http_opts *http, const budget *b);

#endif
