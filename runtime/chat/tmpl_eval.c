/* runtime/chat/tmpl_eval.c - walking the tree: expressions to values, statements to text. */
#include "runtime/chat/tmpl_int.h"

#include <stdio.h>

static tv eval_node(tp_run *r, const tn *n);

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
        tv v = eval_node(r, k->a);
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
            v = eval_node(r, p->a);
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

static tv call(tp_run *r, tv f, const tp_args *a)
{
    if (f.k == TV_UNDEF) tp_no_value(r, f);
    if (f.k == TV_MACRO) return call_macro(r, f.u.macro, a);
    if (f.k == TV_LOOP) return call_loop(r, f.u.loop, a);
    if (f.k != TV_CALL) tp_fail(&r->base, LQ_EVALUE, "'%s' object is not callable", tv_type(f));
    return tp_call_row(r, f.u.call.row, f.u.call.self ? *f.u.call.self : tv_none(), a);
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
    tv left = eval_node(r, n->a);
    for (const tn *k = n->kids; k; k = k->next) {
        tv right = eval_node(r, k->a);
        if (!compare(r, k->op, left, right)) return tv_bool(false);
        left = right;
    }
    return tv_bool(true);
}

static tv sign(tp_run *r, const tn *n)
{
    tv v = eval_node(r, n->a);
    int64_t i;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (!tv_is_num(v))
        tp_fail(&r->base, LQ_EVALUE, "bad operand type for unary %s: '%s'",
                n->k == TN_NEG ? "-" : "+", tv_type(v));
    if (!tv_as_int(v, &i)) return tv_float(n->k == TN_NEG ? -v.u.f : v.u.f);
    return n->k == TN_NEG ? tp_binary(r, OP_SUB, tv_int(0), tv_int(i)) : tv_int(i);
}

static tv literal(tp_run *r, const tn *n)
{
    tv v = n->k == TN_DICT ? tv_new_dict(r) : tv_new_list(r, n->k == TN_LIST ? TV_LIST : TV_TUPLE);
    for (const tn *k = n->kids; k; k = k->next) {
        if (n->k != TN_DICT) {
            tv_push(r, v, eval_node(r, k));
            continue;
        }
        tv key = eval_node(r, k);
        k = k->next;
        tv_set(r, v, key, eval_node(r, k));
    }
    return v;
}

static tv concat(tp_run *r, const tn *n)
{
    tp_text t = { 0 };
    for (const tn *k = n->kids; k; k = k->next)
        tv_print(r, &t, eval_node(r, k));
    return tv_text(&t);
}

static tv eval_or_none(tp_run *r, const tn *n) { return n ? eval_node(r, n) : tv_none(); }

static tv eval_slice(tp_run *r, const tn *n)
{
    tv of = eval_node(r, n->a), start = eval_or_none(r, n->b), stop = eval_or_none(r, n->c);
    return tv_slice(r, of, start, stop, eval_or_none(r, n->d));
}

static tv eval_row(tp_run *r, const tn *n)
{
    if (!n->row)
        tp_fail(&r->base, LQ_EVALUE, "No %s named '%s' found.", n->k == TN_TEST ? "test" : "filter",
                n->name);
    tv of = eval_node(r, n->a);
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
        return tp_attr(r, eval_node(r, n->a), n->name, strlen(n->name));
    case TN_ITEM:
        v = eval_node(r, n->a);
        return tp_item(r, v, eval_node(r, n->b));
    case TN_SLICE:
        return eval_slice(r, n);
    case TN_CALL:
        v = eval_node(r, n->a);
        a = eval_args(r, n->kids);
        return call(r, v, &a);
    case TN_FILTER:
    case TN_TEST:
        return eval_row(r, n);
    case TN_NOT:
        return tv_bool(!tv_true(eval_node(r, n->a)));
    case TN_NEG:
    case TN_POS:
        return sign(r, n);
    case TN_BINARY:
        v = eval_node(r, n->a);
        return tp_binary(r, n->op, v, eval_node(r, n->b));
    case TN_COMPARE:
        return comparison(r, n);
    case TN_AND:
        v = eval_node(r, n->a);
        return tv_true(v) ? eval_node(r, n->b) : v;
    case TN_OR:
        v = eval_node(r, n->a);
        return tv_true(v) ? v : eval_node(r, n->b);
    case TN_COND:
        if (tv_true(eval_node(r, n->a))) return eval_node(r, n->b);
        return n->c ? eval_node(r, n->c) : no_else(r, n);
    case TN_CONCAT:
        return concat(r, n);
    default:
        return r->body; /* TN_BODY */
    }
}

static tv eval_node(tp_run *r, const tn *n)
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
        tv space = eval_node(r, target->a);
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
    tv v = eval_node(r, chain);
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
        if (tv_true(eval_node(r, n->c))) tv_push(r, kept, all.u.list->v[i]);
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
    tv f = eval_node(r, n->c->a);
    tp_args a = eval_args(r, n->c->kids);
    size_t cap = a.n_named;
    add_named(r, &a, &cap, "caller", new_macro(r, n));
    tv_print(r, r->out, call(r, f, &a));
}

static flow exec_with(tp_run *r, const tn *n)
{
    tp_frame *frame = r->frame, *inner;
    push_frame(r, frame);
    inner = r->frame;
    for (const tn *k = n->kids; k; k = k->next) {
        r->frame = frame; /* the values do not see each other */
        tv v = eval_node(r, k->b);
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
        tv_print(r, r->out, eval_node(r, n->a));
        return GO_ON;
    case TS_IF:
        if (tv_true(eval_node(r, n->a))) return exec(r, n->b);
        return n->c ? exec(r, n->c) : GO_ON;
    case TS_FOR:
        return run_loop(r, n, eval_node(r, n->b), 0);
    case TS_SET:
        assign(r, n->a, eval_node(r, n->b));
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
