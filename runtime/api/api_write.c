/* runtime/api/api_write.c - the answers of completions and chats as JSON: whole, or in chunks. */
#include "runtime/api/api_gen_int.h"

/* ---- pieces ---- */

static void write_head(jw *w, const gen *g, const char *object)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, g->answer.id);
    jw_key(w, "object");
    jw_cstr(w, object);
    jw_key(w, "created");
    jw_i64(w, g->answer.created);
    jw_key(w, "model");
    jw_cstr(w, g->answer.model);
    jw_key(w, "system_fingerprint");
    jw_cstr(w, g->a->fingerprint);
    jw_key(w, "choices");
    jw_open(w, '[');
}

static void write_finish(jw *w, const gen_choice *c)
{
    jw_key(w, "finish_reason");
    jw_cstr(w, c->end.finish == ENG_LENGTH ? "length"
               : c->end.finish != ENG_STOP ? NULL
               : c->calls.n                ? (c->g->p.functions ? "function_call" : "tool_calls")
                                           : "stop");
    jw_key(w, "stop_reason");
    if (!c->end.stop_string && c->end.stop_id >= 0)
        jw_i64(w, c->end.stop_id);
    else
        jw_cstr(w, c->end.stop_string);
}

static void write_ids(jw *w, gen_choice *c)
{
    if (c->g->p.return_ids) gen_take_list(w, "token_ids", &c->ids);
}

static void write_prompt_ids(jw *w, const gen_choice *c)
{
    const api_prompt *p = &c->g->prompts.v[c->prompt];
    if (!c->g->p.return_ids) return;
    jw_key(w, "prompt_token_ids");
    jw_open(w, '[');
    for (size_t i = 0; i < p->n; i++)
        jw_i64(w, p->ids[i]);
    jw_close(w, ']');
}

/* ---- chunks ---- */

static bool send_done(gen *g) { return http_stream_event(g->r, NULL, "[DONE]", 6); }

void gen_write_progress(jw *w, const gen_choice *c)
{
    jw_key(w, "prompt_progress");
    jw_open(w, '{');
    jw_put_i64(w, "total", (int64_t)c->g->prompts.v[c->prompt].n);
    jw_put_i64(w, "cache", c->stats.n_cached);
    jw_put_i64(w, "processed", c->read);
    jw_put_i64(w, "time_ms", (int64_t)(1e3 * http_age(c->g->r)));
    jw_close(w, '}');
}

/* of: the choice whose progress it tells, or NULL. */
static bool send_chunk_of(gen *g, bool last, const gen_choice *of)
{
    jw *w = &g->answer.chunk;
    jw_close(w, ']');
    if (of) gen_write_progress(w, of);
    if (g->p.continuous_usage && g->p.include_usage) {
        gen_write_usage(w, g);
    } else if (g->p.include_usage && !last) {
        jw_key(w, "usage");
        jw_null(w);
    } else if (g->p.include_usage) {
        gen_write_usage(w, g);
    }
    jw_close(w, '}');
    bool ok = http_stream_event(g->r, NULL, w->b.oom ? NULL : w->b.p, w->b.n);
    jw_clear(w);
    return ok;
}

static bool send_chunk(gen *g, bool last) { return send_chunk_of(g, last, NULL); }

/* A member that is there only when there is something in it. */
static void write_part(jw *w, const char *key, lq_buf *text)
{
    if (!text->n) return;
    jw_key(w, key);
    jw_str(w, text->p, text->n);
    lq_buf_clear(text);
}

static void write_calls(jw *w, gen_choice *c)
{
    jw *list = &c->calls.list;
    gen_end_call(c);
    if (!c->g->p.functions) {
        if (list->b.n) gen_take_list(w, "tool_calls", list);
    } else if (list->b.n) {
        jw_key(w, "function_call"); /* there is one */
        jw_json(w, list->b.p, list->b.n);
        w->b.oom |= list->b.oom;
        jw_clear(list);
    }
}

/* One chunk of a chat: the role, what there is of the parts, or (`end`) the reason. */
static bool send_delta(gen_choice *c, bool role, bool end)
{
    jw *w = &c->g->answer.chunk;
    write_head(w, c->g, "chat.completion.chunk");
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, c->index);
    jw_key(w, "delta");
    jw_open(w, '{');
    if (role) {
        jw_key(w, "role");
        jw_cstr(w, "assistant");
        jw_key(w, "content");
        jw_cstr(w, "");
    } else if (!end) {
        write_part(w, "reasoning_content", &c->reasoning);
        write_part(w, "content", &c->text);
        write_calls(w, c);
    }
    jw_close(w, '}');
    if (role) {
        jw_key(w, "logprobs");
        jw_null(w);
        write_prompt_ids(w, c);
    } else {
        gen_write_logprobs(w, c);
        write_ids(w, c);
    }
    if (end) {
        write_finish(w, c);
    } else {
        jw_key(w, "finish_reason");
        jw_null(w);
    }
    jw_close(w, '}');
    return send_chunk(c->g, false);
}

static bool chat_chunk(gen_choice *c)
{
    bool ok = !c->text.oom && (c->opened || send_delta(c, true, false));
    bool news = c->text.n || c->reasoning.n || c->calls.list.b.n || c->lp.content.b.n || c->ids.b.n;
    c->opened = true;
    if (ok && news) ok = send_delta(c, false, false);
    if (ok && c->end.finish) ok = send_delta(c, false, true);
    lq_buf_clear(&c->text);
    return ok;
}

