/* runtime/tokenizer/tok_model.c - one piece of text to ids: BPE, Unigram, WordLevel, WordPiece.
 *
 * BPE merges the pair of lowest rank, the leftmost among equals, until none is left: by a scan
 * over the few symbols of a word, by a heap over the many of a long text. Both take the same
 * merges in the same order.
 * Unigram: the best path by the sum of scores (Viterbi), the earliest of equals.
 * Source: arXiv:1508.07909; arXiv:1804.10959; the library's observable behaviour for unknowns. */
#include "runtime/tokenizer/tok_int.h"

#include "base/utf8.h"

#include <stdlib.h>

enum { SCAN_MAX = 48 }; /* symbols up to which a scan beats the heap */

/* ---- BPE ---- */
static bool add_symbol(tok_run *r, uint32_t id)
{
    if (r->n_symbols == r->cap_symbols) {
        size_t cap = r->cap_symbols ? r->cap_symbols * 2 : 64;
        tok_symbol *p = cap <= INT32_MAX ? realloc(r->symbols, cap * sizeof *p) : NULL;
        if (!p) return false;
        r->symbols = p;
        r->cap_symbols = cap;
    }
    int32_t k = (int32_t)r->n_symbols++;
    r->symbols[k] = (tok_symbol){ .id = id, .prev = k - 1, .next = k + 1, .rank = TOK_NONE };
    return true;
}

/* Every byte of s[n] as its byte token; *done false when one is missing. */
static bool add_bytes(tok_run *r, const uint8_t *s, size_t n, bool *done)
{
    *done = true;
    for (size_t i = 0; i < n && *done; i++)
        *done = r->t->byte_ids[s[i]] != TOK_NONE;
    for (size_t i = 0; i < n && *done; i++)
        if (!add_symbol(r, r->t->byte_ids[s[i]])) return false;
    return true;
}

/* The symbols of s[n]: its characters, where the vocabulary has them. */
static bool first_symbols(tok_run *r, const uint8_t *s, size_t n)
{
    const tok_tokenizer *t = r->t;
    const tok_head *h = t->head;
    const bool dressed = h->prefix.off != TOK_NONE || h->suffix.off != TOK_NONE;
    bool unk = false; /* an unknown waits: it may be fused with the next */
    r->n_symbols = 0;
    for (size_t i = 0, len; i < n; i += len) {
        (void)lq_utf8_get(s + i, &len);
        const uint8_t *c = s + i;
        size_t n_c = len;
        if (dressed) {
            r->a.n = 0;
            if (i > 0 && h->prefix.off != TOK_NONE)
                lq_buf_add(&r->a, tok_text(t, h->prefix), h->prefix.len);
            lq_buf_add(&r->a, c, n_c);
            if (i + len == n && h->suffix.off != TOK_NONE)
                lq_buf_add(&r->a, tok_text(t, h->suffix), h->suffix.len);
            if (r->a.oom) return false;
            c = r->a.u;
            n_c = r->a.n;
        }
        const uint32_t cp = dressed ? TOK_SHORT_CHARS : lq_utf8_get(c, &n_c);
        uint32_t id = cp < TOK_SHORT_CHARS ? t->short_ids[cp] : tok_lookup(t, c, n_c);
        if (id != TOK_NONE) {
            if (unk && !add_symbol(r, h->unk)) return false;
            unk = false;
            if (!add_symbol(r, id)) return false;
            continue;
        }
        bool done = false;
        if ((h->flags & TOK_BYTE_FALLBACK) && !add_bytes(r, c, n_c, &done)) return false;
        if (done || h->unk == TOK_NONE) continue;
        if (unk && !(h->flags & TOK_FUSE_UNK) && !add_symbol(r, h->unk)) return false;
        unk = true;
    }
    if (unk && !add_symbol(r, h->unk)) return false;
    if (r->n_symbols) r->symbols[r->n_symbols - 1].next = -1;
    return true;
}

/* What the pair that starts at k merges to. */
static void rank_pair(tok_run *r, int32_t k)
{
    tok_symbol *y = &r->symbols[k];
    const tok_merge *m = y->next < 0 ? NULL : tok_find_merge(r->t, y->id, r->symbols[y->next].id);
    y->rank = m ? m->rank : TOK_NONE;
    y->merged = m ? m->id : TOK_NONE;
}

/* Merge k with its right neighbour and rank the pairs that changed. */
static void merge_at(tok_run *r, int32_t k)
{
    tok_symbol *y = &r->symbols[k];
    tok_symbol *right = &r->symbols[y->next];
    y->id = y->merged;
    y->next = right->next;
    right->rank = TOK_NONE;
    if (y->next >= 0) r->symbols[y->next].prev = k;
    rank_pair(r, k);
    if (y->prev >= 0) rank_pair(r, y->prev);
}

