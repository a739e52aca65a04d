/* runtime/api/api_ollama.c - see api_ollama.h: POST /api/chat, /api/generate, /api/embed and /api/embeddings. */
#include "runtime/api/api_ollama.h"

#include "runtime/api/api_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void write_error(jw *w, int status, const char *param, const char *code, const char *message)
{
    (void)status;
    (void)param; /* the message names it */
    (void)code;
    jw_open(w, '{');
    jw_key(w, "error");
    jw_cstr(w, message);
    jw_close(w, '}');
}

/* Lines of JSON: there is nothing that may stand between them. */
const http_style api_ollama_style = {
    .error = write_error, .stream = "application/x-ndjson", .untyped = true, .bodied = true
};

/* The name as it was asked for, or the canonical one. */
static void put_model(jw *w, const api *a, const cJSON *body)
{
    const char *name = cJSON_GetStringValue(js_get(body, "model"));
    jw_key(w, "model");
    jw_cstr(w, name ? name : a->names[0]);
}

/* ---- a line ---- */

static void open_line(jw *w, const gen *g)
{
    jw_open(w, '{');
    put_model(w, g->a, g->body);
    jw_put_time(w, "created_at", (int64_t)time(NULL));
}

static void put_ns(jw *w, const char *key, double seconds)
{
    jw_key(w, key);
    jw_i64(w, (int64_t)(seconds * 1e9));
}

static const gen_shape generate, templated;

/* What was read and written, for the `context` of a later request. */
static void put_context(jw *w, const gen_choice *c)
{
    const api_prompt *p = &c->g->prompts.v[c->prompt];
    jw_key(w, "context");
    jw_open(w, '[');
    for (size_t i = 0; i < p->n; i++)
        jw_i64(w, p->ids[i]);
    if (c->ids.b.n) jw_json(w, c->ids.b.p, c->ids.b.n);
    w->b.oom |= c->ids.b.oom;
    jw_close(w, ']');
}

static void write_end(jw *w, const gen_choice *c)
{
    const double last = c->stats.t_last, first = c->stats.t_first;
    jw_key(w, "done");
    jw_bool(w, true);
    jw_key(w, "done_reason");
    jw_cstr(w, c->end.finish == ENG_LENGTH ? "length" : "stop");
    put_ns(w, "total_duration", http_age(c->g->r));
    put_ns(w, "load_duration", 0);
    jw_put_i64(w, "prompt_eval_count", c->g->prompts.n_ids);
    put_ns(w, "prompt_eval_duration", first);
    jw_put_i64(w, "eval_count", c->stats.n_output);
    put_ns(w, "eval_duration", last - first);
    if (c->g->shape == &generate || c->g->shape == &templated) put_context(w, c);
    jw_close(w, '}');
}

static void write_call(jw *w, const gen_choice *c, const gen_item *t)
{
    char id[96];
    snprintf(id, sizeof id, "call_%s%x", gen_key(c->g), (unsigned)gen_item_number(c, t));
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, id);
    jw_key(w, "function");
    jw_open(w, '{');
    gen_put_text(w, "name", &t->name);
    jw_key(w, "arguments");
    gen_put_object(w, &t->text);
    jw_close(w, '}');
    jw_close(w, '}');
}

/* The answer so far, or a piece of it: in a chat a message, else (calls do not come) plain members. */
static void write_parts(jw *w, const gen *g, const lq_buf *text, const lq_buf *thought,
                        const gen_item *calls, int n)
{
    const bool chat = g->shape->dialect == &api_ollama_chat;
    int written = 0;
    if (chat) {
        jw_key(w, "message");
        jw_open(w, '{');
        jw_key(w, "role");
        jw_cstr(w, "assistant");
    }
    gen_put_text(w, chat ? "content" : "response", text);
    if (thought->n) gen_put_text(w, "thinking", thought);
    for (int i = 0; i < n; i++) {
        if (calls[i].kind != CHAT_CALL) continue;
        if (!written++) {
            jw_key(w, "tool_calls");
            jw_open(w, '[');
        }
        write_call(w, &g->choices.v[0], &calls[i]);
    }
    if (written) jw_close(w, ']');
    if (chat) jw_close(w, '}');
    gen_choice *c = &g->choices.v[0];
    if (c->lp.content.b.n) gen_take_list(w, "logprobs", &c->lp.content);
}

