/* runtime/tmpl_filters.c - Jinja2's filters and tests, as far as chat templates use them. */
#include "runtime/tmpl_int.h"

#include "runtime/tok_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- arguments ---- */
bool tp_has(const tp_args *a, size_t i, const char *name, tv *v)
{
    for (size_t k = 0; k < a->n_named; k++)
        if (strcmp(a->names[k], name) == 0) return *v = a->named[k], true;
    if (i >= a->n) return false;
    *v = a->v[i];
    return true;
}

tv tp_arg(const tp_args *a, size_t i, const char *name, tv otherwise)
{
    tv v;
    return tp_has(a, i, name, &v) ? v : otherwise;
}

tv tp_need_str(tp_run *r, tv v, const char *what)
{
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (v.k != TV_STR) tp_fail(&r->base, LQ_EVALUE, "%s: expected str, found %s", what, tv_type(v));
    return v;
}

int64_t tp_need_int(tp_run *r, tv v, const char *what)
{
    int64_t i;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (!tv_as_int(v, &i))
        tp_fail(&r->base, LQ_EVALUE, "%s: expected int, found %s", what, tv_type(v));
    return i;
}

static bool flag(const tp_args *a, size_t i, const char *name, bool otherwise)
{
    return tv_true(tp_arg(a, i, name, tv_bool(otherwise)));
}

/* A method of str as a filter: the value's text is its self. */
static tv as_method(tp_run *r, tv v, const char *name, const tp_args *a)
{
    tv s = tv_to_str(r, v);
    return tp_method(s, name, strlen(name))->f(r, s, a);
}

#define STR_FILTER(name) \
    static tv f_##name(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, #name, a); }
STR_FILTER(upper)
STR_FILTER(lower)
STR_FILTER(capitalize)
STR_FILTER(replace)
STR_FILTER(center)

static tv f_trim(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, "strip", a); }

/* ---- texts ---- */
/* Jinja's own: words begin behind space, -, (, {, [ and <. */
static tv f_title(tp_run *r, tv v, const tp_args *a)
{
    tv s = tv_to_str(r, v);
    tp_text t = { 0 };
    bool first = true;
    (void)a;
    for (size_t i = 0, len; i < s.u.s.n; i += len) {
        uint32_t cp = tok_utf8_get((const uint8_t *)s.u.s.p + i, &len);
        tv c = as_method(r, tv_str(s.u.s.p + i, len), first ? "upper" : "lower", &(tp_args){ 0 });
        tp_add(r, &t, c.u.s.p, c.u.s.n);
        first = tok_is_space(cp) || (cp < 128 && cp && strchr("-({[<", (int)cp));
    }
    return tv_text(&t);
}

static tv f_string(tp_run *r, tv v, const tp_args *a) { return (void)a, tv_to_str(r, v); }
static tv f_same(tp_run *r, tv v, const tp_args *a) { return (void)r, (void)a, v; }

static tv f_escape(tp_run *r, tv v, const tp_args *a)
{
    static const struct {
        char c;
        const char *put;
    } map[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '\'', "&#39;" }, { '"', "&#34;" }
    };
    (void)a;
    tv s = tv_to_str(r, v);
    tp_text t = { 0 };
    for (size_t i = 0; i < s.u.s.n; i++) {
        const char *put = NULL;
        for (size_t k = 0; k < LQ_COUNT(map); k++)
            if (map[k].c == s.u.s.p[i]) put = map[k].put;
        if (put)
            tp_puts(r, &t, put);
        else
            tp_add(r, &t, s.u.s.p + i, 1);
    }
    return tv_text(&t);
}

