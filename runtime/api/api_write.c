/* runtime/api/api_write.c - the answer of a generation request as JSON: whole, or in chunks. */
#include "runtime/api/api_gen_int.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- logprobs ---- */

/* The token's bytes: at most 1 KiB of them. */
static size_t token_bytes(const gen *g, int32_t id, char out[1024])
{
    size_t n = g->a->m.tok ? tok_token_bytes(g->a->m.tok, id, (uint8_t *)out, 1024) : 0;
    return n < 1024 ? n : 1024;
}

/* The token as a string; its id where there is no tokenizer. Legacy logprobs use it as a key, so
 * that there bytes which are no text are spelled out ("bytes:\xe2\x80") as OpenAI does. */
static void write_token(jw *w, const gen *g, int32_t id)
{
    char s[1024], spelled[32];
    if (g->p.ids_as_tokens || !g->a->m.tok) {
        jw_str(w, spelled, (size_t)snprintf(spelled, sizeof spelled, "token_id:%d", (int)id));
        return;
    }
    size_t n = token_bytes(g, id, s);
    if (g->kind == API_CHAT || lq_utf8_valid(s, n, NULL)) {
        jw_str(w, s, n);
        return;
    }
    lq_buf t = { 0 };
    lq_buf_puts(&t, "bytes:");
    for (size_t i = 0; i < n; i++)
        lq_buf_printf(&t, "\\x%02x", (unsigned)(uint8_t)s[i]);
    jw_str(w, t.p ? t.p : "", t.n);
    w->b.oom |= t.oom;
    lq_buf_free(&t);
}

static double clean(float logprob) { return (double)(logprob > -9999 ? logprob : -9999); }

/* {"token": logprob, ...}: the alternatives and the token itself; each spelling once. */
static void write_tops(jw *w, const gen *g, const smp_result *r)
{
    size_t at[SMP_MAX_LOGPROBS + 1], len[SMP_MAX_LOGPROBS + 1];
    int n = 0;
    jw t = { 0 };
    jw_open(w, '{');
    for (int i = 0; i <= r->n_top; i++) {
        int32_t id = i < r->n_top ? r->top_id[i] : r->id;
        float lp = i < r->n_top ? r->top_logprob[i] : r->logprob;
        t.comma = false;
        at[n] = t.b.n;
        write_token(&t, g, id);
        if (t.b.oom) break;
        len[n] = t.b.n - at[n];
        bool seen = false;
        for (int k = 0; k < n && !seen; k++)
            seen = len[k] == len[n] && memcmp(t.b.p + at[k], t.b.p + at[n], len[n]) == 0;
        if (seen) continue;
        jw_json(w, t.b.p + at[n], len[n]);
        lq_buf_add(&w->b, ":", 1);
        w->comma = false;
        jw_f64(w, clean(lp));
        n++;
    }
    jw_close(w, '}');
    w->b.oom |= t.b.oom;
    jw_free(&t);
}

static void write_legacy(gen_choice *c, const smp_result *r, bool known)
{
    write_token(&c->lp.tokens, c->g, r->id);
    if (known) {
        jw_f64(&c->lp.values, clean(r->logprob));
        write_tops(&c->lp.tops, c->g, r);
    } else {
        jw_null(&c->lp.values);
        jw_null(&c->lp.tops);
    }
    jw_i64(&c->lp.offsets, c->offset.at);
    const char *delta;
    size_t n;
    if (!c->offset.stream || tok_stream_push(c->offset.stream, r->id, &delta, &n, NULL)) return;
    for (size_t i = 0; i < n; i++)
        c->offset.at += ((uint8_t)delta[i] & 0xc0) != 0x80;
}

static void write_chat_token(jw *w, const gen *g, int32_t id, float logprob)
{
    char s[1024];
    size_t n = token_bytes(g, id, s);
    jw_key(w, "token");
    write_token(w, g, id);
    jw_key(w, "logprob");
    jw_f64(w, clean(logprob));
    jw_key(w, "bytes");
    jw_open(w, '[');
    for (size_t i = 0; i < n; i++)
        jw_i64(w, (uint8_t)s[i]);
    jw_close(w, ']');
}