/* ---- the stream ---- */

static bool send(gen *g)
{
    jw *w = &g->answer.chunk;
    lq_buf_add(&w->b, "\n", 1);
    return http_stream_write(g->r, w->b.oom ? NULL : w->b.p, w->b.n);
}

static bool send_piece(gen *g, const lq_buf *text, const lq_buf *thought, const gen_item *call)
{
    jw *w = &g->answer.chunk;
    jw_clear(w);
    open_line(w, g);
    write_parts(w, g, text, thought, call, call ? 1 : 0);
    jw_key(w, "done");
    jw_bool(w, false);
    jw_close(w, '}');
    return send(g);
}

static bool send_delta(gen_choice *c, const gen_item *t, const char *p, size_t n)
{
    static const lq_buf none;
    lq_buf piece = { 0 };
    if (t->kind == CHAT_CALL) return true;
    lq_buf_add(&piece, p, n);
    const bool thought = t->kind == CHAT_REASONING;
    const bool ok =
        !piece.oom && send_piece(c->g, thought ? &none : &piece, thought ? &piece : &none, NULL);
    lq_buf_free(&piece);
    return ok;
}

/* A call comes whole. */
static bool end_item(gen_choice *c, const gen_item *t)
{
    static const lq_buf none;
    return t->kind != CHAT_CALL || send_piece(c->g, &none, &none, t);
}

static bool chunk(gen_choice *c)
{
    static const gen_item_events events = { .delta = send_delta, .end = end_item };
    return gen_send_items(c, &events);
}

static bool end_stream(gen *g)
{
    static const lq_buf none;
    jw *w = &g->answer.chunk;
    jw_clear(w);
    open_line(w, g);
    write_parts(w, g, &none, &none, NULL, 0);
    write_end(w, &g->choices.v[0]);
    return send(g);
}

static bool send_error(gen *g)
{
    jw *w = &g->answer.chunk;
    jw_clear(w);
    write_error(w, g->state.error.status, NULL, NULL, g->state.error.err.msg);
    return send(g);
}

static void write_answer(gen *g, jw *w)
{
    const gen_choice *c = &g->choices.v[0];
    lq_buf text = { 0 }, thought = { 0 };
    for (int i = 0; i < c->items.n; i++) {
        const gen_item *t = &c->items.v[i];
        if (t->kind != CHAT_CALL)
            lq_buf_add(t->kind == CHAT_REASONING ? &thought : &text, t->text.p, t->text.n);
    }
    open_line(w, g);
    write_parts(w, g, &text, &thought, c->items.v, c->items.n);
    write_end(w, c);
    w->b.oom |= c->text.oom || text.oom || thought.oom;
    lq_buf_free(&text);
    lq_buf_free(&thought);
}

static void write_embed(gen *g, jw *w)
{
    jw_open(w, '{');
    put_model(w, g->a, g->body);
    jw_key(w, "embeddings");
    jw_open(w, '[');
    for (int i = 0; i < g->choices.n; i++)
        gen_write_vector(&g->choices.v[i], w);
    jw_close(w, ']');
    put_ns(w, "total_duration", http_age(g->r));
    put_ns(w, "load_duration", 0);
    jw_put_i64(w, "prompt_eval_count", g->prompts.n_ids);
    jw_close(w, '}');
}

static void write_embedding(gen *g, jw *w)
{
    jw_open(w, '{');
    jw_key(w, "embedding");
    gen_write_vector(&g->choices.v[0], w);
    jw_close(w, '}');
}

/* ---- the rows ---- */

#define TALK(d, name)                                                                       \
    {                                                                                       \
        .kind = API_CHAT, .prefix = "ollama-", .prompt = name, .dialect = d, .fills = true, \
        .take = gen_take_item, .chunk = chunk, .end = end_stream, .error = send_error,      \
        .answer = write_answer                                                              \
    }
static const gen_shape chat = TALK(&api_ollama_chat, "messages");
static const gen_shape generate = TALK(&api_ollama_generate, "prompt");
#define PLAIN(d)                                                                        \
    {                                                                                   \
        .kind = API_COMPLETIONS, .prefix = "ollama-", .prompt = "prompt", .dialect = d, \
        .chat_logprobs = true, .fills = true, .take = gen_take_item, .chunk = chunk,    \
        .end = end_stream, .error = send_error, .answer = write_answer                  \
    }
