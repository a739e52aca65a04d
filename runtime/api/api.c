/* runtime/api/api.c - the life of an api. */
#include "runtime/api/api_follow.h"
#include "runtime/api/api_int.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static lq_status copy_names(api *a, lq_err *err)
{
    a->names = calloc((size_t)a->o.n_names + 1, sizeof *a->names);
    if (!a->names) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int i = 0; i < a->o.n_names; i++)
        if (!(a->names[i] = strdup(a->o.names[i]))) return lq_fail(err, LQ_ENOMEM, "out of memory");
    return LQ_OK;
}

static lq_status open_files(api *a, lq_err *err)
{
    if (!a->o.file_bytes) return LQ_OK;
    lq_status s = a->o.file_dir ? api_disk_open(&a->disk, a->o.file_dir, err) : LQ_OK;
    if (!s) s = api_files_open(&a->files, a->o.file_bytes, a->disk, err);
    if (!s) s = api_batches_open(&a->batches, a, err);
    return s && a->o.file_dir ? lq_wrap(err, s, "--file-store-dir") : s;
}

lq_status api_open(api **out, const api_opts *o, lq_err *err)
{
    api *a = *out = calloc(1, sizeof *a);
    if (!a) return lq_fail(err, LQ_ENOMEM, "out of memory");
    a->o = *o;
    if (!(a->o.stall_seconds > 0)) a->o.stall_seconds = 60;
    a->created = (int64_t)time(NULL);
    a->started = lq_now();
    if (!os_random(&a->salt, sizeof a->salt)) a->salt = (uint64_t)a->created * 0x9e3779b97f4a7c15u;
    pthread_mutex_init(&a->mu, NULL);
    pthread_mutex_init(&a->follow_mu, NULL);
    a->met = met_new();
    a->routes = api_routes(false, &a->n_routes);
    a->routes_app = a;
    lq_status s = copy_names(a, err);
    if (!s && o->kept_responses > 0)
        s = api_store_open(&a->store, o->kept_responses, o->kept_dir, err);
    if (s && o->kept_dir) s = lq_wrap(err, s, "--response-store-dir");
    if (!s) s = open_files(a, err);
    if (!s) {
        met_labels(&a->labels, a->names[0]);
        lq_buf_add(&a->labels, "", 1);
        if (!a->met || a->labels.oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    if (s) {
        api_close(a);
        *out = NULL;
    }
    return s;
}

void api_close(api *a)
{
    if (!a) return;
    api_batches_close(a->batches);
    api_files_close(a->files);
    api_disk_close(a->disk);
    api_follow_close(a);
    pthread_mutex_destroy(&a->follow_mu);
    pthread_mutex_destroy(&a->mu);
    met_free(a->met);
    gr_cache_close(a->grammars);
    api_store_close(a->store);
    lq_buf_free(&a->labels);
    for (int i = 0; a->names && a->names[i]; i++)
        free(a->names[i]);
    free(a->names);
    free(a);
}

void api_set_http(api *a, http_server *s) { atomic_store(&a->http, s); }

void api_set_progress(api *a, double done) { atomic_store(&a->progress, done); }

static void set_window(api *a, int64_t n)
{
    a->window = (int)(n < 1 ? 1 : n < API_BATCH_WINDOW ? n : API_BATCH_WINDOW);
}

void api_set_model(api *a, const api_model *m)
{
    int loading = API_LOADING;
    lq_hash h = lq_hash_bytes(m->fingerprint, m->fingerprint ? strlen(m->fingerprint) : 0);
    char hex[33];
    lq_hash_hex(hex, &h);
    memcpy(a->fingerprint, "fp_", 3);
    memcpy(a->fingerprint + 3, hex, 16);
    a->m = *m;
    set_window(a, m->max_seqs / 2);
    atomic_store(&a->ready_seconds, lq_now() - a->started);
    atomic_store(&a->has_model, true);
    atomic_compare_exchange_strong(&a->state, &loading, API_READY);
}

void api_set_routes(api *a, const http_route *routes, size_t n, void *app, int window)
{
    int loading = API_LOADING;
    a->routes = routes;
    a->n_routes = n;
    a->routes_app = app;
    set_window(a, window);
    atomic_compare_exchange_strong(&a->state, &loading, API_READY);
}

void api_set_limits(api *a, double read_bytes_s, double flops)
{
    atomic_store(&a->limit_read, read_bytes_s);
    atomic_store(&a->limit_flops, flops);
}

void api_drain(api *a)
{
    atomic_store(&a->state, API_DRAINING);
    api_batches_stop(a->batches);
}

void api_log(void *app, const http_log_line *l)
{
    api *a = app;
    if (l->status == 400 || l->status == 404) met_add(a->met, MET_INVALID, 1);
    if (a->o.log && !a->o.log(a->o.user, l)) met_add(a->met, MET_LOG_LOST, 1);
}
