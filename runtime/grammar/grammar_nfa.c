/* runtime/grammar/grammar_nfa.c - rules to one flat automaton over bytes, and what must be known of it.
 *
 * Each rule becomes a part of the automaton that ends in an END node of its own; a reference is a
 * CALL. A node's closure is what it leads to without a byte: BYTE, CALL and END nodes, past CALLs
 * of rules that match nothing too. Then stepping never enters a rule to leave it at once, and a
 * left recursion is a cycle of rules through the closures of their starts. */
#include "runtime/grammar/grammar_int.h"

#include <stdlib.h>

/* ---- backwards over the automaton ---- */

typedef struct {
    uint32_t *off, *v; /* nodes that lead to node i directly; for CALLs: to next and to the start */
} preds;

static void each_target(const gr_nfa *a, uint32_t i, uint32_t out[2])
{
    const gn_node *n = &a->nodes[i];
    out[0] = out[1] = GR_NONE;
    if (n->kind == GN_BYTE) out[0] = n->b;
    if (n->kind == GN_EPS) out[0] = n->a, out[1] = n->b;
    if (n->kind == GN_CALL) out[0] = a->start[n->a], out[1] = n->b;
}

static bool preds_make(preds *p, const gr_nfa *a)
{
    uint32_t to[2];
    p->off = calloc(a->n_nodes + 2, sizeof *p->off);
    p->v = malloc((2 * (size_t)a->n_nodes + 1) * sizeof *p->v);
    if (!p->off || !p->v) return false;
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        each_target(a, i, to);
        for (int k = 0; k < 2; k++)
            if (to[k] != GR_NONE) p->off[to[k] + 2]++;
    }
    for (uint32_t i = 0; i < a->n_nodes; i++)
        p->off[i + 1] += p->off[i];
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        each_target(a, i, to);
        for (int k = 0; k < 2; k++)
            if (to[k] != GR_NONE) p->v[p->off[to[k] + 1]++] = i;
    }
    return true; /* off[i] .. off[i+1] now: each went up by one place */
}

static bool only_end(const gr_nfa *a, uint32_t at)
{
    for (int steps = 0; steps < 64; steps++) {
        const gn_node *n = &a->nodes[at];
        if (n->kind == GN_END) return true;
        if (n->kind != GN_EPS) return false;
        if (n->a != GR_NONE && n->b != GR_NONE) return false;
        at = n->a != GR_NONE ? n->a : n->b;
        if (at == GR_NONE) return false;
    }
    return false;
}

/* Least stack to each rule's end, in rising order (Knuth, "A generalization of Dijkstra's
 * algorithm"): END 0, EPS the lesser way, CALL the greater of what follows and, with its own frame
 * unless it is a tail, the rule. queue has 2 * n_nodes places. */
static void heights(gr_nfa *a, const preds *p, uint32_t *queue)
{
    uint32_t n_now = 0;
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        gn_node *n = &a->nodes[i];
        n->height = UINT16_MAX;
        if (n->kind == GN_CALL) n->tail = only_end(a, n->b);
        if (n->kind != GN_END) continue;
        n->height = 0;
        queue[n_now++] = i;
    }
    for (uint32_t h = 0; h <= GR_MAX_DEPTH; h++) {
        for (uint32_t k = 0; k < n_now; k++)
            for (uint32_t e = p->off[queue[k]]; e < p->off[queue[k] + 1]; e++) {
                gn_node *n = &a->nodes[p->v[e]];
                if (n->height != UINT16_MAX) continue;
                if (n->kind == GN_CALL) {
                    uint16_t r = a->nodes[a->start[n->a]].height, x = a->nodes[n->b].height;
                    if (r == UINT16_MAX || x == UINT16_MAX) continue;
                    if (!n->tail) r++;
                    if ((r > x ? r : x) > h) continue; /* in the next round */
                }
                n->height = (uint16_t)h;
                queue[n_now++] = p->v[e];
            }
        n_now = 0;
        for (uint32_t i = 0; i < a->n_nodes; i++) { /* rounds are few: as deep as rules must nest */
            gn_node *n = &a->nodes[i];
            if (n->kind != GN_CALL || n->height != UINT16_MAX) continue;
            if (a->nodes[a->start[n->a]].height == h && a->nodes[n->b].height <= h + 1)
                n->height = (uint16_t)(h + 1), queue[n_now++] = i;
        }
        if (n_now == 0) break;
    }
}

