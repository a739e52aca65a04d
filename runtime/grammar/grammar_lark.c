/* runtime/grammar/grammar_lark.c - grammars in Lark's notation, as custom tools and vLLM's clients have them.
 *
 * Taken: rules and terminals, | * + ? ~n ~n..m ( ) [ ], strings ("..."i too), ranges "a".."z", /regular
 * expressions/, `%import common.NAME`, `%ignore`, aliases (-> name), priorities, comments. Rules may use themselves,
 * also where they begin (grammar_left.c). What is ignored may be before the first terminal and after each. Refused by
 * name: other directives, templates, flags of regular expressions, imports from elsewhere, terminals that use rules or
 * themselves, as lark does. Source: lark-parser.readthedocs.io, "Grammar Reference". */
#include "base/buf.h"
#include "base/utf8.h"
#include "runtime/grammar/grammar_int.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name, *body; /* of an import: the body is a regular expression */
    size_t n;
    uint32_t rule; /* GR_NONE: not yet used */
    bool regex, busy;
} def;

typedef struct {
    ga_builder *b;
    bool json; /* what comes out is the text between the quotes of a JSON string */
    const char *text, *p;
    def defs[GR_MAX_LARK_NAMES];
    const char *ignored[GR_MAX_LARK_IGNORED]; /* what follows %ignore */
    def *used
        [GR_MAX_LARK_NAMES]; /* rules that are used, [n_used]; the first n_done have their bodies */
    int n_defs, n_ignored, n_used, n_done, nest;
    bool in_terminal; /* a part of one: nothing is ignored in it */
    uint32_t between; /* what may be between terminals, any number of times; GR_NONE: nothing */
} lark;

static const struct {
    const char *name, *regex;
} common[] = { { "LF", "\\n" },
               { "CR", "\\r" },
               { "NEWLINE", "(?:\\r?\\n)+" },
               { "WS", "[ \\t\\f\\r\\n]+" },
               { "WS_INLINE", "[ \\t]+" },
               { "DIGIT", "[0-9]" },
               { "HEXDIGIT", "[0-9A-Fa-f]" },
               { "INT", "[0-9]+" },
               { "SIGNED_INT", "[+-]?[0-9]+" },
               { "DECIMAL", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)" },
               { "FLOAT",
                 "(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)" },
               { "NUMBER", "(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?" },
               { "SIGNED_NUMBER", "[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?" },
               { "LETTER", "[A-Za-z]" },
               { "LCASE_LETTER", "[a-z]" },
               { "UCASE_LETTER", "[A-Z]" },
               { "WORD", "[A-Za-z]+" },
               { "CNAME", "[A-Za-z_][A-Za-z0-9_]*" },
               { "ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\"" } };

static int line_of(const lark *l)
{
    int line = 1;
    for (const char *p = l->text; p < l->p; p++)
        line += *p == '\n';
    return line;
}

static void fail(lark *l, lq_status s, const char *what)
{
    ga_fail(l->b, s, "lark: line %d: %s", line_of(l), what);
}

static void wrong(lark *l, const char *what) { fail(l, LQ_EVALUE, what); }
static void refuse(lark *l, const char *what) { fail(l, LQ_EUNSUPPORTED, what); }

/* ---- tokens ---- */

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Blanks and comments; a line's end only where | follows, as a definition goes on then. */
static void skip(lark *l, bool lines)
{
    for (;;) {
        while (*l->p == ' ' || *l->p == '\t' || *l->p == '\r' || (lines && *l->p == '\n'))
            l->p++;
        if (*l->p == '#' || (l->p[0] == '/' && l->p[1] == '/')) {
            l->p += strcspn(l->p, "\n");
            continue;
        }
        if (*l->p != '\n') return;
        lark ahead = { .p = l->p };
        skip(&ahead, true);
        if (*ahead.p != '|') return;
        l->p = ahead.p;
    }
}

static size_t name_length(const char *p)
{
    size_t n = 0;
    while (name_char(p[n]))
        n++;
    return isdigit((unsigned char)*p) ? 0 : n;
}

