/* tools/router/router_int.h - what router.c and its routes share; nothing else includes it. */
#ifndef LLMQ_TOOLS_ROUTER_ROUTER_INT_H
#define LLMQ_TOOLS_ROUTER_ROUTER_INT_H

#include "runtime/api/api.h"
#include "tools/router/fleet.h"
#include "tools/router/relay.h"
#include "tools/router/router.h"

typedef struct {
    const router_job *j;
    catalog cat;
    loras *loras;
    api *files; /* files and batches of clients, whose requests go through this server's routes */
    char folder[96]; /* place.h; a socket's path, "/NUMBER" more, has at most 103 bytes */
    char kept[112];  /* where responses are kept without --response-store-dir */
    keeper *k;
    fleet *f;
    relay *y;
    door door;
    http_route *routes;
    size_t n_routes;
    iso_report isolation;
    atomic_bool draining;
    atomic_ullong lost_lines; /* of the access log */
} router;

/* router_routes.c: v->routes, which free() frees. */
lq_status router_routes(router *v, bool page, lq_err *err);

#endif
