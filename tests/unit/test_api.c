/* tests/unit/test_api.c - the OpenAI API over real sockets, before a scripted engine: what the engine
 * says is exact, so that every byte of an answer can be. Shapes and framing: OpenAI's API reference
 * and vLLM's protocol. */
#include "runtime/api/api.h"
#include "tests/support/check.h"
#include "tests/support/http_client.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- the scripted engine: a request's cache_salt names its script ---- */

typedef struct {
    const char *text;
    int n_ids; /* ids 100, 101, ... */
    eng_finish finish;
    const char *stop_string;
    int32_t stop_id; /* 0: none */
    const char *error;
} step;

static const struct {
    const char *name;
    step steps[8];
} scripts[] = {
    { "hello", { { "He", 1, 0, NULL, 0, NULL }, { "llo", 2, ENG_LENGTH, NULL, 0, NULL } } },
    { "held",
      { { "", 1, 0, NULL, 0, NULL },
        { "\xc3\xa9", 1, 0, NULL, 0, NULL },
        { "", 0, ENG_STOP, NULL, 0, NULL } } },
    { "stop", { { "ab", 1, ENG_STOP, "x", 0, NULL } } },
    { "stop id", { { "ab", 2, ENG_STOP, NULL, 7, NULL } } },
    { "quotes", { { "\"\\\n\x01\xff", 1, ENG_STOP, NULL, 0, NULL } } },
    { "broken", { { "", 0, ENG_ERROR, NULL, 0, "the logits hold NaN" } } },
    { "breaks", { { "one", 1, 0, NULL, 0, NULL }, { "", 0, ENG_ERROR, NULL, 0, "NaN" } } },
    { "forever", { { "w", 1, 0, NULL, 0, NULL } } }, /* then until it is cancelled */
};

enum { SLOTS = 256 };
typedef struct {
    bool used, cancelled;
    uint64_t id;
    const step *next;
    int64_t n_prompt, n_output;
    int logprobs, prompt_logprobs;
    int32_t prompt[8];
    eng_sink sink;
    void *user;
} slot;

static struct {
    pthread_mutex_t mu;
    pthread_t thread;
    bool stop;
    slot slots[SLOTS];
    uint64_t next_id;
    int room; /* requests still accepted */
    uint64_t seeds[8];
    int n_seeds;
    eng_request last; /* scalars only */
    atomic_int running;
} eng = { .mu = PTHREAD_MUTEX_INITIALIZER };

static lq_status fake_submit(void *self, const eng_request *r, eng_sink sink, void *user,
                             uint64_t *id, lq_err *err)
{
    (void)self;
    lq_status s = LQ_OK;
    pthread_mutex_lock(&eng.mu);
    slot *q = NULL;
    for (int i = 0; i < SLOTS && !q; i++)
        if (!eng.slots[i].used) q = &eng.slots[i];
    if (!q || eng.room-- <= 0) {
        s = lq_fail(err, LQ_EBUSY, "full");
    } else {
        *q = (slot){ .used = true,
                     .id = *id = ++eng.next_id,
                     .sink = sink,
                     .user = user,
                     .n_prompt = r->n_prompt,
                     .logprobs = r->params.logprobs,
                     .prompt_logprobs = r->prompt_logprobs };
        for (int i = 0; i < 8 && i < r->n_prompt; i++)
            q->prompt[i] = r->prompt[i];
        q->next = scripts[0].steps;
        for (size_t i = 0; r->salt && i < LQ_COUNT(scripts); i++)
            if (strcmp(scripts[i].name, r->salt) == 0) q->next = scripts[i].steps;
        if (eng.n_seeds < 8) eng.seeds[eng.n_seeds++] = r->params.seed;
        eng.last = *r;
        atomic_fetch_add(&eng.running, 1);
    }
    pthread_mutex_unlock(&eng.mu);
    return s;
}

static void fake_cancel(void *self, uint64_t id)
{
    (void)self;
    pthread_mutex_lock(&eng.mu);
    for (int i = 0; i < SLOTS; i++)
        if (eng.slots[i].used && eng.slots[i].id == id) eng.slots[i].cancelled = true;
    pthread_mutex_unlock(&eng.mu);
}

static void fake_stats(void *self, eng_stats *s)
{
    (void)self;
    *s = (eng_stats){ .running = atomic_load(&eng.running), .kv_blocks = 8, .kv_blocks_used = 2 };
}

/* -log2(id) would do: any figure that a test can tell */
static void fake_logprob(smp_result *r, int32_t id, int n_top)
{
    *r = (smp_result){ .id = id, .logprob = -0.5f, .n_top = n_top };
    for (int i = 0; i < n_top; i++) {
        r->top_id[i] = 200 + i;
        r->top_logprob[i] = -0.25f * (float)(i + 1);
    }
}

