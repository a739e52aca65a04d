/* runtime/api/api_messages_in.c - a body of the Messages API as one of chat/completions. */
#include "runtime/api/api_messages.h"

#include <stdio.h>
#include <stdlib.h>

static const char *text_of(const cJSON *block)
{
    return cJSON_GetStringValue(js_get(block, "text"));
}

/* Claude Code's first block of `system` is a line for Anthropic's accounts, other with each request. */
static bool is_billing(const char *text)
{
    static const char head[] = "x-anthropic-billing-header:";
    return strncmp(text, head, sizeof head - 1) == 0;
}

/* ---- blocks of a message ---- */

/* Where a block is: messages[2].content[1]. */
typedef struct {
    api_body *b;
    char at[64];
    cJSON *said;   /* the message that texts go to; NULL: the next one begins it */
    bool answered; /* the assistant's turn ends with what a tool answered, so far */
} place;

static lq_status wrong(place *p, const char *expected, const cJSON *v)
{
    return api_body_wrong(p->b, "messages", p->at, expected, v);
}

static lq_status no_such_block(place *p, const cJSON *type)
{
    return api_fail(p->b->e, "messages", "unsupported_value",
                    "%s: blocks of type \"%.40s\" are not supported", p->at, type->valuestring);
}

static cJSON *said(place *p, const char *role)
{
    if (!p->said) p->said = api_turn(p->b, role); /* turns of one side are one turn */
    p->answered = false;
    return p->said;
}

/* ---- blocks that are texts, in a message and in a tool's answer ---- */

static lq_status put_texts(place *p, cJSON *m, const cJSON *list)
{
    for (const cJSON *t = list ? list->child : NULL; t; t = t->next) {
        const cJSON *type = js_get(t, "type");
        if (cJSON_IsString(type) && !api_is(type, "text")) return no_such_block(p, type);
        if (!text_of(t)) return wrong(p, "a text block", t);
        api_add_text(m, text_of(t));
    }
    return LQ_OK;
}

static void put_line(cJSON *m, const cJSON *block, const char *key)
{
    const char *s = cJSON_GetStringValue(js_get(block, key));
    if (s) api_add_text(m, s);
}

/* They would be marks in the answer, which a model here does not make. */
static lq_status refuse_citations(place *p, const cJSON *block)
{
    if (!cJSON_IsTrue(js_get(js_get(block, "citations"), "enabled"))) return LQ_OK;
    return api_fail(p->b->e, "messages", "unsupported_value", "%s: citations are not supported",
                    p->at);
}

/* A document is its text, where it has one, behind its title and what is said of it. */
static lq_status put_document(place *p, cJSON *m, const cJSON *block)
{
    const cJSON *source = js_get(block, "source"), *type = js_get(source, "type");
    const cJSON *text = js_get(source, api_is(type, "content") ? "content" : "data");
    const bool known = (api_is(type, "text") && cJSON_IsString(text)) ||
                       (api_is(type, "content") && (cJSON_IsString(text) || cJSON_IsArray(text)));
    if (!known) return no_such_block(p, js_get(block, "type"));
    if (refuse_citations(p, block)) return LQ_EVALUE;
    put_line(m, block, "title");
    put_line(m, block, "context");
    if (cJSON_IsArray(text)) return put_texts(p, m, text);
    api_add_text(m, text->valuestring);
    return LQ_OK;
}

static lq_status put_search_result(place *p, cJSON *m, const cJSON *block)
{
    const cJSON *content = js_get(block, "content");
    if (!cJSON_IsString(js_get(block, "source")) || !cJSON_IsString(js_get(block, "title")) ||
        !cJSON_IsArray(content))
        return wrong(p, "a search_result block with source, title and content", block);
    if (refuse_citations(p, block)) return LQ_EVALUE;
    put_line(m, block, "title");
    put_line(m, block, "source");
    return put_texts(p, m, content);
}

static lq_status put_text(place *p, cJSON *m, const cJSON *block)
{
    if (!text_of(block))
        return wrong(p, "a text block with a string \"text\"", js_get(block, "text"));
    api_add_text(m, text_of(block));
    return LQ_OK;
}

