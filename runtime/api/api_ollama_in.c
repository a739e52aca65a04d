/* runtime/api/api_ollama_in.c - bodies of Ollama's API as OpenAI's. */
#include "runtime/api/api_ollama.h"

#include <stdio.h>
#include <stdlib.h>

char *api_ollama_name(const api *a, const char *name)
{
    static const char tag[] = ":latest";
    const size_t n = strlen(name), k = sizeof tag - 1;
    if (api_serves(a, name) || n <= k || strcmp(name + n - k, tag) != 0) return NULL;
    return strndup(name, n - k);
}

static lq_status read_model(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsString(v)) return api_body_wrong(b, name, name, "a string", v);
    char *served = api_ollama_name(b->a, v->valuestring);
    api_put(b->to, name, served ? cJSON_CreateString(served) : api_ref(v));
    free(served);
    return LQ_OK;
}

/* ---- messages ---- */

static lq_status wrong(api_body *b, int i, const char *expected, const cJSON *v)
{
    char at[32];
    snprintf(at, sizeof at, "messages[%d]", i);
    return api_body_wrong(b, "messages", at, expected, v);
}

static bool is_empty(const cJSON *v) { return !v || (cJSON_IsArray(v) && !v->child); }

static lq_status take_calls(api_body *b, cJSON *m, const cJSON *calls, int i)
{
    if (!cJSON_IsArray(calls)) return wrong(b, i, "tool_calls: an array", calls);
    for (const cJSON *c = calls->child; c; c = c->next) {
        const cJSON *f = js_get(c, "function"), *name = js_get(f, "name"),
                    *arguments = js_get(f, "arguments");
        const char *id = cJSON_GetStringValue(js_get(c, "id"));
        if (!cJSON_IsString(name) || !cJSON_IsObject(arguments))
            return wrong(b, i, "calls of a function with a name and an object of arguments", c);
        api_add_call(m, id, name->valuestring, arguments);
    }
    return LQ_OK;
}

static lq_status take_message(api_body *b, const cJSON *v, int i)
{
    static const struct {
        const char *theirs, *ours;
    } texts[] = { { "content", "content" },
                  { "thinking", "reasoning_content" },
                  { "tool_name", "name" },
                  { "tool_call_id", "tool_call_id" } };
    const cJSON *role = js_get(v, "role"), *calls = js_get(v, "tool_calls");
    if (!cJSON_IsString(role)) return wrong(b, i, "a role", role ? role : v);
    if (!is_empty(js_get(v, "images")))
        return api_fail(b->e, "messages", "unsupported_value",
                        "messages[%d]: images are not supported", i);
    cJSON *m = api_add_message(b, role->valuestring);
    for (size_t k = 0; k < LQ_COUNT(texts); k++) {
        const cJSON *t = js_get(v, texts[k].theirs);
        if (t && !cJSON_IsString(t)) return wrong(b, i, "strings", t);
        if (t && (k == 0 || t->valuestring[0])) api_put(m, texts[k].ours, api_ref(t));
    }
    return calls && !is_empty(calls) ? take_calls(b, m, calls, i) : LQ_OK;
}

static lq_status read_messages(api_body *b, const char *name, const cJSON *v)
{
    int i = 0;
    lq_status s = LQ_OK;
    if (!cJSON_IsArray(v)) return api_body_wrong(b, name, name, "an array of messages", v);
    for (const cJSON *m = v->child; m && !s; m = m->next)
        s = take_message(b, m, i++);
    return s;
}

/* ---- options ---- */

static lq_status read_predict(api_body *b, const char *name, const cJSON *v)
{
    (void)name;
    const bool open =
        cJSON_IsNumber(v) && v->valuedouble <= 0; /* -1, -2, 0: as many as there are */
    if (!open) api_put(b->to, "max_tokens", api_ref(v));
    return LQ_OK;
}

/* The others have their own names. */
static const api_field options[] = {
    { "num_predict", NULL, read_predict },
    { "repeat_penalty", "repetition_penalty", NULL },
    /* how Ollama holds the model, and how many tokens: no influence on an answer that fits */
    { "num_ctx", NULL, NULL },
    { "num_keep", NULL, NULL },
    { "num_batch", NULL, NULL },
    { "num_gpu", NULL, NULL },
    { "main_gpu", NULL, NULL },
    { "num_thread", NULL, NULL },
    { "numa", NULL, NULL },
    { "low_vram", NULL, NULL },
    { "f16_kv", NULL, NULL },
    { "use_mmap", NULL, NULL },
    { "use_mlock", NULL, NULL },
    { "vocab_only", NULL, NULL },
    { "logits_all", NULL, NULL },
};

