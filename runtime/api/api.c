/* runtime/api/api.c - the table of routes, the life of an api, and what its routes share. */
#include "runtime/api/api_int.h"
#include "runtime/api/web.h"
#include "runtime/json_text.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* method, path, handler, needs no key, needs an administrator's key; the page's come first */
enum { N_PAGE_ROUTES = 2 };
static const http_route routes[] = {
    { "GET", "/", web_get_page, true, false },
    { "GET", "/page/*", web_get_file, true, false },
    { "GET", "/", api_get_root, false, false },
    { "GET", "/health", api_get_health, true, false },
    { "GET", "/ready", api_get_ready, true, false },
    { "GET", "/version", api_get_version, false, false },
    { "GET", "/metrics", api_get_metrics, false, false },
    { "GET", "/load", api_get_load, false, false },
    { "GET", "/openapi.json", api_get_openapi, false, false },
    { "GET", "/v1/models", api_get_models, false, false },
    { "GET", "/v1/models/*", api_get_model, false, false },
    { "POST", "/v1/completions", api_post_completions, false, false },
    { "POST", "/v1/chat/completions", api_post_chat, false, false },
    { "POST", "/v1/chat/completions/render", api_post_render, false, false },
    { "POST", "/apply-template", api_post_render, false, false }, /* llama.cpp's name */
    { "POST", "/v1/embeddings", api_post_embeddings, false, false },
    { "POST", "/tokenize", api_post_tokenize, false, false },
    { "POST", "/detokenize", api_post_detokenize, false, false },
    { "DELETE", "/v1/requests/*", api_delete_request, false, true },
};

const http_route *api_routes(bool page, size_t *n)
{
    const size_t left_out = page ? 0 : N_PAGE_ROUTES;
    *n = LQ_COUNT(routes) - left_out;
    return routes + left_out;
}

static lq_status copy_names(api *a, lq_err *err)
{
    a->names = calloc((size_t)a->o.n_names + 1, sizeof *a->names);
    if (!a->names) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int i = 0; i < a->o.n_names; i++)
        if (!(a->names[i] = strdup(a->o.names[i]))) return lq_fail(err, LQ_ENOMEM, "out of memory");
    return LQ_OK;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

