/* runtime/chat/tmpl_lex.c - template source to tokens: text, {{ }}, {% %}, and what stands in them.
 *
 * White space as Jinja2 with trim_blocks and lstrip_blocks: the newline behind a block tag or a
 * comment goes, and so does the space before it when nothing else is on its line; "-" takes all
 * white space on its side, "+" leaves it. One newline at the end of the source goes. */
#include "runtime/chat/tmpl_int.h"

#include "runtime/tokenizer/tok_text.h"

#include <stdlib.h>
#include <utf8proc.h>

typedef struct {
    tp_base *b;
    const char *s;
    size_t n, i;
    int line;
    tt *v;
    size_t n_v, cap;
    bool line_start; /* what was consumed last ended with a newline */
} lexer;

static bool space_cp(uint32_t cp) { return tok_is_space(cp) || (cp >= 0x1C && cp <= 0x1F); }

static tt *add(lexer *x, tt_kind k, const char *p, size_t n)
{
    if (x->n_v == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        tt *v = tp_take(x->b, cap * sizeof *v);
        if (x->n_v) memcpy(v, x->v, x->n_v * sizeof *v);
        x->v = v;
        x->cap = cap;
    }
    x->v[x->n_v] = (tt){ .k = k, .line = x->line, .p = p, .n = n };
    return &x->v[x->n_v++];
}

static void skip_to(lexer *x, size_t to)
{
    for (; x->i < to; x->i++)
        x->line += x->s[x->i] == '\n';
    x->b->line = x->line;
}

static bool at(const lexer *x, size_t i, const char *lit)
{
    size_t n = strlen(lit);
    return x->n - i >= n && memcmp(x->s + i, lit, n) == 0;
}

/* The end of the white space at i. */
static size_t past_space(const lexer *x, size_t i)
{
    size_t len;
    while (i < x->n && space_cp(lq_utf8_get((const uint8_t *)x->s + i, &len)))
        i += len;
    return i;
}

/* The start of the white space that ends at `to`, not before `from`. */
static size_t before_space(const lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t c = to - 1, len;
        while (c > from && ((uint8_t)x->s[c] & 0xC0) == 0x80)
            c--;
        if (!space_cp(lq_utf8_get((const uint8_t *)x->s + c, &len))) break;
        to = c;
    }
    return to;
}

/* Text from..to before a tag whose sign is '-', '+' or other; `block`: lstrip_blocks holds. */
static void add_text(lexer *x, size_t from, size_t to, char sign, bool block)
{
    if (sign == '-') {
        to = before_space(x, from, to);
    } else if (sign != '+' && block) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n')
            line--;
        if ((line > from || x->line_start) && before_space(x, line, to) == line) to = line;
    }
    if (to > from) add(x, TT_TEXT, x->s + from, to - from);
}

/* Past a tag's end: "-" takes white space, a block's end takes one newline. */
static void after_tag(lexer *x, size_t end, char sign, bool trim)
{
    size_t i = end;
    if (sign == '-')
        i = past_space(x, i);
    else if (sign != '+' && trim && i < x->n && x->s[i] == '\n')
        i++;
    skip_to(x, i);
    x->line_start = i > end && x->s[i - 1] == '\n';
}

static void comment(lexer *x, size_t begin)
{
    for (size_t e = begin + 2; e + 1 < x->n; e++) {
        if (x->s[e] != '#' || x->s[e + 1] != '}') continue;
        char sign = e > begin + 2 ? x->s[e - 1] : 0;
        after_tag(x, e + 2, sign, true);
        return;
    }
    tp_fail(x->b, LQ_EFORMAT, "template: line %d: a comment without its end", x->line);
}

/* "{%- raw -%}" at `begin`: all up to endraw is text. */
static bool raw_block(lexer *x, size_t begin)
{
    size_t i = begin + 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+')) i++;
    i = past_space(x, i);
    if (!at(x, i, "raw")) return false;
    i = past_space(x, i + 3);
    char sign = i < x->n && x->s[i] == '-' ? '-' : 0;
    if (!at(x, i + (sign != 0), "%}")) return false;
    after_tag(x, i + (sign != 0) + 2, sign, false);
    for (size_t from = x->i, e = from; e < x->n; e++) {
        if (!at(x, e, "{%")) continue;
        size_t k = e + 2;
        char open = k < x->n && (x->s[k] == '-' || x->s[k] == '+') ? x->s[k++] : 0;
        k = past_space(x, k);
        if (!at(x, k, "endraw")) continue;
        k = past_space(x, k + 6);
        char close = k < x->n && (x->s[k] == '-' || x->s[k] == '+') ? x->s[k++] : 0;
        if (!at(x, k, "%}")) continue;
        add_text(x, from, e, open, true);
        after_tag(x, k + 2, close, true);
        return true;
    }
    tp_fail(x->b, LQ_EFORMAT, "template: line %d: raw without its endraw", x->line);
}

