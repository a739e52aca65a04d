/* runtime/api/api_responses_in.c - a body of the Responses API as one of chat/completions. */
#include "runtime/api/api_responses.h"

#include <stdio.h>
#include <stdlib.h>

bool api_wants(const cJSON *body, const char *included)
{
    const cJSON *list = js_get(body, "include");
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next)
        if (api_is(v, included)) return true;
    return false;
}

/* ---- items ---- */

typedef struct {
    api_body *b;
    char at[40]; /* where it is: input[3] */
} place;

static lq_status wrong(const place *p, const char *expected, const cJSON *v)
{
    return api_body_wrong(p->b, "input", p->at, expected, v);
}

/* Texts of a list of parts, as parts of a message. */
static lq_status take_parts(const place *p, cJSON *m, const cJSON *list)
{
    static const char *const texts[] = { "input_text", "output_text", "text", "refusal" };
    for (const cJSON *t = list->child; t; t = t->next) {
        const cJSON *type = js_get(t, "type");
        const cJSON *text = js_get(t, api_is(type, "refusal") ? "refusal" : "text");
        bool known = false;
        for (size_t i = 0; i < LQ_COUNT(texts); i++)
            known |= api_is(type, texts[i]);
        if (!known && cJSON_IsString(type))
            return api_fail(p->b->e, "input", "unsupported_value",
                            "%s: content of type \"%.40s\" is not supported", p->at,
                            type->valuestring);
        if (!known || !cJSON_IsString(text)) return wrong(p, "content parts with a text", t);
        api_add_text(m, text->valuestring);
    }
    return LQ_OK;
}

static lq_status take_content(const place *p, cJSON *m, const cJSON *v)
{
    if (cJSON_IsArray(v)) return take_parts(p, m, v);
    if (!cJSON_IsString(v)) return wrong(p, "a string or an array of parts", v);
    api_add_text(m, v->valuestring);
    return LQ_OK;
}

/* What precedes the talk is one system message: few templates take two. */
static bool is_head(const api_body *b)
{
    const cJSON *first = b->messages ? b->messages->child : NULL;
    return !first || (!first->next && api_is(js_get(first, "role"), "system"));
}

static lq_status take_message(const place *p, const cJSON *item)
{
    static const char *const roles[] = { "user", "assistant", "system", "developer" };
    const cJSON *role = js_get(item, "role");
    const char *name = NULL;
    for (size_t i = 0; i < LQ_COUNT(roles); i++)
        if (api_is(role, roles[i])) name = roles[i];
    if (!name) return wrong(p, "role user, assistant, system or developer", role ? role : item);
    const bool head =
        (strcmp(name, "system") == 0 || strcmp(name, "developer") == 0) && is_head(p->b);
    return take_content(p, api_turn(p->b, head ? "system" : name), js_get(item, "content"));
}

/* A call in the assistant's turn, by the name that the model sees. */
static cJSON *add_call(const place *p, const cJSON *item, const cJSON *id, const char *name,
                       const cJSON *arguments)
{
    const char *space = cJSON_GetStringValue(js_get(item, "namespace"));
    cJSON *f = api_add_call(api_turn(p->b, "assistant"), id->valuestring, name, arguments);
    if (space && space[0])
        cJSON_ReplaceItemInObjectCaseSensitive(f, "name", api_joined_name(space, name));
    return f;
}

static lq_status take_call(const place *p, const cJSON *item)
{
    const cJSON *id = js_get(item, "call_id"), *name = js_get(item, "name");
    const cJSON *arguments = js_get(item, "arguments");
    if (!cJSON_IsString(id) || !cJSON_IsString(name) || !cJSON_IsString(arguments))
        return wrong(p, "strings call_id, name and arguments", item);
    add_call(p, item, id, name->valuestring, arguments);
    return LQ_OK;
}

