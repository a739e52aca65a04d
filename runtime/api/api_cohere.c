/* runtime/api/api_cohere.c - POST /v2/embed and /v1/embed: vectors as Cohere's clients ask for them. Bodies become
 * those of /v1/embeddings; one vector can be answered in several types. */
#include "runtime/api/api_body.h"
#include "runtime/api/api_gen_int.h"

#include <stdlib.h>

/* ---- what is asked ---- */

static lq_status read_texts(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsArray(v) || !v->child)
        return api_body_wrong(b, name, name, "an array of strings", v);
    for (const cJSON *t = v->child; t; t = t->next)
        if (!cJSON_IsString(t)) return api_body_wrong(b, name, name, "an array of strings", t);
    api_put(b->to, "input", api_ref(v));
    return LQ_OK;
}

/* The texts of one input, one behind the other. */
static lq_status add_input(api_body *b, const char *name, cJSON *texts, const cJSON *input)
{
    lq_buf all = { 0 };
    lq_status s = LQ_OK;
    const cJSON *content = js_get(input, "content");
    if (!cJSON_IsArray(content) || !content->child)
        return api_body_wrong(b, name, name, "objects with an array `content`", input);
    for (const cJSON *c = content->child; c && !s; c = c->next) {
        const char *text = cJSON_GetStringValue(js_get(c, "text"));
        if (!api_is(js_get(c, "type"), "text") || !text)
            s = api_fail(b->e, name, "unsupported_value", "%s: only texts are supported", name);
        else
            lq_buf_puts(&all, text);
    }
    lq_buf_add(&all, "", 1);
    if (!s && all.oom) s = api_no_memory(b->e);
    if (!s) cJSON_AddItemToArray(texts, cJSON_CreateString(all.p));
    lq_buf_free(&all);
    return s;
}

static lq_status read_inputs(api_body *b, const char *name, const cJSON *v)
{
    if (!cJSON_IsArray(v) || !v->child)
        return api_body_wrong(b, name, name, "an array of objects", v);
    cJSON *texts = cJSON_AddArrayToObject(b->to, "input");
    lq_status s = LQ_OK;
    for (const cJSON *t = v->child; t && !s; t = t->next)
        s = add_input(b, name, texts, t);
    return s;
}

static lq_status read_input(api_body *b, const char *name, const cJSON *v)
{
    (void)v;
    return api_fail(b->e, "texts", "invalid_value", "texts: expected them in place of %s", name);
}

static lq_status read_images(api_body *b, const char *name, const cJSON *v)
{
    return cJSON_IsArray(v) && !v->child ? LQ_OK : api_body_refuse(b, name, v);
}

/* Names that models' files give the prompts of a type; a model without any of them has nothing to put before it. */
static const struct {
    const char *type, *prompts[3];
} input_types[] = { { "search_query", { "query", "search_query", NULL } },
                    { "search_document", { "document", "passage", "search_document" } },
                    { "classification", { "classification", "Classification", NULL } },
                    { "clustering", { "clustering", "Clustering", NULL } } };

static lq_status read_input_type(api_body *b, const char *name, const cJSON *v)
{
    char names[64];
    const sentence *own = b->a->m.sentence;
    for (size_t i = 0; i < LQ_COUNT(input_types); i++) {
        if (!api_is(v, input_types[i].type)) continue;
        for (size_t k = 0; k < LQ_COUNT(input_types->prompts) && own; k++) {
            const char *prompt = input_types[i].prompts[k];
            if (!prompt || !sentence_prompt(own, prompt, names, sizeof names)) continue;
            api_put_str(b->to, "prompt_name", prompt);
            break;
        }
        return LQ_OK;
    }
    return api_body_wrong(b, name, name,
                          "search_query, search_document, classification or clustering", v);
}

static lq_status read_truncate(api_body *b, const char *name, const cJSON *v)
{
    (void)b;
    if (api_is(v, "NONE") || api_is(v, "END")) return LQ_OK; /* finish looks at it */
    if (!api_is(v, "START")) return api_body_wrong(b, name, name, "NONE or END", v);
    return api_fail(b->e, name, "unsupported_value",
                    "truncate: START is not supported: END keeps the beginning of a text");
}

typedef enum { TYPE_FLOAT, TYPE_BASE64, TYPE_BINARY, TYPE_UBINARY, N_TYPES } vector_type;
static const char *const type_names[N_TYPES] = { "float", "base64", "binary", "ubinary" };

static int type_of(const cJSON *v)
{
    int t = 0;
    while (t < N_TYPES && !api_is(v, type_names[t]))
        t++;
    return t;
}

static lq_status read_types(api_body *b, const char *name, const cJSON *v)
{
    const char *expected = "an array of float, base64, binary, ubinary";
    if (!cJSON_IsArray(v) || !v->child) return api_body_wrong(b, name, name, expected, v);
    for (const cJSON *t = v->child; t; t = t->next)
        if (type_of(t) == N_TYPES) return api_body_wrong(b, name, name, expected, t);
    return LQ_OK;
}

