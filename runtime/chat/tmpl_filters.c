/* runtime/chat/tmpl_filters.c - Jinja2's filters and tests, as far as chat templates use them. */
#include "runtime/chat/tmpl_int.h"

#include "runtime/tokenizer/tok_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* A method of str as a filter: the value's text is its self. */
static tv as_method(tp_run *r, tv v, const char *name, const tp_args *a)
{
    tv s = tv_to_str(r, v);
    return tp_call_row(r, tp_method(s, name, strlen(name)), s, a);
}

#define STR_FILTER(name) \
    static tv f_##name(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, #name, a); }
STR_FILTER(upper)
STR_FILTER(lower)
STR_FILTER(capitalize)
STR_FILTER(center)

static tv f_trim(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, "strip", a); }

static tv unsafe_str(tp_run *r, tv v)
{
    v = tv_to_str(r, v);
    v.safe = false;
    return v;
}

static tv f_replace(tp_run *r, tv v, const tp_args *a)
{
    tv old = unsafe_str(r, tp_arg(a, 0, "old", tv_undef("old"))),
       new = unsafe_str(r, tp_arg(a, 1, "new", tv_undef("new")));
    if (a->n + a->n_named < 2) tp_fail(&r->base, LQ_EVALUE, "replace: expected old and new");
    tv args[3] = { old, new, tp_arg(a, 2, "count", tv_none()) };
    return as_method(r, unsafe_str(r, v), "replace", &(tp_args){ .v = args, .n = 3 });
}

/* ---- texts ---- */
/* Jinja's own: words begin behind space, -, (, {, [ and <. */
static tv f_title(tp_run *r, tv v, const tp_args *a)
{
    tv s = tv_to_str(r, v);
    tp_text t = { 0 };
    bool first = true;
    (void)a;
    for (size_t i = 0, len; i < s.u.s.n; i += len) {
        uint32_t cp = lq_utf8_get((const uint8_t *)s.u.s.p + i, &len);
        tv c = as_method(r, tv_sub(s, i, len), first ? "upper" : "lower", &(tp_args){ 0 });
        tp_add_str(r, &t, c);
        first = tok_is_space(cp) || (cp < 128 && cp && strchr("-({[<", (int)cp));
    }
    return tv_text(&t);
}

static tv f_string(tp_run *r, tv v, const tp_args *a) { return (void)a, tv_to_str(r, v); }

static tv f_safe(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    v = tv_to_str(r, v);
    v.safe = true;
    return v;
}

static tv f_escape(tp_run *r, tv v, const tp_args *a) { return (void)a, tp_escape(r, v); }
static tv f_forceescape(tp_run *r, tv v, const tp_args *a)
{
    return (void)a, tp_escape(r, unsafe_str(r, v));
}

static tv f_indent(tp_run *r, tv v, const tp_args *a)
{
    tv s = tv_to_str(r, v), width = tp_arg(a, 0, "width", tv_int(4));
    bool first = tp_flag(a, 1, "first", false), blank = tp_flag(a, 2, "blank", false);
    tp_text pad = { 0 }, t = { 0 };
    if (width.k == TV_STR)
        tp_add_str(r, &pad, width);
    else
        for (int64_t i = tp_need_int(r, width, "indent"); i > 0; i--)
            tp_puts(r, &pad, " ");
    for (size_t i = 0, line = 0; i <= s.u.s.n; i = line, first = true) {
        const char *nl = i < s.u.s.n ? memchr(s.u.s.p + i, '\n', s.u.s.n - i) : NULL;
        size_t end = nl ? (size_t)(nl - s.u.s.p) : s.u.s.n;
        if (first && (end > i || blank || i == 0)) tp_add_str(r, &t, tv_text(&pad));
        tp_add_str(r, &t, tv_sub(s, i, end - i + (nl != NULL)));
        line = end + 1;
    }
    return tv_text(&t);
}

