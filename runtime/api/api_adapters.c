/* runtime/api/api_adapters.c - adapters by name: vLLM's routes to load and unload them, and what /metrics
 * tells of them. */
#include "runtime/api/api_int.h"

#include <stdio.h>
#include <stdlib.h>

adapters_card *api_adapters(const api *a, int *n)
{
    *n = 0;
    if (!atomic_load(&a->has_model) || !a->m.adapters) return NULL;
    adapters_card *cards = malloc(ADAPTERS_MOST * sizeof *cards);
    if (cards) *n = adapters_list(a->m.adapters, cards);
    return cards;
}

void api_write_adapters(const api *a, lq_buf *w)
{
    static const char name[] = "llmq:lora_requests_total";
    int n;
    double bytes = 0;
    adapters_card *cards = api_adapters(a, &n);
    for (int i = 0; i < n; i++)
        bytes += (double)cards[i].bytes;
    met_write_one(w, "gauge", "llmq:lora_loaded", "Adapters that requests may name.", a->labels.p,
                  n);
    met_write_one(w, "gauge", "llmq:lora_bytes", "Memory of their matrices.", a->labels.p, bytes);
    lq_buf_printf(w, "# HELP %s Requests by adapter.\n# TYPE %s counter\n", name, name);
    for (int i = 0; i < n; i++) {
        lq_buf_printf(w, "%s{%s,", name, a->labels.p);
        met_label(w, "lora_name", cards[i].name);
        lq_buf_printf(w, "} %llu\n", (unsigned long long)cards[i].requests);
    }
    free(cards);
}

/* ---- vLLM's routes ---- */

static void reply_text(http_req *r, const char *what, const char *name)
{
    lq_buf b = { 0 };
    lq_buf_printf(&b, "Success: LoRA adapter '%s' %s successfully.", name, what);
    if (b.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, 200, b.p, b.n, &(http_extra){ .type = "text/plain; charset=utf-8" });
    lq_buf_free(&b);
}

static void reply_failed(http_req *r, lq_status s, const lq_err *err)
{
    const bool busy = s == LQ_EBUSY || s == LQ_ENOMEM, gone = s == LQ_ENOENT;
    http_error(r,
               busy   ? 503
               : gone ? 404
                      : 400,
               NULL,
               busy   ? "overloaded"
               : gone ? "adapter_not_found"
                      : "invalid_value",
               "%s", err->msg);
}

/* A body's strings: LQ_EVALUE says which is missing. */
static lq_status read_body(const cJSON *doc, const char **name, const char **path, bool *inplace,
                           lq_err *err)
{
    lq_status s = js_str(doc, "lora_name", true, name, err);
    if (!s && path) s = js_str(doc, "lora_path", true, path, err);
    if (!s && path) s = js_bool(doc, "load_inplace", false, inplace, err);
    return s;
}

typedef struct {
    http_req *r;
    char *name;
} load_job;

static void free_job(void *user)
{
    load_job *j = user;
    free(j->name);
    free(j);
}

static void loaded(void *user, lq_status s, const lq_err *err)
{
    load_job *j = user;
    if (s)
        reply_failed(j->r, s, err);
    else
        reply_text(j->r, "added", j->name);
    http_release(j->r);
}

static void begin_load(api *a, http_req *r, const char *name, const char *path, bool inplace)
{
    lq_err err;
    load_job *j = calloc(1, sizeof *j);
    if (j) *j = (load_job){ r, strdup(name) };
    if (!j || !j->name) {
        if (j) free_job(j);
        http_error(r, 503, NULL, NULL, "out of memory");
        return;
    }
    http_keep(r, NULL, free_job, j);
    const lq_status s = adapters_load(a->m.adapters, name, path, inplace, loaded, j, &err);
    if (s) loaded(j, s, &err);
}

/* The body, where there may be adapters; NULL: the answer is given. */
static cJSON *begin(api *a, http_req *r)
{
    if (!api_ready(a, r)) return NULL;
    if (a->m.adapters) return api_parse(r);
    http_error(r, 400, NULL, "unsupported_value",
               "this server was started without --lora and --lora-dir");
    return NULL;
}

void api_post_load_adapter(void *app, http_req *r)
{
    api *a = app;
    const char *name, *path;
    bool inplace = false;
    lq_err err;
    cJSON *doc = begin(a, r);
    if (!doc) return;
    lq_status s = read_body(doc, &name, &path, &inplace, &err);
    if (!s && api_has_name(a, name))
        s = lq_fail(&err, LQ_EUSAGE, "lora_name: '%.200s' is the model's own name", name);
    if (s)
        reply_failed(r, s, &err);
    else
        begin_load(a, r, name, path, inplace);
    cJSON_Delete(doc);
}

void api_post_unload_adapter(void *app, http_req *r)
{
    api *a = app;
    const char *name;
    lq_err err;
    cJSON *doc = begin(a, r);
    if (!doc) return;
    lq_status s = read_body(doc, &name, NULL, NULL, &err);
    if (!s) s = adapters_unload(a->m.adapters, name, &err);
    if (s)
        reply_failed(r, s, &err);
    else
        reply_text(r, "removed", name);
    cJSON_Delete(doc);
}
