/* runtime/tokenizer/tok_dec.c - decoders, as steps that text flows through: one path for whole texts and for
 * streams, so that both say the same.
 *
 * A step takes pieces of token text; `start` marks where a token begins. A step holds back only
 * what later tokens may change: the first bytes of a code point, the first half of a replaced
 * string, characters that may have to be stripped from the end.
 *
 * One departure from the library, which turns a whole run of byte tokens into U+FFFD when any of
 * it is invalid: here the code points that are valid stay, as they must when they have already
 * been sent. And one character that is not in the byte alphabet makes the library take a whole text
 * as it is spelled where Fuse comes before ByteLevel: here that character alone. Texts that were
 * encoded decode alike. */
#include "runtime/tokenizer/tok_int.h"

#include "base/utf8.h"

#include <stdlib.h>

typedef struct {
    lq_buf pend;
    uint32_t count;
    bool begun, fused; /* fused: tokens before this step have become one text */
} dec_state;

struct tok_stream {
    const tok_tokenizer *t;
    bool skip_special;
    size_t n;
    dec_state *state;
    tok_matcher *matcher; /* only where a decoder has a regular expression */
    lq_buf out, tmp;
    lq_buf held; /* text of the prompt that is not out yet, from `held_at` on */
    size_t held_at;
    bool any;
    lq_err *err; /* of the call that runs */
};

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

static lq_status emit(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start);

static const tok_step *tok_dec_step(const tok_stream *d, size_t i)
{
    return &d->t->steps[TOK_DEC][i];
}

/* ---- steps that look at a token whole. Behind a step that makes all tokens one there is a single
 * token, which ends with the stream. ---- */

/* Collect s[n]; false: there is more of this token to come. */
static bool whole_token(tok_stream *d, size_t i, const uint8_t **s, size_t *n)
{
    dec_state *y = &d->state[i];
    if (!y->fused) return *s != NULL;
    if (*s) {
        lq_buf_add(&y->pend, *s, *n);
        y->begun = true;
        return false;
    }
    *s = y->pend.u ? y->pend.u : (const uint8_t *)"";
    *n = y->pend.n;
    return y->begun;
}

static lq_status emit_owned(tok_stream *d, size_t i, lq_buf *text, bool start)
{
    lq_status e = text->oom ? tok_oom(d->err) : emit(d, i + 1, text->u, text->n, start);
    lq_buf_free(text);
    return e;
}

/* ---- ByteLevel: the byte alphabet back to bytes, those to text ---- */
static lq_status drain_bytes(tok_stream *d, size_t i, bool end)
{
    dec_state *st = &d->state[i];
    lq_buf *p = &st->pend;
    size_t at = 0, len;
    d->tmp.n = 0;
    while (at < p->n) {
        lq_utf8 u = lq_utf8_step(p->u + at, p->n - at, &len);
        if (u == LQ_UTF8_PARTIAL && !end) break;
        if (u == LQ_UTF8_CHAR)
            lq_buf_add(&d->tmp, p->u + at, len);
        else
            lq_buf_add(&d->tmp, REPLACEMENT, 3);
        at += len;
    }
    if (at) memmove(p->u, p->u + at, p->n - at);
    p->n -= at;
    if (!d->tmp.n) return LQ_OK;
    bool start = !st->begun;
    st->begun = true;
    lq_buf text = d->tmp; /* the next step may want tmp */
    d->tmp = (lq_buf){ 0 };
    lq_status s = emit(d, i + 1, text.u, text.n, start);
    lq_buf_free(&d->tmp);
    d->tmp = text;
    return s;
}

static bool is_mapped(const uint8_t *s, size_t n)
{
    for (size_t k = 0, len; k < n; k += len)
        if (tok_char_byte(lq_utf8_get(s + k, &len)) < 0) return false;
    return true;
}

static lq_status run_byte_level(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    (void)start;
    if (!s) return drain_bytes(d, i, true);
    lq_buf *p = &d->state[i].pend;
    /* Tokens that have become one text: each character by itself, so that nothing waits. */
    const bool fused = d->state[i].fused, mapped = fused || is_mapped(s, n);
    if (!mapped) lq_buf_add(p, s, n); /* not spelled in the alphabet: the text itself */
    for (size_t k = 0, len; k < n && mapped; k += len) {
        const int c = tok_char_byte(lq_utf8_get(s + k, &len));
        const uint8_t byte = (uint8_t)c;
        lq_buf_add(p, c < 0 ? s + k : &byte, c < 0 ? len : 1);
    }
    return p->oom ? tok_oom(d->err) : drain_bytes(d, i, false);
}

