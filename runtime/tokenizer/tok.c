/* runtime/tokenizer/tok.c - encoding from end to end.
 *
 *     text -> added tokens cut out -> normalizer -> added tokens of normalized text cut out
 *          -> pre-tokenizers -> model per piece -> post-processors -> ids */
#include "runtime/tokenizer/tok.h"

#include "base/utf8.h"
#include "runtime/tokenizer/tok_int.h"

#include <stdlib.h>

/* ---- added tokens in a text ---- */
static size_t char_before(const uint8_t *s, size_t at)
{
    do
        at--;
    while (at > 0 && (s[at] & 0xC0) == 0x80);
    return at;
}

static lq_status is_word(tok_run *r, const uint8_t *s, size_t n, bool *yes)
{
    tok_scan f = tok_scan_all(r->t->word, s, n);
    size_t start, end;
    return tok_scan_next(&f, r->matcher, yes, &start, &end, r->err);
}

/* Whether no word character touches s[start..end). */
static lq_status stands_alone(tok_run *r, const uint8_t *s, size_t n, size_t start, size_t end,
                              bool *alone)
{
    bool before = false, after = false;
    size_t len;
    lq_status e = LQ_OK;
    if (start > 0) {
        size_t at = char_before(s, start);
        e = is_word(r, s + at, start - at, &before);
    }
    if (!e && end < n) {
        (void)lq_utf8_get(s + end, &len);
        e = is_word(r, s + end, len, &after);
    }
    *alone = !before && !after;
    return e;
}

/* Where the white space that ends at `at` begins, not before `from`. */
static size_t space_before(const uint8_t *s, size_t at, size_t from)
{
    size_t len;
    for (size_t c; at > from; at = c) {
        c = char_before(s, at);
        if (!tok_is_space(lq_utf8_get(s + c, &len))) break;
    }
    return at;
}

/* ---- which bytes may spell special tokens ---- */

static bool all_own(const uint8_t *own, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!own[i]) return false;
    return true;
}

/* The next text of a special token of normalized text in raw[from..n), longest first. */
static uint32_t next_raw(const tok_run *r, size_t *from, size_t n, size_t *len)
{
    for (size_t i = *from; i < n; i++) {
        uint32_t k = tok_trie_longest(r->t->normalized, r->raw + i, n - i, len);
        if (k == TOK_NONE || !(r->t->added[k].flags & TOK_SPECIAL)) continue;
        *from = i;
        return k;
    }
    *from = n;
    return TOK_NONE;
}

/* Whether normalizing left the special tokens of the segment as they were, one by one: only then
 * can those of the normalized text be told from those of the raw text. */
static bool same_specials(const tok_run *r, const uint8_t *s, size_t n)
{
    size_t at = r->seg_at, raw_len = 0;
    for (size_t i = 0, len = 0; i < n; i++) {
        uint32_t k = tok_trie_longest(r->t->normalized, s + i, n - i, &len);
        if (k == TOK_NONE || !(r->t->added[k].flags & TOK_SPECIAL)) continue;
        if (next_raw(r, &at, r->seg_end, &raw_len) != k) return false;
        at++;
    }
    return next_raw(r, &at, r->seg_end, &raw_len) == TOK_NONE;
}

/* Whether token k, found at s, is one of the template's. */
static bool may_be_special(tok_run *r, uint32_t k, const uint8_t *s, size_t len)
{
    size_t raw_len = 0;
    if (!r->in_normalized) return all_own(r->own + (s - r->raw), len);
    if (!r->same) return false;
    if (next_raw(r, &r->seg_at, r->seg_end, &raw_len) != k) return false;
    bool yes = all_own(r->own + r->seg_at, raw_len);
    r->seg_at += yes ? raw_len : 1;
    return yes;
}

typedef lq_status (*text_sink)(tok_run *r, const uint8_t *s, size_t n, bool first);

