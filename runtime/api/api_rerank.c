/* runtime/api/api_rerank.c - POST /v1/rerank and /score: how well documents answer a query, by a model
 * that says yes or no, or gives a score (runtime/chat/rerank.h).
 *
 * A pair is one prompt, and its score the probability of yes among the two at its end,
 * P(yes) / (P(yes) + P(no)); with use_activation false the logarithm of P(yes) / P(no). A score that
 * the model gives takes the place of that logarithm. */
#include "runtime/api/api_gen_int.h"

#include <stdlib.h>

enum { N_TEXTS = 3 };

/* ---- from a body to prompts ---- */

/* "text", or {"text": "text"}; NULL: neither. */
static const char *text_of(const cJSON *v)
{
    return cJSON_GetStringValue(cJSON_IsObject(v) ? js_get(v, "text") : v);
}

/* The first n tokens of a text, as text; malloc'd. NULL: all of it. */
static lq_status cut_text(const api *a, char **out, const char *text, int64_t n, api_error *e)
{
    int32_t *ids = NULL;
    size_t n_ids = 0, len = 0;
    *out = NULL;
    lq_status s = tok_encode(a->m.tok, text, strlen(text), 0, &ids, &n_ids, NULL);
    if (!s && n_ids > (size_t)n) s = tok_decode(a->m.tok, ids, (size_t)n, false, out, &len, NULL);
    free(ids);
    return s ? api_no_memory(e) : LQ_OK;
}

static lq_status encode_pair(const api *a, api_prompt *out, const api_params *p, const char *query,
                             const char *document, const char *param, api_error *e)
{
    char *cut = NULL;
    lq_err err = { "" };
    lq_status s = p->doc_tokens ? cut_text(a, &cut, document, p->doc_tokens, e) : LQ_OK;
    if (s) return s;
    const bool fits = p->truncate > 0 && p->truncate <= a->m.max_len;
    const int64_t most = fits ? p->truncate : p->truncate < 0 ? a->m.max_len : 0;
    size_t bytes = api_most_bytes(a);
    if (most && !lq_mul(bytes, API_MAX_CUT, &bytes)) bytes = SIZE_MAX;
    const rerank_pair pair = { .instruction = p->instruction,
                               .query = query,
                               .document = cut ? cut : document,
                               .kwargs = p->template_kwargs,
                               .max_bytes = bytes,
                               .max_tokens = (size_t)most };
    rerank_prompt made;
    s = a->m.backend.judge(a->m.backend.self, &pair, &made, &err);
    free(cut);
    out->ids = made.ids;
    out->n = made.n;
    out->n_first = made.n_first;
    if (s == LQ_ENOMEM) return api_no_memory(e);
    if (s == LQ_EUSAGE)
        return api_fail(e, "truncate_prompt_tokens", "invalid_value", "truncate_prompt_tokens: %s",
                        err.msg);
    if (s == LQ_ESHAPE)
        return api_fail(e, param, "context_length_exceeded",
                        "this model's maximum context length is %lld tokens: %s",
                        (long long)a->m.max_len, err.msg);
    return s ? api_fail(e, param, "template_error", "%s", err.msg) : LQ_OK;
}

/* A text or a list of texts under one of its names. */
typedef struct {
    const char *name;
    const cJSON *first; /* of the list */
    int64_t n;
} texts;

static lq_status find_texts(texts *t, const cJSON *doc, const char *const names[N_TEXTS],
                            api_error *e)
{
    *t = (texts){ 0 };
    for (int i = 0; i < N_TEXTS && names[i]; i++) {
        const cJSON *v = js_get(doc, names[i]);
        if (!v || cJSON_IsNull(v)) continue;
        if (t->name)
            return api_fail(e, names[i], "invalid_value", "%s: %s is given too", names[i], t->name);
        const bool list = cJSON_IsArray(v);
        *t = (texts){ names[i], list ? v->child : v, list ? 0 : 1 };
        for (const cJSON *c = list ? v->child : NULL; c; c = c->next)
            t->n++;
        for (const cJSON *c = t->first; c; c = list ? c->next : NULL)
            if (!text_of(c)) return api_wrong(e, names[i], "texts", c);
        if (t->n < 1 || t->n > API_MAX_PROMPTS)
            return api_fail(e, names[i], "invalid_value", "%s: expected 1..%d texts, found %lld",
                            names[i], API_MAX_PROMPTS, (long long)t->n);
    }
    if (t->name) return LQ_OK;
    return api_fail(e, names[0], "missing_required_parameter", "%s: it is required", names[0]);
}

/* One query with each document, or one with one. */
static lq_status encode_pairs(const api *a, api_request *q, const texts *query, const texts *docs,
                              api_error *e)
{
    const cJSON *x = query->first, *y = docs->first;
    if (query->n != 1 && query->n != docs->n)
        return api_fail(e, docs->name, "invalid_value",
                        "%s: expected %lld texts, as many as %s, found %lld", docs->name,
                        (long long)query->n, query->name, (long long)docs->n);
    q->prompts = calloc((size_t)docs->n, sizeof *q->prompts);
    if (!q->prompts) return api_no_memory(e);
    for (int64_t i = 0; i < docs->n; i++) {
        lq_status s =
            encode_pair(a, &q->prompts[q->n++], &q->p, text_of(x), text_of(y), docs->name, e);
        if (s) return s;
        y = y->next;
        if (query->n > 1) x = x->next;
    }
    return LQ_OK;
}

