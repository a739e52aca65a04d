/* runtime/tokenizer/tok_pre.c - pre-tokenizers: text to pieces that no token crosses. */
#include "runtime/tokenizer/tok_int.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

void tok_emit(tok_pieces *out, const uint8_t *s, size_t n, int32_t id, bool first)
{
    if (n == 0) return; /* the library drops empty pieces */
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 64;
        tok_piece *p = realloc(out->p, cap * sizeof *p);
        if (!p) {
            out->oom = true;
            return;
        }
        out->p = p;
        out->cap = cap;
    }
    out->p[out->n++] = (tok_piece){ out->text.n, n, id, first };
    lq_buf_add(&out->text, s, n);
}

/* ---- what becomes of a delimiter ---- */
typedef enum { ISOLATED, REMOVED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS } behavior;
static const char *const behaviors[] = { "Isolated", "Removed", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };

typedef struct {
    behavior how;
    bool invert;
    const uint8_t *s;
    bool first;
    tok_pieces *out;
    bool held, last_match; /* a segment that may still grow; whether the last part was a match */
    size_t start, end;
} cutter;

static void cut_flush(cutter *c)
{
    if (c->held)
        tok_emit(c->out, c->s + c->start, c->end - c->start, -1, c->first && c->start == 0);
    c->held = false;
}

static void cut_hold(cutter *c, size_t start, size_t end)
{
    cut_flush(c);
    c->held = true;
    c->start = start;
    c->end = end;
}

/* The next part of the text: a match of the delimiter or what lies between two. */
static void cut_part(cutter *c, size_t start, size_t end, bool match)
{
    bool grow = false;
    match ^= c->invert;
    switch (c->how) {
    case ISOLATED:
        break;
    case REMOVED:
        if (match) return;
        break;
    case CONTIGUOUS:
        grow = match == c->last_match;
        break;
    case MERGED_PREVIOUS:
        grow = match && !c->last_match;
        break;
    case MERGED_NEXT:
        grow = !match && c->last_match;
        break;
    }
    c->last_match = match;
    if (grow && c->held)
        c->end = end;
    else
        cut_hold(c, start, end);
}

static lq_status cut_pattern(tok_run *r, cutter *c, const tok_pattern *p, size_t n)
{
    tok_scan f = tok_scan_all(p, c->s, n);
    size_t from = 0, start, end;
    for (bool found;;) {
        lq_status e = tok_scan_next(&f, r->matcher, &found, &start, &end, r->err);
        if (e) return e;
        if (!found) break;
        if (from != start) cut_part(c, from, start, false);
        cut_part(c, start, end, true);
        from = end;
    }
    if (from != n) cut_part(c, from, n, false);
    cut_flush(c);
    return LQ_OK;
}

typedef bool (*char_class)(uint32_t cp, uint32_t arg);

static void cut_chars(cutter *c, char_class is, uint32_t arg, size_t n)
{
    size_t from = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (!is(lq_utf8_get(c->s + i, &len), arg)) continue;
        if (from != i) cut_part(c, from, i, false);
        cut_part(c, i, i + len, true);
        from = i + len;
    }
    if (from != n) cut_part(c, from, n, false);
    cut_flush(c);
}

static bool is_numeric(uint32_t cp, uint32_t arg) { return (void)arg, tok_is_numeric(cp); }
static bool is_punct(uint32_t cp, uint32_t arg) { return (void)arg, tok_is_punct(cp); }
static bool is_space(uint32_t cp, uint32_t arg) { return (void)arg, tok_is_space(cp); }
static bool is_char(uint32_t cp, uint32_t arg) { return cp == arg; }

/* ---- Split ---- */
static lq_status compile_split(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    lq_status s = tok_json_choice(j, "behavior", behaviors, LQ_COUNT(behaviors), &op->arg[1], err);
    if (s) return s;
    op->arg[2] = tok_json_bool(j, "invert", false);
    return tok_put_pattern(b, cJSON_GetObjectItemCaseSensitive(j, "pattern"), op, err);
}

static lq_status check_behavior(const tok_step *s, int arg, lq_err *err)
{
    if (s->op->arg[arg] < LQ_COUNT(behaviors)) return LQ_OK;
    return lq_fail(err, LQ_EFORMAT, "tokenizer blob: behavior: expected 0..4, found %u",
                   s->op->arg[arg]);
}

static lq_status open_split(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    lq_status e = check_behavior(s, 1, err);
    return e ? e : tok_open_pattern(t, s, err);
}

