/* runtime/api/api_batches.c - see api_batches.h; POST and GET /v1/batches. */
#include "runtime/api/api_batches_int.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { DAY = 24 * 60 * 60 };

static void api_batches_free(api_batches *s)
{
    for (api_batch *b = s->latest, *next; b; b = next) {
        next = b->next;
        api_batch_free(s, b);
    }
    pthread_mutex_destroy(&s->submit);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->news);
    free(s);
}

lq_status api_batches_open(api_batches **out, api *a, lq_err *err)
{
    api_batches *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return lq_fail(err, LQ_ENOMEM, "out of memory");
    s->a = a;
    os_cond_init(&s->news);
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->submit, NULL);
    lq_status st = api_batches_load(s, err);
    if (!st && pthread_create(&s->thread, NULL, api_batches_work, s) != 0)
        st = lq_fail(err, LQ_ENOMEM, "no thread for batches");
    if (st)
        api_batches_free(s);
    else
        *out = s;
    return st;
}

void api_batches_stop(api_batches *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->submit); /* a request that begins has begun */
    pthread_mutex_unlock(&s->submit);
}

void api_batches_close(api_batches *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    s->closing = true;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->mu);
    pthread_join(s->thread, NULL);
    api_batches_free(s);
}

/* ---- as JSON ---- */

static void put_id(jw *w, const char *key, const char *id)
{
    jw_key(w, key);
    jw_cstr(w, id[0] ? id : NULL);
}

static void put_time(jw *w, const char *key, int64_t t)
{
    jw_key(w, key);
    if (t)
        jw_i64(w, t);
    else
        jw_null(w);
}

static void write_counts(jw *w, const api_batch *b)
{
    jw_key(w, "request_counts");
    jw_open(w, '{');
    jw_key(w, "total");
    jw_i64(w, b->total);
    jw_key(w, "completed");
    jw_i64(w, b->completed);
    jw_key(w, "failed");
    jw_i64(w, b->failed);
    jw_close(w, '}');
}

static void write_errors(jw *w, const api_batch *b)
{
    jw_key(w, "errors");
    if (!b->errors.b.n) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    jw_key(w, "object");
    jw_cstr(w, "list");
    jw_key(w, "data");
    jw_open(w, '[');
    jw_json(w, b->errors.b.p, b->errors.b.n);
    jw_close(w, ']');
    jw_close(w, '}');
}

/* Under mu. */
static void write_batch(jw *w, const api_batches *s, const api_batch *b)
{
    (void)s;
    jw_open(w, '{');
    put_id(w, "id", b->id);
    put_id(w, "object", "batch");
    put_id(w, "endpoint", b->endpoint);
    write_errors(w, b);
    put_id(w, "input_file_id", b->input_id);
    put_id(w, "completion_window", "24h");
    put_id(w, "status", api_batch_state_name(b->state));
    put_id(w, "output_file_id", b->output_id);
    put_id(w, "error_file_id", b->error_id);
    put_time(w, "created_at", b->created);
    put_time(w, "expires_at", b->expires);
    for (int i = 0; i < BATCH_N_STATES; i++)
        if (api_batch_time_name(i)) put_time(w, api_batch_time_name(i), b->at[i]);
    write_counts(w, b);
    jw_key(w, "metadata");
    if (b->metadata)
        jw_json(w, b->metadata, strlen(b->metadata));
    else
        jw_null(w);
    jw_close(w, '}');
}

/* ---- to create one ---- */

static lq_status read_input(api *a, api_batch *b, const cJSON *doc, api_error *e)
{
    const cJSON *v = js_get(doc, "input_file_id"), *window = js_get(doc, "completion_window");
    const char *when = cJSON_GetStringValue(window);
    if (window && (!when || strcmp(when, "24h") != 0))
        return api_wrong(e, "completion_window", "\"24h\"", window);
    if (!v)
        return api_fail(e, "input_file_id", "missing_required_parameter",
                        "input_file_id: it is required");
    if (!cJSON_IsString(v)) return api_wrong(e, "input_file_id", "the id of a file", v);
    b->input = api_files_get(a->files, v->valuestring, &b->owner);
    if (!b->input) {
        api_fail(e, "input_file_id", "file_not_found",
                 "input_file_id: there is no file '%.60s' here (any more)", v->valuestring);
        e->status = 404;
        return LQ_EVALUE;
    }
    memcpy(b->input_id, b->input->id, sizeof b->input_id);
    return LQ_OK;
}

static lq_status check_names(api *a, const cJSON *doc, api_error *e)
{
    static const char *const names[] = { "input_file_id", "endpoint", "completion_window",
                                         "metadata", "output_expires_after" };
    for (const cJSON *c = doc->child; c; c = c->next) {
        bool known = false;
        for (size_t i = 0; i < LQ_COUNT(names); i++)
            known |= strcmp(names[i], c->string) == 0;
        if (!known && a->o.strict_params)
            return api_fail(e, c->string, "unknown_parameter", "%.60s: unknown parameter",
                            c->string);
        met_add(a->met, MET_IGNORED_PARAMS, !known);
    }
    return LQ_OK;
}

void api_batch_remove(api_batches *s, api_batch *b)
{
    api_batch **at = &s->latest;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    s->n--;
    api_batch_forget(s, b);
    api_batch_free(s, b);
}

