/* runtime/tmpl_methods.c - methods of str, dict and list that do not change their value. */
#include "runtime/tmpl_int.h"

#include "runtime/tok_text.h"

#include <stdlib.h>
#include <utf8proc.h>

/* ---- code points ---- */
static uint32_t next_cp(tv s, size_t *i)
{
    size_t len;
    uint32_t cp = tok_utf8_get((const uint8_t *)s.u.s.p + *i, &len);
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

static void add_lower(tp_run *r, tp_text *t, uint32_t cp)
{
    if (cp == 0x130)
        tp_puts(r, t, "i\xCC\x87"); /* the one letter whose lower case is two */
    else
        add_cp(r, t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static void add_upper(tp_run *r, tp_text *t, uint32_t cp, bool title)
{
    if (cp == 0xDF)
        tp_puts(r, t, title ? "Ss" : "SS"); /* the one common letter that becomes two */
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
    return tv_text(&t);
}

static tv s_lower(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    for (size_t i = 0; i < s.u.s.n;)
        add_lower(r, &t, next_cp(s, &i));
    return tv_text(&t);
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
    return tv_text(&t);
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
    return tv_text(&t);
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
    return tv_text(&t);
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
static bool is_decimal_cp(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}
static bool is_alnum_cp(uint32_t cp) { return is_alpha_cp(cp) || tok_is_numeric(cp); }

static tv s_isdigit(tp_run *r, tv s, const tp_args *a)
{
    return (void)r, (void)a, all_are(s, is_decimal_cp);
}
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
    tv chars = tp_arg(a, 0, "chars", tv_none());
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
    return tv_str(s.u.s.p + from, to - from);
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

static tv place(tv s, const char *hit)
{
    return tv_int(hit ? (int64_t)tv_chars(tv_str(s.u.s.p, (size_t)(hit - s.u.s.p))) : -1);
}

static tv text_arg(tp_run *r, const tp_args *a, size_t i, const char *what)
{
    return tp_need_str(r, a->n > i ? a->v[i] : tv_none(), what);
}

static tv s_find(tp_run *r, tv s, const tp_args *a)
{
    return place(s, find_in(r, s, 0, text_arg(r, a, 0, "find")));
}
static tv s_rfind(tp_run *r, tv s, const tp_args *a)
{
    return place(s, find_last(r, s, text_arg(r, a, 0, "rfind")));
}

static tv s_index(tp_run *r, tv s, const tp_args *a)
{
    tv at = s_find(r, s, a);
    if (at.u.i < 0) tp_fail(&r->base, LQ_EVALUE, "substring not found");
    return at;
}

static tv s_count(tp_run *r, tv s, const tp_args *a)
{
    tv what = text_arg(r, a, 0, "count");
    int64_t n = 0;
    if (what.u.s.n == 0) return tv_int((int64_t)tv_chars(s) + 1);
    for (const char *hit; (hit = memmem(s.u.s.p, s.u.s.n, what.u.s.p, what.u.s.n)); n++) {
        size_t skip = (size_t)(hit - s.u.s.p) + what.u.s.n;
        tp_charge(r, skip / 16);
        s = tv_str(s.u.s.p + skip, s.u.s.n - skip);
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
    return begins(s, p) ? tv_str(s.u.s.p + p.u.s.n, s.u.s.n - p.u.s.n) : s;
}
static tv s_removesuffix(tp_run *r, tv s, const tp_args *a)
{
    tv p = text_arg(r, a, 0, "removesuffix");
    return ends(s, p) ? tv_str(s.u.s.p, s.u.s.n - p.u.s.n) : s;
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
            tp_add(r, &t, new.u.s.p, new.u.s.n);
            size_t i = from;
            if (from >= s.u.s.n) break;
            next_cp(s, &i);
            tp_add(r, &t, s.u.s.p + from, i - from);
            from = i;
            continue;
        }
        const char *hit = find_in(r, s, from, old);
        if (!hit) break;
        size_t at = (size_t)(hit - s.u.s.p);
        tp_add(r, &t, s.u.s.p + from, at - from);
        tp_add(r, &t, new.u.s.p, new.u.s.n);
        from = at + old.u.s.n;
    }
    tp_add(r, &t, s.u.s.p + from, s.u.s.n - from);
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
            tv_push(r, out, tv_str(s.u.s.p + i, s.u.s.n - i));
            return out;
        }
        size_t from = i;
        for (e = i; i < s.u.s.n; i = e)
            if (space_cp(next_cp(s, &e))) break;
        tv_push(r, out, tv_str(s.u.s.p + from, i - from));
    }
}

static tv reversed(tp_run *r, tv list)
{
    return tv_slice(r, list, tv_none(), tv_none(), tv_int(-1));
}

static tv split(tp_run *r, tv s, const tp_args *a, bool right)
{
    tv sep = tp_arg(a, 0, "sep", tv_none()), max = tp_arg(a, 1, "maxsplit", tv_int(-1));
    int64_t limit = tp_need_int(r, max, "split");
    if (sep.k == TV_NONE && (!right || limit < 0)) return split_space(r, s, limit);
    tp_need_str(r, sep, "split");
    if (sep.u.s.n == 0) tp_fail(&r->base, LQ_EVALUE, "empty separator");
    tv out = tv_new_list(r, TV_LIST);
    if (right && limit >= 0) { /* from the end, then turned round */
        for (const char *hit; limit > 0 && (hit = find_last(r, s, sep)); limit--) {
            size_t at = (size_t)(hit - s.u.s.p), after = at + sep.u.s.n;
            tv_push(r, out, tv_str(s.u.s.p + after, s.u.s.n - after));
            s = tv_str(s.u.s.p, at);
        }
        tv_push(r, out, s);
        return reversed(r, out);
    }
    size_t from = 0;
    for (const char *hit; limit != 0 && (hit = find_in(r, s, from, sep)); limit--) {
        size_t at = (size_t)(hit - s.u.s.p);
        tv_push(r, out, tv_str(s.u.s.p + from, at - from));
        from = at + sep.u.s.n;
    }
    tv_push(r, out, tv_str(s.u.s.p + from, s.u.s.n - from));
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
        tv_push(r, out, tv_str(s.u.s.p + from, (end && !keep ? at : i) - from));
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
    tv head = tv_str(s.u.s.p, at), tail = tv_str(s.u.s.p + after, s.u.s.n - after);
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
        if (i) tp_add(r, &t, s.u.s.p, s.u.s.n);
        tp_add(r, &t, e.u.s.p, e.u.s.n);
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
        tp_add(r, &t, fill.u.s.p, fill.u.s.n);
    tp_add(r, &t, s.u.s.p, s.u.s.n);
    for (int64_t i = left; i < all; i++)
        tp_add(r, &t, fill.u.s.p, fill.u.s.n);
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
    tp_add(r, &t, s.u.s.p, sign);
    for (; n < width; n++)
        tp_puts(r, &t, "0");
    tp_add(r, &t, s.u.s.p + sign, s.u.s.n - sign);
    return tv_text(&t);
}

/* "{} {0} {name}".format(...); format specifications are refused. */
static tv s_format(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    size_t next = 0;
    for (size_t i = 0; i < s.u.s.n; i++) {
        char c = s.u.s.p[i];
        if ((c == '{' || c == '}') && i + 1 < s.u.s.n && s.u.s.p[i + 1] == c)
            i++;
        else if (c == '{') {
            const char *close = memchr(s.u.s.p + i, '}', s.u.s.n - i);
            if (!close) tp_fail(&r->base, LQ_EVALUE, "expected '}' before end of string");
            tv field = tv_str(s.u.s.p + i + 1, (size_t)(close - s.u.s.p) - i - 1), v;
            tv number = all_are(field, is_decimal_cp);
            if (field.u.s.n && strpbrk(tp_copy(&r->base, field.u.s.p, field.u.s.n), ".[!:"))
                tp_fail(&r->base, LQ_EUNSUPPORTED,
                        "format: fields beyond {}, {0} and {name} are not supported");
            size_t at = field.u.s.n == 0 ? next++
                        : number.u.b
                            ? strtoul(tp_copy(&r->base, field.u.s.p, field.u.s.n), NULL, 10)
                            : SIZE_MAX;
            if (!tp_has(a, at, tp_copy(&r->base, field.u.s.p, field.u.s.n), &v))
                tp_fail(&r->base, LQ_EVALUE, "format: no argument for '{%.*s}'", (int)field.u.s.n,
                        field.u.s.p);
            tv_print(r, &t, v);
            i = (size_t)(close - s.u.s.p);
            continue;
        }
        tp_add(r, &t, &c, 1);
    }
    return tv_text(&t);
}

/* ---- dict ---- */
static tv d_items(tp_run *r, tv d, const tp_args *a)
{
    tv out = tv_new_list(r, TV_LIST);
    (void)a;
    for (size_t i = 0; i < d.u.dict->n; i++) {
        tv pair = tv_new_list(r, TV_TUPLE);
        tv_push(r, pair, d.u.dict->e[i].key);
        tv_push(r, pair, d.u.dict->e[i].value);
        tv_push(r, out, pair);
    }
    return out;
}

static tv d_keys(tp_run *r, tv d, const tp_args *a) { return (void)a, tv_iter(r, d); }

static tv d_values(tp_run *r, tv d, const tp_args *a)
{
    tv out = tv_new_list(r, TV_LIST);
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

/* What would change a value is unsafe in Jinja's immutable sandbox, and so it is here. */
static tv unsafe(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    tp_fail(&r->base, LQ_EVALUE, "access to a changing method of '%s' object is unsafe.",
            tv_type(v));
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
    { "capitalize", s_capitalize },
    { "casefold", s_lower },
    { "center", s_center },
    { "count", s_count },
    { "endswith", s_endswith },
    { "find", s_find },
    { "format", s_format },
    { "index", s_index },
    { "isalnum", s_isalnum },
    { "isalpha", s_isalpha },
    { "isdecimal", s_isdigit },
    { "isdigit", s_isdigit },
    { "islower", s_islower },
    { "isnumeric", s_isnumeric },
    { "isspace", s_isspace },
    { "isupper", s_isupper },
    { "join", s_join },
    { "ljust", s_ljust },
    { "lower", s_lower },
    { "lstrip", s_lstrip },
    { "partition", s_partition },
    { "removeprefix", s_removeprefix },
    { "removesuffix", s_removesuffix },
    { "replace", s_replace },
    { "rfind", s_rfind },
    { "rjust", s_rjust },
    { "rpartition", s_rpartition },
    { "rsplit", s_rsplit },
    { "rstrip", s_rstrip },
    { "split", s_split },
    { "splitlines", s_splitlines },
    { "startswith", s_startswith },
    { "strip", s_strip },
    { "swapcase", s_swapcase },
    { "title", s_title },
    { "upper", s_upper },
    { "zfill", s_zfill },
};
static const tp_row dict_methods[] = { { "copy", d_copy },
                                       { "get", d_get },
                                       { "items", d_items },
                                       { "keys", d_keys },
                                       { "values", d_values } };
static const tp_row list_methods[] = {
    { "append", unsafe }, { "clear", unsafe },   { "copy", l_copy },   { "count", l_count },
    { "extend", unsafe }, { "index", l_index },  { "insert", unsafe }, { "pop", unsafe },
    { "remove", unsafe }, { "reverse", unsafe }, { "sort", unsafe }
};
static const tp_row loop_methods[] = { { "changed", o_changed }, { "cycle", o_cycle } };

const tp_row *tp_method(tv v, const char *name, size_t n)
{
    static const struct {
        tv_kind k;
        const tp_row *rows;
        size_t n;
    } kinds[] = { { TV_STR, str_methods, LQ_COUNT(str_methods) },
                  { TV_DICT, dict_methods, LQ_COUNT(dict_methods) },
                  { TV_LIST, list_methods, LQ_COUNT(list_methods) },
                  { TV_TUPLE, list_methods, LQ_COUNT(list_methods) },
                  { TV_LOOP, loop_methods, LQ_COUNT(loop_methods) } };
    for (size_t k = 0; k < LQ_COUNT(kinds); k++)
        for (size_t i = 0; kinds[k].k == v.k && i < kinds[k].n; i++)
            if (strlen(kinds[k].rows[i].name) == n && memcmp(kinds[k].rows[i].name, name, n) == 0)
                return &kinds[k].rows[i];
    return NULL;
}
