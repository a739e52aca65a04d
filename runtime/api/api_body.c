/* runtime/api/api_body.c - see api_body.h. */
#include "runtime/api/api_body.h"

#include <stdio.h>

bool api_is(const cJSON *v, const char *text)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, text) == 0;
}

cJSON *api_ref(const cJSON *v)
{
    if (cJSON_IsString(v)) return cJSON_CreateStringReference(v->valuestring);
    if (cJSON_IsObject(v)) return cJSON_CreateObjectReference(v->child);
    if (cJSON_IsArray(v)) return cJSON_CreateArrayReference(v->child);
    return cJSON_Duplicate(v, false);
}

void api_put(cJSON *o, const char *key, cJSON *v)
{
    if (!cJSON_AddItemToObject(o, key, v)) cJSON_Delete(v);
}

void api_put_str(cJSON *o, const char *key, const char *s)
{
    api_put(o, key, cJSON_CreateStringReference(s));
}

static cJSON *append(cJSON *list)
{
    cJSON *o = cJSON_CreateObject();
    if (cJSON_AddItemToArray(list, o)) return o;
    cJSON_Delete(o);
    return NULL;
}

cJSON *api_add_message(api_body *b, const char *role)
{
    cJSON *m = append(b->messages);
    api_put_str(m, "role", role);
    return m;
}

cJSON *api_turn(api_body *b, const char *role)
{
    cJSON *last = b->messages && b->messages->child ? b->messages->child->prev : NULL;
    return last && api_is(js_get(last, "role"), role) ? last : api_add_message(b, role);
}

/* The list of that name, which is there from now on. */
static cJSON *list_of(cJSON *o, const char *key)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(o, key);
    return list ? list : cJSON_AddArrayToObject(o, key);
}

void api_add_text(cJSON *message, const char *text)
{
    cJSON *part = append(list_of(message, "content"));
    api_put_str(part, "type", "text");
    api_put_str(part, "text", text);
}

cJSON *api_add_call(cJSON *message, const char *id, const char *name, const cJSON *arguments)
{
    cJSON *call = append(list_of(message, "tool_calls"));
    if (id) api_put_str(call, "id", id);
    api_put_str(call, "type", "function");
    cJSON *f = cJSON_AddObjectToObject(call, "function");
    api_put_str(f, "name", name);
    if (arguments) api_put(f, "arguments", api_ref(arguments));
    return f;
}

cJSON *api_add_tool(api_body *b, const cJSON *name, const cJSON *description,
                    const cJSON *parameters, const cJSON *strict)
{
    cJSON *tool = append(list_of(b->to, "tools"));
    api_put_str(tool, "type", "function");
    cJSON *f = cJSON_AddObjectToObject(tool, "function");
    if (name) api_put(f, "name", api_ref(name));
    if (description) api_put(f, "description", api_ref(description));
    if (parameters) api_put(f, "parameters", api_ref(parameters));
    if (strict) api_put(f, "strict", api_ref(strict));
    return f;
}

cJSON *api_add_custom_tool(api_body *b, const cJSON *tool)
{
    cJSON *t = append(list_of(b->to, "tools"));
    api_put_str(t, "type", "custom");
    cJSON *f = cJSON_AddObjectToObject(t, "custom");
    for (const cJSON *v = tool ? tool->child : NULL; v; v = v->next)
        api_put(f, v->string, api_ref(v));
    return f;
}

void api_put_variable(api_body *b, const char *name, cJSON *v)
{
    static const char key[] = "chat_template_kwargs";
    cJSON *o = cJSON_GetObjectItemCaseSensitive(b->to, key);
    api_put(o ? o : cJSON_AddObjectToObject(b->to, key), name, v);
}

lq_status api_body_variables(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsObject(v)) return api_body_wrong(b, name, name, "an object", v);
    for (const cJSON *c = v->child; c; c = c->next)
        api_put_variable(b, c->string, api_ref(c));
    return LQ_OK;
}

lq_status api_body_refuse(api_body *b, const char *name, const cJSON *v)
{
    (void)v;
    return api_fail(b->e, name, "unsupported_parameter", "%s is not supported", name);
}

lq_status api_body_wrong(api_body *b, const char *name, const char *where, const char *expected,
                         const cJSON *v)
{
    char found[64];
    return api_fail(b->e, name, "invalid_value", "%s: expected %s, found %s", where, expected,
                    js_describe(found, v));
}

static const api_field *find(const api_field *fields, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

lq_status api_body_field(api_body *b, const api_field *fields, size_t n, const cJSON *v)
{
    const api_field *f = find(fields, n, v->string);
    if (cJSON_IsNull(v)) return LQ_OK;
    if (f && f->read) return f->read(b, f->name, v);
    if (!f || f->ours) api_put(b->to, f ? f->ours : v->string, api_ref(v));
    return LQ_OK;
}

static lq_status translate(api_body *b, const api_dialect *d)
{
    lq_status s = LQ_OK;
    b->to = cJSON_CreateObject();
    b->messages = cJSON_AddArrayToObject(b->to, "messages");
    for (const cJSON *v = b->from->child; v && !s; v = v->next)
        s = api_body_field(b, d->fields, d->n, v);
    if (!s && d->finish) s = d->finish(b);
    if (js_ran_out()) s = api_no_memory(b->e);
    return s;
}

lq_status api_body_translate(api *a, const api_dialect *d, api_request *q, api_error *e)
{
    api_body b = { .a = a, .from = q->doc, .e = e };
    lq_status s = d->begin ? d->begin(a, q->doc, e) : LQ_OK;
    if (!s) s = translate(&b, d);
    q->body = q->doc;
    q->doc = b.to;
    q->past = b.past;
    return s;
}

void api_body_error(const api_dialect *d, api_error *e)
{
    for (size_t i = 0; i < d->n; i++) {
        const api_field *f = &d->fields[i];
        const size_t n = f->ours ? strlen(f->ours) : 0;
        if (!n || strcmp(e->param, f->ours) != 0) continue;
        snprintf(e->param, sizeof e->param, "%s", f->name);
        if (strncmp(e->err.msg, f->ours, n) != 0) return;
        const lq_err old = e->err;
        snprintf(e->err.msg, sizeof e->err.msg, "%s%s", f->name, old.msg + n);
        return;
    }
}
