/* runtime/chat/tmpl_parse.c - tokens to the tree, by recursive descent; precedence as in Jinja2:
 * if-else, or, and, not, comparisons, + -, ~, * / // %, **, signs, then . [] () | is. */
#include "runtime/chat/tmpl_int.h"

typedef struct {
    tmpl_template *t;
    tp_base *b;
    const tt *v;
    size_t i;
    int depth, loops;
    bool soft;         /* within an if, where unknown filters and tests fail only when reached */
    const tt *unknown; /* the first one elsewhere */
    const char *unknown_what;
    unsigned uses; /* TP_USES_... met so far in the macro at hand */
} parser;

static tn *expression(parser *p);
static tn *expression_without_if(parser *p);
static tn *unary(parser *p, bool with_filter);
static tn *statements(parser *p, const char *const *ends);

static const char *intern(tmpl_template *t, const char *s, size_t n)
{
    for (size_t i = 0; i < t->n_names; i++)
        if (strlen(t->names[i]) == n && memcmp(t->names[i], s, n) == 0) return t->names[i];
    if (t->n_names == TP_MAX_NAMES)
        tp_fail(&t->base, LQ_EFORMAT, "template: more than %d different names", TP_MAX_NAMES);
    if (t->n_names == t->cap_names) {
        size_t cap = t->cap_names ? t->cap_names * 2 : 64;
        const char **names = tp_take(&t->base, cap * sizeof *names);
        if (t->n_names) memcpy(names, t->names, t->n_names * sizeof *names);
        t->names = names;
        t->cap_names = cap;
    }
    return t->names[t->n_names++] = tp_copy(&t->base, s, n);
}

/* ---- tokens ---- */
static const tt *cur(const parser *p) { return &p->v[p->i]; }
static bool is(const tt *t, tt_kind k, const char *s)
{
    return t->k == k && t->n == strlen(s) && memcmp(t->p, s, t->n) == 0;
}
static bool is_op(const parser *p, const char *s) { return is(cur(p), TT_OP, s); }
static bool is_name(const parser *p, const char *s) { return is(cur(p), TT_NAME, s); }

static bool skip(parser *p, tt_kind k, const char *s)
{
    if (!is(cur(p), k, s)) return false;
    p->i++;
    return true;
}
static bool skip_op(parser *p, const char *s) { return skip(p, TT_OP, s); }
static bool skip_name(parser *p, const char *s) { return skip(p, TT_NAME, s); }

_Noreturn static void unexpected(parser *p, const char *expected)
{
    const tt *t = cur(p);
    int n = t->n < 40 ? (int)t->n : 40;
    tp_fail(p->b, LQ_EFORMAT, "template: line %d: expected %s, found '%.*s'", t->line, expected, n,
            t->p);
}

static void need_op(parser *p, const char *s)
{
    if (!skip_op(p, s)) unexpected(p, s);
}

static const char *need_name(parser *p)
{
    const tt *t = cur(p);
    if (t->k != TT_NAME) unexpected(p, "a name");
    p->i++;
    return intern(p->t, t->p, t->n);
}

static void need_end(parser *p)
{
    if (cur(p)->k != TT_BLOCK_END) unexpected(p, "%}");
    p->i++;
}

static tn *node(parser *p, tn_kind k)
{
    tn *n = tp_take(p->b, sizeof *n);
    n->k = k;
    n->line = cur(p)->line;
    return n;
}

static tn *make(parser *p, tn_kind k, tn *a, tn *b)
{
    tn *n = node(p, k);
    n->a = a;
    n->b = b;
    return n;
}

static void enter(parser *p)
{
    if (++p->depth > TP_MAX_NEST)
        tp_fail(p->b, LQ_EFORMAT, "template: line %d: nested deeper than %d", cur(p)->line,
                TP_MAX_NEST);
}

/* ---- expressions ---- */
/* Members up to `close`; sets *comma when there was one. */
static tn *members(parser *p, const char *close, bool *comma)
{
    tn *first = NULL, **tail = &first;
    *comma = false;
    while (!is_op(p, close)) {
        *tail = expression(p);
        tail = &(*tail)->next;
        if (!skip_op(p, ",")) break;
        *comma = true;
    }
    need_op(p, close);
    return first;
}

