/* runtime/api/api_ollama_template.c - a prompt by the template of an Ollama request (runtime/chat/tmpl_go.h). */
#include "runtime/api/api_ollama.h"

#include "runtime/chat/tmpl.h"
#include "runtime/chat/tmpl_go.h"

#include <stdlib.h>

static void add_message(cJSON *list, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    api_put_str(m, "Role", role);
    api_put_str(m, "Content", content);
    if (!cJSON_AddItemToArray(list, m)) cJSON_Delete(m);
}

/* Strings are borrowed; js_ran_out tells. */
static cJSON *variables(const char *system, const char *prompt)
{
    cJSON *o = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(o, "Messages");
    api_put_str(o, "System", system);
    api_put_str(o, "Prompt", prompt);
    api_put_str(o, "Suffix", "");
    api_put_str(o, "Response", "");
    if (*system) add_message(messages, "system", system);
    add_message(messages, "user", prompt);
    return o;
}

static lq_status parse(tmpl_template **t, const char *text, lq_err *err)
{
    lq_buf jinja = { 0 };
    *t = NULL;
    lq_status s = tmpl_from_go(&jinja, text, err);
    if (!s) s = tmpl_parse(t, jinja.p ? jinja.p : "", jinja.n, err);
    lq_buf_free(&jinja);
    return s;
}

/* Its own text may spell special tokens, that of the request is text. */
static lq_status render(const api *a, api_prompt *p, const char *template, const char *system,
                        const char *prompt, api_error *e)
{
    tmpl_template *t;
    lq_err err = { "" };
    char *text = NULL;
    uint8_t *own = NULL;
    size_t n = 0;
    cJSON *vars = variables(system, prompt);
    lq_status s = parse(&t, template, &err);
    if (!s) s = tmpl_render_own(t, vars, &text, &own, &n, &err);
    if (s == LQ_ENOMEM)
        api_no_memory(e);
    else if (s)
        api_fail(e, "template", "invalid_value", "%s", err.msg);
    else if (n > api_most_bytes(a))
        s = api_fail(e, "prompt", "context_length_exceeded",
                     "this model's maximum context length is %lld tokens: prompt has %zu bytes, "
                     "more than they can hold",
                     (long long)a->m.max_len, n);
    else if ((s = tok_encode_own(a->m.tok, text, own, n, &p->ids, &p->n, &err)))
        api_no_memory(e);
    cJSON_Delete(vars);
    tmpl_free(t);
    free(text);
    free(own);
    return s;
}

/* What the tokenizer puts before a text, unless the template has spelled it. */
static lq_status begin(const api *a, api_prompt *p, api_error *e)
{
    int32_t *all;
    size_t n;
    if (p->n && a->m.bos >= 0 && p->ids[0] == a->m.bos) return LQ_OK;
    if (tok_add_special(a->m.tok, p->ids, p->n, &all, &n, NULL)) return api_no_memory(e);
    free(p->ids);
    *p = (api_prompt){ .ids = all, .n = n };
    return LQ_OK;
}

static const char *text_of(const api_body *b, const char *name)
{
    const char *text = cJSON_GetStringValue(js_get(b->from, name));
    return text ? text : "";
}

lq_status api_ollama_by_template(api_body *b)
{
    const cJSON *context = js_get(b->from, "context");
    api_prompt p = { 0 };
    int32_t *before = NULL;
    int n = 0, most = b->a->m.max_len < INT32_MAX ? (int)b->a->m.max_len : INT32_MAX;
    if (!b->a->m.tok)
        return api_fail(b->e, "prompt", "unsupported_value", "prompt: the model has no tokenizer");
    lq_status s =
        render(b->a, &p, text_of(b, "template"), text_of(b, "system"), text_of(b, "prompt"), b->e);
    if (!s && context && context->child)
        s = api_read_ids(&before, &n, context, "context", b->a->m.vocab, most, b->e);
    else if (!s)
        s = begin(b->a, &p, b->e);
    cJSON *ids = s ? NULL : cJSON_AddArrayToObject(b->to, "prompt");
    for (size_t i = 0; ids && i < (size_t)n + p.n; i++)
        cJSON_AddItemToArray(ids,
                             cJSON_CreateNumber(i < (size_t)n ? before[i] : p.ids[i - (size_t)n]));
    free(before);
    free(p.ids);
    return s;
}
