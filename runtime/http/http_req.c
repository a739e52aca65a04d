/* runtime/http/http_req.c - one exchange: its life, its memory, and what its request said. */
#include "runtime/http/http_int.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/machine.h"

#include <stdlib.h>
#include <time.h>

http_req *http_req_new(http_server *s, conn *c)
{
    http_req *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->s = r->counts = s;
    if (s) atomic_fetch_add(&s->refs, 1);
    r->c = c;
    r->t0 = lq_now();
    atomic_init(&r->refs, 1);
    pthread_mutex_init(&r->mu, NULL);
    return r;
}

void http_req_ref(http_req *r) { atomic_fetch_add(&r->refs, 1); }

void http_server_unref(http_server *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1) return;
    http_keys_close(s->keys);
    http_tls_free(s);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->idle);
    free(s);
}

void http_req_unref(http_req *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    if (r->destroy) r->destroy(r->user);
    if (r->counts) atomic_fetch_sub(&r->counts->bodies, r->counted);
    lq_buf_free(&r->body);
    lq_buf_free(&r->out);
    free(r->type);
    machine_give_back(r->counted);
    for (size_t i = 0; i < r->n_headers; i++)
        free(r->headers[i]);
    pthread_mutex_destroy(&r->mu);
    if (r->counts) http_server_unref(r->counts);
    free(r);
}

void http_req_wake(http_req *r)
{
    if (!r->asleep || !r->mhd) return;
    r->asleep = false;
    MHD_resume_connection(r->mhd);
}

void http_req_cut(http_req *r)
{
    pthread_mutex_lock(&r->mu);
    r->dead = true;
    void (*gone)(void *) = r->told || r->ended ? NULL : r->gone;
    r->told |= r->gone != NULL; /* else nobody keeps it yet: who does is told when it is over */
    http_req_wake(r);
    pthread_mutex_unlock(&r->mu);
    if (gone) gone(r->user);
}

bool http_hold(http_req *r, size_t n)
{
    http_server *s = r->counts;
    if (!s) return true; /* of the same process: its own affair */
    if (atomic_fetch_add(&s->bodies, n) + n > s->o.max_bodies) {
        atomic_fetch_sub(&s->bodies, n);
        return false;
    }
    r->counted += n;
    return true;
}

/* ---- the application's side ---- */

void http_keep(http_req *r, void (*gone)(void *user), void (*destroy)(void *user), void *user)
{
    http_req_ref(r);
    pthread_mutex_lock(&r->mu);
    r->kept = true;
    r->gone = gone;
    r->destroy = destroy;
    r->user = user;
    pthread_mutex_unlock(&r->mu);
}

void http_release(http_req *r) { http_req_unref(r); }

const char *http_body(const http_req *r, size_t *n)
{
    *n = r->body.n;
    return r->body.p ? r->body.p : "";
}

void http_req_handle(http_req *r, void *app)
{
    const http_style *style = r->route->style;
    if (r->body.p && !(style && style->takes)) js_mend(r->body.p, r->body.n);
    r->route->handle(app, r);
}

const char *http_path(const http_req *r) { return r->path; }
bool http_can_stream(const http_req *r) { return r->s || r->to.event; }
const char *http_id(const http_req *r) { return r->id; }
double http_age(const http_req *r) { return lq_now() - r->t0; }

/* What `path` has behind that of a route, which may end in a star. */
static const char *rest_of(const char *route, const char *path)
{
    const size_t n = strlen(route);
    if (route[n - 1] != '*') return strcmp(route, path) == 0 ? "" : NULL;
    return strncmp(path, route, n - 1) == 0 && path[n - 1] ? path + n - 1 : NULL;
}

const char *http_route_rest(const http_route *t, const char *path)
{
    static const char version[] = "/v1";
    const size_t n = sizeof version - 1;
    const char *rest = rest_of(t->path, path);
    const bool may_lack = strncmp(t->path, version, n) == 0 && t->path[n] == '/';
    return rest || !may_lack ? rest : rest_of(t->path + n, path);
}

const char *http_rest(const http_req *r) { return http_route_rest(r->route, r->path); }

const http_route *http_routes(const http_req *r, size_t *n)
{
    *n = r->s ? r->s->o.n_routes : 0;
    return r->s ? r->s->o.routes : NULL;
}

const char *http_query(const http_req *r, const char *name)
{
    return r->mhd ? MHD_lookup_connection_value(r->mhd, MHD_GET_ARGUMENT_KIND, name) : NULL;
}

const char *http_header(const http_req *r, const char *name)
{
    return r->mhd ? MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name) : NULL;
}