lq_status api_open(api **out, const api_opts *o, lq_err *err)
{
    api *a = *out = calloc(1, sizeof *a);
    if (!a) return lq_fail(err, LQ_ENOMEM, "out of memory");
    a->o = *o;
    if (!(a->o.stall_seconds > 0)) a->o.stall_seconds = 60;
    a->created = (int64_t)time(NULL);
    a->started = now_seconds();
    if (getrandom(&a->salt, sizeof a->salt, 0) != sizeof a->salt)
        a->salt = (uint64_t)a->created * 0x9e3779b97f4a7c15u;
    pthread_mutex_init(&a->mu, NULL);
    a->met = met_new();
    lq_status s = copy_names(a, err);
    if (!s) {
        met_labels(&a->labels, a->names[0]);
        jw_bytes(&a->labels, "", 1);
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
    pthread_mutex_destroy(&a->mu);
    met_free(a->met);
    gr_cache_close(a->grammars);
    jw_free(&a->labels);
    for (int i = 0; a->names && a->names[i]; i++)
        free(a->names[i]);
    free(a->names);
    free(a);
}

void api_set_http(api *a, http_server *s) { atomic_store(&a->http, s); }

void api_set_progress(api *a, double done) { atomic_store(&a->progress, done); }

void api_first_token(api *a, double seconds)
{
    double none = 0;
    atomic_compare_exchange_strong(&a->first_seconds, &none, seconds);
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
    atomic_store(&a->ready_seconds, now_seconds() - a->started);
    atomic_store(&a->has_model, true);
    atomic_compare_exchange_strong(&a->state, &loading, API_READY);
}

void api_set_limits(api *a, double read_bytes_s, double flops)
{
    atomic_store(&a->limit_read, read_bytes_s);
    atomic_store(&a->limit_flops, flops);
}

void api_drain(api *a) { atomic_store(&a->state, API_DRAINING); }

void api_log(void *app, const http_log_line *l)
{
    api *a = app;
    if (l->status == 400 || l->status == 404) met_add(a->met, MET_INVALID, 1);
    if (a->o.log && !a->o.log(a->o.user, l)) met_add(a->met, MET_LOG_LOST, 1);
}

void api_reply(http_req *r, int status, jw *w)
{
    if (w->oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, status, w->p, w->n, NULL);
    jw_free(w);
}

void api_reply_error(api *a, http_req *r, const api_error *e)
{
    if (e->status == 503) met_add(a->met, MET_REJECT_QUEUE, 1);
    http_error(r, e->status, e->param[0] ? e->param : NULL, e->code, "%s", e->err.msg);
}

bool api_ready(api *a, http_req *r)
{
    switch (atomic_load(&a->state)) {
    case API_READY:
        return true;
    case API_LOADING:
        met_add(a->met, MET_REJECT_LOADING, 1);
        http_error(r, 503, NULL, "loading", "the model is being loaded");
        return false;
    default:
        met_add(a->met, MET_REJECT_DRAINING, 1);
        http_error(r, 503, NULL, "shutting_down", "the server is shutting down");
        return false;
    }
}

cJSON *api_parse(api *a, http_req *r)
{
    (void)a;
    size_t n, tree = 0;
    const char *text = http_body(r, &n);
    cJSON *doc = NULL;
    lq_err err = { "" };
    lq_status s = n ? js_measure(&tree, text, n, &err) : lq_fail(&err, LQ_EFORMAT, "it is empty");
    if (!s && !http_claim(r, tree)) return NULL;
    if (!s) s = js_parse(&doc, text, n, SIZE_MAX, JS_UNIQUE, &err);
    if (s == LQ_ENOMEM)
        http_error(r, 503, NULL, NULL, "out of memory");
    else if (s)
        http_error(r, 400, NULL, "invalid_json", "the body is not valid JSON: %s", err.msg);
    else if (!cJSON_IsObject(doc))
        http_error(r, 400, NULL, "invalid_json", "the body must be a JSON object");
    if (!s && cJSON_IsObject(doc)) return doc;
    cJSON_Delete(doc);
    return NULL;
}

cJSON *api_parse_spelled(api *a, http_req *r)
{
    size_t n;
    const char *text = http_body(r, &n);
    cJSON *doc = api_parse(a, r), *spelled = NULL;
    if (!doc) return NULL;
    cJSON_Delete(doc);
    if (jt_parse(&spelled, text, n, JT_NUMBERS, NULL))
        http_error(r, 503, NULL, NULL, "out of memory"); /* its syntax was just found right */
    return spelled;
}

bool api_serves(const api *a, const char *name)
{
    if (!name) return true;
    for (int i = 0; a->names[i]; i++)
        if (strcmp(a->names[i], name) == 0) return true;
    return false;
}

lq_status api_no_model(api_error *e, const char *name)
{
    lq_status s =
        api_fail(e, "model", "model_not_found", "the model '%.200s' is not served here", name);
    e->status = 404;
    return s;
}

/* The end of a text, of at least n bytes: from where a word begins, if there is one near, so that
 * what follows has the tokens that it has in the whole text. */
static const char *end_of(const char *text, size_t len, size_t n)
{
    enum { NEAR = 4096 };
    const char *from = text + len - n, *p = from;
    while (p > text && from - p < NEAR && *p != ' ' && *p != '\n')
        p--;
    if (*p != ' ' && *p != '\n')
        for (p = from; p > text && ((uint8_t)*p & 0xc0) == 0x80;) /* inside a character */
            p--;
    return p;
}

size_t api_most_bytes(const api *a)
{
    size_t most;
    return lq_mul((size_t)a->m.max_len, tok_max_token_bytes(a->m.tok), &most) ? most : SIZE_MAX;
}

lq_status api_encode(const api *a, api_prompt *p, const char *text, bool special, bool tail,
                     const char *param, api_error *e)
{
    const tok_tokenizer *tok = a->m.tok;
    size_t len = strlen(text);
    if (!tok)
        return api_fail(e, param, "unsupported_value",
                        "%s: the model has no tokenizer, send token ids", param);
    const size_t most = api_most_bytes(a);
    p->text = text;
    if (len > most && tail) {
        const char *end = end_of(text, len, len / 2 > most ? 2 * most : len);
        len -= (size_t)(end - text);
        text = end;
    } else if (len > most) {
        return api_fail(
            e, param, "context_length_exceeded",
            "this model's maximum context length is %lld tokens: %s has %zu bytes, more "
            "than they can hold",
            (long long)a->m.max_len, param, len);
    }
    lq_err err;
    lq_status s = tok_encode(tok, text, len, special ? TOK_ADD_SPECIAL : 0, &p->ids, &p->n, &err);
    if (!s && special && p->n > 1 && p->ids[0] == p->ids[1] && tok_is_special(tok, p->ids[0]))
        met_add(a->met, MET_TWO_BOS, 1);
    if (!s) return LQ_OK;
    api_fail(e, param, NULL, "%s: the text cannot be tokenized", param);
    if (s == LQ_ENOMEM) e->status = 503;
    return s;
}
