/* tools/router/router_routes.c - the routes of a server of several models: those of one model (runtime/api/api_routes.c),
 * passed on to it, and a few that are about all of them. */
#include "tools/router/router_int.h"

#include "base/json.h"
#include "base/version.h"
#include "runtime/api/api.h"
#include "runtime/api/api_card.h"
#include "runtime/api/metrics.h"

#include <stdio.h>
#include <stdlib.h>

static void reply(http_req *r, int status, jw *w)
{
    if (w->b.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, status, w->b.p, w->b.n, NULL);
    jw_free(w);
}

/* ---- which model ---- */

/* The model of a served name, which may be an adapter's. */
static int find_exactly(const router *v, const char *name)
{
    const int i = cat_find(&v->cat, name);
    return i >= 0 ? i : loras_find(v->loras, name);
}

/* Ollama's clients put ":latest" behind it. */
static int find(const router *v, const char *name)
{
    static const char tag[] = ":latest";
    const size_t n = strlen(name), k = sizeof tag - 1;
    char bare[256];
    const int i = find_exactly(v, name);
    if (i >= 0 || n <= k || n - k >= sizeof bare || strcmp(name + n - k, tag) != 0) return i;
    snprintf(bare, sizeof bare, "%.*s", (int)(n - k), name);
    return find_exactly(v, bare);
}

static void no_model(http_req *r, const char *name)
{
    http_error(r, 404, "model", "model_not_found", "the model '%.200s' is not served here", name);
}

/* Without a name: the one that was used last, so that a server with one loaded model is like one of that
 * model; else the first. */
static int unnamed(const router *v)
{
    int n;
    const int i = fleet_latest(v->f, &n);
    return i < 0 ? 0 : i;
}

/* A body's member "model" (or, as Ollama's /api/show and /api/pull have it, "name"), decoded. free() *name; NULL: it is not
 * there. False: the body is wrong, and answered. */
static bool read_name(http_req *r, char **name)
{
    static const char *const keys[] = { "model", "name" };
    size_t n, tree = 0, len = 0;
    const char *text = http_body(r, &n), *source = NULL, *path = http_path(r);
    cJSON *v = NULL;
    lq_err err = { "" };
    *name = NULL;
    lq_status s = n ? js_measure(&tree, text, n, &err) : lq_fail(&err, LQ_EFORMAT, "it is empty");
    if (s) {
        http_error(r, 400, NULL, "invalid_json", "the body is no JSON: %s", err.msg);
        return false;
    }
    for (size_t i = 0; i < LQ_COUNT(keys) && !source; i++)
        if (i == 0 || strcmp(path, "/api/show") == 0 || strcmp(path, "/api/pull") == 0)
            source = js_member_source(text, n, keys[i], &len);
    if (!source || js_parse(&v, source, len, len, 0, NULL) || cJSON_IsNull(v)) {
        cJSON_Delete(v);
        return true;
    }
    if (!cJSON_IsString(v)) {
        char found[64];
        http_error(r, 400, "model", NULL, "model: expected a string, found %s",
                   js_describe(found, v));
    } else {
        *name = strdup(v->valuestring);
        if (!*name) http_error(r, 503, NULL, NULL, "out of memory");
    }
    cJSON_Delete(v);
    return *name != NULL;
}

static int model_of_body(const router *v, http_req *r)
{
    char *name;
    if (!read_name(r, &name)) return -1;
    const int i = name ? find(v, name) : unnamed(v);
    if (i < 0) no_model(r, name);
    free(name);
    return i;
}

static bool is_up(const router *v, http_req *r)
{
    const bool up = !atomic_load(&v->draining);
    if (!up) http_error(r, 503, NULL, "shutting_down", "the server is shutting down");
    return up;
}

/* ---- passing on ---- */

typedef struct job job;
struct job {
    router *v;
    http_req *r;
    int model;
    bool uses; /* the model, rather than looks at it */
    const char *method;
    /* What follows of an administrator's request, once, before the answer goes out: who has it finds all as it says.
     * status: not 200 where there is none either. NULL: nothing */
    void (*ended)(struct job *j, int status);
    bool stays;                   /* it goes on when its client has left: its end is to be known */
    char *adapter, *adapter_path; /* of an administrator's request; malloc'd */
    char path[512], accept[128], type[128];
    atomic_bool gone;
};

