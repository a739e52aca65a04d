/* runtime/api/api_chat.c - POST /v1/chat/completions: messages, checked and rendered by the model's
 * template, then a generation like any other. */
#include "runtime/api/api_body.h"
#include "runtime/api/api_gen_int.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const roles[] = {
    "system", "developer", "user", "assistant", "tool", "function"
};

static lq_status bad_message(api_error *e, int i, const char *what, const cJSON *v)
{
    char found[64];
    return api_fail(e, "messages", "invalid_value", "messages[%d]: expected %s, found %s", i, what,
                    js_describe(found, v));
}

/* A text, under a chat's or a response's name for it. */
static bool is_text(const cJSON *part)
{
    const cJSON *type = js_get(part, "type");
    return api_is(type, "text") || api_is(type, "input_text") || api_is(type, "output_text");
}

/* The text of one part; of an assistant's {"type": "refusal"}, too; NULL: neither. */
static const char *part_text(const cJSON *part, bool assistant)
{
    if (is_text(part)) return cJSON_GetStringValue(js_get(part, "text"));
    if (assistant && api_is(js_get(part, "type"), "refusal"))
        return cJSON_GetStringValue(js_get(part, "refusal"));
    return NULL;
}

/* A part that is no text: an image, a sound, a file; or of no shape. */
static lq_status bad_part(api_error *e, int i, const cJSON *part, bool assistant)
{
    const char *type = cJSON_GetStringValue(js_get(part, "type"));
    if (!type || is_text(part) || (assistant && strcmp(type, "refusal") == 0))
        return bad_message(e, i, "content parts {\"type\": \"text\", \"text\": ...}", part);
    return api_fail(e, "messages", "unsupported_value",
                    "messages[%d]: content of type \"%.40s\" is not supported", i, type);
}

/* Replaces an array of text parts by the string that they make, joined by newlines. */
static lq_status join_parts(cJSON *content, int i, bool assistant, api_error *e)
{
    lq_buf w = { 0 };
    for (const cJSON *c = content->child; c; c = c->next) {
        const char *text = part_text(c, assistant);
        if (!text) {
            lq_buf_free(&w);
            return bad_part(e, i, c, assistant);
        }
        if (c != content->child) lq_buf_puts(&w, "\n");
        lq_buf_puts(&w, text);
    }
    lq_buf_add(&w, "", 1);
    cJSON *joined = w.oom ? NULL : cJSON_CreateString(w.p);
    lq_buf_free(&w);
    if (!joined) return api_no_memory(e);
    /* the array node becomes the string; its children go with `joined` */
    cJSON *parts = content->child;
    content->type = cJSON_String;
    content->child = NULL;
    content->valuestring = joined->valuestring;
    joined->valuestring = NULL;
    cJSON_Delete(joined);
    cJSON_Delete(parts);
    return LQ_OK;
}

/* An assistant's turn without content has that of its refusal, or none. */
static lq_status fill_turn(cJSON *m, api_error *e)
{
    const char *refusal = cJSON_GetStringValue(js_get(m, "refusal"));
    cJSON_DeleteItemFromObjectCaseSensitive(m, "content");
    return cJSON_AddStringToObject(m, "content", refusal ? refusal : "") ? LQ_OK : api_no_memory(e);
}

/* The text of a thought among the parts: {"type": "thinking", "thinking": a text or parts (Mistral)}, or
 * {"type": "reasoning", "text"}. False: the part is none. */
static bool add_thought(lq_buf *w, const cJSON *part)
{
    const cJSON *type = js_get(part, "type"), *v = js_get(part, "text");
    if (!api_is(type, "thinking") && !api_is(type, "reasoning")) return false;
    if (js_get(part, type->valuestring)) v = js_get(part, type->valuestring);
    if (cJSON_IsString(v)) lq_buf_puts(w, v->valuestring);
    for (const cJSON *p = cJSON_IsArray(v) ? v->child : NULL; p; p = p->next)
        if (is_text(p) && cJSON_IsString(js_get(p, "text")))
            lq_buf_puts(w, js_get(p, "text")->valuestring);
    return true;
}

