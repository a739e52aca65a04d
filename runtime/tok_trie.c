/* runtime/tok_trie.c - byte strings in a trie whose edges live in one hash table. */
#include "runtime/tok_int.h"

#include <stdlib.h>

typedef struct {
    uint64_t key; /* node << 8 | byte, plus 1; 0: empty */
    uint32_t to;
} edge;

struct tok_trie {
    edge *edges;
    size_t cap, n; /* cap: a power of two */
    uint32_t *values;
    size_t n_nodes, cap_nodes;
};

static edge *find(const tok_trie *t, uint64_t key)
{
    size_t mask = t->cap - 1, i = (size_t)(key * 0x9E3779B97F4A7C15u >> 24) & mask;
    while (t->edges[i].key && t->edges[i].key != key)
        i = (i + 1) & mask;
    return &t->edges[i];
}

static bool grow(tok_trie *t)
{
    tok_trie bigger = *t;
    bigger.cap = t->cap ? t->cap * 2 : 64;
    bigger.edges = calloc(bigger.cap, sizeof(edge));
    if (!bigger.edges) return false;
    for (size_t i = 0; i < t->cap; i++)
        if (t->edges[i].key) *find(&bigger, t->edges[i].key) = t->edges[i];
    free(t->edges);
    *t = bigger;
    return true;
}

static bool new_node(tok_trie *t, uint32_t *node)
{
    if (t->n_nodes == t->cap_nodes) {
        size_t cap = t->cap_nodes ? t->cap_nodes * 2 : 64;
        uint32_t *v = realloc(t->values, cap * sizeof *v);
        if (!v) return false;
        t->values = v;
        t->cap_nodes = cap;
    }
    *node = (uint32_t)t->n_nodes;
    t->values[t->n_nodes++] = TOK_NONE;
    return true;
}

tok_trie *tok_trie_new(void)
{
    tok_trie *t = calloc(1, sizeof *t);
    uint32_t root;
    if (t && grow(t) && new_node(t, &root)) return t;
    tok_trie_free(t);
    return NULL;
}

void tok_trie_free(tok_trie *t)
{
    if (!t) return;
    free(t->edges);
    free(t->values);
    free(t);
}

bool tok_trie_add(tok_trie *t, const uint8_t *s, size_t n, uint32_t value)
{
    uint32_t node = TOK_TRIE_ROOT;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = ((uint64_t)node << 8 | s[i]) + 1;
        edge *e = find(t, key);
        if (!e->key) {
            if (t->n_nodes >= UINT32_MAX - 1) return false;
            if ((t->n + 1) * 2 > t->cap) {
                if (!grow(t)) return false;
                e = find(t, key);
            }
            uint32_t to;
            if (!new_node(t, &to)) return false;
            *e = (edge){ key, to };
            t->n++;
        }
        node = e->to;
    }
    if (t->values[node] == TOK_NONE) t->values[node] = value;
    return true;
}

int64_t tok_trie_down(const tok_trie *t, int64_t node, uint8_t c)
{
    const edge *e = find(t, ((uint64_t)node << 8 | c) + 1);
    return e->key ? (int64_t)e->to : -1;
}

uint32_t tok_trie_value(const tok_trie *t, int64_t node) { return t->values[node]; }

bool tok_trie_empty(const tok_trie *t) { return t->n == 0; }
