/* runtime/api/api_responses.c - see api_responses.h: POST /v1/responses. */
#include "runtime/api/api_responses.h"

#include "runtime/api/api_follow.h"
#include "runtime/api/api_items.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- items ---- */

typedef enum { ADDED, DONE } item_state; /* in a stream an item appears empty, and later whole */

/* The client has asked for summaries of thoughts: the thought itself is the best one. */
static bool wants_summary(const gen *g)
{
    return js_get(js_get(g->body, "reasoning"), "summary") != NULL;
}

static bool is_custom(const gen_choice *c, const gen_item *t)
{
    return t->kind == CHAT_CALL && api_is_custom(&c->g->p, t->name.p ? t->name.p : "", t->name.n);
}

static const char *item_id(char id[96], const gen_choice *c, const gen_item *t)
{
    const char *prefix = t->kind == CHAT_REASONING ? "rs"
                         : t->kind == CHAT_CONTENT ? "msg"
                         : is_custom(c, t)         ? "ctc"
                                                   : "fc";
    snprintf(id, 96, "%s_%s%x", prefix, gen_key(c->g), (unsigned)gen_item_number(c, t));
    return id;
}

static const char *item_status(const gen_choice *c, const gen_item *t, item_state state)
{
    const bool cut = c->end.finish == ENG_LENGTH && gen_item_number(c, t) == c->items.n - 1;
    return state == ADDED ? "in_progress" : cut ? "incomplete" : "completed";
}

static void put_empty_list(jw *w, const char *key)
{
    jw_key(w, key);
    jw_json(w, "[]", 2);
}

/* Of the tokens from a byte of the list on. */
static void put_logprobs(jw *w, const gen_item *t, size_t from)
{
    const lq_buf *list = &t->logprobs.b;
    from += from && from < list->n; /* the comma */
    jw_key(w, "logprobs");
    jw_open(w, '[');
    jw_json(w, list->p + from, list->n - from);
    jw_close(w, ']');
}

/* A part of a message, a thought or its summary: the item's text, or none yet. */
static void write_part(jw *w, const char *type, const gen_item *t, item_state state)
{
    static const lq_buf none;
    jw_open(w, '{');
    jw_put_cstr(w, "type", type);
    gen_put_text(w, "text", state == DONE ? &t->text : &none);
    if (strcmp(type, "output_text") == 0) {
        put_empty_list(w, "annotations");
        put_logprobs(w, t, state == DONE ? 0 : t->logprobs.b.n);
    }
    jw_close(w, '}');
}

static void write_parts(jw *w, const char *key, const char *type, const gen_item *t, bool any)
{
    jw_key(w, key);
    jw_open(w, '[');
    if (any) write_part(w, type, t, DONE);
    jw_close(w, ']');
}

static void write_thought(jw *w, const gen_choice *c, const gen_item *t, item_state state)
{
    const bool summary = wants_summary(c->g);
    write_parts(w, "summary", "summary_text", t, summary && state == DONE);
    if (!summary) write_parts(w, "content", "reasoning_text", t, state == DONE);
    if (state != DONE || !api_wants(c->g->body, "reasoning.encrypted_content")) return;
    lq_buf secret = { 0 };
    lq_buf_puts(&secret, API_THOUGHT_MARK);
    lq_buf_add(&secret, t->text.p, t->text.n);
    gen_put_text(w, "encrypted_content", &secret);
    w->b.oom |= secret.oom;
    lq_buf_free(&secret);
}

static void put_name(jw *w, const gen_choice *c, const gen_item *t)
{
    const char *space, *name = api_split_name(js_get(c->g->body, "tools"), &t->name, &space);
    if (name) {
        jw_put_cstr(w, "name", name);
        jw_put_cstr(w, "namespace", space);
    } else {
        gen_put_text(w, "name", &t->name);
    }
}