static void job_free(void *user)
{
    job *j = user;
    free(j->adapter);
    free(j->adapter_path);
    free(j);
}

static void job_answers(void *user, int status)
{
    job *j = user;
    void (*ended)(job *, int) = j->ended;
    j->ended = NULL;
    if (ended) ended(j, status);
}

/* Answered, or never to be. held: the model is. */
static void job_end(job *j, bool held)
{
    job_answers(j, 0);
    if (held) fleet_release(j->v->f, j->model, j->uses);
    http_release(j->r);
}

static void job_done(void *user, int status, const char *why)
{
    job *j = user;
    /* A batch would send it again and again, and maybe it is why; not what nobody has seen, nor what the end cuts. */
    const bool last =
        !http_can_stream(j->r) && status != RELAY_NOBODY && !atomic_load(&j->v->draining);
    if (why) fleet_doubt(j->v->f, j->model);
    if (why) job_answers(j, 0);
    if (why)
        http_error(j->r, last ? 500 : 503, NULL, "model_lost", "the server of %.100s broke off: %s",
                   j->v->cat.m[j->model].names[0], why);
    job_end(j, true);
}

static void job_ready(void *user, int status, const char *code, const char *why)
{
    job *j = user;
    char socket[128];
    lq_err err;
    if (status) {
        job_answers(j, 0);
        http_error(j->r, status, "model", code, "%s", why);
        job_end(j, false);
        return;
    }
    fleet_socket(j->v->f, j->model, socket, sizeof socket);
    const relay_call c = { .unix_path = socket,
                           .method = j->method,
                           .path = j->path,
                           .accept = j->accept[0] ? j->accept : NULL,
                           .r = j->r,
                           .type = j->type,
                           .gone = &j->gone,
                           .answers = job_answers,
                           .done = job_done,
                           .user = j };
    const bool gone = atomic_load(&j->gone);
    lq_status s = gone ? LQ_EINTR : relay_send(j->v->y, &c, &err);
    if (!s) return;
    if (!gone) http_error(j->r, 503, NULL, NULL, "%s", err.msg);
    job_end(j, true);
}

static void job_gone(void *user)
{
    job *j = user;
    if (fleet_forget(j->v->f, j)) {
        job_end(j, false);
    } else if (!j->stays) {
        atomic_store(&j->gone, true);
        relay_wake(j->v->y);
    }
}

typedef struct {
    char *name, *path, *model; /* malloc'd; NULL: not there */
} adapter_body;

/* b, ended: of an administrator's request about an adapter, whose name and path the job takes over; or NULL. */
static job *new_job_for(router *v, http_req *r, int which, const char *method, adapter_body *b,
                        void (*ended)(job *j, int status))
{
    job *j = calloc(1, sizeof *j);
    const char *accept = http_header(r, "Accept"), *type = http_header(r, "Content-Type");
    if (!j) {
        http_error(r, 503, NULL, NULL, "out of memory");
        return NULL;
    }
    j->v = v;
    j->r = r;
    j->model = which;
    j->method = method;
    j->uses = strcmp(method, "POST") == 0;
    atomic_init(&j->gone, false);
    snprintf(j->path, sizeof j->path, "%s", http_path(r));
    snprintf(j->accept, sizeof j->accept, "%s", accept ? accept : "");
    snprintf(j->type, sizeof j->type, "%s", type ? type : "application/json");
    if (b) {
        j->adapter = b->name;
        j->adapter_path = b->path;
        b->name = b->path = NULL;
        j->ended = ended;
        j->stays = true;
    }
    http_keep(r, job_gone, job_free, j);
    return j;
}

static job *new_job(router *v, http_req *r, int which, const char *method)
{
    return new_job_for(v, r, which, method, NULL, NULL);
}

