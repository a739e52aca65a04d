/* runtime/chat/tmpl_methods.c - methods of str, dict and list that do not change their value. */
#include "runtime/chat/tmpl_int.h"

#include "runtime/tokenizer/tok_text.h"

#include <utf8proc.h>

/* ---- code points ---- */
static uint32_t next_cp(tv s, size_t *i)
{
    size_t len;
    uint32_t cp = lq_utf8_get((const uint8_t *)s.u.s.p + *i, &len);
    *i += len;
    return cp;
}

static void add_cp(tp_run *r, tp_text *t, uint32_t cp)
{
    uint8_t b[8];
    tp_add(r, t, (const char *)b, (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, b));
}

static bool space_cp(uint32_t cp) { return tok_is_space(cp) || (cp >= 0x1C && cp <= 0x1F); }
static bool is_upper_cp(uint32_t cp)
{
    return utf8proc_tolower((utf8proc_int32_t)cp) != (utf8proc_int32_t)cp;
}
static bool is_lower_cp(uint32_t cp)
{
    return cp == 0xDF || utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LL;
}

/* Passed over in the search for letters around a sigma. */
static bool is_ignorable_cp(uint32_t cp)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2019 ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

static void add_lower(tp_run *r, tp_text *t, uint32_t cp)
{
    if (cp == 0x130)
        tp_puts(r, t, "i\xCC\x87"); /* the one letter whose lower case is two */
    else
        add_cp(r, t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static void add_upper(tp_run *r, tp_text *t, uint32_t cp, bool title)
{
    const char *several = tp_long_case(cp, title);
    if (several)
        tp_puts(r, t, several);
    else
        add_cp(r, t,
               (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp)
                                : utf8proc_toupper((utf8proc_int32_t)cp)));
}

/* ---- case ---- */
static tv s_upper(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;)
        add_upper(r, &t, next_cp(s, &i), false);
    return tv_derived(&t, s);
}

/* Whether the capital sigma that ends at i ends its word (marks and the like do not count). */
static bool is_final_sigma(tv s, size_t i)
{
    bool before = false, after = false;
    for (size_t c = i - 2; c > 0 && !before;) {
        do
            c--;
        while (c > 0 && ((uint8_t)s.u.s.p[c] & 0xC0) == 0x80);
        size_t k = c;
        uint32_t cp = next_cp(s, &k);
        before = is_upper_cp(cp) || is_lower_cp(cp);
        if (!before && !is_ignorable_cp(cp)) break;
    }
    while (i < s.u.s.n && !after) {
        uint32_t cp = next_cp(s, &i);
        after = is_upper_cp(cp) || is_lower_cp(cp);
        if (!after && !is_ignorable_cp(cp)) break;
    }
    return before && !after;
}

static tv s_lower(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp = next_cp(s, &i);
        if (cp == 0x3A3 && is_final_sigma(s, i))
            add_cp(r, &t, 0x3C2);
        else
            add_lower(r, &t, cp);
    }
    return tv_derived(&t, s);
}

static tv s_casefold(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;) {
        utf8proc_int32_t out[8];
        int last = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)next_cp(s, &i), out, 8,
                                                     UTF8PROC_CASEFOLD, &last);
        for (utf8proc_ssize_t k = 0; k < n && k < 8; k++)
            add_cp(r, &t, (uint32_t)out[k]);
    }
    return tv_derived(&t, s);
}

static tv s_capitalize(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;) {
        if (i == 0)
            add_upper(r, &t, next_cp(s, &i), true);
        else
            add_lower(r, &t, next_cp(s, &i));
    }
    return tv_derived(&t, s);
}

static tv s_title(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    bool inside = false; /* behind a letter that has a case */
    (void)a;
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp = next_cp(s, &i);
        if (inside)
            add_lower(r, &t, cp);
        else
            add_upper(r, &t, cp, true);
        inside = is_upper_cp(cp) || is_lower_cp(cp);
    }
    return tv_derived(&t, s);
}

static tv s_swapcase(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp = next_cp(s, &i);
        if (is_upper_cp(cp))
            add_lower(r, &t, cp);
        else
            add_upper(r, &t, cp, false);
    }
    return tv_derived(&t, s);
}

/* ---- questions about all characters ---- */
typedef bool (*cp_class)(uint32_t cp);