/* Cut the trie's tokens out of s[n]; the text between goes to `sink`. */
static lq_status cut_added(tok_run *r, const tok_trie *trie, const uint8_t *s, size_t n, bool first,
                           unsigned flags, text_sink sink)
{
    size_t done = 0; /* the text before is dealt with */
    lq_status e = LQ_OK;
    if (tok_trie_empty(trie)) return sink(r, s, n, first);
    for (size_t i = 0, len = 0, c; i < n; i += len) {
        len = 1;
        if (!trie->starts[s[i]]) continue;
        uint32_t k = tok_trie_longest(trie, s + i, n - i, &len);
        if (k == TOK_NONE) continue;
        const tok_added *a = &r->t->added[k];
        size_t start = i, end = i + len, from = i; /* from: of the token's own piece */
        if ((flags & TOK_PLAIN_SPECIAL) && (a->flags & TOK_SPECIAL)) continue;
        if (r->own && (a->flags & TOK_SPECIAL) && !may_be_special(r, k, s + i, len)) {
            len = 1; /* a token of the template's may begin within it */
            continue;
        }
        if (a->flags & TOK_SINGLE_WORD) {
            bool alone = false;
            if ((e = stands_alone(r, s, n, start, end, &alone))) return e;
            if (!alone) continue;
        }
        if (a->flags & TOK_LSTRIP) {
            start = space_before(s, start, done);
            from = start > done ? start : done; /* empty where a token before took all of it */
        }
        if (a->flags & TOK_RSTRIP)
            while (end < n && tok_is_space(lq_utf8_get(s + end, &c)))
                end += c;
        if (start > done && (e = sink(r, s + done, start - done, first && done == 0))) return e;
        tok_emit(&r->pieces, s + from, end > from ? end - from : 0, (int32_t)a->id, false);
        done = end; /* may go back into space that a token before took: the library does so too */
    }
    return done < n ? sink(r, s + done, n - done, first && done == 0) : LQ_OK;
}

static lq_status sink_piece(tok_run *r, const uint8_t *s, size_t n, bool first)
{
    tok_emit(&r->pieces, s, n, -1, first);
    return r->pieces.oom || r->pieces.text.oom ? tok_oom(r->err) : LQ_OK;
}

static lq_status sink_normalize(tok_run *r, const uint8_t *s, size_t n, bool first)
{
    r->first = first;
    if (r->own) {
        r->seg_at = (size_t)(s - r->raw);
        r->seg_end = r->seg_at + n;
    }
    lq_status e = tok_normalize(r, s, n, &s, &n);
    if (e) return e;
    r->same = r->own && !tok_trie_empty(r->t->normalized) && same_specials(r, s, n);
    r->in_normalized = true;
    e = cut_added(r, r->t->normalized, s, n, r->first, r->flags, sink_piece);
    r->in_normalized = false;
    return e;
}

/* ---- encode ---- */
static lq_status model_of(tok_run *r, const uint8_t *s, size_t n)
{
    static lq_status (*const models[TOK_N_MODELS])(tok_run *, const uint8_t *,
                                                   size_t) = { [TOK_BPE] = tok_bpe,
                                                               [TOK_UNIGRAM] = tok_unigram,
                                                               [TOK_WORDLEVEL] = tok_wordlevel,
                                                               [TOK_WORDPIECE] = tok_wordpiece };
    return models[r->t->head->model](r, s, n);
}

/* A text repeats its words: what one became stands in r->ids already, and is copied from there. */
static lq_status encode_word(tok_run *r, const uint8_t *s, size_t n)
{
    enum { LONGEST = 64 };
    if (!r->seen || n > LONGEST) return model_of(r, s, n);
    tok_seen *w = &r->seen[tok_hash(s, n) & r->seen_mask];
    if (w->len == n && memcmp(w->s, s, n) == 0) {
        if (lq_buf_room(&r->ids, w->ids_bytes))
            lq_buf_add(&r->ids, r->ids.u + w->ids_off, w->ids_bytes);
        return LQ_OK;
    }
    const size_t from = r->ids.n;
    lq_status e = model_of(r, s, n);
    *w = (tok_seen){ s, from, (uint32_t)n, (uint32_t)(r->ids.n - from) };
    return e;
}

