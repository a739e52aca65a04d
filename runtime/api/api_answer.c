/* runtime/api/api_answer.c - what all routes begin and end with: is the model there, the body as
 * JSON, the answer. */
#include "runtime/api/api_int.h"

#include <stdlib.h>

void api_reply(http_req *r, int status, jw *w)
{
    if (w->b.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, status, w->b.p, w->b.n, NULL);
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

static cJSON *parse(http_req *r, size_t times)
{
    size_t n, tree = 0;
    const char *text = http_body(r, &n);
    cJSON *doc = NULL;
    lq_err err = { "" };
    lq_status s = n ? js_measure(&tree, text, n, &err) : lq_fail(&err, LQ_EFORMAT, "it is empty");
    if (!s && !http_claim(r, times * tree)) return NULL;
    if (!s) s = js_tree(&doc, text, n, JS_UNIQUE | JS_SPELLED, &err);
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

cJSON *api_parse(http_req *r) { return parse(r, 1); }
cJSON *api_parse_to_translate(http_req *r) { return parse(r, 2); }

void api_request_free(api_request *q)
{
    for (size_t i = 0; i < q->n; i++)
        free(q->prompts[i].ids);
    free(q->prompts);
    api_params_free(&q->p);
    cJSON_Delete(q->doc);
    cJSON_Delete(q->past);
    cJSON_Delete(q->body);
}

bool api_has_name(const api *a, const char *name)
{
    if (!name) return true;
    for (int i = 0; a->names[i]; i++)
        if (strcmp(a->names[i], name) == 0) return true;
    return false;
}

bool api_serves(const api *a, const char *name)
{
    if (api_has_name(a, name)) return true;
    return atomic_load(&a->has_model) && a->m.adapters && adapters_have(a->m.adapters, name);
}

lq_status api_no_model(api_error *e, const char *name)
{
    lq_status s =
        api_fail(e, "model", "model_not_found", "the model '%.200s' is not served here", name);
    e->status = 404;
    return s;
}
