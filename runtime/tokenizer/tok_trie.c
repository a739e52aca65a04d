/* runtime/tokenizer/tok_trie.c - byte strings in a trie whose edges live in one hash table: its own while it
 * is built, a blob's afterwards. */
#include "runtime/tokenizer/tok_int.h"

#include <stdlib.h>

static bool grow(tok_trie *t)
{
    size_t cap = t->own ? (t->mask + 1) * 2 : 64;
    tok_edge *bigger = calloc(cap, sizeof *bigger);
    if (!bigger) return false;
    for (size_t i = 0; t->own && i <= t->mask; i++) {
        const tok_edge *e = &t->own[i];
        if (!e->byte) continue;
        size_t k = tok_hash_edge(e->from, (uint8_t)(e->byte - 1)) & (cap - 1);
        while (bigger[k].byte)
            k = (k + 1) & (cap - 1);
        bigger[k] = *e;
    }
    free(t->own);
    t->edges = t->own = bigger;
    t->mask = cap - 1;
    return true;
}

tok_trie *tok_trie_new(void)
{
    tok_trie *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->n_nodes = 1; /* the root */
    if (grow(t)) return t;
    free(t);
    return NULL;
}

tok_trie *tok_trie_view(const tok_edge *edges, size_t n)
{
    tok_trie *t = calloc(1, sizeof *t);
    if (t) *t = (tok_trie){ .edges = edges, .mask = n - 1 };
    return t;
}

void tok_trie_free(tok_trie *t)
{
    if (t) free(t->own);
    free(t);
}

/* The edge, made where there is none; NULL: out of memory. */
static tok_edge *make_edge(tok_trie *t, uint32_t from, uint8_t c)
{
    if ((t->n + 1) * 2 > t->mask + 1 && !grow(t)) return NULL;
    size_t i = tok_hash_edge(from, c) & t->mask;
    for (; t->own[i].byte; i = (i + 1) & t->mask)
        if (t->own[i].from == from && t->own[i].byte == c + 1u) return &t->own[i];
    if (t->n_nodes >= UINT32_MAX) return NULL;
    t->own[i] = (tok_edge){ from, (uint32_t)t->n_nodes++, TOK_NONE, c + 1u };
    t->n++;
    return &t->own[i];
}

bool tok_trie_add(tok_trie *t, const uint8_t *s, size_t n, uint32_t value)
{
    uint32_t node = TOK_TRIE_ROOT;
    if (n) t->starts[s[0]] = 1;
    for (size_t i = 0; i < n; i++) {
        tok_edge *e = make_edge(t, node, s[i]);
        if (!e) return false;
        if (i + 1 == n && e->value == TOK_NONE) e->value = value;
        node = e->to;
    }
    return true;
}

const tok_edge *tok_trie_edges(const tok_trie *t, size_t *n) { return *n = t->mask + 1, t->edges; }

bool tok_trie_empty(const tok_trie *t) { return t->n == 0; }

uint32_t tok_trie_longest(const tok_trie *t, const uint8_t *s, size_t n, size_t *len)
{
    uint32_t best = TOK_NONE, node = TOK_TRIE_ROOT;
    const tok_edge *e;
    for (size_t i = 0; i < n && (e = tok_trie_down(t, node, s[i])); i++) {
        if (e->value != TOK_NONE) best = e->value, *len = i + 1;
        node = e->to;
    }
    return best;
}
