/* runtime/tokenizer/tok_translate.c - Oniguruma's (Ruby) regular expressions in PCRE2's words.
 *
 * Outside a character class it is one pass, token by token. A class becomes a PCRE2 class where it
 * is a plain union; with intersections, negated parts inside or the like it becomes an expression
 * of one character over look-aheads:
 *
 *     [a-z&&[^x]]  ->  (?:(?=[a-z])[^x])        [^\W_]  ->  (?:(?!(?:[_]|[^word]))(?s:.))
 */
#include "runtime/tokenizer/tok_regex.h"

#include "base/utf8.h"

#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_NEST = 64, MAX_CLASS_NEST = 16, MAX_TRANSLATION = 1 << 20 };

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside a class Oniguruma's \w also takes the six superscripts and fractions of Latin-1. */
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

typedef struct {
    const char *s; /* the whole pattern */
    size_t n, i;
    lq_buf out;
    size_t atom;           /* where the last atom of `out` starts; NONE after an operator */
    size_t open[MAX_NEST]; /* where each open group starts in `out` */
    int extra[MAX_NEST];   /* groups that a bare (?i) opened in it; the last: at the top */
    int depth;
    lq_err *err;
} tr;

#define NONE SIZE_MAX

static lq_status refuse(const tr *t, const char *what)
{
    return lq_fail(t->err, LQ_EUNSUPPORTED, "tokenizer: pattern '%.200s' at byte %zu: %s", t->s,
                   t->i, what);
}

static lq_status broken(const tr *t, const char *what)
{
    return lq_fail(t->err, LQ_EFORMAT, "tokenizer: pattern '%.200s' at byte %zu: %s", t->s, t->i,
                   what);
}

static void tok_translate_put(lq_buf *b, const char *s) { lq_buf_add(b, s, strlen(s)); }

static void put_cp(lq_buf *b, uint32_t cp)
{
    char text[16];
    int n = 0;
    for (int shift = 20; shift >= 0; shift -= 4)
        if (n || shift == 0 || cp >> shift) text[n++] = "0123456789abcdef"[(cp >> shift) & 15];
    tok_translate_put(b, "\\x{");
    lq_buf_add(b, text, (size_t)n);
    tok_translate_put(b, "}");
}

/* ---- properties: names to the items of a PCRE2 class ---- */
static const struct {
    const char *name, *items;
} properties[] = {
    { "letter", "\\p{L}" },
    { "uppercaseletter", "\\p{Lu}" },
    { "lowercaseletter", "\\p{Ll}" },
    { "titlecaseletter", "\\p{Lt}" },
    { "modifierletter", "\\p{Lm}" },
    { "otherletter", "\\p{Lo}" },
    { "mark", "\\p{M}" },
    { "nonspacingmark", "\\p{Mn}" },
    { "spacingmark", "\\p{Mc}" },
    { "enclosingmark", "\\p{Me}" },
    { "number", "\\p{N}" },
    { "decimalnumber", "\\p{Nd}" },
    { "letternumber", "\\p{Nl}" },
    { "othernumber", "\\p{No}" },
    { "punctuation", "\\p{P}" },
    { "symbol", "\\p{S}" },
    { "mathsymbol", "\\p{Sm}" },
    { "currencysymbol", "\\p{Sc}" },
    { "modifiersymbol", "\\p{Sk}" },
    { "othersymbol", "\\p{So}" },
    { "separator", "\\p{Z}" },
    { "spaceseparator", "\\p{Zs}" },
    { "lineseparator", "\\p{Zl}" },
    { "paragraphseparator", "\\p{Zp}" },
    { "other", "\\p{C}" },
    { "control", "\\p{Cc}" },
    { "format", "\\p{Cf}" },
    { "alnum", "\\p{Alphabetic}\\p{Nd}" },
    { "alpha", "\\p{Alphabetic}" },
    { "blank", "\\p{Zs}\\t" },
    { "cntrl", "\\p{Cc}" },
    { "digit", "\\p{Nd}" },
    { "lower", "\\p{Lowercase}" },
    { "upper", "\\p{Uppercase}" },
    { "space", "\\p{White_Space}" },
    { "xdigit", "0-9A-Fa-f" },
    { "word", WORD },
    { "ascii", "\\x{0}-\\x{7f}" },
    { "punct", "\\p{P}" },
    { "any", "\\p{Any}" },
};