static void write_call(jw *w, const gen_choice *c, const gen_item *t, const lq_buf *text)
{
    static const lq_buf none;
    const bool custom = is_custom(c, t);
    lq_buf input = { 0 };
    char id[96];
    snprintf(id, sizeof id, "call_%s%x", gen_key(c->g), (unsigned)gen_item_number(c, t));
    jw_put_cstr(w, "call_id", id);
    put_name(w, c, t);
    if (custom && text) api_custom_input(&input, &t->text);
    gen_put_text(w, custom ? "input" : "arguments", custom ? &input : text ? text : &none);
    w->b.oom |= input.oom;
    lq_buf_free(&input);
}

static void write_item(jw *w, const gen_choice *c, const gen_item *t, item_state state)
{
    const lq_buf *text = state == DONE ? &t->text : NULL;
    char id[96];
    jw_open(w, '{');
    jw_put_cstr(w, "id", item_id(id, c, t));
    jw_put_cstr(w, "type",
                t->kind == CHAT_REASONING ? "reasoning"
                : t->kind == CHAT_CONTENT ? "message"
                : is_custom(c, t)         ? "custom_tool_call"
                                          : "function_call");
    jw_put_cstr(w, "status", item_status(c, t, state));
    if (t->kind == CHAT_REASONING) {
        write_thought(w, c, t, state);
    } else if (t->kind == CHAT_CONTENT) {
        jw_put_cstr(w, "role", "assistant");
        write_parts(w, "content", "output_text", t, state == DONE);
    } else {
        write_call(w, c, t, text);
    }
    jw_close(w, '}');
}

/* ---- the response ---- */

static int64_t thought_tokens(const gen_choice *c)
{
    int64_t total = 0;
    for (int i = 0; i < c->items.n; i++) {
        const gen_item *t = &c->items.v[i];
        int32_t *ids = NULL;
        size_t n = 0;
        if (t->kind == CHAT_REASONING && c->g->a->m.tok &&
            !tok_encode(c->g->a->m.tok, t->text.p, t->text.n, 0, &ids, &n, NULL))
            total += (int64_t)n;
        free(ids);
    }
    return total < c->stats.n_output ? total : c->stats.n_output;
}

void api_write_usage(jw *w, const gen_choice *c)
{
    const int64_t in = c->g->prompts.n_ids, out = c->stats.n_output;
    jw_key(w, "usage");
    jw_open(w, '{');
    jw_put_i64(w, "input_tokens", in);
    jw_key(w, "input_tokens_details");
    jw_open(w, '{');
    jw_put_i64(w, "cached_tokens", c->stats.n_cached);
    jw_close(w, '}');
    jw_put_i64(w, "output_tokens", out);
    jw_key(w, "output_tokens_details");
    jw_open(w, '{');
    jw_put_i64(w, "reasoning_tokens", thought_tokens(c));
    jw_close(w, '}');
    jw_put_i64(w, "total_tokens", in + out);
    jw_close(w, '}');
}

/* A member of the request, as it was; else the JSON text. */
static void echo(jw *w, const gen *g, const char *key, const char *otherwise)
{
    const cJSON *v = js_get(g->body, key);
    char *text = v ? js_print(v, false) : NULL;
    w->b.oom |= v && !text;
    jw_key(w, key);
    if (text)
        jw_json(w, text, strlen(text));
    else
        jw_json(w, otherwise, strlen(otherwise));
    free(text);
}

static bool keeps(const gen *g) { return g->a->store && !cJSON_IsFalse(js_get(g->body, "store")); }

