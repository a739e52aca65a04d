/* runtime/api/api_messages_batches.c - Anthropic's message batches: the batches of api_batches.h whose endpoint is
 * /v1/messages. Requests become the lines of an input file, and results are put together of the files of answers and of
 * errors. Such a batch is msgbatch_X here and batch_X at /v1/batches. Source: Anthropic's API reference, "Message Batches". */
#include "runtime/api/api_batches_int.h"
#include "runtime/api/api_messages.h"
#include "runtime/api/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char endpoint[] = "/v1/messages", prefix[] = "msg";
enum { N_PREFIX = sizeof prefix - 1, DAY = 24 * 60 * 60, DAYS_KEPT = 29 };

static bool is_ours(const api_batch *b, const lq_hash *owner)
{
    return strcmp(b->endpoint, endpoint) == 0 && memcmp(&b->owner, owner, sizeof *owner) == 0;
}

/* ---- as JSON ---- */

/* Lines that the end of the batch's time left unasked, of its file of errors. */
static int64_t count_expired(const api_batch *b, api_files *files)
{
    static const char mark[] = "\"error\":{\"code\":\"batch_expired\"";
    api_file *f = b->state == BATCH_EXPIRED ? api_files_get(files, b->error_id, &b->owner) : NULL;
    const char *at = f ? f->data.p : NULL, *end = f ? at + f->data.n : NULL;
    int64_t n = 0;
    while (at && (at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
        at += sizeof mark - 1;
        n++;
    }
    api_file_unref(files, f);
    return n;
}

static void write_counts(jw *w, const api_batch *b, api_files *files)
{
    const bool ended = batch_ended(b), failed = b->state == BATCH_FAILED;
    const int64_t left = b->total - b->completed - b->failed, expired = count_expired(b, files);
    const struct {
        const char *name;
        int64_t n;
    } counts[] = { { "processing", ended ? 0 : b->total },
                   { "succeeded", ended ? b->completed : 0 },
                   { "errored", ended ? b->failed - expired + (failed ? left : 0) : 0 },
                   { "canceled", ended && !failed ? left : 0 },
                   { "expired", expired } };
    jw_key(w, "request_counts");
    jw_open(w, '{');
    for (size_t i = 0; i < LQ_COUNT(counts); i++)
        jw_put_i64(w, counts[i].name, counts[i].n);
    jw_close(w, '}');
}

static void put_time(jw *w, const char *key, int64_t t)
{
    if (t) {
        jw_put_time(w, key, t);
    } else {
        jw_key(w, key);
        jw_null(w);
    }
}

/* Under mu. */
static void write_batch(jw *w, const api_batches *s, const api_batch *b)
{
    char id[64], results[128];
    snprintf(id, sizeof id, "%s%s", prefix, b->id);
    snprintf(results, sizeof results, "/v1/messages/batches/%s/results", id);
    jw_open(w, '{');
    jw_put_cstr(w, "id", id);
    jw_put_cstr(w, "type", "message_batch");
    jw_put_cstr(w, "processing_status",
                batch_ended(b)                 ? "ended"
                : b->state == BATCH_CANCELLING ? "canceling"
                                               : "in_progress");
    write_counts(w, b, s->a->files);
    put_time(w, "created_at", b->created);
    put_time(w, "expires_at", b->expires);
    put_time(w, "ended_at", batch_ended(b) ? b->at[b->state] : 0);
    put_time(w, "cancel_initiated_at", b->at[BATCH_CANCELLING]);
    put_time(w, "archived_at", 0);
    jw_put_cstr(w, "results_url", batch_ended(b) ? results : NULL);
    jw_close(w, '}');
}

/* ---- to create one ---- */

static bool good_id(const char *s)
{
    const size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= API_MAX_CUSTOM_ID &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static lq_status check_twice(const cJSON *list, int64_t n, api_error *e)
{
    const char **ids = malloc((size_t)n * sizeof *ids);
    const char *twice = NULL;
    size_t k = 0;
    if (!ids) return api_no_memory(e);
    for (const cJSON *v = list->child; v; v = v->next)
        ids[k++] = js_get(v, "custom_id")->valuestring;
    qsort(ids, k, sizeof *ids, by_text);
    for (size_t i = 1; i < k && !twice; i++)
        if (strcmp(ids[i - 1], ids[i]) == 0) twice = ids[i];
    free(ids);
    return twice ? api_fail(e, "requests", "invalid_value",
                            "requests: custom_id '%s' comes more than once", twice)
                 : LQ_OK;
}

/* One request as a line of the input file. */
static lq_status add_line(jw *w, const cJSON *v, int64_t i, api_error *e)
{
    const cJSON *params = js_get(v, "params");
    const char *id = cJSON_GetStringValue(js_get(v, "custom_id"));
    char at[48], found[64];
    snprintf(at, sizeof at, "requests[%lld]", (long long)i);
    if (!good_id(id))
        return api_fail(e, "requests", "invalid_value",
                        "%s: expected a custom_id of 1..%d letters, digits, '_' or '-', found %s",
                        at, API_MAX_CUSTOM_ID, js_describe(found, js_get(v, "custom_id")));
    if (!cJSON_IsObject(params))
        return api_fail(e, "requests", "invalid_value", "%s: expected an object params, found %s",
                        at, js_describe(found, params));
    for (const cJSON *c = v->child; c; c = c->next)
        if (strcmp(c->string, "custom_id") != 0 && strcmp(c->string, "params") != 0)
            return api_fail(e, "requests", "unknown_parameter", "%s: %.60s: unknown parameter", at,
                            c->string);
    char *text = js_print(params, false);
    if (!text) return api_no_memory(e);
    jw_open(w, '{');
    jw_put_cstr(w, "custom_id", id);
    jw_put_cstr(w, "method", "POST");
    jw_put_cstr(w, "url", endpoint);
    jw_key(w, "body");
    jw_json(w, text, strlen(text));
    jw_close(w, '}');
    lq_buf_add(&w->b, "\n", 1);
    w->comma = false;
    free(text);
    return LQ_OK;
}

static lq_status read_requests(jw *w, int64_t *n, const cJSON *doc, api_error *e)
{
    const cJSON *list = js_get(doc, "requests");
    lq_status s = LQ_OK;
    for (const cJSON *c = doc->child; c; c = c->next)
        if (c != list)
            return api_fail(e, c->string, "unknown_parameter", "%.60s: unknown parameter",
                            c->string);
    if (!cJSON_IsArray(list) || !list->child)
        return api_wrong(e, "requests", "an array of one or more requests", list);
    for (const cJSON *v = list->child; v && !s; v = v->next)
        s = add_line(w, v, (*n)++, e);
    if (!s && w->b.oom) s = api_no_memory(e);
    return s ? s : check_twice(list, *n, e);
}

/* The batch of these lines, which has its input file. */
static lq_status make_batch(api *a, api_batch *b, const jw *lines, int64_t n, api_error *e)
{
    b->created = (int64_t)time(NULL);
    b->expires = b->created + DAY;
    b->output_seconds = DAYS_KEPT * DAY;
    b->endpoint = endpoint;
    b->total = n;
    api_secret_id(b->id, "batch_");
    api_file like = { .owner = b->owner, .expires = b->created + b->output_seconds };
    snprintf(like.name, sizeof like.name, "%s_input.jsonl", b->id);
    snprintf(like.purpose, sizeof like.purpose, "batch");
    lq_status s = api_keep_file(a, &like, lines->b.p, lines->b.n, &b->input, e);
    if (!s) memcpy(b->input_id, b->input->id, sizeof b->input_id);
    return s;
}

void api_post_messages_batch(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    jw w = { 0 }, lines = { 0 };
    int64_t n = 0;
    if (!api_keeps_files(a, r) || !api_ready(a, r)) return;
    cJSON *doc = api_parse_to_translate(r);
    if (!doc) return;
    api_batch *b = calloc(1, sizeof *b);
    lq_status s = b ? read_requests(&lines, &n, doc, &e) : api_no_memory(&e);
    cJSON_Delete(doc);
    if (!s) {
        b->owner = http_client(r);
        s = make_batch(a, b, &lines, n, &e);
    }
    jw_free(&lines);
    if (!s) s = api_batch_add(a->batches, b, write_batch, &w, &e);
    if (!s) {
        api_reply(r, 200, &w);
        return;
    }
    if (b && b->input) api_files_remove(a->files, b->input_id, &b->owner);
    if (b) api_batch_free(a->batches, b);
    api_reply_error(a, r, &e);
}

/* ---- those there are ---- */

/* Under mu. id: msgbatch_X, and n bytes of it; NULL: there is none. */
static api_batch *find(api_batches *s, const char *id, size_t n, const lq_hash *owner)
{
    if (n <= N_PREFIX || memcmp(id, prefix, N_PREFIX) != 0) return NULL;
    api_batch *b = api_batch_find(s, id + N_PREFIX, n - N_PREFIX, owner);
    return b && is_ours(b, owner) ? b : NULL;
}

static void no_such_batch(http_req *r)
{
    http_error(r, 404, NULL, NULL, "there is no batch '%.60s' here (any more)", http_rest(r));
}

/* ---- results ---- */

/* The lines of a file of answers, one by one. */
typedef struct {
    api_file *f; /* NULL: there are none */
    const char *at, *end;
    cJSON *line;    /* the one at hand; NULL: there is no further one */
    const char *id; /* its custom_id */
} answers;

static void next_answer(answers *a)
{
    size_t n;
    const char *text = a->f ? batch_line_next(&a->at, a->end, &n) : NULL;
    cJSON_Delete(a->line);
    a->line = NULL;
    if (!text || js_parse(&a->line, text, n, n, JS_SPELLED, NULL)) a->line = NULL;
    a->id = cJSON_GetStringValue(js_get(a->line, "custom_id"));
}

static bool open_answers(answers *a, api_files *files, const api_batch *b, const char *id)
{
    *a = (answers){ .f = id[0] ? api_files_get(files, id, &b->owner) : NULL };
    if (!a->f) return !id[0];
    a->at = a->f->data.p;
    a->end = a->at + a->f->data.n;
    next_answer(a);
    return true;
}

static void close_answers(answers *a, api_files *files)
{
    cJSON_Delete(a->line);
    api_file_unref(files, a->f);
}

static void write_result(jw *w, const char *id, const char *type, const char *key, const cJSON *v)
{
    char *text = v ? js_print(v, false) : NULL;
    w->b.oom |= v && !text;
    jw_open(w, '{');
    jw_put_cstr(w, "custom_id", id);
    jw_key(w, "result");
    jw_open(w, '{');
    jw_put_cstr(w, "type", type);
    if (text) jw_key(w, key);
    if (text) jw_json(w, text, strlen(text));
    jw_close(w, '}');
    jw_close(w, '}');
    lq_buf_add(&w->b, "\n", 1);
    w->comma = false;
    free(text);
}

/* A request that has no line: nothing came to it before the batch was cancelled, or failed. */
static void write_left(jw *w, const api_batch *b, const char *id)
{
    static const char why[] = "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":"
                              "\"the server had no room for the batch's answers\"}}";
    cJSON *v = b->state == BATCH_FAILED ? cJSON_Parse(why) : NULL;
    w->b.oom |= b->state == BATCH_FAILED && !v;
    write_result(w, id, v ? "errored" : "canceled", "error", v);
    cJSON_Delete(v);
}

/* Answers and errors have the order of their requests, so each is the next of one of the two, or of none. */
static void write_results(jw *w, const api_batch *b, const api_file *input, answers *out,
                          answers *err)
{
    const char *at = input->data.p, *end = at + input->data.n, *line;
    size_t n;
    while ((line = batch_line_next(&at, end, &n)) && !w->b.oom) {
        batch_line l;
        lq_err ignored;
        (void)batch_line_read(&l, line, n, n, &ignored);
        const char *id = l.id ? l.id : "";
        if (out->id && strcmp(out->id, id) == 0) {
            write_result(w, id, "succeeded", "message",
                         js_get(js_get(out->line, "response"), "body"));
            next_answer(out);
        } else if (err->id && strcmp(err->id, id) == 0) {
            const cJSON *body = js_get(js_get(err->line, "response"), "body");
            write_result(w, id, body ? "errored" : "expired", "error", body);
            next_answer(err);
        } else {
            write_left(w, b, id);
        }
        batch_line_free(&l);
    }
}

/* b: a copy of one that has ended. */
static void reply_results(api *a, http_req *r, const api_batch *b)
{
    answers out, err;
    jw w = { 0 };
    api_file *input = api_files_get(a->files, b->input_id, &b->owner);
    const bool there = open_answers(&out, a->files, b, b->output_id);
    const bool all = open_answers(&err, a->files, b, b->error_id) && there && input;
    const size_t bytes =
        (input ? input->data.n : 0) + (out.f ? out.f->data.n : 0) + (err.f ? err.f->data.n : 0);
    if (!all) {
        http_error(r, 404, NULL, NULL, "the batch's files are not here any more");
    } else if (http_claim(r, bytes)) {
        write_results(&w, b, input, &out, &err);
        if (w.b.oom)
            http_error(r, 503, NULL, NULL, "out of memory");
        else
            http_reply(r, 200, w.b.p, w.b.n, &(http_extra){ .type = "application/x-jsonl" });
    }
    jw_free(&w);
    close_answers(&out, a->files);
    close_answers(&err, a->files);
    api_file_unref(a->files, input);
}

/* ---- the routes of one ---- */

/* ID of ID and a verb; false: there is another one. */
static bool split(http_req *r, const char *verb, const char **id, size_t *n)
{
    *id = http_rest(r);
    *n = strcspn(*id, "/");
    return strcmp(*id + *n, verb) == 0;
}

void api_get_messages_batch(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    api_batch copy = { .next = NULL };
    const char *id;
    size_t n;
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    const bool results = split(r, "/results", &id, &n);
    if (id[n] && !results) {
        http_error(r, 404, NULL, NULL, "there is no such path: expected ID or ID/results");
        return;
    }
    pthread_mutex_lock(&a->batches->mu);
    const api_batch *b = find(a->batches, id, n, &owner);
    if (b) copy = *b;
    if (b && !results) write_batch(&w, a->batches, b);
    pthread_mutex_unlock(&a->batches->mu);
    if (!b)
        no_such_batch(r);
    else if (!results)
        api_reply(r, 200, &w);
    else if (!batch_ended(&copy))
        http_error(r, 404, NULL, NULL, "the batch has no results yet: it has not ended");
    else
        reply_results(a, r, &copy);
}

/* /v1/messages/batches/ID/cancel */
void api_post_messages_batch_cancel(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    const char *id;
    size_t n;
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    if (!split(r, "/cancel", &id, &n)) {
        http_error(r, 404, NULL, NULL, "there is no such path: expected ID/cancel");
        return;
    }
    pthread_mutex_lock(&a->batches->mu);
    api_batch *b = find(a->batches, id, n, &owner);
    const bool ended = b && batch_ended(b) && b->state != BATCH_CANCELLED;
    if (b && !ended) api_batch_cancel(a->batches, b);
    if (b && !ended) write_batch(&w, a->batches, b);
    pthread_mutex_unlock(&a->batches->mu);
    if (!b)
        no_such_batch(r);
    else if (ended)
        http_error(r, 400, NULL, NULL, "the batch has ended: it cannot be cancelled");
    else
        api_reply(r, 200, &w);
}

void api_delete_messages_batch(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    const char *id = http_rest(r);
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    pthread_mutex_lock(&a->batches->mu);
    api_batch *b = find(a->batches, id, strlen(id), &owner);
    const bool ended = b && batch_ended(b);
    if (ended) {
        char *const files[] = { b->input_id, b->output_id, b->error_id };
        for (size_t i = 0; i < LQ_COUNT(files); i++)
            if (files[i][0]) api_files_remove(a->files, files[i], &owner);
        api_batch_remove(a->batches, b);
    }
    pthread_mutex_unlock(&a->batches->mu);
    if (!b) {
        no_such_batch(r);
    } else if (!ended) {
        http_error(r, 400, NULL, NULL, "the batch has not ended: cancel it first");
    } else {
        jw_open(&w, '{');
        jw_put_cstr(&w, "id", id);
        jw_put_cstr(&w, "type", "message_batch_deleted");
        jw_close(&w, '}');
        api_reply(r, 200, &w);
    }
}

void api_get_messages_batches(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    api_page p;
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    if (http_query(r, "before_id")) {
        http_error(r, 400, NULL, NULL, "before_id is not supported: expected after_id");
        return;
    }
    if (!api_read_page(r, &p, 20, 1000)) return;
    p.after = http_query(r, "after_id");
    p.begun = !p.after;
    jw_open(&w, '{');
    jw_key(&w, "data");
    jw_open(&w, '[');
    pthread_mutex_lock(&a->batches->mu);
    for (const api_batch *b = a->batches->latest; b && !p.more; b = b->next) {
        char id[64];
        snprintf(id, sizeof id, "%s%s", prefix, b->id);
        if (api_page_takes(&p, id, is_ours(b, &owner))) write_batch(&w, a->batches, b);
    }
    pthread_mutex_unlock(&a->batches->mu);
    jw_close(&w, ']');
    api_write_page(&w, &p);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}