/* Whether PCRE2 knows \p{...}. */
static bool known(const char *property)
{
    int code;
    PCRE2_SIZE off;
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)property, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &off, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* The items of the property s[n] into items; false: unknown. */
static bool property_items(lq_buf *items, const char *s, size_t n)
{
    char name[64], whole[80];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ' || s[i] == '_' || s[i] == '-') continue;
        if (k + 1 == sizeof name) return false;
        name[k++] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
    }
    name[k] = 0;
    for (size_t i = 0; i < LQ_COUNT(properties); i++)
        if (strcmp(name, properties[i].name) == 0)
            return tok_translate_put(items, properties[i].items), true;
    for (size_t i = 0; i < k; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9')))
            return false;
    /* Oniguruma's script names mean Script; PCRE2's bare ones mean Script_Extensions. */
    static const char *const forms[] = { "\\p{sc:", "\\p{" };
    for (size_t i = 0; i < LQ_COUNT(forms); i++) {
        size_t f = strlen(forms[i]);
        memcpy(whole, forms[i], f);
        memcpy(whole + f, name, k);
        memcpy(whole + f + k, "}", 2);
        if (known(whole)) return tok_translate_put(items, whole), true;
    }
    return false;
}

/* ---- escapes that both worlds share ---- */
typedef struct {
    bool is_set, negated;
    lq_buf items; /* is_set */
    uint32_t cp;  /* else */
} esc;

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Up to `max` hex digits at t->i. */
static uint32_t read_hex(tr *t, int max, int *n)
{
    uint32_t v = 0;
    for (*n = 0; *n < max && t->i < t->n && hex_value(t->s[t->i]) >= 0; ++*n)
        v = v * 16 + (uint32_t)hex_value(t->s[t->i++]);
    return v;
}

static lq_status read_code(tr *t, char c, uint32_t *cp)
{
    int n = 0;
    if (c == 'x' && t->i < t->n && t->s[t->i] == '{') {
        t->i++;
        *cp = read_hex(t, 6, &n);
        if (n == 0 || t->i >= t->n || t->s[t->i] != '}') return broken(t, "expected \\x{HEX}");
        t->i++;
    } else if (c == 'x') {
        *cp = read_hex(t, 2, &n);
        if (*cp > 0x7F) return refuse(t, "a raw byte above 0x7f");
    } else {
        *cp = read_hex(t, 4, &n);
        if (n != 4) return broken(t, "expected \\uHHHH");
    }
    if (*cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000)) return broken(t, "no code point");
    return LQ_OK;
}

static lq_status read_property(tr *t, bool negated, esc *e)
{
    if (t->i >= t->n || t->s[t->i] != '{') return broken(t, "expected \\p{NAME}");
    const char *close = memchr(t->s + t->i, '}', t->n - t->i);
    if (!close) return broken(t, "expected \\p{NAME}");
    const char *name = t->s + t->i + 1;
    if (*name == '^') negated = !negated, name++;
    e->is_set = true;
    e->negated = negated;
    if (!property_items(&e->items, name, (size_t)(close - name)))
        return refuse(t, "an unknown property");
    t->i = (size_t)(close - t->s) + 1;
    return LQ_OK;
}