static lq_status read_options(api_body *b, const char *name, const cJSON *v)
{
    lq_status s = LQ_OK;
    if (!cJSON_IsObject(v)) return api_body_wrong(b, name, name, "an object", v);
    for (const cJSON *c = v->child; c && !s; c = c->next)
        s = api_body_field(b, options, LQ_COUNT(options), c);
    return s;
}

/* ---- the others ---- */

static lq_status read_format(api_body *b, const char *name, const cJSON *v)
{
    if (api_is(v, "")) return LQ_OK;
    if (!api_is(v, "json") && !cJSON_IsObject(v))
        return api_body_wrong(b, name, name, "\"json\" or a JSON schema", v);
    cJSON *f = cJSON_AddObjectToObject(b->to, "response_format");
    api_put_str(f, "type", cJSON_IsObject(v) ? "json_schema" : "json_object");
    if (cJSON_IsObject(v)) api_put(f, "schema", api_ref(v));
    return LQ_OK;
}

/* true, false, or a level. */
static lq_status read_think(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsBool(v) && !cJSON_IsString(v))
        return api_body_wrong(b, name, name, "true, false or a level", v);
    if (cJSON_IsString(v)) api_put_variable(b, "reasoning_effort", api_ref(v));
    if (cJSON_IsFalse(v)) api_put(b->to, "include_reasoning", cJSON_CreateFalse());
    api_put_variable(b, "enable_thinking", cJSON_CreateBool(!cJSON_IsFalse(v)));
    return LQ_OK;
}

static lq_status read_truncate(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsBool(v)) return api_body_wrong(b, name, name, "true or false", v);
    if (cJSON_IsTrue(v)) api_put(b->to, "truncate_prompt_tokens", cJSON_CreateNumber(-1));
    return LQ_OK;
}

/* Of an answer without a template: a completion's is the number of alternatives. */
static lq_status read_logprobs(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *tops = js_get(b->from, "top_logprobs");
    if (!cJSON_IsBool(v)) return api_body_wrong(b, name, name, "true or false", v);
    if (cJSON_IsTrue(v)) api_put(b->to, name, tops ? api_ref(tops) : cJSON_CreateNumber(0));
    return LQ_OK;
}

static lq_status read_tops(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsTrue(js_get(b->from, "logprobs"))
               ? LQ_OK
               : api_body_wrong(b, name, name, "logprobs true beside it", v);
}

/* The ids are put before the prompt's when that is made (api_ollama.c). */
static lq_status read_context(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsArray(v) ? LQ_OK : api_body_wrong(b, name, name, "an array of ids", v);
}

/* What changes nothing when it is empty or false. */
static lq_status read_nothing(api_body *b, const char *name, const cJSON *v)
{
    return is_empty(v) || cJSON_IsFalse(v) || api_is(v, "") ? LQ_OK : api_body_refuse(b, name, v);
}

/* What makes an answer one of another dialect, where it is of its kind. */
static lq_status read_chooser(api_body *b, const char *name, const cJSON *v)
{
    const bool flag = strcmp(name, "raw") == 0;
    if (!read_nothing(b, name, v)) return LQ_OK;
    return (flag ? cJSON_IsBool(v) : cJSON_IsString(v))
               ? LQ_EVALUE
               : api_body_wrong(b, name, name, flag ? "true or false" : "a string", v);
}

static lq_status read_no_context(api_body *b, const char *name, const cJSON *v)
{
    return read_nothing(b, name, v) ? api_fail(b->e, name, "unsupported_parameter",
                                               "context: only allowed without raw and suffix")
                                    : LQ_OK;
}

/* Answers are streams unless they shall not be. */
static lq_status finish_chat(api_body *b)
{
    if (!js_get(b->from, "stream")) api_put(b->to, "stream", cJSON_CreateTrue());
    return LQ_OK;
}

static lq_status finish_generate(api_body *b)
{
    const cJSON *prompt = js_get(b->from, "prompt"), *system = js_get(b->from, "system");
    if (system && !cJSON_IsString(system))
        return api_body_wrong(b, "system", "system", "a string", system);
    if (!cJSON_IsString(prompt)) return api_body_wrong(b, "prompt", "prompt", "a string", prompt);
    if (system && system->valuestring[0])
        api_add_text(api_add_message(b, "system"), system->valuestring);
    api_add_text(api_add_message(b, "user"), prompt->valuestring);
    if (!js_get(b->to, "return_token_ids")) /* for `context` of the answer */
        api_put(b->to, "return_token_ids", cJSON_CreateTrue());
    return finish_chat(b);
}

