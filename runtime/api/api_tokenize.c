/* runtime/api/api_tokenize.c - POST /tokenize and /detokenize, in vLLM's shapes ({"prompt"} or
 * {"messages"}) and llama.cpp's ({"content"}). */
#include "runtime/api/api_int.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    bool add_special, parse_special, strs, pieces, generation, continue_final, llama;
    const char *model, *prompt;
    const cJSON *kwargs, *tools;
    cJSON *made_tools; /* api_params.made_tools */
} options;

/* Every member has its type, whichever of the shapes the body is of. */
static lq_status read_members(options *o, const cJSON *doc, lq_err *err)
{
    const struct {
        const char *name;
        bool *to;
    } flags[] = { { "add_special", &o->add_special },
                  { "add_special_tokens", &o->add_special },
                  { "parse_special", &o->parse_special },
                  { "with_pieces", &o->pieces },
                  { "return_token_strs", &o->strs },
                  { "add_generation_prompt", &o->generation },
                  { "continue_final_message", &o->continue_final } };
    const char *content = NULL;
    lq_status s = js_str(doc, "model", false, &o->model, err);
    if (!s) s = js_str(doc, "prompt", false, &o->prompt, err);
    if (!s) s = js_str(doc, "content", false, &content, err);
    if (o->llama) o->prompt = content;
    for (size_t i = 0; i < LQ_COUNT(flags) && !s; i++)
        s = js_bool(doc, flags[i].name, false, flags[i].to, err);
    return s;
}

static lq_status read_options(options *o, const cJSON *doc, api_error *e)
{
    lq_err err = { "" };
    const bool chat = js_get(doc, "messages") != NULL, plain = js_get(doc, "prompt") != NULL;
    *o = (options){ .parse_special = true,
                    .generation = true,
                    .add_special = plain && !chat, /* llama.cpp's: special tokens only on demand */
                    .llama = !plain && !chat,
                    .kwargs = js_get(doc, "chat_template_kwargs") };
    lq_status s = read_members(o, doc, &err);
    if (!s && chat && o->prompt)
        s = lq_fail(&err, LQ_EVALUE, "messages: prompt is given too, and only one of them counts");
    if (!s && chat && o->add_special)
        s = lq_fail(&err, LQ_EVALUE, "%s: the chat template says which there are",
                    js_get(doc, "add_special") ? "add_special" : "add_special_tokens");
    if (!s && chat && !o->parse_special)
        s = lq_fail(&err, LQ_EVALUE, "parse_special: those in messages are text anyway");
    if (!s && o->kwargs && !cJSON_IsObject(o->kwargs))
        s = lq_fail(&err, LQ_EVALUE, "chat_template_kwargs: expected an object");
    char name[64]; /* the message begins with it */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(err.msg, ":"), err.msg);
    return s ? api_fail(e, name, "invalid_value", "%s", err.msg) : LQ_OK;
}

/* `tools` beside messages, as in a chat. */
static lq_status take_tools(const api *a, options *o, const cJSON *v, api_error *e)
{
    api_params p = { 0 };
    if (!v || cJSON_IsNull(v)) return LQ_OK;
    lq_status s = api_read_tools(&p, v, e);
    o->tools = p.tools;
    o->made_tools = p.made_tools;
    if (!s && o->tools && o->prompt)
        s = api_fail(e, "tools", "invalid_value", "tools: only beside messages");
    if (!s && o->tools) s = api_can_call(a, e);
    return s;
}

/* Special tokens that a text spells stay text. */
static lq_status encode_plain(const api *a, api_prompt *p, const options *o, api_error *e)
{
    const size_t n = strlen(o->prompt);
    uint8_t *own = calloc(n + 1, 1);
    int32_t *more = NULL;
    size_t n_more = 0;
    lq_err err;
    if (!a->m.tok || n > api_most_bytes(a)) {
        free(own);
        return api_encode(a, p, o->prompt, false, API_KEEP_ALL, o->llama ? "content" : "prompt",
                          e); /* which says why not */
    }
    lq_status s =
        own ? tok_encode_own(a->m.tok, o->prompt, own, n, &p->ids, &p->n, &err) : LQ_ENOMEM;
    if (!s && o->add_special) {
        s = tok_add_special(a->m.tok, p->ids, p->n, &more, &n_more, &err);
        if (!s) {
            free(p->ids);
            p->ids = more;
            p->n = n_more;
        }
    }
    free(own);
    return s ? api_no_memory(e) : LQ_OK;
}

static lq_status encode(const api *a, api_prompt *p, const cJSON *doc, const options *o,
                        api_error *e)
{
    if (o->prompt && !o->parse_special) return encode_plain(a, p, o, e);
    if (o->prompt)
        return api_encode(a, p, o->prompt, o->add_special, API_KEEP_ALL,
                          o->llama ? "content" : "prompt", e);
    if (!js_get(doc, "messages"))
        return api_fail(e, "prompt", "missing_required_parameter",
                        "expected \"prompt\", \"messages\" or \"content\"");
    chat_request q = { .kwargs = o->kwargs,
                       .tools = o->tools,
                       .add_generation_prompt = o->generation && !o->continue_final,
                       .continue_final = o->continue_final };
    return api_chat_prompt(a, p, doc, &q, false, e);
}

static lq_status to_ids(const api *a, api_prompt *p, const cJSON *doc, options *o, api_error *e)
{
    lq_status s = read_options(o, doc, e);
    if (s) return s;
    if (!api_serves(a, o->model)) return api_no_model(e, o->model);
    s = take_tools(a, o, js_get(doc, "tools"), e);
    if (!s) s = encode(a, p, doc, o, e);
    cJSON_Delete(o->made_tools);
    o->made_tools = NULL;
    return s;
}