static void deliver(slot *q, const step *t, bool first)
{
    int32_t ids[8];
    smp_result lp[8], plp[8];
    eng_event e = { .id = q->id,
                    .text = t->text,
                    .n_text = strlen(t->text),
                    .ids = ids,
                    .n_ids = t->n_ids,
                    .n_prompt = q->n_prompt,
                    .n_cached = 1,
                    .last = t->finish != ENG_RUNNING,
                    .finish = t->finish,
                    .stop_string = t->stop_string,
                    .stop_id = t->stop_id ? t->stop_id : -1,
                    .error = t->error };
    for (int i = 0; i < t->n_ids; i++) {
        ids[i] = 100 + (int32_t)q->n_output++;
        if (q->logprobs >= 0) fake_logprob(&lp[i], ids[i], q->logprobs);
    }
    e.logprobs = q->logprobs >= 0 ? lp : NULL;
    e.n_output = q->n_output;
    for (int i = 0; i < 8 && i < q->n_prompt && first && q->prompt_logprobs >= 0; i++)
        fake_logprob(&plp[i], q->prompt[i], q->prompt_logprobs);
    e.prompt_logprobs = first && q->prompt_logprobs >= 0 ? plp : NULL;
    q->sink(q->user, &e);
}

static void *fake_engine(void *arg)
{
    (void)arg;
    for (;;) {
        nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
        for (int i = 0; i < SLOTS; i++) {
            pthread_mutex_lock(&eng.mu);
            slot q = eng.slots[i];
            bool stop = eng.stop;
            pthread_mutex_unlock(&eng.mu);
            if (stop) return NULL;
            static const step cancelled = { "", 0, ENG_CANCELLED, NULL, 0, NULL };
            const step *t = q.cancelled ? &cancelled : q.next;
            if (!q.used || !(t->text)) continue; /* "forever" runs dry */
            deliver(&q, t, q.n_output == 0);
            pthread_mutex_lock(&eng.mu);
            eng.slots[i].n_output = q.n_output;
            eng.slots[i].next = q.next + 1;
            if (t->finish) eng.slots[i].used = false;
            pthread_mutex_unlock(&eng.mu);
            if (t->finish) atomic_fetch_sub(&eng.running, 1);
        }
    }
}

static lq_status fake_render(void *self, const chat_request *q, int32_t **ids, size_t *n,
                             lq_err *err)
{
    (void)self;
    const cJSON *content = js_get(q->messages->child, "content");
    if (cJSON_IsString(content) && strcmp(content->valuestring, "raise") == 0)
        return lq_fail(err, LQ_EVALUE, "roles must alternate");
    *n = 3;
    *ids = malloc(*n * sizeof **ids);
    for (size_t i = 0; i < *n; i++)
        (*ids)[i] = (int32_t)(300 + i);
    return LQ_OK;
}

/* ---- a server around it ---- */

static tok_tokenizer *tok;
static http_server *server;
static api *the_api;

static void start(bool strict, bool loaded)
{
    static const char *const names[] = { "tiny", "org/tiny" };
    lq_err err = { "" };
    api_opts ao = { .names = names, .n_names = 2, .version = "9.9", .strict_params = strict };
    http_opts ho = { .threads = 2 };
    lq_status s = api_open(&the_api, &ao, &err);
    ho.routes = api_routes(true, &ho.n_routes);
    ho.app = the_api;
    ho.log = api_log;
    ho.tick = api_tick;
    if (!s) s = http_open(&server, &ho, &err);
    if (s) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    api_set_http(the_api, server);
    api_model m = { .backend = { NULL, fake_submit, fake_cancel, fake_stats, fake_render },
                    .tok = tok,
                    .vocab = tok_vocab(tok),
                    .max_len = 64,
                    .max_seqs = 64,
                    .queue = 4000,
                    .fingerprint = "x" };
    eng.stop = false;
    eng.room = 1000;
    eng.n_seeds = 0;
    if (loaded) api_set_model(the_api, &m);
    pthread_create(&eng.thread, NULL, fake_engine, NULL);
}