static tv f_indent(tp_run *r, tv v, const tp_args *a)
{
    tv s = tv_to_str(r, v), width = tp_arg(a, 0, "width", tv_int(4));
    bool first = flag(a, 1, "first", false), blank = flag(a, 2, "blank", false);
    tp_text pad = { 0 }, t = { 0 };
    if (width.k == TV_STR)
        tp_add(r, &pad, width.u.s.p, width.u.s.n);
    else
        for (int64_t i = tp_need_int(r, width, "indent"); i > 0; i--)
            tp_puts(r, &pad, " ");
    for (size_t i = 0, line = 0; i <= s.u.s.n; i = line, first = true) {
        const char *nl = i < s.u.s.n ? memchr(s.u.s.p + i, '\n', s.u.s.n - i) : NULL;
        size_t end = nl ? (size_t)(nl - s.u.s.p) : s.u.s.n;
        if (first && (end > i || blank || i == 0)) tp_add(r, &t, pad.p, pad.n);
        tp_add(r, &t, s.u.s.p + i, end - i + (nl != NULL));
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
    tv_json_opts o = { .ascii = flag(a, 0, "ensure_ascii", false),
                       .sort = flag(a, 3, "sort_keys", false) };
    tp_text pad = { 0 }, t = { 0 };
    if (indent.k == TV_STR) {
        tp_add(r, &pad, indent.u.s.p, indent.u.s.n);
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

/* ---- numbers ---- */
static tv parse_number(tp_run *r, tv v, bool whole, int64_t base, tv otherwise)
{
    int64_t i;
    if (v.k == TV_FLOAT) {
        if (!whole) return v;
        return isfinite(v.u.f) && fabs(v.u.f) < 9e18 ? tv_int((int64_t)v.u.f) : otherwise;
    }
    if (tv_as_int(v, &i)) return whole ? tv_int(i) : tv_float((double)i);
    if (v.k != TV_STR) return otherwise;
    tv s = as_method(r, v, "strip", &(tp_args){ 0 });
    char text[64], *end = text;
    size_t n = 0;
    for (size_t k = 0; k < s.u.s.n; k++) {
        if (s.u.s.p[k] == '_') continue;
        if (n + 1 == sizeof text || !s.u.s.p[k]) return otherwise;
        text[n++] = s.u.s.p[k];
    }
    text[n] = 0;
    if (!n || (text[0] == '0' && (text[1] | 32) == 'x' && base != 16)) return otherwise;
    if (whole) {
        long long parsed = strtoll(text, &end, (int)base);
        if (*end == 0 && parsed > INT64_MIN && parsed < INT64_MAX) return tv_int(parsed);
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
        if (v.k == TV_INT && places >= 0) return v;
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
    tv all = tv_iter(r, v);
    return (void)a, all.u.list->n ? all.u.list->v[0] : tv_undef("the first of nothing");
}

static tv f_last(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v);
    return (void)a,
           all.u.list->n ? all.u.list->v[all.u.list->n - 1] : tv_undef("the last of nothing");
}

static tv f_reverse(tp_run *r, tv v, const tp_args *a)
{
    (void)a;
    if (v.k == TV_STR) return tv_slice(r, v, tv_none(), tv_none(), tv_int(-1));
    return tv_slice(r, f_list(r, v, a), tv_none(), tv_none(), tv_int(-1));
}

/* value.a.0.b */
static tv by_path(tp_run *r, tv v, tv path)
{
    if (path.k != TV_STR) return tp_item(r, v, path);
    for (size_t i = 0, e; i <= path.u.s.n; i = e + 1) {
        for (e = i; e < path.u.s.n && path.u.s.p[e] != '.';)
            e++;
        bool digits = e > i;
        int64_t n = 0;
        for (size_t k = i; k < e && digits; k++) {
            digits = path.u.s.p[k] >= '0' && path.u.s.p[k] <= '9' && k - i < 9;
            n = digits ? n * 10 + (path.u.s.p[k] - '0') : n;
        }
        v = tp_item(r, v, digits ? tv_int(n) : tv_str(path.u.s.p + i, e - i));
    }
    return v;
}

static tv f_join(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), d = tv_to_str(r, tp_arg(a, 0, "d", tv_cstr(""))), attr;
    bool path = tp_has(a, 1, "attribute", &attr);
    tp_text t = { 0 };
    for (size_t i = 0; i < all.u.list->n; i++) {
        if (i) tp_add(r, &t, d.u.s.p, d.u.s.n);
        tv_print(r, &t, path ? by_path(r, all.u.list->v[i], attr) : all.u.list->v[i]);
    }
    return tv_text(&t);
}

static tv f_sum(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), attr;
    bool path = tp_has(a, 0, "attribute", &attr) && attr.k != TV_NONE;
    tv start = tp_arg(a, 1, "start", tv_int(0));
    double f = tv_is_num(start) ? tv_as_float(start) : 0;
    int64_t sum = 0, x;
    bool whole = tv_as_int(start, &sum);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = path ? by_path(r, all.u.list->v[i], attr) : all.u.list->v[i];
        if (!tv_is_num(e) || !tv_is_num(start))
            tp_fail(&r->base, LQ_EVALUE, "unsupported operand type(s) for +: 'int' and '%s'",
                    tv_type(e));
        whole = whole && tv_as_int(e, &x) && !__builtin_add_overflow(sum, x, &sum);
        f += tv_as_float(e);
    }
    return whole ? tv_int(sum) : tv_float(f);
}