static void write_request(jw *w, const gen *g)
{
    echo(w, g, "instructions", "null");
    echo(w, g, "max_output_tokens", "null");
    echo(w, g, "metadata", "{}");
    echo(w, g, "previous_response_id", "null");
    echo(w, g, "reasoning", "{\"effort\":null,\"summary\":null}");
    echo(w, g, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(w, g, "tool_choice", "\"auto\"");
    echo(w, g, "tools", "[]");
    echo(w, g, "truncation", "\"disabled\"");
    echo(w, g, "user", "null");
    jw_key(w, "parallel_tool_calls");
    jw_bool(w, g->p.parallel_calls);
    jw_key(w, "store");
    jw_bool(w, keeps(g));
    jw_key(w, "temperature");
    jw_f64(w, g->p.temperature);
    jw_key(w, "top_p");
    jw_f64(w, g->p.top_p);
}

static void write_error(jw *w, const api_error *e)
{
    jw_key(w, "error");
    if (!e) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    jw_put_cstr(w, "code", e->code ? e->code : "server_error");
    jw_put_cstr(w, "message", e->err.msg);
    jw_close(w, '}');
}

static bool is_background(const gen *g) { return cJSON_IsTrue(js_get(g->body, "background")); }

/* c: the choice that has ended; NULL: the response has just begun, or (e) failed. */
static void write_response(jw *w, const gen *g, const gen_choice *c, const api_error *e)
{
    const bool cut = c && c->end.finish == ENG_LENGTH;
    jw_open(w, '{');
    jw_put_cstr(w, "id", g->answer.id);
    jw_put_cstr(w, "object", "response");
    jw_put_i64(w, "created_at", g->answer.created);
    jw_put_cstr(w, "status", e ? "failed" : !c ? "in_progress" : cut ? "incomplete" : "completed");
    jw_key(w, "background");
    jw_bool(w, is_background(g));
    write_error(w, e);
    jw_key(w, "incomplete_details");
    jw_json(w, cut ? "{\"reason\":\"max_output_tokens\"}" : "null", cut ? 30 : 4);
    jw_put_cstr(w, "model", g->answer.model);
    jw_key(w, "output");
    jw_open(w, '[');
    for (int i = 0; c && i < c->items.n; i++)
        write_item(w, c, &c->items.v[i], DONE);
    jw_close(w, ']');
    write_request(w, g);
    if (c) {
        w->b.oom |= c->text.oom;
        api_write_usage(w, c);
    } else {
        jw_key(w, "usage");
        jw_null(w);
    }
    jw_close(w, '}');
}

/* ---- what is kept ---- */

static void add_items(jw *w, const cJSON *list)
{
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next) {
        char *text = js_print(v, false);
        w->b.oom |= !text;
        if (text) jw_json(w, text, strlen(text));
        free(text);
    }
}

/* All items of the talk, which the next request goes on from. c NULL: nothing is answered yet. */
static void write_talk(jw *w, const gen *g, const gen_choice *c)
{
    const cJSON *input = js_get(g->body, "input");
    jw_open(w, '[');
    add_items(w, g->past);
    if (cJSON_IsString(input)) {
        jw_open(w, '{');
        jw_put_cstr(w, "role", "user");
        jw_put_cstr(w, "content", input->valuestring);
        jw_close(w, '}');
    } else {
        add_items(w, input);
    }
    for (int i = 0; c && i < c->items.n; i++)
        write_item(w, c, &c->items.v[i], DONE);
    jw_close(w, ']');
}

/* What was cancelled or forgotten meanwhile stays so. */
static void keep(const gen *g, const jw *response)
{
    jw w = { 0 };
    if (!keeps(g)) return;
    write_talk(&w, g, &g->choices.v[0]);
    if (is_background(g))
        api_response_end(g->a, g->answer.id, &response->b, &w.b);
    else
        api_store_put(g->a->store, g->answer.id, &response->b, &w.b, NULL);
    jw_free(&w);
}

/* ---- the stream ---- */

static jw *begin_event(gen *g, const char *type)
{
    jw *w = &g->answer.chunk;
    jw_clear(w);
    jw_open(w, '{');
    jw_put_cstr(w, "type", type);
    jw_put_i64(w, "sequence_number", g->answer.n_events++);
    return w;
}

static bool send(gen *g, const char *type)
{
    jw *w = &g->answer.chunk;
    jw_close(w, '}');
    return http_stream_event(g->r, type, w->b.oom ? NULL : w->b.p, w->b.n);
}