/* Under mu. The oldest that has ended makes room for one more; false: none has. */
static bool make_room(api_batches *s)
{
    api_batch **old = NULL;
    for (api_batch **at = &s->latest; *at; at = &(*at)->next)
        if (batch_ended(*at)) old = at;
    if (s->n < API_MAX_BATCHES) return true;
    if (old) api_batch_remove(s, *old);
    return old != NULL;
}

lq_status api_batch_add(api_batches *s, api_batch *b, api_batch_write *write, jw *w, api_error *e)
{
    pthread_mutex_lock(&s->mu);
    const bool room = make_room(s);
    b->order = s->order++;
    const bool kept = room && !api_batch_save(s, b);
    if (kept) {
        b->next = s->latest;
        s->latest = b;
        s->n++;
        write(w, s, b);
        pthread_cond_broadcast(&s->news);
    }
    pthread_mutex_unlock(&s->mu);
    if (kept) return LQ_OK;
    e->status = 500;
    if (room) return api_fail(e, NULL, "file_store_failed", "the server cannot keep the batch");
    api_fail(e, NULL, "overloaded", "%d batches wait already", API_MAX_BATCHES);
    e->status = 503;
    return LQ_EBUSY;
}

void api_post_batch(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    jw w = { 0 };
    if (!api_keeps_files(a, r) || !api_ready(a, r)) return;
    cJSON *doc = api_parse(r);
    if (!doc) return;
    api_batch *b = calloc(1, sizeof *b);
    lq_status s = b ? check_names(a, doc, &e) : api_no_memory(&e);
    if (!s) {
        b->owner = http_client(r);
        b->created = (int64_t)time(NULL);
        b->expires = b->created + DAY;
        api_secret_id(b->id, "batch_");
        s = api_batch_read(b, doc, &e);
    }
    if (!s) s = read_input(a, b, doc, &e);
    if (!s) s = api_batch_add(a->batches, b, write_batch, &w, &e);
    cJSON_Delete(doc);
    if (!s) {
        api_reply(r, 200, &w);
        return;
    }
    if (b) api_batch_free(a->batches, b);
    api_reply_error(a, r, &e);
}

/* ---- those there are ---- */

api_batch *api_batch_find(api_batches *s, const char *id, size_t n, const lq_hash *owner)
{
    for (api_batch *b = s->latest; b; b = b->next)
        if (strlen(b->id) == n && memcmp(b->id, id, n) == 0 &&
            memcmp(&b->owner, owner, sizeof *owner) == 0)
            return b;
    return NULL;
}

static void no_such_batch(http_req *r)
{
    http_error(r, 404, "batch_id", "batch_not_found", "there is no batch '%.60s' here (any more)",
               http_rest(r));
}

void api_get_batch(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    pthread_mutex_lock(&a->batches->mu);
    const api_batch *b = api_batch_find(a->batches, http_rest(r), strlen(http_rest(r)), &owner);
    if (b) write_batch(&w, a->batches, b);
    pthread_mutex_unlock(&a->batches->mu);
    if (b)
        api_reply(r, 200, &w);
    else
        no_such_batch(r);
}

void api_batch_cancel(api_batches *s, api_batch *b)
{
    if (b->state == BATCH_CANCELLING || batch_ended(b)) return;
    api_batch_enter(s, b, BATCH_CANCELLING);
    if (s->running != b) api_batch_enter(s, b, BATCH_CANCELLED);
    pthread_cond_broadcast(&s->news);
}

/* /v1/batches/ID/cancel */
void api_post_batch_cancel(void *app, http_req *r)
{
    static const char verb[] = "/cancel";
    api *a = app;
    const lq_hash owner = http_client(r);
    const char *rest = http_rest(r), *slash = strchr(rest, '/');
    bool ended = false;
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    if (!slash || strcmp(slash, verb) != 0) {
        http_error(r, 404, NULL, NULL, "no such path");
        return;
    }
    pthread_mutex_lock(&a->batches->mu);
    api_batch *b = api_batch_find(a->batches, rest, (size_t)(slash - rest), &owner);
    ended = b && batch_ended(b) && b->state != BATCH_CANCELLED;
    if (b) api_batch_cancel(a->batches, b);
    if (b) write_batch(&w, a->batches, b);
    pthread_mutex_unlock(&a->batches->mu);
    if (b && !ended) {
        api_reply(r, 200, &w);
        return;
    }
    jw_free(&w);
    if (ended)
        http_error(r, 409, "batch_id", "batch_ended", "the batch has ended");
    else
        no_such_batch(r);
}

void api_get_batches(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    api_page p;
    jw w = { 0 };
    if (!api_keeps_files(a, r) || !api_read_page(r, &p, 20, 100)) return;
    jw_open(&w, '{');
    jw_key(&w, "object");
    jw_cstr(&w, "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    pthread_mutex_lock(&a->batches->mu);
    for (const api_batch *b = a->batches->latest; b && !p.more; b = b->next)
        if (api_page_takes(&p, b->id, memcmp(&b->owner, &owner, sizeof owner) == 0))
            write_batch(&w, a->batches, b);
    pthread_mutex_unlock(&a->batches->mu);
    jw_close(&w, ']');
    api_write_page(&w, &p);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}
