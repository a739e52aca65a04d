/* runtime/chat/tmpl_globals.c - functions of the environment. */
#include "runtime/chat/tmpl_int.h"

#include <stdio.h>
#include <time.h>

static tv g_raise(tp_run *r, tv self, const tp_args *a)
{
    (void)self;
    tv s = tv_to_str(r, tp_arg(a, 0, "message", tv_cstr("raise_exception: expected a message")));
    tp_fail(&r->base, LQ_EVALUE, "%.*s", (int)(s.u.s.n < 500 ? s.u.s.n : 500), s.u.s.p);
}

/* Python's own directives of a date without a time zone: %f is a fraction, %z and %Z are empty. */
static char *date_format(tp_run *r, tv f, long nanoseconds)
{
    tp_text t = { 0 };
    char micro[32];
    snprintf(micro, sizeof micro, "%06ld", nanoseconds / 1000);
    for (size_t i = 0; i < f.u.s.n; i++) {
        char c = f.u.s.p[i], next = i + 1 < f.u.s.n ? f.u.s.p[i + 1] : 0;
        if (c == '%' && (next == 'f' || next == 'z' || next == 'Z')) {
            if (next == 'f') tp_puts(r, &t, micro);
            i++;
        } else if (c == '%' && next) {
            tp_add(r, &t, f.u.s.p + i++, 2);
        } else {
            tp_add(r, &t, &c, 1);
        }
    }
    tp_puts(r, &t, "."); /* so that an empty result is told from one that does not fit */
    return tp_copy(&r->base, t.p, t.n);
}

static tv g_strftime(tp_run *r, tv self, const tp_args *a)
{
    struct timespec now;
    struct tm tm;
    (void)self;
    tv f = tp_need_str(r, tp_arg(a, 0, "format", tv_none()), "strftime_now");
    if (clock_gettime(CLOCK_REALTIME, &now) || !localtime_r(&now.tv_sec, &tm))
        tp_fail(&r->base, LQ_EVALUE, "strftime_now: no local time");
    const char *format = date_format(r, f, now.tv_nsec);
    char *text = tp_take(&r->base, TP_MAX_DATE);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the template gives the format */
    size_t n = strftime(text, TP_MAX_DATE, format, &tm);
#pragma GCC diagnostic pop
    if (!n) tp_fail(&r->base, LQ_EVALUE, "strftime_now: a date of more than %d bytes", TP_MAX_DATE);
    return tv_str(text, n - 1);
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
    tv out = tv_new_list(r, TV_RANGE);
    memcpy(out.u.list->range, v, sizeof v);
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

/* joiner(sep): nothing at the first call, sep at the others; u.list holds sep and then a mark. */
static tv call_joiner(tp_run *r, tv self, const tp_args *a)
{
    (void)a;
    if (self.u.list->n == 1) return tv_push(r, self, tv_none()), tv_cstr("");
    return self.u.list->v[0];
}

static tv g_joiner(tp_run *r, tv self, const tp_args *a)
{
    static const tp_row row = { "joiner", call_joiner, 0, false };
    tv *state = tp_take(&r->base, sizeof *state);
    (void)self;
    *state = tv_new_list(r, TV_LIST);
    tv_push(r, *state, tp_arg(a, 0, "sep", tv_own(", ", 2)));
    return (tv){ .k = TV_CALL, .u.call = { &row, state } };
}

/* cycler(a, b, ...): next() turns, current shows, reset() begins again. A namespace of its state.
 */
static tv cycler_item(tp_run *r, tv self, int64_t step)
{
    tv items = *tv_get(r, self, tv_cstr("items")), at = *tv_get(r, self, tv_cstr("pos"));
    int64_t n = (int64_t)items.u.list->n;
    tv_set(r, self, tv_cstr("pos"), tv_int(step ? (at.u.i + step) % n : 0));
    tv_set(r, self, tv_cstr("current"), items.u.list->v[step ? (size_t)((at.u.i + step) % n) : 0]);
    return items.u.list->v[at.u.i];
}
static tv cycler_next(tp_run *r, tv self, const tp_args *a)
{
    return (void)a, cycler_item(r, self, 1);
}
static tv cycler_reset(tp_run *r, tv self, const tp_args *a)
{
    return (void)a, cycler_item(r, self, 0), tv_none();
}

static tv g_cycler(tp_run *r, tv self, const tp_args *a)
{
    static const tp_row rows[] = { { "next", cycler_next, 0, false },
                                   { "reset", cycler_reset, 0, false } };
    tv space = tv_new_dict(r), items = tv_new_list(r, TV_TUPLE);
    (void)self;
    if (!a->n) tp_fail(&r->base, LQ_EVALUE, "at least one item has to be provided");
    for (size_t i = 0; i < a->n; i++)
        tv_push(r, items, a->v[i]);
    space.k = TV_SPACE;
    tv *bound = tp_take(&r->base, sizeof *bound);
    *bound = space;
    tv_set(r, space, tv_cstr("items"), items);
    tv_set(r, space, tv_cstr("pos"), tv_int(0));
    tv_set(r, space, tv_cstr("current"), a->v[0]);
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        tv_set(r, space, tv_cstr(rows[i].name),
               (tv){ .k = TV_CALL, .u.call = { &rows[i], bound } });
    return space;
}

const tp_row tp_globals[] = {
    { "raise_exception", g_raise, 1, false }, { "strftime_now", g_strftime, 1, false },
    { "range", g_range, 3, false },           { "cycler", g_cycler, -1, false },
    { "joiner", g_joiner, 1, false },         { "dict", g_dict, -1, false },
    { "namespace", g_namespace, -1, false }
};
const size_t tp_n_globals = LQ_COUNT(tp_globals);