/* Thoughts among an assistant's parts become its `reasoning_content`, unless it has one. */
static bool take_thoughts(cJSON *m)
{
    static const char name[] = "reasoning_content";
    cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content"), *next;
    lq_buf w = { 0 };
    for (cJSON *p = cJSON_IsArray(content) ? content->child : NULL; p; p = next) {
        next = p->next;
        if (add_thought(&w, p)) cJSON_Delete(cJSON_DetachItemViaPointer(content, p));
    }
    bool ok = !w.oom;
    if (ok && w.n && !cJSON_IsString(js_get(m, name))) {
        lq_buf_add(&w, "", 1);
        cJSON_DeleteItemFromObjectCaseSensitive(m, name); /* null */
        ok = !w.oom && cJSON_AddStringToObject(m, name, w.p);
    }
    lq_buf_free(&w);
    return ok;
}

/* The thought of an earlier turn has one name in each template and each API; `thinking` is left out
 * beside a content, since templates take that for another one. */
static lq_status name_thought(cJSON *m, api_error *e)
{
    static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
    const char *thought = NULL, *content = cJSON_GetStringValue(js_get(m, "content"));
    for (size_t i = 0; i < LQ_COUNT(names) && !thought; i++)
        thought = cJSON_GetStringValue(js_get(m, names[i]));
    for (size_t i = 0; i < LQ_COUNT(names) - (content && content[0]) && thought; i++) {
        if (cJSON_GetStringValue(js_get(m, names[i]))) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(m, names[i]);
        if (!cJSON_AddItemToObject(m, names[i], cJSON_CreateStringReference(thought)))
            return api_no_memory(e);
    }
    return LQ_OK;
}

/* Calls as they were before tools: an assistant's function_call, and a turn of role function that answers the last of them.
 * Both get the id `id`, which is written where a call comes. */
static bool name_calls(cJSON *m, int i, char id[32])
{
    cJSON *call = cJSON_GetObjectItemCaseSensitive(m, "function_call");
    if (cJSON_IsObject(call) && api_is(js_get(m, "role"), "assistant") &&
        !js_get(m, "tool_calls")) {
        snprintf(id, 32, "call_%d", i);
        cJSON_DeleteItemFromObjectCaseSensitive(m, "tool_calls"); /* null */
        cJSON *calls = cJSON_AddArrayToObject(m, "tool_calls"), *one = cJSON_CreateObject();
        if (!calls || !cJSON_AddItemToArray(calls, one)) return cJSON_Delete(one), false;
        call = cJSON_DetachItemFromObjectCaseSensitive(m, "function_call");
        return cJSON_AddStringToObject(one, "id", id) &&
               cJSON_AddStringToObject(one, "type", "function") &&
               cJSON_AddItemToObject(one, "function", call);
    }
    if (!api_is(js_get(m, "role"), "function") || !id[0]) return true;
    return cJSON_ReplaceItemInObjectCaseSensitive(m, "role", cJSON_CreateString("tool")) &&
           (js_get(m, "tool_call_id") || cJSON_AddStringToObject(m, "tool_call_id", id));
}

/* Calls of custom tools in an earlier turn become those of the functions that the tools are (api_tools.c). */
static bool name_custom(cJSON *m)
{
    const cJSON *calls = js_get(m, "tool_calls");
    for (cJSON *c = cJSON_IsArray(calls) ? calls->child : NULL; c; c = c->next) {
        cJSON *custom = cJSON_GetObjectItemCaseSensitive(c, "custom");
        if (!api_is(js_get(c, "type"), "custom") || !cJSON_IsObject(custom)) continue;
        cJSON *input = cJSON_DetachItemFromObjectCaseSensitive(custom, "input");
        cJSON *f = cJSON_DetachItemFromObjectCaseSensitive(c, "custom");
        cJSON *arguments = cJSON_AddObjectToObject(f, "arguments");
        if (input && !cJSON_AddItemToObject(arguments, "input", input)) cJSON_Delete(input);
        if (!cJSON_AddItemToObject(c, "function", f)) cJSON_Delete(f);
        cJSON_ReplaceItemInObjectCaseSensitive(c, "type", cJSON_CreateString("function"));
    }
    return !js_ran_out();
}

/* Nothing is said: null, no content or no parts. */
static bool says_nothing(const cJSON *m)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content");
    return !content || cJSON_IsNull(content) || (cJSON_IsArray(content) && !content->child);
}

