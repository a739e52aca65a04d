/* tools/server/local.c - see local.h. */
#include "tools/server/local.h"

#include "runtime/service.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct local {
    char folder[64], socket[80];
    lm *l;
    http_server *http;
    pool *p;
};

static lq_status make_folder(local *v, lq_err *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > sizeof v->folder - 16) tmp = "/tmp";
    char path[sizeof v->folder];
    snprintf(path, sizeof path, "%s/llmq-XXXXXX", tmp);
    if (!mkdtemp(path)) return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
    memcpy(v->folder, path, sizeof path);
    snprintf(v->socket, sizeof v->socket, "%s/s", v->folder);
    return LQ_OK;
}

static lq_status start(local *v, const char *path, const opt_engine *e, const opt_model *o,
                       const cmd_ctx *c, lq_err *err)
{
    const load_service_opts so = { .path = path, .engine = e, .model = o };
    lq_status s = make_folder(v, err);
    if (!s) s = load_service(&v->l, &v->p, c, &so, err);
    if (s) return s;
    http_opts ho = { .unix_path = v->socket,
                     .max_connections = 16,
                     .threads = 1,
                     .log = api_log,
                     .tick = api_tick,
                     .app = lm_api(v->l) };
    ho.routes = api_routes(false, &ho.n_routes);
    return http_open(&v->http, &ho, err);
}

lq_status local_open(local **out, const char *path, const opt_engine *e, const opt_model *o,
                     const cmd_ctx *c, lq_err *err)
{
    local *v = *out = calloc(1, sizeof *v);
    if (!v) return lq_fail(err, LQ_ENOMEM, "out of memory");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    lq_status s = start(v, path, e, o, c, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s) {
        local_close(v);
        *out = NULL;
    }
    return s;
}

void local_close(local *v)
{
    if (!v) return;
    if (v->http) http_close(v->http);
    lm_close(v->l);
    pool_close(v->p);
    if (v->folder[0]) {
        unlink(v->socket);
        rmdir(v->folder);
    }
    free(v);
}

const char *local_socket(const local *v) { return v->socket; }