/* Nodes from which their rule's end is reached without a byte. */
static void nullables(const gr_nfa *a, const preds *p, uint8_t *null, uint32_t *queue)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_nodes; i++)
        if (a->nodes[i].kind == GN_END) null[i] = 1, queue[n++] = i;
    while (n > 0) {
        uint32_t at = queue[--n];
        for (uint32_t e = p->off[at]; e < p->off[at + 1]; e++) {
            uint32_t i = p->v[e];
            const gn_node *x = &a->nodes[i];
            if (null[i] || x->kind == GN_BYTE) continue;
            if (x->kind == GN_CALL && !(null[a->start[x->a]] && null[x->b])) continue;
            null[i] = 1;
            queue[n++] = i;
        }
    }
}

/* ---- closures ---- */

/* Of the nodes that something leads to: rule starts and what follows BYTEs and CALLs. */
static lq_status closures(gr_nfa *a, const uint8_t *null, uint32_t *stack, uint32_t *mark,
                          lq_err *err)
{
    uint8_t *entry = calloc(a->n_nodes + 1, 1);
    size_t n = 0, cap = 4 * (size_t)a->n_nodes + 64;
    a->clo = malloc(cap * sizeof *a->clo);
    if (!entry || !a->clo) {
        free(entry);
        return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    }
    for (uint32_t r = 0; r < a->n_rules; r++)
        entry[a->start[r]] = 1;
    for (uint32_t i = 0; i < a->n_nodes; i++)
        if (a->nodes[i].kind == GN_BYTE || a->nodes[i].kind == GN_CALL) entry[a->nodes[i].b] = 1;
    lq_status s = LQ_OK;
    for (uint32_t i = 0; i < a->n_nodes && !s; i++) {
        a->clo_off[i] = (uint32_t)n;
        if (!entry[i]) continue;
        uint32_t k = 0;
        stack[k++] = i;
        mark[i] = i + 1;
        while (k > 0 && !s) {
            uint32_t at = stack[--k];
            const gn_node *x = &a->nodes[at];
            uint32_t to[2] = { GR_NONE, GR_NONE };
            if (x->kind == GN_EPS) to[0] = x->b, to[1] = x->a;
            if (x->kind == GN_CALL && null[a->start[x->a]]) to[0] = x->b;
            if (x->kind != GN_EPS && x->height <= GR_MAX_DEPTH) {
                if (n == cap) {
                    uint32_t *more =
                        n < GR_MAX_CLOSURES ? realloc(a->clo, 2 * cap * sizeof *more) : NULL;
                    if (!more) {
                        s = lq_fail(err, LQ_EVALUE,
                                    "the grammar is too large: too many ways lead on from a place");
                        break;
                    }
                    a->clo = more;
                    cap *= 2;
                }
                a->clo[n++] = at;
            }
            for (int e = 0; e < 2; e++)
                if (to[e] != GR_NONE && mark[to[e]] != i + 1) {
                    mark[to[e]] = i + 1;
                    stack[k++] = to[e];
                }
        }
    }
    a->clo_off[a->n_nodes] = (uint32_t)n;
    free(entry);
    return s;
}

/* Ranks of the rules by a depth-first walk over the calls in the closures of their starts; a rule
 * met again on its own path recurses on the left. */
static lq_status rank_rules(gr_nfa *a, const ga_builder *b, lq_err *err)
{
    size_t n = a->n_rules;
    uint32_t *path = malloc((n + 1) * sizeof *path), *at = malloc((n + 1) * sizeof *at);
    uint8_t *seen = calloc(n + 1, 1); /* 1: on the path, 2: done */
    uint32_t next = a->n_rules;
    lq_status s = path && at && seen ? LQ_OK : lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    for (uint32_t r = 0; r < a->n_rules && !s; r++) {
        if (seen[r]) continue;
        uint32_t k = 0;
        path[0] = r;
        at[0] = a->clo_off[a->start[r]];
        seen[r] = 1;
        for (;;) {
            uint32_t cur = path[k], to = GR_NONE;
            while (at[k] < a->clo_off[a->start[cur] + 1] && to == GR_NONE) {
                const gn_node *x = &a->nodes[a->clo[at[k]++]];
                if (x->kind == GN_CALL && seen[x->a] != 2) to = x->a;
            }
            if (to == GR_NONE) {
                seen[cur] = 2;
                a->rank[cur] = --next;
                a->by_rank[next] = cur;
                if (k-- == 0) break;
                continue;
            }
            if (seen[to] == 1) {
                const char *name = b->rules[to].name;
                for (uint32_t i = k; !name[0] && path[i] != to; i--)
                    name = b->rules[path[i]].name;
                s = lq_fail(err, LQ_EVALUE,
                            "%s%s recurses on the left: it begins with itself, or with what may be "
                            "empty and then itself",
                            name[0] ? "rule " : "a repetition of what may be empty", name);
                break;
            }
            seen[to] = 1;
            path[++k] = to;
            at[k] = a->clo_off[a->start[to]];
        }
    }
    free(path);
    free(at);
    free(seen);
    return s;
}

