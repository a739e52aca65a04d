/* runtime/api_completions.c - POST /v1/completions: a prompt as text, ids, or a list of either. */
#include "runtime/api_int.h"

#include <stdlib.h>

enum { MAX_PROMPTS = 1024 };

static lq_status bad_prompt(api_error *e, const cJSON *v)
{
    char found[64];
    return api_fail(e, "prompt", "invalid_value",
                    "prompt: expected a string, an array of strings, an array of token ids or an "
                    "array of such arrays, found %s",
                    js_describe(found, v));
}

static lq_status read_one(const api *a, api_prompt *out, const cJSON *v, const api_params *p,
                          api_error *e)
{
    if (cJSON_IsString(v)) return api_encode(a, out, v->valuestring, p->add_special, "prompt", e);
    int n = 0, max = p->truncate || a->m.max_len > INT32_MAX ? INT32_MAX : (int)a->m.max_len;
    if (!v->child || !cJSON_IsNumber(v->child)) return bad_prompt(e, v->child ? v->child : v);
    int64_t count = 0;
    for (const cJSON *c = v->child; c; c = c->next)
        count++;
    if (count > max)
        return api_fail(e, "prompt", "context_length_exceeded",
                        "the context length is %lld tokens: the prompt has %lld",
                        (long long)a->m.max_len, (long long)count);
    lq_status s = api_read_ids(&out->ids, &n, v, "prompt", a->m.vocab, max, e);
    out->n = (size_t)n;
    return s;
}

/* Prompts of the request; *out is malloc'd, also after an error. */
static lq_status read_prompts(const api *a, api_prompt **out, size_t *n, const cJSON *v,
                              const api_params *p, api_error *e)
{
    if (!v) return api_fail(e, "prompt", "missing_required_parameter", "prompt: it is required");
    bool list = cJSON_IsArray(v) && (cJSON_IsString(v->child) || cJSON_IsArray(v->child));
    if (!list && !cJSON_IsString(v) && !cJSON_IsArray(v)) return bad_prompt(e, v);
    size_t count = 0;
    const cJSON *c = list ? v->child : v;
    for (const cJSON *i = v->child; list && i; i = i->next)
        if (++count > MAX_PROMPTS)
            return api_fail(e, "prompt", "invalid_value", "prompt: at most %d prompts a request",
                            MAX_PROMPTS);
    *out = calloc(count ? count : 1, sizeof **out);
    if (!*out) {
        api_fail(e, NULL, NULL, "out of memory");
        e->status = 503;
        return LQ_ENOMEM;
    }
    for (; c; c = list ? c->next : NULL) {
        if (list && c->type != v->child->type) return bad_prompt(e, c);
        lq_status s = read_one(a, &(*out)[(*n)++], c, p, e);
        if (s) return s;
    }
    return LQ_OK;
}

void api_post_completions(void *app, http_req *r)
{
    api *a = app;
    api_params p;
    api_error e = { 0 };
    api_prompt *prompts = NULL;
    size_t n = 0, n_text;
    if (!api_ready(a, r)) return;
    cJSON *doc = api_parse(a, r);
    if (!doc) return;
    const char *text = http_body(r, &n_text);
    lq_status s = api_params_read(&p, doc, text, n_text, API_COMPLETIONS, &a->m.defaults,
                                  a->m.vocab, a->o.strict_params, &e);
    met_add(a->met, MET_IGNORED_PARAMS, (uint64_t)p.n_ignored);
    if (!s && !api_serves(a, p.model)) s = api_no_model(&e, p.model);
    if (!s) s = read_prompts(a, &prompts, &n, js_get(doc, "prompt"), &p, &e);
    if (!s) {
        api_generate(a, r, API_COMPLETIONS, &p, prompts, n, doc);
        return;
    }
    api_reply_error(a, r, &e);
    for (size_t i = 0; i < n; i++)
        free(prompts[i].ids);
    free(prompts);
    api_params_free(&p);
    cJSON_Delete(doc);
}