/* A tool may say nothing. */
static bool fill_result(cJSON *m)
{
    if (!says_nothing(m) || !api_is(js_get(m, "role"), "tool")) return true;
    cJSON_DeleteItemFromObjectCaseSensitive(m, "content");
    return cJSON_AddStringToObject(m, "content", "") != NULL;
}

static bool has_text(const cJSON *o, const char *key) { return cJSON_IsString(js_get(o, key)); }

/* Calls of an earlier turn: templates go through them and say nothing clear of what they cannot read. */
static lq_status check_calls(const cJSON *m, int i, api_error *e)
{
    const cJSON *calls = js_get(m, "tool_calls"), *old = js_get(m, "function_call"), *c;
    if (old && !has_text(old, "name"))
        return bad_message(e, i, "function_call: an object with a string \"name\"", old);
    if (calls && !cJSON_IsArray(calls)) return bad_message(e, i, "tool_calls: an array", calls);
    cJSON_ArrayForEach(c, calls)
    {
        const cJSON *type = js_get(c, "type");
        const bool custom = api_is(type, "custom");
        const cJSON *f = js_get(c, custom ? "custom" : "function");
        if (type && !custom && !api_is(type, "function"))
            return bad_message(e, i, "tool_calls of type \"function\" or \"custom\"", type);
        if (!has_text(f, "name") || (custom && !has_text(f, "input")))
            return bad_message(e, i,
                               custom ? "tool_calls with custom: strings \"name\" and \"input\""
                                      : "tool_calls with function: a string \"name\"",
                               f ? f : c);
    }
    return LQ_OK;
}

static lq_status check_message(cJSON *m, int i, char call_id[32], api_error *e)
{
    const cJSON *role = js_get(m, "role");
    bool known = false, assistant = false;
    for (size_t k = 0; cJSON_IsString(role) && k < LQ_COUNT(roles); k++)
        known |= strcmp(role->valuestring, roles[k]) == 0;
    if (!cJSON_IsObject(m)) return bad_message(e, i, "an object", m);
    if (!known) return bad_message(e, i, "role system, developer, user, assistant or tool", role);
    assistant = strcmp(role->valuestring, "assistant") == 0;
    if (assistant && check_calls(m, i, e)) return LQ_EVALUE;
    if (!name_calls(m, i, call_id) || !name_custom(m) || !fill_result(m)) return api_no_memory(e);
    if (assistant && !take_thoughts(m)) return api_no_memory(e);
    if (assistant && name_thought(m, e)) return LQ_ENOMEM;
    cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content");
    const cJSON *calls = js_get(m, "tool_calls");
    if (assistant && says_nothing(m)) {
        if (content) content->type = cJSON_NULL; /* no parts are as null for templates */
        return cJSON_IsArray(calls) && calls->child
                   ? LQ_OK
                   : fill_turn(m, e); /* with calls templates expect none, too */
    }
    if (cJSON_IsString(content)) return LQ_OK;
    if (!cJSON_IsArray(content) || !content->child)
        return bad_message(e, i, "content: a string or an array of text parts", content);
    return join_parts(content, i, assistant, e);
}

lq_status api_chat_prompt(const api *a, api_prompt *p, const cJSON *doc, const chat_request *q,
                          bool tail, api_error *e)
{
    const cJSON *messages = js_get(doc, "messages");
    int i = 0;
    if (!messages)
        return api_fail(e, "messages", "missing_required_parameter", "messages: it is required");
    if (!cJSON_IsArray(messages) || !messages->child)
        return api_fail(e, "messages", "invalid_value",
                        "messages: expected an array of at least one message");
    int64_t n = 0; /* each has a token at least: refused before its template takes memory for it */
    for (const cJSON *m = messages->child; m; m = m->next)
        n++;
    if (n > a->m.max_len)
        return api_fail(e, "messages", "context_length_exceeded",
                        "this model's maximum context length is %lld tokens: there are %lld "
                        "messages",
                        (long long)a->m.max_len, (long long)n);
    char call_id[32] = "";
    for (cJSON *m = messages->child; m; m = m->next) {
        lq_status s = check_message(m, i++, call_id, e);
        if (s) return s;
    }
    if (!a->m.backend.render)
        return api_fail(e, NULL, "no_chat_template", "the model has no chat template");
    chat_request full = *q;
    full.messages = messages;
    if (a->m.tok && !lq_mul(api_most_bytes(a), tail ? API_MAX_CUT : 1, &full.max_bytes))
        full.max_bytes = 0;
    lq_err err = { "" };
    lq_status s = a->m.backend.render(a->m.backend.self, &full, &p->ids, &p->n, &err);
    if (!s) return LQ_OK;
    if (s == LQ_ESHAPE)
        return api_fail(e, "messages", "context_length_exceeded",
                        "this model's maximum context length is %lld tokens: %s",
                        (long long)a->m.max_len, err.msg);
    api_fail(e, "messages", "template_error", "%s", err.msg);
    if (s == LQ_ENOMEM) e->status = 503;
    return s;
}

