/* tools/server/local.h - a model served inside this process, on a Unix socket that nobody else can open:
 * what talks to a server can talk to a model. */
#ifndef LLMQ_TOOLS_SERVER_LOCAL_H
#define LLMQ_TOOLS_SERVER_LOCAL_H

#include "tools/cli/engine_opts.h"
#include "tools/cli/load.h"

typedef struct local local;
/* path: the model. Threads that it starts take no signals. */
lq_status local_open(local **l, const char *path, const opt_engine *e, const opt_model *o,
                     const cmd_ctx *c, lq_err *err);
void local_close(local *l); /* NULL allowed */
const char *local_socket(const local *l);

#endif
