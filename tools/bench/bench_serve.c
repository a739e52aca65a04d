/* tools/bench/bench_serve.c - `llmq bench serve`: load on a server, see bench_serve.h. */
#include "tools/bench/bench_serve.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "calib/builtin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the text that prompts are cut from ---- */

static bool is_blank(char c) { return c == ' ' || c == '\n'; }

static char *tokenize_body(const char *model, const char *field, const char *text, size_t n)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "model");
    jw_cstr(&w, model);
    jw_key(&w, field);
    jw_str(&w, text, n);
    jw_key(&w, "add_special_tokens");
    jw_bool(&w, false);
    jw_close(&w, '}');
    lq_buf_add(&w.b, "", 1);
    if (!w.b.oom) return w.b.p;
    jw_free(&w);
    return NULL;
}

/* Appends the ids of a server's answer. */
static lq_status add_ids(bs_text *t, const char *body, size_t n, lq_err *err)
{
    cJSON *doc = NULL;
    lq_status s = js_parse(&doc, body, n, SIZE_MAX, 0, err);
    const cJSON *tokens = s ? NULL : js_get(doc, "tokens");
    const size_t more = (size_t)cJSON_GetArraySize(tokens);
    int32_t *ids = s ? NULL : realloc(t->ids, ((size_t)t->n_ids + more + 1) * sizeof *ids);
    if (!s && !ids) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (ids) t->ids = ids;
    for (const cJSON *v = !s && more ? tokens->child : NULL; v && !s; v = v->next) {
        int64_t id;
        if (js_whole(v, 0, INT32_MAX, &id))
            t->ids[t->n_ids++] = (int32_t)id;
        else
            s = lq_fail(err, LQ_EFORMAT, "/tokenize: expected ids");
    }
    cJSON_Delete(doc);
    return s;
}

/* All of the text, by the field that servers of one kind read it from. */
static lq_status ask_ids(bs_text *t, client *c, const char *model, const char *field, lq_err *err)
{
    enum { PIECE = 200 }; /* fits the context of any model */
    lq_status s = LQ_OK;
    for (size_t at = 0; at < t->n_text && !s;) {
        size_t n = PIECE, got = 0;
        while (!is_blank(t->text[at + n]))
            n++;
        t->piece[t->n_pieces].at = at;
        t->piece[t->n_pieces].id = t->n_ids;
        t->n_pieces += t->n_pieces < BS_PIECES;
        char *json = tokenize_body(model, field, t->text + at, n), *body = NULL;
        s = json ? client_ask(c, "/tokenize", json, &body, &got, err)
                 : lq_fail(err, LQ_ENOMEM, "out of memory");
        if (!s) s = add_ids(t, body, got, err);
        if (!s && !t->n_ids) s = lq_fail(err, LQ_EFORMAT, "it gave no tokens");
        free(json);
        free(body);
        at += n;
        t->piece[t->n_pieces].at = at;
        t->piece[t->n_pieces].id = t->n_ids;
    }
    return s;
}

static void text_close(bs_text *t)
{
    free(t->ids);
    t->ids = NULL;
    t->n_ids = 0;
    t->n_pieces = 0;
}

/* Asks the server for the ids of the built-in text; a server that cannot gets words. */
static lq_status text_open(bs_text *t, client *c, const char *model, lq_err *err)
{
    static const char *const fields[] = { "prompt", "content" }; /* vLLM's, llama.cpp's */
    enum { BYTES = 40000 };
    *t = (bs_text){ .text = calib_builtin_text, .n_text = BYTES };
    for (size_t i = 0; i < LQ_COUNT(fields); i++) {
        const lq_status s = ask_ids(t, c, model, fields[i], err);
        if (!s) return s;
        text_close(t);
        if (s == LQ_ENOMEM) return s;
    }
    prog_say(LOG_WARN, "no /tokenize (%s): prompts are words, their lengths nearly right",
             err->msg);
    return LQ_OK;
}

static void text_ids(const bs_text *t, jw *w, uint64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        jw_i64(w, t->ids[(at + (uint64_t)i) % (uint64_t)t->n_ids]);
}

