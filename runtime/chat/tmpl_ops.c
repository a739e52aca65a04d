/* runtime/chat/tmpl_ops.c - what the operators of an expression do: v.name, v[key], a + b; and calls. */
#include "runtime/chat/tmpl_int.h"

/* ---- attributes and items ---- */

static tv no_attr(tp_run *r, tv v, const char *name, size_t n)
{
    tv u = tv_undef(tp_copy(&r->base, name, n));
    u.u.undef.of = tv_type_of(v);
    u.u.undef.how = UNDEF_ATTR;
    return u;
}

static tv no_element(tp_run *r, tv v, tv key)
{
    if (key.k == TV_STR) return no_attr(r, v, key.u.s.p, key.u.s.n);
    tp_text t = { 0 };
    tv_repr(r, &t, key);
    tv u = no_attr(r, v, t.p ? t.p : "", t.n);
    u.u.undef.how = UNDEF_ELEMENT;
    return u;
}

static tv loop_attr(tp_run *r, tv v, const char *name, size_t n)
{
    const tp_loop *l = v.u.loop;
    const int64_t i = (int64_t)l->i, all = (int64_t)l->items->n;
    const struct {
        const char *name;
        tv v;
    } fields[] = {
        { "index", tv_int(i + 1) },
        { "index0", tv_int(i) },
        { "revindex", tv_int(all - i) },
        { "revindex0", tv_int(all - i - 1) },
        { "first", tv_bool(i == 0) },
        { "last", tv_bool(i + 1 == all) },
        { "length", tv_int(all) },
        { "depth", tv_int(l->depth + 1) },
        { "depth0", tv_int(l->depth) },
        { "previtem", i > 0 ? l->items->v[i - 1] : tv_nothing("there is no previous item") },
        { "nextitem", i + 1 < all ? l->items->v[i + 1] : tv_nothing("there is no next item") },
    };
    for (size_t k = 0; k < LQ_COUNT(fields); k++)
        if (strlen(fields[k].name) == n && memcmp(fields[k].name, name, n) == 0) return fields[k].v;
    return no_attr(r, v, name, n);
}

/* name, and what Jinja tells of a macro's parameters. */
static tv macro_attr(tp_run *r, tv v, const char *name, size_t n)
{
    const tp_macro *m = v.u.macro;
    tv names = tv_new_list(r, TV_TUPLE);
    for (const tn *p = m->def->a; p; p = p->next)
        tv_push(r, names, tv_cstr(p->name));
    const struct {
        const char *name;
        tv v;
    } fields[] = { { "name", tv_cstr(m->name) },
                   { "arguments", names },
                   { "caller", tv_bool(m->def->uses & TP_USES_CALLER) },
                   { "catch_varargs", tv_bool(m->def->uses & TP_USES_VARARGS) },
                   { "catch_kwargs", tv_bool(m->def->uses & TP_USES_KWARGS) } };
    for (size_t k = 0; k < LQ_COUNT(fields); k++)
        if (strlen(fields[k].name) == n && memcmp(fields[k].name, name, n) == 0) return fields[k].v;
    return no_attr(r, v, name, n);
}

/* What is no entry of a mapping: a field of a loop or a macro. */
static tv field_of(tp_run *r, tv v, const char *name, size_t n)
{
    if (v.k == TV_LOOP) return loop_attr(r, v, name, n);
    if (v.k == TV_MACRO) return macro_attr(r, v, name, n);
    if (v.k == TV_TUPLE && v.u.list->group && n == 7 && memcmp(name, "grouper", 7) == 0)
        return v.u.list->v[0];
    if (v.k == TV_TUPLE && v.u.list->group && n == 4 && memcmp(name, "list", 4) == 0)
        return v.u.list->v[1];
    return no_attr(r, v, name, n);
}

static tv method_of(tp_run *r, tv v, const char *name, size_t n)
{
    const tp_row *row = tp_method(v, name, n);
    if (!row) return tv_undef(NULL);
    tv *self = tp_take(&r->base, sizeof *self);
    *self = v;
    return (tv){ .k = TV_CALL, .u.call = { row, self } };
}

/* Python has the attribute and Jinja's sandbox hides it. */
static tv forbidden(tp_run *r, tv v, const char *name, size_t n)
{
    tp_text t = { 0 };
    tp_puts(r, &t, "access to attribute '");
    tp_add(r, &t, name, n);
    tp_puts(r, &t, "' of '");
    tp_puts(r, &t, tv_type(v));
    tp_puts(r, &t, "' object is unsafe.");
    return tv_nothing(tp_copy(&r->base, t.p, t.n));
}

static const tv *member(tp_run *r, tv v, const char *name, size_t n)
{
    return v.k == TV_DICT || v.k == TV_SPACE ? tv_get(r, v, tv_str(name, n)) : NULL;
}