static const gen_shape plain = PLAIN(&api_ollama_plain);
static const gen_shape templated = PLAIN(&api_ollama_templated);

#define VECTOR(d, name, write)                                                     \
    {                                                                              \
        .kind = API_EMBEDDINGS, .prefix = "ollama-", .prompt = name, .dialect = d, \
        .take = gen_take_item, .answer = write                                     \
    }
static const gen_shape embed = VECTOR(&api_ollama_embed, "input", write_embed);
static const gen_shape embedding = VECTOR(&api_ollama_embedding, "input", write_embedding);

/* The body, to choose by; NULL, too, where it is wrong: who reads it says so. */
static cJSON *peek(http_req *r)
{
    size_t n;
    const char *text = http_body(r, &n);
    cJSON *doc = NULL;
    if (!http_claim(r, n) || js_parse(&doc, text, n, n, 0, NULL)) return NULL;
    return doc;
}

/* A wish to have the model loaded is answered. */
static bool loads(api *a, http_req *r)
{
    size_t n;
    const char *text = http_body(r, &n);
    cJSON *doc = memmem(text, n, "\"role\"", 6) ? NULL : peek(r); /* that has messages */
    const bool done = doc && api_ollama_load(a, r, doc, true);
    cJSON_Delete(doc);
    return done;
}

void api_post_ollama_chat(void *app, http_req *r)
{
    api_request q;
    if (!loads(app, r) && api_read_chat(app, r, &chat, &q)) api_generate(app, r, &chat, &q);
}

/* Of an answer without the model's template. */
static const gen_shape *shape_without(const cJSON *doc)
{
    const char *suffix = cJSON_GetStringValue(js_get(doc, "suffix")),
               *template = cJSON_GetStringValue(js_get(doc, "template"));
    return cJSON_IsTrue(js_get(doc, "raw")) || (suffix && suffix[0]) ? &plain
           : template && template[0]                                 ? &templated
                                                                     : NULL;
}

/* `context`, ids of an earlier answer, before the prompt's own, which do not begin a text then. */
static lq_status take_context(const api *a, api_request *q, api_error *e)
{
    const cJSON *v = js_get(q->body, "context");
    api_prompt *p = q->prompts;
    int32_t *ids = NULL;
    int n = 0, most = a->m.max_len < INT32_MAX ? (int)a->m.max_len : INT32_MAX;
    if (!v || !v->child) return LQ_OK;
    lq_status s = api_read_ids(&ids, &n, v, "context", a->m.vocab, most, e);
    const size_t skip = !s && p->n && a->m.bos >= 0 && p->ids[0] == a->m.bos;
    int32_t *all = s ? NULL : realloc(ids, ((size_t)n + p->n - skip) * sizeof *ids);
    if (!s && !all) s = api_no_memory(e);
    if (s) {
        free(ids);
        return s;
    }
    memcpy(all + n, p->ids + skip, (p->n - skip) * sizeof *all);
    free(p->ids);
    *p = (api_prompt){ .ids = all, .n = (size_t)n + p->n - skip };
    return LQ_OK;
}

void api_post_ollama_generate(void *app, http_req *r)
{
    api_request q;
    api_error e = { 0 };
    cJSON *doc = peek(r);
    const gen_shape *without = doc ? shape_without(doc) : NULL;
    const bool done = doc && !without && api_ollama_load(app, r, doc, false);
    cJSON_Delete(doc);
    if (without) api_answer_prompts(app, r, without);
    if (done || without) return;
    if (!api_read_chat(app, r, &generate, &q)) return;
    if (!take_context(app, &q, &e)) {
        api_generate(app, r, &generate, &q);
        return;
    }
    api_reply_error(app, r, &e);
    api_request_free(&q);
}

static void answer_vectors(api *a, http_req *r, const gen_shape *shape)
{
    cJSON *doc = peek(r);
    const bool done = doc && api_ollama_load_vectors(a, r, doc, shape == &embedding);
    cJSON_Delete(doc);
    if (!done) api_answer_prompts(a, r, shape);
}

void api_post_ollama_embed(void *app, http_req *r) { answer_vectors(app, r, &embed); }
void api_post_ollama_embedding(void *app, http_req *r) { answer_vectors(app, r, &embedding); }