static void stop(void)
{
    http_close(server);
    for (int i = 0; i < 400000 && atomic_load(&eng.running); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    CHECK(atomic_load(&eng.running) == 0, "requests are left in the engine");
    pthread_mutex_lock(&eng.mu);
    eng.stop = true;
    pthread_mutex_unlock(&eng.mu);
    pthread_join(eng.thread, NULL);
    api_close(the_api);
}

/* ids, times and chunk lengths of an answer are no constants: blank them. */
static char *blank(const char *answer)
{
    static char out[1 << 16];
    char *o = out;
    const char *body = strstr(answer, "\r\n\r\n");
    bool chunked = strstr(answer, "chunked") != NULL;
    body = body ? body + 4 : answer;
    while (*body) {
        if (chunked) { /* LENGTH CRLF bytes CRLF */
            char *end;
            unsigned long n = strtoul(body, &end, 16);
            if (end == body || end[0] != '\r') break;
            memcpy(o, end + 2, n);
            o += n;
            body = end + 2 + n + 2;
        } else {
            *o++ = *body++;
        }
    }
    *o = 0;
    static const char *const after[] = { "\"id\":\"cmpl-", "\"id\":\"chatcmpl-",
                                         "\"created\":", "\"system_fingerprint\":\"fp_" };
    for (size_t k = 0; k < LQ_COUNT(after); k++)
        for (char *p = out; (p = strstr(p, after[k])) != NULL;) {
            p += strlen(after[k]);
            size_t n = strspn(p, "0123456789abcdef");
            memmove(p, p + n, strlen(p + n) + 1);
        }
    return out;
}

static const char *post(const char *path, const char *body)
{
    static char request[1 << 16];
    snprintf(request, sizeof request,
             "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
    return ask_port(http_port(server), request);
}

static const char *get(const char *path)
{
    char request[256];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
             path);
    return ask_port(http_port(server), request);
}

static void check_answer(const char *path, const char *body, const char *status, const char *want)
{
    const char *a = post(path, body);
    CHECK(strlen(a) > 12 && strncmp(a + 9, status, 3) == 0, "%s: wanted %s, got %.300s", body,
          status, a);
    const char *got = blank(a);
    CHECK(strcmp(got, want) == 0, "%s:\n got %s\nwant %s", body, got, want);
}

#define HEAD_C "{\"id\":\"cmpl-\",\"object\":\"text_completion\",\"created\":,"
#define MODEL "\"model\":\"tiny\",\"system_fingerprint\":\"fp_\",\"choices\":["
#define NO_END "\"finish_reason\":null,\"stop_reason\":null"
#define LENGTH "\"finish_reason\":\"length\",\"stop_reason\":null"
#define USAGE(p, c, t, k)                                                                \
    "\"usage\":{\"prompt_tokens\":" p ",\"completion_tokens\":" c ",\"total_tokens\":" t \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" k "}}"

TEST(completions_have_the_documented_shape)
{
    static const char path[] = "/v1/completions";
    start(false, true);
    check_answer(path, "{\"prompt\":[5,6],\"cache_salt\":\"hello\"}", "200",
                 HEAD_C MODEL "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null," LENGTH
                              "}]," USAGE("2", "3", "5", "1") "}");
    check_answer(path,
                 "{\"model\":\"org/tiny\",\"prompt\":[5],\"cache_salt\":\"stop\",\"stop\":\"x\"}",
                 "200",
                 HEAD_C "\"model\":\"org/tiny\",\"system_fingerprint\":\"fp_\",\"choices\":["
                        "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"stop\","
                        "\"stop_reason\":\"x\"}]," USAGE("1", "1", "2", "1") "}");
    check_answer(
        path, "{\"prompt\":[5],\"cache_salt\":\"stop id\",\"return_token_ids\":true}", "200",
        HEAD_C MODEL
        "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"token_ids\":[100,"
        "101],\"prompt_token_ids\":[5],\"finish_reason\":\"stop\",\"stop_reason\":7}]," USAGE(
            "1", "2", "3", "1") "}");
    check_answer(
        path, "{\"prompt\":[5],\"cache_salt\":\"quotes\"}", "200",
        HEAD_C MODEL
        "{\"index\":0,\"text\":\"\\\"\\\\\\n\\u0001\xef\xbf\xbd\",\"logprobs\":"
        "null,\"finish_reason\":\"stop\",\"stop_reason\":null}]," USAGE("1", "1", "2", "1") "}");
    check_answer(
        path, "{\"prompt\":[[5],[6,7]],\"n\":2,\"seed\":1,\"cache_salt\":\"stop id\"}", "200",
        HEAD_C MODEL
        "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":"
        "\"stop\",\"stop_reason\":7},{\"index\":1,\"text\":\"ab\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":7},{\"index\":2,\"text\":\"ab\","
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":7},{\"index\":3,"
        "\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":7}]," USAGE(
            "3", "8", "11", "2") "}");
    check_answer(path, "{\"prompt\":[5],\"cache_salt\":\"broken\"}", "500",
                 "{\"error\":{\"message\":\"generation failed: the logits hold NaN\",\"type\":"
                 "\"server_error\",\"param\":null,\"code\":\"generation_failed\"}}");
    stop();
}