static tn *dict_literal(parser *p)
{
    tn *n = node(p, TN_DICT), **tail = &n->kids;
    while (!is_op(p, "}")) {
        *tail = expression(p);
        tail = &(*tail)->next;
        need_op(p, ":");
        *tail = expression(p);
        tail = &(*tail)->next;
        if (!skip_op(p, ",")) break;
    }
    need_op(p, "}");
    return n;
}

static tn *constant(parser *p, tv v)
{
    tn *n = node(p, TN_CONST);
    n->v = v;
    return n;
}

static tn *name_or_constant(parser *p)
{
    static const struct {
        const char *name;
        tv v;
    } constants[] = { { "true", { .k = TV_BOOL, .u.b = true } },
                      { "True", { .k = TV_BOOL, .u.b = true } },
                      { "false", { .k = TV_BOOL } },
                      { "False", { .k = TV_BOOL } },
                      { "none", { .k = TV_NONE } },
                      { "None", { .k = TV_NONE } } };
    for (size_t i = 0; i < LQ_COUNT(constants); i++)
        if (skip_name(p, constants[i].name)) return constant(p, constants[i].v);
    static const char *const special[] = { "caller", "varargs", "kwargs" };
    for (size_t i = 0; i < LQ_COUNT(special); i++)
        if (is_name(p, special[i])) p->uses |= 1u << i;
    tn *n = node(p, TN_NAME);
    n->name = need_name(p);
    return n;
}

static tn *string_literal(parser *p)
{
    size_t n = 0, from = p->i;
    for (; cur(p)->k == TT_STR; p->i++)
        n += cur(p)->n;
    char *s = tp_take(p->b, n + 1);
    for (size_t i = from, w = 0; i < p->i; w += p->v[i++].n)
        memcpy(s + w, p->v[i].p, p->v[i].n);
    return constant(p, tv_own(s, n)); /* "a" "b" are one */
}

static tn *primary(parser *p)
{
    const tt *t = cur(p);
    bool comma;
    if (t->k == TT_NAME) return name_or_constant(p);
    if (t->k == TT_STR) return string_literal(p);
    if (t->k == TT_INT) return p->i++, constant(p, tv_int(t->i));
    if (t->k == TT_FLOAT) return p->i++, constant(p, tv_float(t->f));
    if (skip_op(p, "(")) {
        tn *first = members(p, ")", &comma);
        if (first && !comma) return first;
        tn *n = node(p, TN_TUPLE);
        n->kids = first;
        return n;
    }
    if (skip_op(p, "[")) {
        tn *n = node(p, TN_LIST);
        n->kids = members(p, "]", &comma);
        return n;
    }
    if (skip_op(p, "{")) return dict_literal(p);
    unexpected(p, "an expression");
}

/* "(" is passed: arguments and keywords. */
static tn *arguments(parser *p)
{
    tn *first = NULL, **tail = &first;
    while (!is_op(p, ")")) {
        const char *keyword = NULL;
        int stars = skip_op(p, "**") ? 2 : skip_op(p, "*");
        if (!stars && cur(p)->k == TT_NAME && is(cur(p) + 1, TT_OP, "=")) {
            keyword = need_name(p);
            p->i++;
        }
        tn *value = expression(p);
        tn *arg = make(p, TN_TUPLE, value, NULL); /* carries the keyword; `a` is the value */
        arg->name = keyword;
        arg->stars = stars;
        *tail = arg;
        tail = &arg->next;
        if (!skip_op(p, ",")) break;
    }
    need_op(p, ")");
    return first;
}

static tn *subscript(parser *p, tn *of)
{
    tn *parts[3] = { 0 };
    int n = 0;
    bool slice = false;
    for (; n < 3; n++) {
        if (!is_op(p, ":") && !is_op(p, "]")) parts[n] = expression(p);
        if (!skip_op(p, ":")) break;
        slice = true;
    }
    need_op(p, "]");
    if (!slice && !parts[0]) unexpected(p, "an index");
    tn *r = make(p, slice ? TN_SLICE : TN_ITEM, of, parts[0]);
    r->c = parts[1];
    r->d = parts[2];
    return r;
}

