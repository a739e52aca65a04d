/* tools/router/router.c - see router.h. */
#include "tools/router/router.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/os.h"
#include "base/path.h"
#include "base/version.h"
#include "runtime/api/api.h"
#include "tools/cli/models.h"
#include "tools/cli/progress.h"
#include "tools/router/fleet.h"
#include "tools/router/kin.h"
#include "tools/router/place.h"
#include "tools/router/router_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRACE_SECONDS = 5 }; /* that a model's server has beyond --shutdown-timeout */

#define F(field) offsetof(router_opts, field)
const opt_row router_rows[ROUTER_N] = {
    { "models", 0, OPT_STR, F(file), .arg = "FILE",
      .help = "serve the models that this JSON file lists, each loaded when it is asked for" },
    { "max-loaded", 0, OPT_INT, F(max_loaded), .def = "0", .hi = 4096,
      .help = "models in memory at the same time; 0: as many as --models-memory holds" },
    { "models-memory", 0, OPT_SIZE, F(memory), .def = "0", .hi = 0x1p50,
      .help = "memory of all loaded models, as --dry-run counts each; 0: nine tenths of what is "
              "free at the start" },
    { "idle-unload", 0, OPT_FLOAT, F(idle_seconds), .def = "0", .hi = 1e9,
      .help = "seconds without a request after which a model is unloaded; 0: never" },
    { "load-timeout", 0, OPT_FLOAT, F(wait_seconds), .def = "300", .lo = 0.1, .hi = 1e6,
      .help = "seconds that a request waits for its model at most" },
};

bool router_takes(const char *path) { return cat_is_folder(path); }

/* ---- start ---- */

static lq_status read_catalog(router *v, lq_err *err)
{
    const router_job *j = v->j;
    if (!j->router->file) return cat_read_folder(&v->cat, j->folder, err);
    return cat_read_file(&v->cat, j->router->file, err);
}

/* NULL: responses are not kept. */
static const char *kept_dir(const router *v)
{
    if (!v->j->responses) return NULL;
    return v->j->responses_dir ? v->j->responses_dir : v->kept;
}

/* Before any thread: the process that starts others, then this one gives up its rights. */
static lq_status begin(router *v, lq_err *err)
{
    keeper_row *rows = NULL;
    iso_path paths[DOOR_PATHS + 2] = { { v->j->files_dir, ISO_STORE }, { kept_dir(v), ISO_STORE } };
    const char *own_kept = v->j->responses_dir ? NULL : kept_dir(v);
    const kin_more more = { .folder = v->folder, .kept = own_kept, .limits = v->j->limits };
    lq_status s = kin_make(&rows, v->j->c, v->j->opts, &v->cat, &more, err);
    for (int i = 0; i < v->cat.n && !s; i++) /* a download takes its time */
        rows[i].size_seconds = models_name(v->cat.m[i].path) ? 0 : v->j->router->wait_seconds / 2;
    if (!s)
        s = keeper_start(&v->k, rows, v->cat.n, v->folder, v->j->shutdown_seconds + GRACE_SECONDS,
                         err);
    kin_free(rows, v->cat.n);
    if (s) return s;
    if (v->j->files_dir)
        (void)mkdir(v->j->files_dir, 0700); /* api_open says what is wrong with it */
    door_paths(v->j->door, paths + 2);
    const iso_want w = { .mode = v->j->isolation, .paths = paths, .n = LQ_COUNT(paths) };
    return iso_files(&v->isolation, &w, err);
}

static bool log_line(router *v, const http_log_line *l)
{
    prog_say(LOG_DEBUG, "%s %s %d %.3fs %zuB %s", l->method, l->path, l->status, l->seconds,
             l->bytes, l->request_id);
    return ops_log_write(&v->door.log, l);
}

static void on_log(void *app, const http_log_line *l)
{
    router *v = app;
    if (!log_line(v, l)) atomic_fetch_add(&v->lost_lines, 1);
}

static void note(void *user, const char *text)
{
    (void)user;
    prog_say(LOG_WARN, "%s", text);
}

static lq_status open_files(router *v, lq_err *err)
{
    const char *const name = v->cat.m[0].names[0];
    const api_opts o = { .names = &name,
                         .n_names = 1,
                         .version = LLMQ_VERSION,
                         .file_bytes = v->j->files,
                         .file_dir = v->j->files_dir,
                         .kept_responses = v->j->responses,
                         .kept_dir = kept_dir(v),
                         .note = note };
    return api_open(&v->files, &o, err);
}

static void on_tick(void *app) { api_tick(((router *)app)->files); }