static tv all_are(tv s, cp_class is)
{
    bool yes = s.u.s.n > 0;
    for (size_t i = 0; i < s.u.s.n && yes;)
        yes = is(next_cp(s, &i));
    return tv_bool(yes);
}

static bool is_alpha_cp(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
static bool is_alnum_cp(uint32_t cp) { return is_alpha_cp(cp) || tok_is_numeric(cp); }

static tv s_isnumeric(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, tok_is_numeric);
}
static tv s_isalpha(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, is_alpha_cp);
}
static tv s_isalnum(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, is_alnum_cp);
}
static bool is_digit_cp(uint32_t cp)
{
    return tp_is_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468);
}
static bool is_ascii_cp(uint32_t cp) { return cp < 128; }

static tv s_isdigit(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, is_digit_cp);
}
static tv s_isdecimal(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, tp_is_decimal);
}
static tv s_isascii(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, s.u.s.n ? all_are(s, is_ascii_cp) : tv_bool(true);
}
static tv s_isprintable(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, s.u.s.n ? all_are(s, tv_printable) : tv_bool(true);
}
static tv s_isidentifier(tp_run *r, tv s, const tp_args *a)
{
    (void)r, (void)a;
    bool yes = s.u.s.n > 0;
    for (size_t i = 0; yes && i < s.u.s.n;) {
        bool first = i == 0;
        uint32_t cp = next_cp(s, &i);
        yes = cp == '_' || is_alpha_cp(cp) || (!first && tp_is_decimal(cp));
    }
    return tv_bool(yes);
}

static tv s_isspace(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, space_cp);
}

/* Some letter has the case and none the other. */
static tv has_case(tv s, cp_class want, cp_class other)
{
    bool any = false, none = true;
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp = next_cp(s, &i);
        any = any || want(cp);
        none = none && !other(cp);
    }
    return tv_bool(any && none);
}
static tv s_isupper(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, has_case(s, is_upper_cp, is_lower_cp);
}
static tv s_islower(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, has_case(s, is_lower_cp, is_upper_cp);
}

/* Upper case begins every word and stands nowhere else. */
static tv s_istitle(tp_run *r, tv s, const tp_args *a)
{
    (void)r, (void)a;
    bool inside = false, any = false;
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp = next_cp(s, &i);
        bool upper = is_upper_cp(cp), lower = is_lower_cp(cp);
        if ((upper && inside) || (lower && !inside)) return tv_bool(false);
        inside = upper || lower;
        any = any || inside;
    }
    return tv_bool(any);
}

/* ---- strip ---- */
static bool in_set(tv chars, uint32_t cp)
{
    if (chars.k == TV_NONE) return space_cp(cp);
    for (size_t i = 0; i < chars.u.s.n;)
        if (next_cp(chars, &i) == cp) return true;
    return false;
}

static tv strip(tp_run *r, tv s, const tp_args *a, bool left, bool right)
{
    tv chars = a->n ? a->v[0] : tp_arg(a, 0, "chars", tv_none());
    size_t from = 0, to = s.u.s.n;
    if (chars.k != TV_NONE) tp_need_str(r, chars, "strip");
    tp_charge(r, s.u.s.n / 16 + (chars.k == TV_STR ? chars.u.s.n : 0));
    for (size_t i = from; left && from < to; from = i)
        if (!in_set(chars, next_cp(s, &i))) break;
    while (right && to > from) {
        size_t c = to - 1;
        while (c > from && ((uint8_t)s.u.s.p[c] & 0xC0) == 0x80)
            c--;
        size_t i = c;
        if (!in_set(chars, next_cp(s, &i))) break;
        to = c;
    }
    return tv_sub(s, from, to - from);
}
static tv s_strip(tp_run *r, tv s, const tp_args *a) { return strip(r, s, a, true, true); }
static tv s_lstrip(tp_run *r, tv s, const tp_args *a) { return strip(r, s, a, true, false); }
static tv s_rstrip(tp_run *r, tv s, const tp_args *a) { return strip(r, s, a, false, true); }

/* ---- find ---- */
static const char *find_in(tp_run *r, tv s, size_t from, tv what)
{
    tp_charge(r, (s.u.s.n - from) / 16);
    return memmem(s.u.s.p + from, s.u.s.n - from, what.u.s.p, what.u.s.n);
}