/* A key for sorting and telling apart: text without regard to case, unless asked for. */
static tv sort_key(tp_run *r, tv v, tv attr, bool case_sensitive)
{
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
                  flag(a, 1, "case_sensitive", false), flag(a, 0, "reverse", false));
}

static tv f_unique(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_LIST), seen = tv_new_dict(r);
    bool cs = flag(a, 0, "case_sensitive", false);
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
    bool cs = flag(a, 0, "case_sensitive", false);
    if (!all.u.list->n) return tv_undef("the extreme of nothing");
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
    if (v.k == TV_UNDEF) return tv_new_list(r, TV_LIST);
    if (v.k != TV_DICT) tp_fail(&r->base, LQ_EVALUE, "Can only get item pairs from a mapping.");
    return tp_method(v, "items", 5)->f(r, v, a);
}

static tv f_dictsort(tp_run *r, tv v, const tp_args *a)
{
    tv by = tp_arg(a, 1, "by", tv_cstr("key"));
    bool value = by.k == TV_STR && by.u.s.n == 5;
    return sorted(r, f_items(r, v, &(tp_args){ 0 }), tv_int(value),
                  flag(a, 0, "case_sensitive", false), flag(a, 2, "reverse", false));
}

static tv f_batch(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_LIST), row = tv_none(), fill;
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

static tv f_default(tp_run *r, tv v, const tp_args *a)
{
    (void)r;
    bool falsy = flag(a, 1, "boolean", false) && !tv_true(v);
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
    if (!row) tp_fail(&r->base, LQ_EVALUE, "No %s named '%.*s'.", what, (int)s.u.s.n, s.u.s.p);
    return row;
}

static tv f_map(tp_run *r, tv v, const tp_args *a)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_LIST), attr, otherwise;
    const tp_row *row = NULL;
    bool path = a->n == 0 && tp_has(a, SIZE_MAX, "attribute", &attr);
    bool has_default = tp_has(a, SIZE_MAX, "default", &otherwise);
    tp_args args = rest(a, 1);
    if (!path && a->n == 0) tp_fail(&r->base, LQ_EVALUE, "map requires a filter argument");
    if (!path) row = named(r, a->v[0], "filter", tp_filter);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i];
        e = path ? by_path(r, e, attr) : row->f(r, e, &args);
        if (path && has_default && e.k == TV_UNDEF) e = otherwise;
        tv_push(r, out, e);
    }
    return out;
}