static bool chat_progress(gen_choice *c)
{
    jw *w = &c->g->answer.chunk;
    if (!c->opened && !send_delta(c, true, false)) return false;
    c->opened = true;
    write_head(w, c->g, "chat.completion.chunk");
    jw_open(w, '{');
    jw_put_i64(w, "index", c->index);
    jw_key(w, "delta");
    jw_json(w, "{}", 2);
    jw_put_cstr(w, "finish_reason", NULL);
    jw_close(w, '}');
    return send_chunk_of(c->g, false, c);
}

static void write_completion_choice(jw *w, gen_choice *c)
{
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, c->index);
    jw_key(w, "text");
    jw_str(w, c->text.p ? c->text.p : "", c->text.n);
    gen_write_logprobs(w, c);
    write_ids(w, c);
    if (!c->opened) write_prompt_ids(w, c);
    gen_write_all_prompt_logprobs(w, c->g, c->prompt);
    write_finish(w, c);
    jw_close(w, '}');
}

static bool completion_chunk(gen_choice *c)
{
    jw *w = &c->g->answer.chunk;
    write_head(w, c->g, "text_completion");
    write_completion_choice(w, c);
    c->opened = true;
    bool ok = !c->text.oom && send_chunk(c->g, false);
    lq_buf_clear(&c->text);
    return ok;
}

static bool completion_progress(gen_choice *c)
{
    jw *w = &c->g->answer.chunk;
    write_head(w, c->g, "text_completion");
    jw_open(w, '{');
    jw_put_i64(w, "index", c->index);
    jw_put_cstr(w, "text", "");
    jw_put_cstr(w, "finish_reason", NULL);
    jw_close(w, '}');
    return send_chunk_of(c->g, false, c);
}

static bool write_end(gen *g, const char *object)
{
    if (g->p.include_usage) {
        write_head(&g->answer.chunk, g, object);
        if (!send_chunk(g, true)) return false;
    }
    return send_done(g);
}

static bool write_error(gen *g)
{
    jw *w = &g->answer.chunk;
    const api_error *e = &g->state.error;
    jw_clear(w);
    http_openai.error(w, e->status, e->param[0] ? e->param : NULL, e->code, e->err.msg);
    return http_stream_event(g->r, NULL, w->b.oom ? NULL : w->b.p, w->b.n) && send_done(g);
}

/* ---- the whole answer ---- */

static void write_chat_choice(jw *w, gen_choice *c)
{
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, c->index);
    jw_key(w, "message");
    jw_open(w, '{');
    jw_key(w, "role");
    jw_cstr(w, "assistant");
    jw_key(w, "content");
    if (c->calls.n && !c->text.n)
        jw_null(w);
    else
        jw_str(w, c->text.p ? c->text.p : "", c->text.n);
    jw_key(w, "refusal");
    jw_null(w);
    write_part(w, "reasoning_content", &c->reasoning);
    write_calls(w, c);
    jw_close(w, '}');
    gen_write_logprobs(w, c);
    write_ids(w, c);
    write_prompt_ids(w, c);
    write_finish(w, c);
    jw_close(w, '}');
}

/* The choice of a prompt that has this rank. */
static gen_choice *choice_of(gen *g, size_t prompt, int rank)
{
    gen_choice *c = &g->choices.v[prompt * (size_t)g->choices.runs];
    while (c->rank != rank)
        c++;
    return c;
}

static void write_choices(gen *g, jw *w, const char *object, void (*write)(jw *w, gen_choice *c))
{
    write_head(w, g, object);
    for (size_t p = 0; p < g->prompts.n; p++)
        for (int rank = 0; rank < g->p.n; rank++) {
            gen_choice *c = choice_of(g, p, rank);
            w->b.oom |= c->text.oom;
            write(w, c);
        }
    jw_close(w, ']');
}

/* ---- the rows ---- */

static void completion_answer(gen *g, jw *w)
{
    write_choices(g, w, "text_completion", write_completion_choice);
    gen_write_usage(w, g);
    jw_close(w, '}');
}

static void chat_answer(gen *g, jw *w)
{
    write_choices(g, w, "chat.completion", write_chat_choice);
    gen_write_all_prompt_logprobs(w, g, 0);
    gen_write_usage(w, g);
    jw_close(w, '}');
}

static bool completion_end(gen *g) { return write_end(g, "text_completion"); }
static bool chat_end(gen *g) { return write_end(g, "chat.completion.chunk"); }

const gen_shape gen_completions = { .kind = API_COMPLETIONS,
                                    .prefix = "cmpl-",
                                    .prompt = "prompt",
                                    .most_tokens = 16,
                                    .take = gen_take_chat,
                                    .chunk = completion_chunk,
                                    .progress = completion_progress,
                                    .end = completion_end,
                                    .error = write_error,
                                    .answer = completion_answer };
const gen_shape gen_chat = { .kind = API_CHAT,
                             .prefix = "chatcmpl-",
                             .prompt = "messages",
                             .take = gen_take_chat,
                             .chunk = chat_chunk,
                             .progress = chat_progress,
                             .end = chat_end,
                             .error = write_error,
                             .answer = chat_answer };
