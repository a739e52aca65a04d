/* runtime/tokenizer/tok_regex.h - the patterns of tokenizer.json: plain strings, or regular expressions in
 * Oniguruma's dialect (Ruby syntax, UTF-8), translated to PCRE2's and compiled with its JIT.
 *
 * What differs is rewritten: \s \w \d \h \b and POSIX brackets as Unicode properties, nested and
 * intersected classes, (?m), {,n}, ^ and $ as line anchors, long property names. What cannot be
 * (absent operators, subexpression calls, conditionals, ...) is LQ_EUNSUPPORTED by name.
 *
 * Source: Oniguruma doc/RE and doc/SYNTAX.md; pcre2pattern(3). */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_REGEX_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_REGEX_H

#include "runtime/tokenizer/tok_text.h"

typedef struct tok_pattern tok_pattern;
/* What one thread needs to match; reused for any number of patterns. */
typedef struct tok_matcher tok_matcher;

/* s[n] is copied; `regex` false: the string itself is what matches. */
lq_status tok_pattern_new(tok_pattern **p, const char *s, size_t n, bool regex, lq_err *err);
void tok_pattern_free(tok_pattern *p); /* NULL allowed */

tok_matcher *tok_matcher_new(void); /* NULL: out of memory */
void tok_matcher_free(tok_matcher *m);

/* Walk the matches of p in valid UTF-8 s[n] from left to right; an empty match right after the
 * last one is passed over. */
typedef struct {
    const tok_pattern *p;
    const uint8_t *s;
    size_t n, at, last_end;
    bool any;
} tok_scan;
static inline tok_scan tok_scan_all(const tok_pattern *p, const uint8_t *s, size_t n)
{
    return (tok_scan){ .p = p, .s = s, .n = n };
}
/* *found false: no more. LQ_EVALUE: the text is too hard for the pattern (match limit). */
lq_status tok_scan_next(tok_scan *f, tok_matcher *m, bool *found, size_t *start, size_t *end,
                        lq_err *err);

/* The translation alone, for tests; malloc'd, NUL-terminated. */
lq_status tok_regex_translate(char **out, const char *s, size_t n, lq_err *err);

#endif
