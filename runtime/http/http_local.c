/* runtime/http/http_local.c - an exchange without a connection, for callers in the same process. */
#include "runtime/http/http_int.h"

#include <stdio.h>
#include <stdlib.h>

lq_status http_local(const http_route *routes, size_t n_routes, void *app, http_server *counts,
                     const char *path, const char *body, size_t n, const http_taker *to,
                     lq_err *err)
{
    static atomic_ullong number;
    const http_route *route = NULL;
    for (size_t i = 0; i < n_routes && !route; i++)
        if (strcmp(routes[i].method, "POST") == 0 && http_route_rest(&routes[i], path))
            route = &routes[i];
    if (!route) return lq_fail(err, LQ_EVALUE, "%.64s: no such route", path);
    http_req *r = http_req_new(NULL, NULL);
    if (!r) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (counts) atomic_fetch_add(&counts->refs, 1);
    r->counts = counts;
    r->route = route;
    r->style = route->style;
    r->to = *to;
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->method, sizeof r->method, "POST");
    snprintf(r->id, sizeof r->id, "local-%llu", atomic_fetch_add(&number, 1));
    lq_buf_add(&r->body, body, n);
    if (r->body.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_req_handle(r, app);
    http_req_unref(r);
    return LQ_OK;
}