/* The name of a tool that a search found. */
static lq_status put_reference(place *p, cJSON *m, const cJSON *block)
{
    if (!cJSON_IsString(js_get(block, "tool_name")))
        return wrong(p, "a tool_reference block with a string \"tool_name\"", block);
    put_line(m, block, "tool_name");
    return LQ_OK;
}

typedef lq_status put_block(place *p, cJSON *m, const cJSON *block);

/* NULL: a block of this type is no text. */
static put_block *putter_of(const cJSON *type)
{
    static const struct {
        const char *type;
        put_block *put;
    } types[] = { { "text", put_text },
                  { "document", put_document },
                  { "search_result", put_search_result },
                  { "tool_reference", put_reference } };
    for (size_t i = 0; i < LQ_COUNT(types); i++)
        if (api_is(type, types[i].type)) return types[i].put;
    return NULL;
}

/* The text of a tool's answer: a string, or blocks. */
static lq_status take_result(place *p, const cJSON *block)
{
    const cJSON *id = js_get(block, "tool_use_id"), *v = js_get(block, "content");
    lq_status s = LQ_OK;
    if (!cJSON_IsString(id))
        return wrong(p, "a tool_result block with a string \"tool_use_id\"", id);
    cJSON *m = api_add_message(p->b, "tool");
    p->said = NULL;
    api_put_str(m, "tool_call_id", id->valuestring);
    if (cJSON_IsTrue(js_get(block, "is_error"))) api_add_text(m, "Error:");
    if (cJSON_IsString(v)) api_add_text(m, v->valuestring);
    if (v && !cJSON_IsString(v) && !cJSON_IsArray(v))
        return wrong(p, "content: a string or an array of blocks", v);
    for (const cJSON *t = cJSON_IsArray(v) ? v->child : NULL; t && !s; t = t->next) {
        const cJSON *type = js_get(t, "type");
        put_block *put = putter_of(type);
        s = put                    ? put(p, m, t)
            : cJSON_IsString(type) ? no_such_block(p, type)
                                   : wrong(p, "a text block", t);
    }
    if (!js_get(m, "content")) api_put_str(m, "content", "");
    return s;
}

static lq_status take_user(place *p, const cJSON *block)
{
    const cJSON *type = js_get(block, "type");
    put_block *put = putter_of(type);
    if (put) return put(p, said(p, "user"), block);
    if (api_is(type, "tool_result")) return take_result(p, block);
    return cJSON_IsString(type) ? no_such_block(p, type) : wrong(p, "a block with a type", block);
}

/* Thoughts go where the template shows them, or drops them. */
static lq_status take_thinking(place *p, const cJSON *block)
{
    const cJSON *v = js_get(block, "thinking");
    if (!cJSON_IsString(v)) return wrong(p, "a thinking block with a string \"thinking\"", v);
    if (v->valuestring[0] && !js_get(said(p, "assistant"), "reasoning_content"))
        api_put(said(p, "assistant"), "reasoning_content", api_ref(v));
    return LQ_OK;
}

static lq_status take_use(place *p, const cJSON *block)
{
    const cJSON *name = js_get(block, "name"), *id = js_get(block, "id"),
                *input = js_get(block, "input");
    if (!cJSON_IsString(name) || !cJSON_IsString(id) || !cJSON_IsObject(input))
        return wrong(p, "a tool_use block with strings \"id\" and \"name\" and an object \"input\"",
                     block);
    api_add_call(said(p, "assistant"), id->valuestring, name->valuestring, input);
    return LQ_OK;
}

/* ---- what Anthropic's own tools did ---- */

static bool is_own_result(const cJSON *type)
{
    static const char end[] = "_tool_result"; /* web_search_tool_result, mcp_tool_result, ... */
    const char *s = cJSON_GetStringValue(type);
    const size_t n = s ? strlen(s) : 0, k = sizeof end - 1;
    return n > k && strcmp(s + n - k, end) == 0;
}

