/* runtime/grammar/grammar_gbnf.c - GBNF, the grammar notation of llama.cpp, which vLLM's guided_grammar
 * takes too.
 *
 *     root ::= item ("," item)*      # a rule; the answer is a sentence of root
 *     item ::= "a" | [b-z0-9]{1,3} | [^x\n] | . | other?
 *
 * A rule ends with its line, unless a parenthesis is open or the line ends in ::= or |. Escapes in
 * strings and classes: \n \t \r \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH. Names: letters, digits,
 * - and _. Source: the description in llama.cpp's grammars/README.md. */
#include "base/utf8.h"
#include "runtime/grammar/grammar_int.h"

#include <ctype.h>

typedef struct {
    ga_builder *b;
    const uint8_t *s;
    size_t n, i;
    int nest;
    uint32_t root; /* its other rules come behind it */
} gbnf;

static void grammar_gbnf_fail(gbnf *p, const char *expected)
{
    int line = 1;
    for (size_t k = 0; k < p->i && k < p->n; k++)
        line += p->s[k] == '\n';
    if (p->i >= p->n)
        ga_fail(p->b, LQ_EVALUE, "grammar: line %d: expected %s, found the end", line, expected);
    else if (p->s[p->i] == '\n')
        ga_fail(p->b, LQ_EVALUE, "grammar: line %d: expected %s, found the line's end", line,
                expected);
    else
        ga_fail(p->b, LQ_EVALUE, "grammar: line %d: expected %s, found '%c'", line, expected,
                p->s[p->i] >= 0x20 && p->s[p->i] < 0x7f ? p->s[p->i] : '?');
}

static int peek(const gbnf *p) { return p->i < p->n ? p->s[p->i] : -1; }

/* White space and comments; over line ends only where `lines`. */
static void skip(gbnf *p, bool lines)
{
    for (; p->i < p->n; p->i++) {
        if (p->s[p->i] == '#')
            while (p->i < p->n && p->s[p->i] != '\n')
                p->i++;
        int c = peek(p);
        bool blank = c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'));
        if (!blank) return;
    }
}

static bool is_name(int c) { return (c > 0 && c < 128 && isalnum(c)) || c == '-' || c == '_'; }

static uint32_t rule_named(gbnf *p)
{
    char name[GR_MAX_RULE_NAME];
    size_t from = p->i;
    while (is_name(peek(p)))
        p->i++;
    size_t n = p->i - from;
    if (n == 0 || n >= sizeof name) {
        p->i = from;
        grammar_gbnf_fail(p, n ? "a name of less than 64 characters" : "a rule's name");
        return 0;
    }
    memcpy(name, p->s + from, n);
    name[n] = 0;
    uint32_t r = ga_find_rule(p->b, p->root, name);
    return r != GR_NONE ? r : ga_new_rule(p->b, name);
}

static bool hex(gbnf *p, int digits, uint32_t *out)
{
    *out = 0;
    for (int k = 0; k < digits; k++) {
        int c = peek(p);
        if (c < 0 || !isxdigit(c)) {
            grammar_gbnf_fail(p, "a hexadecimal digit");
            return false;
        }
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        p->i++;
    }
    return true;
}

/* One code point of a string or a class, an escape or as it is; the text is valid UTF-8. */
static bool character(gbnf *p, uint32_t *out)
{
    int c = peek(p);
    if (c < 0 || c == '\n') {
        grammar_gbnf_fail(p, "the end of a string or class");
        return false;
    }
    if (c != '\\') {
        int n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        uint32_t x = n == 1 ? (uint32_t)c : (uint32_t)c & (0x7fu >> n);
        for (int k = 1; k < n; k++)
            x = x << 6 | (p->s[p->i + (size_t)k] & 0x3fu);
        p->i += (size_t)n;
        *out = x;
        return true;
    }
    p->i++;
    c = peek(p);
    p->i++;
    switch (c) {
    case 'n':
        return *out = '\n', true;
    case 't':
        return *out = '\t', true;
    case 'r':
        return *out = '\r', true;
    case 'x':
        return hex(p, 2, out);
    case 'u':
    case 'U':
        if (!hex(p, c == 'u' ? 4 : 8, out)) return false;
        if (*out < 0x110000 && !(*out >= 0xd800 && *out < 0xe000)) return true;
        grammar_gbnf_fail(p, "a code point before this");
        return false;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        return *out = (uint32_t)c, true;
    default:
        p->i--;
        grammar_gbnf_fail(p, "an escape: n t r x u U \\ \" [ ] - ^");
        return false;
    }
}

/* A string is a sequence of characters: neighbours that are ASCII make one literal. */
static ga_node *string(gbnf *p)
{
    ga_node *seq = ga_seq(p->b);
    p->i++;
    while (peek(p) != '"' && !p->b->status) {
        char ascii[256];
        size_t n = 0;
        uint32_t c = 0;
        while (n < sizeof ascii && peek(p) != '"' && character(p, &c) && c < 128)
            ascii[n++] = (char)c;
        if (n) ga_add(seq, ga_bytes(p->b, ascii, n));
        if (c >= 128) ga_add(seq, ga_chars(p->b, &(ga_range){ c, c }, 1, false));
    }
    p->i++;
    return seq;
}