/* About n tokens: pieces whose ids are known, and of the last one as much as there are tokens left for. */
static void add_pieces(const bs_text *t, lq_buf *text, uint64_t at, int64_t n)
{
    for (uint64_t i = at; n > 0; i++) {
        const int k = (int)(i % (uint64_t)t->n_pieces);
        const size_t from = t->piece[k].at, bytes = t->piece[k + 1].at - from;
        const int64_t ids = t->piece[k + 1].id - t->piece[k].id;
        size_t part = ids <= n ? bytes : bytes * (size_t)n / (size_t)ids;
        while (part < bytes && !is_blank(t->text[from + part]))
            part++;
        lq_buf_add(text, t->text + from, part);
        n -= ids > 0 ? ids : 1;
    }
}

static void add_words(const bs_text *t, lq_buf *text, uint64_t at, int64_t n)
{
    size_t p = (size_t)(at % t->n_text);
    for (int64_t i = 0; i < n; i++) {
        if (i % 13 >= 10) continue; /* a word is 1.3 tokens, nearly */
        while (is_blank(t->text[p]))
            p = (p + 1) % t->n_text;
        lq_buf_puts(text, " ");
        for (; !is_blank(t->text[p]); p = (p + 1) % t->n_text)
            lq_buf_add(text, t->text + p, 1);
    }
}

/* n tokens of it from a place that `at` chooses: ids for an open JSON array, or text (about so
 * many tokens) escaped for an open JSON string. */
static void text_words(const bs_text *t, lq_buf *out, uint64_t at, int64_t n)
{
    lq_buf text = { 0 };
    jw quoted = { 0 };
    if (t->n_pieces)
        add_pieces(t, &text, at, n);
    else
        add_words(t, &text, at, n);
    jw_str(&quoted, text.p, text.n);
    if (quoted.b.oom)
        out->oom = true;
    else
        lq_buf_add(out, quoted.b.p + 1, quoted.b.n - 2);
    lq_buf_free(&text);
    jw_free(&quoted);
}

/* ---- a request ---- */

typedef struct session session;

/* A conversation, or a lone request. */
typedef struct {
    session *b;
    int64_t index, turn;
    lq_buf said; /* of a conversation: everything so far */
    double begun, last;
    bs_done done;
    int64_t texts, events; /* events: with choices, text or none */
    bool is_long;          /* sends one long prompt after the other, which are not counted */
} caller;

struct session {
    const cmd_ctx *c;
    const bench_cmd *o;
    client *client;
    char *model;
    char *modules; /* of --lora-modules, each ended by a NUL; NULL: all requests are for `model` */
    int64_t n_modules;
    int64_t context; /* of a conversation, in tokens; 0: not known */
    bs_text text;
    bs_slo slo;
    bs_run *run;
    bool beside;   /* long prompts run beside the requests */
    int64_t begun; /* callers */
    int open;      /* callers that have not ended */
    lq_status s;
    lq_err *err;
};

/* The i-th number of a request: of its seed alone. */
static uint64_t number(const bench_cmd *o, int64_t request, int64_t i)
{
    return lq_random_of((uint64_t)o->seed ^ lq_random_of((uint64_t)request * 1024 + (uint64_t)i));
}

/* The prompt: ids where lengths must be exact, else text. */
static void put_prompt(caller *k, jw *w)
{
    const session *b = k->b;
    const bench_cmd *o = b->o;
    const uint64_t at = number(o, k->index, k->turn), start = number(o, -1, 0);
    const int64_t shared = o->load == BS_PREFIX ? o->prefix_len : 0;
    if (b->text.ids && o->load != BS_TURNS) {
        jw_open(w, '[');
        text_ids(&b->text, w, start, shared);
        text_ids(&b->text, w, at, k->is_long ? o->long_len : o->input_len);
        jw_close(w, ']');
        return;
    }
    if (!k->turn) text_words(&b->text, &k->said, start, shared);
    text_words(&b->text, &k->said, at, k->is_long ? o->long_len : o->input_len);
    lq_buf whole = { 0 };
    lq_buf_puts(&whole, "\"");
    lq_buf_add(&whole, k->said.p, k->said.n);
    lq_buf_puts(&whole, "\"");
    if (whole.oom || k->said.oom) w->b.oom = true;
    jw_json(w, whole.p, whole.n);
    lq_buf_free(&whole);
}