static lq_status take_custom_call(const place *p, const cJSON *item)
{
    const cJSON *id = js_get(item, "call_id"), *name = js_get(item, "name"),
                *input = js_get(item, "input");
    if (!cJSON_IsString(id) || !cJSON_IsString(name) || !cJSON_IsString(input))
        return wrong(p, "strings call_id, name and input", item);
    cJSON *f = add_call(p, item, id, name->valuestring, NULL);
    api_put(cJSON_AddObjectToObject(f, "arguments"), "input", api_ref(input));
    return LQ_OK;
}

static lq_status take_output(const place *p, const cJSON *item)
{
    const cJSON *id = js_get(item, "call_id");
    if (!cJSON_IsString(id)) return wrong(p, "a string call_id", id ? id : item);
    cJSON *m = api_add_message(p->b, "tool");
    api_put_str(m, "tool_call_id", id->valuestring);
    return take_content(p, m, js_get(item, "output"));
}

/* The thought before what the assistant says or calls: its content, else what we gave it as, else its
 * summary. */
static lq_status take_reasoning(const place *p, const cJSON *item)
{
    static const char mark[] = API_THOUGHT_MARK;
    const char *secret = cJSON_GetStringValue(js_get(item, "encrypted_content"));
    const cJSON *list = js_get(item, "content"), *text = NULL;
    if (!list || !list->child) list = js_get(item, "summary");
    text = list ? js_get(list->child, "text") : NULL;
    const char *thought = cJSON_GetStringValue(text);
    if (!thought && secret && strncmp(secret, mark, sizeof mark - 1) == 0)
        thought = secret + sizeof mark - 1;
    if (!thought || !thought[0]) return LQ_OK;
    cJSON *m = api_turn(p->b, "assistant");
    if (!js_get(m, "reasoning_content")) api_put_str(m, "reasoning_content", thought);
    return LQ_OK;
}

/* ---- calls of OpenAI's own tools ---- */

/* Who ran such a tool has its result in the item itself, or sends it in an item of its own. The model reads them as
 * calls of a function of that name. */
static const struct own_tool {
    const char *type, *name;        /* name NULL: the item has one */
    const char *arguments, *result; /* members; result NULL: an item of its own */
} own_tools[] = { { "local_shell_call", "local_shell", "action", NULL },
                  { "shell_call", "shell", "action", NULL },
                  { "apply_patch_call", "apply_patch", "operation", NULL },
                  { "web_search_call", "web_search", "action", "status" },
                  { "file_search_call", "file_search", "queries", "results" },
                  { "code_interpreter_call", "code_interpreter", "code", "outputs" },
                  { "tool_search_call", "tool_search", "arguments", NULL },
                  { "mcp_call", NULL, "arguments", "output" } };

static const struct own_tool *own_tool_of(const cJSON *item)
{
    for (size_t i = 0; i < LQ_COUNT(own_tools); i++)
        if (api_is(js_get(item, "type"), own_tools[i].type)) return &own_tools[i];
    return NULL;
}

static const cJSON *call_id_of(const cJSON *item)
{
    const cJSON *id = js_get(item, "call_id");
    return id ? id : js_get(item, "id");
}

/* What the tool said: a text, or a value as JSON. */
static void put_result(const place *p, const cJSON *id, const cJSON *v)
{
    cJSON *m = api_add_message(p->b, "tool");
    char *text = v && !cJSON_IsString(v) ? js_print(v, false) : NULL;
    api_put_str(m, "tool_call_id", id->valuestring);
    cJSON_AddStringToObject(m, "content", text ? text : v ? v->valuestring : "");
    free(text);
}