/* Room to remember words, by the length of the text; short texts do without. */
static bool make_seen(tok_run *r)
{
    enum { SHORT = 512, PER_WORD = 16, MOST = 1 << 15 };
    size_t slots = 64;
    if (r->pieces.text.n < SHORT) return true;
    while (slots < MOST && slots < r->pieces.text.n / PER_WORD)
        slots *= 2;
    r->seen = calloc(slots, sizeof *r->seen);
    r->seen_mask = slots - 1;
    return r->seen != NULL;
}

/* The length of the first word of s[n]: up to a metaspace behind another character. */
static size_t word_end(const uint8_t *s, size_t n)
{
    static const uint8_t space[] = { 0xE2, 0x96, 0x81 };
    size_t i = 0;
    while (n - i >= 3 && memcmp(s + i, space, 3) == 0)
        i += 3;
    while (i < n) {
        const uint8_t *hit = memchr(s + i, 0xE2, n - i);
        if (!hit) return n;
        i = (size_t)(hit - s);
        if (n - i >= 3 && memcmp(hit, space, 3) == 0) return i;
        i++;
    }
    return n;
}

static lq_status run_model(tok_run *r)
{
    const bool words = (r->t->head->flags & TOK_WORDS_ALONE) != 0;
    if (!make_seen(r)) return tok_oom(r->err);
    for (size_t i = 0; i < r->pieces.n; i++) {
        const tok_piece *p = &r->pieces.p[i];
        const uint8_t *s = r->pieces.text.u + p->off;
        if (p->id >= 0) tok_add_id(r, (uint32_t)p->id);
        for (size_t at = 0, n; p->id < 0 && at < p->len; at += n) {
            n = words ? word_end(s + at, p->len - at) : p->len;
            lq_status e = encode_word(r, s + at, n);
            if (e) return e;
        }
    }
    return r->ids.oom ? tok_oom(r->err) : LQ_OK;
}

static void run_free(tok_run *r)
{
    lq_buf *const bufs[] = { &r->a, &r->b, &r->pieces.text, &r->next.text, &r->ids, &r->paths };
    for (size_t i = 0; i < LQ_COUNT(bufs); i++)
        lq_buf_free(bufs[i]);
    free(r->pieces.p);
    free(r->next.p);
    free(r->symbols);
    free(r->heap);
    free(r->seen);
    tok_matcher_free(r->matcher);
}

static lq_status hand_over(tok_run *r, int32_t **ids, size_t *n_ids)
{
    if (r->ids.oom || !lq_buf_room(&r->ids, sizeof(int32_t))) return tok_oom(r->err);
    *ids = (int32_t *)(void *)r->ids.u;
    *n_ids = r->ids.n / sizeof(int32_t);
    r->ids = (lq_buf){ 0 };
    return LQ_OK;
}

static lq_status encode(const tok_tokenizer *t, const char *text, const uint8_t *own, size_t n,
                        unsigned flags, int32_t **ids, size_t *n_ids, lq_err *err)
{
    enum { MAX_TEXT = 1 << 30 };
    tok_run r = { .t = t, .flags = flags, .own = own, .err = err };
    lq_buf clean = { 0 };
    *ids = NULL;
    *n_ids = 0;
    if (n > MAX_TEXT)
        return lq_fail(err, LQ_EVALUE, "text: expected at most %d bytes, found %zu", MAX_TEXT, n);
    tok_utf8_lossy(&clean, (const uint8_t *)text, n);
    r.raw = clean.u;
    if (own && !clean.oom && clean.n != n) /* own speaks of the text as it came */
        return lq_buf_free(&clean), lq_fail(err, LQ_EFORMAT, "text: expected valid UTF-8");
    r.matcher = tok_matcher_new();
    lq_status s = clean.oom || !r.matcher ? tok_oom(err) : LQ_OK;
    if (!s && clean.n) s = cut_added(&r, t->raw, clean.u, clean.n, true, flags, sink_normalize);
    if (!s) s = tok_pre_tokenize(&r);
    if (!s) s = run_model(&r);
    if (!s && (flags & TOK_ADD_SPECIAL)) s = tok_post_process(&r);
    if (!s) s = hand_over(&r, ids, n_ids);
    lq_buf_free(&clean);
    run_free(&r);
    return s;
}

