/* calib/jsonl.c - JSON lines to one stream of ids. */
#include "calib/jsonl.h"

#include <stdlib.h>

#include "formats/json.h"

enum { MAX_LINE = 1 << 28 };

typedef struct {
    int32_t *ids;
    size_t n, cap;
} stream;

static lq_status add(stream *s, const int32_t *ids, size_t n, lq_err *err)
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

static lq_status add_list(stream *s, const cJSON *list, lq_err *err)
{
    lq_status st = LQ_OK;
    for (const cJSON *v = list->child; v && !st; v = v->next) {
        int64_t id;
        char found[64];
        if (!js_whole(v, 0, INT32_MAX, &id))
            return lq_fail(err, LQ_EFORMAT, "expected a token id, found %s", js_describe(found, v));
        const int32_t one = (int32_t)id;
        st = add(s, &one, 1, err);
    }
    return st;
}

static lq_status add_text(stream *s, const char *text, const tok_tokenizer *t, lq_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    if (!t)
        return lq_fail(err, LQ_ENOENT,
                       "a text needs tokenizer.json, which the model lacks; {\"ids\": [...]} needs "
                       "none");
    lq_status st = tok_encode(t, text, strlen(text), 0, &ids, &n, err);
    if (!st) st = add(s, ids, n, err);
    free(ids);
    return st;
}

static lq_status add_line(stream *s, const char *line, size_t n, const tok_tokenizer *t,
                          lq_err *err)
{
    cJSON *j = NULL;
    char found[64];
    lq_status st = js_parse(&j, line, n, MAX_LINE, 0, err);
    if (st) return st;
    const cJSON *ids = cJSON_IsArray(j) ? j : js_get(j, "ids"), *text = js_get(j, "text");
    if (cJSON_IsArray(ids))
        st = add_list(s, ids, err);
    else if (cJSON_IsString(text))
        st = add_text(s, text->valuestring, t, err);
    else
        st = lq_fail(err, LQ_EFORMAT,
                     "expected {\"text\": ...}, {\"ids\": [...]} or a list of ids, found %s",
                     js_describe(found, j));
    cJSON_Delete(j);
    return st;
}

lq_status cal_read_jsonl(int32_t **ids, int64_t *n, const char *text, size_t bytes,
                         const tok_tokenizer *t, lq_err *err)
{
    stream s = { 0 };
    lq_status st = LQ_OK;
    size_t line = 1;
    for (size_t at = 0; at < bytes && !st; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t next = end ? (size_t)(end - text) + 1 : bytes;
        size_t len = next - at - (end ? 1 : 0);
        while (len && (text[at + len - 1] == '\r' || text[at + len - 1] == ' '))
            len--;
        if (len && (st = add_line(&s, text + at, len, t, err))) lq_wrap(err, st, "line %zu", line);
        at = next;
    }
    if (st) {
        free(s.ids);
        s = (stream){ 0 };
    }
    *ids = s.ids;
    *n = (int64_t)s.n;
    return st;
}
