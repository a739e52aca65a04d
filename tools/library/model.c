/* tools/library/model.c - a model of include/llmq.h: runtime/service.h, opened by the option tables of
 * the command. */
#include "base/json.h"
#include "base/utf8.h"
#include "runtime/engine/answer.h"
#include "runtime/forward/whole.h"
#include "tools/cli/engine_opts.h"
#include "tools/cli/load.h"
#include "tools/library/handle.h"

#include <limits.h>
#include <stdlib.h>

enum { QUEUE = 1 << 16, MAX_TOKENS = 128, MAX_MESSAGES = 32 << 20 };

typedef struct {
    opt_list names;
    opt_engine engine;
    opt_model model;
} open_opts;

#define F(field) offsetof(open_opts, field)
static const opt_row rows[] = {
    { "served-model-name", 0, OPT_LIST, F(names), .arg = "NAME",
      .help = "name that requests may call the model by" },
};
static const cmd_row open_row = {
    .name = "open",
    .args = { { "path", 1, 1, "the model" } },
    .groups = { OPT_GROUP("Names", rows, 0), OPT_GROUP("Engine", opt_engine_rows, F(engine)),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .opts_bytes = sizeof(open_opts),
};

/* ---- open and close ---- */
static void close_model(llmq *m)
{
    lm_close(m->l);
    pool_close(m->p);
    opt_json_free(&m->options);
    if (m->holds) k_release();
    free(m);
}

static lq_status open_model(llmq *m, const char *path, const llmq_options *o, lq_err *err)
{
    lib_watch w;
    lq_status s = opt_json_parse(&m->options, &open_row, path, NULL, o->options, err);
    if (!s) s = k_hold(opt_value(&m->options.c, "kernels"), err);
    if (s) return s;
    m->holds = true;
    lib_watch_init(&w, o->progress, o->user);
    m->options.c.job = &w.job;
    const open_opts *opts = m->options.opts;
    const load_service_opts how = { .path = path,
                                    .names = &opts->names,
                                    .engine = &opts->engine,
                                    .model = &opts->model,
                                    .queue = QUEUE };
    s = load_service(&m->l, &m->p, &m->options.c, &how, err);
    if (!s && lq_stopped(&w.job)) s = lq_fail(err, LQ_EINTR, "interrupted");
    m->options.c.job = NULL;
    lib_watch_free(&w);
    return s;
}

int32_t llmq_open(llmq **out, const char *path, const llmq_options *o, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    llmq_options own = { 0 };
    *out = NULL;
    lq_status s = lib_read(&own, sizeof own, o, "llmq_options", &err);
    llmq *m = s ? NULL : calloc(1, sizeof *m);
    if (!s && !m) s = lq_fail(&err, LQ_ENOMEM, "out of memory");
    if (!s) s = open_model(m, path, &own, &err);
    if (s && m)
        close_model(m);
    else
        *out = m;
    return lib_leave(locale, s, &err, e);
}

void llmq_close(llmq *m)
{
    if (!m) return;
    void *locale = lib_enter();
    close_model(m);
    (void)lib_leave(locale, LQ_OK, NULL, NULL);
}

static lq_status tokenizer_of(const tok_tokenizer **t, const llmq *m, lq_err *err)
{
    *t = lm_model(m->l)->tok;
    return *t ? LQ_OK : lq_fail(err, LQ_EUNSUPPORTED, "the model has no tokenizer");
}

/* ---- one answer ---- */
static lq_status check_messages(const cJSON *list, lq_err *err)
{
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EVALUE, "messages: expected an array");
    for (const cJSON *v = list->child; v; v = v->next) {
        const char *role = NULL;
        if (!cJSON_IsObject(v)) return lq_fail(err, LQ_EVALUE, "messages: expected objects");
        const lq_status s = js_str(v, "role", true, &role, err);
        if (s) return lq_wrap(err, s, "messages");
        const cJSON *content = js_get(v, "content");
        if (content && !cJSON_IsString(content))
            return lq_fail(err, LQ_EVALUE, "messages: content: expected a text or null");
    }
    return LQ_OK;
}