static lq_status take_own_call(const place *p, const cJSON *item)
{
    const struct own_tool *t = own_tool_of(item);
    const cJSON *id = call_id_of(item), *arguments = js_get(item, t->arguments);
    const char *name = t->name ? t->name : cJSON_GetStringValue(js_get(item, "name"));
    if (!cJSON_IsString(id) || !name || !arguments) {
        char expected[96];
        snprintf(expected, sizeof expected, "a call with an id, a name and \"%s\"", t->arguments);
        return wrong(p, expected, item);
    }
    cJSON *f = add_call(p, item, id, name, NULL);
    if (cJSON_IsObject(arguments) || !t->name)
        api_put(f, "arguments", api_ref(arguments));
    else
        api_put(cJSON_AddObjectToObject(f, "arguments"), t->arguments, api_ref(arguments));
    if (!t->result) return LQ_OK;
    const cJSON *result = js_get(item, t->result), *error = js_get(item, "error");
    put_result(p, id, result ? result : error ? error : js_get(item, "status"));
    return LQ_OK;
}

static lq_status take_own_output(const place *p, const cJSON *item)
{
    static const char *const results[] = { "output", "tools", "status" };
    const cJSON *id = call_id_of(item), *output = NULL;
    if (!cJSON_IsString(id)) return wrong(p, "a string call_id", id ? id : item);
    for (size_t i = 0; !output && i < LQ_COUNT(results); i++)
        output = js_get(item, results[i]);
    put_result(p, id, output);
    return LQ_OK;
}

/* The summary that api_compact.c had written. */
static lq_status take_compaction(const place *p, const cJSON *item)
{
    static const char mark[] = API_THOUGHT_MARK;
    const char *text = cJSON_GetStringValue(js_get(item, "encrypted_content"));
    if (!text || strncmp(text, mark, sizeof mark - 1) != 0)
        return api_fail(p->b->e, "input", "unsupported_value",
                        "%s: only who wrote a compaction item can read it: expected one of this "
                        "API, the items that it stands for, or a message with their summary",
                        p->at);
    cJSON *m = api_turn(p->b, "user");
    api_add_text(m, "A summary of our conversation until here:");
    api_add_text(m, text + sizeof mark - 1);
    return LQ_OK;
}

static lq_status no_store(api_error *e, const char *name)
{
    return api_fail(e, name, "unsupported_value",
                    "%s: this server keeps no responses (--response-store)", name);
}

static lq_status take_item(const place *p, const cJSON *item)
{
    static const struct {
        const char *type;
        lq_status (*take)(const place *p, const cJSON *item);
    } types[] = { { "message", take_message },
                  { "function_call", take_call },
                  { "function_call_output", take_output },
                  { "custom_tool_call", take_custom_call },
                  { "custom_tool_call_output", take_output },
                  { "reasoning", take_reasoning },
                  { "local_shell_call_output", take_own_output },
                  { "shell_call_output", take_own_output },
                  { "apply_patch_call_output", take_own_output },
                  { "tool_search_output", take_own_output },
                  { "compaction", take_compaction } };
    const cJSON *type = js_get(item, "type");
    if (!cJSON_IsObject(item)) return wrong(p, "an item", item);
    if (!type) return take_message(p, item);
    for (size_t i = 0; i < LQ_COUNT(types); i++)
        if (api_is(type, types[i].type)) return types[i].take(p, item);
    if (own_tool_of(item)) return take_own_call(p, item);
    if (!cJSON_IsString(type)) return wrong(p, "an item with a type", item);
    return api_fail(p->b->e, "input", "unsupported_value",
                    "%s: items of type \"%.40s\" are not supported", p->at, type->valuestring);
}

static lq_status take_items(api_body *b, const cJSON *list, const char *name)
{
    int i = 0;
    lq_status s = LQ_OK;
    place p = { .b = b };
    for (const cJSON *t = list->child; t && !s; t = t->next) {
        snprintf(p.at, sizeof p.at, "%s[%d]", name, i++);
        s = take_item(&p, t);
    }
    return s;
}

/* ---- tools ---- */

/* A function or a custom tool; NULL for the kinds that OpenAI runs itself, which the model is not shown. */
static cJSON *add_tool(api_body *b, const cJSON *t)
{
    const cJSON *type = js_get(t, "type");
    if (api_is(type, "custom")) return api_add_custom_tool(b, t);
    if (!api_is(type, "function")) return NULL;
    return api_add_tool(b, js_get(t, "name"), js_get(t, "description"), js_get(t, "parameters"),
                        js_get(t, "strict"));
}

