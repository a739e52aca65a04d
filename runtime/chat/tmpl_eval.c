/* runtime/chat/tmpl_eval.c - walking the tree: expressions to values, statements to text. */
#include "runtime/chat/tmpl_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- frames: a scope's own names, then those around it ---- */
static void set_var(tp_run *r, tp_frame *f, const char *name, tv v)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->vars[i].name == name) {
            f->vars[i].v = v;
            return;
        }
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 4;
        struct tp_var *p = tp_take(&r->base, cap * sizeof *p);
        if (f->n) memcpy(p, f->vars, f->n * sizeof *p);
        f->vars = p;
        f->cap = cap;
    }
    f->vars[f->n++] = (struct tp_var){ name, v };
}

static tv find_var(tp_run *r, const char *name)
{
    for (tp_frame *f = r->frame; f; f = f->up) {
        for (size_t i = 0; i < f->n; i++)
            if (f->vars[i].name == name) return f->vars[i].v;
        tp_charge(r, f->n / 8);
    }
    for (size_t i = 0; i < tp_n_globals; i++)
        if (strcmp(tp_globals[i].name, name) == 0)
            return (tv){ .k = TV_CALL, .u.call = { &tp_globals[i], NULL } };
    return tv_undef(name);
}

static void push_frame(tp_run *r, tp_frame *up)
{
    tp_frame *f = tp_take(&r->base, sizeof *f);
    f->up = up;
    r->frame = f;
}

typedef enum { GO_ON, BREAK, CONTINUE } flow;
static flow run_loop(tp_run *r, const tn *n, tv all, int depth);

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

/* ---- calls ---- */
static void add_named(tp_run *r, tp_args *a, size_t *cap, const char *name, tv v)
{
    for (size_t i = 0; i < a->n_named; i++)
        if (strcmp(a->names[i], name) == 0)
            tp_fail(&r->base, LQ_EVALUE, "got multiple values for keyword argument '%s'", name);
    if (a->n_named >= *cap) {
        *cap = *cap * 2 + 4;
        const char **names = tp_take(&r->base, *cap * sizeof *names);
        tv *named = tp_take(&r->base, *cap * sizeof *named);
        if (a->n_named) {
            memcpy(names, a->names, a->n_named * sizeof *names);
            memcpy(named, a->named, a->n_named * sizeof *named);
        }
        a->names = names;
        a->named = named;
    }
    a->names[a->n_named] = name;
    a->named[a->n_named++] = v;
}

static void add_mapping(tp_run *r, tp_args *a, size_t *cap, tv v)
{
    if (v.k != TV_DICT && v.k != TV_SPACE)
        tp_fail(&r->base, LQ_EVALUE, "argument after ** must be a mapping, not %s", tv_type(v));
    for (size_t i = 0; i < v.u.dict->n; i++) {
        tv key = v.u.dict->e[i].key;
        if (key.k != TV_STR) tp_fail(&r->base, LQ_EVALUE, "keywords must be strings");
        add_named(r, a, cap, tp_copy(&r->base, key.u.s.p, key.u.s.n), v.u.dict->e[i].value);
    }
}

static tp_args eval_args(tp_run *r, const tn *kids)
{
    tp_args a = { 0 };
    size_t cap = 0;
    tv list = tv_new_list(r, TV_LIST);
    for (const tn *k = kids; k; k = k->next) {
        tv v = tp_eval(r, k->a);
        if (k->stars == 2) {
            add_mapping(r, &a, &cap, v);
        } else if (k->stars == 1) {
            const tv_list *more = tv_iter(r, v).u.list;
            for (size_t i = 0; i < more->n; i++)
                tv_push(r, list, more->v[i]);
        } else if (k->name) {
            add_named(r, &a, &cap, k->name, v);
        } else {
            tv_push(r, list, v);
        }
    }
    a.v = list.u.list->v;
    a.n = list.u.list->n;
    return a;
}

static const char *name_of(const tp_run *r, const char *s)
{
    for (size_t i = 0; i < r->t->n_names; i++)
        if (strcmp(r->t->names[i], s) == 0) return r->t->names[i];
    return NULL;
}