static const char *find_last(tp_run *r, tv s, tv what)
{
    tp_charge(r, s.u.s.n / 4);
    for (size_t i = s.u.s.n + 1; i-- > 0;)
        if (s.u.s.n - i >= what.u.s.n && memcmp(s.u.s.p + i, what.u.s.p, what.u.s.n) == 0)
            return s.u.s.p + i;
    return NULL;
}

static tv text_arg(tp_run *r, const tp_args *a, size_t i, const char *what)
{
    return tp_need_str(r, a->n > i ? a->v[i] : tv_none(), what);
}

/* The part of s that the arguments at and behind `at` (start, stop) leave; *skipped: the code
 * points before it. */
static tv part_of(tp_run *r, tv s, const tp_args *a, size_t at, int64_t *skipped)
{
    tv from = a->n > at ? a->v[at] : tv_none(), to = a->n > at + 1 ? a->v[at + 1] : tv_none();
    *skipped = 0;
    if (from.k == TV_NONE && to.k == TV_NONE) return s;
    int64_t n = tv_len(r, s), i = from.k == TV_NONE ? 0 : tp_need_int(r, from, "start");
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    *skipped = i;
    return i > n ? tv_none() : tv_slice(r, s, tv_int(i), to, tv_none());
}

static tv place(tp_run *r, tv s, const tp_args *a, bool last, bool must, const char *what)
{
    tv needle = text_arg(r, a, 0, what);
    int64_t skipped;
    tv in = part_of(r, s, a, 1, &skipped);
    const char *hit = NULL;
    if (in.k == TV_STR) hit = last ? find_last(r, in, needle) : find_in(r, in, 0, needle);
    if (!hit && must) tp_fail(&r->base, LQ_EVALUE, "substring not found");
    if (!hit) return tv_int(-1);
    return tv_int(skipped + (int64_t)tv_chars(tv_sub(in, 0, (size_t)(hit - in.u.s.p))));
}

static tv s_find(tp_run *r, tv s, const tp_args *a) { return place(r, s, a, false, false, "find"); }
static tv s_rfind(tp_run *r, tv s, const tp_args *a)
{
    return place(r, s, a, true, false, "rfind");
}
static tv s_index(tp_run *r, tv s, const tp_args *a)
{
    return place(r, s, a, false, true, "index");
}
static tv s_rindex(tp_run *r, tv s, const tp_args *a)
{
    return place(r, s, a, true, true, "rindex");
}

static tv s_count(tp_run *r, tv s, const tp_args *a)
{
    tv what = text_arg(r, a, 0, "count");
    int64_t n = 0, skipped;
    s = part_of(r, s, a, 1, &skipped);
    if (s.k != TV_STR) return tv_int(0);
    if (what.u.s.n == 0) return tv_int((int64_t)tv_chars(s) + 1);
    for (const char *hit; (hit = memmem(s.u.s.p, s.u.s.n, what.u.s.p, what.u.s.n)); n++) {
        size_t skip = (size_t)(hit - s.u.s.p) + what.u.s.n;
        tp_charge(r, skip / 16);
        s = tv_sub(s, skip, s.u.s.n - skip);
    }
    return tv_int(n);
}

static bool begins(tv s, tv p)
{
    return s.u.s.n >= p.u.s.n && memcmp(s.u.s.p, p.u.s.p, p.u.s.n) == 0;
}
static bool ends(tv s, tv p)
{
    return s.u.s.n >= p.u.s.n && memcmp(s.u.s.p + s.u.s.n - p.u.s.n, p.u.s.p, p.u.s.n) == 0;
}

static tv any_of(tp_run *r, tv s, const tp_args *a, bool (*is)(tv, tv), const char *what)
{
    tv p = a->n ? a->v[0] : tv_none();
    int64_t skipped;
    s = part_of(r, s, a, 1, &skipped);
    if (s.k != TV_STR) return tv_bool(false);
    if (p.k != TV_TUPLE) return tv_bool(is(s, tp_need_str(r, p, what)));
    for (size_t i = 0; i < p.u.list->n; i++)
        if (is(s, tp_need_str(r, p.u.list->v[i], what))) return tv_bool(true);
    return tv_bool(false);
}
static tv s_startswith(tp_run *r, tv s, const tp_args *a)
{
    return any_of(r, s, a, begins, "startswith");
}
static tv s_endswith(tp_run *r, tv s, const tp_args *a)
{
    return any_of(r, s, a, ends, "endswith");
}