TEST(streams_have_the_documented_framing)
{
    static const char path[] = "/v1/completions";
    start(false, true);
    check_answer(path, "{\"prompt\":[5],\"stream\":true,\"cache_salt\":\"hello\"}", "200",
                 "data: " HEAD_C MODEL "{\"index\":0,\"text\":\"He\",\"logprobs\":null," NO_END
                 "}]}\n\ndata: " HEAD_C MODEL
                 "{\"index\":0,\"text\":\"llo\",\"logprobs\":null," LENGTH
                 "}]}\n\ndata: [DONE]\n\n");
    check_answer(
        path,
        "{\"prompt\":[5],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"cache_salt\":\"held\"}",
        "200",
        "data: " HEAD_C MODEL "{\"index\":0,\"text\":\"\xc3\xa9\",\"logprobs\":null," NO_END
        "}],\"usage\":null}\n\ndata: " HEAD_C MODEL "{\"index\":0,\"text\":\"\","
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":"
        "null}\n\ndata: " HEAD_C MODEL "]," USAGE("1", "2", "3", "1") "}\n\ndata: [DONE]\n\n");
    check_answer(path,
                 "{\"prompt\":[5],\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                 "\"continuous_usage_stats\":true},\"cache_salt\":\"stop id\"}",
                 "200",
                 "data: " HEAD_C MODEL "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,"
                 "\"finish_reason\":\"stop\",\"stop_reason\":7}]," USAGE(
                     "1", "2", "3", "1") "}\n\ndata: " HEAD_C MODEL
                                         "]," USAGE("1", "2", "3", "1") "}\n\ndata: [DONE]\n\n");
    check_answer(path, "{\"prompt\":[5],\"stream\":true,\"cache_salt\":\"breaks\"}", "200",
                 "data: " HEAD_C MODEL "{\"index\":0,\"text\":\"one\",\"logprobs\":null," NO_END
                 "}]}\n\ndata: {\"error\":{\"message\":\"generation failed: NaN\",\"type\":"
                 "\"server_error\",\"param\":null,\"code\":\"generation_failed\"}}\n\n"
                 "data: [DONE]\n\n");
#define CHUNK "data: {\"id\":\"chatcmpl-\",\"object\":\"chat.completion.chunk\",\"created\":,"
    check_answer("/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
                 "\"cache_salt\":\"hello\"}",
                 "200",
                 CHUNK MODEL "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                             "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK MODEL
                             "{\"index\":0,\"delta\":{\"content\":\"He\"},\"logprobs\":null,"
                             "\"finish_reason\":null}]}\n\n" CHUNK MODEL
                             "{\"index\":0,\"delta\":{\"content\":\"llo\"},\"logprobs\":null,"
                             "\"finish_reason\":null}]}\n\n" CHUNK MODEL
                             "{\"index\":0,\"delta\":{},\"logprobs\":null," LENGTH "}]}\n\n"
                             "data: [DONE]\n\n");
    stop();
}

/* In the tokenizer id 100 is spelled U+00A3 and 200 is U+0108: the bytes 163 and 8 (GPT-2's
 * byte-to-character table). */
TEST(chats_have_the_documented_shape)
{
    static const char path[] = "/v1/chat/completions";
    start(false, true);
    check_answer(
        path,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]"
        ",\"cache_salt\":\"hello\"}",
        "200",
        "{\"id\":\"chatcmpl-\",\"object\":\"chat.completion\",\"created\":," MODEL
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello\","
        "\"refusal\":null},\"logprobs\":null," LENGTH "}]," USAGE("3", "3", "6", "1") "}");
    CHECK(eng.last.max_tokens == 61, "the rest of the context, not %lld",
          (long long)eng.last.max_tokens);
    check_answer(path,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,"
                 "\"max_completion_tokens\":4,\"logprobs\":true,\"top_logprobs\":1,"
                 "\"return_tokens_as_token_ids\":true,\"cache_salt\":\"stop\"}",
                 "200",
                 "{\"id\":\"chatcmpl-\",\"object\":\"chat.completion\",\"created\":," MODEL
                 "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"ab\",\"refusal\":"
                 "null},\"logprobs\":{\"content\":[{\"token\":\"token_id:100\",\"logprob\":-0.5,"
                 "\"bytes\":[163],\"top_logprobs\":[{\"token\":\"token_id:200\",\"logprob\":-0.25,"
                 "\"bytes\":[8]}]}]},\"finish_reason\":\"stop\",\"stop_reason\":null}]," USAGE(
                     "3", "1", "4", "1") "}");
    CHECK(eng.last.max_tokens == 4, "max_completion_tokens wins, not %lld",
          (long long)eng.last.max_tokens);
    stop();
}