static void byte_classes(gr_nfa *a)
{
    memset(a->class_of, 0, sizeof a->class_of);
    a->n_classes = 1;
    for (uint32_t i = 0; i < a->n_sets && a->n_classes < 256; i++) {
        int fresh[256], n = a->n_classes;
        bool in[256] = { false }, out[256] = { false };
        for (unsigned c = 0; c < 256; c++)
            *(gn_has(a->sets + i, c) ? &in[a->class_of[c]] : &out[a->class_of[c]]) = true;
        for (int k = 0; k < n; k++)
            fresh[k] = in[k] && out[k] ? a->n_classes++ : k;
        for (unsigned c = 0; c < 256; c++)
            if (gn_has(a->sets + i, c)) a->class_of[c] = (uint8_t)fresh[a->class_of[c]];
    }
    for (unsigned c = 256; c-- > 0;)
        a->first[a->class_of[c]] = (uint8_t)c;
}

/* ---- looking ahead ---- */

/* What a node of a closure leads to: `now` of the rule that it calls, `before` (a byte less) of
 * what follows it. A call takes a byte at least: where its rule may be empty, the closure has what
 * follows too. */
static uint64_t way(const gr_nfa *a, uint32_t i, const uint64_t *now, const uint64_t *before)
{
    const gn_node *n = &a->nodes[i];
    uint64_t h = lq_mix((uint64_t)n->height << 8 | (uint64_t)n->tail << 4 | n->kind);
    if (n->kind == GN_BYTE) h = lq_mix(h + n->a);
    if (n->kind == GN_CALL) h = lq_mix(h ^ now[a->start[n->a]]);
    return n->kind == GN_END ? h : lq_mix(h + 3 * before[n->b]);
}

static uint64_t ways(const gr_nfa *a, uint32_t entry, const uint64_t *now, const uint64_t *before)
{
    uint64_t sum = 1; /* of a set: the order does not count */
    for (uint32_t e = a->clo_off[entry]; e < a->clo_off[entry + 1]; e++)
        sum += way(a, a->clo[e], now, before);
    return lq_mix(sum);
}

size_t gr_nfa_bytes(const gr_nfa *a)
{
    const size_t closures = a->clo_off ? a->clo_off[a->n_nodes] : 0;
    return a->n_nodes * (sizeof *a->nodes + sizeof *a->clo_off + sizeof *a->ahead) +
           a->n_sets * sizeof *a->sets + closures * sizeof *a->clo +
           a->n_rules * (sizeof *a->start + sizeof *a->rank + sizeof *a->by_rank);
}

lq_status gr_nfa_look_ahead(gr_nfa *a, uint32_t bytes, lq_err *err)
{
    enum { MOST = 1 << 26 };
    if ((uint64_t)bytes * (a->clo_off[a->n_nodes] + a->n_nodes) > MOST) return LQ_OK;
    uint64_t *now = calloc(a->n_nodes + 1, sizeof *now),
             *before = calloc(a->n_nodes + 1, sizeof *now);
    if (!now || !before) {
        free(now);
        free(before);
        return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    }
    for (uint32_t k = 0; k < bytes; k++) {
        uint64_t *t = before;
        before = now;
        now = t;
        for (uint32_t r = a->n_rules; r-- > 0;) { /* what is called on the left comes first */
            uint32_t s = a->start[a->by_rank[r]];
            now[s] = ways(a, s, now, before);
        }
        for (uint32_t i = 0; i < a->n_nodes; i++)
            if (a->clo_off[i] < a->clo_off[i + 1]) now[i] = ways(a, i, now, before);
    }
    free(before);
    a->ahead = now;
    return LQ_OK;
}