static lq_status open_byte_level(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)s, (void)err;
    t->byte_level = true;
    return LQ_OK;
}

/* ---- ByteFallback: <0xE4> tokens to bytes ---- */
static lq_status drain_run(tok_stream *d, size_t i, bool end)
{
    lq_buf *p = &d->state[i].pend;
    size_t at = 0, len;
    lq_status s = LQ_OK;
    for (; at < p->n && !s; at += len) {
        lq_utf8 u = lq_utf8_step(p->u + at, p->n - at, &len);
        if (u == LQ_UTF8_PARTIAL && !end) break;
        if (u == LQ_UTF8_CHAR) s = emit(d, i + 1, p->u + at, len, true);
        for (size_t k = 0; k < len && u != LQ_UTF8_CHAR && !s; k++)
            s = emit(d, i + 1, (const uint8_t *)REPLACEMENT, 3, true);
    }
    if (at) memmove(p->u, p->u + at, p->n - at);
    p->n -= at;
    return s;
}

static lq_status run_byte_fallback_fused(tok_stream *d, size_t i, const uint8_t *s, size_t n)
{
    enum { SPELLED = 6 }; /* bytes of <0x0A>: a longer text is none */
    dec_state *y = &d->state[i];
    const bool end = s == NULL;
    bool start = !y->count;
    if (start) {
        if (!end) {
            lq_buf_add(&y->pend, s, n);
            y->begun = true;
            if (y->pend.oom) return tok_oom(d->err);
        }
        if (!y->begun || (!end && y->pend.n <= SPELLED)) return LQ_OK;
        s = y->pend.u ? y->pend.u : (const uint8_t *)"";
        n = y->pend.n;
        y->count = 1;
        const int byte = tok_byte_token(s, n);
        if (byte >= 0) {
            y->pend.u[0] = (uint8_t)byte;
            y->pend.n = 1;
            return drain_run(d, i, true);
        }
    }
    return end && !start ? LQ_OK : emit(d, i + 1, s, n, start);
}

static lq_status run_byte_fallback(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    if (d->state[i].fused) /* the one token may be a byte's */
        return run_byte_fallback_fused(d, i, s, n);
    if (!s) return drain_run(d, i, true);
    int byte = start ? tok_byte_token(s, n) : -1;
    if (byte >= 0) {
        uint8_t b = (uint8_t)byte;
        lq_buf_add(&d->state[i].pend, &b, 1);
        return d->state[i].pend.oom ? tok_oom(d->err) : drain_run(d, i, false);
    }
    lq_status e = drain_run(d, i, true);
    return e ? e : emit(d, i + 1, s, n, start);
}

static lq_status open_byte_fallback(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)s, (void)err;
    t->byte_fallback = true;
    return LQ_OK;
}

/* ---- Fuse: all tokens are one from here on ---- */
static lq_status run_fuse(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    if (!s) return LQ_OK;
    start = !d->state[i].begun;
    d->state[i].begun = true;
    return emit(d, i + 1, s, n, start);
}

/* ---- Strip: up to `start` and `stop` of a character off each token's ends ---- */
static lq_status compile_strip(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    static const char *const keys[] = { "start", "stop" };
    const char *content = tok_json_str(j, "content");
    if (!content) return lq_fail(err, LQ_EFORMAT, "tokenizer.json: Strip: expected a text content");
    op->s[0] = tok_put_text(b, content);
    for (int k = 0; k < 2; k++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, keys[k]);
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= 1e6))
            return lq_fail(err, LQ_EFORMAT, "tokenizer.json: Strip: expected %s 0..1000000",
                           keys[k]);
        op->arg[k] = (uint32_t)v->valuedouble;
    }
    return LQ_OK;
}