static lq_status check_tool(api_body *b, const char *name, const char *at, const cJSON *t)
{
    const cJSON *type = js_get(t, "type");
    if (!cJSON_IsString(type))
        return api_body_wrong(b, name, at, "an object with a type", type ? type : t);
    if (api_is(type, "function") && js_get(t, "function"))
        return api_body_wrong(b, name, at, "name and parameters beside the type",
                              js_get(t, "function"));
    return LQ_OK;
}

/* What is said of the group is said of its first tool, before what that one says of itself. */
static void describe_group(cJSON *f, const char *group)
{
    const char *own = cJSON_GetStringValue(js_get(f, "description"));
    lq_buf text = { 0 };
    lq_buf_puts(&text, group);
    if (own) lq_buf_puts(&text, "\n");
    if (own) lq_buf_puts(&text, own);
    lq_buf_add(&text, "", 1);
    cJSON_DeleteItemFromObjectCaseSensitive(f, "description");
    api_put(f, "description", text.oom ? NULL : cJSON_CreateString(text.p));
    lq_buf_free(&text);
}

static lq_status read_namespace(api_body *b, const char *name, const char *outer,
                                const cJSON *group)
{
    const cJSON *list = js_get(group, "tools"), *space = js_get(group, "name");
    const char *text = cJSON_GetStringValue(js_get(group, "description"));
    char at[64];
    int i = 0;
    if (!cJSON_IsString(space) || !space->valuestring[0])
        return api_body_wrong(b, name, outer, "a namespace with a name", space ? space : group);
    if (!cJSON_IsArray(list))
        return api_body_wrong(b, name, outer, "a namespace with an array of tools", list);
    for (const cJSON *t = list->child; t; t = t->next) {
        const cJSON *own = js_get(t, "name");
        snprintf(at, sizeof at, "%s.tools[%d]", outer, i++);
        if (check_tool(b, name, at, t)) return LQ_EVALUE;
        cJSON *f = add_tool(b, t);
        if (f && cJSON_IsString(own))
            cJSON_ReplaceItemInObjectCaseSensitive(
                f, "name", api_joined_name(space->valuestring, own->valuestring));
        if (f && text && text[0]) describe_group(f, text);
        if (f) text = NULL;
    }
    return LQ_OK;
}

static lq_status read_tools(api_body *b, const char *name, const cJSON *v)
{
    char at[32];
    int i = 0;
    lq_status s = LQ_OK;
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of tools", v);
    for (const cJSON *t = v->child; t && !s; t = t->next) {
        snprintf(at, sizeof at, "tools[%d]", i++);
        s = check_tool(b, name, at, t);
        if (!s && api_is_namespace(t))
            s = read_namespace(b, name, at, t);
        else if (!s)
            add_tool(b, t);
    }
    return s;
}

/* {"type": "function" or "custom", "name"} of a namespace (NULL: of none) as a chat's, or NULL. */
static cJSON *named_tool(const cJSON *v, const cJSON *group)
{
    const cJSON *name = js_get(v, "name");
    const char *space = cJSON_GetStringValue(group);
    if ((!api_is(js_get(v, "type"), "function") && !api_is(js_get(v, "type"), "custom")) ||
        !cJSON_IsString(name))
        return NULL;
    const char *type = js_get(v, "type")->valuestring;
    cJSON *o = cJSON_CreateObject();
    api_put_str(o, "type", type);
    api_put(cJSON_AddObjectToObject(o, type), "name",
            space && space[0] ? api_joined_name(space, name->valuestring) : api_ref(name));
    return o;
}

static void allow(cJSON *to, cJSON *one)
{
    if (one && !cJSON_AddItemToArray(to, one)) cJSON_Delete(one);
}

