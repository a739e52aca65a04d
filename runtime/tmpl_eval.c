/* runtime/tmpl_eval.c - walking the tree: expressions to values, statements to text. */
#include "runtime/tmpl_int.h"

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

static void deeper(tp_run *r)
{
    tp_charge(r, 0);
    if (++r->depth > TP_MAX_DEPTH)
        tp_fail(&r->base, LQ_EVALUE, "template: line %d: nested deeper than %d", r->base.line,
                TP_MAX_DEPTH);
}

/* ---- attributes and items ---- */
static tv no_attr(tp_run *r, tv v, const char *name, size_t n)
{
    tv u = tv_undef(tp_copy(&r->base, name, n));
    u.u.undef.of = tv_type_of(v);
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
        { "depth", tv_int(1) }, /* no loop is recursive */
        { "depth0", tv_int(0) },
        { "previtem", i > 0 ? l->items->v[i - 1] : tv_undef("previtem") },
        { "nextitem", i + 1 < all ? l->items->v[i + 1] : tv_undef("nextitem") },
    };
    for (size_t k = 0; k < LQ_COUNT(fields); k++)
        if (strlen(fields[k].name) == n && memcmp(fields[k].name, name, n) == 0) return fields[k].v;
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

static const tv *member(tp_run *r, tv v, const char *name, size_t n)
{
    return v.k == TV_DICT || v.k == TV_SPACE ? tv_get(r, v, tv_str(name, n)) : NULL;
}

tv tp_attr(tp_run *r, tv v, const char *name, size_t n)
{
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    tv m = method_of(r, v, name, n);
    if (m.k != TV_UNDEF) return m;
    const tv *hit = member(r, v, name, n);
    if (hit) return *hit;
    return v.k == TV_LOOP ? loop_attr(r, v, name, n) : no_attr(r, v, name, n);
}

tv tp_item(tp_run *r, tv v, tv key)
{
    int64_t i;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (v.k == TV_DICT || v.k == TV_SPACE) {
        const tv *hit = tv_get(r, v, key);
        if (hit) return *hit;
    } else if ((v.k == TV_STR || v.k == TV_LIST || v.k == TV_TUPLE) && tv_as_int(key, &i)) {
        int64_t n = tv_len(r, v);
        if (i < 0) i += n;
        if (i >= 0 && i < n && v.k != TV_STR) return v.u.list->v[i];
        if (i >= 0 && i < n) {
            size_t a = tv_char_at(v, (size_t)i), z = a + 1;
            while (z < v.u.s.n && ((uint8_t)v.u.s.p[z] & 0xC0) == 0x80)
                z++;
            return tv_str(v.u.s.p + a, z - a);
        }
    }
    if (key.k == TV_STR) { /* then as an attribute */
        tv m = method_of(r, v, key.u.s.p, key.u.s.n);
        if (m.k != TV_UNDEF) return m;
        if (v.k == TV_LOOP) return loop_attr(r, v, key.u.s.p, key.u.s.n);
    }
    tv name = tv_to_str(r, key);
    return no_attr(r, v, name.u.s.p, name.u.s.n);
}

/* ---- calls ---- */
static tp_args eval_args(tp_run *r, const tn *kids)
{
    tp_args a = { 0 };
    size_t n = 0;
    for (const tn *k = kids; k; k = k->next)
        n++;
    a.v = tp_take(&r->base, (n + 1) * sizeof *a.v);
    a.named = tp_take(&r->base, (n + 1) * sizeof *a.named);
    a.names = tp_take(&r->base, (n + 1) * sizeof *a.names);
    for (const tn *k = kids; k; k = k->next) {
        tv v = tp_eval(r, k->a);
        if (k->name) {
            a.names[a.n_named] = k->name;
            a.named[a.n_named++] = v;
        } else {
            a.v[a.n++] = v;
        }
    }
    return a;
}

static tv call_macro(tp_run *r, const tp_macro *m, const tp_args *a)
{
    tp_frame *frame = r->frame;
    tp_text *out = r->out, text = { 0 };
    size_t i = 0;
    deeper(r);
    push_frame(r, m->frame);
    for (const tn *p = m->def->a; p; p = p->next, i++) {
        tv v;
        if (!tp_has(a, i, p->name, &v)) v = p->a ? tp_eval(r, p->a) : tv_undef(p->name);
        set_var(r, r->frame, p->name, v);
    }
    if (a->n > i)
        tp_fail(&r->base, LQ_EVALUE, "macro '%s' takes not more than %zu argument(s)", m->name, i);
    tv caller;
    if (tp_has(a, SIZE_MAX, "caller", &caller)) {
        for (size_t k = 0; k < r->t->n_names; k++)
            if (strcmp(r->t->names[k], "caller") == 0) set_var(r, r->frame, r->t->names[k], caller);
    }
    r->out = &text;
    tp_exec(r, m->def->b);
    r->out = out;
    r->frame = frame;
    r->depth--;
    return tv_text(&text);
}

