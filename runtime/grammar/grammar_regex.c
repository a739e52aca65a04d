/* runtime/grammar/grammar_regex.c - regular expressions: what Python's, PCRE's and ECMAScript's have in
 * common and a regular language can be.
 *
 * Taken: characters, . (all but the line feed), classes with ranges and escapes, \d \w \s \D \W \S
 * (ASCII), \p{L} and the other general categories, \t \n \r \f \v \0 \xHH \uHHHH \u{H...}, groups
 * of all spellings, |, * + ? {m} {m,} {m,n} and their lazy forms (which match the same whole
 * texts), ^ at the beginning and $ at the end of a whole branch. Refused by name: look-around,
 * references back, possessive and atomic groups, word boundaries, flags. */
#include "base/utf8.h"
#include "runtime/grammar/grammar_int.h"

#include <ctype.h>
#include <stdlib.h>
#include <utf8proc.h>

typedef struct {
    ga_builder *b;
    const uint8_t *s;
    size_t n, i;
    bool json, search;
    const char *what;
    int nest, n_properties;
    uint32_t any; /* rule for any text around a search; GR_NONE: not yet */
    ga_range *r;  /* [GR_MAX_REGEX_RANGES] of the class at hand */
    int n_r;
} rx;

static const ga_range digits[] = { { '0', '9' } };
static const ga_range words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
static const ga_range spaces[] = { { 9, 13 }, { ' ', ' ' } };

static void grammar_regex_fail(rx *p, const char *why)
{
    ga_fail(p->b, LQ_EVALUE, "%s: at byte %zu: %s", p->what, p->i, why);
}

static void refuse(rx *p, const char *what)
{
    ga_fail(p->b, LQ_EUNSUPPORTED, "%s: at byte %zu: %s cannot be honoured", p->what, p->i, what);
}

static int peek(const rx *p) { return p->i < p->n ? p->s[p->i] : -1; }
static int peek_at(const rx *p, size_t k) { return p->i + k < p->n ? p->s[p->i + k] : -1; }

static bool eat(rx *p, int c)
{
    if (peek(p) != c) return false;
    p->i++;
    return true;
}

/* ---- sets ---- */

static void add_range(rx *p, uint32_t lo, uint32_t hi)
{
    if (p->n_r == GR_MAX_REGEX_RANGES) {
        grammar_regex_fail(p, "the class has too many ranges");
        return;
    }
    p->r[p->n_r++] = (ga_range){ lo, hi };
}

static void add_set(rx *p, const ga_range *r, int n, bool negated)
{
    uint32_t from = 0;
    for (int i = 0; i < n; i++) {
        if (!negated) add_range(p, r[i].lo, r[i].hi);
        if (negated && r[i].lo > from) add_range(p, from, r[i].lo - 1);
        from = r[i].hi + 1;
    }
    if (negated && from <= 0x10ffff) add_range(p, from, 0x10ffff);
}

/* Those of a category, of one letter or two, as utf8proc has it; NULL: there is none such, or the
 * builder has failed. Looked for once in a builder. */
static const ga_property *property(rx *p, const char *name)
{
    ga_builder *b = p->b;
    for (int i = 0; i < b->n_properties; i++)
        if (strcmp(b->properties[i].name, name) == 0) return &b->properties[i];
    ga_range *found = malloc(GR_MAX_REGEX_RANGES * sizeof *found);
    if (!found) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    int n = 0;
    for (uint32_t c = 0; c < 0x110000 && found; c++) {
        const char *cat = utf8proc_category_string((utf8proc_int32_t)c);
        if (cat[0] != name[0] || (name[1] && cat[1] != name[1])) continue;
        if (n && found[n - 1].hi + 1 == c)
            found[n - 1].hi = c;
        else if (n < GR_MAX_REGEX_RANGES)
            found[n++] = (ga_range){ c, c };
    }
    ga_property *q = NULL;
    ga_range *r = n && b->n_properties < (int)LQ_COUNT(b->properties)
                      ? ga_push(b, (size_t)n * sizeof *r)
                      : NULL;
    if (r) {
        q = &b->properties[b->n_properties++];
        *q = (ga_property){ .ranges = memcpy(r, found, (size_t)n * sizeof *r), .n = n };
        memcpy(q->name, name, strlen(name) + 1);
    }
    free(found);
    return q;
}

