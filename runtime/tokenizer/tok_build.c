/* runtime/tokenizer/tok_build.c - the blob that tok_int.h draws, section by section: what the readers of
 * tokenizer.json, tokenizer.model and rank lists share. */
#include "runtime/tokenizer/tok_int.h"

#include "base/json_text.h"

#include <stdlib.h>

void tok_build_init(tok_builder *b, const char *file)
{
    memset(b, 0, sizeof *b);
    memcpy(b->head.magic, TOK_MAGIC, sizeof b->head.magic);
    b->head.unk = TOK_NONE;
    b->head.prefix.off = b->head.suffix.off = TOK_NONE;
    b->file = file;
}

void tok_build_free(tok_builder *b)
{
    lq_buf *const all[] = { &b->heap,   &b->tokens, &b->vocab,  &b->merges, &b->scores,
                            &b->added,  &b->post,   &b->trie,   &b->data,   &b->ops[0],
                            &b->ops[1], &b->ops[2], &b->ops[3], &b->apart };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_free(all[i]);
}

/* ---- text ---- */
static char *room_for_text(tok_builder *b, size_t n)
{
    if (b->heap.n + n > UINT32_MAX / 2) b->heap.oom = true;
    return lq_buf_room(&b->heap, n + 1) ? b->heap.p + b->heap.n : NULL;
}

tok_str tok_put_text(tok_builder *b, const char *s)
{
    char *to = room_for_text(b, strlen(s));
    if (!to) return (tok_str){ TOK_NONE, 0 };
    tok_str r = { (uint32_t)b->heap.n, (uint32_t)jt_copy(to, s) };
    b->heap.n += r.len;
    return r;
}

tok_str tok_put_bytes(tok_builder *b, const void *s, size_t n)
{
    char *to = room_for_text(b, n);
    if (!to) return (tok_str){ TOK_NONE, 0 };
    memcpy(to, s, n);
    tok_str r = { (uint32_t)b->heap.n, (uint32_t)n };
    b->heap.n += n;
    return r;
}

/* ---- vocabulary ---- */
static const uint8_t *text_of(const tok_builder *b, tok_str s) { return b->heap.u + s.off; }
static tok_str *tokens_of(const tok_builder *b) { return (tok_str *)(void *)b->tokens.u; }
static uint32_t *vocab_of(const tok_builder *b) { return (uint32_t *)(void *)b->vocab.u; }

/* The slot of vocab where s[n] is or would go; a slot holds id + 1. */
static size_t vocab_slot(const tok_builder *b, const uint8_t *s, size_t n)
{
    size_t mask = b->vocab.n / sizeof(uint32_t) - 1, i = tok_hash(s, n) & mask;
    for (;; i = (i + 1) & mask) {
        uint32_t v = vocab_of(b)[i];
        if (v == 0) return i;
        tok_str t = tokens_of(b)[v - 1];
        if (t.len == n && memcmp(text_of(b, t), s, n) == 0) return i;
    }
}

uint32_t tok_find_text(const tok_builder *b, const void *s, size_t n)
{
    return b->vocab.n ? vocab_of(b)[vocab_slot(b, s, n)] - 1 : TOK_NONE;
}

/* An array of `bytes`, each `with`. */
static bool tok_build_fill(lq_buf *b, size_t bytes, int with)
{
    if (!lq_buf_room(b, bytes)) return false;
    memset(b->u, with, bytes);
    b->n = bytes;
    return true;
}

static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

lq_status tok_begin_vocab(tok_builder *b, size_t n_ids, size_t n_tokens, lq_err *err)
{
    return tok_build_fill(&b->tokens, n_ids * sizeof(tok_str), 0xFF) &&
                   tok_build_fill(&b->vocab, table_size(n_tokens) * sizeof(uint32_t), 0)
               ? LQ_OK
               : tok_oom(err);
}

lq_status tok_put_token(tok_builder *b, tok_str s, uint32_t id, lq_err *err)
{
    if (b->heap.oom) return tok_oom(err);
    size_t slot = vocab_slot(b, text_of(b, s), s.len);
    uint32_t old = vocab_of(b)[slot];
    if (old && old - 1 != id && !b->scores.n)
        tokens_of(b)[old - 1].off = TOK_NONE; /* the last of equal keys; a list keeps both */
    if (tokens_of(b)[id].off == TOK_NONE || old - 1 == id) {
        tokens_of(b)[id] = s;
        vocab_of(b)[slot] = id + 1;
        return LQ_OK;
    }
    return lq_fail(err, LQ_EFORMAT, "%s: id %u belongs to '%.*s' and another", b->file, id,
                   s.len > 60 ? 60 : (int)s.len, (const char *)text_of(b, s));
}

/* ---- merges ---- */
lq_status tok_begin_merges(tok_builder *b, size_t n, lq_err *err)
{
    return tok_build_fill(&b->merges, table_size(n) * sizeof(tok_merge), 0xFF) ? LQ_OK
                                                                               : tok_oom(err);
}

void tok_put_merge(tok_builder *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    tok_merge *m = (tok_merge *)(void *)b->merges.u;
    size_t mask = b->merges.n / sizeof *m - 1, i = tok_hash_pair(left, right) & mask;
    while (m[i].rank != TOK_NONE && (m[i].left != left || m[i].right != right))
        i = (i + 1) & mask;
    m[i] = (tok_merge){ left, right, rank, id }; /* the last of equal pairs */
}