static tv f_format(tp_run *r, tv v, const tp_args *a)
{
    tv args = tv_new_list(r, TV_TUPLE);
    for (size_t i = 0; i < a->n; i++)
        tv_push(r, args, a->v[i]);
    if (a->n_named) {
        args = tv_new_dict(r);
        for (size_t i = 0; i < a->n_named; i++)
            tv_set(r, args, tv_cstr(a->names[i]), a->named[i]);
    }
    return tp_format(r, tv_to_str(r, v), args);
}

static tv f_tojson(tp_run *r, tv v, const tp_args *a)
{
    tv indent = tp_arg(a, 1, "indent", tv_none()), seps = tp_arg(a, 2, "separators", tv_none());
    tv_json_opts o = { .ascii = tp_flag(a, 0, "ensure_ascii", false),
                       .sort = tp_flag(a, 3, "sort_keys", false) };
    tp_text pad = { 0 }, t = { 0 };
    if (indent.k == TV_STR) {
        tp_add_str(r, &pad, indent);
    } else if (indent.k != TV_NONE) {
        int64_t n = tp_need_int(r, indent, "indent");
        for (int64_t i = 0; i < n; i++)
            tp_puts(r, &pad, " ");
    }
    if (indent.k != TV_NONE) {
        o.indent = pad.p ? pad.p : "";
        o.n_indent = pad.n;
    }
    o.item_sep = tv_cstr(o.indent ? "," : ", ");
    o.key_sep = tv_cstr(": ");
    if (seps.k != TV_NONE) {
        tv two = tv_iter(r, seps);
        if (two.u.list->n != 2) tp_fail(&r->base, LQ_EVALUE, "separators: expected two texts");
        o.item_sep = tp_need_str(r, two.u.list->v[0], "separators");
        o.key_sep = tp_need_str(r, two.u.list->v[1], "separators");
    }
    tv_json(r, &t, v, &o, 0);
    return tv_text(&t);
}

static tv f_wordcount(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    tv s = tv_to_str(r, v);
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0, len; i < s.u.s.n; i += len) {
        uint32_t cp = lq_utf8_get((const uint8_t *)s.u.s.p + i, &len);
        bool word = cp == '_' || tok_is_numeric(cp) ||
                    (utf8proc_category((utf8proc_int32_t)cp) >= UTF8PROC_CATEGORY_LU &&
                     utf8proc_category((utf8proc_int32_t)cp) <= UTF8PROC_CATEGORY_LO);
        n += word && !inside;
        inside = word;
    }
    return tv_int(n);
}

static tv f_truncate(tp_run *r, tv v, const tp_args *a)
{
    tv s = tv_to_str(r, v), end = tv_to_str(r, tp_arg(a, 2, "end", tv_own("...", 3))), space;
    int64_t length = tp_need_int(r, tp_arg(a, 0, "length", tv_int(255)), "truncate"),
            leeway = tp_need_int(r, tp_arg(a, 3, "leeway", tv_int(5)), "truncate");
    if (length < tv_len(r, end))
        tp_fail(&r->base, LQ_EVALUE, "expected length >= %lld, got %lld", (long long)tv_len(r, end),
                (long long)length);
    if (leeway < 0)
        tp_fail(&r->base, LQ_EVALUE, "expected leeway >= 0, got %lld", (long long)leeway);
    if (tv_len(r, s) <= length + leeway) return s;
    s = tv_slice(r, s, tv_none(), tv_int(length - tv_len(r, end)), tv_none());
    if (!tp_flag(a, 1, "killwords", false)) { /* back to the last space */
        space = as_method(r, s, "rfind", &(tp_args){ .v = (tv[]){ tv_cstr(" ") }, .n = 1 });
        if (space.u.i >= 0) s = tv_slice(r, s, tv_none(), space, tv_none());
    }
    tp_text t = { 0 };
    tp_add_str(r, &t, s);
    tp_add_str(r, &t, end);
    return tv_text(&t);
}