tv tp_call(tp_run *r, tv f, const tp_args *a)
{
    if (f.k == TV_UNDEF) tp_no_value(r, f);
    if (f.k == TV_MACRO) return call_macro(r, f.u.macro, a);
    if (f.k != TV_CALL) tp_fail(&r->base, LQ_EVALUE, "'%s' object is not callable", tv_type(f));
    tp_charge(r, 0);
    return f.u.call.row->f(r, f.u.call.self ? *f.u.call.self : tv_none(), a);
}

/* ---- operators ---- */
static void bad_operands(tp_run *r, const char *op, tv a, tv b)
{
    if (a.k == TV_UNDEF) tp_no_value(r, a);
    if (b.k == TV_UNDEF) tp_no_value(r, b);
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
        if (v.k == TV_STR) tp_add(r, &t, v.u.s.p, v.u.s.n);
        for (size_t k = 0; v.k != TV_STR && k < v.u.list->n; k++)
            tv_push(r, out, v.u.list->v[k]);
    }
    return v.k == TV_STR ? tv_text(&t) : out;
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
        return tv_float(floor(x / y));
    case OP_MOD:
        return tv_float(m != 0 && (m < 0) != (y < 0) ? m + y : m);
    default:
        return tv_float(pow(x, y));
    }
}

static tv binary(tp_run *r, tn_op op, tv a, tv b)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "** or pow()" };
    int64_t x, y;
    tp_text t = { 0 };
    if (tv_is_num(a) && tv_is_num(b)) {
        if (tv_as_int(a, &x) && tv_as_int(b, &y)) return int_op(r, op, x, y);
        return float_op(r, op, tv_as_float(a), tv_as_float(b));
    }
    if (op == OP_ADD && a.k == TV_STR && b.k == TV_STR) {
        tp_add(r, &t, a.u.s.p, a.u.s.n);
        tp_add(r, &t, b.u.s.p, b.u.s.n);
        return tv_text(&t);
    }
    if (op == OP_ADD && a.k == b.k && (a.k == TV_LIST || a.k == TV_TUPLE))
        return join_lists(r, a, b);
    if (op == OP_MOD && a.k == TV_STR && b.k != TV_UNDEF) return tp_format(r, a, b);
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
    tv of = tp_eval(r, n->a);
    tp_args a = eval_args(r, n->kids);
    tv v = n->row->f(r, of, &a);
    return n->k == TN_TEST ? tv_bool(tv_true(v) != n->negated) : v;
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
        return binary(r, n->op, v, tp_eval(r, n->b));
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
        return n->c ? tp_eval(r, n->c) : tv_undef("the inline if-expression");
    case TN_CONCAT:
        return concat(r, n);
    default:
        return r->body; /* TN_BODY */
    }
}

tv tp_eval(tp_run *r, const tn *n)
{
    deeper(r);
    tv v = eval(r, n);
    r->depth--;
    return v;
}

/* ---- statements ---- */
typedef enum { GO_ON, BREAK, CONTINUE } flow;
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

static const char *name_of(const tp_run *r, const char *s)
{
    for (size_t i = 0; i < r->t->n_names; i++)
        if (strcmp(r->t->names[i], s) == 0) return r->t->names[i];
    return NULL;
}

/* The items that pass the loop's own `if`. */
static tv loop_items(tp_run *r, const tn *n)
{
    tv all = tv_iter(r, tp_eval(r, n->b));
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

static flow exec_for(tp_run *r, const tn *n)
{
    tp_frame *frame = r->frame;
    const char *name = name_of(r, "loop");
    tp_loop *loop = tp_take(&r->base, sizeof *loop);
    loop->items = loop_items(r, n).u.list;
    flow f = GO_ON;
    for (size_t count = loop->items->n; loop->i < count && f != BREAK; loop->i++) {
        push_frame(r, frame);
        if (name) set_var(r, r->frame, name, (tv){ .k = TV_LOOP, .u.loop = loop });
        assign(r, n->a, loop->items->v[loop->i]);
        f = exec(r, n->d);
    }
    r->frame = frame;
    if (loop->items->n == 0 && n->kids) {
        push_frame(r, frame);
        f = exec(r, n->kids);
        r->frame = frame;
        return f;
    }
    return GO_ON;
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
    a.names[a.n_named] = "caller"; /* eval_args leaves room for one more */
    a.named[a.n_named++] = new_macro(r, n);
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
        tp_add(r, r->out, n->v.u.s.p, n->v.u.s.n);
        return GO_ON;
    case TS_OUT:
        tv_print(r, r->out, tp_eval(r, n->a));
        return GO_ON;
    case TS_IF:
        if (tv_true(tp_eval(r, n->a))) return exec(r, n->b);
        return n->c ? exec(r, n->c) : GO_ON;
    case TS_FOR:
        return exec_for(r, n);
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
    deeper(r);
    r->base.line = n->line;
    flow f = exec_one(r, n);
    r->depth--;
    return f;
}

void tp_exec(tp_run *r, const tn *block) { (void)exec(r, block); }