/* By the seed and the request's number: a conversation stays with one. */
static const char *model_of(const caller *k)
{
    enum { DRAW = 1023 }; /* of the numbers of a request */
    const session *b = k->b;
    const char *name = b->modules;
    if (!name) return b->model;
    for (uint64_t i = number(b->o, k->index, DRAW) % (uint64_t)b->n_modules; i > 0; i--)
        name += strlen(name) + 1;
    return name;
}

static char *body_of(caller *k)
{
    const session *b = k->b;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "model");
    jw_cstr(&w, model_of(k));
    jw_key(&w, "prompt");
    put_prompt(k, &w);
    jw_key(&w, "max_tokens");
    jw_i64(&w, k->is_long ? 1 : b->o->output_len);
    jw_key(&w, "temperature");
    jw_f64(&w, 0);
    jw_key(&w, "ignore_eos");
    jw_bool(&w, true);
    jw_key(&w, "stream");
    jw_bool(&w, true);
    jw_key(&w, "stream_options");
    jw_json(&w, "{\"include_usage\":true}", 22);
    jw_close(&w, '}');
    lq_buf_add(&w.b, "", 1);
    if (!w.b.oom) return w.b.p;
    jw_free(&w);
    return NULL;
}

static void take_text(caller *k, const char *text)
{
    const double now = lq_now();
    if (!k->texts++)
        k->done.ttft = now - k->begun;
    else if (!bs_push(&k->b->run->itl, now - k->last))
        k->b->s = lq_fail(k->b->err, LQ_ENOMEM, "out of memory");
    k->last = now;
    if (k->b->o->load != BS_TURNS) return;
    jw piece = { 0 };
    jw_cstr(&piece, text);
    if (piece.b.n >= 2) lq_buf_add(&k->said, piece.b.p + 1, piece.b.n - 2);
    jw_free(&piece);
}

static bool on_event(void *user, const char *data, size_t n)
{
    caller *k = user;
    cJSON *doc = NULL;
    const char *text = NULL;
    if (js_parse(&doc, data, n, SIZE_MAX, 0, NULL)) return false;
    const cJSON *choices = js_get(doc, "choices"), *usage = js_get(doc, "usage");
    if (choices && choices->child) {
        k->events++;
        js_str(choices->child, "text", false, &text, NULL);
    }
    if (text && text[0] && !k->is_long) take_text(k, text);
    js_i64(usage, "prompt_tokens", false, 0, JS_MAX_INT, &k->done.prompt_tokens, NULL);
    js_i64(usage, "completion_tokens", false, 0, JS_MAX_INT, &k->done.output_tokens, NULL);
    const bool ok = !js_get(doc, "error");
    cJSON_Delete(doc);
    k->done.aborted = ok && k->b->o->load == BS_ABORT && k->texts;
    return ok && !k->done.aborted;
}

static void ask(caller *k);

/* One is read: the next, as long as there are requests to be beside. */
static void end_long(caller *k, const client_answer *a)
{
    session *b = k->b;
    const bool ok = a->status == 200 && a->whole && k->events > 0;
    if (ok) {
        b->run->long_read++;
        b->run->long_seconds += lq_now() - k->begun;
    } else if (!a->cancelled && !b->run->error[0]) {
        lq_err err;
        client_say(a, &err);
        b->run->long_failed++;
        snprintf(b->run->error, sizeof b->run->error, "a long prompt: %.230s", err.msg);
    }
    lq_buf_clear(&k->said);
    k->turn++;
    if (ok && b->open && !b->s) {
        ask(k);
        return;
    }
    lq_buf_free(&k->said);
    free(k);
}

