/* tests/fuzz/fuzz_sse.c - any bytes as the text of an answer, cut into pieces where the input says:
 * the events that a stream would have are one line each, valid JSON, and their texts together are
 * the text with what is no UTF-8 replaced. */
#include "base/json.h"
#include "base/json_write.h"
#include "base/utf8.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* "data: {"text": ..., "n": i}", blank line; back into `out`. */
static void round_trip(lq_buf *out, const char *s, size_t n, int64_t i)
{
    jw w = { 0 };
    cJSON *doc = NULL;
    lq_buf_puts(&w.b, "data: ");
    jw_open(&w, '{');
    jw_key(&w, "text");
    jw_str(&w, s, n);
    jw_key(&w, "n");
    jw_i64(&w, i);
    jw_close(&w, '}');
    lq_buf_puts(&w.b, "\n\n");
    if (w.b.oom) abort();
    if (memchr(w.b.p, '\n', w.b.n) != w.b.p + w.b.n - 2 || memchr(w.b.p, '\r', w.b.n)) abort();
    if (js_parse(&doc, w.b.p + 6, w.b.n - 8, 1 << 24, JS_UNIQUE, NULL)) abort();
    const char *text = cJSON_GetStringValue(js_get(doc, "text"));
    if (!text) abort();
    lq_buf_puts(out, text);
    cJSON_Delete(doc);
    jw_free(&w);
}

/* What it must be: each maximal subpart that is no UTF-8 is U+FFFD. */
static void replace(lq_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len;
        const lq_utf8 what = lq_utf8_step((const uint8_t *)s + i, n - i, &len);
        if (!len || len > n - i) abort();
        if (what == LQ_UTF8_CHAR)
            lq_buf_add(out, s + i, len);
        else
            lq_buf_puts(out, "\xef\xbf\xbd");
        i += len;
    }
}

/* The first byte is the pieces' length; a NUL ends the text, as a C string's reader sees it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    const char *text = (const char *)data + 1;
    const char *end = memchr(text, 0, n - 1);
    const size_t length = end ? (size_t)(end - text) : n - 1, piece = (size_t)(data[0] % 16) + 1;
    lq_buf got = { 0 }, want = { 0 };
    for (size_t i = 0; i < length; i += piece) {
        const size_t k = length - i < piece ? length - i : piece;
        round_trip(&got, text + i, k, (int64_t)i);
        replace(&want, text + i, k);
    }
    if (got.n != want.n || (got.n && memcmp(got.p, want.p, got.n) != 0)) abort();
    lq_buf_free(&got);
    lq_buf_free(&want);
    return 0;
}
