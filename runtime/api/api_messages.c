/* runtime/api/api_messages.c - see api_messages.h: POST /v1/messages and /v1/messages/count_tokens. */
#include "runtime/api/api_messages.h"

#include "runtime/api/api_items.h"

#include <stdio.h>

/* ---- errors ---- */

static const char *error_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } types[] = { { 401, "authentication_error" }, { 403, "permission_error" },
                  { 404, "not_found_error" },      { 413, "request_too_large" },
                  { 429, "rate_limit_error" },     { 503, "overloaded_error" },
                  { 504, "timeout_error" } };
    for (size_t i = 0; i < LQ_COUNT(types); i++)
        if (types[i].status == status) return types[i].type;
    return status < 500 ? "invalid_request_error" : "api_error";
}

static void write_error(jw *w, int status, const char *param, const char *code, const char *message)
{
    (void)param; /* the message names it */
    (void)code;
    jw_open(w, '{');
    jw_key(w, "type");
    jw_cstr(w, "error");
    jw_key(w, "error");
    jw_open(w, '{');
    jw_key(w, "type");
    jw_cstr(w, error_type(status));
    jw_key(w, "message");
    jw_cstr(w, message);
    jw_close(w, '}');
    jw_close(w, '}');
}

#define STYLE \
    .error = write_error, .id = "request-id", .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
const http_style api_messages_style = { STYLE };
const http_style api_messages_bare = { STYLE, .untyped = true };

/* ---- pieces ---- */

/* Tokens of the prompt that were not computed again are told by themselves. */
static void write_usage(jw *w, const gen_choice *c)
{
    const int64_t cached = c->stats.n_cached;
    jw_key(w, "usage");
    jw_open(w, '{');
    jw_key(w, "input_tokens");
    jw_i64(w, c->g->prompts.n_ids - cached);
    jw_key(w, "cache_creation_input_tokens");
    jw_i64(w, 0);
    jw_key(w, "cache_read_input_tokens");
    jw_i64(w, cached);
    jw_key(w, "output_tokens");
    jw_i64(w, c->stats.n_output);
    jw_close(w, '}');
}

static const char *stop_reason(const gen_choice *c)
{
    const int64_t most = c->g->p.max_tokens;
    return c->end.finish == ENG_LENGTH
               ? (most > c->stats.n_output ? "model_context_window_exceeded" : "max_tokens")
           : c->end.finish != ENG_STOP ? NULL
           : gen_has_call(c)           ? "tool_use"
           : c->end.stop_string        ? "stop_sequence"
                                       : "end_turn";
}

static void write_stop(jw *w, const gen_choice *c)
{
    const char *reason = stop_reason(c);
    jw_key(w, "stop_reason");
    jw_cstr(w, reason);
    jw_key(w, "stop_sequence");
    jw_cstr(w, reason && strcmp(reason, "stop_sequence") == 0 ? c->end.stop_string : NULL);
}

/* A block, whole or (a stream's first event of it) still empty. */
static void write_block(jw *w, const gen_choice *c, const gen_item *t, bool whole)
{
    static const lq_buf none;
    const lq_buf *text = whole ? &t->text : &none;
    char id[96];
    jw_open(w, '{');
    jw_key(w, "type");
    switch (t->kind) {
    case CHAT_REASONING:
        jw_cstr(w, "thinking");
        gen_put_text(w, "thinking", text);
        jw_key(w, "signature");
        jw_cstr(w, "");
        break;
    case CHAT_CALL:
        jw_cstr(w, "tool_use");
        jw_key(w, "id");
        snprintf(id, sizeof id, "toolu_%s%x", gen_key(c->g), (unsigned)gen_item_number(c, t));
        jw_cstr(w, id);
        gen_put_text(w, "name", &t->name);
        jw_key(w, "input");
        gen_put_object(w, text);
        break;
    default:
        jw_cstr(w, "text");
        gen_put_text(w, "text", text);
    }
    jw_close(w, '}');
}

/* What the message is but for its blocks; left open. */
static void write_message(jw *w, const gen *g)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, g->answer.id);
    jw_key(w, "type");
    jw_cstr(w, "message");
    jw_key(w, "role");
    jw_cstr(w, "assistant");
    jw_key(w, "model");
    jw_cstr(w, g->answer.model);
}

/* ---- the stream ---- */

static jw *begin_event(const gen_choice *c, const char *type)
{
    jw *w = &c->g->answer.chunk;
    jw_clear(w);
    jw_open(w, '{');
    jw_key(w, "type");
    jw_cstr(w, type);
    return w;
}