/* Would the conversation with one more turn be longer than the context? A text of so many tokens is nearly so long. */
static bool is_full(const caller *k)
{
    const session *b = k->b;
    const int64_t next = 2 * b->o->input_len + b->o->output_len;
    return b->context && k->done.prompt_tokens + k->done.output_tokens + next > b->context;
}

/* An answer is whole with its stream's end. It need not have text: a model may end at once, or
 * write tokens that have none. */
static void on_done(void *user, const client_answer *a)
{
    caller *k = user;
    session *b = k->b;
    bs_run *r = b->run;
    if (k->is_long) {
        end_long(k, a);
        return;
    }
    const bool whole = a->status == 200 && a->whole;
    k->done.ok = whole && k->events > 0;
    k->done.has_text = k->texts > 0;
    k->done.e2el = lq_now() - k->begun;
    lq_err err;
    if (!k->done.ok && !k->done.aborted && !r->error[0]) {
        if (whole)
            lq_fail(&err, LQ_EIO, "expected a stream of events with choices");
        else
            client_say(a, &err);
        snprintf(r->error, sizeof r->error, "%.250s", err.msg);
    }
    if (r->n < r->room) r->done[r->n++] = k->done;
    if (k->done.ok && b->o->load == BS_TURNS && ++k->turn < b->o->turns && !b->s) {
        if (is_full(k)) lq_buf_clear(&k->said); /* it begins again */
        ask(k);
        return;
    }
    b->open--;
    lq_buf_free(&k->said);
    free(k);
}

static void ask(caller *k)
{
    session *b = k->b;
    k->done = (bs_done){ 0 };
    k->texts = k->events = 0;
    char *body = body_of(k);
    k->begun = lq_now();
    lq_status s = body ? client_send(b->client,
                                     &(client_request){ .path = "/v1/completions",
                                                        .json = body,
                                                        .event = on_event,
                                                        .done = on_done,
                                                        .user = k },
                                     b->err)
                       : lq_fail(b->err, LQ_ENOMEM, "out of memory");
    free(body);
    if (!s) return;
    b->s = s;
    if (!k->is_long) b->open--;
    lq_buf_free(&k->said);
    free(k);
}

static caller *new_caller(session *b, int64_t index)
{
    caller *k = calloc(1, sizeof *k);
    if (!k) {
        b->s = lq_fail(b->err, LQ_ENOMEM, "out of memory");
        return NULL;
    }
    k->b = b;
    k->index = index;
    return k;
}

static void bench_serve_begin(session *b)
{
    caller *k = new_caller(b, b->begun);
    if (!k) return;
    b->begun++;
    b->open++;
    ask(k);
}

static void begin_long(session *b)
{
    caller *k = new_caller(b, INT32_MAX); /* texts that no counted request has */
    if (!k) return;
    k->is_long = true;
    ask(k);
}

/* ---- a run ---- */

/* Seconds from one arrival to the next: exponential. */
static double gap(const bench_cmd *o, int64_t i, double rate)
{
    const double u = ((double)(number(o, i, 1023) >> 11) + 0.5) * 0x1p-53;
    return -log(u) / rate;
}

static lq_status run_load(session *b, bs_run *r, int64_t callers)
{
    const double start = lq_now();
    double due = start;
    b->run = r;
    b->begun = b->open = 0;
    b->s = LQ_OK;
    if (b->beside) begin_long(b);
    while (!b->s && (b->begun < callers || b->open) && !lq_stopped(b->c->job)) {
        double wait = 0.2;
        if (r->rate > 0) {
            for (; b->begun < callers && due <= lq_now() && !b->s; bench_serve_begin(b))
                due += gap(b->o, b->begun, r->rate);
            if (b->begun < callers) wait = fmin(wait, fmax(due - lq_now(), 0));
        } else {
            while (b->begun < callers && b->open < r->concurrency && !b->s)
                bench_serve_begin(b);
        }
        client_step(b->client, wait);
    }
    r->seconds = fmax(lq_now() - start, 1e-9);
    if (!b->s && lq_stopped(b->c->job)) b->s = lq_fail(b->err, LQ_EINTR, "interrupted");
    if (b->s || b->beside) { /* callers are freed by their last call */
        client_cancel(b->client);
        client_step(b->client, 0);
    }
    return b->s;
}

