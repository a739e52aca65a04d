/* runtime/api/api_logprobs.c - log-probabilities of an answer and of a prompt, as JSON. */
#include "runtime/api/api_gen_int.h"

#include "base/utf8.h"

#include <stdio.h>

/* Is a token an object with its bytes and alternatives? Else there are lists, as completions have them. */
static bool as_chat(const gen *g) { return g->shape->kind == API_CHAT || g->shape->chat_logprobs; }

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
    if (as_chat(g) || lq_utf8_valid(s, n, NULL)) {
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
    if (g->shape->logprob_ids) {
        jw_key(w, "id");
        jw_i64(w, id);
    }
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
    if (as_chat(c->g))
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

void gen_take_list(jw *w, const char *key, jw *list)
{
    jw_key(w, key);
    jw_open(w, '[');
    jw_json(w, list->b.p, list->b.n);
    jw_close(w, ']');
    w->b.oom |= list->b.oom;
    jw_clear(list);
}

void gen_write_logprobs(jw *w, gen_choice *c)
{
    jw_key(w, "logprobs");
    if (c->g->p.logprobs < 0) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    if (as_chat(c->g)) {
        gen_take_list(w, "content", &c->lp.content);
    } else {
        gen_take_list(w, "tokens", &c->lp.tokens);
        gen_take_list(w, "token_logprobs", &c->lp.values);
        gen_take_list(w, "top_logprobs", &c->lp.tops);
        gen_take_list(w, "text_offset", &c->lp.offsets);
    }
    jw_close(w, '}');
}

/* A prompt's first sample has gathered them for all. */
void gen_write_all_prompt_logprobs(jw *w, const gen *g, int prompt)
{
    const jw *list = &g->choices.v[prompt * g->choices.runs].lp.prompt;
    if (g->p.prompt_logprobs < 0) return;
    jw_key(w, "prompt_logprobs");
    jw_open(w, '[');
    jw_json(w, list->b.p, list->b.n);
    jw_close(w, ']');
    w->b.oom |= list->b.oom;
}