#define EIGHT "\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\""
TEST(parameters_are_checked)
{
    static const struct {
        const char *member, *param; /* NULL param: accepted */
    } cases[] = {
        { "\"max_tokens\":null", NULL },
        { "\"max_tokens\":0", "max_tokens" },
        { "\"max_tokens\":-1", NULL },
        { "\"max_tokens\":-2", "max_tokens" },
        { "\"max_tokens\":1.5", "max_tokens" },
        { "\"max_tokens\":\"5\"", "max_tokens" },
        { "\"max_tokens\":2147483648", "max_tokens" },
        { "\"max_tokens\":9223372036854775808", "max_tokens" },
        { "\"max_tokens\":true", "max_tokens" },
        { "\"max_tokens\":63", NULL },
        { "\"max_tokens\":64", "max_tokens" },
        { "\"n\":0", "n" },
        { "\"n\":129", "n" },
        { "\"n\":1e9", "n" },
        { "\"n\":\"2\"", "n" },
        { "\"n\":2,\"best_of\":2", NULL },
        { "\"n\":1,\"best_of\":3", NULL },
        { "\"n\":1,\"best_of\":3,\"stream\":true", "best_of" },
        { "\"prompt_logprobs\":2,\"stream\":true", "prompt_logprobs" },
        { "\"prompt_logprobs\":21", "prompt_logprobs" },
        { "\"n\":3,\"best_of\":2", "best_of" },
        { "\"temperature\":-0.1", "temperature" },
        { "\"temperature\":2.1", "temperature" },
        { "\"temperature\":1e308", "temperature" },
        { "\"temperature\":1e999", "temperature" },
        { "\"temperature\":\"hot\"", "temperature" },
        { "\"temperature\":null", NULL },
        { "\"temperature\":2", NULL },
        { "\"top_p\":0", NULL },
        { "\"top_p\":1.1", "top_p" },
        { "\"top_p\":-1", "top_p" },
        { "\"top_p\":1e-9", NULL },
        { "\"top_k\":-2", "top_k" },
        { "\"top_k\":1.5", "top_k" },
        { "\"top_k\":-1", NULL },
        { "\"min_p\":2", "min_p" },
        { "\"presence_penalty\":2.01", "presence_penalty" },
        { "\"frequency_penalty\":-2.01", "frequency_penalty" },
        { "\"repetition_penalty\":0", "repetition_penalty" },
        { "\"repetition_penalty\":-1", "repetition_penalty" },
        { "\"repetition_penalty\":1e999", "repetition_penalty" },
        { "\"stop\":\"\"", "stop" },
        { "\"stop\":[\"\"]", "stop" },
        { "\"stop\":[" EIGHT "," EIGHT "," EIGHT "," EIGHT ",\"i\"]", "stop" },
        { "\"stop\":[" EIGHT "," EIGHT "," EIGHT "," EIGHT "]", NULL },
        { "\"stop\":[1]", "stop" },
        { "\"stop\":null", NULL },
        { "\"stop\":[]", NULL },
        { "\"stop\":[\"a\",\"b\",\"c\",\"d\"]", NULL },
        { "\"stop_token_ids\":[-1]", "stop_token_ids" },
        { "\"stop_token_ids\":[1,2]", NULL },
        { "\"logprobs\":-1", "logprobs" },
        { "\"logprobs\":21", "logprobs" },
        { "\"logprobs\":\"x\"", "logprobs" },
        { "\"logprobs\":20", NULL },
        { "\"prompt_logprobs\":-1", "prompt_logprobs" },
        { "\"logit_bias\":{\"-1\":1}", "logit_bias" },
        { "\"logit_bias\":{\"99999999\":1}", "logit_bias" },
        { "\"logit_bias\":{\"a\":1}", "logit_bias" },
        { "\"logit_bias\":{\"1\":101}", "logit_bias" },
        { "\"logit_bias\":{\"1\":\"x\"}", "logit_bias" },
        { "\"logit_bias\":{\"1\":1,\"01\":2}", "logit_bias" },
        { "\"logit_bias\":{\"5\":-100,\"1\":100}", NULL },
        { "\"allowed_token_ids\":[]", "allowed_token_ids" },
        { "\"allowed_token_ids\":[3,1,3]", NULL },
        { "\"seed\":9223372036854775808", "seed" },
        { "\"seed\":-9223372036854775809", "seed" },
        { "\"seed\":\"1\"", "seed" },
        { "\"seed\":1.5", "seed" },
        { "\"seed\":9223372036854775807", NULL },
        { "\"min_tokens\":4,\"max_tokens\":3", "min_tokens" },
        { "\"stream\":\"yes\"", "stream" },
        { "\"stream\":1", "stream" },
        { "\"stream\":null", NULL },
        { "\"stream_options\":{}", "stream_options" },
        { "\"stream_options\":{},\"stream\":true", NULL },
        { "\"stream_options\":[],\"stream\":true", "stream_options" },
        { "\"stream_options\":{\"include_usage\":1},\"stream\":true", "stream_options" },
        { "\"suffix\":5", "suffix" },
        { "\"suffix\":null", NULL },
        { "\"tools\":[]", NULL },
        { "\"tools\":[{}]", "tools" },
        { "\"tool_choice\":\"auto\"", "tool_choice" },
        { "\"response_format\":{\"type\":\"text\"}", NULL },
        { "\"response_format\":{\"type\":\"json_schema\"}", "response_format" },
        { "\"response_format\":{\"type\":\"xml\"}", "response_format" },
        { "\"response_format\":{\"type\":\"json_object\"}", NULL },
        { "\"response_format\":\"json\"", "response_format" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}",
          "response_format" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":1}}}",
          "response_format" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":false}}",
          "response_format" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
          "\"null\"},\"strict\":true}}",
          NULL },
        { "\"structured_outputs\":{\"regex\":\"a\"}", NULL },
        { "\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true}", NULL },
        { "\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\"[\"}",
          "structured_outputs" },
        { "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}", "structured_outputs" },
        { "\"structured_outputs\":{\"structural_tag\":\"a\"}", "structured_outputs" },
        { "\"structured_outputs\":{\"regex\":1}", "structured_outputs" },
        { "\"guided_json\":{}", NULL },
        { "\"guided_json\":\"{}\"", NULL },
        { "\"guided_json\":5", "guided_json" },
        { "\"guided_regex\":\"foo**\"", "guided_regex" },
        { "\"guided_choice\":[\"a\",\"b\"],\"guided_decoding_backend\":\"auto\"", NULL },
        { "\"guided_choice\":[]", "guided_choice" },
        { "\"guided_choice\":[\"a\"],\"guided_regex\":\"a\"", "guided_regex" },
        { "\"guided_grammar\":\"root ::= root\"", "guided_grammar" },
        { "\"grammar\":\"\"", NULL },
        { "\"grammar\":\"root ::= [a-z]\"", NULL },
        { "\"json_schema\":{\"type\":\"nul\"}", "json_schema" },
        { "\"regex\":\"a\",\"ebnf\":\"root ::= [a-z]\"", "ebnf" },
        { "\"use_beam_search\":true", NULL },
        { "\"use_beam_search\":false,\"length_penalty\":1,\"early_stopping\":false", NULL },
        { "\"use_beam_search\":1", "use_beam_search" },
        { "\"use_beam_search\":true,\"best_of\":4,\"early_stopping\":\"never\"", NULL },
        { "\"use_beam_search\":true,\"early_stopping\":\"maybe\"", "early_stopping" },
        { "\"use_beam_search\":true,\"length_penalty\":101", "length_penalty" },
        { "\"use_beam_search\":true,\"n\":3,\"best_of\":2", "best_of" },
        { "\"use_beam_search\":true,\"stream\":true", "stream" },
        { "\"use_beam_search\":true,\"temperature\":0,\"top_p\":1,\"top_k\":-1,\"min_p\":0", NULL },
        { "\"use_beam_search\":true,\"temperature\":0.5", "temperature" },
        { "\"use_beam_search\":true,\"top_p\":0.9", "top_p" },
        { "\"use_beam_search\":true,\"top_k\":40", "top_k" },
        { "\"use_beam_search\":true,\"min_p\":0.1", "min_p" },
        { "\"use_beam_search\":true,\"regex\":\"a\"", "regex" },
        { "\"use_beam_search\":true,\"echo\":true,\"logprobs\":1", "echo" },
        { "\"use_beam_search\":true,\"echo\":true,\"max_tokens\":0", "max_tokens" },
        { "\"length_penalty\":2", "length_penalty" },
        { "\"early_stopping\":true", "early_stopping" },
        { "\"priority\":5", "priority" },
        { "\"priority\":\"high\"", "priority" },
        { "\"priority\":0", NULL },
        { "\"cache_salt\":\"\"", "cache_salt" },
        { "\"user\":\"u\",\"metadata\":{\"a\":1},\"foo\":1", NULL },
        { "\"model\":\"\"", "model" },
        { "\"model\":7", "model" },
        { "\"model\":null", NULL },
    };
    start(false, true);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        char body[512], want[96];
        snprintf(body, sizeof body, "{\"prompt\":[5],%s}", cases[i].member);
        const char *a = post("/v1/completions", body);
        snprintf(want, sizeof want, "\"param\":\"%s\"", cases[i].param ? cases[i].param : "");
        bool refused = strncmp(a + 9, "400", 3) == 0 || strncmp(a + 9, "404", 3) == 0;
        CHECK(cases[i].param ? refused && strstr(a, want) != NULL : strncmp(a + 9, "200", 3) == 0,
              "%s: wanted %s, got %s", cases[i].member, cases[i].param ? want : "200", a);
    }
    stop();
}