static lq_status read_messages(cJSON **list, const char *prompt, bool one, lq_err *err)
{
    if (!one) {
        lq_status s = js_parse(list, prompt, strlen(prompt), MAX_MESSAGES, JS_UNIQUE, err);
        if (s) return s == LQ_EFORMAT ? lq_wrap(err, LQ_EVALUE, "messages") : s;
        return check_messages(*list, err);
    }
    if (!lq_utf8_valid(prompt, strlen(prompt), NULL))
        return lq_fail(err, LQ_EVALUE, "prompt: expected UTF-8");
    cJSON *m = cJSON_CreateObject();
    *list = cJSON_CreateArray();
    cJSON_AddStringToObject(m, "role", "user");
    cJSON_AddStringToObject(m, "content", prompt);
    if (*list && m && cJSON_AddItemToArray(*list, m) && !js_ran_out()) return LQ_OK;
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

static lq_status encode(const llmq *m, const char *prompt, int32_t kind, int32_t **ids, size_t *n,
                        lq_err *err)
{
    const api_model *am = lm_model(m->l);
    const tok_tokenizer *t;
    cJSON *messages = NULL;
    lq_status s = tokenizer_of(&t, m, err);
    if (s) return s;
    if (kind == LLMQ_TEXT)
        return tok_encode(t, prompt, strlen(prompt), TOK_ADD_SPECIAL, ids, n, err);
    if (kind != LLMQ_MESSAGE && kind != LLMQ_MESSAGES)
        return lq_fail(err, LQ_EVALUE, "prompt: expected a kind 0..2, found %d", (int)kind);
    if (!am->backend.render) return lq_fail(err, LQ_EUNSUPPORTED, "the model has no chat template");
    s = read_messages(&messages, prompt, kind == LLMQ_MESSAGE, err);
    const chat_request q = { .messages = messages, .add_generation_prompt = true };
    if (!s) s = am->backend.render(am->backend.self, &q, ids, n, err);
    cJSON_Delete(messages);
    return s;
}

/* The ranges of `llmq run`. */
static lq_status check_sampling(const llmq_sampling *s, lq_err *err)
{
    const struct {
        const char *name;
        double value, lo, hi;
    } all[] = { { "max_tokens", (double)s->max_tokens, 0, 1e9 },
                { "min_tokens", (double)s->min_tokens, 0, 1e9 },
                { "temperature", s->temperature, 0, 100 },
                { "top_p", s->top_p, 0, 1 },
                { "min_p", s->min_p, 0, 1 },
                { "top_k", (double)s->top_k, 0, INT32_MAX },
                { "repetition_penalty", s->repetition_penalty, 0, 100 },
                { "presence_penalty", s->presence_penalty, -2, 2 },
                { "frequency_penalty", s->frequency_penalty, -2, 2 },
                { "n_stop", (double)s->n_stop, 0, 1024 } };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (!(all[i].value >= all[i].lo && all[i].value <= all[i].hi))
            return lq_fail(err, LQ_EVALUE, "%s: expected %.15g..%.15g, found %g", all[i].name,
                           all[i].lo, all[i].hi, all[i].value);
    for (size_t i = 0; i < s->n_stop; i++)
        if (!s->stop || !s->stop[i] || !*s->stop[i])
            return lq_fail(err, LQ_EVALUE, "stop[%zu]: expected a text", i);
    return LQ_OK;
}

static double or_one(double v) { return v > 0 ? v : 1; }

static eng_request request_of(const llmq_sampling *s, const int32_t *ids, size_t n)
{
    return (eng_request){
        .prompt = ids,
        .n_prompt = (int64_t)n,
        .max_tokens = s->max_tokens ? s->max_tokens : MAX_TOKENS,
        .min_tokens = s->min_tokens,
        .params = { .temperature = (float)s->temperature,
                    .top_k = (int32_t)s->top_k,
                    .top_p = (float)or_one(s->top_p),
                    .min_p = (float)s->min_p,
                    .repetition_penalty = (float)or_one(s->repetition_penalty),
                    .presence_penalty = (float)s->presence_penalty,
                    .frequency_penalty = (float)s->frequency_penalty,
                    .seed = s->seed,
                    .logprobs = -1 },
        .stop = s->stop,
        .n_stop = (int)s->n_stop,
        .ignore_eos = s->ignore_eos != 0,
        .prompt_logprobs = -1,
    };
}

typedef struct {
    llmq_on_text f;
    void *user;
} reader;

static bool read_text(void *user, const char *text, size_t n)
{
    const reader *r = user;
    return !r->f(r->user, text, n);
}

int32_t llmq_generate(llmq *m, const char *prompt, const llmq_sampling *how, llmq_on_text f,
                      void *user, llmq_usage *u, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    llmq_sampling own = { 0 };
    llmq_usage used = { 0 };
    ans_answer a = { 0 };
    int32_t *ids = NULL;
    size_t n = 0;
    reader r = { f, user };
    lq_status s = lib_read(&own, sizeof own, how, "llmq_sampling", &err);
    if (!s && u) s = lib_write(u, &used, sizeof used, "llmq_usage", &err);
    if (!s) s = check_sampling(&own, &err);
    if (!s) s = lib_given(prompt, "prompt", &err);
    if (!s) s = encode(m, prompt, own.prompt, &ids, &n, &err);
    if (!s) {
        const eng_request q = request_of(&own, ids, n);
        s = ans_run(&a, lm_engine(m->l), &q, f ? read_text : NULL, &r, NULL, &err);
        used.finish = a.finish == ENG_STOP ? LLMQ_STOP : a.finish == ENG_LENGTH ? LLMQ_LENGTH : 0;
        used.prompt_tokens = a.n_prompt;
        used.cached_tokens = a.n_cached;
        used.output_tokens = a.n_ids;
        if (u) (void)lib_write(u, &used, sizeof used, "llmq_usage", &err);
    }
    ans_free(&a);
    free(ids);
    return lib_leave(locale, s, &err, e);
}

/* ---- requests ---- */
int32_t llmq_submit(llmq *m, const char *route, const char *json, size_t n, uint64_t *id,
                    llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    const uint64_t tag = atomic_fetch_add(&m->next, 1) + 1;
    *id = 0;
    lq_status s = lib_given(route, "route", &err);
    if (!s) s = lib_given(json, "json", &err);
    if (!s) s = lm_submit(m->l, route, json, n, tag, &err);
    if (!s) *id = tag;
    return lib_leave(locale, s, &err, e);
}

/* Waits for ever where ms < 0. */
static bool model_take(llmq *m, uint64_t tag, int64_t ms, lm_answer *a)
{
    static const double hour = 3600;
    if (ms >= 0) return lm_take(m->l, tag, 1e-3 * (double)ms, a);
    while (!lm_take(m->l, tag, hour, a))
        ;
    return true;
}

int32_t llmq_poll(llmq *m, uint64_t id, llmq_answer *out, int64_t timeout_ms, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    lm_answer a;
    llmq_answer own = { 0 };
    const uint64_t tag = id ? id : LM_ANY;
    lq_status s = lib_write(out, &own, sizeof own, "llmq_answer", &err);
    if (!s && out->size < sizeof own)
        s = lq_fail(&err, LQ_EUSAGE, "llmq_answer.size: expected sizeof(llmq_answer), found %zu",
                    out->size);
    if (!s && model_take(m, tag, timeout_ms, &a)) {
        own = (llmq_answer){ .id = a.tag, .status = a.status, .json = a.body, .n = a.n };
        if (a.body)
            s = lib_write(out, &own, sizeof own, "llmq_answer", &err);
        else
            s = lq_fail(&err, LQ_ENOMEM, "no memory for the answer to request %llu",
                        (unsigned long long)a.tag);
    }
    return lib_leave(locale, s, &err, e);
}

/* ---- text and numbers ---- */
int32_t llmq_tokenize(llmq *m, const char *text, size_t n, int32_t special, int32_t **ids,
                      size_t *n_ids, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    const tok_tokenizer *t;
    *ids = NULL;
    *n_ids = 0;
    lq_status s = tokenizer_of(&t, m, &err);
    if (!s) s = lib_given(text, "text", &err);
    if (!s) s = tok_encode(t, text, n, special ? TOK_ADD_SPECIAL : 0, ids, n_ids, &err);
    return lib_leave(locale, s, &err, e);
}

int32_t llmq_detokenize(llmq *m, const int32_t *ids, size_t n_ids, int32_t special, char **text,
                        size_t *n, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    const tok_tokenizer *t;
    *text = NULL;
    *n = 0;
    lq_status s = tokenizer_of(&t, m, &err);
    if (!s && n_ids) s = lib_given(ids, "ids", &err);
    if (!s) s = tok_decode(t, ids, n_ids, !special, text, n, &err);
    return lib_leave(locale, s, &err, e);
}

/* The request's status as a code, with the message of its body. */
static lq_status failed(const lm_answer *a, lq_err *err)
{
    cJSON *doc = NULL;
    const char *text = NULL;
    const lq_status s = a->status == 503 || a->status == 429 ? LQ_EBUSY
                        : a->status >= 500                   ? LQ_EDEVICE
                                                             : LQ_EVALUE;
    lq_err none;
    if (!js_parse(&doc, a->body, a->n, MAX_MESSAGES, 0, &none))
        (void)js_str(js_get(doc, "error"), "message", true, &text, &none);
    (void)lq_fail(err, s, "%s", text ? text : "the request failed");
    cJSON_Delete(doc);
    return s;
}

static lq_status read_vector(float **v, size_t *dims, const lm_answer *a, lq_err *err)
{
    cJSON *doc = NULL;
    lq_status s = js_parse(&doc, a->body, a->n, MAX_MESSAGES, 0, err);
    const cJSON *data = js_get(doc, "data");
    const cJSON *list = js_get(data ? data->child : NULL, "embedding");
    if (!s && !cJSON_IsArray(list)) s = lq_fail(err, LQ_EFORMAT, "expected an embedding");
    const size_t n = s ? 0 : (size_t)cJSON_GetArraySize(list);
    if (!s && !(*v = malloc((n ? n : 1) * sizeof **v)))
        s = lq_fail(err, LQ_ENOMEM, "no memory for %zu numbers", n);
    const cJSON *x = s ? NULL : list->child;
    for (; x; x = x->next)
        (*v)[(*dims)++] = (float)x->valuedouble;
    cJSON_Delete(doc);
    return s;
}

int32_t llmq_embed(llmq *m, const char *text, size_t n, float **v, size_t *dims, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    const tok_tokenizer *t;
    lm_answer a = { 0 };
    jw w = { 0 };
    *v = NULL;
    *dims = 0;
    lq_status s = tokenizer_of(&t, m, &err);
    if (!s) s = lib_given(text, "text", &err);
    if (!s && !lq_utf8_valid(text, n, NULL)) s = lq_fail(&err, LQ_EVALUE, "text: expected UTF-8");
    jw_open(&w, '{');
    jw_key(&w, "input");
    if (!s) jw_str(&w, text, n);
    jw_close(&w, '}');
    if (!s && w.b.oom) s = lq_fail(&err, LQ_ENOMEM, "out of memory");
    const uint64_t tag = atomic_fetch_add(&m->next, 1) + 1;
    if (!s) s = lm_submit(m->l, "/v1/embeddings", w.b.p, w.b.n, tag, &err);
    if (!s) (void)model_take(m, tag, -1, &a);
    if (!s && !a.body) s = lq_fail(&err, LQ_ENOMEM, "out of memory");
    if (!s) s = a.status == 200 ? read_vector(v, dims, &a, &err) : failed(&a, &err);
    free(a.body);
    jw_free(&w);
    return lib_leave(locale, s, &err, e);
}

static lq_status check_ids(const int32_t *ids, size_t n, const api_model *c, lq_err *err)
{
    lq_status s = lib_given(ids, "ids", err);
    if (!s && (n < 1 || n > (size_t)c->max_len))
        s = lq_fail(err, LQ_EVALUE, "ids: expected 1 to %lld, found %zu", (long long)c->max_len, n);
    for (size_t i = 0; i < n && !s; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            s = lq_fail(err, LQ_EVALUE, "ids[%zu]: expected 0 to %lld, found %d", i,
                        (long long)c->vocab - 1, ids[i]);
    return s;
}

int32_t llmq_logits(llmq *m, const int32_t *ids, size_t n, int32_t exact, float **logits,
                    size_t *vocab, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    const model *w = lm_weights(m->l);
    const opt_model *o = &((const open_opts *)m->options.opts)->model;
    pool *p = NULL;
    *logits = NULL;
    *vocab = 0;
    lq_status s = check_ids(ids, n, lm_model(m->l), &err);
    if (!s && model_dev(w))
        s = lq_fail(&err, LQ_EUNSUPPORTED, "logits of a model on a GPU: use `llmq logits`");
    if (!s) s = pool_open(&p, pool_threads(m->p), &err);
    if (!s)
        s = fwd_whole(logits, w, NULL, ids, (int64_t)n, exact ? MM_F32 : opt_acts(o),
                      exact ? KV_F32 : opt_kv(o), p, NULL, &err);
    if (!s) *vocab = (size_t)w->cfg->vocab;
    pool_close(p);
    return lib_leave(locale, s, &err, e);
}