static lq_status run_strip(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    const tok_step *st = tok_dec_step(d, i);
    const size_t n_c = st->n[0], stop = st->op->arg[1];
    dec_state *y = &d->state[i];
    lq_buf text = { 0 };
    if (!s) return LQ_OK; /* what waits at the end is cut */
    if (start) {
        y->pend.n = 0; /* the end of the token before: cut */
        y->count = st->op->arg[0];
    }
    for (size_t k = 0, len; k < n; k += len) {
        (void)lq_utf8_get(s + k, &len);
        bool hit = len == n_c && memcmp(s + k, st->s[0], n_c) == 0;
        if (hit && y->count) {
            y->count--;
            continue;
        }
        y->count = 0;
        if (hit && stop) {
            if (y->pend.n / n_c == stop)
                lq_buf_add(&text, st->s[0], n_c);
            else
                lq_buf_add(&y->pend, st->s[0], n_c);
            continue;
        }
        lq_buf_add(&text, y->pend.u, y->pend.n);
        y->pend.n = 0;
        lq_buf_add(&text, s + k, len);
    }
    lq_status e = text.oom || y->pend.oom ? tok_oom(d->err) : emit(d, i + 1, text.u, text.n, start);
    lq_buf_free(&text);
    return e;
}

static lq_status open_strip(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    size_t len;
    if (s->n[0] && lq_utf8_step(s->s[0], s->n[0], &len) == LQ_UTF8_CHAR && len == s->n[0])
        return LQ_OK;
    return lq_fail(err, LQ_EFORMAT, "tokenizer: Strip: expected one character, found %zu bytes",
                   s->n[0]);
}

/* ---- Replace ---- */
static lq_status compile_replace(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const char *content = tok_json_str(j, "content");
    if (!content)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: Replace: expected a text content");
    op->s[1] = tok_put_text(b, content);
    return tok_put_pattern(b, cJSON_GetObjectItemCaseSensitive(j, "pattern"), op, err);
}

/* s[n] with matches replaced, into text; *from: behind the last match. */
static lq_status replace_all(tok_stream *d, const tok_step *st, const uint8_t *s, size_t n,
                             lq_buf *text, size_t *from)
{
    tok_scan f = tok_scan_all(st->pattern, s, n);
    size_t start, end;
    *from = 0;
    for (bool found;;) {
        lq_status e = tok_scan_next(&f, d->matcher, &found, &start, &end, d->err);
        if (e) return e;
        if (!found) return LQ_OK;
        lq_buf_add(text, s + *from, start - *from);
        lq_buf_add(text, st->s[1], st->n[1]);
        *from = end;
    }
}

/* The longest end of s[n] that may be the beginning of the literal pat[m]. */
static size_t may_begin(const uint8_t *s, size_t n, const uint8_t *pat, size_t m)
{
    for (size_t k = m < n + 1 ? m - (m > 0) : n; k > 0; k--)
        if (memcmp(s + n - k, pat, k) == 0) return k;
    return 0;
}

/* The text is one token here: what may still become a match waits. */
static lq_status replace_fused(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start,
                               bool end)
{
    const tok_step *st = tok_dec_step(d, i);
    lq_buf *p = &d->state[i].pend, text = { 0 };
    size_t from = 0, keep = 0;
    lq_buf_add(p, s, n);
    if (st->op->arg[0] && !end) return p->oom ? tok_oom(d->err) : LQ_OK; /* a regex sees it whole */
    lq_status e = replace_all(d, st, p->u, p->n, &text, &from);
    if (e) goto done;
    if (!end) keep = may_begin(p->u + from, p->n - from, st->s[0], st->n[0]);
    lq_buf_add(&text, p->u + from, p->n - from - keep);
    if (keep) memmove(p->u, p->u + p->n - keep, keep);
    p->n = keep;
    if (p->oom || text.oom)
        e = tok_oom(d->err);
    else if (text.n || start)
        e = emit(d, i + 1, text.u, text.n, start);
done:
    lq_buf_free(&text);
    return e;
}

static lq_status run_replace(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    if (d->state[i].fused) return replace_fused(d, i, s, n, start, s == NULL);
    if (!s) return LQ_OK;
    lq_buf text = { 0 };
    size_t from;
    lq_status e = replace_all(d, tok_dec_step(d, i), s, n, &text, &from);
    if (!e) lq_buf_add(&text, s + from, n - from);
    if (!e) e = text.oom ? tok_oom(d->err) : emit(d, i + 1, text.u, text.n, start);
    lq_buf_free(&text);
    return e;
}

