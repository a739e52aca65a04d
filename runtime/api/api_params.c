/* runtime/api/api_params.c - see api_params.h. */
#include "runtime/api/api_params.h"
#include "runtime/api/api_body.h"
#include "runtime/api/api_params_other.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- values that are more than one number or string ---- */

typedef struct row row;
typedef lq_status read_fn(api_params *p, const row *t, const cJSON *v, api_error *e);

lq_status api_read_ids(int32_t **ids, int *n, const cJSON *v, const char *param, int64_t vocab,
                       int max, api_error *e)
{
    char expected[96];
    int count = 0;
    snprintf(expected, sizeof expected, "an array of at most %d ids 0..%lld", max,
             (long long)vocab - 1);
    if (!cJSON_IsArray(v)) return api_wrong(e, param, expected, v);
    for (const cJSON *c = v->child; c; c = c->next)
        if (++count > max) return api_wrong(e, param, expected, v);
    int32_t *out = malloc(((size_t)count + 1) * sizeof *out);
    if (!out) return api_no_memory(e);
    count = 0;
    for (const cJSON *c = v->child; c; c = c->next) {
        int64_t id;
        if (!js_whole(c, 0, vocab - 1, &id)) {
            free(out);
            return api_wrong(e, param, expected, c);
        }
        out[count++] = (int32_t)id;
    }
    *ids = out;
    *n = count;
    return LQ_OK;
}