static tv s_removeprefix(tp_run *r, tv s, const tp_args *a)
{
    tv p = text_arg(r, a, 0, "removeprefix");
    return begins(s, p) ? tv_sub(s, p.u.s.n, s.u.s.n - p.u.s.n) : s;
}
static tv s_removesuffix(tp_run *r, tv s, const tp_args *a)
{
    tv p = text_arg(r, a, 0, "removesuffix");
    return ends(s, p) ? tv_sub(s, 0, s.u.s.n - p.u.s.n) : s;
}

/* ---- cut and join ---- */
static tv s_replace(tp_run *r, tv s, const tp_args *a)
{
    tv old = tp_need_str(r, tp_arg(a, 0, "old", tv_none()), "replace");
    tv new = tp_need_str(r, tp_arg(a, 1, "new", tv_none()), "replace"),
       limit = tp_arg(a, 2, "count", tv_none());
    int64_t n = limit.k == TV_NONE ? -1 : tp_need_int(r, limit, "replace");
    tp_text t = { 0 };
    size_t from = 0;
    for (; n != 0; n--) {
        if (old.u.s.n == 0) { /* before every character and at the end */
            tp_add_str(r, &t, new);
            size_t i = from;
            if (from >= s.u.s.n) break;
            next_cp(s, &i);
            tp_add_str(r, &t, tv_sub(s, from, i - from));
            from = i;
            continue;
        }
        const char *hit = find_in(r, s, from, old);
        if (!hit) break;
        size_t at = (size_t)(hit - s.u.s.p);
        tp_add_str(r, &t, tv_sub(s, from, at - from));
        tp_add_str(r, &t, new);
        from = at + old.u.s.n;
    }
    tp_add_str(r, &t, tv_sub(s, from, s.u.s.n - from));
    return tv_text(&t);
}

/* At runs of white space, which do not make empty parts. */
static tv split_space(tp_run *r, tv s, int64_t limit)
{
    tv out = tv_new_list(r, TV_LIST);
    size_t i = 0, e;
    for (;;) {
        for (e = i; i < s.u.s.n; i = e)
            if (!space_cp(next_cp(s, &e))) break;
        if (i >= s.u.s.n) return out;
        if (limit-- == 0) {
            tv_push(r, out, tv_sub(s, i, s.u.s.n - i));
            return out;
        }
        size_t from = i;
        for (e = i; i < s.u.s.n; i = e)
            if (space_cp(next_cp(s, &e))) break;
        tv_push(r, out, tv_sub(s, from, i - from));
    }
}

static tv reversed(tp_run *r, tv list)
{
    return tv_slice(r, list, tv_none(), tv_none(), tv_int(-1));
}

static size_t before_space(tv s, size_t to, bool space)
{
    while (to > 0) {
        size_t c = to - 1, i;
        while (c > 0 && ((uint8_t)s.u.s.p[c] & 0xC0) == 0x80)
            c--;
        i = c;
        if (space_cp(next_cp(s, &i)) != space) break;
        to = c;
    }
    return to;
}

static tv rsplit_space(tp_run *r, tv s, int64_t limit)
{
    tv out = tv_new_list(r, TV_LIST);
    for (size_t to = s.u.s.n; (to = before_space(s, to, true)) > 0;) {
        size_t from = limit-- == 0 ? 0 : before_space(s, to, false);
        tv_push(r, out, tv_sub(s, from, to - from));
        to = from;
    }
    return reversed(r, out);
}