/* To the model that the body names, which is loaded for it. */
static void post_on(void *app, http_req *r)
{
    router *v = app;
    if (!is_up(v, r)) return;
    const int which = model_of_body(v, r);
    job *j = which < 0 ? NULL : new_job(v, r, which, "POST");
    if (j) fleet_ask(v->f, which, job_ready, j);
}

/* What is asked of a model that is loaded, by the query's "model". */
static void get_on(void *app, http_req *r)
{
    router *v = app;
    const char *name = http_query(r, "model");
    const int which = name ? find(v, name) : unnamed(v);
    if (which < 0) {
        no_model(r, name);
        return;
    }
    if (!fleet_hold(v->f, which)) {
        http_error(r, 503, "model", "model_not_loaded", "%.100s is not loaded",
                   v->cat.m[which].names[0]);
        return;
    }
    job *j = new_job(v, r, which, "GET");
    if (j)
        job_ready(j, 0, NULL, NULL);
    else
        fleet_release(v->f, which, false);
}

/* ---- about all of them ---- */

static void reply_word(http_req *r, int status, const char *word)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, "status", word);
    jw_close(&w, '}');
    reply(r, status, &w);
}

static void get_health(void *app, http_req *r)
{
    (void)app;
    reply_word(r, 200, "ok");
}

static void get_ready(void *app, http_req *r)
{
    const bool draining = atomic_load(&((router *)app)->draining);
    reply_word(r, draining ? 503 : 200, draining ? "draining" : "ready");
}

static void get_version(void *app, http_req *r)
{
    (void)app;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, "version", LLMQ_VERSION);
    jw_close(&w, '}');
    reply(r, 200, &w);
}

static void get_ollama_version(void *app, http_req *r)
{
    (void)app;
    jw w = { 0 };
    api_ollama_version(&w, LLMQ_VERSION);
    reply(r, 200, &w);
}

static void get_load(void *app, http_req *r)
{
    router *v = app;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_i64(&w, "server_load", fleet_running(v->f) + fleet_waiting(v->f));
    jw_put_i64(&w, "running", fleet_running(v->f));
    jw_put_i64(&w, "waiting", fleet_waiting(v->f));
    jw_close(&w, '}');
    reply(r, 200, &w);
}

static void get_root(void *app, http_req *r)
{
    const router *v = app;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, "server", "llmq");
    jw_key(&w, "routes");
    jw_open(&w, '[');
    for (size_t i = 0; i < v->n_routes; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s %s", v->routes[i].method, v->routes[i].path);
        jw_cstr(&w, text);
    }
    jw_close(&w, ']');
    jw_close(&w, '}');
    reply(r, 200, &w);
}

static void get_metrics(void *app, http_req *r)
{
    router *v = app;
    http_stats h;
    lq_buf w = { 0 };
    if (http_query(r, "model")) {
        get_on(app, r);
        return;
    }
    http_stats_get(v->door.http, &h);
    fleet_metrics(v->f, &w);
    met_write_one(&w, "counter", "llmq:http_requests_total", "Requests.", "", (double)h.requests);
    met_write_one(&w, "counter", "llmq:access_log_lines_lost_total",
                  "Lines that could not be written.", "", (double)atomic_load(&v->lost_lines));
    api_reply_metrics(r, &w);
}

typedef void write_name(const router *v, int which, const char *name, int64_t created, jw *w);

/* Of all names of a model, then those of its adapters (created: 0 for the model's own). */
static void write_names(const router *v, int which, write_name *write, jw *w)
{
    loras_card c;
    for (char **name = v->cat.m[which].names; *name; name++)
        write(v, which, *name, 0, w);
    for (int i = 0; loras_get(v->loras, which, i, &c); i++)
        write(v, which, c.name, c.created, w);
}

static void write_card(const router *v, int which, const char *name, int64_t created, jw *w)
{
    fleet_write_card(v->f, which, name, created, false, w);
}

static void write_anthropic(const router *v, int which, const char *name, int64_t created, jw *w)
{
    fleet_write_card(v->f, which, name, created, true, w);
}

