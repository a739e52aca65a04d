/* runtime/api/api_cohere_chat.c - POST /v2/chat: a conversation as Cohere's clients have it. Source: Cohere's API reference,
 * "Chat" (v2) and "Chat with streaming". */
#include "runtime/api/api_body.h"
#include "runtime/api/api_items.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- messages ---- */

typedef struct {
    api_body *b;
    char at[48];
} place;

static lq_status wrong(const place *p, const char *expected, const cJSON *v)
{
    return api_body_wrong(p->b, "messages", p->at, expected, v);
}

/* A tool's document: its text, or its data as JSON. */
static lq_status take_document(const place *p, cJSON *m, const cJSON *document)
{
    const cJSON *data = js_get(document, "data");
    if (!data) return wrong(p, "a document with data", document);
    if (cJSON_IsString(data)) {
        api_add_text(m, data->valuestring);
        return LQ_OK;
    }
    char *text = js_print(data, false);
    cJSON *own = text ? cJSON_CreateString(text) : NULL; /* the chat borrows it */
    free(text);
    if (!p->b->past) p->b->past = cJSON_CreateArray();
    if (!own || !p->b->past || !cJSON_AddItemToArray(p->b->past, own)) {
        cJSON_Delete(own);
        return api_no_memory(p->b->e);
    }
    api_add_text(m, own->valuestring);
    return LQ_OK;
}

static lq_status take_part(const place *p, cJSON *m, const char *role, const cJSON *part)
{
    const cJSON *type = js_get(part, "type"), *text = js_get(part, "text"),
                *thought = js_get(part, "thinking");
    if (api_is(type, "text") && cJSON_IsString(text)) {
        api_add_text(m, text->valuestring);
        return LQ_OK;
    }
    if (api_is(type, "thinking") && strcmp(role, "assistant") == 0 && cJSON_IsString(thought)) {
        if (!js_get(m, "reasoning_content")) api_put(m, "reasoning_content", api_ref(thought));
        return LQ_OK;
    }
    if (api_is(type, "document") && strcmp(role, "tool") == 0)
        return take_document(p, m, js_get(part, "document"));
    if (!cJSON_IsString(type) || api_is(type, "text") || api_is(type, "thinking"))
        return wrong(p, "a part with a type and its text", part);
    return api_fail(p->b->e, "messages", "unsupported_value",
                    "%s: parts of type \"%.40s\" are not supported", p->at, type->valuestring);
}

static lq_status take_content(place *p, cJSON *m, const char *role, const cJSON *v)
{
    const size_t at = strlen(p->at);
    lq_status s = LQ_OK;
    int i = 0;
    if (!v || cJSON_IsNull(v)) return LQ_OK;
    if (cJSON_IsString(v)) {
        api_add_text(m, v->valuestring);
        return LQ_OK;
    }
    if (!cJSON_IsArray(v)) return wrong(p, "a string or an array of parts", v);
    for (const cJSON *part = v->child; part && !s; part = part->next) {
        snprintf(p->at + at, sizeof p->at - at, ".content[%d]", i++);
        s = take_part(p, m, role, part);
    }
    p->at[at] = 0;
    return s;
}

static lq_status take_calls(const place *p, cJSON *m, const cJSON *calls)
{
    if (!cJSON_IsArray(calls)) return wrong(p, "an array of tool_calls", calls);
    for (const cJSON *c = calls->child; c; c = c->next) {
        const cJSON *f = js_get(c, "function"), *name = js_get(f, "name"),
                    *arguments = js_get(f, "arguments");
        if (!cJSON_IsString(name) || !cJSON_IsString(arguments))
            return wrong(p, "calls of a function with strings name and arguments", c);
        api_add_call(m, cJSON_GetStringValue(js_get(c, "id")), name->valuestring, arguments);
    }
    return LQ_OK;
}