static tv choose(tp_run *r, tv v, const tp_args *a, bool by_attr, bool want)
{
    tv all = tv_iter(r, v), out = tv_new_list(r, TV_LIST);
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
static tv f_select(tp_run *r, tv v, const tp_args *a) { return choose(r, v, a, false, true); }
static tv f_reject(tp_run *r, tv v, const tp_args *a) { return choose(r, v, a, false, false); }
static tv f_selectattr(tp_run *r, tv v, const tp_args *a) { return choose(r, v, a, true, true); }
static tv f_rejectattr(tp_run *r, tv v, const tp_args *a) { return choose(r, v, a, true, false); }

static tv f_groupby(tp_run *r, tv v, const tp_args *a)
{
    tv attr = tp_arg(a, 0, "attribute", tv_none()), out = tv_new_list(r, TV_LIST), last = tv_none();
    tv all = sorted(r, tv_iter(r, v), attr, flag(a, 2, "case_sensitive", false), false);
    for (size_t i = 0; i < all.u.list->n; i++) {
        tv e = all.u.list->v[i], key = by_path(r, e, attr);
        if (i == 0 || !tv_equal(r, last, key)) {
            tv group = tv_new_list(r, TV_TUPLE);
            tv_push(r, group, key);
            tv_push(r, group, tv_new_list(r, TV_LIST));
            tv_push(r, out, group);
        }
        tv_push(r, out.u.list->v[out.u.list->n - 1].u.list->v[1], e);
        last = key;
    }
    return out;
}

static const tp_row filters[] = {
    { "abs", f_abs },           { "attr", f_attr },
    { "batch", f_batch },       { "capitalize", f_capitalize },
    { "center", f_center },     { "count", f_length },
    { "d", f_default },         { "default", f_default },
    { "dictsort", f_dictsort }, { "e", f_escape },
    { "escape", f_escape },     { "first", f_first },
    { "float", f_float },       { "format", f_format },
    { "groupby", f_groupby },   { "indent", f_indent },
    { "int", f_int },           { "items", f_items },
    { "join", f_join },         { "last", f_last },
    { "length", f_length },     { "list", f_list },
    { "lower", f_lower },       { "map", f_map },
    { "max", f_max },           { "min", f_min },
    { "reject", f_reject },     { "rejectattr", f_rejectattr },
    { "replace", f_replace },   { "reverse", f_reverse },
    { "round", f_round },       { "safe", f_same },
    { "select", f_select },     { "selectattr", f_selectattr },
    { "sort", f_sort },         { "string", f_string },
    { "sum", f_sum },           { "title", f_title },
    { "tojson", f_tojson },     { "trim", f_trim },
    { "unique", f_unique },     { "upper", f_upper },
};

/* ---- tests ---- */
#define KIND_TEST(name, cond)                              \
    static tv is_##name(tp_run *r, tv v, const tp_args *a) \
    {                                                      \
        (void)r, (void)a;                                  \
        return tv_bool(cond);                              \
    }
KIND_TEST(defined, v.k != TV_UNDEF)
KIND_TEST(undefined, v.k == TV_UNDEF)
KIND_TEST(none, v.k == TV_NONE)
KIND_TEST(boolean, v.k == TV_BOOL)
KIND_TEST(true, v.k == TV_BOOL && v.u.b)
KIND_TEST(false, v.k == TV_BOOL && !v.u.b)
KIND_TEST(integer, v.k == TV_INT)
KIND_TEST(float, v.k == TV_FLOAT)
KIND_TEST(number, tv_is_num(v))
KIND_TEST(string, v.k == TV_STR)
KIND_TEST(mapping, v.k == TV_DICT)
KIND_TEST(iterable,
          v.k == TV_STR || v.k == TV_LIST || v.k == TV_TUPLE || v.k == TV_DICT || v.k == TV_UNDEF)
KIND_TEST(sequence,
          v.k == TV_STR || v.k == TV_LIST || v.k == TV_TUPLE || v.k == TV_DICT || v.k == TV_UNDEF)
KIND_TEST(callable, v.k == TV_CALL || v.k == TV_MACRO)

static tv operand(tp_run *r, const tp_args *a)
{
    if (a->n < 1) tp_fail(&r->base, LQ_EVALUE, "a test without its operand");
    return a->v[0];
}

#define ORDER_TEST(name, cond)                             \
    static tv is_##name(tp_run *r, tv v, const tp_args *a) \
    {                                                      \
        tv o = operand(r, a);                              \
        return tv_bool(cond);                              \
    }
ORDER_TEST(eq, tv_equal(r, v, o))
ORDER_TEST(ne, !tv_equal(r, v, o))
ORDER_TEST(lt, tv_compare(r, v, o, "<") < 0)
ORDER_TEST(le, tv_compare(r, v, o, "<=") <= 0)
ORDER_TEST(gt, tv_compare(r, v, o, ">") > 0)
ORDER_TEST(ge, tv_compare(r, v, o, ">=") >= 0)
ORDER_TEST(in, tv_contains(r, o, v))
ORDER_TEST(sameas, v.k == o.k && (v.k == TV_LIST || v.k == TV_DICT ? v.u.list == o.u.list
                                                                   : tv_equal(r, v, o)))

static int64_t modulo(tp_run *r, tv v, int64_t m)
{
    int64_t i = tp_need_int(r, v, "divisibleby");
    if (m == 0) tp_fail(&r->base, LQ_EVALUE, "integer modulo by zero");
    return m == -1 ? 0 : i % m;
}
static tv is_even(tp_run *r, tv v, const tp_args *a)
{
    return (void)a, tv_bool(modulo(r, v, 2) == 0);
}
static tv is_odd(tp_run *r, tv v, const tp_args *a)
{
    return (void)a, tv_bool(modulo(r, v, 2) != 0);
}
static tv is_divisibleby(tp_run *r, tv v, const tp_args *a)
{
    return tv_bool(modulo(r, v, tp_need_int(r, operand(r, a), "divisibleby")) == 0);
}
static tv is_lower(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, "islower", a); }
static tv is_upper(tp_run *r, tv v, const tp_args *a) { return as_method(r, v, "isupper", a); }
static tv is_filter(tp_run *r, tv v, const tp_args *a)
{
    return (void)r, (void)a, tv_bool(v.k == TV_STR && tp_filter(v.u.s.p, v.u.s.n));
}
static tv is_test(tp_run *r, tv v, const tp_args *a)
{
    return (void)r, (void)a, tv_bool(v.k == TV_STR && tp_test(v.u.s.p, v.u.s.n));
}