/* The escape after the backslash at t->i - 1, as a set or a code point. */
static lq_status read_escape(tr *t, esc *e)
{
    static const struct {
        char c;
        bool negated;
        const char *items;
    } sets[] = {
        { 's', false, "\\p{White_Space}" },
        { 'S', true, "\\p{White_Space}" },
        { 'd', false, "\\p{Nd}" },
        { 'D', true, "\\p{Nd}" },
        { 'w', false, WORD },
        { 'W', true, WORD },
        { 'h', false, "0-9A-Fa-f" },
        { 'H', true, "0-9A-Fa-f" },
    };
    static const char from[] = "tnrfvae", to[] = "\t\n\r\f\v\a\x1b";
    memset(e, 0, sizeof *e);
    if (t->i >= t->n) return broken(t, "a backslash at the end");
    char c = t->s[t->i];
    for (size_t k = 0; k < LQ_COUNT(sets); k++)
        if (sets[k].c == c) {
            t->i++;
            e->is_set = true;
            e->negated = sets[k].negated;
            tok_translate_put(&e->items, sets[k].items);
            return LQ_OK;
        }
    if (c == 'p' || c == 'P') return t->i++, read_property(t, c == 'P', e);
    if (c == 'x' || c == 'u') return t->i++, read_code(t, c, &e->cp);
    if (c == 'c' || c == 'C' || c == 'M') return refuse(t, "control escapes");
    const char *hit = strchr(from, c);
    if (c && hit) return t->i++, e->cp = (uint8_t)to[hit - from], LQ_OK;
    if (c == '0') {
        for (int k = 0; k < 3 && t->i < t->n && t->s[t->i] >= '0' && t->s[t->i] <= '7'; k++)
            e->cp = e->cp * 8 + (uint32_t)(t->s[t->i++] - '0');
        return LQ_OK;
    }
    size_t len;
    e->cp = lq_utf8_get((const uint8_t *)t->s + t->i, &len);
    t->i += len;
    return LQ_OK;
}

/* ---- classes ---- */
typedef struct {
    lq_buf items; /* the plain union so far */
    lq_buf alts;  /* "|expr|expr": what a plain union cannot say */
} uni;

/* [items] plus alternatives, as one expression; an empty union matches nothing. */
static void union_expr(lq_buf *out, const uni *u)
{
    if (!u->items.n && !u->alts.n) {
        tok_translate_put(out, "(?!)");
        return;
    }
    tok_translate_put(out, "(?:");
    if (u->items.n) {
        tok_translate_put(out, "[");
        lq_buf_add(out, u->items.u, u->items.n);
        tok_translate_put(out, "]");
    }
    if (u->alts.n) {
        size_t skip = u->items.n ? 0 : 1; /* the leading bar */
        lq_buf_add(out, u->alts.u + skip, u->alts.n - skip);
    }
    tok_translate_put(out, ")");
}

static void add_set(uni *u, bool negated, const lq_buf *items)
{
    if (!negated) {
        lq_buf_add(&u->items, items->u, items->n);
        return;
    }
    tok_translate_put(&u->alts, "|[^");
    lq_buf_add(&u->alts, items->u, items->n);
    tok_translate_put(&u->alts, "]");
}

/* [:name:] at t->i (just behind "[:"); *is false when it is no bracket but plain characters. */
static lq_status read_posix(tr *t, uni *u, bool *is)
{
    size_t i = t->i;
    bool negated = i < t->n && t->s[i] == '^';
    size_t from = i + negated, e = from;
    while (e < t->n && ((t->s[e] >= 'a' && t->s[e] <= 'z')))
        e++;
    *is = e + 1 < t->n && t->s[e] == ':' && t->s[e + 1] == ']';
    if (!*is) return LQ_OK;
    lq_buf items = { 0 };
    bool punct = e - from == 5 && memcmp(t->s + from, "punct", 5) == 0;
    if (punct) tok_translate_put(&items, "\\p{P}\\p{S}"); /* wider than \p{Punct} */
    bool ok = punct || property_items(&items, t->s + from, e - from);
    if (ok) add_set(u, negated, &items);
    lq_buf_free(&items);
    t->i = e + 2;
    return ok ? LQ_OK : refuse(t, "an unknown POSIX bracket");
}

static lq_status read_class(tr *t, uni *outer, lq_buf *expr, int depth);

/* One character of a class (an escape or itself). */
static lq_status class_char(tr *t, esc *e)
{
    memset(e, 0, sizeof *e);
    if (t->s[t->i] == '\\') {
        t->i++;
        if (t->i < t->n && t->s[t->i] == 'b') return t->i++, e->cp = 8, LQ_OK;
        return read_escape(t, e);
    }
    size_t len;
    e->cp = lq_utf8_get((const uint8_t *)t->s + t->i, &len);
    t->i += len;
    return LQ_OK;
}

