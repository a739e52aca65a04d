/* runtime/grammar/grammar_emit.c - rules as trees to nodes of the automaton over bytes.
 *
 * A tree is emitted from its end to its start: each function is given the node that follows its
 * part and returns the node where the part begins. */
#include "runtime/grammar/grammar_int.h"

#include "base/utf8.h"

#include <stdlib.h>

typedef struct {
    gr_nfa *a;
    ga_builder *b;
    uint32_t cap_nodes, cap_sets;
    uint32_t *set_slots; /* hash of sets */
    uint32_t n_slots;
    int nest;
} build;

/* ---- nodes and sets ---- */

static uint32_t add(build *c, gn_kind kind, uint32_t x, uint32_t y)
{
    gr_nfa *a = c->a;
    if (c->b->status) return 0;
    if (a->n_nodes >= GR_MAX_NODES) {
        ga_fail(c->b, LQ_EVALUE, "the grammar is too large: its automaton has more than %d nodes",
                GR_MAX_NODES);
        return 0;
    }
    if (a->n_nodes == c->cap_nodes) {
        uint32_t cap = c->cap_nodes ? 2 * c->cap_nodes : 256;
        gn_node *n = realloc(a->nodes, cap * sizeof *n);
        if (!n) {
            ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
            return 0;
        }
        a->nodes = n;
        c->cap_nodes = cap;
    }
    a->nodes[a->n_nodes] = (gn_node){ .kind = (uint8_t)kind, .a = x, .b = y };
    return a->n_nodes++;
}