/* What says again what came in pieces. */
static bool send_again(gen *g, const char *type)
{
    jw *w = &g->answer.chunk;
    jw_close(w, '}');
    return http_stream_repeat(g->r, type, w->b.oom ? NULL : w->b.p, w->b.n);
}

static bool send_response(gen *g, const char *type, const gen_choice *c, const api_error *e)
{
    jw *w = begin_event(g, type);
    jw_key(w, "response");
    write_response(w, g, c, e);
    return send(g, type);
}

/* Of one in the background they are in its log before it is made. */
static const char *const opening[] = { "response.created", "response.in_progress" };

static void write_opening(gen *g, lq_buf *events)
{
    for (size_t i = 0; i < LQ_COUNT(opening); i++) {
        jw *w = begin_event(g, opening[i]);
        jw_key(w, "response");
        write_response(w, g, NULL, NULL);
        jw_close(w, '}');
        lq_buf_printf(events, "event: %s\ndata: ", opening[i]);
        lq_buf_add(events, w->b.p, w->b.n);
        lq_buf_puts(events, "\n\n");
        events->oom |= w->b.oom;
    }
}

static bool open_stream(gen_choice *c)
{
    if (is_background(c->g)) {
        c->g->answer.n_events = LQ_COUNT(opening);
        return true;
    }
    return send_response(c->g, opening[0], NULL, NULL) &&
           send_response(c->g, opening[1], NULL, NULL);
}

static bool send_item(gen_choice *c, const gen_item *t, const char *type, item_state state)
{
    jw *w = begin_event(c->g, type);
    jw_put_i64(w, "output_index", gen_item_number(c, t));
    jw_key(w, "item");
    write_item(w, c, t, state);
    return state == DONE ? send_again(c->g, type) : send(c->g, type);
}

/* Events of the parts that an item has: of its text (with the member that holds it when it is
 * done), and of the part itself. */
typedef struct {
    const char *index; /* the member that numbers the part; NULL: the item is one */
    const char *part;  /* the type of the part */
    const char *added, *delta, *done, *ended, *text;
} part_events;

static const part_events *events_of(const gen_choice *c, const gen_item *t)
{
    static const part_events message = { "content_index",
                                         "output_text",
                                         "response.content_part.added",
                                         "response.output_text.delta",
                                         "response.output_text.done",
                                         "response.content_part.done",
                                         "text" },
                             thought = { "content_index",
                                         "reasoning_text",
                                         "response.content_part.added",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.done",
                                         "response.content_part.done",
                                         "text" },
                             summary = { "summary_index",
                                         "summary_text",
                                         "response.reasoning_summary_part.added",
                                         "response.reasoning_summary_text.delta",
                                         "response.reasoning_summary_text.done",
                                         "response.reasoning_summary_part.done",
                                         "text" },
                             call = { .delta = "response.function_call_arguments.delta",
                                      .done = "response.function_call_arguments.done",
                                      .text = "arguments" },
                             custom = { .delta = "response.custom_tool_call_input.delta",
                                        .done = "response.custom_tool_call_input.done",
                                        .text = "input" };
    return t->kind == CHAT_CONTENT     ? &message
           : t->kind == CHAT_REASONING ? (wants_summary(c->g) ? &summary : &thought)
           : is_custom(c, t)           ? &custom
                                       : &call;
}

static jw *begin_part_event(gen_choice *c, const gen_item *t, const part_events *e,
                            const char *type)
{
    jw *w = begin_event(c->g, type);
    char id[96];
    jw_put_cstr(w, "item_id", item_id(id, c, t));
    jw_put_i64(w, "output_index", gen_item_number(c, t));
    if (e->index) jw_put_i64(w, e->index, 0);
    return w;
}

