/* runtime/tmpl_globals.c - functions of the environment, and Python's % formatting. */
#include "runtime/tmpl_int.h"

#include <stdio.h>
#include <time.h>

static tv g_raise(tp_run *r, tv self, const tp_args *a)
{
    (void)self;
    tv s = tv_to_str(r, a->n ? a->v[0] : tv_cstr(""));
    tp_fail(&r->base, LQ_EVALUE, "%.*s", (int)(s.u.s.n < 500 ? s.u.s.n : 500), s.u.s.p);
}

static tv g_strftime(tp_run *r, tv self, const tp_args *a)
{
    char text[256];
    time_t now = time(NULL);
    struct tm tm;
    (void)self;
    tv f = tp_need_str(r, a->n ? a->v[0] : tv_none(), "strftime_now");
    const char *format = tp_copy(&r->base, f.u.s.p, f.u.s.n);
    if (!localtime_r(&now, &tm)) tp_fail(&r->base, LQ_EVALUE, "strftime_now: no local time");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the template gives the format */
    size_t n = strftime(text, sizeof text, format, &tm);
#pragma GCC diagnostic pop
    return tv_str(tp_copy(&r->base, text, n), n);
}

static tv g_range(tp_run *r, tv self, const tp_args *a)
{
    int64_t v[3] = { 0, 0, 1 };
    (void)self;
    if (a->n < 1 || a->n > 3)
        tp_fail(&r->base, LQ_EVALUE, "range expected 1 to 3 arguments, got %zu", a->n);
    for (size_t i = 0; i < a->n; i++)
        v[a->n == 1 ? 1 : i] = tp_need_int(r, a->v[i], "range");
    if (v[2] == 0) tp_fail(&r->base, LQ_EVALUE, "range() arg 3 must not be zero");
    tv out = tv_new_list(r, TV_LIST);
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (out.u.list->n == TP_MAX_RANGE)
            tp_fail(&r->base, LQ_EVALUE,
                    "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                    TP_MAX_RANGE);
        tv_push(r, out, tv_int(i));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return out;
}

static tv g_dict(tp_run *r, tv self, const tp_args *a)
{
    tv d = tv_new_dict(r);
    (void)self;
    if (a->n && a->v[0].k == TV_DICT) {
        for (size_t i = 0; i < a->v[0].u.dict->n; i++)
            tv_set(r, d, a->v[0].u.dict->e[i].key, a->v[0].u.dict->e[i].value);
    } else if (a->n) {
        tv pairs = tv_iter(r, a->v[0]);
        for (size_t i = 0; i < pairs.u.list->n; i++) {
            tv pair = tv_iter(r, pairs.u.list->v[i]);
            if (pair.u.list->n != 2) tp_fail(&r->base, LQ_EVALUE, "dict: expected pairs");
            tv_set(r, d, pair.u.list->v[0], pair.u.list->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_named; i++)
        tv_set(r, d, tv_cstr(a->names[i]), a->named[i]);
    return d;
}

static tv g_namespace(tp_run *r, tv self, const tp_args *a)
{
    tv d = g_dict(r, self, a);
    d.k = TV_SPACE;
    return d;
}

const tp_row tp_globals[] = { { "raise_exception", g_raise },
                              { "strftime_now", g_strftime },
                              { "range", g_range },
                              { "dict", g_dict },
                              { "namespace", g_namespace } };
const size_t tp_n_globals = LQ_COUNT(tp_globals);

/* ---- fmt % args ---- */
typedef struct {
    char flags[8];
    int width, precision; /* precision -1: none */
    char conversion;
} spec;

static void format_number(tp_run *r, tp_text *t, const spec *s, tv v)
{
    char f[64], out[512];
    int64_t i = 0;
    const char c = s->conversion;
    const bool whole = strchr("dixXo", c) != NULL;
    if (!tv_is_num(v))
        tp_fail(&r->base, LQ_EVALUE, "%%%c format: a number is required, not %s", c, tv_type(v));
    double d = tv_as_float(v);
    if (whole && !tv_as_int(v, &i)) {
        if (!(fabs(d) < 9e18))
            tp_fail(&r->base, LQ_EVALUE, "%%%c format: a number beyond 64 bits", c);
        i = (int64_t)d;
    }
    char width[16] = "", precision[16] = ""; /* a width of 0 would read as the flag 0 */
    if (s->width) snprintf(width, sizeof width, "%d", s->width);
    if (s->precision >= 0) snprintf(precision, sizeof precision, ".%d", s->precision);
    snprintf(f, sizeof f, "%%%s%s%s%s%c", s->flags, width, precision, whole ? "ll" : "", c);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* made above from checked parts */
    if (whole)
        snprintf(out, sizeof out, f, (long long)i);
    else
        snprintf(out, sizeof out, f, d);
#pragma GCC diagnostic pop
    tp_puts(r, t, out);
}

static void format_text(tp_run *r, tp_text *t, const spec *s, tv v)
{
    tp_text x = { 0 };
    if (s->conversion == 'r')
        tv_repr(r, &x, v);
    else
        tv_print(r, &x, v);
    tv text = tv_text(&x);
    if (s->precision >= 0) text = tv_slice(r, text, tv_none(), tv_int(s->precision), tv_none());
    int64_t gap = s->width - tv_len(r, text);
    bool left = strchr(s->flags, '-') != NULL;
    for (int64_t i = 0; !left && i < gap; i++)
        tp_puts(r, t, " ");
    tp_add(r, t, text.u.s.p, text.u.s.n);
    for (int64_t i = 0; left && i < gap; i++)
        tp_puts(r, t, " ");
}

static int read_count(tp_run *r, tv f, size_t *i)
{
    int v = 0;
    for (; *i < f.u.s.n && f.u.s.p[*i] >= '0' && f.u.s.p[*i] <= '9'; ++*i) {
        v = v * 10 + (f.u.s.p[*i] - '0');
        if (v > 100) tp_fail(&r->base, LQ_EVALUE, "format: a width above 100");
    }
    return v;
}

tv tp_format(tp_run *r, tv f, tv args)
{
    tp_text t = { 0 };
    size_t next = 0;
    for (size_t i = 0; i < f.u.s.n; i++) {
        spec s = { .precision = -1 };
        tv v = args;
        bool by_name = false;
        if (f.u.s.p[i] != '%') {
            tp_add(r, &t, f.u.s.p + i, 1);
            continue;
        }
        i++;
        if (i < f.u.s.n && f.u.s.p[i] == '(') {
            const char *close = memchr(f.u.s.p + i, ')', f.u.s.n - i);
            if (!close || args.k != TV_DICT)
                tp_fail(&r->base, LQ_EVALUE, "format requires a mapping");
            size_t end = (size_t)(close - f.u.s.p);
            v = tp_item(r, args, tv_str(f.u.s.p + i + 1, end - i - 1));
            by_name = true;
            i = end + 1;
        }
        for (size_t k = 0; i < f.u.s.n && f.u.s.p[i] && strchr("-+ 0#", f.u.s.p[i]); i++)
            if (k < 6 && !strchr(s.flags, f.u.s.p[i])) s.flags[k++] = f.u.s.p[i];
        s.width = read_count(r, f, &i);
        if (i < f.u.s.n && f.u.s.p[i] == '.') i++, s.precision = read_count(r, f, &i);
        s.conversion = i < f.u.s.n ? f.u.s.p[i] : 0;
        if (s.conversion == '%') {
            tp_puts(r, &t, "%");
            continue;
        }
        if (!s.conversion || !strchr("srdixXofFeEgG", s.conversion))
            tp_fail(&r->base, LQ_EVALUE, "unsupported format character '%c'",
                    s.conversion ? s.conversion : ' ');
        if (s.conversion == 'i') s.conversion = 'd';
        if (!by_name && args.k == TV_TUPLE) {
            if (next >= args.u.list->n)
                tp_fail(&r->base, LQ_EVALUE, "not enough arguments for format string");
            v = args.u.list->v[next];
        } else if (!by_name && next > 0) {
            tp_fail(&r->base, LQ_EVALUE, "not enough arguments for format string");
        }
        next++;
        if (s.conversion == 's' || s.conversion == 'r')
            format_text(r, &t, &s, v);
        else
            format_number(r, &t, &s, v);
    }
    if ((args.k == TV_TUPLE ? next < args.u.list->n
                            : next == 0 && args.k != TV_DICT && args.k != TV_LIST))
        tp_fail(&r->base, LQ_EVALUE, "not all arguments converted during string formatting");
    return tv_text(&t);
}