static int by_id(const void *a, const void *b)
{
    int32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static lq_status read_stop(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    static const char expected[] = "a string or an array of at most 32 strings of 1..1024 bytes";
    const cJSON *c = cJSON_IsArray(v) ? v->child : v;
    for (; c; c = c == v ? NULL : c->next) {
        size_t n = cJSON_IsString(c) ? strlen(c->valuestring) : 0;
        if (n == 0 || n > API_MAX_STOP_BYTES || p->n_stop == API_MAX_STOPS)
            return api_wrong(e, "stop", expected, p->n_stop == API_MAX_STOPS ? v : c);
        p->stop[p->n_stop++] = c->valuestring;
    }
    return LQ_OK;
}

static lq_status read_bad_words(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    static const char expected[] = "an array of at most 128 strings of 1..1024 bytes";
    int n = 0;
    if (!cJSON_IsArray(v)) return api_wrong(e, "bad_words", expected, v);
    for (const cJSON *c = v->child; c; c = c->next) {
        size_t bytes = cJSON_IsString(c) ? strlen(c->valuestring) : 0;
        if (bytes == 0 || bytes > API_MAX_STOP_BYTES || ++n > API_MAX_BAD_WORDS)
            return api_wrong(e, "bad_words", expected, n > API_MAX_BAD_WORDS ? v : c);
    }
    p->bad_words = v->child ? v : NULL;
    return LQ_OK;
}

static lq_status read_stop_ids(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return api_read_ids(&p->stop_ids, &p->n_stop_ids, v, "stop_token_ids", p->vocab, API_MAX_IDS,
                        e);
}

static lq_status read_allowed(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    int max = p->vocab < INT32_MAX ? (int)p->vocab : INT32_MAX, n = 0;
    lq_status s =
        api_read_ids(&p->allowed, &p->n_allowed, v, "allowed_token_ids", p->vocab, max, e);
    if (s) return s;
    if (p->n_allowed == 0) return api_wrong(e, "allowed_token_ids", "at least one id", v);
    qsort(p->allowed, (size_t)p->n_allowed, sizeof *p->allowed, by_id);
    for (int i = 0; i < p->n_allowed; i++)
        if (i == 0 || p->allowed[i] != p->allowed[n - 1]) p->allowed[n++] = p->allowed[i];
    p->n_allowed = n;
    return LQ_OK;
}

static lq_status read_bias(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    static const char expected[] = "an object of at most 1024 members \"id\": -100..100";
    int n = 0;
    if (!cJSON_IsObject(v)) return api_wrong(e, "logit_bias", expected, v);
    for (const cJSON *c = v->child; c; c = c->next)
        if (++n > API_MAX_IDS) return api_wrong(e, "logit_bias", expected, v);
    p->bias = malloc(((size_t)n + 1) * sizeof *p->bias);
    if (!p->bias) return api_no_memory(e);
    for (const cJSON *c = v->child; c; c = c->next) {
        const char *key = c->string;
        size_t digits = strspn(key, "0123456789");
        long long id = digits && digits <= 10 && !key[digits] ? strtoll(key, NULL, 10) : -1;
        if (id < 0 || id >= p->vocab)
            return api_fail(e, "logit_bias", "invalid_value",
                            "logit_bias: expected ids 0..%lld as names, found \"%.20s\"",
                            (long long)p->vocab - 1, key);
        if (!cJSON_IsNumber(c) || !(fabs(c->valuedouble) <= 100))
            return api_wrong(e, "logit_bias", "numbers -100..100", c);
        p->bias[p->n_bias++] = (smp_bias){ (int32_t)id, (float)c->valuedouble };
    }
    qsort(p->bias, (size_t)p->n_bias, sizeof *p->bias, by_id);
    for (int i = 1; i < p->n_bias; i++) /* "1" and "01" */
        if (p->bias[i].id == p->bias[i - 1].id)
            return api_fail(e, "logit_bias", "invalid_value", "logit_bias: the id %d comes twice",
                            (int)p->bias[i].id);
    return LQ_OK;
}

static lq_status read_stream_options(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    lq_err err = { "" };
    if (!cJSON_IsObject(v)) return api_wrong(e, "stream_options", "an object", v);
    lq_status s = js_bool(v, "include_usage", false, &p->include_usage, &err);
    if (!s) s = js_bool(v, "continuous_usage_stats", false, &p->continuous_usage, &err);
    return s ? api_fail(e, "stream_options", "invalid_value", "stream_options: %s", err.msg)
             : LQ_OK;
}

static lq_status read_kwargs(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    if (!cJSON_IsObject(v)) return api_wrong(e, "chat_template_kwargs", "an object", v);
    p->template_kwargs = v;
    return LQ_OK;
}

static lq_status read_tools(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return api_read_tools(p, v, e);
}

static lq_status read_functions(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return api_read_functions(p, v, e);
}

static lq_status read_encoding(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    const char *s = cJSON_GetStringValue(v);
    p->base64 = s && strcmp(s, "base64") == 0;
    return p->base64 || (s && strcmp(s, "float") == 0)
               ? LQ_OK
               : api_wrong(e, "encoding_format", "\"float\" or \"base64\"", v);
}

static lq_status read_suffix(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    if (!cJSON_IsString(v)) return api_wrong(e, "suffix", "a string", v);
    p->suffix = v->valuestring;
    return LQ_OK;
}

static lq_status read_activation(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    if (!cJSON_IsBool(v)) return api_wrong(e, "use_activation", "true or false", v);
    p->raw_scores = cJSON_IsFalse(v);
    return LQ_OK;
}

/* llama.cpp's: other files, [{"text", "filename"}]. */
static lq_status read_extra(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    static const char expected[] = "an array of objects with text and, or not, filename";
    if (!cJSON_IsArray(v)) return api_wrong(e, "input_extra", expected, v);
    for (const cJSON *c = v->child; c; c = c->next) {
        const cJSON *name = js_get(c, "filename");
        if (!cJSON_IsString(js_get(c, "text")) || (name && !cJSON_IsString(name)))
            return api_wrong(e, "input_extra", expected, c);
    }
    p->extra = v->child ? v : NULL;
    return LQ_OK;
}

static lq_status read_pooling(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    const char *s = cJSON_GetStringValue(v);
    p->pool = s && strcmp(s, "mean") == 0   ? ENG_POOL_MEAN
              : s && strcmp(s, "last") == 0 ? ENG_POOL_LAST
                                            : ENG_NO_POOL;
    return p->pool ? LQ_OK : api_wrong(e, "pooling", "\"last\" or \"mean\"", v);
}

/* At most as many as the model has, which api_gen.c looks at. */
static lq_status read_dimensions(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return js_whole(v, 1, JS_MAX_INT, &p->dimensions)
               ? LQ_OK
               : api_wrong(e, "dimensions", "an integer from 1", v);
}

static lq_status read_truncate(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return js_whole(v, -1, JS_MAX_INT, &p->truncate) && p->truncate != 0
               ? LQ_OK
               : api_wrong(e, "truncate_prompt_tokens", "an integer from 1, or -1", v);
}

/* A whole number of all that int64_t holds: a double is exact to 2^53 only. */
static bool exact_i64(const cJSON *v, int64_t *out)
{
    char *end;
    if (js_whole(v, -JS_MAX_INT, JS_MAX_INT, out)) return true;
    if (!cJSON_IsNumber(v) || !v->valuestring) return false;
    errno = 0;
    *out = strtoll(v->valuestring, &end, 10);
    return !*end && !errno;
}

static lq_status read_seed(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    if (!exact_i64(v, &p->seed)) return api_wrong(e, "seed", "an integer -2^63..2^63-1", v);
    p->has_seed = true;
    return LQ_OK;
}

/* As transformers has it. */
static lq_status read_early(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    bool never = cJSON_IsString(v) && strcmp(v->valuestring, "never") == 0;
    if (!never && !cJSON_IsBool(v))
        return api_wrong(e, "early_stopping", "true, false or \"never\"", v);
    p->early = never ? ENG_EARLY_NEVER : cJSON_IsTrue(v) ? ENG_EARLY_FULL : ENG_EARLY_NO_GAIN;
    return LQ_OK;
}

static lq_status read_samplers(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return api_read_samplers(&p->samplers, v, e);
}

static lq_status read_breakers(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    (void)t;
    return api_read_breakers(&p->samplers, v, e);
}

static read_fn read_structured, read_mirostat, read_thinking;

/* ---- the table ---- */

typedef enum {
    T_BOOL, /* bool at off */
    T_INT,  /* int64_t at off, lo..hi */
    T_NUM,  /* double at off, lo..hi, or above lo */
    T_STR,  /* const char * at off, lo..hi bytes */
    T_READ, /* read() */
    T_KNOWN /* another function reads it */
} row_type;

struct row {
    const char *name;
    int kinds; /* of api_kind */
    row_type type;
    size_t off;
    double lo, hi;
    bool above; /* lo itself is out */
    size_t has; /* offset of a bool that says it was given; 0: none */
    read_fn *read;
    const char *same; /* another name of this parameter, whose value it has; NULL: none */
};

enum { BOTH = API_COMPLETIONS | API_CHAT, ALL = BOTH | API_READS, EVERY = ALL | API_JUDGES };
#define F(field) offsetof(api_params, field)
#define MAX_INT ((double)JS_MAX_INT)

#define BOOL(n, k, f)                                      \
    {                                                      \
        .name = n, .kinds = k, .type = T_BOOL, .off = F(f) \
    }
/* and a bool that says whether it was given */
#define BOOL_AND(n, k, f, h)                                            \
    {                                                                   \
        .name = n, .kinds = k, .type = T_BOOL, .off = F(f), .has = F(h) \
    }
#define INT(n, k, f, l, h)                                                  \
    {                                                                       \
        .name = n, .kinds = k, .type = T_INT, .off = F(f), .lo = l, .hi = h \
    }
#define NUM(n, k, f, l, h)                                                  \
    {                                                                       \
        .name = n, .kinds = k, .type = T_NUM, .off = F(f), .lo = l, .hi = h \
    }
#define ABOVE(n, k, f, l, h)                                                               \
    {                                                                                      \
        .name = n, .kinds = k, .type = T_NUM, .off = F(f), .lo = l, .hi = h, .above = true \
    }
#define STR(n, k, f, l, h)                                                  \
    {                                                                       \
        .name = n, .kinds = k, .type = T_STR, .off = F(f), .lo = l, .hi = h \
    }
#define READ(n, k, fn)                                    \
    {                                                     \
        .name = n, .kinds = k, .type = T_READ, .read = fn \
    }
/* the same parameter as another row's, under the name that another server has for it */
#define INT_TOO(n, k, f, l, h, s)                                                      \
    {                                                                                  \
        .name = n, .kinds = k, .type = T_INT, .off = F(f), .lo = l, .hi = h, .same = s \
    }
#define ABOVE_TOO(n, k, f, l, h, s)                                                         \
    {                                                                                       \
        .name = n, .kinds = k, .type = T_NUM, .off = F(f), .lo = l, .hi = h, .above = true, \
        .same = s                                                                           \
    }
#define NUM_TOO(n, k, f, l, h, s)                                                      \
    {                                                                                  \
        .name = n, .kinds = k, .type = T_NUM, .off = F(f), .lo = l, .hi = h, .same = s \
    }
#define READ_TOO(n, k, fn, s)                                        \
    {                                                                \
        .name = n, .kinds = k, .type = T_READ, .read = fn, .same = s \
    }
#define INT_AND(n, k, f, l, h, b)                                                        \
    {                                                                                    \
        .name = n, .kinds = k, .type = T_INT, .off = F(f), .lo = l, .hi = h, .has = F(b) \
    }
#define KNOWN(n, k)                            \
    {                                          \
        .name = n, .kinds = k, .type = T_KNOWN \
    }
/* clang-format off */
static const row rows[] = {
    STR("model", EVERY, model, 0, 4096),
    KNOWN("prompt", API_COMPLETIONS),
    KNOWN("messages", API_CHAT),
    KNOWN("input", API_READS),
    READ("encoding_format", API_EMBEDDINGS, read_encoding),
    READ("suffix", API_COMPLETIONS, read_suffix),
    READ("input_extra", API_COMPLETIONS, read_extra),
    READ("pooling", API_EMBEDDINGS, read_pooling),
    STR("prompt_name", API_EMBEDDINGS, prompt_name, 1, 256),
    READ("dimensions", API_EMBEDDINGS, read_dimensions),
    KNOWN("query", API_RERANK),
    KNOWN("documents", API_JUDGES),
    KNOWN("queries", API_SCORE),
    KNOWN("text_1", API_SCORE),
    KNOWN("text_2", API_SCORE),
    KNOWN("data_1", API_SCORE),
    KNOWN("data_2", API_SCORE),
    INT("top_n", API_RERANK, top_n, 0, MAX_INT),
    BOOL_AND("return_documents", API_RERANK, shows_documents, has_shows),
    READ("use_activation", API_JUDGES | API_CLASSIFY, read_activation),
    INT("max_tokens_per_doc", API_JUDGES, doc_tokens, 1, MAX_INT),
    STR("instruction", API_JUDGES, instruction, 0, 1 << 20),
    BOOL("stream", BOTH, stream),
    READ("stream_options", BOTH, read_stream_options),
    INT("n", BOTH, n, 1, API_MAX_N),
    INT("best_of", BOTH, best_of, 1, API_MAX_N),
    BOOL("use_beam_search", BOTH, beams),
    NUM("length_penalty", BOTH, length_penalty, -100, 100),
    READ("early_stopping", BOTH, read_early),
    INT("max_tokens", BOTH, max_tokens, -1, MAX_INT),
    INT("max_completion_tokens", BOTH, max_completion_tokens, -1, MAX_INT),
    INT_TOO("max_new_tokens", BOTH, max_tokens, 1, MAX_INT, "max_tokens"),
    INT_TOO("n_predict", BOTH, max_tokens, -1, MAX_INT, "max_tokens"),
    INT("min_tokens", BOTH, min_tokens, 0, MAX_INT),
    INT_TOO("min_new_tokens", BOTH, min_tokens, 0, MAX_INT, "min_tokens"),
    INT("thinking_token_budget", API_CHAT, thinking_budget, -1, MAX_INT),
    INT_TOO("thinking_budget_tokens", API_CHAT, thinking_budget, -1, MAX_INT,
            "thinking_token_budget"),
    NUM("temperature", BOTH, temperature, 0, 2),
    NUM("top_p", BOTH, top_p, 0, 1),
    INT("top_k", BOTH, top_k, -1, INT32_MAX),
    NUM("min_p", BOTH, min_p, 0, 1),
    ABOVE("repetition_penalty", BOTH, repetition_penalty, 0, 1e6),
    ABOVE_TOO("repeat_penalty", BOTH, repetition_penalty, 0, 1e6, "repetition_penalty"),
    ABOVE_TOO("rep_pen", BOTH, repetition_penalty, 0, 1e6, "repetition_penalty"),
    NUM("presence_penalty", BOTH, presence_penalty, -2, 2),
    NUM("frequency_penalty", BOTH, frequency_penalty, -2, 2),
    /* samplers: api_samplers.c */
    ABOVE("typical_p", BOTH, samplers.typical_p, 0, 1),
    ABOVE_TOO("typical", BOTH, samplers.typical_p, 0, 1, "typical_p"),
    NUM("top_n_sigma", BOTH, samplers.top_n_sigma, -1, 1e6),
    NUM_TOO("nsigma", BOTH, samplers.top_n_sigma, -1, 1e6, "top_n_sigma"),
    NUM("dynatemp_range", BOTH, samplers.dynatemp_range, 0, 100),
    NUM("dynatemp_exponent", BOTH, samplers.dynatemp_exponent, 0, 100),
    BOOL("dynamic_temperature", BOTH, samplers.dynamic),
    NUM("dynatemp_low", BOTH, samplers.dynatemp_low, 0, 2),
    NUM("dynatemp_high", BOTH, samplers.dynatemp_high, 0, 2),
    NUM("xtc_probability", BOTH, samplers.xtc_probability, 0, 1),
    NUM("xtc_threshold", BOTH, samplers.xtc_threshold, 0, 1),
    READ("mirostat", BOTH, read_mirostat),
    READ_TOO("mirostat_mode", BOTH, read_mirostat, "mirostat"),
    NUM("mirostat_tau", BOTH, samplers.mirostat_tau, 0, 100),
    NUM("mirostat_eta", BOTH, samplers.mirostat_eta, 0, 100),
    NUM("dry_multiplier", BOTH, samplers.dry_multiplier, 0, 100),
    NUM("dry_base", BOTH, samplers.dry_base, 1, 100),
    INT("dry_allowed_length", BOTH, samplers.dry_allowed_length, 1, 1024),
    INT("dry_penalty_last_n", BOTH, samplers.dry_last_n, -1, MAX_INT),
    READ("dry_sequence_breakers", BOTH, read_breakers),
    READ("samplers", BOTH, read_samplers),
    BOOL("temperature_last", BOTH, samplers.temperature_last),
    INT_AND("repeat_last_n", BOTH, samplers.last_n, -1, MAX_INT, samplers.has_last_n),
    INT_AND("repetition_penalty_range", BOTH, samplers.last_n, 0, MAX_INT, samplers.all_n),

    READ("seed", BOTH, read_seed),
    READ("stop", BOTH, read_stop),
    READ("stop_token_ids", BOTH, read_stop_ids),
    READ("allowed_token_ids", BOTH, read_allowed),
    READ("logit_bias", BOTH, read_bias),
    READ("bad_words", BOTH, read_bad_words),
    INT("logprobs", API_COMPLETIONS, logprobs, 0, SMP_MAX_LOGPROBS),
    BOOL("logprobs", API_CHAT, chat_logprobs),
    INT("prompt_logprobs", BOTH, prompt_logprobs, 0, SMP_MAX_LOGPROBS),
    INT("top_logprobs", API_CHAT, top_logprobs, 0, SMP_MAX_LOGPROBS),
    BOOL("echo", API_COMPLETIONS, echo),
    BOOL("ignore_eos", BOTH, ignore_eos),
    BOOL("include_stop_str_in_output", BOTH, include_stop),
    BOOL("skip_special_tokens", BOTH, skip_special),
    BOOL("return_token_ids", BOTH, return_ids),
    BOOL("return_progress", BOTH, progress),
    BOOL("return_tokens_as_token_ids", BOTH, ids_as_tokens),
    BOOL("add_special_tokens", API_COMPLETIONS | API_READS, add_special),
    READ("truncate_prompt_tokens", EVERY, read_truncate),
    STR("cache_salt", BOTH, cache_salt, 1, 1024),
    INT("priority", EVERY, priority, INT32_MIN, INT32_MAX),
    BOOL_AND("add_generation_prompt", API_CHAT, add_generation_prompt, has_generation_prompt),
    BOOL("continue_final_message", API_CHAT, continue_final),
    READ("chat_template_kwargs", API_CHAT | API_JUDGES, read_kwargs),
    READ("tools", API_CHAT, read_tools),
    KNOWN("tool_choice", API_CHAT),
    READ("functions", API_CHAT, read_functions),
    KNOWN("function_call", API_CHAT),
    READ("reasoning_effort", API_CHAT, read_thinking),
    READ("reasoning", API_CHAT, read_thinking),
    READ("enable_thinking", API_CHAT, read_thinking),
    READ("thinking", API_CHAT, read_thinking),
    BOOL("parallel_tool_calls", API_CHAT, parallel_calls),
    BOOL("include_reasoning", API_CHAT, include_reasoning),

    /* structured output: api_grammar.c */
    READ("response_format", BOTH, read_structured),
    READ("structured_outputs", BOTH, read_structured),
    READ("guided_json", BOTH, read_structured),
    READ("guided_regex", BOTH, read_structured),
    READ("guided_choice", BOTH, read_structured),
    READ("guided_grammar", BOTH, read_structured),
    READ("guided_whitespace_pattern", BOTH, read_structured),
    READ("grammar", BOTH, read_structured),
    READ("json_schema", BOTH, read_structured),
    READ("regex", BOTH, read_structured),
    READ("ebnf", BOTH, read_structured),
};
/* clang-format on */

static lq_status read_mirostat(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    return api_read_mirostat(&p->samplers, t->name, v, e);
}

static lq_status read_thinking(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    return api_read_thinking(p, t->name, v, e);
}

static lq_status read_structured(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    return api_read_structured(&p->structured, t->name, v, e);
}

static lq_status read_number(void *field, const row *t, const cJSON *v, api_error *e)
{
    char expected[96];
    double d = cJSON_IsNumber(v) ? v->valuedouble : (double)NAN;
    int64_t i = 0;
    bool ok = t->type == T_INT ? js_whole(v, (int64_t)t->lo, (int64_t)t->hi, &i)
                               : isfinite(d) && d <= t->hi && (t->above ? d > t->lo : d >= t->lo);
    if (ok && t->type == T_INT) memcpy(field, &i, sizeof i);
    if (ok && t->type == T_NUM) memcpy(field, &d, sizeof d);
    if (ok) return LQ_OK;
    snprintf(expected, sizeof expected, "%s %s%.16g%s%.16g",
             t->type == T_INT ? "an integer" : "a number", t->above ? "above " : "", t->lo,
             t->above ? " and at most " : "..", t->hi);
    return api_wrong(e, t->name, expected, v);
}

static lq_status read_row(api_params *p, const row *t, const cJSON *v, api_error *e)
{
    char *field = (char *)p + t->off, expected[64];
    if (cJSON_IsNull(v)) return LQ_OK;
    if (t->has) memcpy((char *)p + t->has, &(bool){ true }, sizeof(bool));
    switch (t->type) {
    case T_BOOL:
        if (!cJSON_IsBool(v)) return api_wrong(e, t->name, "true or false", v);
        memcpy(field, &(bool){ cJSON_IsTrue(v) }, sizeof(bool));
        return LQ_OK;
    case T_INT:
    case T_NUM:
        return read_number(field, t, v, e);
    case T_STR: {
        const char *s = cJSON_IsString(v) ? v->valuestring : NULL;
        snprintf(expected, sizeof expected, "a string of %.0f..%.0f bytes", t->lo, t->hi);
        if (!s || (double)strlen(s) < t->lo || (double)strlen(s) > t->hi)
            return api_wrong(e, t->name, expected, v);
        memcpy(field, &s, sizeof s);
        return LQ_OK;
    }
    case T_READ:
        return t->read(p, t, v, e);
    case T_KNOWN:
        break;
    }
    return LQ_OK;
}

static const row *find_row(const char *name, api_kind kind)
{
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if ((rows[i].kinds & (int)kind) && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* A parameter under two names has one value. */
static lq_status check_same(const row *t, const cJSON *v, const cJSON *doc, api_error *e)
{
    const cJSON *other = t->same ? js_get(doc, t->same) : NULL;
    if (!other || cJSON_IsNull(v) || cJSON_Compare(v, other, true)) return LQ_OK;
    return api_fail(e, t->name, "invalid_value", "%s: %s is given too, with another value", t->name,
                    t->same);
}

/* A beam search draws nothing and has no answer before its end. */
static lq_status check_beams(const api_params *p, const cJSON *doc, api_error *e)
{
    static const struct {
        const char *name;
        double off, greedy; /* what asks for no other draw; greedy may be the same */
    } draws[] = {
        { "temperature", 1, 0 }, { "top_p", 1, 1 }, { "top_k", 0, -1 }, { "min_p", 0, 0 }
    };
    if (!p->beams) {
        const char *alone = p->length_penalty < 1 || p->length_penalty > 1 ? "length_penalty"
                            : p->early                                     ? "early_stopping"
                                                                           : NULL;
        if (!alone) return LQ_OK;
        return api_fail(e, alone, "unsupported_value", "%s: only with use_beam_search true", alone);
    }
    for (size_t i = 0; i < LQ_COUNT(draws); i++) {
        const cJSON *v = js_get(doc, draws[i].name);
        double d = cJSON_IsNumber(v) ? v->valuedouble : draws[i].off;
        if (fabs(d - draws[i].off) > 0 && fabs(d - draws[i].greedy) > 0)
            return api_fail(e, draws[i].name, "unsupported_value",
                            "%s: a beam search does not draw: expected %g or %g, found %g",
                            draws[i].name, draws[i].off, draws[i].greedy, d);
    }
    const char *without = api_sampler_on(&p->samplers)  ? api_sampler_on(&p->samplers)
                          : p->stream                   ? "stream"
                          : p->structured.param         ? p->structured.param
                          : p->echo && p->logprobs >= 0 ? "echo"
                          : p->max_tokens == 0          ? "max_tokens"
                                                        : NULL;
    if (!without) return LQ_OK;
    return api_fail(e, without, "unsupported_value",
                    "%s: not with use_beam_search, whose answers are known at the end%s", without,
                    p->stream ? ", not in a stream" : "");
}

/* Is the last message the beginning of an answer: `prefix` as Mistral and DeepSeek, `partial` as Moonshot says it? */
static bool wants_more(const cJSON *doc)
{
    const cJSON *list = js_get(doc, "messages"), *first = cJSON_IsArray(list) ? list->child : NULL;
    const cJSON *m = first ? first->prev : NULL, *content = js_get(m, "content");
    return (cJSON_IsTrue(js_get(m, "prefix")) || cJSON_IsTrue(js_get(m, "partial"))) &&
           api_is(js_get(m, "role"), "assistant") &&
           (cJSON_IsArray(content) ? content->child != NULL
                                   : cJSON_IsString(content) && content->valuestring[0]);
}

/* What one parameter demands of another. */
static lq_status check_together(api_params *p, const cJSON *doc, api_kind kind, api_error *e)
{
    if (js_get(doc, "stream_options") && !p->stream)
        return api_fail(e, "stream_options", "invalid_value",
                        "stream_options: only allowed with stream true");
    if (p->best_of && p->best_of < p->n)
        return api_fail(e, "best_of", "invalid_value",
                        "best_of: expected at least n (%lld), found %lld", (long long)p->n,
                        (long long)p->best_of);
    if (p->best_of > p->n && p->stream)
        return api_fail(e, "best_of", "unsupported_value",
                        "best_of: which are the best is known at the end, not in a stream");
    if (!p->best_of) p->best_of = p->n;
    if (p->prompt_logprobs >= 0 && p->stream)
        return api_fail(e, "prompt_logprobs", "unsupported_value",
                        "prompt_logprobs: not in a stream");
    if (p->extra && !p->suffix)
        return api_fail(e, "input_extra", "unsupported_value", "input_extra: only with suffix");
    const cJSON *most = js_get(doc, "max_completion_tokens");
    if (most && !p->max_completion_tokens)
        return api_wrong(e, "max_completion_tokens", "-1 or an integer from 1", most);
    if (most) p->max_tokens = p->max_completion_tokens;
    p->to_the_end =
        p->max_tokens < 0 && (most || js_get(doc, "max_tokens") || js_get(doc, "n_predict"));
    int64_t predict = -1; /* llama.cpp's 0 reads the prompt into the cache */
    js_whole(js_get(doc, "n_predict"), 0, 0, &predict);
    if (p->max_tokens == 0 && !p->echo && predict < 0 && !(kind & API_READS))
        return api_fail(e, "max_tokens", "invalid_value",
                        "max_tokens: 0 is only allowed with echo true");
    if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
        return api_fail(e, "min_tokens", "invalid_value",
                        "min_tokens: %lld is more than max_tokens %lld", (long long)p->min_tokens,
                        (long long)p->max_tokens);
    lq_status s = api_check_samplers(&p->samplers, &p->temperature, e);
    if (s) return s;
    if (kind != API_CHAT) return check_beams(p, doc, e);
    if (p->top_logprobs > 0 && !p->chat_logprobs)
        return api_fail(e, "top_logprobs", "invalid_value",
                        "top_logprobs: only allowed with logprobs true");
    if (p->chat_logprobs) p->logprobs = p->top_logprobs > 0 ? p->top_logprobs : 0;
    if (!js_get(doc, "continue_final_message")) p->continue_final = wants_more(doc);
    if (p->continue_final && p->has_generation_prompt && p->add_generation_prompt)
        return api_fail(e, "continue_final_message", "invalid_value",
                        "continue_final_message and add_generation_prompt exclude each other");
    if (p->continue_final) p->add_generation_prompt = false;
    s = api_check_tool_choice(p, doc, e);
    return s ? s : check_beams(p, doc, e);
}

lq_status api_params_read(api_params *p, const cJSON *doc, api_kind kind, const gen_defaults *d,
                          int64_t vocab, bool strict, api_error *e)
{
    *p = (api_params){ .n = 1,
                       .length_penalty = 1,
                       .embeds = kind & API_READS,
                       .max_tokens = kind & API_READS    ? 0
                                     : kind & API_JUDGES ? 1
                                                         : -1,
                       .temperature = d->has_temperature ? d->temperature : 1,
                       .top_p = d->has_top_p ? d->top_p : 1,
                       .top_k = d->has_top_k ? d->top_k : 0,
                       .min_p = d->has_min_p ? d->min_p : 0,
                       .repetition_penalty = d->has_repetition_penalty ? d->repetition_penalty : 1,
                       .logprobs = -1,
                       .prompt_logprobs = -1,
                       .thinking_budget = -1,
                       .top_logprobs = -1,
                       .skip_special = true,
                       .add_special = true,
                       .add_generation_prompt = true,
                       .parallel_calls = true,
                       .include_reasoning = true,
                       .vocab = vocab };
    api_samplers_init(&p->samplers);
    for (const cJSON *c = doc->child; c; c = c->next) {
        const row *t = find_row(c->string, kind);
        bool known = t != NULL;
        lq_status s = t ? check_same(t, c, doc, e) : api_read_other(c, kind, &known, &p->noted, e);
        if (!s && t) s = read_row(p, t, c, e);
        if (s) return s;
        if (!known && strict)
            return api_fail(e, c->string, "unknown_parameter", "%.60s: unknown parameter",
                            c->string);
        p->n_ignored += !known;
    }
    return check_together(p, doc, kind, e);
}

void api_params_free(api_params *p)
{
    free(p->stop_ids);
    free(p->allowed);
    free(p->bias);
    free(p->structured.text);
    api_samplers_free(&p->samplers);
    cJSON_Delete(p->allowed_tools);
    cJSON_Delete(p->made_tools);
    cJSON_Delete(p->made_kwargs);
    p->allowed_tools = p->made_tools = p->made_kwargs = NULL;
    p->stop_ids = p->allowed = NULL;
    p->bias = NULL;
}

/* ---- the table, told ---- */

/* The type and, or null: every parameter may be null. */
static void write_type(jw *w, const char *type)
{
    jw_key(w, "type");
    jw_open(w, '[');
    jw_cstr(w, type);
    jw_cstr(w, "null");
    jw_close(w, ']');
}

static void write_bounds(jw *w, const row *t)
{
    const bool text = t->type == T_STR;
    jw_key(w, text ? "minLength" : t->above ? "exclusiveMinimum" : "minimum");
    lq_buf_printf(&w->b, "%.17g", t->lo);
    w->comma = true;
    jw_key(w, text ? "maxLength" : "maximum");
    lq_buf_printf(&w->b, "%.17g", t->hi);
    w->comma = true;
}

void api_params_schema(jw *w, api_kind kind)
{
    jw_open(w, '{');
    for (const row *t = rows; t < rows + LQ_COUNT(rows); t++) {
        char ref[96];
        if (!(t->kinds & (int)kind)) continue;
        jw_key(w, t->name);
        jw_open(w, '{');
        switch (t->type) {
        case T_BOOL:
            write_type(w, "boolean");
            break;
        case T_INT:
        case T_NUM:
        case T_STR:
            write_type(w, t->type == T_INT ? "integer" : t->type == T_NUM ? "number" : "string");
            write_bounds(w, t);
            break;
        case T_READ:
        case T_KNOWN:
            snprintf(ref, sizeof ref, "#/components/schemas/%s", t->name);
            jw_key(w, "$ref");
            jw_cstr(w, ref);
            break;
        }
        jw_close(w, '}');
    }
    api_other_schema(w, kind);
    jw_close(w, '}');
}
