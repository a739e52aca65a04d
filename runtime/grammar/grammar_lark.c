/* runtime/grammar/grammar_lark.c - see grammar_lark.h. */
#include "runtime/grammar/grammar_lark.h"

#include "runtime/limits.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name, *body; /* of an import: the body is a regular expression */
    size_t n;
    bool regex, busy;
} def;

typedef struct {
    const char *text, *p;
    def defs[GR_MAX_LARK_NAMES];
    const char *ignored[GR_MAX_LARK_IGNORED]; /* what follows %ignore */
    int n_defs, n_ignored, nest;
    bool in_terminal;     /* a part of one: nothing is ignored in it */
    lq_buf *out, between; /* `between`: what may be between terminals, as a regular expression */
    lq_status status;
    lq_err *err;
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

static void fail(lark *l, lq_status s, const char *what)
{
    int line = 1;
    for (const char *p = l->text; p < l->p; p++)
        line += *p == '\n';
    if (!l->status) l->status = lq_fail(l->err, s, "lark: line %d: %s", line, what);
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
    def d = { .name = l->p, .n = n, .regex = true };
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
    if (!l->status) add(l, d);
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
    } while (!l->status && *l->p == ',');
    if (!l->status && *l->p++ != ')') wrong(l, "expected )");
}

/* To the end of a definition's body. */
static void skip_body(lark *l)
{
    for (skip(l, false); *l->p && *l->p != '\n' && !l->status; skip(l, false)) {
        if (*l->p == '"' || *l->p == '/')
            l->p = quoted_end(l);
        else
            l->p++;
    }
}

