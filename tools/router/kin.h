/* tools/router/kin.h - command lines for the servers of single models, out of that of the router. */
#ifndef LLMQ_TOOLS_ROUTER_KIN_H
#define LLMQ_TOOLS_ROUTER_KIN_H

#include "tools/cli/opt.h"
#include "tools/router/catalog.h"
#include "tools/router/keeper.h"

/* What the servers get besides their options. */
typedef struct {
    const char *folder; /* of their sockets */
    const char *kept;   /* --response-store-dir, where it was not given; or NULL */
    const char
        *limits; /* --machine-limits, of those whose own options say nothing of threads; "": none */
} kin_more;

/* One for each model: [cat->n], free with kin_free. Options of the router's door stay with it; a model's own come
 * last. LQ_EUSAGE: a model has an option that is unknown, or not for a model. */
lq_status kin_make(keeper_row **rows, const cmd_ctx *c, const void *opts, const catalog *cat,
                   const kin_more *more, lq_err *err);
void kin_free(keeper_row *rows, int n);

#endif