uint64_t gr_nfa_ahead(const gr_nfa *a, uint32_t node)
{
    return a->ahead ? way(a, node, a->ahead, a->ahead) : lq_mix(node);
}

/* ---- grammars that match nothing ---- */

/* The last call that stands in the way when rule r is followed by what can be met: everything
 * before it can be left out or passed. GR_NONE: r is at fault itself. */
static uint32_t obstacle(const gr_nfa *a, uint32_t r, uint8_t *seen, uint32_t *stack)
{
    uint32_t k = 0, last = GR_NONE; /* nodes belong to one rule each: `seen` serves all */
    stack[k++] = a->start[r];
    seen[a->start[r]] = 1;
    while (k > 0) {
        const gn_node *x = &a->nodes[stack[--k]];
        uint32_t to[2] = { GR_NONE, GR_NONE };
        if (x->kind == GN_BYTE) to[0] = x->b;
        if (x->kind == GN_EPS) to[0] = x->b, to[1] = x->a;
        if (x->kind == GN_CALL && a->nodes[a->start[x->a]].height <= GR_MAX_DEPTH)
            to[0] = x->b;
        else if (x->kind == GN_CALL)
            last = x->a;
        for (int e = 0; e < 2; e++)
            if (to[e] != GR_NONE && !seen[to[e]]) {
                seen[to[e]] = 1;
                stack[k++] = to[e];
            }
    }
    return last;
}

/* Says which rule is the reason that the first one matches nothing: it can be met by nothing
 * itself, or it needs itself without end. */
static lq_status no_text(const gr_nfa *a, const ga_builder *b, uint32_t *stack, lq_err *err)
{
    uint8_t *seen = calloc(a->n_nodes + 1, 1), *passed = calloc(a->n_rules + 1, 1);
    const char *name = "";
    if (!seen || !passed) {
        free(seen);
        free(passed);
        return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    }
    for (uint32_t r = 0; r != GR_NONE && !passed[r]; r = obstacle(a, r, seen, stack)) {
        passed[r] = 1;
        if (b->rules[r].name[0]) name = b->rules[r].name;
    }
    free(seen);
    free(passed);
    return lq_fail(err, LQ_EVALUE,
                   "the grammar matches no text within %d levels of nesting: nothing is valid at "
                   "%s%s",
                   GR_MAX_DEPTH, name[0] == '#' ? "" : "rule ", name[0] ? name : "its start");
}

/* ---- all of it ---- */

lq_status gr_nfa_build(gr_nfa *a, ga_builder *b, lq_err *err)
{
    *a = (gr_nfa){ 0 };
    if (b->status) return b->status;
    size_t n = b->n_rules;
    preds p = { 0 };
    uint8_t *null = NULL;
    uint32_t *queue = NULL, *mark = NULL;
    a->n_rules = b->n_rules;
    a->start = calloc(n + 1, sizeof *a->start);
    a->rank = calloc(n + 1, sizeof *a->rank);
    a->by_rank = calloc(n + 1, sizeof *a->by_rank);
    bool ok = a->start && a->rank && a->by_rank;
    lq_status s = ok ? gr_nfa_emit(a, b) : LQ_OK;
    if (ok && !s) {
        null = calloc(a->n_nodes + 1, 1);
        mark = calloc(a->n_nodes + 1, sizeof *mark);
        queue = malloc((2 * (size_t)a->n_nodes + 2) * sizeof *queue);
        a->clo_off = calloc(a->n_nodes + 2, sizeof *a->clo_off);
        ok = null && mark && queue && a->clo_off && preds_make(&p, a);
    }
    if (!ok) s = lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    if (!s) {
        heights(a, &p, queue);
        nullables(a, &p, null, queue);
        if (a->nodes[a->start[0]].height > GR_MAX_DEPTH) s = no_text(a, b, queue, err);
    }
    if (!s) s = closures(a, null, queue, mark, err);
    if (!s) s = rank_rules(a, b, err);
    if (!s) byte_classes(a);
    free(p.off);
    free(p.v);
    free(null);
    free(mark);
    free(queue);
    if (s) gr_nfa_free(a);
    return s;
}

void gr_nfa_free(gr_nfa *a)
{
    free(a->nodes);
    free(a->sets);
    free(a->start);
    free(a->rank);
    free(a->by_rank);
    free(a->clo_off);
    free(a->clo);
    free(a->ahead);
    *a = (gr_nfa){ 0 };
}