/* {"id", "piece"}: the token's text, or its bytes where they are no text by themselves. */
static void write_piece(jw *w, const tok_tokenizer *tok, int32_t id)
{
    uint8_t bytes[1024];
    size_t n = tok_token_bytes(tok, id, bytes, sizeof bytes);
    n = n < sizeof bytes ? n : sizeof bytes;
    jw_open(w, '{');
    jw_key(w, "id");
    jw_i64(w, id);
    jw_key(w, "piece");
    if (lq_utf8_valid(bytes, n, NULL)) {
        jw_str(w, (const char *)bytes, n);
    } else {
        jw_open(w, '[');
        for (size_t i = 0; i < n; i++)
            jw_i64(w, bytes[i]);
        jw_close(w, ']');
    }
    jw_close(w, '}');
}

void api_post_tokenize(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    api_prompt p = { 0 };
    options o;
    jw w = { 0 };
    if (!api_ready(a, r)) return;
    cJSON *doc = api_parse(r);
    if (!doc) return;
    if (to_ids(a, &p, doc, &o, &e)) {
        api_reply_error(a, r, &e);
        cJSON_Delete(doc);
        return;
    }
    jw_open(&w, '{');
    if (!o.llama) {
        jw_key(&w, "count");
        jw_i64(&w, (int64_t)p.n);
        jw_key(&w, "max_model_len");
        jw_i64(&w, a->m.max_len);
    }
    jw_key(&w, "tokens");
    jw_open(&w, '[');
    for (size_t i = 0; i < p.n; i++)
        if (o.pieces)
            write_piece(&w, a->m.tok, p.ids[i]);
        else
            jw_i64(&w, p.ids[i]);
    jw_close(&w, ']');
    if (o.strs) {
        jw_key(&w, "token_strs");
        jw_open(&w, '[');
        for (size_t i = 0; i < p.n; i++) {
            size_t n;
            const char *s = tok_token(a->m.tok, p.ids[i], &n);
            jw_str(&w, s ? s : "", s ? n : 0);
        }
        jw_close(&w, ']');
    }
    jw_close(&w, '}');
    api_reply(r, 200, &w);
    free(p.ids);
    cJSON_Delete(doc);
}

static lq_status to_text(const api *a, const cJSON *doc, char **text, size_t *n, api_error *e)
{
    const char *name = NULL;
    int32_t *ids = NULL;
    int n_ids = 0, max = a->m.max_len < INT32_MAX ? (int)a->m.max_len : INT32_MAX;
    lq_err err = { "" };
    if (js_str(doc, "model", false, &name, &err))
        return api_fail(e, "model", "invalid_value", "%s", err.msg);
    if (!api_serves(a, name)) return api_no_model(e, name);
    if (!a->m.tok) return api_fail(e, NULL, "unsupported_value", "the model has no tokenizer");
    const cJSON *tokens = js_get(doc, "tokens");
    if (!tokens)
        return api_fail(e, "tokens", "missing_required_parameter", "tokens: it is required");
    int64_t vocab = tok_vocab(a->m.tok);
    lq_status s = api_read_ids(&ids, &n_ids, tokens, "tokens", vocab, max, e);
    if (s) return s;
    s = tok_decode(a->m.tok, ids, (size_t)n_ids, false, text, n, &err);
    free(ids);
    return s ? api_fail(e, "tokens", "invalid_value", "tokens: they cannot be decoded") : LQ_OK;
}

void api_post_detokenize(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    char *text = NULL;
    size_t n = 0;
    jw w = { 0 };
    if (!api_ready(a, r)) return;
    cJSON *doc = api_parse(r);
    if (!doc) return;
    if (to_text(a, doc, &text, &n, &e)) {
        api_reply_error(a, r, &e);
    } else {
        jw_open(&w, '{');
        jw_key(&w, "prompt");
        jw_str(&w, text, n);
        jw_key(&w, "content");
        jw_str(&w, text, n);
        jw_close(&w, '}');
        api_reply(r, 200, &w);
    }
    free(text);
    cJSON_Delete(doc);
}

/* The text of a special token: by the model's files, else by its id; null: there is none. */
static void write_special(const api *a, jw *w, const char *name, int32_t id)
{
    const char *text = cJSON_GetStringValue(js_get(a->m.chat_tokens, name));
    size_t n = text ? strlen(text) : 0;
    if (!text && id >= 0 && id < tok_vocab(a->m.tok)) text = tok_token(a->m.tok, id, &n);
    jw_key(w, name);
    if (text)
        jw_str(w, text, n);
    else
        jw_null(w);
}

/* As vLLM's, of which lm-eval's remote tokenizer reads these. */
void api_get_tokenizer(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    if (!api_ready(a, r)) return;
    if (!a->m.tok) {
        http_error(r, 404, NULL, NULL, "the model has no tokenizer");
        return;
    }
    jw_open(&w, '{');
    write_special(a, &w, "bos_token", a->m.bos);
    write_special(a, &w, "eos_token", a->m.eos);
    write_special(a, &w, "pad_token", -1);
    write_special(a, &w, "unk_token", -1);
    jw_key(&w, "chat_template");
    jw_cstr(&w, a->m.chat_text);
    jw_key(&w, "model_max_length");
    jw_i64(&w, a->m.max_len);
    jw_key(&w, "vocab_size");
    jw_i64(&w, tok_vocab(a->m.tok));
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}
