/* base/json_python.c - JSON as Python's json module reads and writes it: see json.h. */
#include "base/json.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- words that JSON lacks ---- */
/* Infinity becomes a number beyond all, NaN a string that no getter of numbers takes. */
static const struct {
    const char *word, *json;
} words[] = { { "Infinity", "1e999" }, { "NaN", "\"NaN\"" } };

static size_t word_at(const char *text, size_t n, size_t i)
{
    size_t w = 0;
    while (w < LQ_COUNT(words) && (n - i < strlen(words[w].word) ||
                                   memcmp(text + i, words[w].word, strlen(words[w].word)) != 0))
        w++;
    return w;
}

static void put_json(lq_buf *b, const char *text, size_t n)
{
    bool quoted = false;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        if (quoted && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            quoted = !quoted;
        } else if (!quoted) {
            const size_t w = word_at(text, n, i);
            if (w == LQ_COUNT(words)) continue;
            lq_buf_add(b, text + from, i - from);
            lq_buf_puts(b, words[w].json);
            i += strlen(words[w].word) - 1;
            from = i + 1;
        }
    }
    if (from < n) lq_buf_add(b, text + from, n - from);
}

/* ---- keys twice ---- */
typedef struct {
    cJSON *item;
    size_t at;
} member;

static int by_key(const void *a, const void *b)
{
    const member *x = a, *y = b;
    const int c = strcmp(x->item->string, y->item->string);
    return c ? c : x->at < y->at ? -1 : 1;
}

/* Of members of one name the last stays. */
static lq_status keep_last(cJSON *v, char twice[64], lq_err *err) /* depth was bounded */
{
    const size_t n = cJSON_IsObject(v) ? (size_t)cJSON_GetArraySize(v) : 0;
    member *m = malloc((n + 1) * sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "JSON: no memory for %zu keys", n);
    size_t i = 0;
    for (cJSON *c = v->child; c && n; c = c->next, i++)
        m[i] = (member){ c, i };
    qsort(m, n, sizeof *m, by_key);
    for (i = 1; i < n; i++) {
        if (strcmp(m[i - 1].item->string, m[i].item->string) != 0) continue;
        if (!twice[0]) snprintf(twice, 64, "%s", m[i].item->string);
        cJSON_Delete(cJSON_DetachItemViaPointer(v, m[i - 1].item));
    }
    free(m);
    lq_status s = LQ_OK;
    for (cJSON *c = v->child; c && !s; c = c->next)
        if (c->child) s = keep_last(c, twice, err);
    return s;
}

lq_status js_parse_python(cJSON **out, char twice[64], const char *text, size_t n, size_t max_bytes,
                          lq_err *err)
{
    lq_buf b = { .n = 0 };
    twice[0] = 0;
    *out = NULL;
    lq_status s = lq_refuse_stand_in(text, n, err);
    if (s) return s;
    put_json(&b, text, n);
    s = b.oom ? lq_fail(err, LQ_ENOMEM, "JSON: no memory for %zu bytes", n)
              : js_parse(out, b.p ? b.p : "", b.n, max_bytes, JS_SPELLED, err);
    lq_buf_free(&b);
    if (!s) s = keep_last(*out, twice, err);
    if (s) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return s;
}

lq_status js_parse_python_file(cJSON **out, char twice[64], const char *path, size_t max_bytes,
                               lq_err *err)
{
    char *text;
    size_t n;
    *out = NULL;
    twice[0] = 0;
    lq_status s = lq_read_file(&text, &n, path, max_bytes, err);
    if (s) return s;
    s = js_parse_python(out, twice, text, n, max_bytes, err);
    free(text);
    return s ? lq_wrap(err, s, "%s", path) : LQ_OK;
}

void js_keep_spelling(cJSON *tree)
{
    for (; tree; tree = tree->next) {
        if (cJSON_IsNumber(tree) && tree->valuestring) tree->type = cJSON_Raw;
        js_keep_spelling(tree->child);
    }
}