static void add_quoted(tp_run *r, tp_text *t, tv v, bool query)
{
    tv s = tv_to_str(r, v);
    for (size_t i = 0; i < s.u.s.n; i++) {
        uint8_t c = (uint8_t)s.u.s.p[i];
        char hex[8];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                     (c && c < 128 && strchr("_.-~", c)) || (c == '/' && !query);
        snprintf(hex, sizeof hex, plain ? "%c" : query && c == ' ' ? "+" : "%%%02X", c);
        tp_puts(r, t, hex);
    }
}

/* A text, or the pairs of a query. */
static tv f_urlencode(tp_run *r, tv v, const tp_args *a)
{
    tp_text t = { 0 };
    (void)a;
    if (v.k != TV_DICT && (!tv_is_list(v))) {
        add_quoted(r, &t, v, false);
        return tv_text(&t);
    }
    tv all = v.k == TV_DICT ? tp_method(v, "items", 5)->f(r, v, a) : tv_iter(r, v);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv pair = tv_iter(r, all.u.list->v[i]);
        if (pair.u.list->n != 2) tp_fail(&r->base, LQ_EVALUE, "urlencode: expected pairs");
        if (i) tp_puts(r, &t, "&");
        add_quoted(r, &t, pair.u.list->v[0], true);
        tp_puts(r, &t, "=");
        add_quoted(r, &t, pair.u.list->v[1], true);
    }
    return tv_text(&t);
}

static tv f_items(tp_run *r, tv v, const tp_args *a);

static tv f_xmlattr(tp_run *r, tv v, const tp_args *a)
{
    tp_text t = { 0 };
    bool space = tp_flag(a, 0, "autospace", true);
    tv all = tv_iter(r, f_items(r, v, &(tp_args){ 0 }));
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv key = tv_to_str(r, all.u.list->v[i].u.list->v[0]), value = all.u.list->v[i].u.list->v[1];
        if (value.k == TV_NONE || value.k == TV_UNDEF) continue;
        for (size_t k = 0; k < key.u.s.n; k++)
            if (key.u.s.p[k] && strchr(" \t\n\r\f/>=", key.u.s.p[k]))
                tp_fail(&r->base, LQ_EVALUE, "Invalid character in attribute name: '%.*s'",
                        (int)key.u.s.n, key.u.s.p);
        if (space || t.n) tp_puts(r, &t, " ");
        tp_add_str(r, &t, tp_escape(r, key));
        tp_puts(r, &t, "=\"");
        tp_add_str(r, &t, tp_escape(r, value));
        tp_puts(r, &t, "\"");
    }
    return tv_text(&t);
}

/* ---- numbers ---- */
static tv parse_number(tp_run *r, tv v, bool whole, int64_t base, tv otherwise)
{
    int64_t i;
    if (v.k == TV_FLOAT) {
        if (!whole) return v;
        return isfinite(v.u.f) && fabs(v.u.f) < 9e18 ? tv_int((int64_t)v.u.f) : otherwise;
    }
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (tv_as_int(v, &i)) return whole ? tv_int(i) : tv_float((double)i);
    if (v.k != TV_STR) return otherwise;
    tv s = as_method(r, v, "strip", &(tp_args){ 0 });
    char text[64] = "", *end = text;
    size_t n = 0;
    for (size_t k = 0, len; k < s.u.s.n; k += len) {
        uint32_t cp = lq_utf8_get((const uint8_t *)s.u.s.p + k, &len);
        int digit = tp_digit_of(cp);
        if (cp == '_') continue;
        if (n + 1 == sizeof text || !cp || (cp > 127 && digit < 0)) return otherwise;
        text[n++] = (char)(digit < 0 ? (int)cp : '0' + digit);
    }
    text[n] = 0;
    char *number = text + (text[0] == '-' || text[0] == '+'), prefix = (char)(number[1] | 32);
    const bool prefixed = number[0] == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b');
    const int64_t means = !prefixed ? base : prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
    if (!n || means != base) return otherwise;
    if (whole) {
        if (prefixed) memmove(number, number + 2, strlen(number + 2) + 1);
        errno = 0;
        long long parsed = strtoll(text, &end, (int)base);
        if (*end == 0 && end > text && !errno) return tv_int(parsed);
    }
    double f = strtod(text, &end);
    if (*end != 0) return otherwise;
    if (!whole) return tv_float(f);
    return isfinite(f) && fabs(f) < 9e18 ? tv_int((int64_t)f)
                                         : otherwise; /* int("3.7") as Jinja has it */
}