/* A text, where a page was found, or a value as JSON. */
static void put_own(lq_buf *out, const cJSON *v)
{
    const char *url = cJSON_GetStringValue(js_get(v, "url")),
               *title = cJSON_GetStringValue(js_get(v, "title"));
    const bool page = api_is(js_get(v, "type"), "web_search_result") && url;
    char *json = NULL;
    if (out->n) lq_buf_puts(out, "\n");
    if (page)
        lq_buf_printf(out, "%s%s%s", title ? title : "", title ? "\n" : "", url);
    else if (cJSON_IsString(v) || text_of(v))
        lq_buf_puts(out, cJSON_IsString(v) ? v->valuestring : text_of(v));
    else if ((json = js_print(v, false)))
        lq_buf_puts(out, json);
    free(json);
}

/* The call is one of a function, and this what it answered. */
static lq_status take_own_result(place *p, const cJSON *block)
{
    const cJSON *id = js_get(block, "tool_use_id"), *v = js_get(block, "content");
    lq_buf text = { 0 };
    if (!cJSON_IsString(id)) return wrong(p, "a block with a string \"tool_use_id\"", id);
    cJSON *m = api_add_message(p->b, "tool");
    p->said = NULL;
    api_put_str(m, "tool_call_id", id->valuestring);
    p->answered = true;
    for (const cJSON *t = cJSON_IsArray(v) ? v->child : NULL; t; t = t->next)
        put_own(&text, t);
    if (v && !cJSON_IsArray(v)) put_own(&text, v);
    lq_buf_add(&text, "", 1);
    const bool ok = !text.oom && cJSON_AddStringToObject(m, "content", text.p);
    lq_buf_free(&text);
    return ok ? LQ_OK : api_no_memory(p->b->e);
}

static lq_status take_assistant(place *p, const cJSON *block)
{
    const cJSON *type = js_get(block, "type");
    if (api_is(type, "text")) return put_text(p, said(p, "assistant"), block);
    if (api_is(type, "thinking")) return take_thinking(p, block);
    if (api_is(type, "redacted_thinking")) return LQ_OK; /* nothing that a model could read */
    if (api_is(type, "tool_use") || api_is(type, "server_tool_use") || api_is(type, "mcp_tool_use"))
        return take_use(p, block);
    if (is_own_result(type)) return take_own_result(p, block);
    return cJSON_IsString(type) ? no_such_block(p, type) : wrong(p, "a block with a type", block);
}

/* An instruction between the turns. */
static lq_status take_system(place *p, const cJSON *block)
{
    const cJSON *type = js_get(block, "type");
    if (api_is(type, "text")) return put_text(p, said(p, "system"), block);
    return cJSON_IsString(type) ? no_such_block(p, type) : wrong(p, "a block with a type", block);
}

static const struct {
    const char *name;
    lq_status (*take)(place *, const cJSON *block);
} roles[] = { { "user", take_user }, { "assistant", take_assistant }, { "system", take_system } };

static int role_of(const cJSON *m)
{
    int k = 0;
    while (k < (int)LQ_COUNT(roles) && !api_is(js_get(m, "role"), roles[k].name))
        k++;
    return k;
}

static lq_status take_blocks(place *p, const cJSON *content, int i, int role)
{
    int k = 0;
    lq_status s = LQ_OK;
    for (const cJSON *t = content->child; t && !s; t = t->next) {
        snprintf(p->at, sizeof p->at, "messages[%d].content[%d]", i, k++);
        s = roles[role].take(p, t);
    }
    return s;
}

static lq_status take_message(api_body *b, const cJSON *m, int i)
{
    place p = { .b = b };
    const cJSON *name = js_get(m, "role"), *content = js_get(m, "content");
    const int role = role_of(m);
    snprintf(p.at, sizeof p.at, "messages[%d]", i);
    if (role == (int)LQ_COUNT(roles))
        return wrong(&p, "role user, assistant or system", name ? name : m);
    if (!cJSON_IsString(content) && !cJSON_IsArray(content))
        return wrong(&p, "content: a string or an array of blocks", content);
    if (cJSON_IsString(content))
        api_add_text(said(&p, name->valuestring), content->valuestring);
    else if (take_blocks(&p, content, i, role))
        return LQ_EVALUE;
    if (api_is(name, "assistant") && !p.answered && !js_get(said(&p, "assistant"), "content") &&
        !js_get(p.said, "tool_calls"))
        api_put_str(p.said, "content", "");
    return LQ_OK;
}