/* ---- Metaspace ---- */
static lq_status compile_metaspace(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    static const char *const schemes[] = { "always", "never", "first" };
    const char *rep = tok_json_str(j, "replacement");
    op->s[0] = tok_put_text(b, rep ? rep : "\xE2\x96\x81");
    lq_status s =
        tok_json_choice(j, "prepend_scheme", schemes, LQ_COUNT(schemes), &op->arg[0], err);
    if (!s && !tok_json_bool(j, "add_prefix_space", true)) op->arg[0] = 1;
    return s;
}

static lq_status run_metaspace(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    const tok_step *st = tok_dec_step(d, i);
    dec_state *y = &d->state[i];
    lq_buf text = { 0 };
    if (!s) return LQ_OK;
    if (start && y->count < 2) y->count++; /* which token this is: the first, or a later one */
    bool drop = y->count < 2 && st->op->arg[0] != 1;
    for (size_t k = 0, len; k < n; k += len) {
        (void)lq_utf8_get(s + k, &len);
        bool hit = len == st->n[0] && memcmp(s + k, st->s[0], len) == 0;
        if (!hit)
            lq_buf_add(&text, s + k, len);
        else if (!drop)
            lq_buf_add(&text, " ", 1);
    }
    lq_status e = text.oom ? tok_oom(d->err) : emit(d, i + 1, text.u, text.n, start);
    lq_buf_free(&text);
    return e;
}

/* ---- text ---- */

/* Append s[n] with every `from` replaced. */
static void replace_text(lq_buf *out, const uint8_t *s, size_t n, const void *from, size_t n_from,
                         const void *to, size_t n_to)
{
    size_t at = 0;
    while (n_from && at < n) {
        const uint8_t *hit = memmem(s + at, n - at, from, n_from);
        if (!hit) break;
        lq_buf_add(out, s + at, (size_t)(hit - s) - at);
        lq_buf_add(out, to, n_to);
        at = (size_t)(hit - s) + n_from;
    }
    if (at < n) lq_buf_add(out, s + at, n - at); /* an empty text may be NULL */
}

/* The spaces that English does not want before its punctuation and contractions, one after the
 * other as the library takes them out. `text` is replaced. */
static void clean_up(lq_buf *text)
{
    static const char *const rules[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },     { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },   { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    for (size_t k = 0; k < LQ_COUNT(rules); k++) {
        lq_buf next = { 0 };
        replace_text(&next, text->u, text->n, rules[k][0], strlen(rules[k][0]), rules[k][1],
                     strlen(rules[k][1]));
        next.oom = next.oom || text->oom;
        lq_buf_free(text);
        *text = next;
    }
}

/* ---- WordPiece ---- */
static lq_status compile_wordpiece(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)err;
    const char *prefix = tok_json_str(j, "prefix");
    op->s[0] = tok_put_text(b, prefix ? prefix : "##");
    op->arg[0] = tok_json_bool(j, "cleanup", true);
    return LQ_OK;
}

static lq_status open_text(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    return s->s[0] ? LQ_OK : lq_fail(err, LQ_EFORMAT, "tokenizer blob: a step without its text");
}

static lq_status run_wordpiece(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    const tok_step *st = tok_dec_step(d, i);
    dec_state *y = &d->state[i];
    lq_buf text = { 0 };
    (void)start;
    if (!whole_token(d, i, &s, &n)) return LQ_OK;
    if (y->count) { /* not the first */
        if (n >= st->n[0] && memcmp(s, st->s[0], st->n[0]) == 0) {
            s += st->n[0];
            n -= st->n[0];
        } else {
            lq_buf_add(&text, " ", 1);
        }
    }
    y->count = 1;
    lq_buf_add(&text, s, n);
    if (st->op->arg[0]) clean_up(&text);
    return emit_owned(d, i, &text, true);
}

/* ---- BPEDecoder: the suffix of a word is a space, but for the last token's ---- */
static lq_status compile_bpe(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)err;
    const char *suffix = tok_json_str(j, "suffix");
    op->s[0] = tok_put_text(b, suffix ? suffix : "</w>");
    return LQ_OK;
}

