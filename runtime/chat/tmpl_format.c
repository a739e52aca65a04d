/* runtime/chat/tmpl_format.c - Python's two ways to fill in a text: fmt % args and fmt.format(...). */
#include "runtime/chat/tmpl_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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
    if (v.k == TV_STR && v.safe)
        tp_fail(&r->base, LQ_EUNSUPPORTED, "format: a safe text is not supported");
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
    tp_add_str(r, t, text);
    for (int64_t i = 0; left && i < gap; i++)
        tp_puts(r, t, " ");
}

static int read_count(tp_run *r, tv f, size_t *i)
{
    int v = 0;
    for (; *i < f.u.s.n && f.u.s.p[*i] >= '0' && f.u.s.p[*i] <= '9'; ++*i) {
        v = v * 10 + (f.u.s.p[*i] - '0');
        if (v > TP_MAX_WIDTH)
            tp_fail(&r->base, LQ_EVALUE, "format: a width above %d", TP_MAX_WIDTH);
    }
    return v;
}

tv tp_format(tp_run *r, tv f, tv args)
{
    tp_text t = { 0 };
    size_t next = 0;
    if (f.safe) tp_fail(&r->base, LQ_EUNSUPPORTED, "format: a safe text is not supported");
    for (size_t i = 0; i < f.u.s.n; i++) {
        spec s = { .precision = -1 };
        tv v = args;
        bool by_name = false;
        if (f.u.s.p[i] != '%') {
            tp_add_str(r, &t, tv_sub(f, i, 1));
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
        if (i < f.u.s.n && f.u.s.p[i] == '*') {
            int64_t w = args.k == TV_TUPLE && next < args.u.list->n
                            ? tp_need_int(r, args.u.list->v[next++], "format")
                            : 0;
            if (w < 0 || w > TP_MAX_WIDTH)
                tp_fail(&r->base, LQ_EVALUE, "format: expected a width of 0 to %d", TP_MAX_WIDTH);
            s.width = (int)w;
            i++;
        } else {
            s.width = read_count(r, f, &i);
        }
        if (i < f.u.s.n && f.u.s.p[i] == '.') i++, s.precision = read_count(r, f, &i);
        s.conversion = i < f.u.s.n ? f.u.s.p[i] : 0;
        if (s.conversion == '%') {
            tp_puts(r, &t, "%");
            continue;
        }
        if (!s.conversion || !strchr("srcdiuxXofFeEgG", s.conversion))
            tp_fail(&r->base, LQ_EVALUE, "unsupported format character '%c'",
                    s.conversion ? s.conversion : ' ');
        if (s.conversion == 'i' || s.conversion == 'u') s.conversion = 'd';
        if (!by_name && args.k == TV_TUPLE) {
            if (next >= args.u.list->n)
                tp_fail(&r->base, LQ_EVALUE, "not enough arguments for format string");
            v = args.u.list->v[next];
        } else if (!by_name && next > 0) {
            tp_fail(&r->base, LQ_EVALUE, "not enough arguments for format string");
        }
        next++;
        if (s.conversion == 'c' && !(v.k == TV_STR && tv_len(r, v) == 1))
            tp_fail(&r->base, LQ_EVALUE, "%%c requires a text of one character");
        if (strchr("src", s.conversion))
            format_text(r, &t, &s, v);
        else
            format_number(r, &t, &s, v);
    }
    if ((args.k == TV_TUPLE ? next < args.u.list->n
                            : next == 0 && args.k != TV_DICT && args.k != TV_LIST))
        tp_fail(&r->base, LQ_EVALUE, "not all arguments converted during string formatting");
    return tv_text(&t);
}

/* ---- fmt.format(...) ---- */
typedef struct {
    tv fill;
    char align, sign, group, type; /* 0: not given */
    bool alt;
    int64_t width, precision; /* -1: not given */
} layout;

static bool is_align(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
static layout read_layout(tp_run *r, tv how)
{
    layout l = { .fill = tv_cstr(" "), .width = -1, .precision = -1 };
    size_t i = 0, first = how.u.s.n ? tv_char_at(how, 1) : 0;
    const char *p = how.u.s.p;
    const size_t n = how.u.s.n;
    if (first < n && is_align(p[first])) {
        l.fill = tv_sub(how, 0, first);
        l.align = p[first];
        i = first + 1;
    } else if (n && is_align(p[0])) {
        l.align = p[i++];
    }
    if (i < n && p[i] && strchr("+- ", p[i])) l.sign = p[i++];
    if (i < n && p[i] == '#') l.alt = true, i++;
    if (i < n && p[i] == '0') {
        if (!l.align) l.fill = tv_cstr("0"), l.align = '=';
        i++;
    }
    if (i < n && p[i] >= '0' && p[i] <= '9') l.width = read_count(r, how, &i);
    if (i < n && (p[i] == ',' || p[i] == '_')) l.group = p[i++];
    if (i < n && p[i] == '.') i++, l.precision = read_count(r, how, &i);
    if (i < n) l.type = p[i++];
    if (i < n) tp_fail(&r->base, LQ_EVALUE, "Invalid format specifier '%.*s'", (int)n, p);
    return l;
}

/* Separators between groups of three digits of the whole part. */
static void add_grouped(tp_run *r, tp_text *t, const char *digits, char sep)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (sep && i && (whole - i) % 3 == 0) tp_add(r, t, &sep, 1);
        tp_add(r, t, digits + i, 1);
    }
    tp_puts(r, t, digits + whole);
}