/* \p{Lu}, \p{L}, \pL. */
static void add_property(rx *p, bool negated)
{
    char name[4] = { 0 };
    size_t n = 0;
    bool braces = eat(p, '{');
    while (n < 3 && (braces ? isalpha(peek(p)) : n < 1 && isalpha(peek(p))))
        name[n++] = (char)p->s[p->i++];
    const bool spelled = !(braces && !eat(p, '}')) && n > 0 && n <= 2;
    if (++p->n_properties > GR_MAX_REGEX_PROPERTIES) grammar_regex_fail(p, "too many properties");
    if (p->b->status) return;
    const ga_property *q = spelled ? property(p, name) : NULL;
    if (q)
        add_set(p, q->ranges, q->n, negated);
    else
        refuse(p, "a property other than a general category (L, Lu, N, ...)");
}

static ga_node *chars(rx *p, bool negated)
{
    return p->json ? gj_chars(p->b, p->r, p->n_r, negated) : ga_chars(p->b, p->r, p->n_r, negated);
}

static bool hex(rx *p, int least, int most, uint32_t *out)
{
    int k = 0;
    for (*out = 0; k < most && peek(p) >= 0 && isxdigit(peek(p)); k++) {
        int c = p->s[p->i++];
        *out = *out << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (k >= least && *out <= 0x10ffff) return true;
    grammar_regex_fail(p, "expected a code point in hexadecimal digits");
    return false;
}

/* Behind a backslash: a set is added to p->r and false returned, or *c is one code point. */
static bool escape(rx *p, bool in_class, uint32_t *c)
{
    int e = peek(p);
    if (e < 0) {
        grammar_regex_fail(p, "a backslash at the end");
        return false;
    }
    p->i++;
    switch (e) {
    case 'd':
    case 'D':
        add_set(p, digits, 1, e == 'D');
        return false;
    case 'w':
    case 'W':
        add_set(p, words, 4, e == 'W');
        return false;
    case 's':
    case 'S':
        add_set(p, spaces, 2, e == 'S');
        return false;
    case 'p':
    case 'P':
        add_property(p, e == 'P');
        return false;
    case 't':
        return *c = '\t', true;
    case 'n':
        return *c = '\n', true;
    case 'r':
        return *c = '\r', true;
    case 'f':
        return *c = '\f', true;
    case 'v':
        return *c = '\v', true;
    case 'b':
        if (in_class) return *c = '\b', true;
        refuse(p, "a word boundary (\\b)");
        return false;
    case '0':
        if (!isdigit(peek(p))) return *c = 0, true;
        break;
    case 'x':
        return hex(p, 2, 2, c);
    case 'u':
        if (!eat(p, '{')) return hex(p, 4, 4, c);
        if (!hex(p, 1, 6, c)) return false;
        if (eat(p, '}')) return true;
        break;
    default:
        if (e < 128 && !isalnum(e)) return *c = (uint32_t)e, true;
        if (e >= 128) break;
        if (isdigit(e)) refuse(p, "a reference to a group");
        if (e == 'B' || e == 'A' || e == 'z' || e == 'Z' || e == 'G') refuse(p, "this assertion");
        break;
    }
    grammar_regex_fail(p, "an escape that is not known");
    return false;
}

/* One code point; the text is valid UTF-8. */
static uint32_t plain(rx *p)
{
    uint32_t c = p->s[p->i];
    int n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (n > 1) c &= 0x7fu >> n;
    for (int k = 1; k < n; k++)
        c = c << 6 | (p->s[p->i + (size_t)k] & 0x3fu);
    p->i += (size_t)n;
    return c;
}

static ga_node *class(rx *p)
{
    bool negated = eat(p, '^'), first = true;
    p->n_r = 0;
    for (; !p->b->status; first = false) {
        uint32_t lo = 0, hi;
        int c = peek(p);
        if (c < 0) {
            grammar_regex_fail(p, "a class without ]");
            return NULL;
        }
        if (c == ']' && !first) break;
        if (c == '[' && (peek_at(p, 1) == ':' || peek_at(p, 1) == '.' || peek_at(p, 1) == '='))
            refuse(p, "a POSIX class");
        if (c == '&' && peek_at(p, 1) == '&') refuse(p, "an intersection of classes (&&)");
        bool one = true;
        if (eat(p, '\\'))
            one = escape(p, true, &lo);
        else
            lo = plain(p);
        if (!one || p->b->status) continue;
        hi = lo;
        if (peek(p) == '-' && peek_at(p, 1) >= 0 && peek_at(p, 1) != ']') {
            p->i++;
            one = true;
            if (eat(p, '\\'))
                one = escape(p, true, &hi);
            else
                hi = plain(p);
            if (!p->b->status && (!one || hi < lo))
                grammar_regex_fail(p, "a range that does not rise");
        }
        if (!p->b->status) add_range(p, lo, hi);
    }
    p->i++;
    return p->b->status ? NULL : chars(p, negated);
}

/* ---- structure ---- */

static ga_node *branches(rx *p, bool top);

static ga_node *group(rx *p)
{
    if (++p->nest > GR_MAX_REGEX_NEST) {
        grammar_regex_fail(p, "groups nest too deeply");
        return NULL;
    }
    if (eat(p, '?')) {
        if (eat(p, ':')) {
        } else if (peek(p) == '=' || peek(p) == '!' ||
                   (peek(p) == '<' && (peek_at(p, 1) == '=' || peek_at(p, 1) == '!'))) {
            refuse(p, "look-around");
        } else if (peek(p) == '<' || (peek(p) == 'P' && peek_at(p, 1) == '<')) {
            while (peek(p) >= 0 && peek(p) != '>')
                p->i++;
            p->i++;
        } else {
            refuse(p, "this kind of group, or flags,");
        }
    } else if (peek(p) == '*') {
        refuse(p, "a verb");
    }
    ga_node *t = branches(p, false);
    if (!p->b->status && !eat(p, ')')) grammar_regex_fail(p, "expected )");
    p->nest--;
    return t;
}

/* {m}, {m,} or {m,n}; false and nothing eaten when it is not one: then { is a character. */
static bool counted(rx *p, int64_t *min, int64_t *max)
{
    size_t k = p->i + 1, from = k;
    int64_t v[2] = { 0, -1 };
    for (; k < p->n && isdigit(p->s[k]); k++)
        if (v[0] < 1000000000) v[0] = 10 * v[0] + (p->s[k] - '0');
    bool none = k == from;
    if (k < p->n && p->s[k] == ',') {
        for (from = ++k; k < p->n && isdigit(p->s[k]); k++) {
            if (v[1] < 0) v[1] = 0;
            if (v[1] < 1000000000) v[1] = 10 * v[1] + (p->s[k] - '0');
        }
        if (none && k > from && k < p->n && p->s[k] == '}')
            grammar_regex_fail(p, "write {0,n} for {,n}");
    } else {
        v[1] = v[0];
    }
    if (none || k >= p->n || p->s[k] != '}') return false;
    p->i = k + 1;
    *min = v[0];
    *max = v[1];
    if (*max >= 0 && *max < *min) grammar_regex_fail(p, "a repetition {m,n} with n below m");
    return true;
}

static ga_node *repeats(rx *p, ga_node *item)
{
    int64_t min = 0, max = -1;
    int c = peek(p);
    if (p->b->status) return NULL;
    if (c == '*' || c == '+' || c == '?') {
        p->i++;
        min = c == '+';
        max = c == '?' ? 1 : -1;
    } else if (c != '{' || !counted(p, &min, &max)) {
        return item;
    }
    if (eat(p, '+')) refuse(p, "a possessive repetition");
    eat(p, '?');
    c = peek(p);
    if (c == '*' || c == '+' || c == '?') grammar_regex_fail(p, "nothing to repeat");
    if (c == '{' && counted(p, &(int64_t){ 0 }, &(int64_t){ 0 }))
        grammar_regex_fail(p, "nothing to repeat");
    return ga_repeat(p->b, item, min, max);
}

static ga_node *atom(rx *p)
{
    uint32_t c = 0;
    p->n_r = 0;
    switch (peek(p)) {
    case '(':
        p->i++;
        return group(p);
    case '[':
        p->i++;
        return class(p);
    case '.':
        p->i++;
        add_range(p, '\n', '\n');
        return chars(p, true);
    case '*':
    case '+':
    case '?':
        grammar_regex_fail(p, "nothing to repeat");
        return NULL;
    case '^':
    case '$':
        refuse(p, "^ or $ other than at the ends of the whole");
        return NULL;
    case '\\':
        p->i++;
        if (escape(p, false, &c)) add_range(p, c, c);
        break;
    default:
        c = plain(p);
        add_range(p, c, c);
    }
    return p->b->status ? NULL : chars(p, false);
}

/* Any text before or behind what a search looks for. */
static ga_node *around(rx *p)
{
    if (p->any == GR_NONE) {
        p->any = ga_new_rule(p->b, "");
        p->n_r = 0;
        ga_node *t = ga_repeat(p->b, chars(p, true), 0, -1);
        if (p->b->status) return NULL;
        p->b->rules[p->any].body = t;
    }
    return ga_ref(p->b, p->any);
}

static ga_node *branch(rx *p, bool top)
{
    ga_node *seq = ga_seq(p->b);
    bool begins = top && eat(p, '^'), ends = false;
    if (begins && strchr("*+?", peek(p) > 0 ? peek(p) : 'x'))
        grammar_regex_fail(p, "nothing to repeat");
    if (top && p->search && !begins) ga_add(seq, around(p));
    while (p->i < p->n && peek(p) != '|' && peek(p) != ')' && !p->b->status) {
        int after = peek_at(p, 1);
        if (top && peek(p) == '$' && (after < 0 || after == '|')) {
            p->i++;
            ends = true;
            break;
        }
        ga_add(seq, repeats(p, atom(p)));
    }
    if (top && p->search && !ends) ga_add(seq, around(p));
    return seq;
}

static ga_node *branches(rx *p, bool top)
{
    ga_node *first = branch(p, top);
    if (peek(p) != '|') return first;
    ga_node *alt = ga_alt(p->b);
    ga_add(alt, first);
    while (!p->b->status && eat(p, '|'))
        ga_add(alt, branch(p, top));
    return alt;
}

ga_node *gr_regex(ga_builder *b, const char *text, size_t n, bool json, bool search,
                  const char *what)
{
    if (b->status) return NULL;
    rx p = { .b = b,
             .s = (const uint8_t *)text,
             .n = n,
             .json = json,
             .search = search,
             .what = what,
             .any = GR_NONE };
    if (!lq_utf8_valid(text, n, NULL)) grammar_regex_fail(&p, "it is not valid UTF-8");
    p.r = malloc(GR_MAX_REGEX_RANGES * sizeof *p.r);
    if (!p.r) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    ga_node *t = b->status ? NULL : branches(&p, true);
    if (!b->status && p.i < n) grammar_regex_fail(&p, "a ) without (");
    free(p.r);
    return b->status ? NULL : t;
}