static tv split(tp_run *r, tv s, const tp_args *a, bool right)
{
    tv sep = tp_arg(a, 0, "sep", tv_none()), max = tp_arg(a, 1, "maxsplit", tv_int(-1));
    int64_t limit = tp_need_int(r, max, "split");
    if (sep.k == TV_NONE && right && limit >= 0) return rsplit_space(r, s, limit);
    if (sep.k == TV_NONE) return split_space(r, s, limit);
    tp_need_str(r, sep, "split");
    if (sep.u.s.n == 0) tp_fail(&r->base, LQ_EVALUE, "empty separator");
    tv out = tv_new_list(r, TV_LIST);
    if (right && limit >= 0) { /* from the end, then turned round */
        for (const char *hit; limit > 0 && (hit = find_last(r, s, sep)); limit--) {
            size_t at = (size_t)(hit - s.u.s.p), after = at + sep.u.s.n;
            tv_push(r, out, tv_sub(s, after, s.u.s.n - after));
            s = tv_sub(s, 0, at);
        }
        tv_push(r, out, s);
        return reversed(r, out);
    }
    size_t from = 0;
    for (const char *hit; limit != 0 && (hit = find_in(r, s, from, sep)); limit--) {
        size_t at = (size_t)(hit - s.u.s.p);
        tv_push(r, out, tv_sub(s, from, at - from));
        from = at + sep.u.s.n;
    }
    tv_push(r, out, tv_sub(s, from, s.u.s.n - from));
    return out;
}
static tv s_split(tp_run *r, tv s, const tp_args *a) { return split(r, s, a, false); }
static tv s_rsplit(tp_run *r, tv s, const tp_args *a) { return split(r, s, a, true); }

static tv s_splitlines(tp_run *r, tv s, const tp_args *a)
{
    bool keep = tv_true(tp_arg(a, 0, "keepends", tv_bool(false)));
    tv out = tv_new_list(r, TV_LIST);
    for (size_t from = 0, i = 0; i < s.u.s.n;) {
        size_t at = i;
        uint32_t cp = next_cp(s, &i);
        bool end = (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
                   cp == 0x2028 || cp == 0x2029;
        if (!end && i < s.u.s.n) continue;
        if (cp == '\r' && i < s.u.s.n && s.u.s.p[i] == '\n') i++;
        tv_push(r, out, tv_sub(s, from, (end && !keep ? at : i) - from));
        from = i;
    }
    return out;
}

static tv partition(tp_run *r, tv s, const tp_args *a, bool right)
{
    tv sep = text_arg(r, a, 0, "partition"), out = tv_new_list(r, TV_TUPLE), empty = tv_cstr("");
    if (sep.u.s.n == 0) tp_fail(&r->base, LQ_EVALUE, "empty separator");
    const char *hit = right ? find_last(r, s, sep) : find_in(r, s, 0, sep);
    size_t at = hit ? (size_t)(hit - s.u.s.p) : s.u.s.n, after = hit ? at + sep.u.s.n : at;
    tv head = tv_sub(s, 0, at), tail = tv_sub(s, after, s.u.s.n - after);
    tv_push(r, out, !hit && right ? empty : head);
    tv_push(r, out, hit ? sep : empty);
    tv_push(r, out, !hit && right ? head : tail);
    return out;
}
static tv s_partition(tp_run *r, tv s, const tp_args *a) { return partition(r, s, a, false); }
static tv s_rpartition(tp_run *r, tv s, const tp_args *a) { return partition(r, s, a, true); }

static tv s_join(tp_run *r, tv s, const tp_args *a)
{
    tv all = tv_iter(r, a->n ? a->v[0] : tv_none());
    tp_text t = { 0 };
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i];
        if (e.k != TV_STR)
            tp_fail(&r->base, LQ_EVALUE, "sequence item %zu: expected str instance, %s found", i,
                    tv_type(e));
        if (i) tp_add_str(r, &t, s);
        tp_add_str(r, &t, e);
    }
    return tv_text(&t);
}

/* ---- padding ---- */
static tv pad(tp_run *r, tv s, const tp_args *a, int left_of_two)
{
    int64_t width = tp_need_int(r, tp_arg(a, 0, "width", tv_int(80)), "width"), n = tv_len(r, s);
    tv fill = tp_need_str(r, tp_arg(a, 1, "fillchar", tv_cstr(" ")), "fillchar");
    int64_t all = width > n ? width - n : 0, left = left_of_two == 1   ? all / 2 + (all & width & 1)
                                                    : left_of_two == 2 ? all
                                                                       : 0;
    tp_text t = { 0 };
    for (int64_t i = 0; i < left; i++)
        tp_add_str(r, &t, fill);
    tp_add_str(r, &t, s);
    for (int64_t i = left; i < all; i++)
        tp_add_str(r, &t, fill);
    return tv_text(&t);
}
static tv s_ljust(tp_run *r, tv s, const tp_args *a) { return pad(r, s, a, 0); }
static tv s_center(tp_run *r, tv s, const tp_args *a) { return pad(r, s, a, 1); }
static tv s_rjust(tp_run *r, tv s, const tp_args *a) { return pad(r, s, a, 2); }

