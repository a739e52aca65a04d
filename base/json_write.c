/* base/json_write.c - see json_write.h. */
#include "base/json_write.h"

#include "base/utf8.h"

#include <time.h>

/* ---- single values ---- */
/* A byte that must not be in a string as it is. */
static void escape(lq_buf *b, char c)
{
    static const char hex[] = "0123456789abcdef", pairs[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    const char *pair = c ? strchr(pairs, c) : NULL; /* the byte, its letter */
    const char out[6] = { '\\', pair ? pair[1] : 'u', '0', '0', hex[(uint8_t)c >> 4], hex[c & 15] };
    lq_buf_add(b, out, pair ? 2 : 6);
}

/* The one place that escapes. each_byte: a U+FFFD for each byte that is no UTF-8, instead of one
 * for a maximal subpart. */
static void quoted(lq_buf *b, const char *s, size_t n, bool each_byte)
{
    size_t from = 0, i = 0, len;
    lq_buf_add(b, "\"", 1);
    for (; i < n; i += len) {
        const bool whole = lq_utf8_step((const uint8_t *)s + i, n - i, &len) == LQ_UTF8_CHAR;
        if (whole && s[i] != '"' && s[i] != '\\' && (uint8_t)s[i] >= 0x20) continue;
        lq_buf_add(b, s + from, i - from);
        if (whole)
            escape(b, s[i]);
        else
            lq_buf_puts(b, "\xef\xbf\xbd");
        if (each_byte) len = 1;
        from = i + len;
    }
    lq_buf_add(b, s + from, n - from);
    lq_buf_add(b, "\"", 1);
}

void js_put_str(lq_buf *b, const char *s) { quoted(b, s, strlen(s), true); }

void js_put_i64(lq_buf *b, int64_t v)
{
    enum { LONGEST = 20 }; /* -9223372036854775808 */
    char digits[LONGEST];
    size_t at = LONGEST;
    uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        digits[--at] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (v < 0) digits[--at] = '-';
    lq_buf_add(b, digits + at, LONGEST - at);
}

/* ---- the writer ---- */
void jw_free(jw *w)
{
    lq_buf_free(&w->b);
    w->comma = false;
}

void jw_clear(jw *w)
{
    lq_buf_clear(&w->b);
    w->comma = false;
}

static void comma(jw *w)
{
    if (w->comma) lq_buf_add(&w->b, ",", 1);
    w->comma = true;
}

void jw_open(jw *w, char bracket)
{
    comma(w);
    lq_buf_add(&w->b, &bracket, 1);
    w->comma = false;
}

void jw_close(jw *w, char bracket)
{
    lq_buf_add(&w->b, &bracket, 1);
    w->comma = true;
}

void jw_str(jw *w, const char *s, size_t n)
{
    comma(w);
    quoted(&w->b, s, n, false);
}

void jw_cstr(jw *w, const char *s)
{
    if (s)
        jw_str(w, s, strlen(s));
    else
        jw_null(w);
}

void jw_key(jw *w, const char *key)
{
    jw_cstr(w, key);
    lq_buf_add(&w->b, ":", 1);
    w->comma = false;
}

void jw_i64(jw *w, int64_t v)
{
    comma(w);
    js_put_i64(&w->b, v);
}

void jw_f64(jw *w, double v)
{
    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    comma(w);
    lq_buf_printf(&w->b, "%.9g", v);
}

void jw_bool(jw *w, bool v)
{
    comma(w);
    lq_buf_puts(&w->b, v ? "true" : "false");
}

void jw_null(jw *w)
{
    comma(w);
    lq_buf_puts(&w->b, "null");
}

void jw_json(jw *w, const char *p, size_t n)
{
    if (!n) return;
    comma(w);
    lq_buf_add(&w->b, p, n);
}

void jw_put_cstr(jw *w, const char *key, const char *v)
{
    jw_key(w, key);
    jw_cstr(w, v);
}

void jw_put_i64(jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_i64(w, v);
}

void jw_put_f64(jw *w, const char *key, double v)
{
    jw_key(w, key);
    jw_f64(w, v);
}

void jw_put_bool(jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_put_time(jw *w, const char *key, int64_t unix_seconds)
{
    const time_t t = (time_t)unix_seconds;
    struct tm tm;
    char text[32];
    const size_t n = gmtime_r(&t, &tm) ? strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm) : 0;
    jw_key(w, key);
    jw_str(w, text, n);
}
