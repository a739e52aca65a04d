/* runtime/api/api_parts.c - chat answers with parts: tools as a request offers them, and the calls and
 * thoughts that runtime/chat/chat_out.h finds in the text, as JSON. */
#include "runtime/api/api_gen_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- tools, tool_choice ---- */

static bool good_name(const cJSON *v)
{
    const char *s = cJSON_GetStringValue(v);
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= API_MAX_TOOL_NAME &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static const cJSON *tool_name(const cJSON *tool)
{
    return js_get(js_get(tool, "function"), "name");
}

/* The tool of that name, or NULL. */
static const cJSON *find_tool(const cJSON *tools, const char *name, size_t n)
{
    for (const cJSON *t = tools ? tools->child : NULL; t; t = t->next) {
        const char *s = cJSON_GetStringValue(tool_name(t));
        if (s && strlen(s) == n && memcmp(s, name, n) == 0) return t;
    }
    return NULL;
}

static lq_status bad_tool(api_error *e, int i, const char *expected, const cJSON *v)
{
    char found[64];
    return api_fail(e, "tools", "invalid_value", "tools[%d]: expected %s, found %s", i, expected,
                    js_describe(found, v));
}

static bool is_object_type(const cJSON *type)
{
    const char *s = cJSON_GetStringValue(type);
    return s && strcmp(s, "object") == 0;
}

static lq_status check_tool(const cJSON *tools, const cJSON *t, int i, api_error *e)
{
    const cJSON *type = js_get(t, "type"), *f = js_get(t, "function");
    const cJSON *text = js_get(f, "description"), *parameters = js_get(f, "parameters");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0)
        return bad_tool(e, i, "type \"function\"", type);
    if (!cJSON_IsObject(f)) return bad_tool(e, i, "an object \"function\"", f);
    if (!good_name(tool_name(t)))
        return bad_tool(e, i, "a name of 1..64 letters, digits, '_', '-' or '.'", tool_name(t));
    if (text && !cJSON_IsString(text))
        return bad_tool(e, i, "a description that is a string", text);
    if (parameters && !cJSON_IsObject(parameters))
        return bad_tool(e, i, "parameters that are an object", parameters);
    if (js_get(parameters, "type") && !is_object_type(js_get(parameters, "type")))
        return bad_tool(e, i, "parameters of type \"object\"", js_get(parameters, "type"));
    for (const cJSON *o = tools->child; o != t; o = o->next)
        if (strcmp(tool_name(o)->valuestring, tool_name(t)->valuestring) == 0)
            return bad_tool(e, i, "a name that comes once", tool_name(t));
    return LQ_OK;
}

lq_status api_read_tools(api_params *p, const cJSON *v, api_error *e)
{
    int i = 0;
    if (!cJSON_IsArray(v)) return api_wrong(e, "tools", "an array of tools", v);
    for (const cJSON *t = v->child; t; t = t->next, i++) {
        if (i == API_MAX_TOOLS)
            return api_fail(e, "tools", "invalid_value", "tools: expected at most %d",
                            API_MAX_TOOLS);
        lq_status s = check_tool(v, t, i, e);
        if (s) return s;
    }
    p->tools = v->child ? v : NULL;
    return LQ_OK;
}

/* The answer must be calls, of `name`, or (NULL) of any tool: gen_plan_calls makes the grammar. */
static lq_status demand_call(api_params *p, const char *name, api_error *e)
{
    if (p->structured.param)
        return api_fail(e, "tool_choice", "invalid_value",
                        "tool_choice: %s is given too, and an answer has one structure only",
                        p->structured.param);
    p->must_call = true;
    p->only_tool = name;
    return LQ_OK;
}

static bool is_function(const cJSON *v)
{
    const char *type = cJSON_GetStringValue(js_get(v, "type"));
    return type && strcmp(type, "function") == 0 && cJSON_IsString(tool_name(v));
}

static lq_status no_tool(api_error *e, const char *name)
{
    return api_fail(e, "tool_choice", "invalid_value", "tool_choice: there is no tool \"%.64s\"",
                    name);
}

/* {"mode": "auto" or "required", "tools": [...]}: only those of p->tools are left, which keep their
 * order. */
static lq_status allow_tools(api_params *p, const cJSON *v, api_error *e)
{
    const char *mode = cJSON_GetStringValue(js_get(v, "mode"));
    const cJSON *list = js_get(v, "tools");
    bool required = mode && strcmp(mode, "required") == 0;
    if ((!required && !(mode && strcmp(mode, "auto") == 0)) || !cJSON_IsArray(list) || !list->child)
        return api_fail(e, "tool_choice", "invalid_value",
                        "tool_choice: expected allowed_tools {\"mode\": \"auto\" or \"required\", "
                        "\"tools\": [...]}");
    for (const cJSON *t = list->child; t; t = t->next) {
        if (!is_function(t)) return api_wrong(e, "tool_choice", "functions as allowed tools", t);
        const char *name = tool_name(t)->valuestring;
        if (!find_tool(p->tools, name, strlen(name))) return no_tool(e, name);
    }
    p->allowed_tools = cJSON_CreateArray();
    for (cJSON *t = p->tools->child; t; t = t->next) {
        const char *name = tool_name(t)->valuestring;
        if (find_tool(list, name, strlen(name)) &&
            !cJSON_AddItemReferenceToArray(p->allowed_tools, t))
            return api_no_memory(e);
    }
    if (!p->allowed_tools) return api_no_memory(e);
    p->tools = p->allowed_tools;
    return required ? demand_call(p, NULL, e) : LQ_OK;
}