static bool send_part(gen_choice *c, const gen_item *t, const part_events *e, const char *type,
                      item_state state)
{
    if (!e->part) return true;
    jw *w = begin_part_event(c, t, e, type);
    jw_key(w, "part");
    write_part(w, e->part, t, state);
    return state == DONE ? send_again(c->g, type) : send(c->g, type);
}

static bool begin_item(gen_choice *c, const gen_item *t)
{
    const part_events *e = events_of(c, t);
    return send_item(c, t, "response.output_item.added", ADDED) &&
           send_part(c, t, e, e->added, ADDED);
}

static bool send_text(gen_choice *c, const gen_item *t, const char *p, size_t n)
{
    const part_events *e = events_of(c, t);
    jw *w = begin_part_event(c, t, e, e->delta);
    jw_key(w, "delta");
    jw_str(w, p, n);
    if (t->kind == CHAT_CONTENT) put_logprobs(w, t, t->n_told);
    return send(c->g, e->delta);
}

/* A custom tool's text is known when its argument is whole. */
static bool send_delta(gen_choice *c, const gen_item *t, const char *p, size_t n)
{
    return is_custom(c, t) || send_text(c, t, p, n);
}

static bool end_item(gen_choice *c, const gen_item *t)
{
    const part_events *e = events_of(c, t);
    const bool custom = is_custom(c, t);
    lq_buf input = { 0 };
    if (custom) api_custom_input(&input, &t->text);
    bool ok = !input.oom && (!input.n || send_text(c, t, input.p, input.n));
    if (ok) {
        jw *w = begin_part_event(c, t, e, e->done);
        gen_put_text(w, e->text, custom ? &input : &t->text);
        if (t->kind == CHAT_CONTENT) put_logprobs(w, t, 0);
        if (t->kind == CHAT_CALL) put_name(w, c, t);
        ok = send_again(c->g, e->done);
    }
    lq_buf_free(&input);
    return ok && send_part(c, t, e, e->ended, DONE) &&
           send_item(c, t, "response.output_item.done", DONE);
}

static bool chunk(gen_choice *c)
{
    static const gen_item_events events = { open_stream, begin_item, send_delta, end_item };
    return gen_send_items(c, &events);
}

/* Who follows it is told its end from what is kept (api_follow.h). A log that took no more has been ended by another, or
 * there is no room for it. */
static void end_in_background(gen *g, const api_error *e)
{
    api_error lost = { 0 };
    jw response = { 0 };
    if (!e && atomic_load(&g->state.gone)) {
        api_fail(&lost, NULL, NULL, "there is no room to keep the response's events");
        e = &lost;
    }
    write_response(&response, g, e ? NULL : &g->choices.v[0], e);
    if (!e)
        keep(g, &response);
    else if (!response.b.oom)
        api_response_end(g->a, g->answer.id, &response.b, NULL);
    jw_free(&response);
}

static bool end_stream(gen *g)
{
    const gen_choice *c = &g->choices.v[0];
    jw response = { 0 };
    if (is_background(g)) {
        end_in_background(g, NULL);
        return true;
    }
    write_response(&response, g, c, NULL);
    const char *type = c->end.finish == ENG_LENGTH ? "response.incomplete" : "response.completed";
    jw *w = begin_event(g, type);
    jw_key(w, "response");
    jw_json(w, response.b.p, response.b.n);
    w->b.oom |= response.b.oom;
    keep(g, &response);
    jw_free(&response);
    return send_again(g, type);
}

static bool fail_stream(gen *g)
{
    gen_choice *c = &g->choices.v[0];
    if (is_background(g)) {
        end_in_background(g, &g->state.error);
        return true;
    }
    if (!c->opened && !open_stream(c)) return false;
    return send_response(g, "response.failed", NULL, &g->state.error);
}

static void write_answer(gen *g, jw *w)
{
    write_response(w, g, &g->choices.v[0], NULL);
    keep(g, w);
}