static lq_status run_split(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                           tok_pieces *out)
{
    cutter c = { .how = (behavior)st->op->arg[1],
                 .invert = st->op->arg[2] != 0,
                 .s = s,
                 .first = first,
                 .out = out };
    return cut_pattern(r, &c, st->pattern, n);
}

/* ---- ByteLevel ---- */
static const char gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static lq_status compile_byte_level(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)err;
    op->arg[0] = tok_json_bool(j, "add_prefix_space", true);
    op->arg[1] = tok_json_bool(j, "use_regex", true);
    return LQ_OK;
}

static lq_status open_byte_level(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    if (!s->op->arg[1]) return LQ_OK;
    return tok_pattern_new(&s->pattern, gpt2_regex, sizeof gpt2_regex - 1, true, err);
}

/* A byte's character of the alphabet as UTF-8: one or two bytes. */
static size_t put_byte_char(uint8_t *to, uint8_t byte)
{
    const uint32_t cp = tok_byte_char(byte);
    if (cp < 0x80) return to[0] = (uint8_t)cp, 1;
    to[0] = (uint8_t)(0xC0 | cp >> 6);
    to[1] = (uint8_t)(0x80 | (cp & 63));
    return 2;
}

static lq_status run_byte_level(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                bool first, tok_pieces *out)
{
    if (st->op->arg[0] && s[0] != ' ') {
        r->a.n = 0;
        lq_buf_add(&r->a, " ", 1);
        lq_buf_add(&r->a, s, n);
        if (r->a.oom) return tok_oom(r->err);
        s = r->a.u;
        n = r->a.n;
    }
    size_t from = out->n, at = out->text.n;
    cutter c = { .how = ISOLATED, .s = s, .first = first, .out = out };
    if (st->pattern) {
        lq_status e = cut_pattern(r, &c, st->pattern, n);
        if (e) return e;
    } else {
        tok_emit(out, s, n, -1, first);
    }
    /* The pieces just written, spelled in the byte alphabet. */
    if (out->oom || out->text.oom) return tok_oom(r->err);
    r->b.n = 0;
    if (!lq_buf_room(&r->b, 2 * (out->text.n - at))) return tok_oom(r->err);
    for (size_t k = from; k < out->n; k++) {
        tok_piece *p = &out->p[k];
        size_t start = r->b.n;
        for (size_t i = 0; i < p->len; i++)
            r->b.n += put_byte_char(r->b.u + r->b.n, out->text.u[p->off + i]);
        p->off = at + start;
        p->len = r->b.n - start;
    }
    out->text.n = at;
    lq_buf_add(&out->text, r->b.u, r->b.n);
    return r->b.oom ? tok_oom(r->err) : LQ_OK;
}

/* ---- Metaspace ---- */
static lq_status compile_metaspace(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    static const char *const schemes[] = { "always", "never", "first" };
    const char *rep = tok_json_str(j, "replacement");
    op->s[0] = tok_put_text(b, rep ? rep : "\xE2\x96\x81");
    op->arg[1] = tok_json_bool(j, "split", true);
    lq_status s =
        tok_json_choice(j, "prepend_scheme", schemes, LQ_COUNT(schemes), &op->arg[0], err);
    if (!s && !tok_json_bool(j, "add_prefix_space", true)) op->arg[0] = 1;
    return s;
}

/* s[0] is one character; arg[2], unused in the blob, is not needed: the character is read back. */
static lq_status open_char(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    size_t len;
    if (s->n[0] && lq_utf8_step(s->s[0], s->n[0], &len) == LQ_UTF8_CHAR && len == s->n[0])
        return LQ_OK;
    return lq_fail(err, LQ_EFORMAT, "tokenizer: expected one character, found %zu bytes", s->n[0]);
}

static lq_status run_metaspace(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                               bool first, tok_pieces *out)
{
    enum { ALWAYS, NEVER, FIRST };
    lq_buf *w = &r->a;
    size_t len;
    w->n = 0;
    bool starts = s[0] == ' ' || (n >= st->n[0] && memcmp(s, st->s[0], st->n[0]) == 0);
    if (!starts && (st->op->arg[0] == ALWAYS || (st->op->arg[0] == FIRST && first)))
        lq_buf_add(w, st->s[0], st->n[0]);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ')
            lq_buf_add(w, st->s[0], st->n[0]);
        else
            lq_buf_add(w, s + i, 1);
    }
    if (w->oom) return tok_oom(r->err);
    if (!st->op->arg[1]) return tok_emit(out, w->u, w->n, -1, first), LQ_OK;
    cutter c = { .how = MERGED_NEXT, .s = w->u, .first = first, .out = out };
    cut_chars(&c, is_char, lq_utf8_get(st->s[0], &len), w->n);
    return LQ_OK;
}

