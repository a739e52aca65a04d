/* runtime/api/api_completions.c - POST /v1/completions and /v1/embeddings: a prompt (or input) as text,
 * ids, or a list of either. */
#include "runtime/api/api_body.h"
#include "runtime/api/api_gen_int.h"
#include "runtime/tokenizer/tok_text.h"

#include <stdlib.h>

static lq_status bad_prompt(api_error *e, const char *param, const cJSON *v)
{
    char found[64];
    return api_fail(e, param, "invalid_value",
                    "%s: expected a string, an array of strings, an array of token ids or an "
                    "array of such arrays, found %s",
                    param, js_describe(found, v));
}

/* How many ids the tokenizer puts after a text. */
static lq_status count_ends(const tok_tokenizer *tok, size_t *n, api_error *e)
{
    int32_t *ids = NULL;
    size_t before;
    const lq_status s = tok_around(tok, &ids, &before, n, NULL);
    free(ids);
    return s ? api_no_memory(e) : LQ_OK;
}

static lq_status encode_whole(const api *a, api_prompt *out, const char *text, bool cut,
                              const api_params *p, api_error *e)
{
    lq_status s = api_encode(a, out, text, p->add_special, cut ? API_KEEP_BEGINNING : API_KEEP_ALL,
                             "input", e);
    return s || !cut || !p->add_special ? s : count_ends(a->m.tok, &out->n_ends, e);
}

/* A text to be embedded, behind the prompt that the model's files have for it. */
static lq_status encode_input(const api *a, api_prompt *out, const char *text, bool cut,
                              const api_params *p, api_error *e)
{
    char names[256] = "none";
    const sentence *own = a->m.sentence;
    const char *prompt = own ? sentence_prompt(own, p->prompt_name, names, sizeof names)
                         : p->prompt_name ? NULL
                                          : "";
    if (!prompt)
        return api_fail(e, "prompt_name", "unsupported_value",
                        "prompt_name: expected one of the model's prompts (%s), found \"%.60s\"",
                        names, p->prompt_name);
    const bool lowers = own && sentence_lowers(own);
    const char *const parts[] = { prompt, text };
    if (!*prompt && !lowers) return encode_whole(a, out, text, cut, p, e);
    lq_buf whole = { 0 };
    for (size_t i = 0; i < LQ_COUNT(parts); i++)
        if (lowers)
            tok_lowercase(&whole, (const uint8_t *)parts[i], strlen(parts[i]));
        else
            lq_buf_puts(&whole, parts[i]);
    lq_buf_add(&whole, "", 1);
    lq_status s = whole.oom ? api_no_memory(e) : encode_whole(a, out, whole.p, cut, p, e);
    out->text = NULL;
    lq_buf_free(&whole);
    return s;
}

static lq_status read_one(const api *a, api_prompt *out, const cJSON *v, const char *param,
                          const api_params *p, api_error *e)
{
    /* whatever its length, it fits */
    const bool cut = p->truncate && p->truncate <= (p->embeds ? api_max_input(a) : a->m.max_len);
    if (cJSON_IsString(v) && p->suffix) return api_fim(a, out, v->valuestring, p, e);
    if (cJSON_IsString(v) && p->embeds) return encode_input(a, out, v->valuestring, cut, p, e);
    if (cJSON_IsString(v))
        return api_encode(a, out, v->valuestring, p->add_special, cut ? API_KEEP_END : API_KEEP_ALL,
                          param, e);
    if (p->prompt_name)
        return api_fail(e, "prompt_name", "unsupported_value", "prompt_name: only with a text");
    int n = 0, max = p->truncate || a->m.max_len > INT32_MAX ? INT32_MAX : (int)a->m.max_len;
    if (!v->child)
        return api_fail(e, param, "invalid_value",
                        "%s: expected at least one token, found an empty array", param);
    if (!cJSON_IsNumber(v->child)) return bad_prompt(e, param, v->child);
    if (p->suffix) return api_fail(e, "suffix", "unsupported_value", "suffix: only with a text");
    int64_t count = 0;
    for (const cJSON *c = v->child; c; c = c->next)
        count++;
    if (count > max)
        return api_fail(e, param, "context_length_exceeded",
                        "this model's maximum context length is %lld tokens: the prompt has %lld",
                        (long long)a->m.max_len, (long long)count);
    lq_status s = api_read_ids(&out->ids, &n, v, param, a->m.vocab, max, e);
    out->n = (size_t)n;
    return s;
}

/* Prompts of the request; *out is malloc'd, also after an error. */
static lq_status read_prompts(const api *a, api_prompt **out, size_t *n, const cJSON *v,
                              const char *param, const api_params *p, api_error *e)
{
    if (!v) return api_fail(e, param, "missing_required_parameter", "%s: it is required", param);
    bool list = cJSON_IsArray(v) && (cJSON_IsString(v->child) || cJSON_IsArray(v->child));
    if (!list && !cJSON_IsString(v) && !cJSON_IsArray(v)) return bad_prompt(e, param, v);
    size_t count = 0;
    const cJSON *c = list ? v->child : v;
    for (const cJSON *i = v->child; list && i; i = i->next)
        if (++count > API_MAX_PROMPTS)
            return api_fail(e, param, "invalid_value", "%s: at most %d a request", param,
                            API_MAX_PROMPTS);
    *out = calloc(count ? count : 1, sizeof **out);
    if (!*out) return api_no_memory(e);
    for (; c; c = list ? c->next : NULL) {
        if (list && c->type != v->child->type) return bad_prompt(e, param, c);
        lq_status s = read_one(a, &(*out)[(*n)++], c, param, p, e);
        if (s) return s;
    }
    return LQ_OK;
}

void api_answer_prompts(api *a, http_req *r, const gen_shape *shape)
{
    api_request q = { 0 };
    api_error e = { 0 };
    if (!api_ready(a, r)) return;
    const api_dialect *d = shape->dialect;
    q.doc = d ? api_parse_to_translate(r) : api_parse(r);
    if (!q.doc) return;
    lq_status s = d ? api_body_translate(a, d, &q, &e) : LQ_OK;
    if (!s)
        s = api_params_read(&q.p, q.doc, shape->kind, &a->m.defaults, a->m.vocab,
                            a->o.strict_params, &e);
    api_note_params(a, &q.p);
    if (!d && q.p.suffix && !q.p.suffix[0]) q.p.suffix = NULL; /* an empty one is none */
    if (!s && !api_serves(a, q.p.model)) s = api_no_model(&e, q.p.model);
    if (!s && shape->kind == API_CLASSIFY && !a->m.backend.score)
        s = api_fail(&e, NULL, "unsupported_value", "the model has no labels to tell texts by");
    if (!s)
        s = read_prompts(a, &q.prompts, &q.n, js_get(q.doc, shape->prompt), shape->prompt, &q.p,
                         &e);
    if (!s) {
        api_generate(a, r, shape, &q);
        return;
    }
    if (d) api_body_error(d, &e);
    api_reply_error(a, r, &e);
    api_request_free(&q);
}

void api_post_completions(void *app, http_req *r) { api_answer_prompts(app, r, &gen_completions); }
void api_post_embeddings(void *app, http_req *r) { api_answer_prompts(app, r, &gen_embeddings); }