static void merge_by_scan(tok_run *r)
{
    for (;;) {
        int32_t best = -1;
        uint32_t rank = TOK_NONE;
        for (int32_t k = 0; k >= 0; k = r->symbols[k].next)
            if (r->symbols[k].rank < rank) best = k, rank = r->symbols[k].rank;
        if (best < 0) return;
        merge_at(r, best);
    }
}

static bool before(tok_candidate a, tok_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.pos < b.pos;
}

static void sift_down(tok_candidate *h, size_t n, size_t i)
{
    tok_candidate v = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(h[c + 1], h[c])) c++;
        if (!before(h[c], v)) break;
        h[i] = h[c];
    }
    h[i] = v;
}

static bool push_candidate(tok_run *r, int32_t k)
{
    uint32_t rank = k < 0 ? TOK_NONE : r->symbols[k].rank;
    if (rank == TOK_NONE) return true;
    if (r->n_heap == r->cap_heap) {
        size_t cap = r->cap_heap ? r->cap_heap * 2 : 256;
        tok_candidate *p = realloc(r->heap, cap * sizeof *p);
        if (!p) return false;
        r->heap = p;
        r->cap_heap = cap;
    }
    tok_candidate v = { rank, (uint32_t)k };
    size_t i = r->n_heap++;
    for (; i > 0 && before(v, r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = v;
    return true;
}

static bool merge_by_heap(tok_run *r)
{
    r->n_heap = 0;
    for (size_t k = 0; k < r->n_symbols; k++)
        if (!push_candidate(r, (int32_t)k)) return false;
    while (r->n_heap) {
        tok_candidate top = r->heap[0];
        r->heap[0] = r->heap[--r->n_heap];
        if (r->n_heap) sift_down(r->heap, r->n_heap, 0);
        int32_t k = (int32_t)top.pos;
        if (r->symbols[k].rank != top.rank) continue; /* the pair has changed since */
        merge_at(r, k);
        if (!push_candidate(r, k) || !push_candidate(r, r->symbols[k].prev)) return false;
    }
    return true;
}

/* A special token that text may not spell (a vocabulary lists "<s>" among its pieces). */
static bool is_barred(const tok_run *r, uint32_t id)
{
    return (r->own || (r->flags & TOK_PLAIN_SPECIAL)) && r->t->special[id];
}

lq_status tok_bpe(tok_run *r, const uint8_t *s, size_t n)
{
    if (r->t->head->flags & TOK_IGNORE_MERGES) {
        uint32_t id = tok_lookup(r->t, s, n);
        if (id != TOK_NONE && !is_barred(r, id)) return tok_add_id(r, id), LQ_OK;
    }
    if (!first_symbols(r, s, n)) return tok_oom(r->err);
    if (r->n_symbols == 0) return LQ_OK;
    for (size_t k = 0; k < r->n_symbols; k++)
        rank_pair(r, (int32_t)k);
    if (r->n_symbols <= SCAN_MAX)
        merge_by_scan(r);
    else if (!merge_by_heap(r))
        return tok_oom(r->err);
    for (int32_t k = 0; k >= 0; k = r->symbols[k].next)
        tok_add_id(r, r->symbols[k].id);
    return LQ_OK;
}

/* ---- Unigram ---- */
typedef struct {
    double score;
    uint32_t len; /* bytes of the last token of the best path that ends here; 0: none ends here */
    uint32_t id;
    bool unknown; /* that stretch */
    size_t ahead; /* bytes of the stretch of the whole text's best path that starts here */
} path;

static lq_status no_unk(tok_run *r)
{
    return lq_fail(r->err, LQ_EVALUE,
                   "tokenizer: a character outside the vocabulary and no unk token");
}

/* SentencePiece adds in single precision, which decides between paths that are nearly equal. */
static double add_score(const tok_tokenizer *t, double a, double b)
{
    const bool single = (t->head->flags & TOK_SENTENCEPIECE) != 0;
    return single ? (double)((float)a + (float)b) : a + b;
}

static lq_status best_paths(tok_run *r, path *at, const uint8_t *s, size_t n)
{
    const tok_tokenizer *t = r->t;
    for (size_t i = 0, len; i < n; i += len) {
        (void)lq_utf8_get(s + i, &len);
        bool whole = false; /* a token of just this character */
        const tok_edge *edge;
        uint32_t node = TOK_TRIE_ROOT;
        for (size_t e = i; e < n && (edge = tok_trie_down(t->all, node, s[e])); e++) {
            const uint32_t id = edge->value;
            node = edge->to;
            if (id == TOK_NONE || is_barred(r, id)) continue;
            path *p = &at[e + 1];
            double score = add_score(t, at[i].score, t->scores[id]);
            if (!p->len || score > p->score)
                *p = (path){ score, (uint32_t)(e + 1 - i), id, false, 0 };
            whole = whole || e + 1 - i == len;
        }
        if (whole) continue;
        path *p = &at[i + len];
        double score = add_score(t, at[i].score, t->unk_score);
        if (t->head->unk == TOK_NONE) return no_unk(r);
        if (!p->len || score > p->score)
            *p = (path){ score, (uint32_t)len, t->head->unk, false, 0 };
    }
    return LQ_OK;
}

/* The id of one stretch of the path; unknown ones fall back to bytes where that is asked for. */
static lq_status add_stretch(tok_run *r, const uint8_t *s, size_t n, bool unknown)
{
    const tok_tokenizer *t = r->t;
    unknown = unknown && (t->head->flags & TOK_SENTENCEPIECE);
    uint32_t id = unknown ? TOK_NONE : tok_lookup(t, s, n);
    if (id != TOK_NONE && !is_barred(r, id)) return tok_add_id(r, id), LQ_OK;
    bool bytes = (t->head->flags & TOK_BYTE_FALLBACK) != 0;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = t->byte_ids[s[i]] != TOK_NONE;
    for (size_t i = 0; i < n && bytes; i++)
        tok_add_id(r, t->byte_ids[s[i]]);
    if (bytes) return LQ_OK;
    if (t->head->unk == TOK_NONE) return no_unk(r);
    return tok_add_id(r, t->head->unk), LQ_OK;
}

lq_status tok_unigram(tok_run *r, const uint8_t *s, size_t n)
{
    size_t bytes;
    lq_buf *b = &r->paths;
    b->n = 0;
    if (!lq_mul(n + 1, sizeof(path), &bytes) || !lq_buf_room(b, bytes)) return tok_oom(r->err);
    path *at = (path *)(void *)b->u;
    memset(at, 0, bytes);
    lq_status st = best_paths(r, at, s, n);
    if (st) return st;
    /* Walk back; unknowns in a row are one stretch. */
    for (size_t end = n, start; end > 0; end = start) {
        start = end - at[end].len;
        const bool unknown = at[end].id == r->t->head->unk;
        if (unknown)
            while (start > 0 && at[start].id == r->t->head->unk)
                start -= at[start].len;
        at[start].ahead = end - start;
        at[start].unknown = unknown;
    }
    for (size_t i = 0; i < n && !st; i += at[i].ahead)
        st = add_stretch(r, s + i, at[i].ahead, at[i].unknown);
    return st;
}

/* ---- WordLevel: the piece is a token or unknown ---- */
lq_status tok_wordlevel(tok_run *r, const uint8_t *s, size_t n)
{
    uint32_t id = tok_lookup(r->t, s, n);
    if (id == TOK_NONE || is_barred(r, id)) id = r->t->head->unk;
    if (id == TOK_NONE) return no_unk(r);
    tok_add_id(r, id);
    return LQ_OK;
}

/* ---- WordPiece: the longest token at each place, or the whole word is unknown ---- */

/* The longest token for the rest of a word, which is spelled with the prefix in front. */
static uint32_t longest_inside(const tok_tokenizer *t, const uint8_t *s, size_t n, size_t *len)
{
    uint32_t node = TOK_TRIE_ROOT, best = TOK_NONE;
    const uint8_t *prefix = tok_text(t, t->head->prefix);
    const tok_edge *e = NULL;
    for (uint32_t i = 0; i < t->head->prefix.len; i++, node = e->to)
        if (!(e = tok_trie_down(t->all, node, prefix[i]))) return TOK_NONE;
    for (size_t i = 0; i < n && (e = tok_trie_down(t->all, node, s[i])); i++, node = e->to)
        if (e->value != TOK_NONE) best = e->value, *len = i + 1;
    return best;
}

lq_status tok_wordpiece(tok_run *r, const uint8_t *s, size_t n)
{
    const tok_tokenizer *t = r->t;
    const size_t before = r->ids.n;
    size_t chars = 0, len = 0;
    for (size_t i = 0; i < n; i++)
        chars += (s[i] & 0xC0) != 0x80;
    bool known = chars <= t->head->max_chars;
    for (size_t i = 0; i < n && known; i += len) {
        uint32_t id =
            i ? longest_inside(t, s + i, n - i, &len) : tok_trie_longest(t->all, s, n, &len);
        known = id != TOK_NONE && !is_barred(r, id);
        if (known) tok_add_id(r, id);
    }
    if (known) return LQ_OK;
    r->ids.n = before;
    return tok_add_id(r, t->head->unk), LQ_OK;
}
