/* runtime/tokenizer/tok_text.h - character classes and normal forms for the tokenizer; base64.
 *
 * Source: RFC 3629; Unicode chapter 3.9 (maximal subparts), annexes 15 and 44. */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_TEXT_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_TEXT_H

#include "base/buf.h"
#include "base/utf8.h"

/* Append s[n] with each invalid maximal subpart as U+FFFD. */
void tok_utf8_lossy(lq_buf *out, const uint8_t *s, size_t n);

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
lq_status tok_normal_form(lq_buf *out, const uint8_t *s, size_t n, tok_form form, lq_err *err);
void tok_lowercase(lq_buf *out, const uint8_t *s, size_t n);

#endif
