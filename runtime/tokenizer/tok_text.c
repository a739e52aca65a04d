/* runtime/tokenizer/tok_text.c - see tok_text.h. utf8proc gives properties, decompositions and composition;
 * the canonical ordering is ours, because utf8proc's takes quadratic time on a long run of marks.
 */
#include "runtime/tokenizer/tok_text.h"

#include <stdlib.h>
#include <utf8proc.h>

void tok_utf8_lossy(lq_buf *out, const uint8_t *s, size_t n)
{
    size_t from = 0, i = 0, len;
    for (; i < n; i += len) {
        if (s[i] < 0x80 && (len = lq_ascii_run(s + i, n - i)) > 0) continue;
        if (lq_utf8_step(s + i, n - i, &len) == LQ_UTF8_CHAR) continue;
        lq_buf_add(out, s + from, i - from);
        lq_buf_add(out, "\xEF\xBF\xBD", 3);
        from = i + len;
    }
    lq_buf_add(out, s + from, n - from);
}

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool tok_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool tok_is_numeric(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
           tok_is_late_number(cp);
}

bool tok_is_punct(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    utf8proc_category_t c = category(cp);
    if (cp == 0x166D || cp == 0x111C9) return true; /* were, in Unicode 8.0 */
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO && !tok_newer_than(cp, 8);
}

bool tok_is_mark(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    if (cp == 0x1CF2 || cp == 0x1CF3) return true; /* were, in Unicode 9.0 */
    return (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME) &&
           cp != 0x111C9 && !tok_newer_than(cp, 9);
}

bool tok_is_nonspacing(uint32_t cp)
{
    if (cp == 0x1734) return true; /* was, in Unicode 8.0 */
    return category(cp) == UTF8PROC_CATEGORY_MN && cp != 0x111C9 && !tok_newer_than(cp, 8);
}

bool tok_is_other(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return (c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO) &&
           !tok_newer_than(cp, 8);
}

/* Sort key in the high half, so that a stable order is plain order of (class, position). */
typedef struct {
    uint32_t ccc, pos;
    int32_t cp;
} mark;

static int by_class(const void *a, const void *b)
{
    const mark *x = a, *y = b;
    if (x->ccc != y->ccc) return x->ccc < y->ccc ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static uint32_t combining(int32_t cp)
{
    const uint32_t class = (uint32_t)utf8proc_get_property(cp)->combining_class;
    return class && tok_newer_than((uint32_t)cp, 9) ? 0 : class;
}

/* Canonical ordering: each run of non-starters by combining class, stable. */
static bool order_marks(int32_t *cp, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (combining(cp[i]) == 0) continue;
        size_t e = i;
        bool sorted = true;
        for (; e < n && combining(cp[e]) != 0; e++)
            if (e > i && combining(cp[e - 1]) > combining(cp[e])) sorted = false;
        if (!sorted) {
            mark *m = malloc((e - i) * sizeof *m);
            if (!m) return false;
            for (size_t k = i; k < e; k++)
                m[k - i] = (mark){ combining(cp[k]), (uint32_t)(k - i), cp[k] };
            qsort(m, e - i, sizeof *m, by_class);
            for (size_t k = i; k < e; k++)
                cp[k] = m[k - i].cp;
            free(m);
        }
        i = e - 1;
    }
    return true;
}

lq_status tok_normal_form(lq_buf *out, const uint8_t *s, size_t n, tok_form form, lq_err *err)
{
    size_t ascii = 0;
    while (ascii < n && s[ascii] < 0x80)
        ascii++;
    if (ascii == n) { /* every form of ASCII is itself */
        lq_buf_add(out, s, n);
        return LQ_OK;
    }
    const utf8proc_option_t opts =
        (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                            (form == TOK_NFKD || form == TOK_NFKC ? UTF8PROC_COMPAT : 0));
    lq_status st = LQ_OK;
    lq_buf cps = { 0 }; /* int32 code points */
    for (size_t i = 0, len; i < n; i += len) {
        enum { LONGEST = 32 }; /* U+FDFA becomes 18 */
        int32_t cp = (int32_t)lq_utf8_get(s + i, &len);
        int last = 0;
        if (!lq_buf_room(&cps, LONGEST * sizeof(int32_t))) break;
        utf8proc_int32_t d[LONGEST];
        utf8proc_ssize_t k = tok_newer_than((uint32_t)cp, 9)
                                 ? -1
                                 : utf8proc_decompose_char(cp, d, LONGEST, opts, &last);
        if (k < 0 || k > LONGEST) d[0] = cp, k = 1; /* unassigned: stays */
        lq_buf_add(&cps, d, (size_t)k * sizeof *d);
    }
    utf8proc_int32_t *cp = (utf8proc_int32_t *)(void *)cps.u;
    size_t n_cp = cps.n / sizeof *cp;
    if (cps.oom || !order_marks(cp, n_cp)) {
        st = lq_fail(err, LQ_ENOMEM, "tokenizer: out of memory");
        goto done;
    }
    if (form == TOK_NFC || form == TOK_NFKC) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(
            cp, (utf8proc_ssize_t)n_cp,
            (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE | (opts & UTF8PROC_COMPAT)));
        if (k >= 0) n_cp = (size_t)k;
    }
    for (size_t i = 0; i < n_cp; i++)
        lq_buf_cp(out, (uint32_t)cp[i]);
done:
    lq_buf_free(&cps);
    return st;
}

void tok_lowercase(lq_buf *out, const uint8_t *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = lq_utf8_get(s + i, &len);
        if (cp == 0x130)
            lq_buf_add(out, "i\xCC\x87", 3); /* the one lower case of two */
        else
            lq_buf_cp(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)tok_late_lower(cp)));
    }
}