/* The last of all names. c: has it where it is an adapter's. */
static const char *last_name(const router *v, loras_card *c)
{
    const int last = v->cat.n - 1;
    const char *name = NULL;
    for (char **own = v->cat.m[last].names; *own; own++)
        name = *own;
    for (int i = 0; loras_get(v->loras, last, i, c); i++)
        name = c->name;
    return name;
}

static void get_models(void *app, http_req *r)
{
    router *v = app;
    const bool anthropic = api_asks_anthropic(r);
    loras_card c;
    jw w = { 0 };
    jw_open(&w, '{');
    if (!anthropic) jw_put_cstr(&w, "object", "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    for (int i = 0; i < v->cat.n; i++)
        write_names(v, i, anthropic ? write_anthropic : write_card, &w);
    jw_close(&w, ']');
    if (anthropic) api_anthropic_page(&w, v->cat.m[0].names[0], last_name(v, &c));
    jw_close(&w, '}');
    reply(r, 200, &w);
}

static void get_model(void *app, http_req *r)
{
    router *v = app;
    const char *name = http_rest(r);
    const bool anthropic = api_asks_anthropic(r);
    jw w = { 0 };
    loras_card c = { .created = 0 };
    const int i = find_exactly(v, name);
    if (i < 0) {
        no_model(r, name);
        return;
    }
    for (int k = 0; cat_find(&v->cat, name) < 0 && loras_get(v->loras, i, k, &c); k++)
        if (strcmp(c.name, name) == 0) break;
    fleet_write_card(v->f, i, name, c.created, anthropic, &w);
    reply(r, 200, &w);
}

static void write_ollama(const router *v, int which, const char *name, bool running,
                         const char *parent, jw *w)
{
    jw_open(w, '{');
    jw_put_cstr(w, "name", name);
    jw_put_cstr(w, "model", name);
    jw_put_i64(w, "size", (int64_t)fleet_bytes(v->f, which));
    jw_put_cstr(w, "digest", API_NO_DIGEST);
    jw_put_cstr(w, running ? "expires_at" : "modified_at",
                running ? "9999-12-31T23:59:59Z" : "1970-01-01T00:00:00Z");
    jw_key(w, "details");
    jw_open(w, '{');
    jw_put_cstr(w, "parent_model", parent);
    jw_put_cstr(w, "format", "llmq");
    jw_put_cstr(w, "family", "llmq");
    jw_key(w, "families");
    jw_json(w, "[\"llmq\"]", 8);
    jw_put_cstr(w, "parameter_size", "");
    jw_put_cstr(w, "quantization_level", "");
    jw_close(w, '}');
    jw_close(w, '}');
}

static const char *parent_of(const router *v, int which, int64_t created)
{
    return created ? v->cat.m[which].names[0] : "";
}

static void write_tag(const router *v, int which, const char *name, int64_t created, jw *w)
{
    write_ollama(v, which, name, false, parent_of(v, which, created), w);
}

static void write_running(const router *v, int which, const char *name, int64_t created, jw *w)
{
    write_ollama(v, which, name, true, parent_of(v, which, created), w);
}

static void reply_ollama(router *v, http_req *r, bool running)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "models");
    jw_open(&w, '[');
    for (int i = 0; i < v->cat.n; i++)
        if (!running || fleet_state_of(v->f, i) == FLEET_READY)
            write_names(v, i, running ? write_running : write_tag, &w);
    jw_close(&w, ']');
    jw_close(&w, '}');
    reply(r, 200, &w);
}

static void get_tags(void *app, http_req *r) { reply_ollama(app, r, false); }
static void get_ps(void *app, http_req *r) { reply_ollama(app, r, true); }

/* ---- an administrator's ---- */

static void reply_success(http_req *r) { http_reply(r, 200, "{\"success\":true}", 16, NULL); }

static int named_model(router *v, http_req *r)
{
    char *name;
    if (!read_name(r, &name)) return -1;
    const int i = name ? find(v, name) : -1;
    if (!name)
        http_error(r, 400, "model", NULL, "model: expected the name of a model, found nothing");
    else if (i < 0)
        no_model(r, name);
    free(name);
    return i;
}

