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

#define COMMON                                                                        \
    { "logit_bias", NULL, read_bias }, { "return_tokens", "return_token_ids", NULL }, \
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
static const api_dialect infill = { infill_fields, LQ_COUNT(infill_fields), finish, NULL };
static const api_dialect completion = { completion_fields, LQ_COUNT(completion_fields),
                                        finish_completion, NULL };

static void put_bool(jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

static void put_i64(jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_i64(w, v);
}

static void put_rate(jw *w, const char *key, int64_t n, double seconds)
{
    jw_key(w, key);
    jw_f64(w, seconds > 0 ? (double)n / seconds : 0);
}

static void put_times(jw *w, const gen_choice *c)
{
    const double first = c->stats.t_first, rest = c->stats.t_last - first;
    jw_key(w, "timings");
    jw_open(w, '{');
    put_i64(w, "prompt_n", c->g->prompts.n_ids - c->stats.n_cached);
    jw_key(w, "prompt_ms");
    jw_f64(w, first * 1e3);
    put_rate(w, "prompt_per_second", c->g->prompts.n_ids - c->stats.n_cached, first);
    put_i64(w, "predicted_n", c->stats.n_output);
    jw_key(w, "predicted_ms");
    jw_f64(w, rest * 1e3);
    put_rate(w, "predicted_per_second", c->stats.n_output, rest);
    jw_close(w, '}');
}

/* The text that was not sent yet; with how it ended, if it has. */
static void write_piece(jw *w, gen_choice *c, bool ends)
{
    static const lq_buf none;
    const lq_buf *text = c->text.p ? &c->text : &none;
    jw_open(w, '{');
    put_i64(w, "index", 0);
    jw_key(w, "content");
    jw_str(w, text->n ? text->p : "", text->n);
    if (c->g->p.return_ids) gen_take_list(w, "tokens", &c->ids);
    put_bool(w, "stop", ends);
    put_i64(w, "tokens_predicted", c->stats.n_output);
    put_i64(w, "tokens_evaluated", c->g->prompts.n_ids);
    if (ends) {
        jw_key(w, "model");
        jw_cstr(w, c->g->answer.model);
        put_i64(w, "tokens_cached", c->stats.n_cached);
        put_bool(w, "truncated", false);
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

#define SHAPE(d, name)                                                                            \
    {                                                                                             \
        .kind = API_COMPLETIONS, .prefix = name, .prompt = "prompt", .dialect = d, .fills = true, \
        .take = gen_take_chat, .chunk = chunk, .end = end_stream, .error = send_error,            \
        .answer = write_answer                                                                    \
    }
static const gen_shape infill_shape = SHAPE(&infill, "infill-");
static const gen_shape completion_shape = SHAPE(&completion, "completion-");

void api_post_infill(void *app, http_req *r) { api_answer_prompts(app, r, &infill_shape); }
void api_post_completion(void *app, http_req *r) { api_answer_prompts(app, r, &completion_shape); }