/* Every way to cut a token into two others is a merge of the token's rank. Pass 0 counts them. */
static size_t splits(tok_builder *b, const uint32_t *rank, bool put)
{
    const size_t n_ids = b->tokens.n / sizeof(tok_str);
    size_t n = 0;
    for (uint32_t id = 0; id < n_ids; id++) {
        const tok_str s = tokens_of(b)[id];
        if (s.off == TOK_NONE || rank[id] == TOK_NONE) continue;
        const uint8_t *p = text_of(b, s);
        for (size_t cut = 1; cut < s.len; cut++) {
            if ((p[cut] & 0xC0) == 0x80) continue;
            uint32_t left = tok_find_text(b, p, cut);
            if (left == TOK_NONE || rank[left] == TOK_NONE) continue;
            uint32_t right = tok_find_text(b, p + cut, s.len - cut);
            if (right == TOK_NONE || rank[right] == TOK_NONE) continue;
            if (put) tok_put_merge(b, left, right, rank[id], id);
            n++;
        }
    }
    return n;
}

lq_status tok_put_splits(tok_builder *b, const uint32_t *rank, lq_err *err)
{
    lq_status s = tok_begin_merges(b, splits(b, rank, false), err);
    if (!s) (void)splits(b, rank, true);
    return s;
}

/* ---- what is worked out once, here, so that opening has nothing to do ---- */

/* Whether no merge makes a text with a metaspace behind another character: then a text may be cut
 * before each such metaspace, and its words are independent. */
static bool words_stand_alone(const tok_builder *b)
{
    static const uint8_t space[] = { 0xE2, 0x96, 0x81 };
    const tok_merge *m = (const tok_merge *)(const void *)b->merges.u;
    if (b->head.prefix.off != TOK_NONE || b->head.suffix.off != TOK_NONE ||
        (b->head.flags & TOK_IGNORE_MERGES) || tok_find_text(b, space, 3) == TOK_NONE)
        return false;
    for (size_t i = 0; i < b->merges.n / sizeof *m; i++) {
        if (m[i].rank == TOK_NONE) continue;
        tok_str s = tokens_of(b)[m[i].id];
        const uint8_t *p = text_of(b, s);
        bool other = false; /* a character that is no metaspace has come */
        for (uint32_t k = 0; k < s.len; k++) {
            bool is = s.len - k >= 3 && memcmp(p + k, space, 3) == 0;
            if (is && other) return false;
            other = other || !is;
            if (is) k += 2;
        }
    }
    return true;
}

static lq_status put_trie(tok_builder *b, lq_err *err)
{
    tok_trie *t = tok_trie_new();
    bool ok = t != NULL;
    const uint32_t *apart = (const uint32_t *)(const void *)b->apart.u;
    size_t n_apart = b->apart.n / sizeof *apart, k = 0; /* in order */
    for (uint32_t id = 0; id < b->tokens.n / sizeof(tok_str) && ok; id++) {
        tok_str s = tokens_of(b)[id];
        const bool skip = k < n_apart && apart[k] == id;
        k += skip;
        if (s.off != TOK_NONE && s.len && !skip)
            ok = tok_trie_add(t, text_of(b, s), s.len, tok_find_text(b, text_of(b, s), s.len));
    }
    if (ok) {
        size_t n;
        const tok_edge *edges = tok_trie_edges(t, &n);
        lq_buf_add(&b->trie, edges, n * sizeof *edges);
        ok = !b->trie.oom;
    }
    tok_trie_free(t);
    return ok ? LQ_OK : tok_oom(err);
}

/* ---- putting the sections behind each other ---- */
static void append(lq_buf *out, tok_section *section, const lq_buf *part, size_t element)
{
    static const uint8_t zeros[8];
    lq_buf_add(out, zeros, (8 - out->n % 8) % 8);
    *section = (tok_section){ out->n, part->n / element };
    lq_buf_add(out, part->u, part->n);
}

lq_status tok_build_finish(tok_builder *b, uint8_t **blob, size_t *blob_bytes, lq_err *err)
{
    tok_head *h = &b->head;
    lq_buf out = { 0 };
    bool oom = b->heap.oom || b->scores.oom || b->added.oom || b->post.oom || b->data.oom;
    if (h->model == TOK_BPE && words_stand_alone(b)) h->flags |= TOK_WORDS_ALONE;
    if (h->model == TOK_UNIGRAM || h->model == TOK_WORDPIECE) {
        lq_status s = put_trie(b, err);
        if (s) return s;
    }
    lq_buf_add(&out, h, sizeof *h);
    append(&out, &h->heap, &b->heap, 1);
    append(&out, &h->tokens, &b->tokens, sizeof(tok_str));
    append(&out, &h->vocab, &b->vocab, sizeof(uint32_t));
    append(&out, &h->merges, &b->merges, sizeof(tok_merge));
    append(&out, &h->scores, &b->scores, sizeof(double));
    append(&out, &h->added, &b->added, sizeof(tok_added));
    append(&out, &h->post, &b->post, sizeof(int32_t));
    append(&out, &h->trie, &b->trie, sizeof(tok_edge));
    append(&out, &h->data, &b->data, 1);
    for (int i = 0; i < TOK_N_STAGES; i++) {
        append(&out, &h->ops[i], &b->ops[i], sizeof(tok_op));
        oom = oom || b->ops[i].oom;
    }
    if (oom || out.oom) {
        lq_buf_free(&out);
        return tok_oom(err);
    }
    h->bytes = out.n;
    memcpy(out.u, h, sizeof *h);
    *blob = out.u;
    *blob_bytes = out.n;
    return LQ_OK;
}