static void loaded(void *user, int status, const char *code, const char *why)
{
    job *j = user;
    if (status)
        http_error(j->r, status, "model", code, "%s", why);
    else
        reply_success(j->r);
    job_end(j, !status);
}

/* Answered when the model is loaded. */
static void post_load(void *app, http_req *r)
{
    router *v = app;
    if (!is_up(v, r)) return;
    const int which = named_model(v, r);
    job *j = which < 0 ? NULL : new_job(v, r, which, "POST");
    if (j) fleet_ask(v->f, which, loaded, j);
}

static void post_unload(void *app, http_req *r)
{
    router *v = app;
    const int which = named_model(v, r);
    if (which < 0) return;
    fleet_unload(v->f, which);
    reply_success(r);
}

/* ---- adapters, which an administrator loads and unloads ---- */

static void reply_failed(http_req *r, lq_status s, const char *param, const lq_err *err)
{
    http_error(r, s == LQ_EBUSY || s == LQ_ENOMEM ? 503 : 400, param,
               s == LQ_EBUSY ? "overloaded" : "invalid_value", "%s", err->msg);
}

static void free_body(adapter_body *b)
{
    free(b->name);
    free(b->path);
    free(b->model);
}

/* The strings of such a body. False: it is wrong, and answered. */
static bool read_adapter(http_req *r, bool with_path, adapter_body *b)
{
    size_t n, tree = 0;
    const char *text = http_body(r, &n), *v[3] = { NULL };
    cJSON *doc = NULL;
    lq_err err = { "it is empty" };
    *b = (adapter_body){ NULL };
    lq_status s = n ? js_measure(&tree, text, n, &err) : LQ_EFORMAT;
    if (!s) s = js_parse(&doc, text, n, n, JS_UNIQUE, &err);
    if (!s) s = js_str(doc, "lora_name", true, &v[0], &err);
    if (!s) s = js_str(doc, "lora_path", with_path, &v[1], &err);
    if (!s) s = js_str(doc, "model", false, &v[2], &err);
    if (!s)
        *b = (adapter_body){ strdup(v[0]), v[1] ? strdup(v[1]) : NULL, v[2] ? strdup(v[2]) : NULL };
    cJSON_Delete(doc);
    if (!s && (!b->name || (v[1] && !b->path) || (v[2] && !b->model)))
        s = lq_fail(&err, LQ_ENOMEM, "out of memory");
    if (!s) return true;
    reply_failed(r, s, NULL, &err);
    free_body(b);
    return false;
}

/* The model that an adapter is to be loaded for: the one that is named, the one that has it already, or the only one
 * that it can be. -1: answered. */
static int model_of_adapter(const router *v, http_req *r, const adapter_body *b)
{
    int n, i = b->model ? find(v, b->model) : loras_find(v->loras, b->name);
    if (i < 0 && b->model) no_model(r, b->model);
    if (i >= 0 || b->model) return i;
    i = fleet_latest(v->f, &n);
    if (v->cat.n == 1) return 0;
    if (n == 1) return i;
    http_error(r, 400, "model", "missing_required_parameter",
               "model: expected the name of the model that the adapter is for, found nothing, and "
               "%d models are loaded",
               n);
    return -1;
}

static void adapter_loaded(job *j, int status)
{
    loras_loaded(j->v->loras, j->adapter, status == 200 ? j->adapter_path : NULL);
}

static void post_load_adapter(void *app, http_req *r)
{
    router *v = app;
    adapter_body b;
    lq_err err;
    if (!is_up(v, r) || !read_adapter(r, true, &b)) return;
    const int which = model_of_adapter(v, r, &b);
    lq_status s = LQ_OK;
    if (which >= 0 && cat_find(&v->cat, b.name) >= 0)
        s = lq_fail(&err, LQ_EUSAGE, "lora_name: '%.200s' is a model's own name", b.name);
    if (which >= 0 && !s) s = loras_claim(v->loras, b.name, which, &err);
    if (s) reply_failed(r, s, "lora_name", &err);
    job *j = which < 0 || s ? NULL : new_job_for(v, r, which, "POST", &b, adapter_loaded);
    if (which >= 0 && !s && !j) loras_loaded(v->loras, b.name, NULL);
    free_body(&b);
    if (j) fleet_ask(v->f, which, job_ready, j);
}