static const gen_shape shape = { .kind = API_CHAT,
                                 .prefix = "resp_",
                                 .secret = true,
                                 .prompt = "input",
                                 .dialect = &api_responses_dialect,
                                 .item_logprobs = true,
                                 .fills = true,
                                 .take = gen_take_item,
                                 .chunk = chunk,
                                 .end = end_stream,
                                 .error = fail_stream,
                                 .answer = write_answer };

void api_post_responses(void *app, http_req *r)
{
    api_request q;
    if (!api_read_chat(app, r, &shape, &q)) return;
    if (!cJSON_IsTrue(js_get(q.body, "background"))) {
        api_generate(app, r, &shape, &q);
        return;
    }
    api_name_answer(app, &shape, q.id);
    gen g = { .a = app, .shape = &shape, .p = q.p, .body = q.body, .past = q.past };
    g.answer.model = q.p.model ? q.p.model : g.a->names[0];
    g.answer.created = (int64_t)time(NULL);
    memcpy(g.answer.id, q.id, sizeof q.id);
    jw response = { 0 }, items = { 0 };
    lq_buf events = { 0 };
    write_response(&response, &g, NULL, NULL);
    write_talk(&items, &g, NULL);
    if (q.p.stream) write_opening(&g, &events);
    api_background(app, r, &shape, &q, &response.b, &items.b, q.p.stream ? &events : NULL);
    jw_free(&response);
    jw_free(&items);
    jw_free(&g.answer.chunk);
    lq_buf_free(&events);
}

void api_post_input_tokens(void *app, http_req *r)
{
    api_request q;
    jw w = { 0 };
    if (!api_read_chat(app, r, &shape, &q)) return;
    jw_open(&w, '{');
    jw_put_cstr(&w, "object", "response.input_tokens");
    jw_put_i64(&w, "input_tokens", (int64_t)q.prompts[0].n);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
    api_request_free(&q);
}

/* ---- kept ones ---- */

bool api_complete_item(cJSON *v, const char *response, int i)
{
    char id[96];
    cJSON *content = cJSON_GetObjectItemCaseSensitive(v, "content");
    bool ok = true;
    snprintf(id, sizeof id, "item_%.64s_%d", response, i);
    if (!js_get(v, "id")) ok = cJSON_AddStringToObject(v, "id", id) != NULL;
    if (!js_get(v, "type")) ok = ok && cJSON_AddStringToObject(v, "type", "message");
    if (!ok || !cJSON_IsString(content)) return ok;
    const bool said = api_is(js_get(v, "role"), "assistant");
    cJSON *parts = cJSON_CreateArray(), *part = cJSON_CreateObject();
    ok = cJSON_AddStringToObject(part, "type", said ? "output_text" : "input_text") &&
         cJSON_AddStringToObject(part, "text", content->valuestring) &&
         cJSON_AddItemToArray(parts, part);
    if (!ok) cJSON_Delete(part);
    ok = ok && cJSON_ReplaceItemInObjectCaseSensitive(v, "content", parts);
    if (!ok) cJSON_Delete(parts);
    return ok;
}

/* The first n items, the latest first unless `order` says asc. */
static void write_items(jw *w, http_req *r, cJSON *items, int n, const char *id, api_page *p)
{
    const char *order = http_query(r, "order");
    const bool rising = order && strcmp(order, "asc") == 0;
    jw_open(w, '{');
    jw_put_cstr(w, "object", "list");
    jw_key(w, "data");
    jw_open(w, '[');
    cJSON *v = n > 0 ? cJSON_GetArrayItem(items, rising ? 0 : n - 1) : NULL;
    for (int k = 0; k < n && !p->more; k++, v = rising ? v->next : v->prev) {
        w->b.oom |= !api_complete_item(v, id, rising ? k : n - 1 - k);
        const char *its = cJSON_GetStringValue(js_get(v, "id"));
        if (!api_page_takes(p, its ? its : "", true)) continue;
        char *text = js_print(v, false);
        w->b.oom |= !text;
        if (text) jw_json(w, text, strlen(text));
        free(text);
    }
    jw_close(w, ']');
    api_write_page(w, p);
    jw_close(w, '}');
}

