/* runtime/api/api_tools.c - tools as a chat offers them: functions, custom tools, and the functions of the time
 * before tools. */
#include "runtime/api/api_body.h"
#include "runtime/api/api_int.h"

#include <stdio.h>

static bool good_name(const cJSON *v)
{
    const char *s = cJSON_GetStringValue(v);
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= API_MAX_TOOL_NAME &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static bool is_custom(const cJSON *tool)
{
    const char *type = cJSON_GetStringValue(js_get(tool, "type"));
    return type && strcmp(type, "custom") == 0;
}

/* In a chat's shape, or beside the type, as in a response's. */
static const cJSON *tool_name(const cJSON *tool)
{
    const cJSON *f = js_get(tool, is_custom(tool) ? "custom" : "function");
    return js_get(f ? f : tool, "name");
}

const cJSON *api_find_tool(const cJSON *tools, const char *name, size_t n)
{
    for (const cJSON *t = tools ? tools->child : NULL; t; t = t->next) {
        const char *s = cJSON_GetStringValue(tool_name(t));
        if (s && strlen(s) == n && memcmp(s, name, n) == 0) return t;
    }
    return NULL;
}

bool api_is_custom(const api_params *p, const char *name, size_t n)
{
    return p->made_tools && is_custom(api_find_tool(p->asked_tools, name, n));
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

/* A function, or what a custom tool has in its place. */
static lq_status check_tool(const cJSON *tools, const cJSON *t, int i, api_error *e)
{
    const cJSON *type = js_get(t, "type"), *f = js_get(t, is_custom(t) ? "custom" : "function");
    const cJSON *text = js_get(f, "description"), *parameters = js_get(f, "parameters");
    if (!is_custom(t) && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0))
        return bad_tool(e, i, "type \"function\" or \"custom\"", type);
    if (!cJSON_IsObject(f))
        return bad_tool(e, i, is_custom(t) ? "an object \"custom\"" : "an object \"function\"", f);
    if (!good_name(tool_name(t)))
        return bad_tool(e, i, "a name of 1..130 letters, digits, '_', '-' or '.'", tool_name(t));
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

/* A response's shape, {"type", "name", ...}, becomes a chat's (Cursor's lists have both); without a type it is a
 * function. */
static bool to_chat_shape(cJSON *t)
{
    const cJSON *type = js_get(t, "type"), *f = js_get(t, "function");
    cJSON *inner, *next;
    if (!type && cJSON_IsObject(f)) {
        cJSON_DeleteItemFromObjectCaseSensitive(t, "type"); /* null */
        cJSON *made = cJSON_AddStringToObject(t, "type", "function");
        return made && cJSON_InsertItemInArray(t, 0, cJSON_DetachItemViaPointer(t, made));
    }
    if (!api_is(type, "custom") && !api_is(type, "function")) return true;
    if (js_get(t, type->valuestring) || !cJSON_IsString(js_get(t, "name"))) return true;
    if (!(inner = cJSON_CreateObject())) return false;
    for (cJSON *m = t->child; m; m = next) {
        next = m->next;
        if (m != type)
            cJSON_AddItemToArray(inner, cJSON_DetachItemViaPointer(t, m)); /* with its key */
    }
    if (cJSON_AddItemToObject(t, type->valuestring, inner)) return true;
    cJSON_Delete(inner);
    return false;
}

/* ---- custom tools ---- */

/* What a custom tool's text matches, in the shape of a chat or of a response: spec->text NULL: any text. */
static lq_status read_format(gr_spec *spec, const cJSON *custom, int i, api_error *e)
{
    const cJSON *format = js_get(custom, "format"), *box = js_get(format, "grammar");
    const char *type = cJSON_GetStringValue(js_get(format, "type"));
    const char *syntax = cJSON_GetStringValue(js_get(box ? box : format, "syntax"));
    const char *text = cJSON_GetStringValue(js_get(box ? box : format, "definition"));
    lq_err err = { "" };
    grammar *g = NULL;
    if (!format || (type && strcmp(type, "text") == 0)) return LQ_OK;
    if (!type || strcmp(type, "grammar") != 0)
        return bad_tool(e, i, "a format of type \"text\" or \"grammar\"",
                        type ? js_get(format, "type") : format);
    const bool lark = syntax && strcmp(syntax, "lark") == 0;
    if (!text || !(lark || (syntax && strcmp(syntax, "regex") == 0)))
        return bad_tool(e, i, "a grammar with syntax \"regex\" or \"lark\" and a definition",
                        format);
    *spec = (gr_spec){ .kind = lark ? GR_LARK : GR_REGEX, .text = text, .n = strlen(text) };
    lq_status s = gr_compile(&g, spec, NULL, &err);
    gr_unref(g);
    if (s == LQ_ENOMEM) return api_no_memory(e);
    if (s) return api_fail(e, "tools", "invalid_value", "tools[%d]: its format: %s", i, err.msg);
    return LQ_OK;
}

/* The end of the first branch of a regular expression: the | behind it, or the end. */
static const char *branch_end(const char *s)
{
    int depth = 0;
    for (; *s && !(depth == 0 && *s == '|'); s++) {
        if (*s == '\\' && s[1]) {
            s++;
        } else if (*s == '[') {
            s += s[1] == '^';
            s += s[1] == ']'; /* the first is a character */
            for (s++; *s && *s != ']'; s++)
                if (*s == '\\' && s[1]) s++;
            if (!*s) break;
        } else {
            depth += (*s == '(') - (*s == ')');
        }
    }
    return s;
}

/* For a schema's `pattern`, which may match anywhere: each branch gets the ^ and $ that it has not. */
static void put_anchored(lq_buf *out, const char *regex)
{
    for (const char *s = regex, *end;; s = end + 1) {
        end = branch_end(s);
        if (*s != '^') lq_buf_puts(out, "^");
        lq_buf_add(out, s, (size_t)(end - s));
        size_t escapes = 0;
        const bool dollar = end > s && end[-1] == '$';
        while (dollar && end - 2 - escapes >= s && end[-2 - (ptrdiff_t)escapes] == '\\')
            escapes++;
        if (!dollar || escapes % 2) lq_buf_puts(out, "$");
        if (!*end) break;
        lq_buf_puts(out, "|");
    }
    lq_buf_add(out, "", 1);
}

static lq_status put_custom(cJSON *list, const cJSON *custom, const gr_spec *spec, api_error *e)
{
    const char *text = cJSON_GetStringValue(js_get(custom, "description"));
    lq_status s = LQ_OK;
    cJSON *t = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(list, t)) return cJSON_Delete(t), api_no_memory(e);
    cJSON_AddStringToObject(t, "type", "function");
    cJSON *f = cJSON_AddObjectToObject(t, "function");
    cJSON_AddStringToObject(f, "name", js_get(custom, "name")->valuestring);
    if (text) cJSON_AddStringToObject(f, "description", text);
    if (spec->text) cJSON_AddTrueToObject(f, "strict");
    cJSON *p = cJSON_AddObjectToObject(f, "parameters");
    cJSON_AddStringToObject(p, "type", "object");
    cJSON *input = cJSON_AddObjectToObject(cJSON_AddObjectToObject(p, "properties"), "input");
    cJSON_AddStringToObject(input, "type", "string");
    if (spec->text && spec->kind == GR_LARK) {
        cJSON_AddStringToObject(input, GR_LARK_KEYWORD, spec->text);
    } else if (spec->text) {
        lq_buf whole = { 0 };
        put_anchored(&whole, spec->text);
        if (whole.oom || !cJSON_AddStringToObject(input, "pattern", whole.p)) s = api_no_memory(e);
        lq_buf_free(&whole);
    }
    cJSON_AddItemToArray(cJSON_AddArrayToObject(p, "required"), cJSON_CreateString("input"));
    cJSON_AddFalseToObject(p, "additionalProperties");
    return s;
}

/* A custom tool as a function whose one argument is the text, "input". */
static lq_status add_custom(cJSON *list, const cJSON *custom, int i, api_error *e)
{
    gr_spec spec = { .text = NULL };
    lq_status s = read_format(&spec, custom, i, e);
    return s ? s : put_custom(list, custom, &spec, e);
}

/* p->tools as functions alone, where some are not. */
static lq_status make_functions(api_params *p, api_error *e)
{
    bool any = false;
    int i = 0;
    for (const cJSON *t = p->tools->child; t; t = t->next)
        any |= is_custom(t);
    if (!any) return LQ_OK;
    p->made_tools = cJSON_CreateArray();
    for (cJSON *t = p->tools->child; t; t = t->next, i++) {
        lq_status s = LQ_OK;
        if (is_custom(t))
            s = add_custom(p->made_tools, js_get(t, "custom"), i, e);
        else if (!cJSON_AddItemReferenceToArray(p->made_tools, t))
            s = api_no_memory(e);
        if (s) return s;
    }
    if (js_ran_out()) return api_no_memory(e);
    p->tools = p->made_tools;
    return LQ_OK;
}

void api_custom_input(lq_buf *out, const lq_buf *arguments)
{
    cJSON *v = NULL;
    lq_buf cut = { 0 }; /* an answer that ended early: what of the text is there */
    size_t n = arguments->n;
    while (n && js_parse(&v, arguments->p, n, n, 0, NULL)) {
        lq_buf_clear(&cut);
        lq_buf_add(&cut, arguments->p, n);
        lq_buf_puts(&cut, "\"}");
        if (cut.oom || !js_parse(&v, cut.p, cut.n, cut.n, 0, NULL)) break;
        while (n && arguments->p[--n] != '\\') /* an escape that is not whole */
            ;
    }
    const char *text = cJSON_GetStringValue(js_get(v, "input"));
    if (text) lq_buf_puts(out, text);
    out->oom |= cut.oom;
    lq_buf_free(&cut);
    cJSON_Delete(v);
}

/* ---- tools, functions ---- */

static lq_status both_kinds(api_error *e, const char *other)
{
    return api_fail(e, "functions", "invalid_value",
                    "functions: %s is given too, and only one of them counts", other);
}

lq_status api_read_tools(api_params *p, const cJSON *v, api_error *e)
{
    int i = 0;
    if (!cJSON_IsArray(v)) return api_wrong(e, "tools", "an array of tools", v);
    if (p->tools && v->child) return both_kinds(e, "tools");
    for (cJSON *t = v->child; t; t = t->next, i++) {
        if (i == API_MAX_TOOLS)
            return api_fail(e, "tools", "invalid_value", "tools: expected at most %d",
                            API_MAX_TOOLS);
        if (!to_chat_shape(t)) return api_no_memory(e);
        lq_status s = check_tool(v, t, i, e);
        if (s) return s;
    }
    p->asked_tools = v;
    p->tools = v->child ? v : NULL;
    return p->tools ? make_functions(p, e) : LQ_OK;
}

/* What the tools are called, for who asks with `functions`. */
static lq_status rename_error(api_error *e)
{
    static const char old[] = "tools", new[] = "functions";
    char msg[sizeof e->err.msg];
    if (strncmp(e->param, old, strlen(old)) != 0 || strncmp(e->err.msg, old, strlen(old)) != 0)
        return LQ_EVALUE;
    snprintf(msg, sizeof msg, "%s%s", new, e->err.msg + strlen(old));
    memcpy(e->err.msg, msg, sizeof msg);
    snprintf(e->param, sizeof e->param, "%s", new);
    return LQ_EVALUE;
}

lq_status api_read_functions(api_params *p, const cJSON *v, api_error *e)
{
    if (!cJSON_IsArray(v)) return api_wrong(e, "functions", "an array of functions", v);
    if (!v->child) return LQ_OK;
    if (p->tools) return both_kinds(e, "tools");
    cJSON *list = p->made_tools = cJSON_CreateArray();
    for (cJSON *f = v->child; f; f = f->next) {
        cJSON *t = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(list, t)) cJSON_Delete(t);
        cJSON_AddStringToObject(t, "type", "function");
        cJSON_AddItemReferenceToObject(t, "function", f);
    }
    if (js_ran_out()) return api_no_memory(e);
    p->functions = true;
    lq_status s = api_read_tools(p, list, e);
    return s == LQ_EVALUE ? rename_error(e) : s;
}