tv tp_attr(tp_run *r, tv v, const char *name, size_t n)
{
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    tv m = method_of(r, v, name, n);
    if (m.k != TV_UNDEF) return m;
    if ((n > 1 && memcmp(name, "__", 2) == 0) || tp_is_unsafe(v, name, n))
        return forbidden(r, v, name, n);
    const tv *hit = member(r, v, name, n);
    return hit ? *hit : field_of(r, v, name, n);
}

static bool hashable(tv v)
{
    bool yes = v.k != TV_LIST && v.k != TV_DICT && v.k != TV_KEYS && v.k != TV_ITEMS;
    for (size_t i = 0; yes && v.k == TV_TUPLE && i < v.u.list->n; i++)
        yes = v.u.list->v[i].k != TV_LIST && v.u.list->v[i].k != TV_DICT;
    return yes;
}

tv tp_item(tp_run *r, tv v, tv key)
{
    int64_t i;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (v.k == TV_DICT || v.k == TV_SPACE) {
        const tv *hit = hashable(key) ? tv_get(r, v, key) : NULL;
        if (hit) return *hit;
    } else if ((v.k == TV_STR || v.k == TV_LIST || v.k == TV_TUPLE || v.k == TV_RANGE) &&
               tv_as_int(key, &i)) {
        int64_t n = tv_len(r, v);
        if (i < 0) i += n;
        if (i >= 0 && i < n && v.k != TV_STR) return v.u.list->v[i];
        if (i >= 0 && i < n) {
            size_t a = tv_char_at(v, (size_t)i), z = a + 1;
            while (z < v.u.s.n && ((uint8_t)v.u.s.p[z] & 0xC0) == 0x80)
                z++;
            return tv_sub(v, a, z - a);
        }
    }
    if (key.k == TV_STR) { /* then as an attribute */
        tv m = method_of(r, v, key.u.s.p, key.u.s.n);
        if (m.k != TV_UNDEF) return m;
        if (tp_is_unsafe(v, key.u.s.p, key.u.s.n)) return forbidden(r, v, key.u.s.p, key.u.s.n);
        return field_of(r, v, key.u.s.p, key.u.s.n);
    }
    return no_element(r, v, key);
}

tv tp_call_row(tp_run *r, const tp_row *row, tv self, const tp_args *a)
{
    tp_charge(r, 0);
    if (row->max_args >= 0 && a->n + a->n_named > (size_t)row->max_args)
        tp_fail(&r->base, LQ_EVALUE, "%s() takes at most %d arguments (%zu given)", row->name,
                row->max_args, a->n + a->n_named);
    tv v = row->f(r, self, a);
    if (self.k != TV_STR || !self.safe || !row->keeps_safe) return v;
    if (v.k == TV_STR) v.safe = true;
    for (size_t i = 0; tv_is_list(v) && i < v.u.list->n; i++)
        v.u.list->v[i].safe = v.u.list->v[i].k == TV_STR;
    return v;
}

/* ---- operators ---- */
/* ---- operators ---- */

static void bad_operands(tp_run *r, const char *op, tv a, tv b)
{
    if (a.k == TV_UNDEF) tp_no_value(r, a);
    if (b.k == TV_UNDEF) tp_no_value(r, b);
    if (a.k == TV_BIG || b.k == TV_BIG)
        tp_fail(&r->base, LQ_EVALUE, "template: line %d: an integer beyond 64 bits", r->base.line);
    if (*op == '+' && (a.k == TV_STR || a.k == TV_LIST || a.k == TV_TUPLE))
        tp_fail(&r->base, LQ_EVALUE, "can only concatenate %s (not \"%s\") to %s", tv_type(a),
                tv_type(b), tv_type(a));
    tp_fail(&r->base, LQ_EVALUE, "unsupported operand type(s) for %s: '%s' and '%s'", op,
            tv_type(a), tv_type(b));
}

static tv join_lists(tp_run *r, tv a, tv b)
{
    tv out = tv_new_list(r, a.k);
    for (size_t i = 0; i < a.u.list->n; i++)
        tv_push(r, out, a.u.list->v[i]);
    for (size_t i = 0; i < b.u.list->n; i++)
        tv_push(r, out, b.u.list->v[i]);
    return out;
}

static tv repeat(tp_run *r, tv v, int64_t n)
{
    tp_text t = { 0 };
    tv out = v.k == TV_STR ? v : tv_new_list(r, v.k);
    if (v.k == TV_STR ? v.u.s.n == 0 : v.u.list->n == 0) return v;
    for (int64_t i = 0; i < n; i++) {
        tp_charge(r, 0);
        if (v.k == TV_STR) tp_add_str(r, &t, v);
        for (size_t k = 0; v.k != TV_STR && k < v.u.list->n; k++)
            tv_push(r, out, v.u.list->v[k]);
    }
    if (v.k != TV_STR) return out;
    tv s = tv_text(&t);
    s.safe = v.safe;
    return s;
}