/* ID/input_items: what the response answered. */
static void give_items(api *a, http_req *r, const char *id)
{
    lq_buf response = { 0 }, items = { 0 };
    cJSON *made = NULL, *all = NULL;
    api_page p;
    jw w = { 0 };
    if (!api_read_page(r, &p, 20, 100)) return;
    const bool found = api_store_get(a->store, id, &response, &items);
    const bool ok = found && !js_parse(&made, response.p, response.n, API_STORE_BYTES, 0, NULL) &&
                    !js_parse(&all, items.p, items.n, API_STORE_BYTES, 0, NULL);
    if (ok) {
        const int n = cJSON_GetArraySize(all) - cJSON_GetArraySize(js_get(made, "output"));
        write_items(&w, r, all, n, id, &p);
        api_reply(r, 200, &w);
    } else if (found) {
        http_error(r, 503, NULL, NULL, "out of memory");
    } else {
        api_response_not_kept(a, r, id);
    }
    cJSON_Delete(made);
    cJSON_Delete(all);
    lq_buf_free(&response);
    lq_buf_free(&items);
}

/* Is the stream of the kept response wanted, and behind which event (-1: all)? False: r is answered. */
static bool read_stream(http_req *r, bool *stream, int64_t *after)
{
    const char *want = http_query(r, "stream"), *from = http_query(r, "starting_after");
    char *end = NULL;
    *stream = want && strcmp(want, "true") == 0;
    *after = from ? (int64_t)strtoll(from, &end, 10) : -1;
    if (want && !*stream && strcmp(want, "false") != 0)
        http_error(r, 400, "stream", "invalid_value", "stream: expected true or false");
    else if (from && !*stream)
        http_error(r, 400, "starting_after", "invalid_value",
                   "starting_after: expected stream=true beside it");
    else if (from && (!isdigit((unsigned char)from[0]) || *end))
        http_error(r, 400, "starting_after", "invalid_value",
                   "starting_after: expected the sequence_number of an event");
    else
        return true;
    return false;
}

static void give_stream(api *a, http_req *r, const char *id, int64_t after)
{
    lq_buf none = { 0 };
    api_store_log log;
    if (!api_store_events(a->store, id, 0, 0, &none, &log))
        api_response_not_kept(a, r, id);
    else if (log == API_NO_LOG)
        http_error(r, 400, "stream", "unsupported_value",
                   "stream: expected a response that was begun with background and stream, whose "
                   "events are kept");
    else
        api_follow(a, r, id, after);
}

/* /v1/responses/ID, and ID/input_items. */
void api_get_response(void *app, http_req *r)
{
    static const char of_input[] = "/input_items";
    api *a = app;
    char id[128];
    bool stream;
    int64_t after;
    jw w = { 0 };
    snprintf(id, sizeof id, "%s", http_rest(r));
    char *slash = strchr(id, '/');
    if (slash && strcmp(slash, of_input) == 0) {
        *slash = 0;
        give_items(a, r, id);
        return;
    }
    if (!read_stream(r, &stream, &after)) return;
    if (stream)
        give_stream(a, r, id, after);
    else if (api_store_get(a->store, http_rest(r), &w.b, NULL))
        api_reply(r, 200, &w);
    else
        api_response_not_kept(a, r, http_rest(r));
}

void api_delete_response(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    if (api_response_runs(a, http_rest(r))) api_gen_abort(a, http_rest(r));
    if (!api_store_remove(a->store, http_rest(r))) {
        api_response_not_kept(a, r, http_rest(r));
        return;
    }
    api_follow_news(a, http_rest(r));
    jw_open(&w, '{');
    jw_put_cstr(&w, "id", http_rest(r));
    jw_put_cstr(&w, "object", "response");
    jw_key(&w, "deleted");
    jw_bool(&w, true);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}
