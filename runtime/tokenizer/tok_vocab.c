/* runtime/tokenizer/tok_vocab.c - what is asked about single tokens. */
#include "runtime/tokenizer/tok.h"

#include "runtime/tokenizer/tok_int.h"

int32_t tok_vocab(const tok_tokenizer *t) { return (int32_t)t->n_ids; }

bool tok_is_special(const tok_tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_ids && t->special[id];
}

const char *tok_token(const tok_tokenizer *t, int32_t id, size_t *n)
{
    tok_str s = { TOK_NONE, 0 };
    if (id >= 0 && (size_t)id < t->n_ids && t->added_of[id] != TOK_NONE)
        s = t->added[t->added_of[id]].text;
    else if (id >= 0 && (size_t)id < t->n_tokens)
        s = t->tokens[id];
    *n = s.len;
    return s.off == TOK_NONE ? (*n = 0, NULL) : (const char *)tok_text(t, s);
}

int32_t tok_find(const tok_tokenizer *t, const char *s, size_t n)
{
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].text.len == n && memcmp(tok_text(t, t->added[i].text), s, n) == 0)
            return (int32_t)t->added[i].id;
    uint32_t id = tok_lookup(t, (const uint8_t *)s, n);
    return id == TOK_NONE ? -1 : (int32_t)id;
}

size_t tok_max_token_bytes(const tok_tokenizer *t) { return t->longest; }

uint32_t tok_lookup(const tok_tokenizer *t, const uint8_t *s, size_t n)
{
    for (size_t i = tok_hash(s, n) & t->vocab_mask;; i = (i + 1) & t->vocab_mask) {
        uint32_t v = t->vocab[i];
        if (v == 0) return TOK_NONE;
        tok_str x = t->tokens[v - 1];
        if (x.len == n && memcmp(t->heap + x.off, s, n) == 0) return v - 1;
    }
}

const tok_merge *tok_find_merge(const tok_tokenizer *t, uint32_t left, uint32_t right)
{
    for (size_t i = tok_hash_pair(left, right) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        const tok_merge *m = &t->merges[i];
        if (m->rank == TOK_NONE) return NULL;
        if (m->left == left && m->right == right) return m;
    }
}

lq_status tok_open_pattern(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    (void)t;
    if (!s->s[0]) return lq_fail(err, LQ_EFORMAT, "tokenizer blob: a step without its pattern");
    return tok_pattern_new(&s->pattern, (const char *)s->s[0], s->n[0], s->op->arg[0] != 0, err);
}