static const tp_row tests[] = {
    { "boolean", is_boolean },
    { "callable", is_callable },
    { "defined", is_defined },
    { "divisibleby", is_divisibleby },
    { "eq", is_eq },
    { "equalto", is_eq },
    { "even", is_even },
    { "false", is_false },
    { "filter", is_filter },
    { "float", is_float },
    { "ge", is_ge },
    { "greaterthan", is_gt },
    { "gt", is_gt },
    { "in", is_in },
    { "integer", is_integer },
    { "iterable", is_iterable },
    { "le", is_le },
    { "lessthan", is_lt },
    { "lower", is_lower },
    { "lt", is_lt },
    { "mapping", is_mapping },
    { "ne", is_ne },
    { "none", is_none },
    { "number", is_number },
    { "odd", is_odd },
    { "sameas", is_sameas },
    { "sequence", is_sequence },
    { "string", is_string },
    { "test", is_test },
    { "true", is_true },
    { "undefined", is_undefined },
    { "upper", is_upper },
    { "==", is_eq },
    { "!=", is_ne },
    { "<", is_lt },
    { "<=", is_le },
    { ">", is_gt },
    { ">=", is_ge },
};

static const tp_row *find(const tp_row *rows, size_t n_rows, const char *name, size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) return &rows[i];
    return NULL;
}

const tp_row *tp_filter(const char *name, size_t n)
{
    return find(filters, LQ_COUNT(filters), name, n);
}
const tp_row *tp_test(const char *name, size_t n) { return find(tests, LQ_COUNT(tests), name, n); }