static tv f_int(tp_run *r, tv v, const tp_args *a)
{
    tv otherwise = tp_arg(a, 0, "default", tv_int(0));
    int64_t base = tp_need_int(r, tp_arg(a, 1, "base", tv_int(10)), "base");
    return parse_number(r, v, true, base >= 2 && base <= 36 ? base : 10, otherwise);
}

static tv f_float(tp_run *r, tv v, const tp_args *a)
{
    return parse_number(r, v, false, 10, tp_arg(a, 0, "default", tv_float(0)));
}

static tv f_abs(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (!tv_is_num(v)) tp_fail(&r->base, LQ_EVALUE, "bad operand type for abs(): '%s'", tv_type(v));
    if (v.k == TV_FLOAT) return tv_float(fabs(v.u.f));
    int64_t i = tp_need_int(r, v, "abs");
    if (i == INT64_MIN) tp_fail(&r->base, LQ_EVALUE, "abs: an integer beyond 64 bits");
    return tv_int(i < 0 ? -i : i);
}

/* To tens, hundreds, ... for places below 0, halves to even. */
static tv round_int(int64_t v, int64_t places)
{
    int64_t p = 1;
    if (places >= 0) return tv_int(v);
    if (places < -18) return tv_int(0);
    for (; places < 0; places++)
        p *= 10;
    int64_t down = v / p - (v % p < 0), rest = v - down * p;
    bool up = rest > p - rest || (rest == p - rest && down % 2 != 0);
    return tv_int((down + up) * p);
}

static tv f_round(tp_run *r, tv v, const tp_args *a)
{
    int64_t places = tp_need_int(r, tp_arg(a, 0, "precision", tv_int(0)), "precision");
    tv how = tp_arg(a, 1, "method", tv_cstr("common"));
    char text[400];
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (!tv_is_num(v))
        tp_fail(&r->base, LQ_EVALUE, "round: expected a number, found %s", tv_type(v));
    double f = tv_as_float(v);
    if (how.k == TV_STR && how.u.s.n == 6) { /* "common" */
        int64_t whole;
        if (tv_as_int(v, &whole)) return round_int(whole, places);
        if (places < 0 || places > 20 || !isfinite(f)) {
            double p = pow(10, (double)-places);
            return tv_float(places > 20 || !isfinite(f) ? f : nearbyint(f / p) * p);
        }
        snprintf(text, sizeof text, "%.*f", (int)places,
                 f); /* rounds the exact value half to even */
        return tv_float(strtod(text, NULL));
    }
    double p = pow(10, (double)places);
    return tv_float((how.k == TV_STR && how.u.s.n == 4 ? ceil(f * p) : floor(f * p)) / p);
}

/* ---- sequences ---- */
static tv f_length(tp_run *r, tv v, const tp_args *a) { return (void)a, tv_int(tv_len(r, v)); }

static tv f_list(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_LIST);
    (void)a;
    for (size_t i = 0; i < all.u.list->n; i++)
        tv_push(r, out, all.u.list->v[i]);
    return out;
}

static tv f_first(tp_run *r, tv v, const tp_args *a)
{
    if (v.k == TV_GEN && v.u.list->n) { /* the rest may still be walked */
        tv first = *v.u.list->v++;
        v.u.list->n--;
        v.u.list->cap--;
        return first;
    }
    tv all = tv_iter(r, v);
    return (void)a,
           all.u.list->n ? all.u.list->v[0] : tv_nothing("No first item, sequence was empty.");
}

static tv f_last(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v);
    return (void)a, all.u.list->n ? all.u.list->v[all.u.list->n - 1]
                                  : tv_nothing("No last item, sequence was empty.");
}

