/* runtime/chat/tmpl_go.c - see tmpl_go.h. Literal text becomes a string that is printed, so that Jinja's own
 * rules for blanks have nothing to cut. */
#include "runtime/chat/tmpl_go.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH = 32, NAME = 64 };

typedef enum { IN_IF, IN_RANGE } block;

typedef struct {
    lq_buf *out;
    lq_err *err;
    lq_status st;
    block kind[DEPTH];
    char dot[DEPTH + 1][NAME]; /* what "." is in the blocks; "": all variables */
    int depth, n_loops;
    bool over;            /* .Response was there */
    const char *at, *end; /* of the action at hand */
    int nested;           /* parentheses */
} go;

static void fail(go *g, const char *what, const char *from, size_t n)
{
    if (!g->st)
        g->st =
            lq_fail(g->err, LQ_EVALUE, "template: %s: '%.*s'", what, n < 60 ? (int)n : 60, from);
}

static void put(go *g, const char *s) { lq_buf_puts(g->out, s); }

/* Bytes as a string of Jinja's. */
static void put_string(go *g, const char *s, size_t n)
{
    put(g, "\"");
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"' || s[i] == '\\') put(g, "\\");
        if (s[i] == '\n')
            put(g, "\\n");
        else
            lq_buf_add(g->out, s + i, 1);
    }
    put(g, "\"");
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void put_literal(go *g, const char *s, size_t n)
{
    if (!n) return;
    put(g, "{{ ");
    put_string(g, s, n);
    put(g, " }}");
}

/* ---- expressions ---- */

static void skip(go *g)
{
    while (g->at < g->end && blank(*g->at))
        g->at++;
}

static size_t word(const go *g)
{
    const char *p = g->at;
    while (p < g->end && (isalnum((unsigned char)*p) || *p == '_'))
        p++;
    return (size_t)(p - g->at);
}

static bool is(const go *g, size_t n, const char *text)
{
    return strlen(text) == n && memcmp(g->at, text, n) == 0;
}

/* The next word is this one, and is passed. */
static bool take(go *g, const char *text)
{
    skip(g);
    if (!is(g, word(g), text)) return false;
    g->at += strlen(text);
    return true;
}

/* ".A.B" after `base`. */
static void put_fields(go *g, const char *base)
{
    put(g, base);
    for (const char *dot = *base ? "." : ""; g->at < g->end && *g->at == '.'; dot = ".") {
        g->at++;
        const size_t n = word(g);
        if (!n) {
            fail(g, "expected a field's name", g->at, (size_t)(g->end - g->at));
            return;
        }
        put(g, dot);
        lq_buf_add(g->out, g->at, n);
        g->at += n;
    }
}

static void put_quoted(go *g)
{
    const char quote = *g->at, *from = ++g->at;
    while (g->at < g->end && *g->at != quote)
        g->at += *g->at == '\\' && quote == '"' && g->at + 1 < g->end ? 2 : 1;
    if (g->at >= g->end) {
        fail(g, "a text without its end", from, (size_t)(g->end - from));
        return;
    }
    if (quote == '`') {
        put_string(g, from, (size_t)(g->at - from));
    } else {
        put(g, "\"");
        lq_buf_add(g->out, from, (size_t)(g->at - from));
        put(g, "\"");
    }
    g->at++;
}

static void put_expression(go *g);

static void put_variable(go *g)
{
    char name[NAME];
    g->at++;
    const size_t n = word(g);
    snprintf(name, sizeof name, n ? "v_%.*s" : "%.*s", n < 40 ? (int)n : 40, g->at);
    g->at += n;
    put_fields(g, n ? name : "");
}

