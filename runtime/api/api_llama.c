/* runtime/api/api_llama.c - llama.cpp's own completions: POST /completion, and /infill, which has a suffix
 * (api_fim.c). */
#include "runtime/api/api_body.h"
#include "runtime/api/api_gen_int.h"

#include <stdio.h>

/* The text before the cursor is that of the file, and what is there of the line. */
static lq_status finish(api_body *b)
{
    static const char *const names[] = { "input_prefix", "prompt", "input_suffix" };
    const char *text[3];
    lq_buf before = { 0 };
    for (int i = 0; i < 3; i++) {
        const cJSON *v = js_get(b->from, names[i]);
        if (v && !cJSON_IsString(v)) return api_body_wrong(b, names[i], names[i], "a string", v);
        text[i] = v ? v->valuestring : "";
    }
    lq_buf_puts(&before, text[0]);
    lq_buf_puts(&before, text[1]);
    lq_buf_add(&before, "", 1);
    if (!before.oom) api_put(b->to, "prompt", cJSON_CreateString(before.p));
    const bool oom = before.oom;
    lq_buf_free(&before);
    api_put_str(b->to, "suffix", text[2]);
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    return oom ? api_no_memory(b->e) : LQ_OK;
}

/* One prompt: a text or ids. */
static lq_status read_prompt(api_body *b, const char *name, const cJSON *v)
{
    const bool one = cJSON_IsString(v) || (cJSON_IsArray(v) && cJSON_IsNumber(v->child));
    if (!one) return api_body_wrong(b, name, name, "a string or an array of token ids", v);
    api_put(b->to, name, api_ref(v));
    return LQ_OK;
}

/* [[id, bias], ...], where false forbids the id; or an object as elsewhere. */
static lq_status read_bias(api_body *b, const char *name, const cJSON *v)
{
    enum { FORBIDS = -100 };
    char key[24];
    if (!cJSON_IsArray(v)) {
        api_put(b->to, name, api_ref(v));
        return LQ_OK;
    }
    cJSON *o = cJSON_AddObjectToObject(b->to, name);
    for (const cJSON *c = v->child; c; c = c->next) {
        const cJSON *id = c->child, *bias = id ? id->next : NULL;
        int64_t n;
        if (!cJSON_IsArray(c) || !js_whole(id, 0, INT32_MAX, &n) || !bias || bias->next)
            return api_body_wrong(b, name, name, "pairs of an id and a number or false", c);
        snprintf(key, sizeof key, "%lld", (long long)n);
        api_put(o, key, cJSON_IsFalse(bias) ? cJSON_CreateNumber(FORBIDS) : api_ref(bias));
    }
    return LQ_OK;
}

static lq_status finish_completion(api_body *b)
{
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    return LQ_OK;
}

/* What the shape itself looks at (take, write_fields). */
static lq_status read_count(api_body *b, const char *name, const cJSON *v)
{
    int64_t n;
    return js_whole(v, -1, INT32_MAX, &n) ? LQ_OK
                                          : api_body_wrong(b, name, name, "an integer from -1", v);
}

/* Alternatives of each token. */
static lq_status read_probs(api_body *b, const char *name, const cJSON *v)
{
    int64_t n;
    char expected[32];
    snprintf(expected, sizeof expected, "an integer 0..%d", SMP_MAX_LOGPROBS);
    if (!js_whole(v, 0, SMP_MAX_LOGPROBS, &n)) return api_body_wrong(b, name, name, expected, v);
    if (n) api_put(b->to, "logprobs", api_ref(v));
    return LQ_OK;
}

static lq_status read_names(api_body *b, const char *name, const cJSON *v)
{
    enum { MOST = 64 }; /* each is looked for among those before it */
    bool ok = cJSON_IsArray(v) && cJSON_GetArraySize(v) <= MOST;
    for (const cJSON *c = ok ? v->child : NULL; c; c = c->next)
        ok &= cJSON_IsString(c);
    return ok ? LQ_OK : api_body_wrong(b, name, name, "an array of at most 64 names", v);
}

#define COMMON                                                                        \
    { "logit_bias", NULL, read_bias }, { "return_tokens", "return_token_ids", NULL }, \
        { "n_indent", NULL, read_count }, { "t_max_predict_ms", NULL, read_count },   \
        { "response_fields", NULL, read_names }, { "n_probs", NULL, read_probs },     \
        { "suffix", NULL, api_body_refuse }, { "n", NULL, api_body_refuse },          \
        { "best_of", NULL, api_body_refuse }, { "echo", NULL, api_body_refuse },      \
        { "logprobs", NULL, api_body_refuse },                                        \
    {                                                                                 \
        "stream_options", NULL, api_body_refuse                                       \
    }