TEST(prompts_and_messages_are_checked)
{
    static const struct {
        const char *path, *body, *status, *has;
    } cases[] = {
        { "/v1/completions", "", "400", "empty" },
        { "/v1/completions", "{", "400", "invalid_json" },
        { "/v1/completions", "[]", "400", "object" },
        { "/v1/completions", "null", "400", "object" },
        { "/v1/completions", "{\"prompt\":[5]} x", "400", "invalid_json" },
        { "/v1/completions", "\xef\xbb\xbf{\"prompt\":[5]}", "400", "invalid_json" },
        { "/v1/completions", "{\"prompt\":\"\xff\"}", "400", "invalid_json" },
        { "/v1/completions", "{\"prompt\":\"\\ud800\"}", "200", "Hello" },
        { "/v1/completions", "{\"prompt\":[5],\"prompt\":[6]}", "400", "invalid_json" },
        { "/v1/completions", "{\"prompt\":[5],\"n\":NaN}", "400", "invalid_json" },
        { "/v1/completions", "{}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":null}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[[]]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[\"a\",1]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[[1],1]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[-1]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[99999999]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[1.5]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":[true]}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":{\"a\":1}}", "400", "\"param\":\"prompt\"" },
        { "/v1/completions", "{\"prompt\":\"Hi\"}", "200", "Hello" },
        { "/v1/completions", "{\"prompt\":[\"Hi\",\"Ho\"]}", "200", "\"index\":1" },
        { "/v1/completions", "{\"prompt\":[5],\"model\":\"nope\"}", "404", "model_not_found" },
        { "/v1/completions", "{\"prompt\":[5],\"echo\":true,\"max_tokens\":0}", "200", "Hello" },
        { "/v1/chat/completions", "{}", "400", "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[]}", "400", "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[1]}", "400", "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"foo\",\"content\":\"x\"}]}", "400",
          "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "400",
          "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"assistant\",\"content\":5}]}", "400",
          "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"assistant\",\"content\":null}]}",
          "200", "Hello" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"
          "{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
          "200", "Hello" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]}", "400",
          "\"param\":\"messages\"" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "400",
          "\"param\":\"messages\"" },
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"raise\"}]}",
          "400", "\"roles must alternate\"" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":2}", "400",
          "\"param\":\"top_logprobs\"" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template\":\"x\"}", "400",
          "\"param\":\"chat_template\"" },
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true,"
          "\"add_generation_prompt\":true}",
          "400", "\"param\":\"continue_final_message\"" },
        { "/tokenize", "{}", "400", "prompt" },
        { "/tokenize", "{\"prompt\":1}", "400", "prompt" },
        { "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "200",
          "\"tokens\":[300,301,302]" },
        { "/tokenize", "{\"prompt\":\"Hi\",\"return_token_strs\":true}", "200",
          "\"max_model_len\":64,\"tokens\":[" },
        { "/detokenize", "{\"tokens\":[99999999]}", "400", "\"param\":\"tokens\"" },
        { "/detokenize", "{}", "400", "\"param\":\"tokens\"" },
    };
    start(false, true);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const char *a = post(cases[i].path, cases[i].body);
        CHECK(strncmp(a + 9, cases[i].status, 3) == 0 && strstr(a, cases[i].has),
              "%s: wanted %s and %s, got %s", cases[i].body, cases[i].status, cases[i].has, a);
    }
    /* ids survive the round trip through text */
    const char *a = post("/tokenize", "{\"content\":\"Once upon a time\"}");
    char body[1024];
    const char *from = strstr(a, "{\"tokens\":");
    snprintf(body, sizeof body, "%s", from ? from : "");
    a = post("/detokenize", body);
    CHECK(strstr(a, "\"content\":\"Once upon a time\""), "%s from %s", a, body);
    stop();
    start(true, true);
    a = post("/v1/completions", "{\"prompt\":[5],\"foo\":1}");
    CHECK(strncmp(a + 9, "400", 3) == 0 && strstr(a, "\"param\":\"foo\""), "strict: %s", a);
    stop();
}

