/* base/buf.c - see buf.h. */
#include "base/buf.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void lq_buf_free(lq_buf *b)
{
    free(b->p);
    *b = (lq_buf){ 0 };
}

void lq_buf_clear(lq_buf *b) { b->n = 0; }

/* Doubles, so that n additions copy O(n) bytes; a single large one gets what it needs. */
bool lq_buf_room(lq_buf *b, size_t more)
{
    enum { SMALLEST = 256 };
    if (b->oom) return false;
    if (b->cap - b->n >= more) return true;
    size_t need, cap;
    b->oom = true;
    if (!lq_add(b->n, more, &need) || !lq_mul(b->cap, 2, &cap)) return false;
    if (cap < need) cap = need;
    if (cap < SMALLEST) cap = SMALLEST;
    char *p = realloc(b->p, cap);
    if (!p) return false;
    b->p = p;
    b->cap = cap;
    b->oom = false;
    return true;
}

void lq_buf_add(lq_buf *b, const void *p, size_t n)
{
    if (!n || !lq_buf_room(b, n)) return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void lq_buf_puts(lq_buf *b, const char *s) { lq_buf_add(b, s, strlen(s)); }

void lq_buf_cp(lq_buf *b, uint32_t cp)
{
    uint8_t c[4];
    lq_buf_add(b, c, lq_utf8_put(c, cp));
}

void lq_buf_printf(lq_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    if (n > 0 && lq_buf_room(b, (size_t)n + 1)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}
