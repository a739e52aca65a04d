/* runtime/api/api_background.c - responses that are made in the background: POST /v1/responses with `background`, and
 * ID/cancel.
 *
 * What is kept of one (api_store.h) says how far it is: in_progress from its beginning, then its end. Whoever puts
 * that end in the place of in_progress, which is one step, has decided it: an answer that comes after a cancellation is
 * dropped, as is one of a response that was deleted. So any process that shares the store can cancel. With `stream` what
 * is written goes to the log of what is kept, and whoever wants it follows that (api_follow.h): a client that goes ends
 * nothing. */
#include "runtime/api/api_follow.h"
#include "runtime/api/api_responses.h"

#include "runtime/limits.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    api *a;
    const gen_shape *shape;
    api_request q;
    size_t bytes; /* of memory that q takes */
    char id[64];
    atomic_int refs;   /* the exchange without a client, and who began it */
    atomic_int status; /* of its answer; 0: there is none yet */
    char *body;        /* of an error, written before status */
} job;

static void unref(job *j)
{
    if (atomic_fetch_sub(&j->refs, 1) > 1) return;
    free(j->body);
    free(j);
}

/* ---- what is kept ---- */

/* The kept response, to be cJSON_Delete'd, and its text; NULL: there is none. */
static cJSON *kept_text(api *a, const char *id, lq_buf *text)
{
    cJSON *response = NULL;
    if (api_store_get(a->store, id, text, NULL) &&
        js_parse(&response, text->p, text->n, API_STORE_BYTES, 0, NULL))
        response = NULL;
    return response;
}

static cJSON *kept(api *a, const char *id)
{
    lq_buf b = { 0 };
    cJSON *response = kept_text(a, id, &b);
    lq_buf_free(&b);
    return response;
}

void api_response_not_kept(api *a, http_req *r, const char *id)
{
    if (a->store)
        http_error(r, 404, NULL, "response_not_found",
                   "there is no response '%.80s' here (any more)", id);
    else
        http_error(r, 404, NULL, "response_not_found",
                   "this server keeps no responses (--response-store)");
}

static bool is_running(const cJSON *response)
{
    return api_is(js_get(response, "status"), "in_progress");
}

bool api_response_runs(api *a, const char *id)
{
    cJSON *response = kept(a, id);
    const bool runs = is_running(response);
    cJSON_Delete(response);
    return runs;
}

static bool swap(api *a, const char *id, const lq_buf *was, const lq_buf *response,
                 const lq_buf *items)
{
    const bool ok = api_store_swap(a->store, id, was, response, items);
    if (ok) api_follow_news(a, id);
    return ok;
}

static bool set_text(cJSON *response, const char *key, const char *text)
{
    return cJSON_ReplaceItemInObjectCaseSensitive(response, key, cJSON_CreateString(text));
}

/* Keeps what is in progress as ended so; error NULL: none. False: it is not in progress (any more), or memory is
 * out. */
static bool end_as(api *a, const char *id, const char *status, cJSON *error)
{
    lq_buf was = { 0 }, b = { 0 };
    cJSON *response = kept_text(a, id, &was);
    bool ok = is_running(response) && set_text(response, "status", status);
    if (ok && error) {
        ok = cJSON_ReplaceItemInObjectCaseSensitive(response, "error", error);
        error = ok ? NULL : error;
    }
    char *text = ok ? js_print(response, false) : NULL;
    lq_buf_puts(&b, text ? text : "");
    ok = text && swap(a, id, &was, &b, NULL);
    free(text);
    cJSON_Delete(error);
    cJSON_Delete(response);
    lq_buf_free(&was);
    lq_buf_free(&b);
    return ok;
}

bool api_response_end(api *a, const char *id, const lq_buf *response, const lq_buf *items)
{
    lq_buf was = { 0 };
    cJSON *now = kept_text(a, id, &was);
    const bool ok = is_running(now) && swap(a, id, &was, response, items);
    cJSON_Delete(now);
    lq_buf_free(&was);
    return ok;
}

/* ---- making one ---- */

/* An error's body as a failed response has it. */
static cJSON *error_of(const char *body, size_t n)
{
    cJSON *doc = NULL, *error = cJSON_CreateObject();
    if (js_parse(&doc, body, n, API_STORE_BYTES, 0, NULL)) doc = NULL;
    const cJSON *e = js_get(doc, "error");
    const char *code = cJSON_GetStringValue(js_get(e, "code")),
               *text = cJSON_GetStringValue(js_get(e, "message"));
    cJSON_AddStringToObject(error, "code", code ? code : "server_error");
    cJSON_AddStringToObject(error, "message", text ? text : "the response could not be made");
    cJSON_Delete(doc);
    return error;
}