/* False: there is none. */
static bool put_operand(go *g)
{
    static const char *const words[][2] = { { "true", "true" },
                                            { "false", "false" },
                                            { "nil", "none" } };
    skip(g);
    if (g->at >= g->end || *g->at == ')' || g->st) return false;
    if (*g->at == '.') {
        const bool alone = g->at + 1 == g->end || !isalpha((unsigned char)g->at[1]);
        if (alone) g->at++;
        put_fields(g, g->dot[g->depth]);
        return true;
    }
    if (*g->at == '$') return put_variable(g), true;
    if (*g->at == '"' || *g->at == '`') return put_quoted(g), true;
    if (*g->at == '(') {
        if (++g->nested > DEPTH) fail(g, "too deep", g->at, 1);
        g->at++;
        put_expression(g);
        skip(g);
        if (g->at >= g->end) fail(g, "expected )", g->at, 0);
        g->at++;
        g->nested--;
        return true;
    }
    const size_t n = word(g);
    for (size_t i = 0; i < LQ_COUNT(words); i++)
        if (is(g, n, words[i][0])) return put(g, words[i][1]), g->at += n, true;
    const bool number = n && isdigit((unsigned char)*g->at);
    if (number) lq_buf_add(g->out, g->at, n);
    if (!number) fail(g, "not supported", g->at, n ? n : 1);
    g->at += n ? n : 1;
    return true;
}

/* Operands with a word between them: and, or, ==, ... */
static void put_between(go *g, const char *between)
{
    int n = 0;
    put(g, "(");
    for (const size_t before = g->out->n; !g->st; n++) {
        skip(g);
        if (g->at >= g->end || *g->at == ')') break;
        if (g->out->n > before) put(g, between);
        put_operand(g);
    }
    put(g, ")");
    if (n < 2) fail(g, "expected two values", g->at, 0);
}

/* A function and its values, or a value. */
static void put_expression(go *g)
{
    static const struct {
        const char *name, *before, *behind, *between;
    } functions[] = { { "and", NULL, NULL, " and " },   { "or", NULL, NULL, " or " },
                      { "eq", NULL, NULL, " == " },     { "ne", NULL, NULL, " != " },
                      { "lt", NULL, NULL, " < " },      { "le", NULL, NULL, " <= " },
                      { "gt", NULL, NULL, " > " },      { "ge", NULL, NULL, " >= " },
                      { "not", "(not ", ")", NULL },    { "len", "(", "|length)", NULL },
                      { "json", "(", "|tojson)", NULL } };
    size_t i = 0;
    skip(g);
    while (i < LQ_COUNT(functions) && !take(g, functions[i].name))
        i++;
    if (i == LQ_COUNT(functions)) {
        put(g, "(");
        if (!put_operand(g)) fail(g, "expected a value", g->at, 0);
        put(g, ")");
    } else if (functions[i].between) {
        put_between(g, functions[i].between);
    } else {
        put(g, functions[i].before);
        if (!put_operand(g)) fail(g, "expected a value", g->at, 0);
        put(g, functions[i].behind);
    }
    skip(g);
    if (g->at < g->end && *g->at != ')') fail(g, "not supported", g->at, (size_t)(g->end - g->at));
}

/* ---- actions ---- */

static void enter(go *g, block kind, const char *dot)
{
    if (g->depth == DEPTH) {
        fail(g, "blocks are too deep", "", 0);
        return;
    }
    char keep[NAME]; /* dot may be of this array */
    snprintf(keep, sizeof keep, "%s", dot);
    g->kind[g->depth++] = kind;
    memcpy(g->dot[g->depth], keep, sizeof keep);
}

/* "$m" or "$i, $m" before ":="; how many. */
static int take_names(go *g, char name[2][NAME])
{
    const char *assign = g->at;
    int n = 0;
    while (assign + 1 < g->end && memcmp(assign, ":=", 2) != 0)
        assign++;
    if (assign + 1 >= g->end) return 0;
    while (n < 2 && g->at < assign) {
        skip(g);
        if (*g->at != '$') break;
        g->at++;
        const size_t k = word(g);
        snprintf(name[n++], NAME, "v_%.*s", k < 40 ? (int)k : 40, g->at);
        g->at += k;
        skip(g);
        if (*g->at == ',') g->at++;
    }
    skip(g);
    if (!n || g->at != assign) fail(g, "not supported", g->at, (size_t)(g->end - g->at));
    g->at = assign + 2;
    return n;
}