static void adapter_unloaded(job *j, int status)
{
    if (status == 200) loras_remove(j->v->loras, j->adapter);
}

/* Of a model that is not in memory it is only forgotten: its next server will not have it. */
static void forget_adapter(router *v, http_req *r, const char *name)
{
    lq_buf b = { 0 };
    loras_remove(v->loras, name);
    lq_buf_printf(&b, "Success: LoRA adapter '%s' removed successfully.", name);
    if (b.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, 200, b.p, b.n, &(http_extra){ .type = "text/plain; charset=utf-8" });
    lq_buf_free(&b);
}

static void post_unload_adapter(void *app, http_req *r)
{
    router *v = app;
    adapter_body b;
    if (!is_up(v, r) || !read_adapter(r, false, &b)) return;
    const int which = loras_find(v->loras, b.name), named = b.model ? find(v, b.model) : which;
    if (which < 0 || named != which) {
        http_error(r, 404, NULL, "adapter_not_found", "the adapter '%.200s' cannot be found%s",
                   b.name, which < 0 ? "" : " in that model");
        free_body(&b);
        return;
    }
    const fleet_state state = fleet_state_of(v->f, which);
    if (state == FLEET_READY || state == FLEET_STARTING) {
        job *j = new_job_for(v, r, which, "POST", &b, adapter_unloaded);
        if (j) fleet_ask(v->f, which, job_ready, j);
    } else {
        forget_adapter(v, r, b.name);
    }
    free_body(&b);
}

/* Asks the models that run, one after another; the first answer of 200 is added to `answer`. */
static bool end_request(router *v, const char *path, lq_buf *answer)
{
    char socket[128];
    bool found = false;
    for (int i = 0; i < v->cat.n; i++) {
        int status;
        lq_buf body = { 0 };
        if (!fleet_hold(v->f, i)) continue;
        fleet_socket(v->f, i, socket, sizeof socket);
        relay_ask(socket, "DELETE", path, NULL, 5, &status, &body);
        fleet_release(v->f, i, false);
        if (status == 200 && !found) lq_buf_add(answer, body.p, body.n);
        found |= status == 200;
        lq_buf_free(&body);
    }
    return found;
}

/* Of whichever model it is. */
static void delete_request(void *app, http_req *r)
{
    lq_buf answer = { 0 };
    if (end_request(app, http_path(r), &answer))
        http_reply(r, 200, answer.p, answer.n, NULL);
    else
        http_error(r, 404, NULL, NULL, "no request of this id runs");
    lq_buf_free(&answer);
}

/* ---- files, batches and kept responses, which are the whole server's ---- */