static void read_defs(lark *l)
{
    for (skip(l, true); *l->p && !l->status; skip(l, true)) {
        if (*l->p == '%') {
            directive(l);
            continue;
        }
        while (*l->p == '?' || *l->p == '!')
            l->p++;
        def d = { .name = l->p, .n = name_length(l->p) };
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

/* ---- as a regular expression ---- */

static void put_char(lark *l, char c, bool any_case)
{
    if (any_case && isalpha((unsigned char)c))
        lq_buf_printf(l->out, "[%c%c]", tolower((unsigned char)c), toupper((unsigned char)c));
    else if (strchr("\\.^$|?*+()[]{}-/&", c))
        lq_buf_printf(l->out, "\\%c", c);
    else
        lq_buf_add(l->out, &c, 1);
}

/* The 8 hexadecimal digits at p as the \u{...} of a regular expression. */
static void put_code_point(lark *l, const char *p)
{
    char digits[9] = { 0 };
    memcpy(digits, p, strnlen(p, 8));
    if (strspn(digits, "0123456789abcdefABCDEF") != 8 || strtoul(digits, NULL, 16) > 0x10ffff)
        wrong(l, "expected a code point in 8 hexadecimal digits behind \\U");
    else
        lq_buf_printf(l->out, "\\u{%lx}", strtoul(digits, NULL, 16));
}

/* The text from p up to its closing quote; escapes of characters stay as they are, others are the character. */
static void put_text(lark *l, const char *p, const char *end, bool any_case)
{
    for (; p < end && !l->status; p++) {
        if (*p != '\\') {
            put_char(l, *p, any_case);
        } else if (*++p == 'U') {
            put_code_point(l, p + 1);
            p += 8;
        } else if (strchr("ntrfvxu", *p)) {
            lq_buf_add(l->out, "\\", 1);
            lq_buf_add(l->out, p, 1);
        } else {
            put_char(l, *p, any_case);
        }
    }
}

/* One end of a range: a character, or the escape of one. */
static void put_range_end(lark *l, const char *p, const char *end)
{
    static const int utf8[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4 };
    const int n = *p != '\\'    ? utf8[(unsigned char)*p / 16]
                  : p[1] == 'x' ? 4
                  : p[1] == 'u' ? 6
                  : p[1] == 'U' ? 10
                                : 2;
    if (p + n == end)
        put_text(l, p, end, false);
    else
        wrong(l, "expected one character on each side of ..");
}

static void put_string(lark *l)
{
    const char *from = l->p + 1, *end = quoted_end(l) - 1;
    if (l->status) return;
    l->p = end + 1;
    if (l->p[0] == '.' && l->p[1] == '.' && l->p[2] == '"') { /* a range of characters */
        lq_buf_puts(l->out, "[");
        put_range_end(l, from, end);
        lq_buf_puts(l->out, "-");
        l->p += 2;
        from = l->p + 1, end = quoted_end(l) - 1;
        if (l->status) return;
        put_range_end(l, from, end);
        lq_buf_puts(l->out, "]");
        l->p = end + 1;
        return;
    }
    const bool any_case = *l->p == 'i';
    l->p += any_case;
    lq_buf_puts(l->out, "(?:");
    put_text(l, from, end, any_case);
    lq_buf_puts(l->out, ")");
}

/* The ] of a class that p is at; end: there is none. */
static const char *class_end(const char *p, const char *end)
{
    p += p[1] == '^' ? 2 : 1;
    if (p < end && *p == ']') p++;
    while (p < end && *p != ']')
        p += *p == '\\' ? 2 : 1;
    return p < end ? p : end;
}

/* Brackets left open would go on in what follows the expression. */
static void expect_closed(lark *l, const char *p, const char *end)
{
    int open = 0;
    for (; p < end && open >= 0; p++) {
        open += (*p == '(') - (*p == ')');
        if (*p == '[') {
            p = class_end(p, end);
            open += p == end;
        } else if (*p == '\\') {
            p++;
        }
    }
    if (open) wrong(l, "a regular expression whose brackets do not match");
}

static void put_regex(lark *l)
{
    const char *from = l->p + 1, *end = quoted_end(l) - 1;
    if (l->status) return;
    l->p = end + 1;
    if (isalpha((unsigned char)*l->p))
        refuse(l, "flags of a regular expression cannot be honoured");
    expect_closed(l, from, end);
    lq_buf_puts(l->out, "(?:");
    for (const char *p = from; p < end; p++) {
        if (p[0] == '\\' && p[1] == '/') p++; /* which is no escape elsewhere */
        lq_buf_add(l->out, p, 1);
        if (p[0] == '\\' && p + 1 < end) lq_buf_add(l->out, ++p, 1);
    }
    lq_buf_puts(l->out, ")");
}

static void put_any(lark *l);

/* Of a terminal; a rule's has small letters. */
static bool is_terminal(const def *d)
{
    const char *p = d->name + strspn(d->name, "_");
    return d->regex || isupper((unsigned char)*p);
}

/* Behind a terminal: what is ignored. */
static void put_between(lark *l)
{
    if (!l->in_terminal && l->between.n) lq_buf_add(l->out, l->between.p, l->between.n);
}

static void put_name(lark *l)
{
    const size_t n = name_length(l->p);
    def *d = find(l, l->p, n);
    const char *back = l->p + n;
    if (*back == '{') refuse(l, "a template cannot be honoured");
    if (!d) wrong(l, "a name that is not defined");
    if (d && d->busy) refuse(l, "a rule that uses itself cannot be honoured");
    if (l->status) return;
    if (d->regex) {
        lq_buf_printf(l->out, "(?:%s)", d->body);
    } else {
        const bool in_terminal = l->in_terminal;
        d->busy = true;
        l->in_terminal |= is_terminal(d);
        l->p = d->body;
        lq_buf_puts(l->out, "(?:");
        put_any(l);
        lq_buf_puts(l->out, ")");
        if (!l->status && *l->p && *l->p != '\n') wrong(l, "expected the end of the definition");
        d->busy = false;
        l->in_terminal = in_terminal;
    }
    l->p = back;
    if (is_terminal(d)) put_between(l);
}

static void put_group(lark *l)
{
    const char close = *l->p == '(' ? ')' : ']';
    l->p++;
    lq_buf_puts(l->out, "(?:");
    put_any(l);
    if (!l->status && *l->p != close) wrong(l, close == ')' ? "expected )" : "expected ]");
    if (l->status) return;
    l->p++;
    lq_buf_puts(l->out, close == ')' ? ")" : ")?");
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
static void put_times(lark *l)
{
    skip(l, false);
    if (*l->p && strchr("*+?", *l->p)) {
        lq_buf_add(l->out, l->p++, 1);
        return;
    }
    if (*l->p != '~') return;
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
    lq_buf_printf(l->out, "{%ld,%ld}", least, most);
}

static void put_item(lark *l)
{
    /* what a group is repeated with may follow another repetition: a group of its own */
    lq_buf_puts(l->out, "(?:");
    if (*l->p == '"' || *l->p == '/') {
        if (*l->p == '"')
            put_string(l);
        else
            put_regex(l);
        put_between(l);
    } else if (*l->p == '(' || *l->p == '[') {
        put_group(l);
    } else if (name_length(l->p)) {
        put_name(l);
    } else {
        wrong(l, "expected a name, a string, a regular expression or a group");
    }
    lq_buf_puts(l->out, ")");
    if (!l->status) put_times(l);
}

static void put_any(lark *l)
{
    if (++l->nest > GR_MAX_LARK_NEST) refuse(l, "rules and groups nest too deeply");
    for (skip(l, false); !l->status && *l->p && !strchr("\n)]", *l->p); skip(l, false)) {
        if (l->out->oom || l->out->n > GR_MAX_TEXT) {
            fail(l, l->out->oom ? LQ_ENOMEM : LQ_EVALUE, "it is too large");
        } else if (*l->p == '|') {
            lq_buf_add(l->out, l->p++, 1);
        } else if (l->p[0] == '-' && l->p[1] == '>') { /* a name for the tree */
            l->p += 2;
            skip(l, false);
            l->p += name_length(l->p);
        } else {
            put_item(l);
        }
    }
    l->nest--;
}

/* What all %ignore name, any number of times. */
static void read_ignored(lark *l)
{
    lq_buf between = { 0 }, *out = l->out;
    l->out = &between;
    l->in_terminal = true;
    lq_buf_puts(&between, "(?:");
    for (int i = 0; i < l->n_ignored && !l->status; i++) {
        l->p = l->ignored[i];
        lq_buf_puts(&between, i ? "|(?:" : "(?:");
        put_any(l);
        lq_buf_puts(&between, ")");
        if (!l->status && *l->p && *l->p != '\n') wrong(l, "expected the end of %ignore");
    }
    lq_buf_puts(&between, ")*");
    l->in_terminal = false;
    l->between = between;
    l->out = out;
}

bool gr_is_lark(const char *text)
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

lq_status gr_lark_regex(lq_buf *out, const char *text, lq_err *err)
{
    lark *l = calloc(1, sizeof *l);
    if (!l) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *l = (lark){ .text = text, .p = text, .out = out, .err = err };
    read_defs(l);
    def *start = l->status ? NULL : find(l, "start", 5);
    if (!l->status && !start) wrong(l, "there is no rule called start");
    if (start && l->n_ignored) read_ignored(l);
    if (start && !l->status) {
        l->p = start->name;
        put_between(l);
        put_name(l);
        lq_buf_add(out, "", 1);
    }
    lq_status s = l->status                    ? l->status
                  : out->oom || l->between.oom ? lq_fail(err, LQ_ENOMEM, "out of memory")
                                               : LQ_OK;
    lq_buf_free(&l->between);
    free(l);
    return s;
}
