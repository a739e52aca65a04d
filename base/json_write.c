/* base/json_write.c - see json_write.h. */
#include "base/json_write.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void jw_free(jw *w)
{
    free(w->p);
    *w = (jw){ 0 };
}

void jw_clear(jw *w)
{
    w->n = 0;
    w->comma = false;
}

static bool reserve(jw *w, size_t more)
{
    size_t need;
    if (w->oom || !lq_add(w->n, more, &need)) return !(w->oom = true);
    if (need <= w->cap) return true;
    size_t cap = w->cap ? w->cap : 256;
    while (cap < need)
        if (!lq_mul(cap, 2, &cap)) return !(w->oom = true);
    char *p = realloc(w->p, cap);
    if (!p) return !(w->oom = true);
    w->p = p;
    w->cap = cap;
    return true;
}

void jw_bytes(jw *w, const void *p, size_t n)
{
    if (!n || !reserve(w, n)) return;
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

void jw_text(jw *w, const char *s) { jw_bytes(w, s, strlen(s)); }

void jw_printf(jw *w, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0) jw_bytes(w, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static void comma(jw *w)
{
    if (w->comma) jw_bytes(w, ",", 1);
    w->comma = true;
}

void jw_open(jw *w, char bracket)
{
    comma(w);
    jw_bytes(w, &bracket, 1);
    w->comma = false;
}

void jw_close(jw *w, char bracket)
{
    jw_bytes(w, &bracket, 1);
    w->comma = true;
}

static void escaped(jw *w, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t from = 0, i = 0;
    while (i < n) {
        const char c = s[i];
        size_t len;
        const bool whole = lq_utf8_step((const uint8_t *)s + i, n - i, &len) == LQ_UTF8_CHAR;
        if (whole && c != '"' && c != '\\' && (uint8_t)c >= 0x20 && c != 0x7f) {
            i += len;
            continue;
        }
        jw_bytes(w, s + from, i - from);
        if (!whole) {
            jw_text(w, "\xef\xbf\xbd");
            i += len;
        } else {
            const char *short_form = strchr("\"\"\\\\\bb\ff\nn\rr\tt", c); /* pairs: byte, letter */
            char out[6] = { '\\', 'u', '0', '0', hex[(uint8_t)c >> 4], hex[c & 15] };
            if (c && short_form && ((uint8_t)c < 0x20 || c == '"' || c == '\\')) {
                out[1] = short_form[1];
                jw_bytes(w, out, 2);
            } else {
                jw_bytes(w, out, 6);
            }
            i++;
        }
        from = i;
    }
    jw_bytes(w, s + from, i - from);
}

void jw_str(jw *w, const char *s, size_t n)
{
    comma(w);
    jw_bytes(w, "\"", 1);
    escaped(w, s, n);
    jw_bytes(w, "\"", 1);
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
    jw_bytes(w, ":", 1);
    w->comma = false;
}

void jw_i64(jw *w, int64_t v)
{
    enum { LONGEST = 20 }; /* -9223372036854775808 */
    char digits[LONGEST];
    size_t at = LONGEST;
    uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        digits[--at] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (v < 0) digits[--at] = '-';
    comma(w);
    jw_bytes(w, digits + at, LONGEST - at);
}

void jw_f64(jw *w, double v)
{
    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    comma(w);
    jw_printf(w, "%.9g", v);
}

void jw_bool(jw *w, bool v)
{
    comma(w);
    jw_text(w, v ? "true" : "false");
}

void jw_null(jw *w)
{
    comma(w);
    jw_text(w, "null");
}

void jw_json(jw *w, const char *p, size_t n)
{
    if (!n) return;
    comma(w);
    jw_bytes(w, p, n);
}