/* A token waits from its first suffix on: only the next one says what a suffix is. */
static lq_status run_bpe(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    const tok_step *st = tok_dec_step(d, i);
    dec_state *y = &d->state[i];
    lq_buf text = { 0 };
    const bool end = s == NULL;
    (void)start;
    if (y->fused) { /* the one token is the last */
        if (!whole_token(d, i, &s, &n)) return LQ_OK;
        replace_text(&text, s, n, st->s[0], st->n[0], "", 0);
        return emit_owned(d, i, &text, true);
    }
    replace_text(&text, y->pend.u, y->pend.n, st->s[0], st->n[0], " ", end ? 0 : 1);
    y->pend.n = 0;
    lq_status e = text.n || text.oom ? emit_owned(d, i, &text, false) : LQ_OK;
    if (e || end) return e;
    const uint8_t *hit = st->n[0] ? memmem(s, n, st->s[0], st->n[0]) : NULL;
    const size_t known = hit ? (size_t)(hit - s) : n;
    lq_buf_add(&y->pend, s + known, n - known);
    y->count = 1;
    return y->pend.oom ? tok_oom(d->err) : emit(d, i + 1, s, known, true);
}

/* ---- CTC: equal neighbours are one, pads nothing, delimiters spaces ---- */
static lq_status compile_ctc(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)err;
    const char *pad = tok_json_str(j, "pad_token"), *word = tok_json_str(j, "word_delimiter_token");
    op->s[0] = tok_put_text(b, pad ? pad : "<pad>");
    op->s[1] = tok_put_text(b, word ? word : "|");
    op->arg[0] = tok_json_bool(j, "cleanup", true);
    return LQ_OK;
}

static lq_status open_texts(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    return s->s[0] && s->s[1] ? LQ_OK
                              : lq_fail(err, LQ_EFORMAT, "tokenizer blob: CTC without its texts");
}

static lq_status run_ctc(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    const tok_step *st = tok_dec_step(d, i);
    dec_state *y = &d->state[i];
    lq_buf a = { 0 }, b = { 0 };
    (void)start;
    if (!whole_token(d, i, &s, &n)) return LQ_OK;
    if (!y->fused) {
        if (y->count && y->pend.n == n && memcmp(y->pend.u, s, n) == 0) return LQ_OK;
        y->pend.n = 0;
        y->count = 1;
        lq_buf_add(&y->pend, s, n);
        if (y->pend.oom) return tok_oom(d->err);
    }
    replace_text(&a, s, n, st->s[0], st->n[0], "", 0);
    if (st->op->arg[0]) {
        clean_up(&a);
        replace_text(&b, a.u, a.n, st->s[1], st->n[1], " ", 1);
        b.oom = b.oom || a.oom;
        lq_buf_free(&a);
        a = b;
    }
    if (a.n || a.oom) return emit_owned(d, i, &a, true);
    lq_buf_free(&a);
    return LQ_OK;
}

static const tok_kind kinds[] = {
    { "ByteLevel", NULL, open_byte_level, { .dec = run_byte_level } },
    { "ByteFallback", NULL, open_byte_fallback, { .dec = run_byte_fallback } },
    { "Fuse", NULL, NULL, { .dec = run_fuse } },
    { "Strip", compile_strip, open_strip, { .dec = run_strip } },
    { "Replace", compile_replace, tok_open_pattern, { .dec = run_replace } },
    { "Metaspace", compile_metaspace, open_strip, { .dec = run_metaspace } },
    { "WordPiece", compile_wordpiece, open_text, { .dec = run_wordpiece } },
    { "BPEDecoder", compile_bpe, open_text, { .dec = run_bpe } },
    { "CTC", compile_ctc, open_texts, { .dec = run_ctc } },
};

const tok_stage_table tok_dec_table = { "decoder", "decoders", kinds, LQ_COUNT(kinds) };

/* Text into step i, or out at the end. */
static lq_status emit(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start)
{
    if (!s) s = (const uint8_t *)""; /* an empty token; NULL would be the end */
    if (i < d->n) return kinds[tok_dec_step(d, i)->op->kind].run.dec(d, i, s, n, start);
    lq_buf_add(&d->out, s, n);
    return d->out.oom ? tok_oom(d->err) : LQ_OK;
}