#define OF_FILES(name) \
    static void name(void *app, http_req *r) { api_##name(((router *)app)->files, r); }
OF_FILES(post_file)
OF_FILES(get_files)
OF_FILES(get_file)
OF_FILES(delete_file)
OF_FILES(post_batch)
OF_FILES(get_batches)
OF_FILES(get_batch)
OF_FILES(post_batch_cancel)
OF_FILES(post_messages_batch)
OF_FILES(get_messages_batches)
OF_FILES(get_messages_batch)
OF_FILES(post_messages_batch_cancel)
OF_FILES(delete_messages_batch)
OF_FILES(get_response)

/* What is kept of a response that is made in the background says its end; then the model that makes it hears. */
static void stop_response(void *app, http_req *r, void (*tell)(void *files, http_req *r))
{
    router *v = app;
    char path[160];
    lq_buf none = { 0 };
    const char *id = http_rest(r);
    const int n = (int)strcspn(id, "/");
    snprintf(path, sizeof path, "/v1/requests/%.*s", n < 100 ? n : 0, id);
    const bool runs = n < 100 && strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_") >= (size_t)n &&
                      api_response_runs(v->files, path + strlen("/v1/requests/"));
    tell(v->files, r);
    if (runs) end_request(v, path, &none);
    lq_buf_free(&none);
}
static void delete_response(void *app, http_req *r) { stop_response(app, r, api_delete_response); }
static void post_response(void *app, http_req *r) { stop_response(app, r, api_post_response); }

static bool serves(void *app, const char *name) { return find(app, name) >= 0; }
static void change_model(void *app, http_req *r) { api_ollama_change(app, r, serves); }

/* ---- the table ---- */

/* Routes of one model that are answered otherwise here. */
static const struct {
    const char *method, *path;
    void (*handle)(void *app, http_req *r);
} ours[] = {
    { "GET", "/", get_root },
    { "GET", "/health", get_health },
    { "GET", "/ready", get_ready },
    { "GET", "/version", get_version },
    { "GET", "/api/version", get_ollama_version },
    { "GET", "/metrics", get_metrics },
    { "GET", "/load", get_load },
    { "GET", "/v1/models", get_models },
    { "GET", "/v1/models/*", get_model },
    { "GET", "/api/tags", get_tags },
    { "GET", "/api/ps", get_ps },
    { "GET", "/v1/responses/*", get_response },
    { "POST", "/v1/responses/*", post_response },
    { "DELETE", "/v1/responses/*", delete_response },
    { "POST", "/v1/files", post_file },
    { "GET", "/v1/files", get_files },
    { "GET", "/v1/files/*", get_file },
    { "DELETE", "/v1/files/*", delete_file },
    { "POST", "/v1/batches", post_batch },
    { "GET", "/v1/batches", get_batches },
    { "GET", "/v1/batches/*", get_batch },
    { "POST", "/v1/batches/*", post_batch_cancel },
    { "POST", "/api/copy", change_model },
    { "POST", "/api/create", change_model },
    { "POST", "/api/push", change_model },
    { "DELETE", "/api/delete", change_model },
    { "GET", "/api/blobs/*", api_get_ollama_blob },
    { "POST", "/api/blobs/*", change_model },
    { "POST", "/v1/messages/batches", post_messages_batch },
    { "GET", "/v1/messages/batches", get_messages_batches },
    { "GET", "/v1/messages/batches/*", get_messages_batch },
    { "POST", "/v1/messages/batches/*", post_messages_batch_cancel },
    { "DELETE", "/v1/messages/batches/*", delete_messages_batch },
    { "POST", "/v1/load_lora_adapter", post_load_adapter },
    { "POST", "/v1/unload_lora_adapter", post_unload_adapter },
    { "DELETE", "/v1/requests/*", delete_request },
};

static const http_route more[] = {
    { "POST", "/v1/models/load", post_load, HTTP_ADMIN, "load a model, and answer when it is",
      NULL },
    { "POST", "/v1/models/unload", post_unload, HTTP_ADMIN,
      "unload a model when what runs has ended", NULL },
};

/* The page and its files are the same; a GET wants a model that is loaded, a POST loads it. */
static void adapt(http_route *t)
{
    if (strcmp(t->path, "/page/*") == 0 || (strcmp(t->path, "/") == 0 && t->need == HTTP_NOBODY))
        return;
    t->handle = strcmp(t->method, "POST") == 0 ? post_on : get_on;
    for (size_t i = 0; i < LQ_COUNT(ours); i++)
        if (strcmp(ours[i].method, t->method) == 0 && strcmp(ours[i].path, t->path) == 0)
            t->handle = ours[i].handle;
}

lq_status router_routes(router *v, bool page, lq_err *err)
{
    size_t n;
    const http_route *all = api_routes(page, &n);
    v->routes = calloc(n + LQ_COUNT(more), sizeof *v->routes);
    if (!v->routes) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        v->routes[v->n_routes] = all[i];
        adapt(&v->routes[v->n_routes++]);
    }
    for (size_t i = 0; i < LQ_COUNT(more); i++)
        v->routes[v->n_routes++] = more[i];
    return LQ_OK;
}