/* A group that is named alone is all of its tools. */
static void allow_group(api_body *b, cJSON *to, const cJSON *name)
{
    const cJSON *tools = js_get(b->from, "tools");
    for (const cJSON *g = cJSON_IsArray(tools) ? tools->child : NULL; g; g = g->next) {
        if (!api_is_namespace(g) || !cJSON_IsString(name) ||
            !api_is(js_get(g, "name"), name->valuestring))
            continue;
        const cJSON *list = js_get(g, "tools");
        for (const cJSON *t = list ? list->child : NULL; t; t = t->next)
            allow(to, named_tool(t, name));
    }
}

static lq_status read_allowed(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *list = js_get(v, "tools"), *mode = js_get(v, "mode");
    if (!cJSON_IsArray(list)) return api_body_wrong(b, name, "tool_choice.tools", "an array", list);
    cJSON *o = cJSON_AddObjectToObject(b->to, "tool_choice");
    api_put_str(o, "type", "allowed_tools");
    o = cJSON_AddObjectToObject(o, "allowed_tools");
    if (mode) api_put(o, "mode", api_ref(mode));
    cJSON *tools = cJSON_AddArrayToObject(o, "tools");
    for (const cJSON *t = list->child; t; t = t->next) {
        if (api_is_namespace(t))
            allow_group(b, tools, js_get(t, "name"));
        else
            allow(tools, named_tool(t, js_get(t, "namespace")));
    }
    return LQ_OK;
}

static lq_status read_choice(api_body *b, const char *name, const cJSON *v)
{
    if (cJSON_IsString(v)) {
        api_put(b->to, name, api_ref(v));
        return LQ_OK;
    }
    const cJSON *type = js_get(v, "type");
    if (api_is(type, "allowed_tools")) return read_allowed(b, name, v);
    cJSON *one = named_tool(v, js_get(v, "namespace"));
    if (one) api_put(b->to, name, one);
    if (one) return LQ_OK;
    if (cJSON_IsString(type) && !api_is(type, "function") && !api_is(type, "custom"))
        return api_fail(b->e, name, "unsupported_value",
                        "%s: tools of type \"%.40s\" are not supported", name, type->valuestring);
    return api_body_wrong(b, name, name,
                          "auto, none, required, allowed_tools, or a function's name", v);
}

/* ---- the others ---- */

static lq_status read_text(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *format = js_get(v, "format");
    if (!cJSON_IsObject(v)) return api_body_wrong(b, name, name, "an object", v);
    if (format) api_put(b->to, "response_format", api_ref(format));
    return LQ_OK; /* verbosity: a wish of style that no template knows */
}

static lq_status read_reasoning(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *effort = js_get(v, "effort");
    if (!cJSON_IsObject(v)) return api_body_wrong(b, name, name, "an object", v);
    if (effort && !cJSON_IsString(effort))
        return api_body_wrong(b, name, "reasoning.effort", "a string", effort);
    if (effort) api_put_variable(b, "reasoning_effort", api_ref(effort));
    if (api_is(effort, "none")) api_put_variable(b, "enable_thinking", cJSON_CreateFalse());
    return LQ_OK;
}

static lq_status read_truncation(api_body *b, const char *name, const cJSON *v)
{
    if (api_is(v, "disabled")) return LQ_OK;
    if (!api_is(v, "auto")) return api_body_wrong(b, name, name, "\"auto\" or \"disabled\"", v);
    api_put(b->to, "truncate_prompt_tokens", cJSON_CreateNumber(-1));
    return LQ_OK;
}

static lq_status read_include(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array", v);
    return LQ_OK;
}

static lq_status refuse(api_body *b, const char *name, const char *instead)
{
    return api_fail(b->e, name, "unsupported_parameter", "%s is not supported: %s", name, instead);
}

