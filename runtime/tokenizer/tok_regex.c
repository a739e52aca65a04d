/* runtime/tokenizer/tok_regex.c - PCRE2 behind tok_regex.h: compile, match, limits. */
#include "runtime/tokenizer/tok_regex.h"

#include "base/utf8.h"

#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MAX_PATTERN = 1 << 16,
    MATCH_LIMIT = 20000000,  /* steps of one match: some tens of milliseconds */
    HEAP_LIMIT_KIB = 262144, /* of the interpreter, when the JIT's stack does not do */
    JIT_STACK_MIN = 32 << 10,
    JIT_STACK_MAX = 4 << 20,
};

struct tok_pattern {
    pcre2_code *code; /* NULL: literal */
    size_t n;
    char s[]; /* the pattern as written, NUL-terminated */
};

struct tok_matcher {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
};

static lq_status compile(tok_pattern *p, lq_err *err)
{
    char *text = NULL;
    lq_status s = tok_regex_translate(&text, p->s, p->n, err);
    if (s) return s;
    int code = 0;
    PCRE2_SIZE off = 0;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (cc) {
        pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                &code, &off, cc);
        pcre2_compile_context_free(cc);
    }
    free(text);
    if (!p->code) {
        PCRE2_UCHAR msg[120] = "out of memory";
        if (cc) pcre2_get_error_message(code, msg, sizeof msg);
        return lq_fail(err, LQ_EFORMAT, "tokenizer: pattern '%.200s': %s", p->s, (const char *)msg);
    }
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without a JIT the interpreter runs */
    return LQ_OK;
}

lq_status tok_pattern_new(tok_pattern **out, const char *s, size_t n, bool regex, lq_err *err)
{
    *out = NULL;
    if (n > MAX_PATTERN)
        return lq_fail(err, LQ_EVALUE, "tokenizer: pattern: expected at most %d bytes, found %zu",
                       MAX_PATTERN, n);
    tok_pattern *p = calloc(1, sizeof *p + n + 1);
    if (!p) return lq_fail(err, LQ_ENOMEM, "tokenizer: out of memory");
    memcpy(p->s, s, n);
    p->n = n;
    lq_status st = regex ? compile(p, err) : LQ_OK;
    if (st)
        tok_pattern_free(p);
    else
        *out = p;
    return st;
}

void tok_pattern_free(tok_pattern *p)
{
    if (p) pcre2_code_free(p->code);
    free(p);
}

tok_matcher *tok_matcher_new(void)
{
    tok_matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->data = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
    m->ctx = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!m->data || !m->ctx) {
        tok_matcher_free(m);
        return NULL;
    }
    pcre2_set_match_limit(m->ctx, MATCH_LIMIT);
    pcre2_set_heap_limit(m->ctx, HEAP_LIMIT_KIB);
    if (m->stack) pcre2_jit_stack_assign(m->ctx, NULL, m->stack);
    return m;
}

void tok_matcher_free(tok_matcher *m)
{
    if (!m) return;
    pcre2_jit_stack_free(m->stack);
    pcre2_match_context_free(m->ctx);
    pcre2_match_data_free(m->data);
    free(m);
}

static lq_status find_literal(tok_scan *f, bool *found, size_t *start, size_t *end)
{
    const uint8_t *hit =
        f->p->n && f->n > f->at ? memmem(f->s + f->at, f->n - f->at, f->p->s, f->p->n) : NULL;
    *found = hit != NULL;
    if (!hit) return LQ_OK;
    *start = (size_t)(hit - f->s);
    *end = f->at = *start + f->p->n;
    return LQ_OK;
}

lq_status tok_scan_next(tok_scan *f, tok_matcher *m, bool *found, size_t *start, size_t *end,
                        lq_err *err)
{
    if (!f->p->code) return find_literal(f, found, start, end);
    for (*found = false; f->at <= f->n;) {
        int r = pcre2_match(f->p->code, f->s, f->n, f->at, PCRE2_NO_UTF_CHECK, m->data, m->ctx);
        if (r == PCRE2_ERROR_JIT_STACKLIMIT)
            r = pcre2_match(f->p->code, f->s, f->n, f->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            m->data, m->ctx);
        if (r == PCRE2_ERROR_NOMATCH) break;
        if (r < 0)
            return lq_fail(err, LQ_EVALUE,
                           "tokenizer: text too hard for the pattern '%.120s' at byte %zu (limit "
                           "%d of PCRE2)",
                           f->p->s, f->at, r);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
        size_t s = v[0], e = v[1] < v[0] ? v[0] : v[1]; /* \K in a lookahead may turn them round */
        if (s < f->at) s = f->at;
        if (e < s) e = s;
        if (s == e && f->any && f->last_end == e) {
            size_t len = 1;
            if (f->at < f->n) (void)lq_utf8_get(f->s + f->at, &len);
            f->at += len;
            continue;
        }
        f->at = f->last_end = e;
        f->any = *found = true;
        *start = s;
        *end = e;
        break;
    }
    return LQ_OK;
}