static tn *postfix(parser *p, tn *n)
{
    for (;;) {
        if (skip_op(p, ".")) {
            const tt *t = cur(p);
            if (t->k == TT_INT) {
                p->i++;
                n = make(p, TN_ITEM, n, constant(p, tv_int(t->i)));
            } else {
                n = make(p, TN_ATTR, n, NULL);
                n->name = need_name(p);
            }
        } else if (skip_op(p, "[")) {
            n = subscript(p, n);
        } else if (skip_op(p, "(")) {
            n = make(p, TN_CALL, n, NULL);
            n->kids = arguments(p);
        } else {
            return n;
        }
    }
}

static void need_row(parser *p, tn *of, const char *what,
                     const tp_row *(*find)(const char *, size_t))
{
    const tt *t = cur(p);
    if (t->k != TT_NAME) unexpected(p, what);
    const tp_row *row = find(t->p, t->n);
    if (!row && !p->soft && !p->unknown) {
        p->unknown = t;
        p->unknown_what = what;
    }
    of->name = intern(p->t, t->p, t->n);
    of->row = row;
    p->i++;
}

/* "|" is passed. */
static tn *filter(parser *p, tn *of)
{
    tn *n = make(p, TN_FILTER, of, NULL);
    need_row(p, n, "filter", tp_filter);
    if (skip_op(p, "(")) n->kids = arguments(p);
    return n;
}

/* "is" is passed. A test takes "(a, b)" or one operand. */
static tn *test(parser *p, tn *of)
{
    tn *n = make(p, TN_TEST, of, NULL);
    n->negated = skip_name(p, "not");
    need_row(p, n, "test", tp_test);
    const tt *t = cur(p);
    if (is_name(p, "is"))
        tp_fail(p->b, LQ_EFORMAT, "template: line %d: You cannot chain multiple tests with is",
                t->line);
    if (skip_op(p, "(")) {
        n->kids = arguments(p);
    } else if ((t->k == TT_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and") &&
                !is_name(p, "if")) ||
               t->k == TT_STR || t->k == TT_INT || t->k == TT_FLOAT || is_op(p, "[") ||
               is_op(p, "{")) {
        n->kids = make(p, TN_TUPLE, postfix(p, primary(p)), NULL);
    }
    return n;
}

static tn *filters_and_tests(parser *p, tn *n)
{
    for (;;) {
        if (skip_op(p, "|"))
            n = filter(p, n);
        else if (skip_name(p, "is"))
            n = test(p, n);
        else if (skip_op(p, "(")) {
            n = make(p, TN_CALL, n, NULL);
            n->kids = arguments(p);
        } else
            return n;
    }
}

static tn *unary(parser *p, bool with_filter)
{
    tn *n;
    enter(p);
    if (skip_op(p, "-"))
        n = make(p, TN_NEG, unary(p, false), NULL);
    else if (skip_op(p, "+"))
        n = make(p, TN_POS, unary(p, false), NULL);
    else
        n = primary(p);
    n = postfix(p, n);
    if (with_filter) n = filters_and_tests(p, n);
    p->depth--;
    return n;
}

static tn *power(parser *p)
{
    tn *n = unary(p, true);
    while (skip_op(p, "**")) {
        n = make(p, TN_BINARY, n, unary(p, true));
        n->op = OP_POW;
    }
    return n;
}

static bool skip_one_of(parser *p, const char *const *ops, const tn_op *codes, size_t n, tn_op *op)
{
    for (size_t i = 0; i < n; i++)
        if (skip_op(p, ops[i])) return *op = codes[i], true;
    return false;
}

static tn *product(parser *p)
{
    static const char *const ops[] = { "*", "/", "//", "%" };
    static const tn_op codes[] = { OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD };
    tn *n = power(p);
    for (tn_op op; skip_one_of(p, ops, codes, 4, &op);) {
        n = make(p, TN_BINARY, n, power(p));
        n->op = op;
    }
    return n;
}

