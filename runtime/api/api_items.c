/* runtime/api/api_items.c - see api_items.h. */
#include "runtime/api/api_items.h"

#include <stdlib.h>

static gen_item *add_item(gen_choice *c, chat_part kind)
{
    enum { STEP = 8 };
    if (c->items.n % STEP == 0) {
        gen_item *v = realloc(c->items.v, ((size_t)c->items.n + STEP) * sizeof *v);
        if (!v) return NULL;
        c->items.v = v;
    }
    gen_item *t = &c->items.v[c->items.n++];
    *t = (gen_item){ .kind = kind };
    return t;
}

/* Tokens are told before their text, which may come later: with marks that are no text, or held back. */
static void take_logprobs(gen_choice *c, gen_item *t)
{
    jw *from = &c->lp.content;
    if (!c->g->shape->item_logprobs) return;
    if (t->kind == CHAT_CONTENT) {
        jw_json(&t->logprobs, from->b.p, from->b.n);
        t->logprobs.b.oom |= from->b.oom;
    }
    jw_clear(from);
}

void gen_take_item(gen_choice *c, chat_part part, const char *p, size_t n)
{
    gen_item *t = c->items.n ? &c->items.v[c->items.n - 1] : NULL;
    const chat_part kind = part == CHAT_ARGUMENTS ? CHAT_CALL : part;
    if (part == CHAT_REASONING && !c->g->p.include_reasoning) return;
    if (n == 0 && part != CHAT_CALL) return;
    if (!t || t->kind != kind || part == CHAT_CALL) t = add_item(c, kind);
    c->items.news = true;
    if (t) lq_buf_add(part == CHAT_CALL ? &t->name : &t->text, p, n);
    if (t) take_logprobs(c, t);
    c->text.oom |= !t || t->name.oom || t->text.oom || t->logprobs.b.oom;
}

static bool send_item(gen_choice *c, gen_item *t, bool last, const gen_item_events *e)
{
    const size_t from = t->sent;
    if (t->ended) return true;
    if (!t->begun && e->begin && !e->begin(c, t)) return false;
    t->begun = true;
    t->sent = t->text.n;
    if (t->sent > from && e->delta && !e->delta(c, t, t->text.p + from, t->sent - from))
        return false;
    t->n_told = t->logprobs.b.n;
    t->ended = !last || c->end.finish;
    return !t->ended || !e->end || e->end(c, t);
}

bool gen_send_items(gen_choice *c, const gen_item_events *e)
{
    bool ok = !c->text.oom;
    if (ok && !c->opened && e->open) ok = e->open(c);
    c->opened = true;
    c->items.news = false;
    for (; ok && c->items.at < c->items.n; c->items.at++) {
        gen_item *t = &c->items.v[c->items.at];
        ok = send_item(c, t, c->items.at == c->items.n - 1, e);
        if (!t->ended) break;
    }
    return ok;
}

int gen_item_number(const gen_choice *c, const gen_item *t) { return (int)(t - c->items.v); }

void gen_put_text(jw *w, const char *key, const lq_buf *text)
{
    jw_key(w, key);
    jw_str(w, text->p ? text->p : "", text->n);
}

void gen_put_object(jw *w, const lq_buf *text)
{
    cJSON *v = NULL;
    const bool ok =
        text->n && !js_parse(&v, text->p, text->n, text->n, 0, NULL) && cJSON_IsObject(v);
    const size_t at = w->b.n;
    jw_json(w, ok ? text->p : "{}", ok ? text->n : 2);
    for (size_t i = at; i < w->b.n; i++) /* which are blanks: in strings they are escaped */
        if (w->b.p[i] == '\n' || w->b.p[i] == '\r') w->b.p[i] = ' ';
    cJSON_Delete(v);
}

bool gen_has_call(const gen_choice *c)
{
    for (int i = 0; i < c->items.n; i++)
        if (c->items.v[i].kind == CHAT_CALL) return true;
    return false;
}

size_t gen_items_bytes(const gen_choice *c)
{
    size_t n = (size_t)c->items.n * sizeof *c->items.v;
    for (int i = 0; i < c->items.n; i++)
        n += c->items.v[i].name.cap + c->items.v[i].text.cap + c->items.v[i].logprobs.b.cap;
    return n;
}

void gen_free_items(gen_choice *c)
{
    for (int i = 0; i < c->items.n; i++) {
        lq_buf_free(&c->items.v[i].name);
        lq_buf_free(&c->items.v[i].text);
        jw_free(&c->items.v[i].logprobs);
    }
    free(c->items.v);
}