static tv f_reverse(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    if (v.k == TV_STR) return tv_slice(r, v, tv_none(), tv_none(), tv_int(-1));
    tv back = tv_slice(r, f_list(r, v, a), tv_none(), tv_none(), tv_int(-1));
    if (v.k != TV_GEN) back.k = TV_GEN; /* which has no reversed(), and becomes a list */
    return back;
}

/* value.a.0.b; `otherwise` (NULL: nothing) takes the place of each part that is not there. */
static tv by_path_or(tp_run *r, tv v, tv path, const tv *otherwise)
{
    if (path.k != TV_STR) {
        v = tp_item(r, v, path);
        return otherwise && v.k == TV_UNDEF ? *otherwise : v;
    }
    for (size_t i = 0, e; i <= path.u.s.n; i = e + 1) {
        for (e = i; e < path.u.s.n && path.u.s.p[e] != '.';)
            e++;
        bool digits = e > i;
        int64_t n = 0;
        for (size_t k = i; k < e && digits; k++) {
            digits = path.u.s.p[k] >= '0' && path.u.s.p[k] <= '9' && k - i < 9;
            n = digits ? n * 10 + (path.u.s.p[k] - '0') : n;
        }
        v = tp_item(r, v, digits ? tv_int(n) : tv_sub(path, i, e - i));
        if (otherwise && v.k == TV_UNDEF) v = *otherwise;
    }
    return v;
}

static tv by_path(tp_run *r, tv v, tv path) { return by_path_or(r, v, path, NULL); }

static tv f_join(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), d = tv_to_str(r, tp_arg(a, 0, "d", tv_cstr(""))), attr;
    bool path = tp_has(a, 1, "attribute", &attr);
    tp_text t = { 0 };
    for (size_t i = 0; i < all.u.list->n; i++) {
        if (i) tp_add_str(r, &t, d);
        tv_print(r, &t, path ? by_path(r, all.u.list->v[i], attr) : all.u.list->v[i]);
    }
    return tv_text(&t);
}

static tv f_sum(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), attr;
    bool path = tp_has(a, 0, "attribute", &attr) && attr.k != TV_NONE;
    tv sum = tp_arg(a, 1, "start", tv_int(0));
    for (size_t i = 0; i < all.u.list->n; i++)
        sum =
            tp_binary(r, OP_ADD, sum, path ? by_path(r, all.u.list->v[i], attr) : all.u.list->v[i]);
    return sum;
}

/* A key for sorting and telling apart: text without regard to case, unless asked for. */
static tv sort_key(tp_run *r, tv v, tv attr, bool case_sensitive)
{
    if (attr.k == TV_STR && memchr(attr.u.s.p, ',', attr.u.s.n)) { /* several: "a,b" */
        tv keys = tv_new_list(r, TV_LIST);
        for (size_t i = 0, e; i <= attr.u.s.n; i = e + 1) {
            for (e = i; e < attr.u.s.n && attr.u.s.p[e] != ',';)
                e++;
            tv_push(r, keys, sort_key(r, v, tv_sub(attr, i, e - i), case_sensitive));
        }
        return keys;
    }
    if (attr.k != TV_NONE) v = by_path(r, v, attr);
    return v.k == TV_STR && !case_sensitive ? as_method(r, v, "lower", &(tp_args){ 0 }) : v;
}

typedef struct {
    tv key, value;
} keyed;

/* Stable merge sort: comparisons may fail, and end the rendering by themselves. */
static void merge_sort(tp_run *r, keyed *v, keyed *tmp, size_t n, bool reverse)
{
    if (n < 2) return;
    size_t h = n / 2, i = 0, k = h, w = 0;
    merge_sort(r, v, tmp, h, reverse);
    merge_sort(r, v + h, tmp, n - h, reverse);
    while (i < h && k < n) {
        int c = tv_compare(r, v[k].key, v[i].key, "<");
        tp_charge(r, 0);
        tmp[w++] = (reverse ? c > 0 : c < 0) ? v[k++] : v[i++];
    }
    while (i < h)
        tmp[w++] = v[i++];
    while (k < n)
        tmp[w++] = v[k++];
    memcpy(v, tmp, n * sizeof *v);
}

