/* base/buf.h - bytes that grow (prefix lq_buf_).
 *
 * A zeroed lq_buf is empty and ready. Out of memory is remembered in `oom`: what was there stays,
 * and later additions do nothing, so one look at the end is enough. */
#ifndef LLMQ_BASE_BUF_H
#define LLMQ_BASE_BUF_H

#include "base/base.h"

typedef struct {
    union {
        char *p;    /* n bytes, not NUL-terminated; free() it, or lq_buf_free */
        uint8_t *u; /* the same pointer, for who reads bytes */
    };
    size_t n, cap;
    bool oom;
} lq_buf;

void lq_buf_free(lq_buf *b);  /* leaves it empty and ready */
void lq_buf_clear(lq_buf *b); /* empties it; keeps the memory and `oom` */

/* Room for `more` bytes after n, for who writes there and then adds to n. False: out of memory. */
bool lq_buf_room(lq_buf *b, size_t more);
void lq_buf_add(lq_buf *b, const void *p, size_t n);
void lq_buf_puts(lq_buf *b, const char *s); /* without its NUL */
void lq_buf_cp(lq_buf *b, uint32_t cp);     /* one code point, at most 10FFFF, as UTF-8 */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void lq_buf_printf(lq_buf *b, const char *fmt, ...);

#endif