static lq_status take_message(place *p, const cJSON *v)
{
    static const char *const roles[] = { "user", "assistant", "system", "tool" };
    const cJSON *role = js_get(v, "role"), *calls = js_get(v, "tool_calls"),
                *plan = js_get(v, "tool_plan"), *id = js_get(v, "tool_call_id");
    const char *name = NULL;
    for (size_t i = 0; i < LQ_COUNT(roles); i++)
        if (api_is(role, roles[i])) name = roles[i];
    if (!name) return wrong(p, "role user, assistant, system or tool", role ? role : v);
    cJSON *m = api_add_message(p->b, name);
    if (strcmp(name, "tool") == 0) {
        if (!cJSON_IsString(id)) return wrong(p, "a string tool_call_id", id ? id : v);
        api_put(m, "tool_call_id", api_ref(id));
    }
    lq_status s = take_content(p, m, name, js_get(v, "content"));
    if (s || strcmp(name, "assistant") != 0) return s;
    if (cJSON_IsString(plan) && plan->valuestring[0] && !js_get(m, "reasoning_content"))
        api_put(m, "reasoning_content", api_ref(plan));
    return calls && !cJSON_IsNull(calls) ? take_calls(p, m, calls) : LQ_OK;
}

static lq_status read_messages(api_body *b, const char *name, const cJSON *v)
{
    int i = 0;
    lq_status s = LQ_OK;
    place p = { .b = b };
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of messages", v);
    for (const cJSON *m = v->child; m && !s; m = m->next) {
        snprintf(p.at, sizeof p.at, "messages[%d]", i++);
        s = take_message(&p, m);
    }
    return s;
}

/* ---- the others ---- */

static lq_status read_tools(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *strict = js_get(b->from, "strict_tools");
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of tools", v);
    for (const cJSON *t = v->child; t; t = t->next) {
        const cJSON *f = js_get(t, "function");
        if (!api_is(js_get(t, "type"), "function") || !cJSON_IsObject(f))
            return api_body_wrong(b, name, name, "tools of type function", t);
        api_add_tool(b, js_get(f, "name"), js_get(f, "description"), js_get(f, "parameters"),
                     cJSON_IsTrue(strict) ? strict : NULL);
    }
    return LQ_OK;
}

static lq_status read_strict(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsBool(v) ? LQ_OK : api_body_wrong(b, name, name, "true or false", v);
}

static lq_status read_choice(api_body *b, const char *name, const cJSON *v)
{
    const bool none = api_is(v, "NONE");
    if (!none && !api_is(v, "REQUIRED"))
        return api_body_wrong(b, name, name, "REQUIRED or NONE", v);
    api_put_str(b->to, name, none ? "none" : "required");
    return LQ_OK;
}

static lq_status read_format(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *type = js_get(v, "type"), *schema = js_get(v, "json_schema");
    if (!api_is(type, "text") && !api_is(type, "json_object"))
        return api_body_wrong(b, name, name, "type text or json_object", type ? type : v);
    cJSON *o = cJSON_AddObjectToObject(b->to, name);
    if (api_is(type, "text") || !schema || cJSON_IsNull(schema)) {
        api_put(o, "type", api_ref(type));
        return LQ_OK;
    }
    api_put_str(o, "type", "json_schema");
    o = cJSON_AddObjectToObject(o, "json_schema");
    api_put_str(o, "name", "answer");
    api_put(o, "schema", api_ref(schema));
    return LQ_OK;
}

static lq_status read_thinking(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *type = js_get(v, "type"), *budget = js_get(v, "token_budget");
    const bool off = api_is(type, "disabled");
    if (!off && !api_is(type, "enabled"))
        return api_body_wrong(b, name, name, "type enabled or disabled", type ? type : v);
    if (!b->a->m.form || !b->a->m.form->think_open[0]) return LQ_OK; /* it has no thoughts */
    api_put_variable(b, "enable_thinking", cJSON_CreateBool(!off));
    if (budget && !cJSON_IsNull(budget)) api_put(b->to, "thinking_token_budget", api_ref(budget));
    return LQ_OK;
}

/* Templates of Cohere's models may read it. */
static lq_status read_safety(api_body *b, const char *name, const cJSON *v)
{
    static const char *const modes[] = { "CONTEXTUAL", "STRICT", "OFF", "NONE" };
    for (size_t i = 0; i < LQ_COUNT(modes); i++)
        if (api_is(v, modes[i])) {
            api_put_variable(b, name, api_ref(v));
            return LQ_OK;
        }
    return api_body_wrong(b, name, name, "CONTEXTUAL, STRICT or OFF", v);
}

static lq_status read_documents(api_body *b, const char *name, const cJSON *v)
{
    if (cJSON_IsArray(v) && !v->child) return LQ_OK;
    return api_fail(b->e, name, "unsupported_parameter",
                    "documents is not supported: nothing is cited here; put them into a message");
}