/* ---- by class of character ---- */
static lq_status compile_digits(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)err;
    op->arg[0] = tok_json_bool(j, "individual_digits", false);
    return LQ_OK;
}

static lq_status run_digits(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                            tok_pieces *out)
{
    (void)r;
    cutter c = {
        .how = st->op->arg[0] ? ISOLATED : CONTIGUOUS, .s = s, .first = first, .out = out
    };
    cut_chars(&c, is_numeric, 0, n);
    return LQ_OK;
}

static lq_status compile_punctuation(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b;
    return tok_json_choice(j, "behavior", behaviors, LQ_COUNT(behaviors), &op->arg[0], err);
}

static lq_status open_punctuation(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    return (void)t, check_behavior(s, 0, err);
}

static lq_status run_punctuation(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                 bool first, tok_pieces *out)
{
    (void)r;
    cutter c = { .how = (behavior)st->op->arg[0], .s = s, .first = first, .out = out };
    cut_chars(&c, is_punct, 0, n);
    return LQ_OK;
}

static lq_status run_whitespace_split(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                      bool first, tok_pieces *out)
{
    (void)r, (void)st;
    cutter c = { .how = REMOVED, .s = s, .first = first, .out = out };
    cut_chars(&c, is_space, 0, n);
    return LQ_OK;
}

static lq_status open_whitespace(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    static const char words[] = /* the library's \w has Join_Control here */
        "[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+";
    return (void)t, tok_pattern_new(&s->pattern, words, sizeof words - 1, true, err);
}

static lq_status run_whitespace(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                bool first, tok_pieces *out)
{
    cutter c = { .how = REMOVED, .invert = true, .s = s, .first = first, .out = out };
    return cut_pattern(r, &c, st->pattern, n);
}

static lq_status compile_delimiter(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const char *d = tok_json_str(j, "delimiter");
    if (!d)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: CharDelimiterSplit: expected a delimiter");
    op->s[0] = tok_put_text(b, d);
    return LQ_OK;
}

static lq_status run_delimiter(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                               bool first, tok_pieces *out)
{
    (void)r;
    size_t len;
    cutter c = { .how = REMOVED, .s = s, .first = first, .out = out };
    cut_chars(&c, is_char, lq_utf8_get(st->s[0], &len), n);
    return LQ_OK;
}

/* ---- BertPreTokenizer: WhitespaceSplit, then Punctuation ---- */
static lq_status run_bert(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                          tok_pieces *out)
{
    (void)r, (void)st;
    size_t from = 0, len;
    for (size_t i = 0; i <= n; i += len) {
        const bool end = i == n || tok_is_space(lq_utf8_get(s + i, &len));
        if (!end) continue;
        cutter c = { .how = ISOLATED, .s = s + from, .first = first && from == 0, .out = out };
        if (i > from) cut_chars(&c, is_punct, 0, i - from);
        if (i == n) break;
        from = i + len;
    }
    return LQ_OK;
}

/* ---- UnicodeScripts: runs of one script ---- */
static const char
    scripts[] = /* ISO 15924; the rest is Unknown, which joins any run as a space does */
    "zyyy latn bopo zinh grek copt cyrl armn hebr arab syrc thaa nkoo samr mand deva "
    "beng guru gujr orya taml telu knda mlym sinh thai laoo tibt mymr geor hang ethi "
    "cher cans ogam runr tglg hano buhd tagb khmr mong limb tale talu bugi lana bali "
    "sund batk lepc olck brai glag tfng yiii lisu vaii bamu sylo phag saur kali rjng "
    "java cham tavt mtei linb lyci cari ital goth perm ugar xpeo dsrt shaw osma osge "
    "elba aghb vith todr lina cprt armi palm nbat hatr phnx lydi sidt mero merc khar "
    "sarb narb mani avst prti phli phlp orkh hung rohg gara yezi sogo sogd ougr chrs "
    "elym brah kthi sora cakm mahj shrd khoj mult sind gran tutg newa tirh sidd modi "
    "takr ahom dogr wara diak nand zanb soyo pauc sunu bhks marc gonm gong tols maka "
    "kawi xsux pcun cpmn egyp hluw gukh mroo tnsa bass hmng krai medf berf plrd tang "
    "nshu kits jurc dupl sgnw hmnp toto wcho nagm onao tayo mend adlm seal";