/* It is asked for by GET: kept. */
static lq_status read_background(api_body *b, const char *name, const cJSON *v)
{
    if (cJSON_IsFalse(v)) return LQ_OK;
    if (!cJSON_IsTrue(v)) return api_body_wrong(b, name, name, "true or false", v);
    if (!b->a->store) return no_store(b->e, name);
    if (cJSON_IsFalse(js_get(b->from, "store")))
        return api_fail(b->e, name, "invalid_value",
                        "background: expected store, for it is asked for later, found false");
    return LQ_OK;
}

static lq_status read_conversation(api_body *b, const char *name, const cJSON *v)
{
    (void)v;
    return refuse(b, name, "send the items, or previous_response_id where responses are kept");
}

static lq_status read_prompt(api_body *b, const char *name, const cJSON *v)
{
    (void)v;
    return refuse(b, name, "no prompts are kept here; send instructions and input");
}

/* Log-probabilities are asked for by `include`, or a number of alternatives. */
static void put_logprobs(api_body *b)
{
    const cJSON *top = js_get(b->from, "top_logprobs");
    const bool none = cJSON_IsNumber(top) && !(top->valuedouble > 0) && !(top->valuedouble < 0);
    if ((top && !none) || api_wants(b->from, "message.output_text.logprobs"))
        api_put(b->to, "logprobs", cJSON_CreateTrue());
    else
        cJSON_DeleteItemFromObjectCaseSensitive(b->to, "top_logprobs");
}

static lq_status read_stream_options(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsObject(v) ? LQ_OK : api_body_wrong(b, name, name, "an object", v);
}

static lq_status take_past(api_body *b)
{
    static const char name[] = "previous_response_id";
    const cJSON *id = js_get(b->from, name);
    lq_buf items = { 0 };
    lq_status s = LQ_OK;
    if (!id) return LQ_OK;
    if (!cJSON_IsString(id)) return api_body_wrong(b, name, name, "a string", id);
    if (!b->a->store) return no_store(b->e, name);
    if (!api_store_get(b->a->store, id->valuestring, NULL, &items)) {
        s = api_fail(b->e, name, "previous_response_not_found",
                     "previous_response_id: there is no response '%.80s' here (any more)",
                     id->valuestring);
    } else if (api_response_runs(b->a, id->valuestring)) {
        s = api_fail(b->e, name, "invalid_value",
                     "previous_response_id: expected a response that has ended, found one in "
                     "progress");
    } else if (js_parse(&b->past, items.p, items.n, API_STORE_BYTES, 0, NULL)) {
        s = api_no_memory(b->e);
    } else {
        s = take_items(b, b->past, name);
    }
    lq_buf_free(&items);
    return s;
}

/* What precedes the input. */
static lq_status take_head(api_body *b)
{
    const cJSON *head = js_get(b->from, "instructions");
    if (head && !cJSON_IsString(head))
        return api_body_wrong(b, "instructions", "instructions", "a string", head);
    if (head) api_add_text(api_add_message(b, "system"), head->valuestring);
    put_logprobs(b);
    return take_past(b);
}

static lq_status finish(api_body *b)
{
    const cJSON *input = js_get(b->from, "input");
    lq_status s = take_head(b);
    if (s) return s;
    if (!input)
        return api_fail(b->e, "input", "missing_required_parameter", "input: it is required");
    if (cJSON_IsArray(input)) return take_items(b, input, "input");
    if (!cJSON_IsString(input))
        return api_body_wrong(b, "input", "input", "a string or an array of items", input);
    api_add_text(api_turn(b, "user"), input->valuestring);
    return LQ_OK;
}

/* `finish` reads it. */
static lq_status read_later(api_body *b, const char *name, const cJSON *v)
{
    (void)b;
    (void)name;
    (void)v;
    return LQ_OK;
}