/* Behind a string or a regular expression that l->p is at, its flags not included. */
static const char *quoted_end(lark *l)
{
    const char q = *l->p, *p = l->p + 1;
    for (; *p && *p != q && *p != '\n'; p++)
        if (*p == '\\' && p[1]) p++;
    if (*p == q) return p + 1;
    wrong(l, q == '/' ? "a regular expression without its end" : "a string without its end");
    return p;
}

/* ---- definitions ---- */

static def *find(lark *l, const char *name, size_t n)
{
    for (int i = 0; i < l->n_defs; i++)
        if (l->defs[i].n == n && memcmp(l->defs[i].name, name, n) == 0) return &l->defs[i];
    return NULL;
}

static void add(lark *l, def d)
{
    if (find(l, d.name, d.n))
        wrong(l, "a name that is defined twice");
    else if (l->n_defs == GR_MAX_LARK_NAMES)
        wrong(l, "more than 256 names");
    else
        l->defs[l->n_defs++] = d;
}

/* The name at l->p, of Lark's own grammar; it may be called otherwise here. */
static void import_one(lark *l)
{
    const size_t n = name_length(l->p);
    def d = { .name = l->p, .n = n, .rule = GR_NONE, .regex = true };
    for (size_t i = 0; i < LQ_COUNT(common) && n; i++)
        if (strlen(common[i].name) == n && memcmp(common[i].name, l->p, n) == 0)
            d.body = common[i].regex;
    if (!d.body) refuse(l, "an import that is none of common's");
    l->p += n;
    skip(l, false);
    if (l->p[0] == '-' && l->p[1] == '>') {
        l->p += 2;
        skip(l, false);
        d.name = l->p;
        l->p += d.n = name_length(l->p);
        if (!d.n) wrong(l, "expected a name behind ->");
    }
    if (!l->b->status) add(l, d);
}

static void skip_body(lark *l);

static void directive(lark *l)
{
    static const char import[] = "%import", from[] = "common", ignore[] = "%ignore";
    if (strncmp(l->p, ignore, sizeof ignore - 1) == 0) {
        l->p += sizeof ignore - 1;
        if (l->n_ignored == GR_MAX_LARK_IGNORED)
            wrong(l, "more than 16 %ignore");
        else
            l->ignored[l->n_ignored++] = l->p;
        skip_body(l);
        return;
    }
    if (strncmp(l->p, import, sizeof import - 1) != 0) {
        refuse(l, "a directive that cannot be honoured: only %import common... and %ignore can");
        return;
    }
    l->p += sizeof import - 1;
    skip(l, false);
    if (strncmp(l->p, from, sizeof from - 1) != 0) {
        refuse(l, "an import from another module than common");
        return;
    }
    l->p += sizeof from - 1;
    skip(l, false);
    if (*l->p == '.') {
        l->p++;
        import_one(l);
        return;
    }
    if (*l->p != '(') wrong(l, "expected common.NAME or common (NAME, ...)");
    do {
        l->p++;
        skip(l, false);
        import_one(l);
        skip(l, false);
    } while (!l->b->status && *l->p == ',');
    if (!l->b->status && *l->p++ != ')') wrong(l, "expected )");
}

/* To the end of a definition's body. */
static void skip_body(lark *l)
{
    for (skip(l, false); *l->p && *l->p != '\n' && !l->b->status; skip(l, false)) {
        if (*l->p == '"' || *l->p == '/')
            l->p = quoted_end(l);
        else
            l->p++;
    }
}

static void read_defs(lark *l)
{
    for (skip(l, true); *l->p && !l->b->status; skip(l, true)) {
        if (*l->p == '%') {
            directive(l);
            continue;
        }
        while (*l->p == '?' || *l->p == '!')
            l->p++;
        def d = { .name = l->p, .n = name_length(l->p), .rule = GR_NONE };
        l->p += d.n;
        if (d.n && *l->p == '.') l->p += 1 + strspn(l->p + 1, "-0123456789"); /* a priority */
        if (d.n && *l->p == '{') refuse(l, "a template cannot be honoured");
        skip(l, false);
        if (!d.n || *l->p != ':') {
            wrong(l, "expected a definition, NAME: ...");
            return;
        }
        d.body = ++l->p;
        add(l, d);
        skip_body(l);
    }
}