/* ---- a request ---- */

bool api_takes_tools(const api *a)
{
    const chat_form *f = a->m.tool_form;
    return f && f->args != FORM_NO_CALLS && !(f->generic && a->o.no_generic_tools);
}

lq_status api_can_call(const api *a, api_error *e)
{
    if (!a->m.tool_form || api_takes_tools(a)) return LQ_OK;
    return api_fail(e, "tools", "unsupported_value",
                    "tools: the model's chat template cannot be used for them: %s", a->m.no_calls);
}

lq_status api_render(const api *a, api_request *q, api_error *e)
{
    api_params *p = &q->p;
    if (p->tools && api_can_call(a, e)) return LQ_EVALUE;
    chat_request c = { .tools = p->tools,
                       .kwargs = p->template_kwargs,
                       .add_generation_prompt = p->add_generation_prompt,
                       .continue_final = p->continue_final };
    if (!q->prompts) q->prompts = calloc(1, sizeof *q->prompts);
    if (!q->prompts) return api_no_memory(e);
    q->n = 1;
    free(q->prompts->ids);
    *q->prompts = (api_prompt){ 0 };
    return api_chat_prompt(a, q->prompts, q->doc, &c, p->truncate != 0, e);
}

bool api_read_chat(api *a, http_req *r, const gen_shape *shape, api_request *q)
{
    api_error e = { 0 };
    api_params *p = &q->p;
    const api_dialect *d = shape->dialect;
    *q = (api_request){ 0 };
    if (!api_ready(a, r)) return false;
    q->doc = d ? api_parse_to_translate(r) : api_parse(r);
    if (!q->doc) return false;
    lq_status s = d ? api_body_translate(a, d, q, &e) : LQ_OK;
    if (!s)
        s = api_params_read(p, q->doc, API_CHAT, &a->m.defaults, a->m.vocab, a->o.strict_params,
                            &e);
    if (!s) s = api_thinking_variables(a, p, &e);
    api_note_params(a, p);
    if (!s && !api_serves(a, p->model)) s = api_no_model(&e, p->model);
    if (!s) {
        s = api_render(a, q, &e);
        if (d && d->edit) s = d->edit(a, q, s, &e);
    }
    if (!s) return true;
    if (d) api_body_error(d, &e);
    api_reply_error(a, r, &e);
    api_request_free(q);
    return false;
}

void api_post_chat(void *app, http_req *r)
{
    api_request q;
    if (api_read_chat(app, r, &gen_chat, &q)) api_generate(app, r, &gen_chat, &q);
}

void api_post_render(void *app, http_req *r)
{
    api *a = app;
    api_request q;
    char *text = NULL;
    size_t n = 0;
    lq_err err;
    if (!api_read_chat(a, r, &gen_chat, &q)) return;
    if (tok_decode(a->m.tok, q.prompts->ids, q.prompts->n, false, &text, &n, &err)) {
        http_error(r, 503, NULL, NULL, "out of memory");
    } else {
        jw w = { 0 };
        jw_open(&w, '{');
        jw_key(&w, "prompt");
        jw_str(&w, text, n);
        jw_key(&w, "prompt_token_ids");
        jw_open(&w, '[');
        for (size_t i = 0; i < q.prompts->n; i++)
            jw_i64(&w, q.prompts->ids[i]);
        jw_close(&w, ']');
        jw_close(&w, '}');
        api_reply(r, 200, &w);
    }
    free(text);
    api_request_free(&q);
}