static lq_status finish_plain(api_body *b)
{
    const cJSON *prompt = js_get(b->from, "prompt");
    if (!cJSON_IsString(prompt)) return api_body_wrong(b, "prompt", "prompt", "a string", prompt);
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    return finish_chat(b);
}

static lq_status finish_templated(api_body *b)
{
    static const char *const texts[] = { "prompt", "system", "template" };
    for (size_t i = 0; i < LQ_COUNT(texts); i++) {
        const cJSON *v = js_get(b->from, texts[i]);
        if ((v || i == 0) && !cJSON_IsString(v))
            return api_body_wrong(b, texts[i], texts[i], "a string", v);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    if (!js_get(b->to, "return_token_ids")) api_put(b->to, "return_token_ids", cJSON_CreateTrue());
    const lq_status s = api_ollama_by_template(b);
    return s ? s : finish_chat(b);
}

static lq_status finish_embed(api_body *b)
{
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    if (!js_get(b->from, "truncate"))
        api_put(b->to, "truncate_prompt_tokens", cJSON_CreateNumber(-1));
    return LQ_OK;
}

#define COMMON                                                             \
    { "model", NULL, read_model }, { "options", NULL, read_options },      \
        { "keep_alive", NULL, NULL }, { "truncate", NULL, read_truncate }, \
        { "num_predict", "max_tokens", NULL },                             \
    {                                                                      \
        "repeat_penalty", "repetition_penalty", NULL                       \
    }
#define TALK                                                                                 \
    { "format", NULL, read_format }, { "think", NULL, read_think }, { "shift", NULL, NULL }, \
        { "n", NULL, api_body_refuse },                                                      \
    {                                                                                        \
        "chat_template_kwargs", NULL, api_body_variables                                     \
    }

static const api_field chat_fields[] = { COMMON, TALK, { "messages", NULL, read_messages } };
static const api_field generate_fields[] = { COMMON,
                                             TALK,
                                             { "prompt", NULL, NULL },
                                             { "system", NULL, NULL },
                                             { "messages", NULL, api_body_refuse },
                                             { "images", NULL, read_nothing },
                                             { "raw", NULL, read_chooser },
                                             { "template", NULL, read_chooser },
                                             { "context", NULL, read_context },
                                             { "suffix", NULL, read_chooser } };
/* `raw`, or with a suffix: no template. */
static const api_field plain_fields[] = { COMMON,
                                          TALK,
                                          { "logprobs", NULL, read_logprobs },
                                          { "top_logprobs", NULL, read_tops },
                                          { "raw", NULL, NULL },
                                          { "system", NULL, read_nothing },
                                          { "messages", NULL, api_body_refuse },
                                          { "images", NULL, read_nothing },
                                          { "template", NULL, read_nothing },
                                          { "context", NULL, read_no_context } };
/* With a template of its own. */
static const api_field templated_fields[] = { COMMON,
                                              TALK,
                                              { "logprobs", NULL, read_logprobs },
                                              { "top_logprobs", NULL, read_tops },
                                              { "prompt", NULL, NULL },
                                              { "system", NULL, NULL },
                                              { "template", NULL, NULL },
                                              { "raw", NULL, NULL },
                                              { "messages", NULL, api_body_refuse },
                                              { "images", NULL, read_nothing },
                                              { "context", NULL, read_context },
                                              { "suffix", NULL, NULL } };
static const api_field embed_fields[] = { COMMON };
static const api_field embedding_fields[] = { COMMON, { "prompt", "input", NULL } };

const api_dialect api_ollama_chat = { .fields = chat_fields,
                                      .n = LQ_COUNT(chat_fields),
                                      .finish = finish_chat };
const api_dialect api_ollama_generate = { .fields = generate_fields,
                                          .n = LQ_COUNT(generate_fields),
                                          .finish = finish_generate };
const api_dialect api_ollama_plain = { .fields = plain_fields,
                                       .n = LQ_COUNT(plain_fields),
                                       .finish = finish_plain };
const api_dialect api_ollama_templated = { .fields = templated_fields,
                                           .n = LQ_COUNT(templated_fields),
                                           .finish = finish_templated };
const api_dialect api_ollama_embed = { .fields = embed_fields,
                                       .n = LQ_COUNT(embed_fields),
                                       .finish = finish_embed };
const api_dialect api_ollama_embedding = { .fields = embedding_fields,
                                           .n = LQ_COUNT(embedding_fields),
                                           .finish = finish_embed };