static const api_field fields[] = {
    /* finish reads them, in their order */
    { "input", "messages", read_later },
    { "instructions", NULL, NULL },
    { "previous_response_id", NULL, NULL },
    { "tools", NULL, read_tools },
    { "tool_choice", NULL, read_choice },
    { "text", "response_format", read_text },
    { "reasoning", NULL, read_reasoning },
    { "max_output_tokens", "max_completion_tokens", NULL },
    { "truncation", NULL, read_truncation },
    { "include", NULL, read_include },
    { "background", NULL, read_background },
    { "stream_options", NULL, read_stream_options },
    { "chat_template_kwargs", NULL, api_body_variables },
    { "conversation", NULL, read_conversation },
    { "context_management", NULL, api_body_refuse },
    { "prompt", NULL, read_prompt },
    { "messages", NULL, api_body_refuse },
    { "n", NULL, api_body_refuse },
    /* no influence on the answer */
    { "max_tool_calls", NULL, NULL }, /* of tools that OpenAI runs */
    { "client_metadata", NULL, NULL },

};

/* ---- /v1/responses/compact ---- */

static lq_status read_no(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsFalse(v) ? LQ_OK : api_body_refuse(b, name, v);
}

static lq_status ask_for_summary(api_body *b)
{
    const bool kept_alone = !js_get(b->from, "input") && js_get(b->from, "previous_response_id");
    const lq_status s = kept_alone ? take_head(b) : finish(b);
    if (s) return s;
    if (is_head(b))
        return api_fail(b->e, "input", "invalid_value",
                        "input: expected a conversation, found nothing that can be summarized");
    api_add_text(api_turn(b, "user"),
                 "Summarize our conversation until here. You will go on from that summary and my "
                 "messages alone, so say what I want, what was decided and why, what was done and "
                 "what came of it, which names, numbers and places matter, what is open and what "
                 "comes next. Write the summary and nothing else.");
    return LQ_OK;
}

static const api_field compact_fields[] = {
    { "input", "messages", read_later },
    { "instructions", NULL, NULL }, /* finish reads them, as the next one */
    { "previous_response_id", NULL, NULL },
    { "reasoning", NULL, read_reasoning },
    { "max_output_tokens", "max_completion_tokens", NULL },
    { "chat_template_kwargs", NULL, api_body_variables },
    { "stream", NULL, read_no },
    { "background", NULL, read_no },
    { "tools", NULL, api_body_refuse },
    { "tool_choice", NULL, api_body_refuse },
    { "text", NULL, api_body_refuse },
    { "include", NULL, api_body_refuse },
    { "truncation", NULL, api_body_refuse },
    { "conversation", NULL, api_body_refuse },
    { "context_management", NULL, api_body_refuse },
    { "prompt", NULL, api_body_refuse },
    { "messages", NULL, api_body_refuse },
    { "n", NULL, api_body_refuse },
};

/* Kept items take the place of what refers to them. */
static lq_status find_references(api *a, cJSON *body, api_error *e)
{
    cJSON *input = cJSON_GetObjectItemCaseSensitive(body, "input");
    int i = 0;
    for (cJSON *v = cJSON_IsArray(input) ? input->child : NULL, *next; v; v = next, i++) {
        next = v->next;
        const char *id = cJSON_GetStringValue(js_get(v, "id"));
        if (!api_is(js_get(v, "type"), "item_reference")) continue;
        if (!a->store) return no_store(e, "input");
        cJSON *item = api_store_item(a->store, id ? id : "");
        if (!item)
            return api_fail(e, "input", "item_not_found",
                            "input[%d]: there is no item '%.80s' here (any more)", i, id ? id : "");
        if (!cJSON_ReplaceItemViaPointer(input, v, item)) return api_no_memory(e);
    }
    return LQ_OK;
}

const api_dialect api_responses_dialect = {
    .fields = fields, .n = LQ_COUNT(fields), .finish = finish, .begin = find_references
};
const api_dialect api_compact_dialect = { .fields = compact_fields,
                                          .n = LQ_COUNT(compact_fields),
                                          .finish = ask_for_summary,
                                          .begin = find_references };