static tn *concat(parser *p)
{
    tn *first = product(p), **tail = &first->next;
    if (!is_op(p, "~")) return first;
    tn *n = node(p, TN_CONCAT);
    n->kids = first;
    while (skip_op(p, "~")) {
        *tail = product(p);
        tail = &(*tail)->next;
    }
    return n;
}

static tn *sum(parser *p)
{
    static const char *const ops[] = { "+", "-" };
    static const tn_op codes[] = { OP_ADD, OP_SUB };
    tn *n = concat(p);
    for (tn_op op; skip_one_of(p, ops, codes, 2, &op);) {
        n = make(p, TN_BINARY, n, concat(p));
        n->op = op;
    }
    return n;
}

static bool skip_comparison(parser *p, tn_op *op)
{
    static const char *const ops[] = { "==", "!=", "<=", ">=", "<", ">" };
    static const tn_op codes[] = { OP_EQ, OP_NE, OP_LE, OP_GE, OP_LT, OP_GT };
    if (skip_one_of(p, ops, codes, 6, op)) return true;
    if (skip_name(p, "in")) return *op = OP_IN, true;
    if (is_name(p, "not") && is(cur(p) + 1, TT_NAME, "in")) return p->i += 2, *op = OP_NOT_IN, true;
    return false;
}

static tn *comparison(parser *p)
{
    tn *first = sum(p), *n = NULL, **tail = NULL;
    for (tn_op op; skip_comparison(p, &op);) {
        if (!n) {
            n = make(p, TN_COMPARE, first, NULL);
            tail = &n->kids;
        }
        tn *operand = make(p, TN_TUPLE, sum(p), NULL); /* carries the operator */
        operand->op = op;
        *tail = operand;
        tail = &operand->next;
    }
    return n ? n : first;
}

static tn *negation(parser *p)
{
    if (!skip_name(p, "not")) return comparison(p);
    enter(p);
    tn *n = make(p, TN_NOT, negation(p), NULL);
    p->depth--;
    return n;
}

static tn *conjunction(parser *p)
{
    tn *n = negation(p);
    while (skip_name(p, "and"))
        n = make(p, TN_AND, n, negation(p));
    return n;
}

static tn *expression_without_if(parser *p)
{
    enter(p);
    tn *n = conjunction(p);
    while (skip_name(p, "or"))
        n = make(p, TN_OR, n, conjunction(p));
    p->depth--;
    return n;
}

static tn *expression(parser *p)
{
    const tt *unknown = p->unknown;
    enter(p);
    tn *n = expression_without_if(p);
    while (skip_name(p, "if")) {
        bool soft = p->soft;
        p->soft = true;
        p->unknown = unknown; /* what stands before the if is reached on a condition only */
        tn *cond = make(p, TN_COND, expression_without_if(p), n);
        if (skip_name(p, "else")) cond->c = expression(p);
        p->soft = soft;
        n = cond;
    }
    p->depth--;
    return n;
}

/* "a, b" without parentheses is a tuple. */
static tn *tuple_expression(parser *p, bool with_if)
{
    tn *first = with_if ? expression(p) : expression_without_if(p), **tail = &first->next;
    if (!is_op(p, ",")) return first;
    tn *n = node(p, TN_TUPLE);
    n->kids = first;
    while (skip_op(p, ",")) {
        if (cur(p)->k == TT_BLOCK_END || cur(p)->k == TT_VAR_END || is_op(p, "=")) break;
        *tail = with_if ? expression(p) : expression_without_if(p);
        tail = &(*tail)->next;
    }
    return n;
}

/* ---- statements ---- */
static tn *block_until(parser *p, const char *const *ends)
{
    tn *n = node(p, TS_BLOCK);
    n->kids = statements(p, ends);
    return n;
}

/* The block up to "{% end %}", which is passed. */
static tn *body(parser *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    bool soft = p->soft;
    need_end(p);
    p->soft = false;
    tn *n = block_until(p, ends);
    p->soft = soft;
    p->i += 2; /* {% end */
    need_end(p);
    return n;
}