static lq_status read_logprobs(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsFalse(v) ? LQ_OK : api_body_refuse(b, name, v);
}

static const api_field fields[] = {
    { "messages", "messages", read_messages },
    { "tools", NULL, read_tools },
    { "strict_tools", NULL, read_strict },
    { "tool_choice", NULL, read_choice },
    { "response_format", NULL, read_format },
    { "thinking", NULL, read_thinking },
    { "safety_mode", NULL, read_safety },
    { "documents", NULL, read_documents },
    { "logprobs", NULL, read_logprobs },
    { "stop_sequences", "stop", NULL },
    { "k", "top_k", NULL },
    { "p", "top_p", NULL },
    { "n", NULL, api_body_refuse },
    { "citation_options", NULL, NULL }, /* of documents */
};
static const api_dialect dialect = { .fields = fields, .n = LQ_COUNT(fields) };

/* ---- pieces of the answer ---- */

static void write_count(jw *w, const char *key, int64_t in, int64_t out)
{
    jw_key(w, key);
    jw_open(w, '{');
    jw_put_i64(w, "input_tokens", in);
    jw_put_i64(w, "output_tokens", out);
    jw_close(w, '}');
}

static void write_end(jw *w, const gen_choice *c)
{
    const int64_t in = c->g->prompts.n_ids, out = c->stats.n_output;
    jw_put_cstr(w, "finish_reason",
                c->end.finish == ENG_LENGTH ? "MAX_TOKENS"
                : gen_has_call(c)           ? "TOOL_CALL"
                : c->end.stop_string        ? "STOP_SEQUENCE"
                                            : "COMPLETE");
    jw_key(w, "usage");
    jw_open(w, '{');
    write_count(w, "billed_units", in, out);
    write_count(w, "tokens", in, out);
    jw_put_i64(w, "cached_tokens", c->stats.n_cached);
    jw_close(w, '}');
}

static bool is_call(const gen_item *t) { return t->kind == CHAT_CALL; }

/* Calls are numbered by themselves. */
static int number_of(const gen_choice *c, const gen_item *t)
{
    int n = 0;
    for (const gen_item *o = c->items.v; o < t; o++)
        n += is_call(o) == is_call(t);
    return n;
}

static const char *text_key(const gen_item *t)
{
    return t->kind == CHAT_REASONING ? "thinking" : "text";
}

/* A block, or a call; whole, or (a stream's first event of it) still empty. */
static void write_item(jw *w, const gen_choice *c, const gen_item *t, bool whole)
{
    static const lq_buf none;
    const lq_buf *text = whole ? &t->text : &none;
    char id[96];
    jw_open(w, '{');
    if (is_call(t)) {
        snprintf(id, sizeof id, "call_%s%x", gen_key(c->g), (unsigned)number_of(c, t));
        jw_put_cstr(w, "id", id);
        jw_put_cstr(w, "type", "function");
        jw_key(w, "function");
        jw_open(w, '{');
        gen_put_text(w, "name", &t->name);
        gen_put_text(w, "arguments", text);
        jw_close(w, '}');
    } else {
        jw_put_cstr(w, "type", text_key(t));
        gen_put_text(w, text_key(t), text);
    }
    jw_close(w, '}');
}

/* ---- the stream ---- */

static jw *begin_event(gen *g, const char *type)
{
    jw *w = &g->answer.chunk;
    jw_clear(w);
    jw_open(w, '{');
    jw_put_cstr(w, "type", type);
    return w;
}

static bool send(gen *g, const char *type)
{
    jw *w = &g->answer.chunk;
    jw_close(w, '}');
    return http_stream_event(g->r, type, w->b.oom ? NULL : w->b.p, w->b.n);
}

/* "delta": {"message": {...  */
static void open_delta(jw *w)
{
    jw_key(w, "delta");
    jw_open(w, '{');
    jw_key(w, "message");
    jw_open(w, '{');
}

static void close_delta(jw *w)
{
    jw_close(w, '}');
    jw_close(w, '}');
}