/* Any thread. */
static void on_done(void *user, int status, const char *body, size_t n)
{
    job *j = user;
    if (status != 200) {
        end_as(j->a, j->id, "failed", error_of(body, n));
        j->body = strndup(body, n);
    }
    atomic_store(&j->status, status);
    unref(j);
}

static bool on_event(void *user, const char *p, size_t n)
{
    job *j = user;
    const bool ok = api_store_add(j->a->store, j->id, p, n);
    if (ok) api_follow_news(j->a, j->id);
    return ok;
}

static void make(void *app, http_req *r)
{
    job *j = app;
    if (http_claim(r, j->bytes))
        api_generate(j->a, r, j->shape, &j->q);
    else
        api_request_free(&j->q);
}

/* As the kept response, but for its status: it may wait for its turn. */
static void give_queued(api *a, http_req *r, const lq_buf *response)
{
    cJSON *doc = NULL;
    char *text = NULL;
    (void)a;
    if (!js_parse(&doc, response->p, response->n, API_STORE_BYTES, 0, NULL) &&
        set_text(doc, "status", "queued"))
        text = js_print(doc, false);
    if (text)
        http_reply(r, 200, text, strlen(text), NULL);
    else
        http_error(r, 503, NULL, NULL, "out of memory");
    free(text);
    cJSON_Delete(doc);
}

/* It was refused at once: as it would be with the client waiting. */
static void give_error(http_req *r, int status, const char *body)
{
    cJSON *doc = NULL;
    if (!body || js_parse(&doc, body, strlen(body), API_STORE_BYTES, 0, NULL)) doc = NULL;
    const cJSON *e = js_get(doc, "error");
    const char *text = cJSON_GetStringValue(js_get(e, "message"));
    http_error(r, status, cJSON_GetStringValue(js_get(e, "param")),
               cJSON_GetStringValue(js_get(e, "code")), "%s", text ? text : "out of memory");
    cJSON_Delete(doc);
}

void api_background(api *a, http_req *r, const gen_shape *shape, api_request *q,
                    const lq_buf *response, const lq_buf *items, const lq_buf *events)
{
    static const http_route routes[] = { { .method = "POST", .path = "/", .handle = make } };
    lq_err err = { "" };
    size_t n, tree = 0;
    const char *body = http_body(r, &n);
    job *j = http_can_stream(r) ? calloc(1, sizeof *j) : NULL;
    if (!j) {
        if (http_can_stream(r))
            http_error(r, 503, NULL, NULL, "out of memory");
        else
            http_error(r, 400, "background", "unsupported_value",
                       "background: a batch is one already");
        api_request_free(q);
        return;
    }
    http_taker to = { .done = on_done, .event = events ? on_event : NULL, .user = j };
    js_measure(&tree, body, n, &err);
    *j = (job){ .a = a, .shape = shape, .q = *q, .bytes = 2 * tree };
    memcpy(j->id, q->id, sizeof j->id);
    atomic_init(&j->refs, 2);
    api_store_put(a->store, j->id, response, items, events);
    if (!api_response_runs(a, j->id)) {
        http_error(r, 413, NULL, NULL,
                   "the conversation is more than --response-store keeps (%d MiB)",
                   (int)(API_STORE_BYTES >> 20));
        api_request_free(q);
        free(j);
        return;
    }
    if (http_local(routes, 1, j, atomic_load(&a->http), "/", "", 0, &to, &err)) {
        api_request_free(q);
        atomic_store(&j->status, 503);
        unref(j);
    }
    const int status = atomic_load(&j->status);
    /* What failed on the way is kept as such, however soon. */
    if (status && status != 200 && status != 500) {
        api_store_remove(a->store, j->id);
        give_error(r, status, j->body);
    } else if (events) {
        api_follow(a, r, j->id, -1);
    } else {
        give_queued(a, r, response);
    }
    unref(j);
}

/* ---- ID/cancel ---- */

void api_post_response(void *app, http_req *r)
{
    static const char path[] = "/cancel";
    api *a = app;
    char id[128];
    jw w = { 0 };
    snprintf(id, sizeof id, "%s", http_rest(r));
    char *slash = strchr(id, '/');
    if (!slash || strcmp(slash, path) != 0) {
        http_error(r, 404, NULL, NULL, "there is no such path: expected ID/cancel");
        return;
    }
    *slash = 0;
    if (end_as(a, id, "cancelled", NULL)) api_gen_abort(a, id);
    cJSON *response = kept(a, id);
    if (!response)
        api_response_not_kept(a, r, id);
    else if (!cJSON_IsTrue(js_get(response, "background")))
        http_error(r, 400, NULL, "invalid_value",
                   "only a response that is made in the background can be cancelled");
    else if (api_store_get(a->store, id, &w.b, NULL))
        api_reply(r, 200, &w);
    else
        api_response_not_kept(a, r, id);
    cJSON_Delete(response);
}