/* Behind "if" or "elif". */
static tn *if_statement(parser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    tn *n = node(p, TS_IF);
    enter(p);
    bool soft = p->soft;
    p->soft = true;
    n->a = tuple_expression(p, false);
    if (is_name(p, "if")) unexpected(p, "%}");
    need_end(p);
    n->b = block_until(p, ends);
    p->i++; /* {% */
    if (skip_name(p, "elif")) {
        n->c = if_statement(p);
    } else if (skip_name(p, "else")) {
        need_end(p);
        n->c = block_until(p, last);
        p->i += 2;
        need_end(p);
    } else {
        p->i++;
        need_end(p);
    }
    p->soft = soft;
    p->depth--;
    return n;
}

/* A name, ns.attr, or a tuple of such, with parentheses around or inside it. */
static tn *target(parser *p, bool with_attr)
{
    tn *first = NULL, **tail = &first;
    bool tuple = false;
    enter(p);
    do {
        tn *n;
        if (first && (is_name(p, "in") || is_op(p, "=") || is_op(p, ")"))) break;
        if (skip_op(p, "(")) {
            n = target(p, with_attr);
            need_op(p, ")");
        } else {
            n = node(p, TN_NAME);
            n->name = need_name(p);
            if (with_attr && skip_op(p, ".")) {
                n = make(p, TN_ATTR, n, NULL);
                n->name = need_name(p);
            }
        }
        *tail = n;
        tail = &n->next;
        tuple = tuple || is_op(p, ",");
    } while (skip_op(p, ","));
    p->depth--;
    if (!tuple) return first;
    tn *n = node(p, TN_TUPLE);
    n->kids = first;
    return n;
}

static tn *for_statement(parser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    static const char *const last[] = { "endfor", NULL };
    tn *n = node(p, TS_FOR);
    n->a = target(p, false);
    if (!skip_name(p, "in")) unexpected(p, "in");
    n->b = tuple_expression(p, false);
    if (skip_name(p, "if")) n->c = expression(p);
    n->recursive = skip_name(p, "recursive");
    need_end(p);
    bool soft = p->soft;
    p->soft = false;
    p->loops++;
    n->d = block_until(p, ends);
    p->loops--;
    p->i++;
    if (skip_name(p, "else")) {
        need_end(p);
        n->kids = block_until(p, last);
        p->i++;
    }
    p->i += is_name(p, "endfor");
    need_end(p);
    p->soft = soft;
    return n;
}

static tn *filter_chain(parser *p)
{
    tn *n = node(p, TN_BODY);
    do
        n = filter(p, n);
    while (skip_op(p, "|"));
    return n;
}

static tn *set_statement(parser *p)
{
    tn *n = node(p, TS_SET);
    n->a = target(p, true);
    if (skip_op(p, "=")) {
        n->b = tuple_expression(p, true);
        need_end(p);
        return n;
    }
    n->k = TS_SET_BLOCK;
    n->b = skip_op(p, "|") ? filter_chain(p) : node(p, TN_BODY);
    n->c = body(p, "endset");
    return n;
}

/* "(a, b=1)": parameters, each a NAME whose `a` is its default. */
static tn *parameters(parser *p)
{
    tn *first = NULL, **tail = &first;
    need_op(p, "(");
    while (!is_op(p, ")")) {
        tn *n = node(p, TN_NAME);
        n->name = need_name(p);
        if (skip_op(p, "=")) n->a = expression(p);
        *tail = n;
        tail = &n->next;
        if (!skip_op(p, ",")) break;
    }
    need_op(p, ")");
    return first;
}

/* Loops around a macro are not its own; `uses` of the macro becomes what its body names. */
static tn *macro_body(parser *p, tn *macro, const char *end)
{
    int loops = p->loops;
    unsigned uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    tn *n = body(p, end);
    p->loops = loops;
    macro->uses = p->uses;
    p->uses |= uses;
    return n;
}

static tn *macro_statement(parser *p)
{
    tn *n = node(p, TS_MACRO);
    n->name = need_name(p);
    n->a = parameters(p);
    n->b = macro_body(p, n, "endmacro");
    return n;
}