/* One row: closed loop at this concurrency, or open loop at this rate. */
static lq_status measure(session *b, bs_run *r, int64_t concurrency, double rate)
{
    const int64_t turns = b->o->load == BS_TURNS ? b->o->turns : 1, n = b->o->num_prompts;
    *r = (bs_run){ .concurrency = concurrency, .rate = rate, .room = n * turns };
    r->done = calloc((size_t)r->room, sizeof *r->done);
    if (!r->done) return lq_fail(b->err, LQ_ENOMEM, "out of memory");
    return run_load(b, r, n);
}

/* Requests that are not counted: connections, caches and clocks are warm after them. */
static lq_status warm_up(session *b)
{
    bench_cmd few = *b->o;
    const bench_cmd *all = b->o;
    bs_run r;
    few.seed = ~all->seed; /* other texts: the server remembers none of them */
    few.num_prompts = all->warmups;
    few.load = BS_RANDOM;
    b->beside = false;
    b->o = &few;
    lq_status s = all->warmups ? measure(b, &r, 4, 0) : LQ_OK;
    b->o = all;
    if (!all->warmups) return s;
    if (!s && r.error[0]) s = lq_fail(b->err, LQ_EIO, "%s", r.error);
    bs_run_free(&r);
    return s;
}

static lq_status check(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    if (c->argc < 2) return lq_fail(err, LQ_EUSAGE, "expected the address of a server");
    if (opt_given(c, "concurrency") && opt_given(c, "request-rate"))
        return lq_fail(err, LQ_EUSAGE,
                       "--concurrency is a closed loop, --request-rate an open one");
    if (opt_given(c, "prefix-len") && o->load != BS_PREFIX)
        return lq_fail(err, LQ_EUSAGE, "--prefix-len goes with --load shared-prefix");
    if (opt_given(c, "long-len") && o->load != BS_LONG)
        return lq_fail(err, LQ_EUSAGE, "--long-len goes with --load long-and-short");
    if (opt_given(c, "turns") && o->load != BS_TURNS)
        return lq_fail(err, LQ_EUSAGE, "--turns goes with --load multi-turn");
    return LQ_OK;
}

static lq_status read_modules(session *b, lq_err *err)
{
    if (!b->o->loras) return LQ_OK;
    b->modules = strdup(b->o->loras);
    if (!b->modules) return lq_fail(err, LQ_ENOMEM, "out of memory");
    b->n_modules = 1;
    for (char *c = b->modules; *c; c++) {
        if (*c != ',') continue;
        *c = 0;
        b->n_modules++;
    }
    const char *name = b->modules;
    for (int64_t i = 0; i < b->n_modules; i++, name += strlen(name) + 1)
        if (!*name)
            return lq_fail(err, LQ_EUSAGE, "--lora-modules: expected NAME[,NAME...], found '%.80s'",
                           b->o->loras);
    return LQ_OK;
}

static lq_status bench_serve_finish(const cmd_ctx *c, cJSON *runs, lq_err *err)
{
    if (!c->json) {
        cJSON_Delete(runs);
        return LQ_OK;
    }
    /* one run is the document, as vLLM's is; several are in a list */
    if (cJSON_GetArraySize(runs) == 1) {
        cJSON *one = cJSON_DetachItemFromArray(runs, 0);
        cJSON_Delete(runs);
        return cmd_print_json(one, err);
    }
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddItemToObject(doc, "runs", runs);
    return cmd_print_json(doc, err);
}