static void write_chat(jw *w, const gen *g, const smp_result *r)
{
    jw_open(w, '{');
    write_chat_token(w, g, r->id, r->logprob);
    jw_key(w, "top_logprobs");
    jw_open(w, '[');
    for (int i = 0; i < r->n_top; i++) {
        jw_open(w, '{');
        write_chat_token(w, g, r->top_id[i], r->top_logprob[i]);
        jw_close(w, '}');
    }
    jw_close(w, ']');
    jw_close(w, '}');
}

void gen_write_logprob(gen_choice *c, const smp_result *r, bool known)
{
    if (c->g->kind == API_CHAT)
        write_chat(&c->lp.content, c->g, r);
    else
        write_legacy(c, r, known);
}

/* {"id": {"logprob", "rank", "decoded_token"}, ...}: the alternatives and the token itself. */
static void write_ranked(jw *w, const gen *g, const smp_result *r)
{
    bool among = false;
    jw_open(w, '{');
    for (int i = 0; i <= r->n_top; i++) {
        char key[16];
        int32_t id = i < r->n_top ? r->top_id[i] : r->id;
        if (i == r->n_top && among) break;
        among |= id == r->id;
        snprintf(key, sizeof key, "%d", (int)id);
        jw_key(w, key);
        jw_open(w, '{');
        jw_key(w, "logprob");
        jw_f64(w, clean(i < r->n_top ? r->top_logprob[i] : r->logprob));
        jw_key(w, "rank");
        jw_i64(w, i < r->n_top ? i + 1 : r->rank);
        jw_key(w, "decoded_token");
        write_token(w, g, id);
        jw_close(w, '}');
    }
    jw_close(w, '}');
}

void gen_write_prompt_logprobs(gen_choice *c, const smp_result *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        smp_result t = r[i];
        if (t.n_top > c->g->p.prompt_logprobs) t.n_top = (int)c->g->p.prompt_logprobs;
        if (i)
            write_ranked(&c->lp.prompt, c->g, &t);
        else
            jw_null(&c->lp.prompt); /* nothing predicts the first */
    }
}

static void take_list(jw *w, const char *key, jw *list)
{
    jw_key(w, key);
    jw_open(w, '[');
    jw_json(w, list->b.p, list->b.n);
    jw_close(w, ']');
    w->b.oom |= list->b.oom;
    jw_clear(list);
}

/* "logprobs": ..., taking what the choice has gathered. */
static void write_logprobs(jw *w, gen_choice *c)
{
    jw_key(w, "logprobs");
    if (c->g->p.logprobs < 0) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    if (c->g->kind == API_CHAT) {
        take_list(w, "content", &c->lp.content);
    } else {
        take_list(w, "tokens", &c->lp.tokens);
        take_list(w, "token_logprobs", &c->lp.values);
        take_list(w, "top_logprobs", &c->lp.tops);
        take_list(w, "text_offset", &c->lp.offsets);
    }
    jw_close(w, '}');
}

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
               : c->calls.n                ? "tool_calls"
                                           : "stop");
    jw_key(w, "stop_reason");
    if (!c->end.stop_string && c->end.stop_id >= 0)
        jw_i64(w, c->end.stop_id);
    else
        jw_cstr(w, c->end.stop_string);
}

/* "prompt_logprobs" of a prompt: its first sample has gathered them for all. */
static void write_prompt_logprobs(jw *w, const gen *g, int prompt)
{
    const jw *list = &g->choices.v[prompt * g->choices.runs].lp.prompt;
    if (g->p.prompt_logprobs < 0) return;
    jw_key(w, "prompt_logprobs");
    jw_open(w, '[');
    jw_json(w, list->b.p, list->b.n);
    jw_close(w, ']');
    w->b.oom |= list->b.oom;
}