/* |v| without its sign as `type` shows it. */
static int number_digits(tp_run *r, char *out, size_t n, tv v, const layout *l)
{
    double d = fabs(tv_as_float(v));
    int places = l->precision < 0 ? 6 : (int)l->precision;
    int64_t i = 0;
    bool whole = tv_as_int(v, &i);
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    tp_text t = { 0 };
    switch (l->type ? l->type : whole ? 'd' : 0) {
    case 0:
        if (l->precision >= 0) break;
        tv_print_float(r, &t, d);
        return snprintf(out, n, "%.*s", (int)t.n, t.p);
    case 'd':
        if (whole) return snprintf(out, n, "%" PRIu64, u);
        break;
    case 'x':
        if (whole) return snprintf(out, n, "%s%" PRIx64, l->alt ? "0x" : "", u);
        break;
    case 'X':
        if (whole) return snprintf(out, n, "%s%" PRIX64, l->alt ? "0X" : "", u);
        break;
    case 'o':
        if (whole) return snprintf(out, n, "%s%" PRIo64, l->alt ? "0o" : "", u);
        break;
    case 'f':
    case 'F':
        return snprintf(out, n, "%.*f", places, d);
    case 'e':
        return snprintf(out, n, "%.*e", places, d);
    case 'E':
        return snprintf(out, n, "%.*E", places, d);
    case 'g':
        return snprintf(out, n, "%.*g", places, d);
    case 'G':
        return snprintf(out, n, "%.*G", places, d);
    case '%':
        return snprintf(out, n, "%.*f%%", places, d * 100);
    default:
        break;
    }
    tp_fail(&r->base, LQ_EUNSUPPORTED, "format: code '%c' for '%s' is not supported",
            l->type ? l->type : ' ', tv_type(v));
}

static void add_fill(tp_run *r, tp_text *t, tv fill, int64_t n)
{
    for (; n > 0; n--)
        tp_add_str(r, t, fill);
}

static void add_laid_out(tp_run *r, tp_text *t, tv v, tv how)
{
    char digits[512];
    const char *sign = "";
    tp_text x = { 0 };
    layout l = read_layout(r, how);
    bool number = tv_is_num(v) && !(v.k == TV_BOOL && !l.type);
    if (number) {
        (void)number_digits(r, digits, sizeof digits, v, &l);
        sign = signbit(tv_as_float(v)) ? "-" : l.sign == '+' ? "+" : l.sign == ' ' ? " " : "";
        add_grouped(r, &x, digits, l.group);
    } else {
        if (v.k != TV_STR && v.k != TV_BOOL && how.u.s.n)
            tp_fail(&r->base, LQ_EVALUE, "unsupported format string passed to %s.__format__",
                    tv_type(v));
        if (l.type && l.type != 's')
            tp_fail(&r->base, LQ_EVALUE, "Unknown format code '%c' for object of type '%s'", l.type,
                    tv_type(v));
        tv_print(r, &x, v);
    }
    tv text = tv_text(&x);
    if (!number && l.precision >= 0)
        text = tv_slice(r, text, tv_none(), tv_int(l.precision), tv_none());
    int64_t gap = l.width - tv_len(r, text) - (int64_t)strlen(sign);
    char align = l.align ? l.align : number ? '>' : '<';
    int64_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
    add_fill(r, t, l.fill, left);
    tp_puts(r, t, sign);
    if (align == '=') add_fill(r, t, l.fill, gap);
    tp_add_str(r, t, text);
    if (align == '<' || align == '^') add_fill(r, t, l.fill, gap - (left > 0 ? left : 0));
}