/* ---- as nodes ---- */

static ga_node *characters(lark *l, const ga_range *r, int n)
{
    return l->json ? gj_chars(l->b, r, n, false) : ga_chars(l->b, r, n, false);
}

static ga_node *regex(lark *l, const char *text, size_t n)
{
    char what[64];
    snprintf(what, sizeof what, "lark: line %d: a regular expression", line_of(l));
    return gr_regex(l->b, text, n, l->json, false, what);
}

/* The digits at *p, `most` of them and no fewer, as a code point; *p: behind them. */
static uint32_t code_point(lark *l, const char **p, size_t most)
{
    char digits[9] = { 0 };
    memcpy(digits, *p, strnlen(*p, most));
    const unsigned long v = strtoul(digits, NULL, 16);
    if (strspn(digits, "0123456789abcdefABCDEF") != most || v > 0x10ffff)
        wrong(l, most == 8   ? "expected a code point in 8 hexadecimal digits behind \\U"
                 : most == 4 ? "expected 4 hexadecimal digits behind \\u"
                             : "expected 2 hexadecimal digits behind \\x");
    else
        *p += most;
    return (uint32_t)v;
}

/* The character at *p of a string, as it is or escaped; other escapes than Python's are the character. */
static uint32_t character(lark *l, const char **p)
{
    static const char names[] = "ntrfv", what[] = "\n\t\r\f\v";
    size_t n;
    if (**p != '\\') {
        const uint32_t c = lq_utf8_get((const uint8_t *)*p, &n);
        *p += n;
        return c;
    }
    ++*p;
    const char *k = strchr(names, **p);
    if (k && *k) return ++*p, (uint32_t)what[k - names];
    if (**p == 'x' || **p == 'u' || **p == 'U') {
        const size_t digits = **p == 'x' ? 2 : **p == 'u' ? 4 : 8;
        ++*p;
        return code_point(l, p, digits);
    }
    const uint32_t c = lq_utf8_get((const uint8_t *)*p, &n);
    *p += n;
    return c;
}

/* The one character between p and end. */
static uint32_t range_end(lark *l, const char *p, const char *end)
{
    const uint32_t c = p < end ? character(l, &p) : 0;
    if (p != end || !c) wrong(l, "expected one character on each side of ..");
    return c;
}

static ga_node *string(lark *l)
{
    const char *p = l->p + 1, *end = quoted_end(l) - 1;
    if (l->b->status) return NULL;
    l->p = end + 1;
    if (l->p[0] == '.' && l->p[1] == '.' && l->p[2] == '"') { /* a range of characters */
        ga_range r = { .lo = range_end(l, p, end) };
        l->p += 2;
        p = l->p + 1, end = quoted_end(l) - 1;
        if (l->b->status) return NULL;
        r.hi = range_end(l, p, end);
        l->p = end + 1;
        if (r.hi < r.lo) wrong(l, "a range from a higher to a lower character");
        return characters(l, &r, 1);
    }
    const bool any_case = *l->p == 'i';
    l->p += any_case;
    ga_node *seq = ga_seq(l->b);
    while (p < end && !l->b->status) {
        const uint32_t c = character(l, &p);
        const bool letter = any_case && c < 128 && isalpha((int)c);
        ga_range r[] = { { c, c }, { c ^ 32, c ^ 32 } };
        ga_add(seq, characters(l, r, letter ? 2 : 1));
    }
    return seq;
}

/* Flags of a regular expression: none can be honoured. */
static ga_node *slashes(lark *l)
{
    const char *from = l->p + 1, *end = quoted_end(l) - 1;
    lq_buf text = { 0 };
    if (l->b->status) return NULL;
    l->p = end + 1;
    if (isalpha((unsigned char)*l->p))
        refuse(l, "flags of a regular expression cannot be honoured");
    for (const char *p = from; p < end; p++) {
        if (p[0] == '\\' && p[1] == '/') p++; /* which is no escape elsewhere */
        lq_buf_add(&text, p, 1);
        if (p[0] == '\\' && p + 1 < end) lq_buf_add(&text, ++p, 1);
    }
    lq_buf_add(&text, "", 1);
    if (text.oom) ga_fail(l->b, LQ_ENOMEM, "grammar: out of memory");
    ga_node *t = l->b->status ? NULL : regex(l, text.p, text.n - 1);
    lq_buf_free(&text);
    return t;
}

