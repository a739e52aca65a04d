/* runtime/chat/tmpl_args.c - what filters, tests, methods and functions share: their arguments, their
 * rows, characters. */
#include "runtime/chat/tmpl_int.h"

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

bool tp_flag(const tp_args *a, size_t i, const char *name, bool otherwise)
{
    return tv_true(tp_arg(a, i, name, tv_bool(otherwise)));
}

/* ---- texts ---- */

tv tp_escape(tp_run *r, tv v)
{
    static const struct {
        char c;
        const char *put;
    } map[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '\'', "&#39;" }, { '"', "&#34;" }
    };
    tv s = tv_to_str(r, v);
    tp_text t = { 0 };
    if (s.safe) return s;
    for (size_t i = 0; i < s.u.s.n; i++) {
        const char *put = NULL;
        for (size_t k = 0; k < LQ_COUNT(map); k++)
            if (map[k].c == s.u.s.p[i]) put = map[k].put;
        if (put)
            tp_puts(r, &t, put);
        else
            tp_add_str(r, &t, tv_sub(s, i, 1));
    }
    s = tv_text(&t);
    s.safe = true;
    return s;
}

bool tp_is_decimal(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

int tp_digit_of(uint32_t cp)
{
    int v = 0;
    if (!tp_is_decimal(cp)) return -1;
    if (cp >= 0x1D7CE && cp <= 0x1D7FF) return (int)(cp - 0x1D7CE) % 10; /* runs without a gap */
    while (v < 9 && tp_is_decimal(cp - (uint32_t)v - 1))
        v++;
    return v;
}

/* ---- rows ---- */

const tp_row *tp_find_row(const tp_row *rows, size_t n_rows, const char *name, size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) return &rows[i];
    return NULL;
}

bool tp_is_unsafe(tv v, const char *name, size_t n)
{
    static const struct {
        tv_kind k;
        const char *name;
    } changing[] = { { TV_LIST, "append" },   { TV_LIST, "clear" },     { TV_LIST, "extend" },
                     { TV_LIST, "insert" },   { TV_LIST, "pop" },       { TV_LIST, "remove" },
                     { TV_LIST, "reverse" },  { TV_LIST, "sort" },      { TV_DICT, "clear" },
                     { TV_DICT, "pop" },      { TV_DICT, "popitem" },   { TV_DICT, "setdefault" },
                     { TV_DICT, "update" },   { TV_STR, "format_map" }, { TV_STR, "encode" },
                     { TV_STR, "translate" }, { TV_STR, "maketrans" } };
    for (size_t i = 0; i < LQ_COUNT(changing); i++)
        if (changing[i].k == v.k && strlen(changing[i].name) == n &&
            memcmp(changing[i].name, name, n) == 0)
            return true;
    return false;
}