static lq_status run_all(session *b, const int64_t *levels, int64_t n_levels)
{
    const bench_cmd *o = b->o;
    cJSON *runs = cJSON_CreateArray();
    lq_status s = warm_up(b);
    if (!s && !b->c->json)
        printf("%s, %lld prompts of %lld tokens, %lld tokens of answer, %s; times in ms\n",
               o->loras ? o->loras : b->model, (long long)o->num_prompts, (long long)o->input_len,
               (long long)o->output_len, bs_load_names[o->load]);
    int64_t failed = 0;
    double alone = 0; /* p99 between tokens without long prompts, of this level */
    const int each = o->load == BS_LONG ? 2 : 1;
    for (int64_t i = 0; i < each * n_levels && !s; i++) {
        bs_run r;
        b->beside = each == 2 && i % 2;
        s = measure(b, &r, o->rate > 0 ? 0 : levels[i / each], o->rate);
        if (!s && b->beside && alone > 0) r.long_ratio = bs_percentile(&r.itl, 99) / alone;
        alone = s ? 0 : bs_percentile(&r.itl, 99);
        if (!s && !b->c->json) bs_print(&r, &b->slo, i == 0);
        if (!s) cJSON_AddItemToArray(runs, bs_json(&r, o, &b->slo, b->model));
        if (!s && r.error[0]) prog_say(LOG_WARN, "a request failed: %s", r.error);
        for (int64_t k = 0; k < r.n; k++)
            failed += !r.done[k].ok && !r.done[k].aborted;
        failed += r.long_failed;
        if (!s && r.error[0]) lq_fail(b->err, LQ_EIO, "%s", r.error);
        bs_run_free(&r);
    }
    if (s) {
        cJSON_Delete(runs);
        return s;
    }
    lq_err said = *b->err;
    s = bench_serve_finish(b->c, runs, b->err);
    if (!s && failed)
        s = lq_fail(b->err, LQ_EIO, "%lld requests failed, the first of a run: %s",
                    (long long)failed, said.msg);
    return s;
}

/* The context of the model as vLLM's, OpenRouter's or llama.cpp's list of models has it; 0: it has none. */
static int64_t context_of(client *c, const char *model)
{
    static const char *const names[] = { "max_model_len", "context_length" };
    char *body = NULL;
    size_t n;
    cJSON *doc = NULL;
    int64_t context = 0;
    lq_err err;
    if (!client_ask(c, "/v1/models", NULL, &body, &n, &err))
        js_parse(&doc, body, n, SIZE_MAX, 0, &err);
    const cJSON *list = js_get(doc, "data");
    for (const cJSON *m = list ? list->child : NULL; m; m = m->next) {
        const char *id = cJSON_GetStringValue(js_get(m, "id"));
        if (!id || strcmp(id, model) != 0) continue;
        for (size_t i = 0; i < LQ_COUNT(names); i++)
            js_whole(js_get(m, names[i]), 1, JS_MAX_INT, &context);
        js_whole(js_get(js_get(m, "meta"), "n_ctx"), 1, JS_MAX_INT, &context);
    }
    cJSON_Delete(doc);
    free(body);
    return context;
}

lq_status bench_serve(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    session b = { .c = c, .o = o, .err = err };
    const char *key = o->key ? o->key : getenv("LLMQ_API_KEY");
    int64_t *levels = NULL, n_levels = 1;
    lq_status s = check(c, o, err);
    if (!s) s = bs_slo_parse(&b.slo, o->goodput, err);
    if (!s) s = opt_parse_ints(o->concurrency, "--concurrency", 1, 4096, &levels, &n_levels, err);
    if (!s) {
        const client_opts co = { .url = c->argv[1],
                                 .key = key ? key : getenv("OPENAI_API_KEY"),
                                 .insecure = o->insecure };
        s = client_open(&b.client, &co, err);
    }
    const char *name = o->name ? o->name : o->served;
    if (!s) s = read_modules(&b, err);
    if (!name) name = b.modules;
    if (!s && name && !(b.model = strdup(name))) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && !name) s = client_model(b.client, &b.model, err);
    if (!s) s = text_open(&b.text, b.client, b.model, err);
    if (!s && o->load == BS_TURNS) b.context = context_of(b.client, b.model);
    if (!s) s = run_all(&b, levels, o->rate > 0 ? 1 : n_levels);
    text_close(&b.text);
    client_close(b.client);
    free(b.model);
    free(b.modules);
    free(levels);
    return s;
}
