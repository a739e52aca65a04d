/* tools/router/loras.h - the adapters of all models, by the names that requests call them: those of the list
 * (catalog.h), and those that were loaded since. A model's server has the list's from its start; what was loaded or
 * unloaded since is done again to each later server of that model. Any thread. */
#ifndef LLMQ_TOOLS_ROUTER_LORAS_H
#define LLMQ_TOOLS_ROUTER_LORAS_H

#include "tools/router/catalog.h"

typedef struct loras loras;
lq_status loras_open(loras **l, const catalog *c,
                     lq_err *err); /* c is borrowed until loras_close */
void loras_close(loras *l);        /* NULL allowed */

int loras_find(loras *l, const char *name); /* the model that it is of, or -1 */
typedef struct {
    char name[CAT_ADAPTER_NAME + 1];
    int64_t created; /* Unix seconds */
} loras_card;
/* The model's adapter number i; false: there are not so many. */
bool loras_get(loras *l, int model, int i, loras_card *card);

/* ---- while the model's server runs ---- */
/* The name is about to be loaded for that model, and is no other's until loras_loaded. LQ_EUSAGE: another model has
 * it; LQ_EBUSY: it is being loaded. */
lq_status loras_claim(loras *l, const char *name, int model, lq_err *err);
/* path: as the request had it; NULL: it could not be loaded, and all is as before. */
void loras_loaded(loras *l, const char *name, const char *path);
void loras_remove(loras *l, const char *name);

/* ---- a model's next server ---- */
void loras_begin(loras *l, int model); /* it has begun, with what the list says */
typedef struct {
    bool unload; /* else load path, unless the server has that name already */
    char name[CAT_ADAPTER_NAME + 1];
    char *path; /* malloc'd */
} loras_order;
/* What is still to be done to it; false: nothing is. */
bool loras_due(loras *l, int model, loras_order *o);
/* It was done. kept false: it could not be loaded, and nobody finds it any more. */
void loras_done(loras *l, const loras_order *o, bool kept);

#endif
