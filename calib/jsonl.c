/* calib/jsonl.c - JSON lines to one stream of ids. */
#include "calib/jsonl.h"

#include <stdlib.h>

#include "base/json.h"
#include "runtime/chat/chat.h"

enum { MAX_LINE = 1 << 28 };

lq_status cal_stream_add(cal_stream *s, const int32_t *ids, size_t n, lq_err *err)
{
    if (s->n + n > s->cap) {
        const size_t cap = 2 * (s->n + n) + 1024;
        int32_t *more = realloc(s->ids, cap * sizeof *more);
        if (!more) return lq_fail(err, LQ_ENOMEM, "no memory for %zu ids", cap);
        s->ids = more;
        s->cap = cap;
    }
    if (n) memcpy(s->ids + s->n, ids, n * sizeof *ids);
    s->n += n;
    return LQ_OK;
}

typedef struct {
    cal_stream *out;
    const tok_tokenizer *tok;
    const src_source *src;
    chat_format *chat; /* opened for the first conversation */
    bool want_eos;     /* before the next document */
} reader;

/* ---- documents ---- */
static bool is_eos(const arch_config *c, int32_t id)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    return false;
}

/* A document of the model's own language: EOS comes before the next one. */
static lq_status add_document(reader *r, const int32_t *ids, size_t n, lq_err *err)
{
    const arch_config *c = r->src ? src_config(r->src) : NULL;
    lq_status s = cal_stream_add(r->out, ids, n, err);
    if (n && c) r->want_eos = c->n_eos > 0 && !is_eos(c, ids[n - 1]);
    return s;
}

static lq_status add_list(reader *r, const cJSON *list, lq_err *err)
{
    lq_status st = LQ_OK;
    r->out->given = true;
    for (const cJSON *v = list->child; v && !st; v = v->next) {
        int64_t id;
        char found[64];
        if (!js_whole(v, 0, INT32_MAX, &id))
            return lq_fail(err, LQ_EFORMAT, "expected a token id, found %s", js_describe(found, v));
        const int32_t one = (int32_t)id;
        st = cal_stream_add(r->out, &one, 1, err);
    }
    return st;
}

static lq_status needs_tokenizer(const char *what, lq_err *err)
{
    return lq_fail(err, LQ_ENOENT,
                   "%s needs tokenizer.json, which the model lacks; {\"ids\": [...]} needs none",
                   what);
}

static lq_status add_text(reader *r, const char *text, lq_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    if (!r->tok) return needs_tokenizer("a text", err);
    lq_status st = tok_encode(r->tok, text, strlen(text), 0, &ids, &n, err);
    if (!st) st = add_document(r, ids, n, err);
    free(ids);
    return st;
}

static lq_status add_messages(reader *r, const cJSON *messages, const cJSON *tools, lq_err *err)
{
    char found[64];
    int32_t *ids = NULL;
    size_t n = 0;
    if (!cJSON_IsArray(messages))
        return lq_fail(err, LQ_EFORMAT, "messages: expected a list, found %s",
                       js_describe(found, messages));
    if (tools && !cJSON_IsArray(tools) && !cJSON_IsNull(tools))
        return lq_fail(err, LQ_EFORMAT, "tools: expected a list, found %s",
                       js_describe(found, tools));
    if (!r->tok) return needs_tokenizer("a conversation", err);
    lq_status st = LQ_OK;
    if (!r->chat && r->src) st = chat_open(&r->chat, r->src, r->tok, NULL, err);
    if (!st && !r->chat) st = lq_fail(err, LQ_ENOENT, "messages: no model");
    const chat_request q = { .messages = messages, .tools = cJSON_IsArray(tools) ? tools : NULL };
    if (!st) st = chat_encode(r->chat, &q, &ids, &n, err);
    if (!st) st = add_document(r, ids, n, err);
    free(ids);
    return st;
}

static lq_status add_line(reader *r, const char *line, size_t n, lq_err *err)
{
    cJSON *j = NULL;
    char found[64];
    lq_status st = js_parse(&j, line, n, MAX_LINE, 0, err);
    if (st) return st;
    if (r->want_eos) {
        const int32_t eos = src_config(r->src)->eos[0];
        st = cal_stream_add(r->out, &eos, 1, err);
        r->want_eos = false;
    }
    const cJSON *ids = cJSON_IsArray(j) ? j : js_get(j, "ids"), *text = js_get(j, "text");
    const cJSON *messages = js_get(j, "messages");
    if (st)
        ;
    else if (cJSON_IsArray(ids))
        st = add_list(r, ids, err);
    else if (messages)
        st = add_messages(r, messages, js_get(j, "tools"), err);
    else if (cJSON_IsString(text))
        st = add_text(r, text->valuestring, err);
    else
        st = lq_fail(err, LQ_EFORMAT,
                     "expected {\"text\": ...}, {\"messages\": [...]}, {\"ids\": [...]} or a list "
                     "of ids, found %s",
                     js_describe(found, j));
    cJSON_Delete(j);
    return st;
}

lq_status cal_read_jsonl(cal_stream *s, const char *text, size_t bytes, const tok_tokenizer *tok,
                         const src_source *src, lq_err *err)
{
    reader r = { .out = s, .tok = tok, .src = src };
    lq_status st = LQ_OK;
    size_t line = 1;
    for (size_t at = 0; at < bytes && !st; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t next = end ? (size_t)(end - text) + 1 : bytes;
        size_t len = next - at - (end ? 1 : 0);
        while (len && (text[at + len - 1] == '\r' || text[at + len - 1] == ' '))
            len--;
        if (len && (st = add_line(&r, text + at, len, err))) lq_wrap(err, st, "line %zu", line);
        at = next;
    }
    chat_close(r.chat);
    return st;
}