/* ---- the stream ---- */
lq_status tok_stream_new(tok_stream **out, const tok_tokenizer *t, bool skip_special, lq_err *err)
{
    tok_stream *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return tok_oom(err);
    d->t = t;
    d->skip_special = skip_special;
    d->n = t->n_steps[TOK_DEC];
    d->state = calloc(d->n + 1, sizeof *d->state);
    bool fused = false, ok = d->state != NULL;
    for (size_t i = 0; i < d->n && ok; i++) {
        const char *name = kinds[tok_dec_step(d, i)->op->kind].name;
        d->state[i].fused = fused;
        fused = fused || strcmp(name, "Fuse") == 0 || strcmp(name, "ByteLevel") == 0;
        if (tok_dec_step(d, i)->pattern && tok_dec_step(d, i)->op->arg[0] && !d->matcher)
            ok = (d->matcher = tok_matcher_new()) != NULL;
    }
    if (!ok) {
        tok_stream_free(d);
        return tok_oom(err);
    }
    *out = d;
    return LQ_OK;
}

void tok_stream_reset(tok_stream *d)
{
    for (size_t i = 0; i < d->n; i++) {
        dec_state *y = &d->state[i];
        y->pend.n = y->count = 0;
        y->begun = false;
    }
    d->out.n = d->tmp.n = d->held.n = d->held_at = 0;
    d->any = false;
}

void tok_stream_free(tok_stream *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->n && d->state; i++)
        lq_buf_free(&d->state[i].pend);
    free(d->state);
    tok_matcher_free(d->matcher);
    lq_buf_free(&d->out);
    lq_buf_free(&d->tmp);
    lq_buf_free(&d->held);
    free(d);
}

static lq_status tok_dec_push(tok_stream *d, int32_t id, lq_err *err)
{
    d->err = err;
    if (id < 0 || (size_t)id >= d->t->n_ids)
        return lq_fail(err, LQ_EVALUE, "token id %d: expected 0..%zu", id, d->t->n_ids - 1);
    size_t n;
    const char *text = tok_token(d->t, id, &n);
    if (!text || (d->skip_special && tok_is_special(d->t, id))) return LQ_OK;
    if (d->n == 0 && d->any) lq_buf_add(&d->out, " ", 1); /* no decoder: tokens joined by spaces */
    d->any = true;
    return emit(d, 0, (const uint8_t *)text, n, true);
}

/* What each step still holds, in order. */
static lq_status flush(tok_stream *d, lq_err *err)
{
    lq_status s = LQ_OK;
    d->err = err;
    for (size_t i = 0; i < d->n && !s; i++)
        s = kinds[tok_dec_step(d, i)->op->kind].run.dec(d, i, NULL, 0, false);
    return s;
}

/* What a prompt's last tokens would give if it ended here. Later text that repeats it is the
 * prompt's, not the answer's. */
static lq_status note_held(tok_stream *d, lq_err *err)
{
    tok_stream *copy = NULL;
    bool any = false, ok = true;
    for (size_t i = 0; i < d->n; i++)
        any = any || d->state[i].pend.n || d->state[i].begun;
    d->held.n = d->held_at = 0;
    if (!any) return LQ_OK;
    lq_status s = tok_stream_new(&copy, d->t, d->skip_special, err);
    for (size_t i = 0; i < d->n && !s; i++) {
        dec_state *to = &copy->state[i];
        const dec_state *from = &d->state[i];
        lq_buf_add(&to->pend, from->pend.u, from->pend.n);
        to->count = from->count;
        to->begun = from->begun;
        ok = ok && !to->pend.oom;
    }
    if (!s && !ok) s = tok_oom(err);
    if (!s) s = flush(copy, err);
    if (!s) lq_buf_add(&d->held, copy->out.u, copy->out.n);
    tok_stream_free(copy);
    return s ? s : d->held.oom ? tok_oom(err) : LQ_OK;
}