static tv sorted(tp_run *r, tv all, tv attr, bool case_sensitive, bool reverse)
{
    size_t n = all.u.list->n;
    keyed *v = tp_take(&r->base, (n + 1) * sizeof *v),
          *tmp = tp_take(&r->base, (n + 1) * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = (keyed){ sort_key(r, all.u.list->v[i], attr, case_sensitive), all.u.list->v[i] };
    merge_sort(r, v, tmp, n, reverse);
    tv out = tv_new_list(r, TV_LIST);
    for (size_t i = 0; i < n; i++)
        tv_push(r, out, v[i].value);
    return out;
}

static tv f_sort(tp_run *r, tv v, const tp_args *a)
{
    return sorted(r, tv_iter(r, v), tp_arg(a, 2, "attribute", tv_none()),
                  tp_flag(a, 1, "case_sensitive", false), tp_flag(a, 0, "reverse", false));
}

static tv f_unique(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_GEN), seen = tv_new_dict(r);
    bool cs = tp_flag(a, 0, "case_sensitive", false);
    tv attr = tp_arg(a, 1, "attribute", tv_none());
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv key = sort_key(r, all.u.list->v[i], attr, cs);
        if (tv_get(r, seen, key)) continue;
        tv_set(r, seen, key, tv_none());
        tv_push(r, out, all.u.list->v[i]);
    }
    return out;
}

static tv extreme(tp_run *r, tv v, const tp_args *a, bool most)
{
    tv all = tv_iter(r, v), attr = tp_arg(a, 1, "attribute", tv_none());
    bool cs = tp_flag(a, 0, "case_sensitive", false);
    if (!all.u.list->n) return tv_nothing("No aggregated item, sequence was empty.");
    tv best = all.u.list->v[0], key = sort_key(r, best, attr, cs);
    for (size_t i = 1; i < all.u.list->n; i++) {
        tv k = sort_key(r, all.u.list->v[i], attr, cs);
        int c = tv_compare(r, k, key, most ? ">" : "<");
        if (most ? c > 0 : c < 0) best = all.u.list->v[i], key = k;
    }
    return best;
}
static tv f_min(tp_run *r, tv v, const tp_args *a) { return extreme(r, v, a, false); }
static tv f_max(tp_run *r, tv v, const tp_args *a) { return extreme(r, v, a, true); }

static tv f_items(tp_run *r, tv v, const tp_args *a)
{
    if (v.k == TV_UNDEF) return tv_new_list(r, TV_GEN);
    if (v.k != TV_DICT) tp_fail(&r->base, LQ_EVALUE, "Can only get item pairs from a mapping.");
    tv all = tp_method(v, "items", 5)->f(r, v, a);
    all.k = TV_GEN;
    return all;
}

_Noreturn static void no_items(tp_run *r, tv v)
{
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    tp_fail(&r->base, LQ_EVALUE, "'%s' object has no attribute 'items'", tv_type(v));
}

static tv f_dictsort(tp_run *r, tv v, const tp_args *a)
{
    tv by = tp_arg(a, 1, "by", tv_cstr("key"));
    bool value = by.k == TV_STR && by.u.s.n == 5;
    if (v.k != TV_DICT) no_items(r, v);
    if (!value && !(by.k == TV_STR && by.u.s.n == 3 && memcmp(by.u.s.p, "key", 3) == 0))
        tp_fail(&r->base, LQ_EVALUE, "You can only sort by either \"key\" or \"value\"");
    return sorted(r, f_items(r, v, &(tp_args){ 0 }), tv_int(value),
                  tp_flag(a, 0, "case_sensitive", false), tp_flag(a, 2, "reverse", false));
}