static void set_named(tp_run *r, const char *name, tv v)
{
    const char *interned = name_of(r, name);
    if (interned) set_var(r, r->frame, interned, v);
}

/* Arguments to parameters as Jinja's Macro does it; what is left over goes to varargs and kwargs
 * where the body names these, and is an error otherwise. */
static void bind_parameters(tp_run *r, const tp_macro *m, const tp_args *a)
{
    size_t i = 0;
    tv left = tv_new_dict(r), more = tv_new_list(r, TV_TUPLE), caller = tv_undef("caller"), v;
    const unsigned uses = m->def->uses;
    for (const tn *p = m->def->a; p; p = p->next, i++) {
        bool named = i >= a->n && tp_has(a, SIZE_MAX, p->name, &v);
        if (i < a->n) {
            v = a->v[i];
        } else if (!named && p->a) {
            v = tp_eval(r, p->a);
        } else if (!named) {
            tp_text t = { 0 };
            tp_puts(r, &t, "parameter ");
            tv_repr(r, &t, tv_cstr(p->name));
            tp_puts(r, &t, " was not provided");
            v = tv_nothing(tp_copy(&r->base, t.p, t.n));
        }
        set_var(r, r->frame, p->name, v);
    }
    for (size_t k = 0; k < a->n_named; k++) {
        bool parameter = false;
        size_t at = 0;
        for (const tn *p = m->def->a; p; p = p->next, at++)
            parameter = parameter || (at >= a->n && strcmp(p->name, a->names[k]) == 0);
        if (parameter) continue;
        if (strcmp(a->names[k], "caller") == 0 && uses & TP_USES_CALLER)
            caller = a->named[k];
        else if (uses & TP_USES_KWARGS)
            tv_set(r, left, tv_cstr(a->names[k]), a->named[k]);
        else
            tp_fail(&r->base, LQ_EVALUE, "macro '%s' takes no keyword argument '%s'", m->name,
                    a->names[k]);
    }
    for (size_t k = i; k < a->n; k++)
        tv_push(r, more, a->v[k]);
    if (a->n > i && !(uses & TP_USES_VARARGS))
        tp_fail(&r->base, LQ_EVALUE, "macro '%s' takes not more than %zu argument(s)", m->name, i);
    if (uses & TP_USES_CALLER) set_named(r, "caller", caller);
    if (uses & TP_USES_KWARGS) set_named(r, "kwargs", left);
    if (uses & TP_USES_VARARGS) set_named(r, "varargs", more);
}

static tv call_macro(tp_run *r, const tp_macro *m, const tp_args *a)
{
    tp_frame *frame = r->frame;
    tp_text *out = r->out, text = { 0 };
    tp_deeper(r);
    push_frame(r, m->frame);
    bind_parameters(r, m, a);
    r->out = &text;
    tp_exec(r, m->def->b);
    r->out = out;
    r->frame = frame;
    r->depth--;
    return tv_text(&text);
}

/* loop(items) of a recursive loop: its text for these items. */
static tv call_loop(tp_run *r, const tp_loop *l, const tp_args *a)
{
    tp_frame *frame = r->frame;
    tp_text *out = r->out, text = { 0 };
    if (!l->def->recursive)
        tp_fail(&r->base, LQ_EVALUE,
                "The loop must have the 'recursive' marker to be called recursively.");
    if (a->n != 1) tp_fail(&r->base, LQ_EVALUE, "loop: expected 1 argument, found %zu", a->n);
    tp_deeper(r);
    r->frame = l->frame;
    r->out = &text;
    (void)run_loop(r, l->def, a->v[0], l->depth + 1);
    r->out = out;
    r->frame = frame;
    r->depth--;
    return tv_text(&text);
}

/* A filter, test, method or function. What methods of a safe text give is safe as well. */
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