lq_status api_check_tool_choice(api_params *p, const cJSON *v, api_error *e)
{
    const char *word = cJSON_GetStringValue(v), *name = cJSON_GetStringValue(tool_name(v));
    const char *type = cJSON_GetStringValue(js_get(v, "type"));
    if (!v || (word && strcmp(word, "auto") == 0)) return LQ_OK;
    if (word && strcmp(word, "none") == 0) {
        p->tools = NULL;
        return LQ_OK;
    }
    if (!p->tools)
        return api_fail(e, "tool_choice", "invalid_value",
                        "tool_choice: only allowed where there are tools");
    if (type && strcmp(type, "allowed_tools") == 0)
        return allow_tools(p, js_get(v, "allowed_tools"), e);
    bool named = is_function(v);
    if (named && !find_tool(p->tools, name, strlen(name))) return no_tool(e, name);
    if (named || (word && strcmp(word, "required") == 0))
        return demand_call(p, named ? name : NULL, e);
    return api_fail(
        e, "tool_choice", "invalid_value",
        "tool_choice: expected \"auto\", \"none\", \"required\", {\"type\": "
        "\"function\", \"function\": {\"name\": ...}} or {\"type\": \"allowed_tools\", ...}");
}

/* ---- the parts of an answer ---- */

static bool known(void *user, const char *name, size_t n)
{
    const gen_choice *c = user;
    return find_tool(c->g->p.tools, name, n) != NULL;
}

static void write_call(jw *w, const gen_choice *c, const char *name, size_t n)
{
    char id[96];
    snprintf(id, sizeof id, "call_%s%x-%x", c->g->answer.id + strlen("chatcmpl-"),
             (unsigned)c->index, (unsigned)c->calls.n);
    jw_key(w, "id");
    jw_cstr(w, id);
    jw_key(w, "type");
    jw_cstr(w, "function");
    jw_key(w, "function");
    jw_open(w, '{');
    jw_key(w, "name");
    jw_str(w, name, n);
    jw_key(w, "arguments");
}

void gen_end_call(gen_choice *c)
{
    if (!c->calls.open) return;
    jw_str(&c->calls.list, c->calls.args.p ? c->calls.args.p : "", c->calls.args.n);
    jw_close(&c->calls.list, '}');
    jw_close(&c->calls.list, '}');
    lq_buf_clear(&c->calls.args);
    c->calls.open = false;
}

/* An entry of the list begins: the call of that number, in a stream a part of it. */
static void begin_entry(gen_choice *c, int number)
{
    gen_end_call(c);
    c->calls.open = true;
    jw_open(&c->calls.list, '{');
    if (!c->g->p.stream) return;
    jw_key(&c->calls.list, "index");
    jw_i64(&c->calls.list, number);
}

static void take_call(gen_choice *c, const char *name, size_t n)
{
    begin_entry(c, c->calls.n);
    write_call(&c->calls.list, c, name, n);
    c->calls.n++;
}

static void take_args(gen_choice *c, const char *p, size_t n)
{
    if (!c->calls.open) { /* the call's beginning was in an earlier chunk */
        begin_entry(c, c->calls.n - 1);
        jw_key(&c->calls.list, "function");
        jw_open(&c->calls.list, '{');
        jw_key(&c->calls.list, "arguments");
    }
    lq_buf_add(&c->calls.args, p, n);
}

void gen_take_chat(gen_choice *c, chat_part part, const char *p, size_t n)
{
    switch (part) {
    case CHAT_CONTENT:
        lq_buf_add(&c->text, p, n);
        break;
    case CHAT_REASONING:
        if (c->g->p.include_reasoning) lq_buf_add(&c->reasoning, p, n);
        break;
    case CHAT_CALL:
        take_call(c, p, n);
        break;
    case CHAT_ARGUMENTS:
        take_args(c, p, n);
        break;
    }
}

static void sink(void *user, chat_part part, const char *p, size_t n)
{
    gen_choice *c = user;
    c->g->shape->take(c, part, p, n);
}

static const cJSON *parameters(void *user, const char *name, size_t n)
{
    const gen_choice *c = user;
    const cJSON *t = find_tool(c->g->p.tools, name, n);
    return js_get(js_get(t, "function"), "parameters");
}

lq_status gen_open_parts(gen_choice *c, lq_err *err)
{
    const gen *g = c->g;
    const chat_form *f = gen_form(g);
    if (!f) return LQ_OK;
    if (!g->p.tools && !f->think_open[0] && !f->content_open[0]) return LQ_OK;
    bool thinks =
        f->think_open[0] && (!g->p.structured.param || g->p.structured.spec.kind == GR_TREE);
    chat_out_opts o = { .form = f,
                        .calls = g->p.tools != NULL,
                        .one_call = !g->p.parallel_calls,
                        .thinks = thinks,
                        .thinking = thinks && gen_ends_thinking(g, &g->prompts.v[c->prompt]),
                        .known = known,
                        .parameters = parameters,
                        .sink = sink,
                        .user = c };
    return chat_out_open(&c->out, &o, err);
}

void gen_take_text(gen_choice *c, const char *text, size_t n, bool ends)
{
    lq_err err;
    if (!c->out) {
        c->g->shape->take(c, CHAT_CONTENT, text, n);
        return;
    }
    lq_status s = chat_out_push(c->out, text, n, &err);
    if (!s && ends) s = chat_out_end(c->out, &err);
    if (ends) gen_end_call(c);
    c->text.oom |= s != LQ_OK || c->calls.list.b.oom || c->calls.args.oom || c->reasoning.oom;
}

void gen_free_parts(gen_choice *c)
{
    chat_out_close(c->out);
    lq_buf_free(&c->reasoning);
    jw_free(&c->calls.list);
    lq_buf_free(&c->calls.args);
}