static uint32_t hash_set(const gn_set *s)
{
    uint64_t h = 0;
    for (int i = 0; i < 4; i++)
        h = (h ^ s->bits[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static uint32_t intern_set(build *c, const gn_set *s)
{
    gr_nfa *a = c->a;
    if (a->n_sets == c->cap_sets) { /* the slots grow with the sets: never more than half full */
        uint32_t cap = c->cap_sets ? 2 * c->cap_sets : 64, n = 2 * cap;
        gn_set *sets = realloc(a->sets, cap * sizeof *sets);
        uint32_t *slots = malloc(n * sizeof *slots);
        if (sets) a->sets = sets;
        if (!sets || !slots) {
            free(slots);
            ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
            return 0;
        }
        memset(slots, 0xff, n * sizeof *slots);
        free(c->set_slots);
        c->set_slots = slots;
        c->n_slots = n;
        c->cap_sets = cap;
        for (uint32_t i = 0; i < a->n_sets; i++) {
            uint32_t h = hash_set(a->sets + i) & (n - 1);
            while (slots[h] != GR_NONE)
                h = (h + 1) & (n - 1);
            slots[h] = i;
        }
    }
    uint32_t h = hash_set(s) & (c->n_slots - 1);
    for (; c->set_slots[h] != GR_NONE; h = (h + 1) & (c->n_slots - 1))
        if (memcmp(a->sets + c->set_slots[h], s, sizeof *s) == 0) return c->set_slots[h];
    a->sets[a->n_sets] = *s;
    c->set_slots[h] = a->n_sets;
    return a->n_sets++;
}

static void set_range(gn_set *s, unsigned lo, unsigned hi)
{
    for (unsigned i = lo; i <= hi; i++)
        s->bits[i >> 6] |= (uint64_t)1 << (i & 63);
}

static uint32_t emit_byte(build *c, uint8_t byte, uint32_t next)
{
    gn_set s = { { 0 } };
    set_range(&s, byte, byte);
    return add(c, GN_BYTE, intern_set(c, &s), next);
}

/* ---- characters: ranges of code points to sequences of byte ranges ---- */

typedef struct {
    uint8_t n, lo[4], hi[4];
} byte_seq;

typedef struct {
    byte_seq *v;
    int n, cap;
} byte_seqs;

/* Splits lo..hi where lengths change and where a tail is not whole, until each part is a product of
 * byte ranges. Parts come in order, and two first bytes overlap only where they are the same. */
static void split_range(byte_seqs *out, uint32_t lo, uint32_t hi)
{
    static const uint32_t ends[] = { 0x7f, 0x7ff, 0xffff };
    for (int i = 0; i < 3; i++)
        if (lo <= ends[i] && hi > ends[i]) {
            split_range(out, lo, ends[i]);
            split_range(out, ends[i] + 1, hi);
            return;
        }
    for (int k = 3; k >= 1 && hi > 0x7f; k--) { /* tails of k bytes: all or nothing */
        uint32_t m = (1u << (6 * k)) - 1;
        if ((lo & ~m) == (hi & ~m)) continue;
        if (lo & m) {
            split_range(out, lo, lo | m);
            split_range(out, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            split_range(out, lo, (hi & ~m) - 1);
            split_range(out, hi & ~m, hi);
            return;
        }
    }
    if (out->n == out->cap) {
        out->n++; /* seen by the caller */
        return;
    }
    if (out->n > out->cap) return;
    byte_seq *s = &out->v[out->n++];
    s->n = (uint8_t)lq_utf8_put(s->lo, lo);
    lq_utf8_put(s->hi, hi);
}

static bool same_tails(const byte_seq *x, int n, const byte_seq *y, int m, int at)
{
    if (n != m) return false;
    for (int i = 0; i < n; i++) {
        if (x[i].n != y[i].n) return false;
        for (int k = at; k < x[i].n; k++)
            if (x[i].lo[k] != y[i].lo[k] || x[i].hi[k] != y[i].hi[k]) return false;
    }
    return true;
}

/* A node for n sequences in order from their byte `at` on. Runs with the same first byte are one
 * way; runs with the same tails share it. */
static uint32_t emit_seqs(build *c, const byte_seq *s, int n, int at, uint32_t next)
{
    enum { WAYS = 128 };
    struct {
        const byte_seq *s;
        int n;
        gn_set set;
    } ways[WAYS];
    int n_ways = 0;
    for (int i = 0, j; i < n; i = j) {
        j = i + 1;
        while (j < n && s[j].lo[at] == s[i].lo[at] && s[j].hi[at] == s[i].hi[at])
            j++;
        int w = 0;
        while (w < n_ways && !same_tails(ways[w].s, ways[w].n, s + i, j - i, at + 1))
            w++;
        if (w == WAYS) { /* cannot be: first bytes are 0..7f together and c2..f4 */
            ga_fail(c->b, LQ_EVALUE, "a set of characters is too large");
            return 0;
        }
        if (w == n_ways) {
            memset(&ways[n_ways], 0, sizeof ways[0]);
            ways[n_ways].s = s + i;
            ways[n_ways++].n = j - i;
        }
        set_range(&ways[w].set, s[i].lo[at], s[i].hi[at]);
    }
    uint32_t at_node = GR_NONE;
    for (int w = n_ways - 1; w >= 0 && !c->b->status; w--) {
        bool last = ways[w].s->n == at + 1;
        uint32_t to = last ? next : emit_seqs(c, ways[w].s, ways[w].n, at + 1, next);
        uint32_t node = add(c, GN_BYTE, intern_set(c, &ways[w].set), to);
        at_node = at_node == GR_NONE ? node : add(c, GN_EPS, node, at_node);
    }
    return at_node;
}

static uint32_t emit_chars(build *c, const ga_node *t, uint32_t next)
{
    byte_seqs out = { .cap = GR_MAX_CHAR_PARTS };
    if (t->n_ranges == 0) return add(c, GN_EPS, GR_NONE, GR_NONE);
    out.v = malloc(GR_MAX_CHAR_PARTS * sizeof *out.v);
    if (!out.v) ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    for (int i = 0; out.v && i < t->n_ranges; i++)
        split_range(&out, t->ranges[i].lo, t->ranges[i].hi);
    if (out.n > out.cap) ga_fail(c->b, LQ_EVALUE, "a set of characters is too large");
    uint32_t at = c->b->status ? 0 : emit_seqs(c, out.v, out.n, 0, next);
    free(out.v);
    return at;
}

/* ---- trees ---- */

static uint32_t emit(build *c, const ga_node *t, uint32_t next);

static uint32_t emit_list(build *c, const ga_node *child, uint32_t next)
{
    if (!child) return next;
    int n = 0;
    for (const ga_node *k = child; k; k = k->next)
        n++;
    const ga_node **v = malloc((size_t)n * sizeof *v);
    if (!v) {
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
        return 0;
    }
    n = 0;
    for (const ga_node *k = child; k; k = k->next)
        v[n++] = k;
    while (n-- > 0 && !c->b->status)
        next = emit(c, v[n], next);
    free(v);
    return next;
}

static uint32_t emit_repeat(build *c, const ga_node *t, uint32_t next)
{
    const ga_node *x = t->child;
    uint32_t at = next;
    if (t->max < 0) {
        uint32_t loop = add(c, GN_EPS, GR_NONE, next), body = emit(c, x, loop);
        if (c->b->status) return 0;
        c->a->nodes[loop].a = body;
        at = loop;
    }
    for (int64_t i = t->min; i < t->max && !c->b->status; i++)
        at = add(c, GN_EPS, emit(c, x, at), next);
    for (int64_t i = 0; i < t->min && !c->b->status; i++)
        at = emit(c, x, at);
    return at;
}

/* From the last child to the first, two places before each: with something in front (a separator
 * comes first) and with nothing. */
static uint32_t emit_chain(build *c, const ga_node *t, uint32_t next)
{
    int64_t n = 0, i;
    for (const ga_node *k = t->child; k; k = k->next)
        n++;
    const ga_node **v = malloc((size_t)(n ? n : 1) * sizeof *v);
    if (!v) {
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
        return 0;
    }
    n = 0;
    for (const ga_node *k = t->child; k; k = k->next)
        v[n++] = k;
    uint32_t some = next, none = next;
    for (i = n - 1; i >= 0 && !c->b->status; i--) {
        uint32_t first = emit(c, v[i], some);
        uint32_t again = i > 0 ? add(c, GN_CALL, t->rule, emit(c, v[i], some)) : first;
        bool out = t->stops ? i >= t->min : v[i]->optional;
        some = out ? add(c, GN_EPS, again, t->stops ? next : some) : again;
        none = out ? add(c, GN_EPS, first, t->stops ? next : none) : first;
    }
    free(v);
    return none;
}

static uint32_t emit(build *c, const ga_node *t, uint32_t next)
{
    uint32_t at = next;
    if (c->b->status) return 0;
    if (++c->nest > GR_MAX_TREE_NEST) ga_fail(c->b, LQ_EVALUE, "the grammar nests too deeply");
    switch (t->kind) {
    case GA_CHARS:
        at = emit_chars(c, t, next);
        break;
    case GA_BYTES:
        for (size_t i = t->n_bytes; i-- > 0;)
            at = emit_byte(c, (uint8_t)t->bytes[i], at);
        break;
    case GA_SEQ:
        at = emit_list(c, t->child, next);
        break;
    case GA_ALT:
        at = GR_NONE;
        for (const ga_node *k = t->child; k && !c->b->status; k = k->next)
            at = add(c, GN_EPS, emit(c, k, next), at);
        if (at == GR_NONE) at = add(c, GN_EPS, GR_NONE, GR_NONE);
        break;
    case GA_REPEAT:
        at = emit_repeat(c, t, next);
        break;
    case GA_REF:
        at = add(c, GN_CALL, t->rule, next);
        break;
    case GA_CHAIN:
        at = emit_chain(c, t, next);
        break;
    }
    c->nest--;
    return at;
}

/* ---- rules ---- */

lq_status gr_nfa_emit(gr_nfa *a, ga_builder *b)
{
    build c = { .a = a, .b = b };
    for (uint32_t r = 0; r < b->n_rules && !b->status; r++) {
        if (!b->rules[r].body) {
            ga_fail(b, LQ_EVALUE, "rule %s is used and not defined", b->rules[r].name);
            break;
        }
        c.nest = 0;
        a->start[r] = emit(&c, b->rules[r].body, add(&c, GN_END, r, GR_NONE));
    }
    free(c.set_slots);
    return b->status;
}