static lq_status read_messages(api_body *b, const char *name, const cJSON *v)
{
    int i = 0;
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of messages", v);
    for (const cJSON *m = v->child; m; m = m->next)
        if (take_message(b, m, i++)) return LQ_EVALUE;
    return LQ_OK;
}

static lq_status read_system(api_body *b, const char *name, const cJSON *v)
{
    cJSON *m = cJSON_CreateObject();
    api_put_str(m, "role", "system");
    if (!cJSON_InsertItemInArray(b->messages, 0, m)) cJSON_Delete(m);
    if (cJSON_IsString(v)) {
        api_put_str(m, "content", v->valuestring);
        return LQ_OK;
    }
    if (!cJSON_IsArray(v))
        return api_body_wrong(b, name, name, "a string or an array of text blocks", v);
    for (const cJSON *t = v->child; t; t = t->next) {
        if (!api_is(js_get(t, "type"), "text") || !text_of(t))
            return api_body_wrong(b, name, name, "text blocks",
                                  js_get(t, "type") ? js_get(t, "type") : t);
        if (!is_billing(text_of(t))) api_add_text(m, text_of(t));
    }
    if (!js_get(m, "content")) cJSON_Delete(cJSON_DetachItemFromArray(b->messages, 0));
    return LQ_OK;
}

/* ---- tools ---- */

/* Those of Anthropic's own (web_search_..., bash_..., ...) have a type. Nobody here can run them, and a
 * model does not know them: they are not shown to it. */
static lq_status read_tools(api_body *b, const char *name, const cJSON *v)
{
    char at[32];
    int i = 0;
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of tools", v);
    for (const cJSON *t = v->child; t; t = t->next, i++) {
        const cJSON *type = js_get(t, "type");
        snprintf(at, sizeof at, "tools[%d]", i);
        if (!cJSON_IsObject(t)) return api_body_wrong(b, name, at, "an object", t);
        if (type && !api_is(type, "custom")) continue;
        if (!cJSON_IsObject(js_get(t, "input_schema")))
            return api_body_wrong(b, name, at, "an object \"input_schema\"",
                                  js_get(t, "input_schema"));
        api_add_tool(b, js_get(t, "name"), js_get(t, "description"), js_get(t, "input_schema"),
                     js_get(t, "strict"));
    }
    return LQ_OK;
}

static lq_status read_choice(api_body *b, const char *name, const cJSON *v)
{
    static const char *const words[][2] = { { "auto", "auto" },
                                            { "any", "required" },
                                            { "none", "none" } };
    const cJSON *type = js_get(v, "type"), *alone = js_get(v, "disable_parallel_tool_use");
    if (alone && !cJSON_IsBool(alone))
        return api_body_wrong(b, name, "tool_choice.disable_parallel_tool_use", "true or false",
                              alone);
    if (cJSON_IsTrue(alone)) api_put(b->to, "parallel_tool_calls", cJSON_CreateFalse());
    for (size_t i = 0; i < LQ_COUNT(words); i++)
        if (api_is(type, words[i][0])) {
            api_put_str(b->to, "tool_choice", words[i][1]);
            return LQ_OK;
        }
    if (!api_is(type, "tool") || !cJSON_IsString(js_get(v, "name")))
        return api_body_wrong(b, name, name, "type auto, any, none, or tool with the name of one",
                              type ? type : v);
    cJSON *o = cJSON_AddObjectToObject(b->to, "tool_choice");
    api_put_str(o, "type", "function");
    api_put(cJSON_AddObjectToObject(o, "function"), "name", api_ref(js_get(v, "name")));
    return LQ_OK;
}

/* ---- the others ---- */