tv tp_call(tp_run *r, tv f, const tp_args *a)
{
    if (f.k == TV_UNDEF) tp_no_value(r, f);
    if (f.k == TV_MACRO) return call_macro(r, f.u.macro, a);
    if (f.k == TV_LOOP) return call_loop(r, f.u.loop, a);
    if (f.k != TV_CALL) tp_fail(&r->base, LQ_EVALUE, "'%s' object is not callable", tv_type(f));
    return tp_call_row(r, f.u.call.row, f.u.call.self ? *f.u.call.self : tv_none(), a);
}

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

static bool compare(tp_run *r, tn_op op, tv a, tv b)
{
    switch (op) {
    case OP_EQ:
        return tv_equal(r, a, b);
    case OP_NE:
        return !tv_equal(r, a, b);
    case OP_LT:
        return tv_compare(r, a, b, "<") < 0;
    case OP_LE:
        return tv_compare(r, a, b, "<=") <= 0;
    case OP_GT:
        return tv_compare(r, a, b, ">") > 0;
    case OP_GE:
        return tv_compare(r, a, b, ">=") >= 0;
    case OP_IN:
        return tv_contains(r, b, a);
    default:
        return !tv_contains(r, b, a);
    }
}

static tv comparison(tp_run *r, const tn *n)
{
    tv left = tp_eval(r, n->a);
    for (const tn *k = n->kids; k; k = k->next) {
        tv right = tp_eval(r, k->a);
        if (!compare(r, k->op, left, right)) return tv_bool(false);
        left = right;
    }
    return tv_bool(true);
}

static tv sign(tp_run *r, const tn *n)
{
    tv v = tp_eval(r, n->a);
    int64_t i;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (!tv_is_num(v))
        tp_fail(&r->base, LQ_EVALUE, "bad operand type for unary %s: '%s'",
                n->k == TN_NEG ? "-" : "+", tv_type(v));
    if (!tv_as_int(v, &i)) return tv_float(n->k == TN_NEG ? -v.u.f : v.u.f);
    return n->k == TN_NEG ? int_op(r, OP_SUB, 0, i) : tv_int(i);
}

static tv literal(tp_run *r, const tn *n)
{
    tv v = n->k == TN_DICT ? tv_new_dict(r) : tv_new_list(r, n->k == TN_LIST ? TV_LIST : TV_TUPLE);
    for (const tn *k = n->kids; k; k = k->next) {
        if (n->k != TN_DICT) {
            tv_push(r, v, tp_eval(r, k));
            continue;
        }
        tv key = tp_eval(r, k);
        k = k->next;
        tv_set(r, v, key, tp_eval(r, k));
    }
    return v;
}

static tv concat(tp_run *r, const tn *n)
{
    tp_text t = { 0 };
    for (const tn *k = n->kids; k; k = k->next)
        tv_print(r, &t, tp_eval(r, k));
    return tv_text(&t);
}

static tv eval_or_none(tp_run *r, const tn *n) { return n ? tp_eval(r, n) : tv_none(); }

static tv eval_slice(tp_run *r, const tn *n)
{
    tv of = tp_eval(r, n->a), start = eval_or_none(r, n->b), stop = eval_or_none(r, n->c);
    return tv_slice(r, of, start, stop, eval_or_none(r, n->d));
}

static tv eval_row(tp_run *r, const tn *n)
{
    if (!n->row)
        tp_fail(&r->base, LQ_EVALUE, "No %s named '%s' found.", n->k == TN_TEST ? "test" : "filter",
                n->name);
    tv of = tp_eval(r, n->a);
    tp_args a = eval_args(r, n->kids);
    tv v = tp_call_row(r, n->row, of, &a);
    return n->k == TN_TEST ? tv_bool(tv_true(v) != n->negated) : v;
}

static tv no_else(tp_run *r, const tn *n)
{
    char text[120];
    int len = snprintf(text, sizeof text,
                       "the inline if-expression on line %d evaluated to false and no else "
                       "section was defined.",
                       n->line);
    return tv_nothing(tp_copy(&r->base, text, (size_t)len));
}