/* A character, a set or a range. */
static lq_status class_item(tr *t, uni *u)
{
    esc a, b;
    lq_status s = class_char(t, &a);
    if (s) goto done;
    if (a.is_set) {
        add_set(u, a.negated, &a.items);
        goto done;
    }
    bool range = t->i + 1 < t->n && t->s[t->i] == '-' && t->s[t->i + 1] != ']' &&
                 t->s[t->i + 1] != '[' &&
                 !(t->s[t->i + 1] == '&' && t->i + 2 < t->n && t->s[t->i + 2] == '&');
    put_cp(&u->items, a.cp);
    if (!range) goto done;
    t->i++;
    s = class_char(t, &b);
    if (!s && b.is_set) { /* "a-\d": the hyphen is itself */
        put_cp(&u->items, '-');
        add_set(u, b.negated, &b.items);
    } else if (!s && b.cp < a.cp) {
        s = broken(t, "an empty range in a class");
    } else if (!s) {
        tok_translate_put(&u->items, "-");
        put_cp(&u->items, b.cp);
    }
    lq_buf_free(&b.items);
done:
    lq_buf_free(&a.items);
    return s;
}

/* The union up to "]" or "&&"; *more: the latter. */
static lq_status read_union(tr *t, uni *u, bool first, bool *more, int depth)
{
    lq_status s = LQ_OK;
    for (; !s; first = false) {
        if (t->i >= t->n) return broken(t, "a class without its ]");
        char c = t->s[t->i];
        if (c == ']' && !first) return t->i++, *more = false, LQ_OK;
        if (c == '&' && t->i + 1 < t->n && t->s[t->i + 1] == '&')
            return t->i += 2, *more = true, LQ_OK;
        if (c == '[') {
            t->i++;
            bool is = false;
            if (t->i < t->n && t->s[t->i] == ':') {
                t->i++;
                s = read_posix(t, u, &is);
                if (!s && !is) t->i--;
            }
            if (!s && !is) s = read_class(t, u, NULL, depth + 1);
        } else {
            s = class_item(t, u);
        }
    }
    return s;
}

/* The class whose "[" lies just behind t->i: into `outer` as one of its members, or else as an
 * expression into `expr`. */
static lq_status read_class(tr *t, uni *outer, lq_buf *expr, int depth)
{
    if (depth > MAX_CLASS_NEST) return refuse(t, "classes nested too deep");
    bool negated = t->i < t->n && t->s[t->i] == '^', more = false, plain = true;
    t->i += negated;
    uni u = { 0 };
    lq_buf left = { 0 }, whole = { 0 }; /* left: look-aheads of the operands before the last */
    lq_status s = read_union(t, &u, true, &more, depth);
    while (!s && more) {
        plain = false;
        tok_translate_put(&left, "(?=");
        union_expr(&left, &u);
        tok_translate_put(&left, ")");
        u.items.n = u.alts.n = 0;
        s = read_union(t, &u, false, &more, depth);
    }
    if (s) goto done;
    if (plain && !u.alts.n && u.items.n) {
        if (outer) {
            add_set(outer, negated, &u.items);
            goto done;
        }
        tok_translate_put(&whole, negated ? "[^" : "[");
        lq_buf_add(&whole, u.items.u, u.items.n);
        tok_translate_put(&whole, "]");
    } else {
        tok_translate_put(&whole, negated ? "(?:(?!" : "(?:");
        lq_buf_add(&whole, left.u, left.n);
        union_expr(&whole, &u);
        tok_translate_put(&whole, negated ? ")(?s:.))" : ")");
    }
    if (outer) tok_translate_put(&outer->alts, "|");
    lq_buf_add(outer ? &outer->alts : expr, whole.u, whole.n);
    if (whole.oom || left.oom || u.items.oom || u.alts.oom)
        s = lq_fail(t->err, LQ_ENOMEM, "tokenizer: out of memory");
done:
    lq_buf_free(&u.items);
    lq_buf_free(&u.alts);
    lq_buf_free(&left);
    lq_buf_free(&whole);
    return s;
}

/* ---- outside classes ---- */
static void wrap_atom(tr *t)
{
    size_t tail = t->out.n - t->atom;
    tok_translate_put(&t->out, ")");
    tok_translate_put(&t->out, "(?:"); /* makes room; moved to the front below */
    if (t->out.oom) return;
    memmove(t->out.u + t->atom + 3, t->out.u + t->atom, tail + 1);
    memcpy(t->out.u + t->atom, "(?:", 3);
}