static tn *call_statement(parser *p)
{
    tn *n = node(p, TS_CALL);
    n->name = intern(p->t, "caller", 6);
    if (is_op(p, "(")) n->a = parameters(p);
    n->c = expression(p);
    if (n->c->k != TN_CALL) unexpected(p, "a call");
    n->b = macro_body(p, n, "endcall");
    return n;
}

static tn *filter_statement(parser *p)
{
    tn *n = node(p, TS_FILTER);
    n->a = filter_chain(p);
    n->b = body(p, "endfilter");
    return n;
}

static tn *with_statement(parser *p)
{
    tn *n = node(p, TS_WITH), **tail = &n->kids;
    while (cur(p)->k != TT_BLOCK_END) {
        if (n->kids) need_op(p, ",");
        tn *set = node(p, TS_SET);
        set->a = target(p, false);
        need_op(p, "=");
        set->b = expression(p);
        *tail = set;
        tail = &set->next;
    }
    n->b = body(p, "endwith");
    return n;
}

/* Where the assistant's own text lies: here only a scope of its own, as a call block is one. */
static tn *generation_statement(parser *p)
{
    tn *n = node(p, TS_WITH);
    n->b = macro_body(p, n, "endgeneration");
    return n;
}

static tn *leave_loop(parser *p, tn_kind k)
{
    tn *n = node(p, k);
    if (!p->loops)
        tp_fail(p->b, LQ_EFORMAT, "template: line %d: break or continue outside a loop", n->line);
    need_end(p);
    return n;
}
static tn *break_statement(parser *p) { return leave_loop(p, TS_BREAK); }
static tn *continue_statement(parser *p) { return leave_loop(p, TS_CONTINUE); }

static tn *statement(parser *p)
{
    static const struct {
        const char *name;
        tn *(*parse)(parser *p);
    } kinds[] = {
        { "if", if_statement },       { "for", for_statement },
        { "set", set_statement },     { "macro", macro_statement },
        { "call", call_statement },   { "filter", filter_statement },
        { "with", with_statement },   { "generation", generation_statement },
        { "break", break_statement }, { "continue", continue_statement },
    };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        if (skip_name(p, kinds[i].name)) {
            enter(p);
            tn *n = kinds[i].parse(p);
            p->depth--;
            return n;
        }
    const tt *t = cur(p);
    tp_fail(p->b, LQ_EUNSUPPORTED, "template: line %d: statement '%.*s' is not known here", t->line,
            (int)(t->n < 40 ? t->n : 40), t->p);
}

/* Up to "{% END" with END among `ends` (which stays), or the end of the source (ends NULL). */
static tn *statements(parser *p, const char *const *ends)
{
    tn *first = NULL, **tail = &first;
    for (;;) {
        const tt *t = cur(p);
        tn *n = NULL;
        p->b->line = t->line;
        if (t->k == TT_END) {
            if (ends) unexpected(p, ends[0]);
            return first;
        }
        if (t->k == TT_BLOCK_BEGIN) {
            for (size_t i = 0; ends && ends[i]; i++)
                if (is(t + 1, TT_NAME, ends[i])) return first;
            p->i++;
            n = statement(p);
        } else if (t->k == TT_VAR_BEGIN) {
            p->i++;
            n = node(p, TS_OUT);
            n->a = tuple_expression(p, true);
            if (cur(p)->k != TT_VAR_END) unexpected(p, "}}");
            p->i++;
        } else {
            n = node(p, TS_TEXT);
            n->v = tv_own(t->p, t->n);
            p->i++;
        }
        *tail = n;
        tail = &n->next;
    }
}

tn *tp_parse(tmpl_template *t, const char *src, size_t n)
{
    size_t n_tokens;
    parser p = { .t = t, .b = &t->base };
    p.v = tp_lex(p.b, src, n, &n_tokens);
    tn *root = node(&p, TS_BLOCK);
    root->kids = statements(&p, NULL);
    if (p.unknown)
        tp_fail(p.b, LQ_EUNSUPPORTED, "template: line %d: no %s named '%.*s'", p.unknown->line,
                p.unknown_what, (int)p.unknown->n, p.unknown->p);
    return root;
}