/* Take from the front of `out` the code points that are still held of the prompt. */
static void drop_held(tok_stream *d)
{
    size_t at = 0, len;
    while (at < d->out.n && d->held_at < d->held.n) {
        (void)lq_utf8_get(d->out.u + at, &len);
        if (len > d->held.n - d->held_at || len > d->out.n - at ||
            memcmp(d->out.u + at, d->held.u + d->held_at, len) != 0) {
            d->held_at = d->held.n;
            break;
        }
        at += len;
        d->held_at += len;
    }
    if (at) memmove(d->out.u, d->out.u + at, d->out.n - at);
    d->out.n -= at;
}

lq_status tok_stream_prime(tok_stream *d, const int32_t *ids, size_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < n && !s; i++) {
        s = tok_dec_push(d, ids[i], err);
        d->out.n = 0;
    }
    return s || !n ? s : note_held(d, err);
}

static lq_status deliver(tok_stream *d, const char **delta, size_t *n)
{
    drop_held(d);
    if (!lq_buf_room(&d->out, 1)) return tok_oom(d->err);
    d->out.u[d->out.n] = 0;
    *delta = (const char *)d->out.u;
    *n = d->out.n;
    return LQ_OK;
}

lq_status tok_stream_push(tok_stream *d, int32_t id, const char **delta, size_t *n, lq_err *err)
{
    d->out.n = 0;
    lq_status s = tok_dec_push(d, id, err);
    return s ? s : deliver(d, delta, n);
}

lq_status tok_stream_flush(tok_stream *d, const char **delta, size_t *n, lq_err *err)
{
    d->out.n = 0;
    lq_status s = flush(d, err);
    return s ? s : deliver(d, delta, n);
}

lq_status tok_decode(const tok_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *n_text, lq_err *err)
{
    tok_stream *d = NULL;
    *text = NULL;
    *n_text = 0;
    lq_status s = tok_stream_new(&d, t, skip_special, err);
    for (size_t i = 0; i < n && !s; i++)
        s = tok_dec_push(d, ids[i], err);
    if (!s) s = flush(d, err);
    const char *p;
    if (!s) s = deliver(d, &p, n_text);
    if (!s) {
        *text = d->out.p;
        d->out = (lq_buf){ 0 };
    }
    tok_stream_free(d);
    return s;
}

/* The text that a decoder's step puts for one character, or NULL. */
static const uint8_t *put_for(const tok_step *st, const uint8_t *c, size_t len, size_t *n)
{
    const tok_kind *k = &kinds[st->op->kind];
    bool space = k->run.dec == run_metaspace;
    if (!space && (k->run.dec != run_replace || st->op->arg[0])) return NULL;
    if (st->n[0] != len || memcmp(st->s[0], c, len) != 0) return NULL;
    *n = space ? 1 : st->n[1];
    return space ? (const uint8_t *)" " : st->s[1];
}

static void put_bytes(uint8_t *out, size_t cap, size_t *n, const uint8_t *s, size_t len)
{
    for (size_t i = 0; i < len; i++, ++*n)
        if (*n < cap) out[*n] = s[i];
}

size_t tok_token_bytes(const tok_tokenizer *t, int32_t id, uint8_t *out, size_t cap)
{
    size_t n = 0, n_text = 0;
    const uint8_t *s = (const uint8_t *)tok_token(t, id, &n_text);
    if (!s) return 0;
    int byte = t->byte_fallback ? tok_byte_token(s, n_text) : -1;
    if (byte >= 0) {
        uint8_t b = (uint8_t)byte;
        return put_bytes(out, cap, &n, &b, 1), n;
    }
    bool mapped = t->byte_level && is_mapped(s, n_text);
    for (size_t k = 0, len; k < n_text; k += len) {
        uint32_t cp = lq_utf8_get(s + k, &len);
        const uint8_t *put = s + k;
        size_t n_put = len;
        uint8_t b = mapped ? (uint8_t)tok_char_byte(cp) : 0;
        if (mapped) put = &b, n_put = 1;
        for (size_t i = 0; i < t->n_steps[TOK_DEC] && !mapped; i++) {
            const uint8_t *other = put_for(&t->steps[TOK_DEC][i], s + k, len, &n_put);
            if (other) {
                put = other;
                break;
            }
        }
        put_bytes(out, cap, &n, put, n_put);
    }
    return n;
}