static tv eval(tp_run *r, const tn *n)
{
    tv v;
    tp_args a;
    switch (n->k) {
    case TN_CONST:
        return n->v;
    case TN_NAME:
        return find_var(r, n->name);
    case TN_LIST:
    case TN_TUPLE:
    case TN_DICT:
        return literal(r, n);
    case TN_ATTR:
        return tp_attr(r, tp_eval(r, n->a), n->name, strlen(n->name));
    case TN_ITEM:
        v = tp_eval(r, n->a);
        return tp_item(r, v, tp_eval(r, n->b));
    case TN_SLICE:
        return eval_slice(r, n);
    case TN_CALL:
        v = tp_eval(r, n->a);
        a = eval_args(r, n->kids);
        return tp_call(r, v, &a);
    case TN_FILTER:
    case TN_TEST:
        return eval_row(r, n);
    case TN_NOT:
        return tv_bool(!tv_true(tp_eval(r, n->a)));
    case TN_NEG:
    case TN_POS:
        return sign(r, n);
    case TN_BINARY:
        v = tp_eval(r, n->a);
        return tp_binary(r, n->op, v, tp_eval(r, n->b));
    case TN_COMPARE:
        return comparison(r, n);
    case TN_AND:
        v = tp_eval(r, n->a);
        return tv_true(v) ? tp_eval(r, n->b) : v;
    case TN_OR:
        v = tp_eval(r, n->a);
        return tv_true(v) ? v : tp_eval(r, n->b);
    case TN_COND:
        if (tv_true(tp_eval(r, n->a))) return tp_eval(r, n->b);
        return n->c ? tp_eval(r, n->c) : no_else(r, n);
    case TN_CONCAT:
        return concat(r, n);
    default:
        return r->body; /* TN_BODY */
    }
}

tv tp_eval(tp_run *r, const tn *n)
{
    tp_deeper(r);
    tv v = eval(r, n);
    r->depth--;
    return v;
}

/* ---- statements ---- */
static flow exec(tp_run *r, const tn *n);

static void assign(tp_run *r, const tn *target, tv v)
{
    if (target->k == TN_NAME) {
        set_var(r, r->frame, target->name, v);
    } else if (target->k == TN_ATTR) {
        tv space = tp_eval(r, target->a);
        if (space.k != TV_SPACE)
            tp_fail(&r->base, LQ_EVALUE, "cannot assign attribute on non-namespace object");
        tv_set(r, space, tv_cstr(target->name), v);
    } else {
        tv all = tv_iter(r, v);
        size_t n = 0;
        for (const tn *k = target->kids; k; k = k->next)
            n++;
        if (all.u.list->n != n)
            tp_fail(&r->base, LQ_EVALUE, "expected %zu values to unpack, found %zu", n,
                    all.u.list->n);
        n = 0;
        for (const tn *k = target->kids; k; k = k->next)
            assign(r, k, all.u.list->v[n++]);
    }
}

/* The text of a block, in a scope of its own. */
static tv capture(tp_run *r, const tn *block)
{
    tp_text text = { 0 }, *out = r->out;
    tp_frame *frame = r->frame;
    push_frame(r, frame);
    r->out = &text;
    exec(r, block);
    r->out = out;
    r->frame = frame;
    return tv_text(&text);
}

static tv filtered(tp_run *r, const tn *chain, tv text)
{
    tv outer = r->body;
    r->body = text;
    tv v = tp_eval(r, chain);
    r->body = outer;
    return v;
}

/* The items that pass the loop's own `if`. */
static tv loop_items(tp_run *r, const tn *n, tv all)
{
    all = tv_iter(r, all);
    if (!n->c) return all;
    tv kept = tv_new_list(r, TV_LIST);
    tp_frame *frame = r->frame;
    for (size_t i = 0; i < all.u.list->n; i++) {
        push_frame(r, frame);
        assign(r, n->a, all.u.list->v[i]);
        if (tv_true(tp_eval(r, n->c))) tv_push(r, kept, all.u.list->v[i]);
    }
    r->frame = frame;
    return kept;
}