static const api_field infill_fields[] = {
    COMMON, { "input_prefix", NULL, NULL }, { "input_suffix", NULL, NULL }, { "prompt", NULL, NULL }
};
static const api_field completion_fields[] = { COMMON, { "prompt", NULL, read_prompt } };
static const api_dialect infill = { .fields = infill_fields,
                                    .n = LQ_COUNT(infill_fields),
                                    .finish = finish };
static const api_dialect completion = { .fields = completion_fields,
                                        .n = LQ_COUNT(completion_fields),
                                        .finish = finish_completion };

static void put_f64(jw *w, const char *what, const char *key, double v)
{
    char name[48];
    snprintf(name, sizeof name, "%s_%s", what, key);
    jw_put_f64(w, name, v);
}

static void put_ms(jw *w, const char *what, int64_t n, double seconds)
{
    put_f64(w, what, "ms", seconds * 1e3);
    put_f64(w, what, "per_token_ms", n > 0 ? seconds * 1e3 / (double)n : 0);
    put_f64(w, what, "per_second", seconds > 0 ? (double)n / seconds : 0);
}

static void put_times(jw *w, const gen_choice *c)
{
    const double first = c->stats.t_first, rest = c->stats.t_last - first;
    jw_key(w, "timings");
    jw_open(w, '{');
    jw_put_i64(w, "prompt_n", c->g->prompts.n_ids - c->stats.n_cached);
    put_ms(w, "prompt", c->g->prompts.n_ids - c->stats.n_cached, first);
    jw_put_i64(w, "predicted_n", c->stats.n_output);
    put_ms(w, "predicted", c->stats.n_output, rest);
    jw_close(w, '}');
}

/* ---- where an answer ends besides ---- */

static int64_t count_of(const gen_choice *c, const char *name)
{
    int64_t n = -1;
    js_whole(js_get(c->g->body, name), -1, INT32_MAX, &n);
    return n;
}

static bool is_late(const gen_choice *c)
{
    return c->limit.max_ms > 0 && c->stats.t_first > 0 &&
           (http_age(c->g->r) - c->stats.t_first) * 1e3 > (double)c->limit.max_ms;
}

/* How much of the text counts: n_indent ends it where a line after the first begins with fewer blanks,
 * t_max_predict_ms after the first line that is late. */
static size_t before_end(gen_choice *c, const char *p, size_t n, bool *ends)
{
    for (size_t i = 0; i < n; i++) {
        const bool blank = p[i] == ' ' || p[i] == '\t';
        if (c->limit.indenting && blank) {
            c->limit.indent++;
            continue;
        }
        *ends = c->limit.indenting && c->limit.indent < c->limit.n_indent;
        if (*ends) return i;
        c->limit.indenting = p[i] == '\n' && c->limit.n_indent > 0;
        c->limit.indent = 0;
        *ends = p[i] == '\n' && is_late(c);
        if (*ends) return i + 1;
    }
    return n;
}

/* The engine's thread. */
static void take(gen_choice *c, chat_part part, const char *p, size_t n)
{
    const api_backend *b = &c->g->a->m.backend;
    bool ends = false;
    if (!c->limit.read) {
        c->limit.n_indent = count_of(c, "n_indent");
        c->limit.max_ms = count_of(c, "t_max_predict_ms");
        c->limit.read = true;
    }
    gen_take_chat(c, part, p, before_end(c, p, n, &ends));
    if (!ends) return;
    atomic_store(&c->limit.cut, true);
    if (atomic_load(&c->submitted)) b->cancel(b->self, c->id);
}

/* ---- the answer ---- */