/* The answer must be calls, of `name`, or (NULL) of any tool: gen_plan_calls makes the grammar. */
static lq_status demand_call(api_params *p, const char *param, const char *name, api_error *e)
{
    const char *other = p->structured.param;
    if (other && strcmp(other, "response_format") != 0) /* which is of answers without calls */
        return api_fail(e, param, "invalid_value",
                        "%s: %s is given too, and an answer has one structure only", param, other);
    p->must_call = true;
    p->only_tool = name;
    return LQ_OK;
}

static bool names_tool(const cJSON *v)
{
    const char *type = cJSON_GetStringValue(js_get(v, "type"));
    return (is_custom(v) || (type && strcmp(type, "function") == 0)) &&
           cJSON_IsString(tool_name(v));
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
        if (!names_tool(t)) return api_wrong(e, "tool_choice", "functions as allowed tools", t);
        const char *name = tool_name(t)->valuestring;
        if (!api_find_tool(p->tools, name, strlen(name))) return no_tool(e, name);
    }
    p->allowed_tools = cJSON_CreateArray();
    for (cJSON *t = p->tools->child; t; t = t->next) {
        const char *name = tool_name(t)->valuestring;
        if (api_find_tool(list, name, strlen(name)) &&
            !cJSON_AddItemReferenceToArray(p->allowed_tools, t))
            return api_no_memory(e);
    }
    if (!p->allowed_tools) return api_no_memory(e);
    p->tools = p->allowed_tools;
    return required ? demand_call(p, "tool_choice", NULL, e) : LQ_OK;
}