static tv f_batch(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_GEN), row = tv_none(), fill;
    int64_t n = tp_need_int(r, tp_arg(a, 0, "linecount", tv_none()), "batch");
    if (n < 1) tp_fail(&r->base, LQ_EVALUE, "batch: expected at least 1, found %lld", (long long)n);
    for (size_t i = 0; i < all.u.list->n; i++) {
        if (i % (size_t)n == 0) tv_push(r, out, row = tv_new_list(r, TV_LIST));
        tv_push(r, row, all.u.list->v[i]);
    }
    if (tp_has(a, 1, "fill_with", &fill) && row.k == TV_LIST && fill.k != TV_NONE)
        while ((int64_t)row.u.list->n < n)
            tv_push(r, row, fill);
    return out;
}

static tv f_slice(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_GEN),
       fill = tp_arg(a, 1, "fill_with", tv_none());
    int64_t n = tp_need_int(r, tp_arg(a, 0, "slices", tv_none()), "slice");
    if (n == 0) tp_fail(&r->base, LQ_EVALUE, "integer division or modulo by zero");
    const size_t count = n > 0 ? (size_t)n : 0;
    size_t at = 0, each = count ? all.u.list->n / count : 0,
           more = count ? all.u.list->n % count : 0;
    for (size_t i = 0; i < count; i++) {
        tv part = tv_new_list(r, TV_LIST);
        for (size_t k = each + (i < more); k > 0; k--)
            tv_push(r, part, all.u.list->v[at++]);
        if (fill.k != TV_NONE && i >= more) tv_push(r, part, fill);
        tv_push(r, out, part);
    }
    return out;
}

static tv f_default(tp_run *r, tv v, const tp_args *a)
{
    (void)r;
    bool falsy = tp_flag(a, 1, "boolean", false) && !tv_true(v);
    return v.k == TV_UNDEF || falsy ? tp_arg(a, 0, "default_value", tv_cstr("")) : v;
}

static tv f_attr(tp_run *r, tv v, const tp_args *a)
{
    tv name = tp_need_str(r, tp_arg(a, 0, "name", tv_none()), "attr");
    return v.k == TV_DICT ? tv_undef(tp_copy(&r->base, name.u.s.p, name.u.s.n))
                          : tp_attr(r, v, name.u.s.p, name.u.s.n);
}

/* ---- filters over filters and tests ---- */
static tp_args rest(const tp_args *a, size_t from)
{
    tp_args b = *a;
    from = from < b.n ? from : b.n;
    b.v += from;
    b.n -= from;
    return b;
}

static const tp_row *named(tp_run *r, tv name, const char *what,
                           const tp_row *(*find)(const char *, size_t))
{
    tv s = tp_need_str(r, name, what);
    const tp_row *row = find(s.u.s.p, s.u.s.n);
    if (!row)
        tp_fail(&r->base, LQ_EVALUE, "No %s named '%.*s' found.", what, (int)s.u.s.n, s.u.s.p);
    return row;
}

/* What map, select and their kind walk: nothing where the value is false, none included. */
static tv some(tp_run *r, tv v) { return tv_true(v) ? tv_iter(r, v) : tv_new_list(r, TV_LIST); }

static tv f_map(tp_run *r, tv v, const tp_args *a)
{
    tv all = some(r, v), out = tv_new_list(r, TV_GEN), attr, otherwise;
    const tp_row *row = NULL;
    bool path = a->n == 0 && tp_has(a, SIZE_MAX, "attribute", &attr);
    const tv *missing =
        tp_has(a, SIZE_MAX, "default", &otherwise) && otherwise.k != TV_NONE ? &otherwise : NULL;
    tp_args args = rest(a, 1);
    if (!path && a->n == 0) tp_fail(&r->base, LQ_EVALUE, "map requires a filter argument");
    if (!path && all.u.list->n) row = named(r, a->v[0], "filter", tp_filter);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i];
        e = path ? by_path_or(r, e, attr, missing) : tp_call_row(r, row, e, &args);
        tv_push(r, out, e);
    }
    return out;
}