static lq_status read_thinking(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *type = js_get(v, "type"), *budget = js_get(v, "budget_tokens"),
                *show = js_get(v, "display");
    const bool off = api_is(type, "disabled");
    if (!off && !api_is(type, "enabled") && !api_is(type, "adaptive"))
        return api_body_wrong(b, name, name, "type enabled, adaptive or disabled", type ? type : v);
    if (show && !api_is(show, "summarized") && !api_is(show, "omitted"))
        return api_body_wrong(b, name, "thinking.display", "summarized or omitted", show);
    if (api_is(show, "omitted")) api_put(b->to, "include_reasoning", cJSON_CreateFalse());
    if (!b->a->m.form || !b->a->m.form->think_open[0]) return LQ_OK; /* it has no thoughts */
    api_put_variable(b, "enable_thinking", cJSON_CreateBool(!off));
    const cJSON *most = js_get(b->from, "max_tokens");
    const bool bounds = !cJSON_IsNumber(budget) || !cJSON_IsNumber(most) ||
                        budget->valuedouble < most->valuedouble - 1; /* else max_tokens does */
    if (budget && bounds) api_put(b->to, "thinking_token_budget", api_ref(budget));
    return LQ_OK;
}

static lq_status put_format(api_body *b, const char *name, const cJSON *v)
{
    if (!api_is(js_get(v, "type"), "json_schema") || !js_get(v, "schema"))
        return api_body_wrong(b, name, name, "a format of type json_schema with a schema", v);
    api_put(b->to, "response_format", api_ref(v));
    return LQ_OK;
}

static lq_status read_output(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *effort = js_get(v, "effort"), *format = js_get(v, "format");
    if (!cJSON_IsObject(v)) return api_body_wrong(b, name, name, "an object", v);
    if (effort) api_put_variable(b, "reasoning_effort", api_ref(effort));
    return format ? put_format(b, name, format) : LQ_OK;
}

static lq_status read_empty(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsArray(v) && !v->child ? LQ_OK : api_body_refuse(b, name, v);
}

/* A last message of the assistant is the beginning of the answer. */
static lq_status finish_count(api_body *b)
{
    const cJSON *last = b->messages && b->messages->child ? b->messages->child->prev : NULL;
    if (!js_get(b->from, "messages"))
        return api_fail(b->e, "messages", "missing_required_parameter", "messages: it is required");
    if (last && api_is(js_get(last, "role"), "assistant"))
        api_put(b->to, "continue_final_message", cJSON_CreateTrue());
    return LQ_OK;
}

static lq_status finish(api_body *b)
{
    const cJSON *most = js_get(b->from, "max_tokens");
    if (!most)
        return api_fail(b->e, "max_tokens", "missing_required_parameter",
                        "max_tokens: it is required");
    if (cJSON_IsNumber(most) && most->valuedouble < 0)
        return api_body_wrong(b, "max_tokens", "max_tokens", "a whole number from 0", most);
    if (cJSON_IsNumber(most) && !(most->valuedouble > 0)) {
        cJSON_DeleteItemFromObjectCaseSensitive(b->to, "max_tokens");
        api_put(b->to, "n_predict", api_ref(most)); /* the prompt is read into the cache */
    }
    return finish_count(b);
}

static const api_field fields[] = {
    { "messages", NULL, read_messages },
    { "system", NULL, read_system },
    { "tools", NULL, read_tools },
    { "tool_choice", NULL, read_choice },
    { "thinking", NULL, read_thinking },
    { "output_config", NULL, read_output },
    { "output_format", NULL, put_format },
    { "context_management", NULL, api_read_edits },
    { "stop_sequences", "stop", NULL },
    { "chat_template_kwargs", NULL, api_body_variables },
    { "mcp_servers", NULL, read_empty },
    { "container", NULL, api_body_refuse },
    { "stream_options", NULL, api_body_refuse },
    { "n", NULL, api_body_refuse },
    /* no influence */
    { "metadata", NULL, NULL },
    { "service_tier", NULL, NULL },
    { "cache_control", NULL, NULL },
    { "inference_geo", NULL, NULL },
    { "speed", NULL, NULL },
};

const api_dialect api_messages_dialect = {
    .fields = fields, .n = LQ_COUNT(fields), .finish = finish, .edit = api_edit_messages
};
const api_dialect api_count_dialect = {
    .fields = fields, .n = LQ_COUNT(fields), .finish = finish_count, .edit = api_edit_messages
};