static bool open_message(gen_choice *c)
{
    jw *w = begin_event(c->g, "message-start");
    jw_put_cstr(w, "id", c->g->answer.id);
    open_delta(w);
    jw_put_cstr(w, "role", "assistant");
    static const char *const lists[] = { "content", "tool_calls", "citations" };
    for (size_t i = 0; i < LQ_COUNT(lists); i++) {
        jw_key(w, lists[i]);
        jw_json(w, "[]", 2);
    }
    jw_put_cstr(w, "tool_plan", "");
    close_delta(w);
    return send(c->g, "message-start");
}

static jw *begin_item_event(const gen_choice *c, const gen_item *t, const char *type)
{
    jw *w = begin_event(c->g, type);
    jw_put_i64(w, "index", number_of(c, t));
    return w;
}

static bool begin_item(gen_choice *c, const gen_item *t)
{
    const char *type = is_call(t) ? "tool-call-start" : "content-start";
    jw *w = begin_item_event(c, t, type);
    open_delta(w);
    jw_key(w, is_call(t) ? "tool_calls" : "content");
    write_item(w, c, t, false);
    close_delta(w);
    return send(c->g, type);
}

static bool send_delta(gen_choice *c, const gen_item *t, const char *p, size_t n)
{
    const char *type = is_call(t) ? "tool-call-delta" : "content-delta";
    jw *w = begin_item_event(c, t, type);
    open_delta(w);
    jw_key(w, is_call(t) ? "tool_calls" : "content");
    jw_open(w, '{');
    if (is_call(t)) {
        jw_key(w, "function");
        jw_open(w, '{');
    }
    jw_key(w, is_call(t) ? "arguments" : text_key(t));
    jw_str(w, p, n);
    if (is_call(t)) jw_close(w, '}');
    jw_close(w, '}');
    close_delta(w);
    return send(c->g, type);
}

static bool end_item(gen_choice *c, const gen_item *t)
{
    const char *type = is_call(t) ? "tool-call-end" : "content-end";
    begin_item_event(c, t, type);
    return send(c->g, type);
}

static bool chunk(gen_choice *c)
{
    static const gen_item_events events = { open_message, begin_item, send_delta, end_item };
    return gen_send_items(c, &events);
}

static bool end_stream(gen *g)
{
    gen_choice *c = &g->choices.v[0];
    if (!c->opened && !open_message(c)) return false;
    jw *w = begin_event(g, "message-end");
    jw_put_cstr(w, "id", g->answer.id);
    jw_key(w, "delta");
    jw_open(w, '{');
    write_end(w, c);
    jw_close(w, '}');
    return send(g, "message-end");
}

static bool fail_stream(gen *g)
{
    jw *w = begin_event(g, "message-end");
    jw_put_cstr(w, "id", g->answer.id);
    jw_key(w, "delta");
    jw_open(w, '{');
    jw_put_cstr(w, "finish_reason", "ERROR");
    jw_put_cstr(w, "error", g->state.error.err.msg);
    jw_close(w, '}');
    return send(g, "message-end");
}

/* ---- the whole answer ---- */

/* The blocks, or the calls, of which there may be none. */
static void write_list(jw *w, const gen_choice *c, const char *key, bool calls)
{
    jw_key(w, key);
    jw_open(w, '[');
    for (int i = 0; i < c->items.n; i++)
        if (is_call(&c->items.v[i]) == calls) write_item(w, c, &c->items.v[i], true);
    jw_close(w, ']');
}

static void write_answer(gen *g, jw *w)
{
    const gen_choice *c = &g->choices.v[0];
    w->b.oom |= c->text.oom;
    jw_open(w, '{');
    jw_put_cstr(w, "id", g->answer.id);
    jw_key(w, "message");
    jw_open(w, '{');
    jw_put_cstr(w, "role", "assistant");
    write_list(w, c, "content", false);
    if (gen_has_call(c)) write_list(w, c, "tool_calls", true);
    jw_close(w, '}');
    write_end(w, c);
    jw_close(w, '}');
}

static const gen_shape shape = { .kind = API_CHAT,
                                 .prefix = "chat-",
                                 .prompt = "messages",
                                 .dialect = &dialect,
                                 .fills = true,
                                 .take = gen_take_item,
                                 .chunk = chunk,
                                 .end = end_stream,
                                 .error = fail_stream,
                                 .answer = write_answer };

void api_post_chat_v2(void *app, http_req *r)
{
    api_request q;
    if (api_read_chat(app, r, &shape, &q)) api_generate(app, r, &shape, &q);
}