static ga_node *class(gbnf *p)
{
    ga_range r[GR_MAX_CLASS_RANGES];
    int n = 0;
    p->i++;
    bool negated = peek(p) == '^';
    p->i += negated;
    while (peek(p) != ']' && !p->b->status) {
        ga_range x = { 0 };
        if (!character(p, &x.lo)) break;
        x.hi = x.lo;
        if (peek(p) == '-' && p->i + 1 < p->n && p->s[p->i + 1] != ']') {
            p->i++;
            if (!character(p, &x.hi)) break;
        }
        if (x.hi < x.lo) grammar_gbnf_fail(p, "a range from lower to higher before this");
        if (n == GR_MAX_CLASS_RANGES) grammar_gbnf_fail(p, "at most 1024 ranges in a class");
        if (!p->b->status) r[n++] = x;
    }
    p->i++;
    return ga_chars(p->b, r, n, negated);
}

static bool number(gbnf *p, int64_t *out)
{
    *out = 0;
    if (!isdigit(peek(p))) {
        grammar_gbnf_fail(p, "a number");
        return false;
    }
    while (isdigit(peek(p)) && *out < 1000000000)
        *out = 10 * *out + (p->s[p->i++] - '0');
    return true;
}

/* What may follow an item: * + ? {m} {m,} {m,n}, also several. */
static ga_node *repeats(gbnf *p, ga_node *item, bool lines)
{
    for (int times = 0; !p->b->status; times++) {
        skip(p, lines);
        int c = peek(p);
        int64_t min = c == '+', max = c == '?' ? 1 : -1;
        if (c != '*' && c != '+' && c != '?' && c != '{') return item;
        if (times == 8) grammar_gbnf_fail(p, "at most 8 repetitions of one item");
        p->i++;
        if (c == '{') {
            skip(p, lines);
            if (!number(p, &min)) return NULL;
            skip(p, lines);
            max = min;
            if (peek(p) == ',') {
                p->i++;
                skip(p, lines);
                max = -1;
                if (peek(p) != '}' && !number(p, &max)) return NULL;
                skip(p, lines);
            }
            if (peek(p) != '}') grammar_gbnf_fail(p, "}");
            if (max >= 0 && max < min) grammar_gbnf_fail(p, "{least,most} before this");
            p->i++;
        }
        item = ga_repeat(p->b, item, min, max);
    }
    return NULL;
}

static ga_node *alternatives(gbnf *p, bool lines);

static ga_node *sequence(gbnf *p, bool lines)
{
    ga_node *seq = ga_seq(p->b);
    while (!p->b->status) {
        ga_node *item = NULL;
        skip(p, lines);
        int c = peek(p);
        if (c == '"') {
            item = string(p);
        } else if (c == '[') {
            item = class(p);
        } else if (c == '.') {
            p->i++;
            item = ga_chars(p->b, NULL, 0, true);
        } else if (c == '(') {
            p->i++;
            if (++p->nest > GR_MAX_PAREN_NEST)
                grammar_gbnf_fail(p, "at most 100 nested parentheses");
            item = alternatives(p, true);
            if (peek(p) != ')') grammar_gbnf_fail(p, ")");
            p->i++;
            p->nest--;
        } else if (is_name(c)) {
            item = ga_ref(p->b, rule_named(p));
        } else {
            return seq;
        }
        ga_add(seq, repeats(p, item, lines));
    }
    return NULL;
}

static ga_node *alternatives(gbnf *p, bool lines)
{
    ga_node *alt = ga_alt(p->b);
    for (;;) {
        ga_add(alt, sequence(p, lines));
        size_t end = p->i;
        skip(p, true); /* the next line may begin with | */
        if (p->b->status) return NULL;
        if (peek(p) != '|') {
            if (!lines) p->i = end;
            return alt;
        }
        p->i++;
        skip(p, true);
    }
}

static void rule(gbnf *p)
{
    uint32_t r = rule_named(p);
    skip(p, false);
    if (!p->b->status && (p->n - p->i < 3 || memcmp(p->s + p->i, "::=", 3) != 0)) {
        grammar_gbnf_fail(p, "::= (the notation is GBNF)");
        return;
    }
    p->i += 3;
    skip(p, true);
    ga_node *body = alternatives(p, false);
    if (p->b->status) return;
    int c = peek(p);
    if (c == '<' || c == '!')
        ga_fail(p->b, LQ_EUNSUPPORTED, "grammar: tokens (<...>) are not supported in rules");
    else if (c >= 0 && c != '\n' && c != '\r')
        grammar_gbnf_fail(p, "a string, class, name, parenthesis, | or the line's end");
    else if (p->b->rules[r].body)
        ga_fail(p->b, LQ_EVALUE, "grammar: rule %s is defined twice", p->b->rules[r].name);
    else
        p->b->rules[r].body = body;
}

uint32_t gr_parse_gbnf(ga_builder *b, const char *text, size_t n)
{
    gbnf p = { .b = b, .s = (const uint8_t *)text, .n = n, .root = ga_new_rule(b, "root") };
    if (!lq_utf8_valid(text, n, NULL)) ga_fail(b, LQ_EVALUE, "grammar: it is not valid UTF-8");
    for (skip(&p, true); p.i < p.n && !b->status; skip(&p, true))
        rule(&p);
    if (!b->status && !b->rules[p.root].body)
        ga_fail(b, LQ_EVALUE, "grammar: expected a rule named root");
    return p.root;
}