lq_status tok_encode(const tok_tokenizer *t, const char *text, size_t n, unsigned flags,
                     int32_t **ids, size_t *n_ids, lq_err *err)
{
    return encode(t, text, NULL, n, flags, ids, n_ids, err);
}

lq_status tok_encode_own(const tok_tokenizer *t, const char *text, const uint8_t *own, size_t n,
                         int32_t **ids, size_t *n_ids, lq_err *err)
{
    return encode(t, text, own, n, 0, ids, n_ids, err);
}

lq_status tok_add_special_pair(const tok_tokenizer *t, const int32_t *a, size_t n_a,
                               const int32_t *b, size_t n_b, int32_t **out, size_t *n_out,
                               size_t *n_first, lq_err *err)
{
    tok_run r = { .t = t, .err = err };
    *out = NULL;
    *n_out = *n_first = 0;
    lq_buf_add(&r.ids, a, n_a * sizeof *a);
    lq_buf_add(&r.b, b, n_b * sizeof *b);
    lq_status s = r.ids.oom || r.b.oom ? tok_oom(err) : tok_post_pair(&r, n_first);
    if (!s) s = hand_over(&r, out, n_out);
    run_free(&r);
    return s;
}

lq_status tok_add_special(const tok_tokenizer *t, const int32_t *ids, size_t n, int32_t **out,
                          size_t *n_out, lq_err *err)
{
    tok_run r = { .t = t, .err = err };
    *out = NULL;
    *n_out = 0;
    lq_buf_add(&r.ids, ids, n * sizeof *ids);
    lq_status s = r.ids.oom ? tok_oom(err) : tok_post_process(&r);
    if (!s) s = hand_over(&r, out, n_out);
    run_free(&r);
    return s;
}

/* One that is not among them. */
static int32_t id_outside(const int32_t *ids, size_t n)
{
    int32_t id = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= id) id = ids[i] + 1;
    return id;
}

lq_status tok_around(const tok_tokenizer *t, int32_t **ids, size_t *before, size_t *after,
                     lq_err *err)
{
    int32_t *one = NULL, id = 0;
    size_t n = 0, n_one = 0, at = 0;
    *before = *after = 0;
    lq_status s = tok_add_special(t, &id, 0, ids, &n, err);
    if (s) return s;
    id = id_outside(*ids, n);
    s = tok_add_special(t, &id, 1, &one, &n_one, err);
    while (!s && at < n_one && one[at] != id)
        at++;
    if (!s && at < n_one) {
        *before = at;
        *after = n_one - 1 - at;
        memmove(one + at, one + at + 1, *after * sizeof *one);
    }
    free(*ids);
    *ids = one;
    return s;
}

lq_status tok_begin(const tok_tokenizer *t, int64_t vocab, int most, int32_t *ids, int *n,
                    lq_err *err)
{
    int32_t *all = NULL, last = 0;
    size_t before, after;
    *n = 0;
    lq_status s = tok_around(t, &all, &before, &after, err);
    for (size_t i = 0; i < before && !s; i++)
        if (all[i] > last) last = all[i];
    if (!s && (before > (size_t)most || last >= vocab))
        s = lq_fail(err, LQ_EUNSUPPORTED,
                    "tokenizer: expected at most %d ids below %lld before a text, found %zu up to "
                    "%d",
                    most, (long long)vocab, before, last);
    if (!s && before) memcpy(ids, all, before * sizeof *ids), *n = (int)before;
    free(all);
    return s;
}