TEST(seeds_are_exact_and_samples_have_their_own)
{
    start(false, true);
    post("/v1/completions",
         "{\"prompt\":[5],\"x\":{\"seed\":1},\"seed\":9223372036854775807,\"n\":3}");
    CHECK(eng.n_seeds == 3 && eng.seeds[0] == 9223372036854775807u, "%llu",
          (unsigned long long)eng.seeds[0]);
    CHECK(eng.seeds[1] != eng.seeds[0] && eng.seeds[2] != eng.seeds[1], "samples share a seed");
    uint64_t second = eng.seeds[1];
    eng.n_seeds = 0;
    post("/v1/completions",
         "{\"prompt\":[5],\"seed\" : 9223372036854775807 ,\"n\":2,\"user\":\"seed\"}");
    CHECK(eng.seeds[1] == second, "the second sample changed");
    stop();
}

TEST(logprobs_are_aligned_with_the_text)
{
    start(false, true);
    const char *a = post("/v1/completions",
                         "{\"prompt\":[5,6],\"echo\":true,\"logprobs\":1,\"cache_salt\":\"hello\","
                         "\"return_tokens_as_token_ids\":true}");
    CHECK(strstr(a, "\"tokens\":[\"token_id:5\",\"token_id:6\",\"token_id:100\",\"token_id:101\","
                    "\"token_id:102\"],\"token_logprobs\":[null,-0.5,-0.5,-0.5,-0.5],"
                    "\"top_logprobs\":[null,{\"token_id:200\":-0.25,\"token_id:6\":-0.5},"),
          "%s", a);
    CHECK(strstr(a, "\"text_offset\":[0,"), "%s", a);
    stop();
}