/* name, 0, or nothing for the next; then .attribute and [item] */
static tv read_field(tp_run *r, tv path, const tp_args *a, size_t *next)
{
    const char *p = path.u.s.p;
    size_t n = path.u.s.n, i = 0, e = 0;
    tv v;
    while (e < n && p[e] != '.' && p[e] != '[')
        e++;
    const char *name = tp_copy(&r->base, p, e);
    bool number = e > 0 && strspn(name, "0123456789") == e;
    size_t at = e == 0 ? (*next)++ : number && e < 9 ? strtoul(name, NULL, 10) : SIZE_MAX;
    if (at != SIZE_MAX && at >= a->n)
        tp_fail(&r->base, LQ_EVALUE, "Replacement index %zu out of range for positional args tuple",
                at);
    if (!tp_has(a, at, name, &v)) tp_fail(&r->base, LQ_EVALUE, "'%s'", name);
    for (i = e; i < n; i = e) {
        bool item = p[i] == '[';
        for (e = ++i; e < n && (item ? p[e] != ']' : p[e] != '.' && p[e] != '[');)
            e++;
        tv key = tv_sub(path, i, e - i);
        const char *text = tp_copy(&r->base, p + i, e - i);
        if (item && e - i > 0 && strspn(text, "0123456789") == e - i)
            key = tv_int(strtoll(text, NULL, 10));
        v = item ? tp_item(r, v, key) : tp_attr(r, v, p + i, e - i);
        if (v.k == TV_UNDEF) tp_no_value(r, v);
        e += item;
    }
    return v;
}

/* Where the field that opens before i ends: its '}', with braces inside matched. */
static size_t field_end(tp_run *r, tv s, size_t i)
{
    int depth = 0;
    for (; i < s.u.s.n; i++) {
        if (s.u.s.p[i] == '{') depth++;
        if (s.u.s.p[i] == '}' && depth-- == 0) return i;
    }
    tp_fail(&r->base, LQ_EVALUE, "expected '}' before end of string");
}

static void fill_in(tp_run *r, tp_text *t, tv s, const tp_args *a, size_t *next, int level)
{
    const char *p = s.u.s.p;
    if (level > 1) tp_fail(&r->base, LQ_EVALUE, "Max string recursion exceeded");
    for (size_t i = 0; i < s.u.s.n; i++) {
        if ((p[i] == '{' || p[i] == '}') && i + 1 < s.u.s.n && p[i + 1] == p[i]) {
            tp_add_str(r, t, tv_sub(s, i++, 1));
        } else if (p[i] == '}') {
            tp_fail(&r->base, LQ_EVALUE, "Single '}' encountered in format string");
        } else if (p[i] != '{') {
            tp_add_str(r, t, tv_sub(s, i, 1));
        } else {
            size_t end = field_end(r, s, ++i), e = i;
            tp_text how = { 0 }, shown = { 0 };
            while (e < end && p[e] != '!' && p[e] != ':')
                e++;
            tv v = read_field(r, tv_sub(s, i, e - i), a, next);
            if (e + 1 < end && p[e] == '!') {
                if (p[e + 1] == 'r')
                    tv_repr(r, &shown, v);
                else if (p[e + 1] == 's')
                    tv_print(r, &shown, v);
                else
                    tp_fail(&r->base, LQ_EUNSUPPORTED, "format: !%c is not supported", p[e + 1]);
                v = tv_text(&shown);
                e += 2;
            }
            if (e < end && p[e] == ':')
                fill_in(r, &how, tv_sub(s, e + 1, end - e - 1), a, next, level + 1);
            else if (e < end)
                tp_fail(&r->base, LQ_EVALUE, "expected ':' after conversion specifier");
            add_laid_out(r, t, v, tv_text(&how));
            i = end;
        }
    }
}

tv tp_str_format(tp_run *r, tv s, const tp_args *a)
{
    tp_text t = { 0 };
    size_t next = 0;
    if (s.safe) tp_fail(&r->base, LQ_EUNSUPPORTED, "format: a safe text is not supported");
    fill_in(r, &t, s, a, &next, 0);
    return tv_text(&t);
}