static bool send(const gen_choice *c, const char *type)
{
    jw *w = &c->g->answer.chunk;
    jw_close(w, '}');
    return http_stream_event(c->g->r, type, w->b.oom ? NULL : w->b.p, w->b.n);
}

static jw *begin_block_event(const gen_choice *c, const char *type, const gen_item *t)
{
    jw *w = begin_event(c, type);
    jw_key(w, "index");
    jw_i64(w, gen_item_number(c, t));
    return w;
}

static bool open_message(gen_choice *c)
{
    jw *w = begin_event(c, "message_start");
    jw_key(w, "message");
    write_message(w, c->g);
    jw_key(w, "content");
    jw_open(w, '[');
    jw_close(w, ']');
    jw_key(w, "stop_reason");
    jw_null(w);
    jw_key(w, "stop_sequence");
    jw_null(w);
    write_usage(w, c);
    jw_close(w, '}');
    return send(c, "message_start");
}

static bool begin_block(gen_choice *c, const gen_item *t)
{
    jw *w = begin_block_event(c, "content_block_start", t);
    jw_key(w, "content_block");
    write_block(w, c, t, false);
    return send(c, "content_block_start");
}

static bool send_delta(gen_choice *c, const gen_item *t, const char *p, size_t n)
{
    static const struct {
        const char *type, *key;
    } deltas[] = { [CHAT_CONTENT] = { "text_delta", "text" },
                   [CHAT_REASONING] = { "thinking_delta", "thinking" },
                   [CHAT_CALL] = { "input_json_delta", "partial_json" } };
    jw *w = begin_block_event(c, "content_block_delta", t);
    jw_key(w, "delta");
    jw_open(w, '{');
    jw_key(w, "type");
    jw_cstr(w, deltas[t->kind].type);
    jw_key(w, deltas[t->kind].key);
    jw_str(w, p, n);
    jw_close(w, '}');
    return send(c, "content_block_delta");
}

static bool end_block(gen_choice *c, const gen_item *t)
{
    begin_block_event(c, "content_block_stop", t);
    return send(c, "content_block_stop");
}

static bool chunk(gen_choice *c)
{
    static const gen_item_events events = { open_message, begin_block, send_delta, end_block };
    return gen_send_items(c, &events);
}

static bool end_stream(gen *g)
{
    const gen_choice *c = &g->choices.v[0];
    jw *w = begin_event(c, "message_delta");
    jw_key(w, "delta");
    jw_open(w, '{');
    write_stop(w, c);
    jw_close(w, '}');
    write_usage(w, c);
    api_write_edits(w, g->body);
    if (!send(c, "message_delta")) return false;
    begin_event(c, "message_stop");
    return send(c, "message_stop");
}

static bool send_error(gen *g)
{
    jw *w = &g->answer.chunk;
    const api_error *e = &g->state.error;
    jw_clear(w);
    write_error(w, e->status, NULL, NULL, e->err.msg);
    return http_stream_event(g->r, "error", w->b.oom ? NULL : w->b.p, w->b.n);
}

static void write_answer(gen *g, jw *w)
{
    const gen_choice *c = &g->choices.v[0];
    w->b.oom |= c->text.oom;
    write_message(w, g);
    jw_key(w, "content");
    jw_open(w, '[');
    for (int i = 0; i < c->items.n; i++)
        write_block(w, c, &c->items.v[i], true);
    jw_close(w, ']');
    write_stop(w, c);
    write_usage(w, c);
    api_write_edits(w, g->body);
    jw_close(w, '}');
}

static const gen_shape shape = { .kind = API_CHAT,
                                 .prefix = "msg_",
                                 .prompt = "messages",
                                 .dialect = &api_messages_dialect,
                                 .fills = true,
                                 .take = gen_take_item,
                                 .chunk = chunk,
                                 .end = end_stream,
                                 .error = send_error,
                                 .answer = write_answer };

void api_post_messages(void *app, http_req *r)
{
    api_request q;
    if (api_read_chat(app, r, &shape, &q)) api_generate(app, r, &shape, &q);
}

void api_post_count_tokens(void *app, http_req *r)
{
    static const gen_shape count = { .kind = API_CHAT, .dialect = &api_count_dialect };
    api_request q;
    jw w = { 0 };
    if (!api_read_chat(app, r, &count, &q)) return;
    jw_open(&w, '{');
    jw_key(&w, "input_tokens");
    jw_i64(&w, (int64_t)q.prompts[0].n);
    api_write_original_tokens(&w, q.body);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
    api_request_free(&q);
}