/* "[SCRIPT][SCRIPT neutral]*|..." of the scripts that this PCRE2 knows. */
static lq_status open_scripts(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    enum { NAME = 4 };
    static const char neutral[] = " \\p{zzzz}";
    lq_buf all = { 0 };
    (void)t;
    for (size_t i = 0; i < sizeof scripts; i += NAME + 1) {
        char class[64], one[96];
        const char *name = scripts + i;
        tok_pattern *p = NULL;
        /* Han and the kana are one, the mark of long vowels with them */
        snprintf(class, sizeof class, "\\p{%.4s}%s", name,
                 memcmp(name, "zyyy", 4) ? "" : "&&[^\\x{30fc} ]");
        if (tok_pattern_new(&p, class, strlen(class), true, NULL)) continue;
        tok_pattern_free(p);
        snprintf(one, sizeof one, "|[%s](?:[%s]|[%s])*", class, class, neutral);
        lq_buf_add(&all, one, strlen(one));
    }
    static const char han[] =
        "[\\p{hani}\\p{hira}\\p{kana}\\x{30fc}][\\p{hani}\\p{hira}\\p{kana}\\x{30fc} \\p{zzzz}]*";
    lq_buf whole = { 0 };
    lq_buf_add(&whole, han, sizeof han - 1);
    lq_buf_add(&whole, all.u, all.n);
    lq_status e = all.oom || whole.oom
                      ? tok_oom(err)
                      : tok_pattern_new(&s->pattern, (const char *)whole.u, whole.n, true, err);
    lq_buf_free(&all);
    lq_buf_free(&whole);
    return e;
}

static lq_status run_scripts(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                             tok_pieces *out)
{
    cutter c = { .how = REMOVED, .invert = true, .s = s, .first = first, .out = out };
    return cut_pattern(r, &c, st->pattern, n);
}

/* ---- FixedLength: every `length` characters ---- */
static lq_status compile_fixed(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b;
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, "length");
    double length = cJSON_IsNumber(v) ? v->valuedouble : 5;
    if (!(length >= 1 && length <= INT32_MAX))
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer.json: FixedLength: expected length 1..2147483647");
    op->arg[0] = (uint32_t)length;
    return LQ_OK;
}

static lq_status run_fixed(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                           tok_pieces *out)
{
    (void)r;
    uint32_t chars = 0;
    size_t from = 0;
    for (size_t i = 0, len; i < n; i += len) {
        (void)lq_utf8_get(s + i, &len);
        if (++chars < st->op->arg[0]) continue;
        tok_emit(out, s + from, i + len - from, -1, first && from == 0);
        from = i + len;
        chars = 0;
    }
    tok_emit(out, s + from, n - from, -1, first && from == 0);
    return LQ_OK;
}

static const tok_kind kinds[] = {
    { "Split", compile_split, open_split, { .pre = run_split } },
    { "ByteLevel", compile_byte_level, open_byte_level, { .pre = run_byte_level } },
    { "Metaspace", compile_metaspace, open_char, { .pre = run_metaspace } },
    { "Digits", compile_digits, NULL, { .pre = run_digits } },
    { "Punctuation", compile_punctuation, open_punctuation, { .pre = run_punctuation } },
    { "Whitespace", NULL, open_whitespace, { .pre = run_whitespace } },
    { "WhitespaceSplit", NULL, NULL, { .pre = run_whitespace_split } },
    { "BertPreTokenizer", NULL, NULL, { .pre = run_bert } },
    { "UnicodeScripts", NULL, open_scripts, { .pre = run_scripts } },
    { "FixedLength", compile_fixed, NULL, { .pre = run_fixed } },
    { "CharDelimiterSplit", compile_delimiter, open_char, { .pre = run_delimiter } },
};

const tok_stage_table tok_pre_table = { "pre_tokenizer", "pretokenizers", kinds, LQ_COUNT(kinds) };

lq_status tok_pre_tokenize(tok_run *r)
{
    for (size_t k = 0; k < r->t->n_steps[TOK_PRE]; k++) {
        const tok_step *st = &r->t->steps[TOK_PRE][k];
        tok_pieces *out = &r->next;
        out->n = out->text.n = 0;
        for (size_t i = 0; i < r->pieces.n; i++) {
            const tok_piece *p = &r->pieces.p[i];
            const uint8_t *s = r->pieces.text.u + p->off;
            lq_status e = LQ_OK;
            if (p->id >= 0)
                tok_emit(out, s, p->len, p->id, p->first);
            else
                e = kinds[st->op->kind].run.pre(r, st, s, p->len, p->first, out);
            if (e) return e;
        }
        if (out->oom || out->text.oom) return tok_oom(r->err);
        tok_pieces swap = r->pieces;
        r->pieces = *out;
        *out = swap;
    }
    return LQ_OK;
}