static lq_status read_pairs(const api *a, api_request *q, api_kind kind, api_error *e)
{
    static const char *const names[][N_TEXTS] = { { "query" },
                                                  { "documents" },
                                                  { "text_1", "queries", "data_1" },
                                                  { "text_2", "documents", "data_2" } };
    const bool score = kind == API_SCORE;
    texts query, docs;
    if (!a->m.backend.judge) return api_fail(e, NULL, "unsupported_value", "%s", a->m.no_judge);
    lq_status s = find_texts(&query, q->doc, names[2 * score], e);
    if (!s) s = find_texts(&docs, q->doc, names[2 * score + 1], e);
    if (!s && !score && query.n != 1)
        s = api_fail(e, "query", "invalid_value", "query: expected one text, found %lld",
                     (long long)query.n);
    return s ? s : encode_pairs(a, q, &query, &docs, e);
}

static void judge(api *a, http_req *r, const gen_shape *shape, bool shows)
{
    api_request q = { 0 };
    api_error e = { 0 };
    if (!api_ready(a, r)) return;
    q.doc = api_parse(r);
    if (!q.doc) return;
    lq_status s = api_params_read(&q.p, q.doc, shape->kind, &a->m.defaults, a->m.vocab,
                                  a->o.strict_params, &e);
    api_note_params(a, &q.p);
    if (!a->m.labels) q.p.max_tokens = 0;
    if (!q.p.has_shows) q.p.shows_documents = shows;
    if (!s && !api_serves(a, q.p.model)) s = api_no_model(&e, q.p.model);
    if (!s) s = read_pairs(a, &q, shape->kind, &e);
    if (!s) {
        api_generate(a, r, shape, &q);
        return;
    }
    api_reply_error(a, r, &e);
    api_request_free(&q);
}

/* ---- answers ---- */

static double score_of(const gen_choice *c)
{
    return c->g->p.raw_scores || c->g->a->m.raw_scores ? c->odds : 1 / (1 + exp(-c->odds));
}

static void write_head(gen *g, jw *w)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, g->answer.id);
    jw_key(w, "model");
    jw_cstr(w, g->answer.model);
}

static void write_end(gen *g, jw *w)
{
    jw_key(w, "usage");
    jw_open(w, '{');
    jw_key(w, "prompt_tokens");
    jw_i64(w, g->prompts.n_ids);
    jw_key(w, "total_tokens");
    jw_i64(w, g->prompts.n_ids);
    jw_close(w, '}');
    jw_close(w, '}');
}

/* The best first, of equal ones the one that was sent first. */
static int by_score(const void *x, const void *y)
{
    const gen_choice *const *a = x, *const *b = y;
    if ((*a)->odds > (*b)->odds || (*a)->odds < (*b)->odds) return (*a)->odds > (*b)->odds ? -1 : 1;
    return (*a)->index - (*b)->index;
}

static void write_result(jw *w, const gen_choice *c, const cJSON *document)
{
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, c->index);
    jw_key(w, "relevance_score");
    jw_f64(w, score_of(c));
    if (c->g->p.shows_documents) {
        jw_key(w, "document");
        jw_open(w, '{');
        jw_key(w, "text");
        jw_cstr(w, text_of(document));
        jw_close(w, '}');
    }
    jw_close(w, '}');
}

static void write_ranks(gen *g, jw *w)
{
    const size_t n = (size_t)g->choices.n;
    const size_t most = g->p.top_n && (size_t)g->p.top_n < n ? (size_t)g->p.top_n : n;
    const gen_choice **order = malloc(n * sizeof *order);
    const cJSON **docs = malloc(n * sizeof *docs), *t = js_get(g->doc, "documents");
    w->b.oom |= !order || !docs;
    if (cJSON_IsArray(t)) t = t->child;
    for (size_t i = 0; i < n && !w->b.oom; i++, t = t->next) {
        order[i] = &g->choices.v[i];
        docs[i] = t;
    }
    if (!w->b.oom) qsort(order, n, sizeof *order, by_score);
    write_head(g, w);
    jw_key(w, "results");
    jw_open(w, '[');
    for (size_t i = 0; i < most && !w->b.oom; i++)
        write_result(w, order[i], docs[order[i]->index]);
    jw_close(w, ']');
    write_end(g, w);
    free(order);
    free(docs);
}

static void write_scores(gen *g, jw *w)
{
    write_head(g, w);
    jw_key(w, "object");
    jw_cstr(w, "list");
    jw_key(w, "created");
    jw_i64(w, g->answer.created);
    jw_key(w, "data");
    jw_open(w, '[');
    for (int i = 0; i < g->choices.n; i++) {
        jw_open(w, '{');
        jw_key(w, "index");
        jw_i64(w, i);
        jw_key(w, "object");
        jw_cstr(w, "score");
        jw_key(w, "score");
        jw_f64(w, score_of(&g->choices.v[i]));
        jw_close(w, '}');
    }
    jw_close(w, ']');
    write_end(g, w);
}

/* Never streams. */
static const gen_shape rerank = { .kind = API_RERANK,
                                  .prefix = "rerank-",
                                  .prompt = "documents",
                                  .take = gen_take_nothing,
                                  .answer = write_ranks };
static const gen_shape score = { .kind = API_SCORE,
                                 .prefix = "score-",
                                 .prompt = "text_2",
                                 .take = gen_take_nothing,
                                 .answer = write_scores };

void api_post_rerank(void *app, http_req *r) { judge(app, r, &rerank, true); }
void api_post_rerank_v2(void *app, http_req *r) { judge(app, r, &rerank, false); }
void api_post_score(void *app, http_req *r) { judge(app, r, &score, false); }