static lq_status check_function_call(api_params *p, const cJSON *v, api_error *e)
{
    static const char param[] = "function_call";
    const char *word = cJSON_GetStringValue(v), *name = cJSON_GetStringValue(js_get(v, "name"));
    if (word && strcmp(word, "none") == 0) {
        p->tools = NULL;
        return LQ_OK;
    }
    if (!p->functions)
        return api_fail(e, param, "invalid_value",
                        "function_call: only allowed where there are functions");
    if (word && strcmp(word, "auto") == 0) return LQ_OK;
    if (!name) return api_wrong(e, param, "\"auto\", \"none\" or {\"name\": ...}", v);
    if (!api_find_tool(p->tools, name, strlen(name)))
        return api_fail(e, param, "invalid_value", "function_call: there is no function \"%.64s\"",
                        name);
    return demand_call(p, param, name, e);
}

lq_status api_check_tool_choice(api_params *p, const cJSON *doc, api_error *e)
{
    const cJSON *v = js_get(doc, "tool_choice"), *call = js_get(doc, "function_call");
    const char *name = cJSON_GetStringValue(tool_name(v));
    const char *type = cJSON_GetStringValue(js_get(v, "type")), *word = type;
    if (!cJSON_IsObject(v)) word = cJSON_GetStringValue(v);
    if (word && strcmp(word, "any") == 0) word = "required"; /* as Mistral and Anthropic say it */
    if (p->functions) p->parallel_calls = false;
    if (p->functions && v) return both_kinds(e, "tool_choice");
    if (call) return check_function_call(p, call, e);
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
    bool named = names_tool(v);
    if (named && !api_find_tool(p->tools, name, strlen(name))) return no_tool(e, name);
    if (named || (word && strcmp(word, "required") == 0))
        return demand_call(p, "tool_choice", named ? name : NULL, e);
    return api_fail(
        e, "tool_choice", "invalid_value",
        "tool_choice: expected \"auto\", \"none\", \"required\", {\"type\": "
        "\"function\", \"function\": {\"name\": ...}} or {\"type\": \"allowed_tools\", ...}");
}