static lq_status open_door(router *v, lq_err *err)
{
    http_opts h = { .log = on_log, .tick = on_tick, .app = v };
    lq_status s = router_routes(v, door_shows_page(v->j->door), err);
    if (s) return s;
    h.routes = v->routes;
    h.n_routes = v->n_routes;
    s = door_open(&v->door, &h, err);
    if (s) return s;
    api_set_http(v->files, v->door.http);
    api_set_routes(v->files, v->routes, v->n_routes, v, v->j->batch_window);
    return LQ_OK;
}

static void preload(router *v)
{
    for (int i = 0; i < v->cat.n; i++)
        if (v->cat.m[i].preload) fleet_ask(v->f, i, NULL, NULL);
}

static lq_status open_fleet(router *v, lq_err *err)
{
    const router_opts *o = v->j->router;
    const fleet_opts fo = { .max_loaded = (int)o->max_loaded,
                            .max_bytes = o->memory ? o->memory : os_memory_free() / 10 * 9,
                            .idle_seconds = o->idle_seconds,
                            .wait_seconds = o->wait_seconds,
                            .max_waiting = (int)v->j->queue };
    char text[16];
    lq_status s = loras_open(&v->loras, &v->cat, err);
    if (!s) s = fleet_open(&v->f, &v->cat, v->loras, v->k, v->folder, &fo, err);
    if (!s) s = relay_open(&v->y, err);
    if (!s) s = open_files(v, err);
    if (!s) s = open_door(v, err);
    if (!s) s = iso_calls(&v->isolation, &(iso_want){ .mode = v->j->isolation }, err);
    if (s) return s;
    prog_say(LOG_INFO, "listening on %s, for %d models", v->door.url, v->cat.n);
    prog_say(LOG_INFO, "ready: %d models on %s, up to %s of memory for those that are loaded",
             v->cat.n, v->door.url, opt_size_text(text, sizeof text, (double)fo.max_bytes));
    door_ready(&v->isolation, v->j->isolation);
    return LQ_OK;
}

/* ---- while it runs ---- */

static void say_state(router *v)
{
    http_stats h;
    http_stats_get(v->door.http, &h);
    prog_say(LOG_WARN,
             "state: %lld running, %lld waiting, %lld connections with %lld open requests",
             (long long)fleet_running(v->f), (long long)fleet_waiting(v->f),
             (long long)h.connections, (long long)h.open);
}

static lq_status serve_until_stopped(router *v, lq_err *err)
{
    while (!lq_stopped(v->j->c->job)) {
        lq_status s = fleet_step(v->f, 0.1, err);
        if (s) return s;
        if (ops_hangup()) door_reload(&v->door);
        if (ops_dump()) say_state(v);
    }
    return LQ_OK;
}

static lq_status drain(router *v, lq_err *err)
{
    const double until = lq_now() + v->j->shutdown_seconds;
    lq_status s = LQ_OK;
    ops_notify("STOPPING=1");
    prog_say(LOG_INFO, "draining: running requests have %.0f s; a second signal ends at once",
             v->j->shutdown_seconds);
    atomic_store(&v->draining, true);
    api_drain(v->files);
    http_drain(v->door.http);
    while (!s && (fleet_running(v->f) || fleet_waiting(v->f)) && lq_now() < until)
        s = fleet_step(v->f, 0.05, err);
    http_wait_idle(v->door.http, 0.5);
    return s;
}

static void close_all(router *v)
{
    atomic_store(&v->draining, true);
    if (v->files) api_drain(v->files);
    door_shut(&v->door); /* what still waits or runs learns that its client is gone */
    relay_close(v->y);
    fleet_close(v->f);
    api_close(v->files); /* whose requests have ended by that */
    loras_close(v->loras);
    keeper_close(v->k);
    door_close(&v->door);
    free(v->routes);
    cat_free(&v->cat);
}

lq_status router_run(const router_job *j, lq_err *err)
{
    router v = { .j = j, .door = DOOR_NONE };
    lq_status s = read_catalog(&v, err);
    if (s) return s;
    s = door_read(&v.door, j->door, j->folder, err);
    if (!s) s = place_make(v.folder, sizeof v.folder, err);
    if (!s && j->responses_dir) s = lq_private_folder(j->responses_dir, err);
    if (!s && j->responses && !j->responses_dir)
        s = place_kept(v.kept, sizeof v.kept, v.folder, err);
    if (!s) s = begin(&v, err);
    if (!s) s = open_fleet(&v, err);
    if (!s) preload(&v);
    const bool served = !s;
    if (served) s = serve_until_stopped(&v, err);
    if (served && !s) s = drain(&v, err);
    close_all(&v);
    if (v.folder[0]) place_remove(v.folder); /* where no keeper did, and it still may */
    return s;
}