/* The text that was not sent yet; with how it ended, if it has. */
static void write_whole(jw *w, gen_choice *c, bool ends)
{
    static const lq_buf none;
    const lq_buf *text = c->text.p ? &c->text : &none;
    jw_open(w, '{');
    jw_put_i64(w, "index", 0);
    jw_key(w, "content");
    jw_str(w, text->n ? text->p : "", text->n);
    if (c->g->p.return_ids) gen_take_list(w, "tokens", &c->ids);
    if (c->g->p.logprobs >= 0) gen_take_list(w, "completion_probabilities", &c->lp.content);
    jw_put_bool(w, "stop", ends);
    jw_put_i64(w, "tokens_predicted", c->stats.n_output);
    jw_put_i64(w, "tokens_evaluated", c->g->prompts.n_ids);
    if (ends) {
        jw_key(w, "model");
        jw_cstr(w, c->g->answer.model);
        jw_put_i64(w, "tokens_cached", c->stats.n_cached);
        jw_put_bool(w, "truncated", false);
        jw_key(w, "stop_type");
        jw_cstr(w, c->end.finish == ENG_LENGTH ? "limit" : c->end.stop_string ? "word" : "eos");
        jw_key(w, "stopping_word");
        jw_cstr(w, c->end.stop_string ? c->end.stop_string : "");
        put_times(w, c);
    }
    jw_close(w, '}');
    w->b.oom |= c->text.oom;
    lq_buf_clear(&c->text);
}

static const cJSON *nested(const cJSON *o, const char *path)
{
    char name[64];
    for (; o; path += *path == '/') {
        const size_t n = strcspn(path, "/");
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, path);
        o = js_get(o, name);
        path += n;
        if (!*path) break;
    }
    return o;
}

/* response_fields: {"content": ..., "timings/prompt_n": ...} of the answer. */
static void write_fields(jw *w, const cJSON *fields, const jw *whole)
{
    cJSON *o = NULL;
    w->b.oom |= whole->b.oom || js_parse(&o, whole->b.p, whole->b.n, whole->b.n, 0, NULL) != LQ_OK;
    jw_open(w, '{');
    for (const cJSON *f = fields->child; f; f = f->next) {
        const cJSON *v = nested(o, f->valuestring), *other = fields->child;
        while (other != f && strcmp(other->valuestring, f->valuestring) != 0)
            other = other->next;
        char *text = v && other == f ? cJSON_PrintUnformatted(v) : NULL;
        if (!text) continue;
        jw_key(w, f->valuestring);
        jw_json(w, text, strlen(text));
        cJSON_free(text);
    }
    jw_close(w, '}');
    cJSON_Delete(o);
}

static void write_piece(jw *w, gen_choice *c, bool ends)
{
    const cJSON *fields = js_get(c->g->body, "response_fields");
    jw whole = { 0 };
    if (!ends || !fields || !fields->child) {
        write_whole(w, c, ends);
        return;
    }
    write_whole(&whole, c, ends);
    write_fields(w, fields, &whole);
    jw_free(&whole);
}

static bool send(gen *g)
{
    const jw *w = &g->answer.chunk;
    return http_stream_event(g->r, NULL, w->b.oom ? NULL : w->b.p, w->b.n);
}

static bool chunk(gen_choice *c)
{
    jw_clear(&c->g->answer.chunk);
    write_piece(&c->g->answer.chunk, c, c->end.finish != ENG_RUNNING);
    return send(c->g);
}

static bool progress(gen_choice *c)
{
    jw *w = &c->g->answer.chunk;
    jw_clear(w);
    jw_open(w, '{');
    jw_put_i64(w, "index", 0);
    jw_put_cstr(w, "content", "");
    jw_put_bool(w, "stop", false);
    gen_write_progress(w, c);
    jw_close(w, '}');
    return send(c->g);
}

static bool end_stream(gen *g)
{
    (void)g;
    return true; /* the last chunk has said so */
}

static bool send_error(gen *g)
{
    jw *w = &g->answer.chunk;
    const api_error *e = &g->state.error;
    jw_clear(w);
    http_openai.error(w, e->status, e->param[0] ? e->param : NULL, e->code, e->err.msg);
    return send(g);
}

static void write_answer(gen *g, jw *w) { write_piece(w, &g->choices.v[0], true); }

#define SHAPE(d, name)                                                                       \
    {                                                                                        \
        .kind = API_COMPLETIONS, .chat_logprobs = true, .logprob_ids = true, .prefix = name, \
        .prompt = "prompt", .dialect = d, .fills = true, .take = take, .chunk = chunk,       \
        .progress = progress, .end = end_stream, .error = send_error, .answer = write_answer \
    }
static const gen_shape infill_shape = SHAPE(&infill, "infill-");
static const gen_shape completion_shape = SHAPE(&completion, "completion-");

void api_post_infill(void *app, http_req *r) { api_answer_prompts(app, r, &infill_shape); }
void api_post_completion(void *app, http_req *r) { api_answer_prompts(app, r, &completion_shape); }