static lq_status finish(api_body *b)
{
    const bool texts = js_get(b->from, "texts"), inputs = js_get(b->from, "inputs");
    cJSON_DeleteItemFromObjectCaseSensitive(b->to, "messages");
    if (texts == inputs)
        return api_fail(b->e, "texts", "invalid_value", "texts: expected them, or inputs, %s",
                        texts ? "found both" : "found neither");
    if (!js_get(b->to, "truncate_prompt_tokens") && !api_is(js_get(b->from, "truncate"), "NONE"))
        api_put(b->to, "truncate_prompt_tokens", cJSON_CreateNumber(-1));
    return LQ_OK;
}

static const api_field fields[] = { { "texts", "input", read_texts },
                                    { "inputs", NULL, read_inputs },
                                    { "input", NULL, read_input },
                                    { "images", NULL, read_images },
                                    { "input_type", NULL, read_input_type },
                                    { "truncate", NULL, read_truncate },
                                    { "max_tokens", "truncate_prompt_tokens", NULL },
                                    { "embedding_types", NULL, read_types },
                                    { "encoding_format", NULL, api_body_refuse },
                                    { "output_dimension", "dimensions", NULL } };
static const api_dialect dialect = { .fields = fields, .n = LQ_COUNT(fields), .finish = finish };

/* ---- what is answered ---- */

/* A bit for each number, of those above 0, eight to a number, the first the highest; as numbers from 0, or
 * from -128, on. */
static void write_bits(jw *w, const float *v, int64_t n, bool signs)
{
    jw_open(w, '[');
    for (int64_t i = 0; i < n; i += 8) {
        int byte = 0;
        for (int64_t k = i; k < i + 8 && k < n; k++)
            byte |= (v[k] > 0) << (7 - (k - i));
        jw_i64(w, signs ? byte - 128 : byte);
    }
    jw_close(w, ']');
}

static void write_vectors(gen *g, jw *w, int type)
{
    jw_open(w, '[');
    for (int i = 0; i < g->choices.n && !w->b.oom; i++) {
        int64_t n;
        float *v = gen_vector(&g->choices.v[i], w, &n);
        if (v && (type == TYPE_BINARY || type == TYPE_UBINARY))
            write_bits(w, v, n, type == TYPE_BINARY);
        else if (v)
            gen_write_floats(w, v, n, type == TYPE_BASE64);
        free(v);
    }
    jw_close(w, ']');
}

static void write_types(gen *g, jw *w, const cJSON *types)
{
    bool wanted[N_TYPES] = { [TYPE_FLOAT] = !types };
    for (const cJSON *t = types ? types->child : NULL; t; t = t->next)
        wanted[type_of(t)] = true;
    jw_open(w, '{');
    for (int t = 0; t < N_TYPES; t++) {
        if (!wanted[t]) continue;
        jw_key(w, type_names[t]);
        write_vectors(g, w, t);
    }
    jw_close(w, '}');
}

/* plain: one list of vectors, where no types were asked for. */
static void write_answer(gen *g, jw *w, const char *version, bool plain)
{
    const cJSON *types = js_get(g->body, "embedding_types"), *texts = js_get(g->body, "texts");
    if (cJSON_IsNull(types)) types = NULL;
    plain = plain && !types;
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, g->answer.id);
    jw_key(w, "embeddings");
    if (plain)
        write_vectors(g, w, TYPE_FLOAT);
    else
        write_types(g, w, types);
    jw_key(w, "texts");
    jw_open(w, '[');
    for (const cJSON *t = texts ? texts->child : NULL; t; t = t->next)
        jw_cstr(w, t->valuestring);
    jw_close(w, ']');
    jw_key(w, "meta");
    jw_open(w, '{');
    jw_key(w, "api_version");
    jw_open(w, '{');
    jw_key(w, "version");
    jw_cstr(w, version);
    jw_close(w, '}');
    jw_key(w, "billed_units");
    jw_open(w, '{');
    jw_put_i64(w, "input_tokens", g->prompts.n_ids);
    jw_close(w, '}');
    jw_close(w, '}');
    jw_key(w, "response_type");
    jw_cstr(w, plain ? "embeddings_floats" : "embeddings_by_type");
    jw_close(w, '}');
}

static void write_v1(gen *g, jw *w) { write_answer(g, w, "1", true); }
static void write_v2(gen *g, jw *w) { write_answer(g, w, "2", false); }

#define VECTORS(write)                                                                     \
    {                                                                                      \
        .kind = API_EMBEDDINGS, .prefix = "embd-", .prompt = "input", .dialect = &dialect, \
        .take = gen_take_nothing, .answer = write                                          \
    }
static const gen_shape v1 = VECTORS(write_v1), v2 = VECTORS(write_v2);

void api_post_embed_v1(void *app, http_req *r) { api_answer_prompts(app, r, &v1); }
void api_post_embed_v2(void *app, http_req *r) { api_answer_prompts(app, r, &v2); }