static tv tmpl_filters_choose(tp_run *r, tv v, const tp_args *a, bool by_attr, bool want)
{
    tv all = some(r, v), out = tv_new_list(r, TV_GEN);
    size_t at = by_attr ? 1 : 0;
    if (a->n < at) tp_fail(&r->base, LQ_EVALUE, "Missing parameter for attribute name");
    const tp_row *row = a->n > at ? named(r, a->v[at], "test", tp_test) : NULL;
    tp_args args = rest(a, at + 1);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i], x = by_attr ? by_path(r, e, a->v[0]) : e;
        if (tv_true(row ? row->f(r, x, &args) : x) == want) tv_push(r, out, e);
    }
    return out;
}
static tv f_select(tp_run *r, tv v, const tp_args *a)
{
    return tmpl_filters_choose(r, v, a, false, true);
}
static tv f_reject(tp_run *r, tv v, const tp_args *a)
{
    return tmpl_filters_choose(r, v, a, false, false);
}
static tv f_selectattr(tp_run *r, tv v, const tp_args *a)
{
    return tmpl_filters_choose(r, v, a, true, true);
}
static tv f_rejectattr(tp_run *r, tv v, const tp_args *a)
{
    return tmpl_filters_choose(r, v, a, true, false);
}

static tv f_groupby(tp_run *r, tv v, const tp_args *a)
{
    tv attr = tp_arg(a, 0, "attribute", tv_none()), out = tv_new_list(r, TV_LIST), last = tv_none();
    tv all = sorted(r, tv_iter(r, v), attr, tp_flag(a, 2, "case_sensitive", false), false);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i], key = by_path(r, e, attr);
        if (i == 0 || !tv_equal(r, last, key)) {
            tv group = tv_new_list(r, TV_TUPLE);
            tv_push(r, group, key);
            tv_push(r, group, tv_new_list(r, TV_LIST));
            group.u.list->group = true;
            tv_push(r, out, group);
        }
        tv_push(r, out.u.list->v[out.u.list->n - 1].u.list->v[1], e);
        last = key;
    }
    return out;
}

static const tp_row filters[] = {
    { "abs", f_abs, 0, false },
    { "attr", f_attr, 1, false },
    { "batch", f_batch, 2, false },
    { "capitalize", f_capitalize, 0, true },
    { "center", f_center, 1, true },
    { "count", f_length, 0, false },
    { "d", f_default, 2, false },
    { "default", f_default, 2, false },
    { "dictsort", f_dictsort, 3, false },
    { "e", f_escape, 0, false },
    { "escape", f_escape, 0, false },
    { "first", f_first, 0, false },
    { "float", f_float, 1, false },
    { "forceescape", f_forceescape, 0, false },
    { "format", f_format, -1, false },
    { "groupby", f_groupby, 3, false },
    { "indent", f_indent, 3, true },
    { "int", f_int, 2, false },
    { "items", f_items, 0, false },
    { "join", f_join, 2, false },
    { "last", f_last, 0, false },
    { "length", f_length, 0, false },
    { "list", f_list, 0, false },
    { "lower", f_lower, 0, true },
    { "map", f_map, -1, false },
    { "max", f_max, 2, false },
    { "min", f_min, 2, false },
    { "reject", f_reject, -1, false },
    { "rejectattr", f_rejectattr, -1, false },
    { "replace", f_replace, 3, false },
    { "reverse", f_reverse, 0, false },
    { "round", f_round, 2, false },
    { "safe", f_safe, 0, false },
    { "select", f_select, -1, false },
    { "selectattr", f_selectattr, -1, false },
    { "slice", f_slice, 2, false },
    { "sort", f_sort, 3, false },
    { "string", f_string, 0, false },
    { "sum", f_sum, 2, false },
    { "title", f_title, 0, false },
    { "tojson", f_tojson, 4, false },
    { "trim", f_trim, 1, true },
    { "truncate", f_truncate, 4, false },
    { "unique", f_unique, 2, false },
    { "upper", f_upper, 0, true },
    { "urlencode", f_urlencode, 0, false },
    { "wordcount", f_wordcount, 0, false },
    { "xmlattr", f_xmlattr, 1, false },
};

const tp_row *tp_filter(const char *name, size_t n)
{
    return tp_find_row(filters, LQ_COUNT(filters), name, n);
}