/* The loop n over `all`. What ends it early ends it alone: flow leaves only from its else part. */
static flow run_loop(tp_run *r, const tn *n, tv all, int depth)
{
    tp_frame *frame = r->frame;
    const char *name = name_of(r, "loop");
    tp_loop *loop = tp_take(&r->base, sizeof *loop);
    *loop = (tp_loop){
        .items = loop_items(r, n, all).u.list, .def = n, .frame = frame, .depth = depth
    };
    bool ran = false; /* some turn came to its end; Jinja's else asks for that */
    flow f = GO_ON;
    for (size_t count = loop->items->n; loop->i < count && f != BREAK; loop->i++) {
        push_frame(r, frame);
        if (name) set_var(r, r->frame, name, (tv){ .k = TV_LOOP, .u.loop = loop });
        assign(r, n->a, loop->items->v[loop->i]);
        f = exec(r, n->d);
        ran = ran || f == GO_ON;
    }
    r->frame = frame;
    if (ran || !n->kids) return GO_ON;
    push_frame(r, frame);
    f = exec(r, n->kids);
    r->frame = frame;
    return f;
}

static tv new_macro(tp_run *r, const tn *n)
{
    tp_macro *m = tp_take(&r->base, sizeof *m);
    *m = (tp_macro){ n, r->frame, n->name };
    return (tv){ .k = TV_MACRO, .u.macro = m };
}

/* {% call(x) f(y) %}: f gets the block as the macro `caller`. */
static void exec_call(tp_run *r, const tn *n)
{
    tv f = tp_eval(r, n->c->a);
    tp_args a = eval_args(r, n->c->kids);
    size_t cap = a.n_named;
    add_named(r, &a, &cap, "caller", new_macro(r, n));
    tv_print(r, r->out, tp_call(r, f, &a));
}

static flow exec_with(tp_run *r, const tn *n)
{
    tp_frame *frame = r->frame, *inner;
    push_frame(r, frame);
    inner = r->frame;
    for (const tn *k = n->kids; k; k = k->next) {
        r->frame = frame; /* the values do not see each other */
        tv v = tp_eval(r, k->b);
        r->frame = inner;
        assign(r, k->a, v);
    }
    flow f = exec(r, n->b);
    r->frame = frame;
    return f;
}

static flow exec_block(tp_run *r, const tn *n)
{
    flow f = GO_ON;
    for (const tn *k = n->kids; k && f == GO_ON; k = k->next)
        f = exec(r, k);
    return f;
}

static flow exec_one(tp_run *r, const tn *n)
{
    switch (n->k) {
    case TS_BLOCK:
        return exec_block(r, n);
    case TS_TEXT:
        tp_add_str(r, r->out, n->v);
        return GO_ON;
    case TS_OUT:
        tv_print(r, r->out, tp_eval(r, n->a));
        return GO_ON;
    case TS_IF:
        if (tv_true(tp_eval(r, n->a))) return exec(r, n->b);
        return n->c ? exec(r, n->c) : GO_ON;
    case TS_FOR:
        return run_loop(r, n, tp_eval(r, n->b), 0);
    case TS_SET:
        assign(r, n->a, tp_eval(r, n->b));
        return GO_ON;
    case TS_SET_BLOCK:
        assign(r, n->a, filtered(r, n->b, capture(r, n->c)));
        return GO_ON;
    case TS_MACRO:
        set_var(r, r->frame, n->name, new_macro(r, n));
        return GO_ON;
    case TS_CALL:
        exec_call(r, n);
        return GO_ON;
    case TS_FILTER:
        tv_print(r, r->out, filtered(r, n->a, capture(r, n->b)));
        return GO_ON;
    case TS_WITH:
        return exec_with(r, n);
    case TS_BREAK:
        return BREAK;
    default:
        return CONTINUE;
    }
}

static flow exec(tp_run *r, const tn *n)
{
    tp_deeper(r);
    r->base.line = n->line;
    flow f = exec_one(r, n);
    r->depth--;
    return f;
}

void tp_exec(tp_run *r, const tn *block) { (void)exec(r, block); }