static ga_node *any(lark *l);

/* Of a terminal; a rule's has small letters. */
static bool is_terminal(const def *d)
{
    const char *p = d->name + strspn(d->name, "_");
    return d->regex || isupper((unsigned char)*p);
}

/* A terminal and what is ignored behind it. */
static ga_node *with_between(lark *l, ga_node *t)
{
    if (l->in_terminal || l->between == GR_NONE) return t;
    ga_node *seq = ga_seq(l->b);
    ga_add(seq, t);
    ga_add(seq, ga_ref(l->b, l->between));
    return seq;
}

/* What follows d's name, up to the end of the definition. */
static void define(lark *l, def *d)
{
    ga_node *body = NULL;
    l->in_terminal = is_terminal(d);
    l->p = d->body;
    if (d->regex) {
        body = regex(l, d->body, strlen(d->body));
    } else {
        body = any(l);
        if (!l->b->status && *l->p && *l->p != '\n') wrong(l, "expected the end of the definition");
    }
    if (!l->b->status) l->b->rules[d->rule].body = body;
}

/* A rule for d: a terminal's body is read at once, which finds those that use themselves; others wait. */
static void use(lark *l, def *d)
{
    char name[GR_MAX_RULE_NAME];
    snprintf(name, sizeof name, "%.*s", (int)d->n, d->name);
    d->rule = ga_new_rule(l->b, name);
    if (!is_terminal(d)) {
        l->used[l->n_used++] = d;
        return;
    }
    const char *back = l->p;
    const bool in_terminal = l->in_terminal;
    d->busy = true;
    define(l, d);
    d->busy = false;
    l->in_terminal = in_terminal;
    l->p = back;
}

static ga_node *name(lark *l)
{
    const size_t n = name_length(l->p);
    def *d = find(l, l->p, n);
    if (l->p[n] == '{') refuse(l, "a template cannot be honoured");
    if (!d) wrong(l, "a name that is not defined");
    if (d && d->busy) wrong(l, "a terminal that uses itself");
    if (d && l->in_terminal && !is_terminal(d)) wrong(l, "a rule inside a terminal");
    if (l->b->status) return NULL;
    l->p += n;
    if (d->rule == GR_NONE) use(l, d);
    ga_node *t = ga_ref(l->b, d->rule);
    return is_terminal(d) ? with_between(l, t) : t;
}

static ga_node *group(lark *l)
{
    const char close = *l->p == '(' ? ')' : ']';
    l->p++;
    ga_node *t = any(l);
    if (!l->b->status && *l->p != close) wrong(l, close == ')' ? "expected )" : "expected ]");
    if (l->b->status) return NULL;
    l->p++;
    return close == ')' ? t : ga_optional(l->b, t);
}

static long number(lark *l, const char *missing)
{
    char *end;
    if (!isdigit((unsigned char)*l->p)) {
        wrong(l, missing);
        return 0;
    }
    const long v = strtol(l->p, &end, 10);
    l->p = end;
    return v;
}

/* * + ? ~n ~n..m */
static ga_node *times(lark *l, ga_node *t)
{
    skip(l, false);
    if (*l->p && strchr("*+?", *l->p)) {
        const char c = *l->p++;
        return ga_repeat(l->b, t, c == '+', c == '?' ? 1 : -1);
    }
    if (*l->p != '~') return t;
    l->p++;
    skip(l, false);
    const long least = number(l, "expected a number behind ~");
    long most = least;
    skip(l, false);
    if (l->p[0] == '.' && l->p[1] == '.') {
        l->p += 2;
        skip(l, false);
        most = number(l, "expected a number behind ..");
    }
    if (most < least) wrong(l, "a repetition ~n..m with m below n");
    return ga_repeat(l->b, t, least, most);
}

