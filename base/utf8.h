/* base/utf8.h - UTF-8, read a code point at a time.
 *
 * Source: RFC 3629; Unicode chapter 3.9 (maximal subparts: what one U+FFFD stands for). */
#ifndef LLMQ_BASE_UTF8_H
#define LLMQ_BASE_UTF8_H

#include "base/base.h"

typedef enum {
    LQ_UTF8_CHAR,    /* a whole code point */
    LQ_UTF8_PARTIAL, /* the bytes end inside what may become one */
    LQ_UTF8_INVALID, /* a maximal subpart that no code point has */
} lq_utf8;

/* What the first bytes of s[n] (n >= 1) are, and how many of them. */
lq_utf8 lq_utf8_step(const uint8_t *s, size_t n, size_t *len);
/* The length of the code point that s[n] (n >= 1) begins with; 0: it begins with none. */
static inline size_t lq_utf8_len(const uint8_t *s, size_t n)
{
    size_t len;
    if (s[0] < 0x80) return 1;
    return lq_utf8_step(s, n, &len) == LQ_UTF8_CHAR ? len : 0;
}
/* The code point at s, which is valid; its length. */
uint32_t lq_utf8_get(const uint8_t *s, size_t *len);
/* cp, at most 10FFFF, as UTF-8; its length. */
size_t lq_utf8_put(uint8_t out[4], uint32_t cp);
/* bad (may be NULL): where the first byte is that is none of a code point's. */
bool lq_utf8_valid(const void *s, size_t n, size_t *bad);
/* How many of the first bytes of s[n] are ASCII, at least. */
size_t lq_ascii_run(const uint8_t *s, size_t n);

#endif