TEST(a_full_queue_takes_all_or_nothing)
{
    start(false, true);
    eng.room = 2;
    const char *a = post("/v1/completions", "{\"prompt\":[5],\"n\":3,\"cache_salt\":\"forever\"}");
    CHECK(strncmp(a + 9, "503", 3) == 0 && strstr(a, "Retry-After:") && strstr(a, "overloaded"),
          "%s", a);
    CHECK(wait_for(&eng.running, 0), "the others still run");
    stop();
}

TEST(clients_that_leave_are_cancelled)
{
    static const char *const bodies[] = {
        "{\"prompt\":[5],\"n\":4,\"cache_salt\":\"forever\"}",
        "{\"prompt\":[5],\"n\":4,\"cache_salt\":\"forever\",\"stream\":true}",
    };
    start(false, true);
    for (size_t i = 0; i < LQ_COUNT(bodies); i++) {
        char request[512];
        int fd = dial(http_port(server));
        snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 strlen(bodies[i]), bodies[i]);
        say(fd, request);
        CHECK(wait_for(&eng.running, 4), "not running");
        close(fd);
        CHECK(wait_for(&eng.running, 0), "not cancelled: %s", bodies[i]);
    }
    CHECK(http_wait_idle(server, 1), "an exchange is left");
    stop();
}

TEST(operators_see_the_state)
{
    start(false, false);
    CHECK(strstr(get("/health"), " 200 "), "health while loading");
    CHECK(strstr(get("/ready"), " 503 "), "ready while loading");
    CHECK(strstr(get("/metrics"), " 200 "), "metrics while loading");
    CHECK(strstr(post("/v1/completions", "{}"), " 503 "), "completions while loading");
    stop();
    start(false, true);
    CHECK(strstr(get("/ready"), " 200 "), "ready");
    CHECK(strstr(get("/version"), "{\"version\":\"9.9\"}"), "version");
    CHECK(strstr(get("/load"), "\"running\":0"), "load");
    CHECK(strstr(get("/"), "<!doctype html>"), "page");
    CHECK(strstr(get("/page/page.js"), "text/javascript"), "its script");
    CHECK(strstr(get("/page/index.html"), " 404 "), "the page has one address");
    CHECK(strstr(get("/page/../web.c"), " 404 "), "only its files");
    CHECK(strstr(get("/v1/models"), "\"id\":\"org/tiny\",\"object\":\"model\""), "models");
    CHECK(strstr(get("/v1/models/org%2Ftiny"), "\"max_model_len\":64"), "one model, escaped");
    CHECK(strstr(get("/v1/models/org/tiny"), "\"max_model_len\":64"), "one model, plain");
    CHECK(strstr(get("/v1/models/none"), "model_not_found"), "an unknown model");
    post("/v1/completions", "{\"prompt\":[5,6],\"cache_salt\":\"hello\",\"n\":2,\"zzz\":1}");
    CHECK(wait_for(&eng.running, 0), "still running"); /* it ends just after the answer is out */
    const char *m = get("/metrics");
    static const char *const lines[] = {
        "# TYPE vllm:num_requests_running gauge\n",
        "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0\n",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.25\n",
        "vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 2\n",
        "vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 6\n",
        ("vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"length\"} "
         "2\n"),
        "vllm:request_prompt_tokens_bucket{model_name=\"tiny\",engine=\"0\",le=\"2\"} 2\n",
        "vllm:request_prompt_tokens_bucket{model_name=\"tiny\",engine=\"0\",le=\"1\"} 0\n",
        "vllm:request_prompt_tokens_sum{model_name=\"tiny\",engine=\"0\"} 4\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 2\n",
        "llmq:ignored_params_total{model_name=\"tiny\",engine=\"0\"} 1\n",
    };
    for (size_t i = 0; i < LQ_COUNT(lines); i++)
        CHECK(strstr(m, lines[i]), "no '%s' in %s", lines[i], m);
    api_drain(the_api);
    CHECK(strstr(get("/ready"), " 503 "), "ready while draining");
    CHECK(strstr(get("/health"), " 200 "), "health while draining");
    CHECK(strstr(post("/v1/completions", "{}"), "shutting_down"), "completions while draining");
    stop();
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (tok_open_file(&tok, "models/novels-6m/tokenizer.json", &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    RUN(completions_have_the_documented_shape);
    RUN(streams_have_the_documented_framing);
    RUN(chats_have_the_documented_shape);
    RUN(parameters_are_checked);
    RUN(prompts_and_messages_are_checked);
    RUN(seeds_are_exact_and_samples_have_their_own);
    RUN(logprobs_are_aligned_with_the_text);
    RUN(a_full_queue_takes_all_or_nothing);
    RUN(clients_that_leave_are_cancelled);
    RUN(operators_see_the_state);
    tok_close(tok);
    return check_end();
}