/* ---- inside a tag ---- */
static bool is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex(char c)
{
    if (is_digit(c)) return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Where the name at i ends; letters of every script may stand in it. */
static size_t past_name(const lexer *x, size_t i)
{
    for (size_t len; i < x->n; i += len) {
        uint32_t cp = lq_utf8_get((const uint8_t *)x->s + i, &len);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        if (cp < 128 ? !is_alpha((char)cp) && !is_digit((char)cp)
                     : k < UTF8PROC_CATEGORY_LU || k > UTF8PROC_CATEGORY_ND)
            break;
    }
    return i;
}

/* `digits` hex digits at *i; -1: not so many. */
static int64_t read_hex(const lexer *x, size_t *i, size_t end, int digits)
{
    int64_t v = 0;
    if (end - *i < (size_t)digits) return -1;
    for (int k = 0; k < digits; k++) {
        int h = hex(x->s[*i + (size_t)k]);
        if (h < 0) return -1;
        v = v * 16 + h;
    }
    *i += (size_t)digits;
    return v;
}

/* One escape of a string literal behind its backslash at *i (Python's unicode-escape). */
static size_t unescape(lexer *x, size_t *i, size_t end, char *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->s[(*i)++];
    const char *hit = strchr(from, c);
    int64_t cp = -1;
    if (c && hit) return *out = to[hit - from], 1;
    if (c == '\n') return 0;
    if (c >= '0' && c <= '7') {
        cp = c - '0';
        for (int k = 0; k < 2 && *i < end && x->s[*i] >= '0' && x->s[*i] <= '7'; k++)
            cp = cp * 8 + (x->s[(*i)++] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        cp = read_hex(x, i, end, c == 'x' ? 2 : c == 'u' ? 4 : 8);
        if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
            tp_fail(x->b, LQ_EFORMAT, "template: line %d: a broken escape in a string", x->line);
    }
    if (cp >= 0) return lq_utf8_put((uint8_t *)out, (uint32_t)cp);
    out[0] = '\\'; /* an unknown escape stays as it is */
    out[1] = c;
    return 2;
}

static void string_token(lexer *x)
{
    char quote = x->s[x->i];
    size_t e = x->i + 1, w = 0;
    while (e < x->n && x->s[e] != quote)
        e += x->s[e] == '\\' ? 2 : 1;
    if (e >= x->n)
        tp_fail(x->b, LQ_EFORMAT, "template: line %d: a string without its end", x->line);
    char *out = tp_take(x->b, e - x->i + 8);
    for (size_t i = x->i + 1; i < e;) {
        if (x->s[i] != '\\') {
            out[w++] = x->s[i++];
            continue;
        }
        i++;
        w += unescape(x, &i, e, out + w);
    }
    add(x, TT_STR, out, w);
    skip_to(x, e + 1);
}

static void number_token(lexer *x)
{
    char text[64];
    size_t w = 0, i = x->i;
    bool real = false,
         based = x->s[i] == '0' && i + 1 < x->n && strchr("xXoObB", x->s[i + 1]) && x->s[i + 1];
    int base = based ? ((x->s[i + 1] | 32) == 'x' ? 16 : (x->s[i + 1] | 32) == 'o' ? 8 : 2) : 10;
    if (based) i += 2;
    for (; i < x->n && w + 1 < sizeof text; i++) {
        char c = x->s[i];
        bool exponent = !based && (c == 'e' || c == 'E') && i + 1 < x->n &&
                        (is_digit(x->s[i + 1]) || ((x->s[i + 1] == '+' || x->s[i + 1] == '-') &&
                                                   i + 2 < x->n && is_digit(x->s[i + 2])));
        if (c == '_') continue;
        if (exponent) {
            real = true;
            text[w++] = c;
            if (!is_digit(x->s[i + 1]) && w + 1 < sizeof text) text[w++] = x->s[++i];
        } else if (c == '.' && !based && !real && i + 1 < x->n && is_digit(x->s[i + 1])) {
            real = true;
            text[w++] = c;
        } else if (is_digit(c) || (base == 16 && hex(c) >= 0)) {
            text[w++] = c;
        } else {
            break;
        }
    }
    text[w] = 0;
    tt *t = add(x, real ? TT_FLOAT : TT_INT, x->s + x->i, i - x->i);
    char *end;
    if (real) {
        t->f = strtod(text, &end);
    } else {
        uint64_t v = 0, limit = INT64_MAX;
        for (end = text; *end; end++) {
            int d = hex(*end);
            if (d >= base || v > (limit - (uint64_t)d) / (uint64_t)base)
                tp_fail(x->b, LQ_EVALUE, "template: line %d: an integer out of range", x->line);
            v = v * (uint64_t)base + (uint64_t)d;
        }
        t->i = (int64_t)v;
    }
    x->i = i;
}

static void op_token(lexer *x)
{
    static const char *const ops[] = { "**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                       "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                       "]",  "{",  "}",  ",",  ":",  ".",  "|", ";" };
    for (size_t k = 0; k < LQ_COUNT(ops); k++) {
        if (!at(x, x->i, ops[k])) continue;
        add(x, TT_OP, ops[k], strlen(ops[k]));
        x->i += strlen(ops[k]);
        return;
    }
    size_t len;
    (void)lq_utf8_get((const uint8_t *)x->s + x->i, &len);
    tp_fail(x->b, LQ_EFORMAT, "template: line %d: unexpected character '%.*s'", x->line, (int)len,
            x->s + x->i);
}

/* The tokens of a tag up to its end "%}" or "}}". */
static void inside(lexer *x, const char *close, tt_kind end_kind)
{
    int braces = 0; /* a dict's own brace is not the tag's end */
    for (;;) {
        skip_to(x, past_space(x, x->i));
        if (x->i >= x->n)
            tp_fail(x->b, LQ_EFORMAT, "template: line %d: a tag without its end", x->line);
        char c = x->s[x->i];
        bool sign = (c == '-' || c == '+') && at(x, x->i + 1, close);
        if (sign && c == '+' && end_kind == TT_VAR_END) sign = false;
        if (sign || (at(x, x->i, close) && braces == 0)) {
            add(x, end_kind, close, 2);
            after_tag(x, x->i + (sign ? 3 : 2), sign ? c : 0, end_kind == TT_BLOCK_END);
            return;
        }
        size_t e = past_name(x, x->i);
        if (e > x->i && !is_digit(c)) {
            add(x, TT_NAME, x->s + x->i, e - x->i);
            x->i = e;
        } else if (c == '"' || c == '\'') {
            string_token(x);
        } else if (is_digit(c)) {
            number_token(x);
        } else {
            braces += strchr("([{", c) ? 1 : strchr(")]}", c) ? -1 : 0;
            op_token(x);
        }
    }
}

static size_t next_tag(const lexer *x)
{
    for (size_t i = x->i; i + 1 < x->n; i++)
        if (x->s[i] == '{' && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#'))
            return i;
    return x->n;
}

/* \r\n and \r to \n; one newline less at the end. */
static char *normalize(tp_base *b, const char *s, size_t *n)
{
    char *out = tp_take(b, *n + 8);
    size_t w = 0;
    for (size_t i = 0; i < *n; i++) {
        if (s[i] == '\r' && i + 1 < *n && s[i + 1] == '\n') continue;
        out[w++] = (char)(s[i] == '\r' ? '\n' : s[i]);
    }
    if (w && out[w - 1] == '\n') w--;
    *n = w;
    return out;
}

tt *tp_lex(tp_base *b, const char *src, size_t n, size_t *n_tokens)
{
    lexer x = { .b = b, .n = n, .line = 1, .line_start = true };
    x.s = normalize(b, src, &x.n);
    while (x.i < x.n) {
        size_t from = x.i, tag = next_tag(&x);
        char kind = tag < x.n ? x.s[tag + 1] : 0, sign = tag + 2 < x.n ? x.s[tag + 2] : 0;
        if (sign != '-' && sign != '+') sign = 0;
        add_text(&x, from, tag, sign, kind == '%' || kind == '#');
        if (tag >= x.n) break;
        skip_to(&x, tag);
        if (kind == '#') {
            comment(&x, tag);
        } else if (kind == '{') {
            add(&x, TT_VAR_BEGIN, "{{", 2);
            x.i = tag + 2 + (sign != 0);
            inside(&x, "}}", TT_VAR_END);
        } else if (!raw_block(&x, tag)) {
            add(&x, TT_BLOCK_BEGIN, "{%", 2);
            x.i = tag + 2 + (sign != 0);
            inside(&x, "%}", TT_BLOCK_END);
        }
    }
    add(&x, TT_END, "the end", 7);
    *n_tokens = x.n_v;
    return x.v;
}