static tv s_zfill(tp_run *r, tv s, const tp_args *a)
{
    int64_t width = tp_need_int(r, a->n ? a->v[0] : tv_none(), "zfill"), n = tv_len(r, s);
    bool sign = s.u.s.n && (s.u.s.p[0] == '-' || s.u.s.p[0] == '+');
    tp_text t = { 0 };
    tp_add_str(r, &t, tv_sub(s, 0, sign));
    for (; n < width; n++)
        tp_puts(r, &t, "0");
    tp_add_str(r, &t, tv_sub(s, sign, s.u.s.n - sign));
    return tv_text(&t);
}

static tv s_unsupported(tp_run *r, tv s, const tp_args *a)
{
    (void)s, (void)a;
    tp_fail(&r->base, LQ_EUNSUPPORTED,
            "template: line %d: encode, format_map, maketrans and translate are not supported",
            r->base.line);
}

static tv s_expandtabs(tp_run *r, tv s, const tp_args *a)
{
    int64_t size = tp_need_int(r, tp_arg(a, 0, "tabsize", tv_int(8)), "expandtabs"), column = 0;
    tp_text t = { 0 };
    for (size_t i = 0; i < s.u.s.n;) {
        size_t at = i;
        uint32_t cp = next_cp(s, &i);
        if (cp == '\t') {
            for (int64_t k = size > 0 ? size - column % size : 0; k > 0; k--, column++)
                tp_puts(r, &t, " ");
            continue;
        }
        tp_add_str(r, &t, tv_sub(s, at, i - at));
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return tv_text(&t);
}

/* ---- dict ---- */
static tv d_items(tp_run *r, tv d, const tp_args *a)
{
    tv out = tv_new_list(r, TV_ITEMS);
    (void)a;
    for (size_t i = 0; i < d.u.dict->n; i++) {
        tv pair = tv_new_list(r, TV_TUPLE);
        tv_push(r, pair, d.u.dict->e[i].key);
        tv_push(r, pair, d.u.dict->e[i].value);
        tv_push(r, out, pair);
    }
    return out;
}

static tv d_keys(tp_run *r, tv d, const tp_args *a)
{
    return (void)a, (tv){ .k = TV_KEYS, .u.list = tv_iter(r, d).u.list };
}

static tv d_values(tp_run *r, tv d, const tp_args *a)
{
    tv out = tv_new_list(r, TV_VALUES);
    (void)a;
    for (size_t i = 0; i < d.u.dict->n; i++)
        tv_push(r, out, d.u.dict->e[i].value);
    return out;
}

static tv d_get(tp_run *r, tv d, const tp_args *a)
{
    if (a->n < 1) tp_fail(&r->base, LQ_EVALUE, "get expected at least 1 argument, got 0");
    const tv *hit = tv_get(r, d, a->v[0]);
    return hit ? *hit : a->n > 1 ? a->v[1] : tv_none();
}

static tv d_copy(tp_run *r, tv d, const tp_args *a)
{
    tv out = tv_new_dict(r);
    (void)a;
    for (size_t i = 0; i < d.u.dict->n; i++)
        tv_set(r, out, d.u.dict->e[i].key, d.u.dict->e[i].value);
    return out;
}

/* ---- list, tuple ---- */
static tv l_index(tp_run *r, tv l, const tp_args *a)
{
    for (size_t i = 0; a->n && i < l.u.list->n; i++)
        if (tv_equal(r, l.u.list->v[i], a->v[0])) return tv_int((int64_t)i);
    tp_fail(&r->base, LQ_EVALUE, "list.index(x): x not in list");
}

static tv l_count(tp_run *r, tv l, const tp_args *a)
{
    int64_t n = 0;
    for (size_t i = 0; a->n && i < l.u.list->n; i++)
        n += tv_equal(r, l.u.list->v[i], a->v[0]);
    return tv_int(n);
}

static tv l_copy(tp_run *r, tv l, const tp_args *a)
{
    return (void)a, tv_slice(r, l, tv_none(), tv_none(), tv_none());
}

/* ---- loop ---- */
static tv o_cycle(tp_run *r, tv v, const tp_args *a)
{
    if (a->n == 0) tp_fail(&r->base, LQ_EVALUE, "no items for cycling given");
    return a->v[v.u.loop->i % a->n];
}

static tv o_changed(tp_run *r, tv v, const tp_args *a)
{
    tp_loop *l = v.u.loop;
    bool same = l->changed && l->changed->n == a->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = tv_equal(r, l->changed->v[i], a->v[i]);
    tv now = tv_new_list(r, TV_LIST);
    for (size_t i = 0; i < a->n; i++)
        tv_push(r, now, a->v[i]);
    l->changed = now.u.list;
    return tv_bool(!same);
}

static const tp_row str_methods[] = {
    { "capitalize", s_capitalize, 0, true },
    { "casefold", s_casefold, 0, true },
    { "center", s_center, 2, true },
    { "count", s_count, 3, false },
    { "encode", s_unsupported, -1, false },
    { "endswith", s_endswith, 3, false },
    { "expandtabs", s_expandtabs, 1, true },
    { "find", s_find, 3, false },
    { "format", tp_str_format, -1, false },
    { "format_map", s_unsupported, -1, false },
    { "index", s_index, 3, false },
    { "isalnum", s_isalnum, 0, false },
    { "isalpha", s_isalpha, 0, false },
    { "isascii", s_isascii, 0, false },
    { "isdecimal", s_isdecimal, 0, false },
    { "isdigit", s_isdigit, 0, false },
    { "isidentifier", s_isidentifier, 0, false },
    { "islower", s_islower, 0, false },
    { "isnumeric", s_isnumeric, 0, false },
    { "isprintable", s_isprintable, 0, false },
    { "isspace", s_isspace, 0, false },
    { "istitle", s_istitle, 0, false },
    { "isupper", s_isupper, 0, false },
    { "join", s_join, 1, false },
    { "ljust", s_ljust, 2, true },
    { "lower", s_lower, 0, true },
    { "lstrip", s_lstrip, 1, true },
    { "maketrans", s_unsupported, -1, false },
    { "partition", s_partition, 1, true },
    { "removeprefix", s_removeprefix, 1, true },
    { "removesuffix", s_removesuffix, 1, true },
    { "replace", s_replace, 3, true },
    { "rfind", s_rfind, 3, false },
    { "rindex", s_rindex, 3, false },
    { "rjust", s_rjust, 2, true },
    { "rpartition", s_rpartition, 1, true },
    { "rsplit", s_rsplit, 2, true },
    { "rstrip", s_rstrip, 1, true },
    { "split", s_split, 2, true },
    { "splitlines", s_splitlines, 1, true },
    { "startswith", s_startswith, 3, false },
    { "strip", s_strip, 1, true },
    { "swapcase", s_swapcase, 0, true },
    { "title", s_title, 0, true },
    { "translate", s_unsupported, -1, false },
    { "upper", s_upper, 0, true },
    { "zfill", s_zfill, 1, true },
};
static const tp_row dict_methods[] = { { "copy", d_copy, 0, false },
                                       { "get", d_get, 2, false },
                                       { "items", d_items, 0, false },
                                       { "keys", d_keys, 0, false },
                                       { "values", d_values, 0, false } };
static const tp_row list_methods[] = { { "copy", l_copy, 0, false },
                                       { "count", l_count, 1, false },
                                       { "index", l_index, 3, false } };
static const tp_row tuple_methods[] = { { "count", l_count, 1, false },
                                        { "index", l_index, 3, false } };
static const tp_row loop_methods[] = { { "changed", o_changed, -1, false },
                                       { "cycle", o_cycle, -1, false } };

const tp_row *tp_method(tv v, const char *name, size_t n)
{
    static const struct {
        tv_kind k;
        const tp_row *rows;
        size_t n;
    } kinds[] = { { TV_STR, str_methods, LQ_COUNT(str_methods) },
                  { TV_DICT, dict_methods, LQ_COUNT(dict_methods) },
                  { TV_LIST, list_methods, LQ_COUNT(list_methods) },
                  { TV_TUPLE, tuple_methods, LQ_COUNT(tuple_methods) },
                  { TV_RANGE, tuple_methods, LQ_COUNT(tuple_methods) },
                  { TV_LOOP, loop_methods, LQ_COUNT(loop_methods) } };
    for (size_t k = 0; k < LQ_COUNT(kinds); k++)
        if (kinds[k].k == v.k) return tp_find_row(kinds[k].rows, kinds[k].n, name, n);
    return NULL;
}