static void put_range(go *g)
{
    char name[2][NAME], item[NAME];
    const int n = take_names(g, name);
    snprintf(item, sizeof item, "it_%d", g->n_loops++);
    put(g, "{% for ");
    put(g, item);
    put(g, " in ");
    put_expression(g);
    put(g, " %}");
    if (n) lq_buf_printf(g->out, "{%% set %s = %s %%}", name[n - 1], item);
    if (n == 2) lq_buf_printf(g->out, "{%% set %s = loop.index0 %%}", name[0]);
    enter(g, IN_RANGE, item);
}

static void put_with(go *g)
{
    char item[NAME];
    snprintf(item, sizeof item, "it_%d", g->n_loops++);
    lq_buf_printf(g->out, "{%% set %s = ", item);
    put_expression(g);
    lq_buf_printf(g->out, " %%}{%% if %s %%}", item);
    enter(g, IN_IF, item);
}

static void leave(go *g)
{
    if (!g->depth) {
        fail(g, "nothing to end", "end", 3);
        return;
    }
    put(g, g->kind[--g->depth] == IN_IF ? "{% endif %}" : "{% endfor %}");
}

static void put_else(go *g)
{
    skip(g);
    if (!g->depth) {
        fail(g, "nothing before it", "else", 4);
        return;
    }
    memcpy(g->dot[g->depth], g->dot[g->depth - 1], NAME); /* of a with or range without items */
    if (!take(g, "if")) {
        put(g, "{% else %}");
        return;
    }
    put(g, "{% elif ");
    put_expression(g);
    put(g, " %}");
}

static void put_action(go *g)
{
    skip(g);
    if (g->at + 1 < g->end && memcmp(g->at, "/*", 2) == 0) return;
    if (take(g, "if")) {
        put(g, "{% if ");
        put_expression(g);
        put(g, " %}");
        enter(g, IN_IF, g->dot[g->depth]);
    } else if (take(g, "range")) {
        put_range(g);
    } else if (take(g, "with")) {
        put_with(g);
    } else if (take(g, "else")) {
        put_else(g);
    } else if (take(g, "end")) {
        leave(g);
    } else if (g->end - g->at >= 9 && memcmp(g->at, ".Response", 9) == 0) {
        g->over = true;
    } else {
        put(g, "{{ ");
        put_expression(g);
        put(g, " }}");
    }
}

/* The end of an action that begins at p; NULL: it has none. */
static const char *action_end(const char *p)
{
    for (char quote = 0; *p; p++) {
        if (quote) {
            if (*p == '\\' && quote == '"' && p[1])
                p++;
            else if (*p == quote)
                quote = 0;
        } else if (*p == '"' || *p == '`') {
            quote = *p;
        } else if (p[0] == '}' && p[1] == '}') {
            return p;
        }
    }
    return NULL;
}

lq_status tmpl_from_go(lq_buf *out, const char *text, lq_err *err)
{
    go g = { .out = out, .err = err };
    for (bool cut = false; !g.st && !g.over;) {
        const char *open = strstr(text, "{{"), *stop = open ? open : text + strlen(text);
        const bool cuts = open && open[2] == '-' && blank(open[3]);
        while (cut && text < stop && blank(*text))
            text++;
        const char *to = stop;
        while (cuts && to > text && blank(to[-1]))
            to--;
        put_literal(&g, text, (size_t)(to - text));
        if (!open) break;
        g.at = open + 2 + cuts;
        g.end = action_end(g.at);
        if (!g.end) {
            fail(&g, "an action without its end", open, strlen(open));
            break;
        }
        text = g.end + 2;
        cut = g.end - g.at > 1 && g.end[-1] == '-' && blank(g.end[-2]);
        if (cut) g.end--;
        put_action(&g);
    }
    if (!g.st && !g.over && g.depth) fail(&g, "a block without its end", "", 0);
    while (!g.st && g.depth)
        leave(&g);
    return !g.st && out->oom ? lq_fail(err, LQ_ENOMEM, "template: out of memory") : g.st;
}