static tv overflow(tp_run *r)
{
    tp_fail(&r->base, LQ_EVALUE, "template: line %d: an integer beyond 64 bits", r->base.line);
}

static tv divided_by_zero(tp_run *r) { tp_fail(&r->base, LQ_EVALUE, "division by zero"); }

static tv int_power(tp_run *r, int64_t base, int64_t n)
{
    int64_t v = 1;
    if (n < 0) return base ? tv_float(pow((double)base, (double)n)) : divided_by_zero(r);
    if (base == 0 || base == 1) return tv_int(n == 0 ? 1 : base);
    if (base == -1) return tv_int(n % 2 ? -1 : 1);
    for (; n > 0; n--)
        if (__builtin_mul_overflow(v, base, &v)) return overflow(r); /* after at most 63 rounds */
    return tv_int(v);
}

static tv int_op(tp_run *r, tn_op op, int64_t x, int64_t y)
{
    int64_t v = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0) return divided_by_zero(r);
    switch (op) {
    case OP_ADD:
        return __builtin_add_overflow(x, y, &v) ? overflow(r) : tv_int(v);
    case OP_SUB:
        return __builtin_sub_overflow(x, y, &v) ? overflow(r) : tv_int(v);
    case OP_MUL:
        return __builtin_mul_overflow(x, y, &v) ? overflow(r) : tv_int(v);
    case OP_DIV:
        return tv_float((double)x / (double)y);
    case OP_FLOORDIV:
        if (y == -1) return __builtin_sub_overflow((int64_t)0, x, &v) ? overflow(r) : tv_int(v);
        return tv_int(x / y - (x % y != 0 && (x < 0) != (y < 0)));
    case OP_MOD:
        if (y == -1) return tv_int(0);
        v = x % y;
        return tv_int(v != 0 && (v < 0) != (y < 0) ? v + y : v);
    default:
        return int_power(r, x, y);
    }
}

/* As Python's float_divmod: exact where x / y would round up to the next whole number. */
static double floor_div(double x, double y)
{
    double m = fmod(x, y), d = (x - m) / y;
    if (m != 0 && (m < 0) != (y < 0)) d -= 1;
    if (d == 0) return copysign(0, x / y);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static tv float_op(tp_run *r, tn_op op, double x, double y)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0) return divided_by_zero(r);
    double m = op == OP_MOD ? fmod(x, y) : 0;
    switch (op) {
    case OP_ADD:
        return tv_float(x + y);
    case OP_SUB:
        return tv_float(x - y);
    case OP_MUL:
        return tv_float(x * y);
    case OP_DIV:
        return tv_float(x / y);
    case OP_FLOORDIV:
        return tv_float(floor_div(x, y));
    case OP_MOD:
        return tv_float(m != 0 && (m < 0) != (y < 0) ? m + y : m);
    default:
        return tv_float(pow(x, y));
    }
}

tv tp_binary(tp_run *r, tn_op op, tv a, tv b)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "** or pow()" };
    int64_t x, y;
    tp_text t = { 0 };
    if (tv_is_num(a) && tv_is_num(b)) {
        if (tv_as_int(a, &x) && tv_as_int(b, &y)) return int_op(r, op, x, y);
        return float_op(r, op, tv_as_float(a), tv_as_float(b));
    }
    if (op == OP_ADD && a.k == TV_STR && b.k == TV_STR) {
        bool safe = a.safe || b.safe;
        if (safe) a = tp_escape(r, a), b = tp_escape(r, b);
        tp_add_str(r, &t, a);
        tp_add_str(r, &t, b);
        tv sum = tv_text(&t);
        sum.safe = safe;
        return sum;
    }
    if (op == OP_ADD && a.k == b.k && (a.k == TV_LIST || a.k == TV_TUPLE))
        return join_lists(r, a, b);
    if (op == OP_MOD && a.k == TV_STR) return tp_format(r, a, b);
    bool a_many = a.k == TV_STR || a.k == TV_LIST || a.k == TV_TUPLE;
    bool b_many = b.k == TV_STR || b.k == TV_LIST || b.k == TV_TUPLE;
    if (op == OP_MUL && a_many && tv_as_int(b, &x)) return repeat(r, a, x);
    if (op == OP_MUL && b_many && tv_as_int(a, &x)) return repeat(r, b, x);
    bad_operands(r, names[op], a, b);
    return tv_none();
}