static ga_node *item(lark *l)
{
    ga_node *t = NULL;
    if (*l->p == '"' || *l->p == '/')
        t = with_between(l, *l->p == '"' ? string(l) : slashes(l));
    else if (*l->p == '(' || *l->p == '[')
        t = group(l);
    else if (name_length(l->p))
        t = name(l);
    else
        wrong(l, "expected a name, a string, a regular expression or a group");
    return l->b->status ? NULL : times(l, t);
}

static ga_node *any(lark *l)
{
    ga_node *alt = ga_alt(l->b), *seq = ga_seq(l->b);
    if (++l->nest > GR_MAX_LARK_NEST) refuse(l, "terminals and groups nest too deeply");
    for (skip(l, false); !l->b->status && *l->p && !strchr("\n)]", *l->p); skip(l, false)) {
        if (*l->p == '|') {
            l->p++;
            ga_add(alt, seq);
            seq = ga_seq(l->b);
        } else if (l->p[0] == '-' && l->p[1] == '>') { /* a name for the tree */
            l->p += 2;
            skip(l, false);
            l->p += name_length(l->p);
        } else {
            ga_add(seq, item(l));
        }
    }
    l->nest--;
    ga_add(alt, seq);
    return alt;
}

/* What all %ignore name, any number of times. */
static void read_ignored(lark *l)
{
    const uint32_t between = ga_new_rule(l->b, "%ignore");
    ga_node *alt = ga_alt(l->b);
    l->in_terminal = true;
    for (int i = 0; i < l->n_ignored && !l->b->status; i++) {
        l->p = l->ignored[i];
        ga_add(alt, any(l));
        if (!l->b->status && *l->p && *l->p != '\n') wrong(l, "expected the end of %ignore");
    }
    ga_node *body = ga_repeat(l->b, alt, 0, -1);
    l->in_terminal = false;
    l->between = between;
    if (!l->b->status) l->b->rules[between].body = body;
}

/* By how its first rule begins: "name:", not GBNF's "name ::=". */
static bool is_lark(const char *text)
{
    lark l = { .p = text };
    for (skip(&l, true); *l.p == '%'; skip(&l, true))
        l.p += strcspn(l.p, "\n");
    l.p += strspn(l.p, "?!");
    l.p += name_length(l.p);
    if (*l.p == '.') l.p += 1 + strspn(l.p + 1, "-0123456789");
    skip(&l, false);
    return l.p[0] == ':' && l.p[1] != ':';
}

/* text ends with a NUL. */
static void parse(lark *l)
{
    const uint32_t root = ga_new_rule(l->b, "start");
    read_defs(l);
    def *start = l->b->status ? NULL : find(l, "start", 5);
    if (!l->b->status && !start) wrong(l, "there is no rule called start");
    if (start && l->n_ignored) read_ignored(l);
    if (l->b->status) return;
    ga_node *body = ga_seq(l->b);
    if (l->between != GR_NONE) ga_add(body, ga_ref(l->b, l->between));
    l->p = start->name;
    ga_add(body, name(l));
    if (!l->b->status) l->b->rules[root].body = body;
    while (l->n_done < l->n_used && !l->b->status)
        define(l, l->used[l->n_done++]);
}

/* With a NUL behind it. */
static const char *copied(ga_builder *b, const char *text, size_t n)
{
    char *copy = ga_push(b, n + 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

uint32_t gr_parse_grammar(ga_builder *b, const char *text, size_t n)
{
    const char *copy = copied(b, text, n);
    return copy && is_lark(copy) ? gr_parse_lark(b, text, n, false) : gr_parse_gbnf(b, text, n);
}

uint32_t gr_parse_lark(ga_builder *b, const char *text, size_t n, bool json)
{
    const uint32_t root = b->n_rules;
    const char *copy = copied(b, text, n);
    lark *l = calloc(1, sizeof *l);
    if (!l) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    if (!b->status && (memchr(text, 0, n) || !lq_utf8_valid(text, n, NULL)))
        ga_fail(b, LQ_EVALUE, "lark: it is not valid UTF-8");
    if (!b->status) {
        *l = (lark){ .b = b, .json = json, .text = copy, .p = copy, .between = GR_NONE };
        parse(l);
    }
    free(l);
    return root;
}