static void write_ids(jw *w, gen_choice *c)
{
    if (c->g->p.return_ids) take_list(w, "token_ids", &c->ids);
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

static bool send_chunk(gen *g, bool last)
{
    jw *w = &g->answer.chunk;
    jw_close(w, ']');
    if (g->p.continuous_usage && g->p.include_usage) {
        gen_write_usage(w, g);
    } else if (g->p.include_usage && !last) {
        jw_key(w, "usage");
        jw_null(w);
    } else if (g->p.include_usage) {
        gen_write_usage(w, g);
    }
    jw_close(w, '}');
    bool ok = http_stream_event(g->r, w->b.oom ? NULL : w->b.p, w->b.n);
    jw_clear(w);
    return ok;
}

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
    gen_end_call(c);
    if (c->calls.list.b.n) take_list(w, "tool_calls", &c->calls.list);
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
        write_logprobs(w, c);
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
    bool ok = c->opened || send_delta(c, true, false);
    bool news = c->text.n || c->reasoning.n || c->calls.list.b.n || c->lp.content.b.n || c->ids.b.n;
    c->opened = true;
    if (ok && news) ok = send_delta(c, false, false);
    if (ok && c->end.finish) ok = send_delta(c, false, true);
    return ok;
}

static void write_completion_choice(jw *w, gen_choice *c)
{
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, c->index);
    jw_key(w, "text");
    jw_str(w, c->text.p ? c->text.p : "", c->text.n);
    write_logprobs(w, c);
    write_ids(w, c);
    if (!c->opened) write_prompt_ids(w, c);
    write_prompt_logprobs(w, c->g, c->prompt);
    write_finish(w, c);
    jw_close(w, '}');
}

static bool completion_chunk(gen_choice *c)
{
    jw *w = &c->g->answer.chunk;
    write_head(w, c->g, "text_completion");
    write_completion_choice(w, c);
    c->opened = true;
    return send_chunk(c->g, false);
}

bool gen_write_chunk(gen_choice *c)
{
    bool ok = !c->text.oom && (c->g->kind == API_CHAT ? chat_chunk(c) : completion_chunk(c));
    lq_buf_clear(&c->text);
    return ok;
}

bool gen_write_usage_chunk(gen *g)
{
    write_head(&g->answer.chunk, g,
               g->kind == API_CHAT ? "chat.completion.chunk" : "text_completion");
    return send_chunk(g, true);
}

bool gen_write_error_chunk(gen *g)
{
    jw *w = &g->answer.chunk;
    const api_error *e = &g->state.error;
    jw_clear(w);
    jw_open(w, '{');
    http_error_object(w, e->status, e->param[0] ? e->param : NULL, e->code, e->err.msg);
    jw_close(w, '}');
    return http_stream_event(g->r, w->b.oom ? NULL : w->b.p, w->b.n);
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
    write_logprobs(w, c);
    write_ids(w, c);
    write_prompt_ids(w, c);
    write_finish(w, c);
    jw_close(w, '}');
}

static void write_choice(jw *w, gen_choice *c)
{
    w->b.oom |= c->text.oom;
    if (c->g->kind == API_CHAT)
        write_chat_choice(w, c);
    else
        write_completion_choice(w, c);
}

/* The choice of a prompt that has this rank. */
static gen_choice *choice_of(gen *g, size_t prompt, int rank)
{
    gen_choice *c = &g->choices.v[prompt * (size_t)g->choices.runs];
    while (c->rank != rank)
        c++;
    return c;
}

void gen_write_answer(gen *g, jw *w)
{
    if (g->kind == API_EMBEDDINGS) {
        gen_write_embeddings(g, w);
        return;
    }
    write_head(w, g, g->kind == API_CHAT ? "chat.completion" : "text_completion");
    for (size_t p = 0; p < g->prompts.n; p++)
        for (int rank = 0; rank < g->p.n; rank++)
            write_choice(w, choice_of(g, p, rank));
    jw_close(w, ']');
    if (g->kind == API_CHAT) write_prompt_logprobs(w, g, 0);
    gen_write_usage(w, g);
    jw_close(w, '}');
}
