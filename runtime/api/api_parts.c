/* runtime/api/api_parts.c - chat answers with parts: the calls and thoughts that runtime/chat/chat_out.h finds in
 * the text, as JSON. */
#include "runtime/api/api_gen_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the parts of an answer ---- */

static bool known(void *user, const char *name, size_t n)
{
    const gen_choice *c = user;
    return api_find_tool(c->g->p.tools, name, n) != NULL;
}

/* An entry of the list begins, in a stream a part of it: the call of that number. */
static void begin_entry(gen_choice *c, int number)
{
    jw *w = &c->calls.list;
    jw_open(w, '{');
    if (c->g->p.stream && !c->g->p.functions) jw_put_i64(w, "index", number);
}

/* What it has the first time, up to its text. */
static void begin_call(gen_choice *c, int number, const char *type, const char *name, size_t n,
                       const char *text)
{
    jw *w = &c->calls.list;
    char id[96];
    begin_entry(c, number);
    if (!c->g->p.functions) {
        snprintf(id, sizeof id, "call_%s%x-%x", c->g->answer.id + strlen("chatcmpl-"),
                 (unsigned)c->index, (unsigned)number);
        jw_put_cstr(w, "id", id);
        jw_put_cstr(w, "type", type);
        jw_key(w, type);
        jw_open(w, '{');
    }
    jw_key(w, "name");
    jw_str(w, name, n);
    jw_key(w, text);
}

static void end_call(gen_choice *c, const lq_buf *text)
{
    jw *w = &c->calls.list;
    jw_str(w, text->p ? text->p : "", text->n);
    jw_close(w, '}');
    if (!c->g->p.functions) jw_close(w, '}');
    lq_buf_clear(&c->calls.args);
}

void gen_end_call(gen_choice *c)
{
    if (c->calls.open) end_call(c, &c->calls.args);
    c->calls.open = false;
}

/* A custom tool's text is known when its argument is whole. */
static void end_custom(gen_choice *c)
{
    lq_buf input = { 0 }, *name = &c->calls.custom;
    if (!name->n) return;
    api_custom_input(&input, &c->calls.args);
    begin_call(c, c->calls.n - 1, "custom", name->p, name->n, "input");
    end_call(c, &input);
    c->text.oom |= input.oom || name->oom;
    lq_buf_free(&input);
    lq_buf_clear(name);
}

static void take_call(gen_choice *c, const char *name, size_t n)
{
    gen_end_call(c);
    end_custom(c);
    if (api_is_custom(&c->g->p, name, n)) {
        lq_buf_add(&c->calls.custom, name, n);
    } else {
        c->calls.open = true;
        begin_call(c, c->calls.n, "function", name, n, "arguments");
    }
    c->calls.n++;
}

static void take_args(gen_choice *c, const char *p, size_t n)
{
    jw *w = &c->calls.list;
    if (!c->calls.open && !c->calls.custom.n) { /* its beginning was in an earlier chunk */
        c->calls.open = true;
        begin_entry(c, c->calls.n - 1);
        if (!c->g->p.functions) {
            jw_key(w, "function");
            jw_open(w, '{');
        }
        jw_key(w, "arguments");
    }
    lq_buf_add(&c->calls.args, p, n);
}

void gen_take_chat(gen_choice *c, chat_part part, const char *p, size_t n)
{
    switch (part) {
    case CHAT_CONTENT:
        lq_buf_add(&c->text, p, n);
        break;
    case CHAT_REASONING:
        if (c->g->p.include_reasoning) lq_buf_add(&c->reasoning, p, n);
        break;
    case CHAT_CALL:
        take_call(c, p, n);
        break;
    case CHAT_ARGUMENTS:
        take_args(c, p, n);
        break;
    }
}

static void sink(void *user, chat_part part, const char *p, size_t n)
{
    gen_choice *c = user;
    c->g->shape->take(c, part, p, n);
}

static const cJSON *parameters(void *user, const char *name, size_t n)
{
    const gen_choice *c = user;
    const cJSON *t = api_find_tool(c->g->p.tools, name, n);
    return js_get(js_get(t, "function"), "parameters");
}

lq_status gen_open_parts(gen_choice *c, lq_err *err)
{
    const gen *g = c->g;
    const chat_form *f = gen_form(g);
    if (!f) return LQ_OK;
    if (!g->p.tools && !f->think_open[0] && !f->content_open[0]) return LQ_OK;
    bool thinks =
        f->think_open[0] && (!g->p.structured.param || g->p.structured.spec.kind == GR_TREE);
    chat_out_opts o = { .form = f,
                        .calls = g->p.tools != NULL,
                        .one_call = !g->p.parallel_calls,
                        .thinks = thinks,
                        .thinking = thinks && gen_ends_thinking(g, &g->prompts.v[c->prompt]),
                        .known = known,
                        .parameters = parameters,
                        .sink = sink,
                        .user = c };
    return chat_out_open(&c->out, &o, err);
}

void gen_take_text(gen_choice *c, const char *text, size_t n, bool ends)
{
    lq_err err;
    if (!c->out) {
        c->g->shape->take(c, CHAT_CONTENT, text, n);
        return;
    }
    lq_status s = chat_out_push(c->out, text, n, &err);
    if (!s && ends) s = chat_out_end(c->out, &err);
    if (ends) gen_end_call(c), end_custom(c);
    c->text.oom |= s != LQ_OK || c->calls.list.b.oom || c->calls.args.oom || c->reasoning.oom;
}

void gen_free_parts(gen_choice *c)
{
    chat_out_close(c->out);
    lq_buf_free(&c->reasoning);
    jw_free(&c->calls.list);
    lq_buf_free(&c->calls.args);
    lq_buf_free(&c->calls.custom);
}
