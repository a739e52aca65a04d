/* runtime/tokenizer/tok_text.h - character classes and normal forms for the tokenizer; byte buffers.
 *
 * Source: RFC 3629; Unicode chapter 3.9 (maximal subparts), annexes 15 and 44. */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_TEXT_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_TEXT_H

#include "base/base.h"

#include "base/utf8.h"

/* ---- growing bytes; a failed allocation is remembered and later pushes do nothing ---- */
typedef struct {
    uint8_t *p;
    size_t n, cap;
    bool oom;
} tok_buf;
bool tok_buf_room(tok_buf *b, size_t more); /* false: out of memory */
void tok_buf_add(tok_buf *b, const void *s, size_t n);
void tok_buf_cp(tok_buf *b, uint32_t cp); /* one code point as UTF-8 */
void tok_buf_free(tok_buf *b);

/* Append what base64 text stands for; false: it is none (RFC 4648, padded). */
bool tok_base64(tok_buf *out, const char *s, size_t n);

/* Append s[n] with each invalid maximal subpart as U+FFFD. */
void tok_utf8_lossy(tok_buf *out, const uint8_t *s, size_t n);

/* ---- classes ---- */
bool tok_is_space(uint32_t cp);      /* White_Space */
bool tok_is_numeric(uint32_t cp);    /* Nd, Nl, No */
bool tok_is_punct(uint32_t cp);      /* P*, and ASCII's punctuation and symbols */
bool tok_is_mark(uint32_t cp);       /* Mn, Mc, Me */
bool tok_is_nonspacing(uint32_t cp); /* Mn */
bool tok_is_other(uint32_t cp);      /* Cc, Cf, Co: controls and what has no shape */

/* ---- Unicode's versions (tok_unicode.c) ---- */
/* Of marks, punctuation, controls and characters with a decomposition: whether they came after
 * Unicode `version` (8 or 9). */
bool tok_newer_than(uint32_t cp, uint32_t version);
bool tok_is_late_number(uint32_t cp);
uint32_t tok_late_lower(uint32_t cp); /* cp itself: has none, or an old one */

/* ---- normal forms of valid UTF-8; linear but for the sorting of runs of marks ---- */
typedef enum { TOK_NFD, TOK_NFC, TOK_NFKD, TOK_NFKC } tok_form;
lq_status tok_normal_form(tok_buf *out, const uint8_t *s, size_t n, tok_form form, lq_err *err);
void tok_lowercase(tok_buf *out, const uint8_t *s, size_t n);

#endif