/* "{n,m}" at t->i, or a literal brace. Ruby's {n,m}+ and {n}? repeat the repetition. */
static lq_status read_interval(tr *t)
{
    size_t i = t->i + 1, lo = i;
    while (i < t->n && t->s[i] >= '0' && t->s[i] <= '9')
        i++;
    bool has_lo = i > lo, comma = i < t->n && t->s[i] == ',', has_hi = false;
    if (comma) {
        size_t hi = ++i;
        while (i < t->n && t->s[i] >= '0' && t->s[i] <= '9')
            i++;
        has_hi = i > hi;
    }
    if (i >= t->n || t->s[i] != '}' || !(has_lo || has_hi)) {
        t->atom = t->out.n;
        tok_translate_put(&t->out, "\\{");
        t->i++;
        return LQ_OK;
    }
    if (t->atom == NONE) return broken(t, "nothing to repeat");
    tok_translate_put(&t->out, has_lo ? "{" : "{0");
    lq_buf_add(&t->out, t->s + lo, i - lo + 1);
    t->i = i + 1;
    char next = t->i < t->n ? t->s[t->i] : 0;
    if (next == '?' && comma) {
        tok_translate_put(&t->out, "?");
        t->i++;
    } else if (next == '+' || next == '?' || next == '*') {
        wrap_atom(t);
    }
    return LQ_OK;
}

static lq_status read_repeat(tr *t)
{
    if (t->atom == NONE) return broken(t, "nothing to repeat");
    lq_buf_add(&t->out, t->s + t->i++, 1);
    char next = t->i < t->n ? t->s[t->i] : 0;
    if (next == '?' || next == '+') lq_buf_add(&t->out, t->s + t->i++, 1);
    next = t->i < t->n ? t->s[t->i] : 0;
    if (next == '?' || next == '+' || next == '*') wrap_atom(t);
    return LQ_OK;
}

static lq_status open_group(tr *t, size_t at)
{
    if (t->depth == MAX_NEST - 1) return refuse(t, "groups nested too deep");
    t->open[t->depth] = at;
    t->extra[t->depth++] = 0;
    t->atom = NONE;
    return LQ_OK;
}

/* "(?i-m" flags at t->i, after "(?": Ruby's m is PCRE2's s. */
static lq_status read_flags(tr *t)
{
    size_t at = t->out.n;
    tok_translate_put(&t->out, "(?");
    for (; t->i < t->n && t->s[t->i] != ':' && t->s[t->i] != ')'; t->i++) {
        char c = t->s[t->i];
        if (c != 'i' && c != 'm' && c != '-') return refuse(t, "this kind of group");
        lq_buf_add(&t->out, c == 'm' ? "s" : &c, 1);
    }
    if (t->i >= t->n) return broken(t, "a group without its )");
    tok_translate_put(&t->out, ":");
    if (t->s[t->i++] == ':') return open_group(t, at);
    t->extra[t->depth ? t->depth - 1
                      : MAX_NEST - 1]++; /* holds to the end of the group around it */
    t->atom = NONE;
    return LQ_OK;
}

static lq_status read_group(tr *t)
{
    static const char *const same[] = { "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!" };
    size_t at = t->out.n, left = t->n - t->i;
    const char *p = t->s + t->i;
    if (left >= 3 && memcmp(p, "(?#", 3) == 0) {
        const char *close = memchr(p, ')', left);
        if (!close) return broken(t, "a comment without its )");
        t->i += (size_t)(close - p) + 1;
        return LQ_OK;
    }
    for (size_t k = 0; k < LQ_COUNT(same); k++) {
        size_t n = strlen(same[k]);
        if (left < n || memcmp(p, same[k], n) != 0) continue;
        tok_translate_put(&t->out, same[k]);
        t->i += n;
        return open_group(t, at);
    }
    if (left >= 3 && memcmp(p, "(?<", 3) == 0) {
        const char *close = memchr(p, '>', left);
        if (!close) return broken(t, "a group's name without its >");
        lq_buf_add(&t->out, p, (size_t)(close - p) + 1);
        t->i += (size_t)(close - p) + 1;
        return open_group(t, at);
    }
    if (left >= 2 && p[1] == '?') return t->i += 2, read_flags(t);
    tok_translate_put(&t->out, "(");
    t->i++;
    return open_group(t, at);
}

static lq_status close_group(tr *t)
{
    if (t->depth == 0) return broken(t, "a ) without its (");
    t->depth--;
    for (int k = 0; k <= t->extra[t->depth]; k++)
        tok_translate_put(&t->out, ")");
    t->atom = t->open[t->depth];
    t->i++;
    return LQ_OK;
}

static lq_status read_outer_escape(tr *t)
{
    char c = t->i + 1 < t->n ? t->s[t->i + 1] : 0;
    if (c == 'b' || c == 'B') {
        t->i += 2;
        t->atom = NONE;
        tok_translate_put(&t->out, c == 'b' ? "(?:(?<=[" WORD_ALONE "])(?![" WORD_ALONE
                                              "])|(?<![" WORD_ALONE "])(?=[" WORD_ALONE "]))"
                                            : "(?:(?<=[" WORD_ALONE "])(?=[" WORD_ALONE
                                              "])|(?<![" WORD_ALONE "])(?![" WORD_ALONE "]))");
        return LQ_OK;
    }
    t->atom = t->out.n;
    if (c && strchr("AzZGRXKN123456789", c)) {
        lq_buf_add(&t->out, t->s + t->i, 2);
        t->i += 2;
        return LQ_OK;
    }
    if (c == 'w' || c == 'W') {
        t->i += 2;
        tok_translate_put(&t->out, c == 'w' ? "[" WORD_ALONE "]" : "[^" WORD_ALONE "]");
        return LQ_OK;
    }
    if (c && strchr("gkyYQE", c)) return refuse(t, "this escape");
    t->i++;
    esc e;
    lq_status s = read_escape(t, &e);
    if (!s && e.is_set) {
        tok_translate_put(&t->out, e.negated ? "[^" : "[");
        lq_buf_add(&t->out, e.items.u, e.items.n);
        tok_translate_put(&t->out, "]");
    } else if (!s) {
        put_cp(&t->out, e.cp);
    }
    lq_buf_free(&e.items);
    return s;
}

static lq_status read_token(tr *t)
{
    char c = t->s[t->i];
    switch (c) {
    case '\\':
        return read_outer_escape(t);
    case '(':
        return read_group(t);
    case ')':
        return close_group(t);
    case '{':
        return read_interval(t);
    case '*':
    case '+':
    case '?':
        return read_repeat(t);
    case '[':
        t->i++;
        t->atom = t->out.n;
        return read_class(t, NULL, &t->out, 0);
    case '|':
        t->i++;
        t->atom = NONE;
        tok_translate_put(&t->out, "|");
        return LQ_OK;
    case '^':
    case '$':
        t->i++;
        t->atom = NONE;
        tok_translate_put(&t->out, c == '^' ? "(?m:^)" : "(?m:$)");
        return LQ_OK;
    case '.':
        t->i++;
        t->atom = t->out.n;
        tok_translate_put(&t->out, ".");
        return LQ_OK;
    default:
        break;
    }
    size_t len;
    t->atom = t->out.n;
    uint32_t cp = lq_utf8_get((const uint8_t *)t->s + t->i, &len);
    t->i += len;
    if ((cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z'))
        lq_buf_cp(&t->out, cp);
    else
        put_cp(&t->out, cp);
    return LQ_OK;
}

lq_status tok_regex_translate(char **out, const char *s, size_t n, lq_err *err)
{
    *out = NULL;
    tr t = { .s = s, .n = n, .atom = NONE, .err = err };
    lq_status st = LQ_OK;
    if (memchr(s, 0, n) || !lq_utf8_valid((const uint8_t *)s, n, NULL))
        return lq_fail(err, LQ_EFORMAT, "tokenizer: pattern '%.200s': NUL or invalid UTF-8", s);
    while (!st && t.i < n) {
        st = read_token(&t);
        if (!st && t.out.n > MAX_TRANSLATION) st = refuse(&t, "a pattern of this size");
    }
    if (!st && t.depth) st = broken(&t, "a group without its )");
    for (int k = 0; !st && k < t.extra[MAX_NEST - 1]; k++)
        tok_translate_put(&t.out, ")");
    lq_buf_add(&t.out, "", 1);
    if (!st && t.out.oom) st = lq_fail(err, LQ_ENOMEM, "tokenizer: out of memory");
    if (st)
        lq_buf_free(&t.out);
    else
        *out = t.out.p;
    return st;
}
