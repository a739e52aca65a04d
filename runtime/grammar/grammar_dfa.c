/* runtime/grammar/grammar_dfa.c - the states of a grammar's automaton, made when they are first met.
 *
 * A step takes each item's BYTE node past the byte, then closes the set in two passes. First down
 * the stack: where a rule's end is reached, what follows its callers. Then up: the rules that the
 * set calls, in the order of their ranks, so that all callers of a rule are known before it is
 * entered and each is entered once. Stacks that meet in one node are merged frame by frame: that
 * keeps a state as small as the automaton, however ambiguous the grammar is. */
#include "runtime/grammar/grammar_int.h"

#include <stdlib.h>

enum {
    UNION_SLOTS = 1 << 12,
    FEW = 64,          /* stacks looked at for a common base */
    FRAME_ACCEPT = -2, /* as nodes of frames: below the start rule */
    FRAME_ESCAPE = -3  /* below what is known of the stack */
};

/* ---- pools ---- */

static bool room(gr_dfa *d, void **p, size_t *cap, size_t n, size_t more, size_t size)
{
    if (n + more <= *cap) return true;
    size_t want = 2 * (n + more) + 256;
    void *q = want < GR_NONE / 2 ? realloc(*p, want * size) : NULL;
    if (!q) {
        d->status = LQ_ENOMEM;
        return false;
    }
    d->p.bytes += (want - *cap) * size;
    *p = q;
    *cap = want;
    return true;
}

static uint32_t hash_items(const gd_item *v, uint32_t n, uint32_t seed)
{
    uint64_t h = seed;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)v[i].pos << 32 | v[i].stack)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 17);
}

static uint32_t hash_stack(const gd_pools *p, uint32_t id)
{
    return hash_items(p->items + p->stacks[id].off, p->stacks[id].n, 7);
}

static uint32_t hash_state(const gd_pools *p, uint32_t id)
{
    const gd_state *s = &p->states[id];
    return hash_items(p->items + s->off, s->n, (s->accept ? 1u : 0) + (s->escape ? 2u : 0));
}

/* Room for one more id in a table of ids by hash. */
static bool table_room(gr_dfa *d, gd_table *t, uint32_t (*hash)(const gd_pools *, uint32_t))
{
    if (2 * (t->n + 1) <= t->cap) return true;
    uint32_t cap = t->cap ? 2 * t->cap : 256, *slots = malloc(cap * sizeof *slots);
    if (!slots) {
        d->status = LQ_ENOMEM;
        return false;
    }
    memset(slots, 0xff, cap * sizeof *slots);
    for (uint32_t i = 0; i < t->cap; i++) {
        if (t->slots[i] == GR_NONE) continue;
        uint32_t h = hash(&d->p, t->slots[i]) & (cap - 1);
        while (slots[h] != GR_NONE)
            h = (h + 1) & (cap - 1);
        slots[h] = t->slots[i];
    }
    d->p.bytes += (cap - t->cap) * sizeof *slots;
    free(t->slots);
    t->slots = slots;
    t->cap = cap;
    return true;
}

static void table_add(gd_table *t, uint32_t hash, uint32_t id)
{
    uint32_t h = hash & (t->cap - 1);
    while (t->slots[h] != GR_NONE)
        h = (h + 1) & (t->cap - 1);
    t->slots[h] = id;
    t->n++;
}

static bool put_items(gr_dfa *d, const gd_item *v, uint32_t n)
{
    void *p = d->p.items;
    bool ok = room(d, &p, &d->p.cap_items, d->p.n_items, n, sizeof *v);
    d->p.items = p;
    if (!ok) return false;
    if (n) memcpy(d->p.items + d->p.n_items, v, n * sizeof *v);
    d->p.n_items += n;
    return true;
}

static bool same_items(const gr_dfa *d, uint32_t off, const gd_item *v, uint32_t n)
{
    return n == 0 || memcmp(d->p.items + off, v, n * sizeof *v) == 0;
}

/* v[n] by rising pos, none twice; must not lie in the pool. */
static uint32_t intern_stack(gr_dfa *d, const gd_item *v, uint32_t n, uint32_t depth)
{
    gd_table *t = &d->p.stack_table;
    if (d->status || !table_room(d, t, hash_stack)) return 0;
    uint32_t hash = hash_items(v, n, 7);
    for (uint32_t h = hash & (t->cap - 1); t->slots[h] != GR_NONE; h = (h + 1) & (t->cap - 1)) {
        const gd_stack *s = &d->p.stacks[t->slots[h]];
        if (s->n == n && same_items(d, s->off, v, n)) return t->slots[h];
    }
    void *p = d->p.stacks;
    bool ok = room(d, &p, &d->p.cap_stacks, d->p.n_stacks, 1, sizeof(gd_stack));
    d->p.stacks = p;
    uint32_t off = (uint32_t)d->p.n_items;
    if (!ok || !put_items(d, v, n)) return 0;
    uint64_t ahead = 1;
    for (uint32_t f = 0; f < n; f++) {
        bool last = v[f].pos >= (uint32_t)FRAME_ESCAPE;
        uint64_t node = last || !d->nfa->ahead ? v[f].pos : d->nfa->ahead[v[f].pos];
        ahead += lq_mix(lq_mix(node) + (last ? 0 : 5 * d->p.stacks[v[f].stack].ahead));
    }
    d->p.stacks[d->p.n_stacks] = (gd_stack){ off, n, depth, lq_mix(ahead) };
    table_add(t, hash, (uint32_t)d->p.n_stacks);
    return (uint32_t)d->p.n_stacks++;
}

static uint32_t intern_state(gr_dfa *d, const gd_item *v, uint32_t n, bool accept, bool escape,
                             uint32_t reach)
{
    gd_table *t = &d->p.state_table;
    if (d->status || !table_room(d, t, hash_state)) return GD_DEAD;
    uint32_t hash = hash_items(v, n, (accept ? 1u : 0) + (escape ? 2u : 0));
    for (uint32_t h = hash & (t->cap - 1); t->slots[h] != GR_NONE; h = (h + 1) & (t->cap - 1)) {
        gd_state *s = &d->p.states[t->slots[h]];
        if (s->n != n || s->accept != accept || s->escape != escape || !same_items(d, s->off, v, n))
            continue;
        if (reach > s->reach) s->reach = (uint16_t)reach;
        return t->slots[h];
    }
    void *p = d->p.states;
    bool ok = room(d, &p, &d->p.cap_states, d->p.n_states, 1, sizeof(gd_state));
    d->p.states = p;
    uint32_t off = (uint32_t)d->p.n_items;
    if (!ok || !put_items(d, v, n)) return GD_DEAD;
    d->p.states[d->p.n_states] = (gd_state){ .off = off,
                                             .n = n,
                                             .local = GR_NONE,
                                             .part = GR_NONE,
                                             .accept = accept,
                                             .escape = escape,
                                             .reach = (uint16_t)reach };
    table_add(t, hash, (uint32_t)d->p.n_states);
    return (uint32_t)d->p.n_states++;
}

/* ---- stacks ---- */

static bool spend(gr_dfa *d, int64_t n)
{
    d->work -= n;
    if (d->work < 0 && !d->status) d->status = LQ_EVALUE;
    return !d->status;
}

static uint32_t grammar_dfa_push(gr_dfa *d, uint32_t stack, uint32_t back)
{
    gd_item frame = { back, stack };
    return intern_stack(d, &frame, 1, d->p.stacks[stack].depth + 1);
}

/* Frames of both; equal places of return join what lies below them. Recursion is bounded by the
 * depth of stacks. */
static uint32_t join(gr_dfa *d, uint32_t a, uint32_t b)
{
    if (a == b) return a;
    if (a > b) {
        uint32_t t = a;
        a = b;
        b = t;
    }
    gd_union *memo = &d->unions[(a * 0x9e3779b9u ^ b * 0x85ebca6bu) >> 8 & (UNION_SLOTS - 1)];
    if (memo->a == a && memo->b == b) return memo->to;
    gd_stack x = d->p.stacks[a], y = d->p.stacks[b];
    if (!spend(d, x.n + y.n)) return a;
    gd_item few[16], *v = x.n + y.n <= 16 ? few : malloc((x.n + y.n) * sizeof *v);
    if (!v) {
        d->status = LQ_ENOMEM;
        return a;
    }
    uint32_t i = 0, j = 0, n = 0, depth = 0;
    while (i < x.n || j < y.n) {
        gd_item p = { GR_NONE, 0 }, q = p;
        if (i < x.n) p = d->p.items[x.off + i];
        if (j < y.n) q = d->p.items[y.off + j];
        bool take_p = i < x.n && (j == y.n || p.pos <= q.pos);
        bool take_q = j < y.n && (i == x.n || q.pos <= p.pos);
        v[n] = take_p ? p : q;
        if (take_p && take_q) v[n].stack = join(d, p.stack, q.stack);
        i += take_p;
        j += take_q;
        n++;
    }
    depth = x.depth > y.depth ? x.depth : y.depth;
    uint32_t to = intern_stack(d, v, n, depth);
    if (v != few) free(v);
    if (!d->status) *memo = (gd_union){ a, b, to };
    return to;
}

/* ---- one step ---- */

static void grammar_dfa_begin(gr_dfa *d)
{
    d->n_touched = d->n_todo = 0;
    d->accept = d->escape = false;
    d->reach = 0;
    if (++d->stamp) return;
    memset(d->mark, 0, d->nfa->n_nodes * sizeof *d->mark);
    memset(d->rule_mark, 0, d->nfa->n_rules * sizeof *d->rule_mark);
    d->stamp = 1;
}

/* Node i (BYTE, CALL or END) with a stack; drops what cannot end within the greatest depth. */
static void reach(gr_dfa *d, uint32_t i, uint32_t stack)
{
    const gn_node *n = &d->nfa->nodes[i];
    uint32_t need = d->p.stacks[stack].depth + n->height;
    if (!spend(d, 1)) return;
    if (need > d->reach) d->reach = need;
    if (need > GR_MAX_DEPTH) return;
    if (d->mark[i] == d->stamp) {
        uint32_t both = join(d, d->stack_of[i], stack);
        if (both == d->stack_of[i]) return;
        d->stack_of[i] = both;
    } else {
        d->mark[i] = d->stamp;
        d->stack_of[i] = stack;
        d->touched[d->n_touched++] = i;
    }
    if (n->kind != GN_END) return;
    for (uint32_t k = 0; k < d->n_todo; k++)
        if (d->todo[k] == i) return;
    d->todo[d->n_todo++] = i;
}

static void reach_closure(gr_dfa *d, uint32_t node, uint32_t stack)
{
    for (uint32_t e = d->nfa->clo_off[node]; e < d->nfa->clo_off[node + 1] && !d->status; e++)
        reach(d, d->nfa->clo[e], stack);
}

/* The ends that were reached: on to what their callers wait for. */
static void leave_rules(gr_dfa *d)
{
    while (d->n_todo > 0 && !d->status) {
        uint32_t i = d->todo[--d->n_todo];
        gd_stack s = d->p.stacks[d->stack_of[i]];
        for (uint32_t f = 0; f < s.n && !d->status; f++) {
            gd_item frame = d->p.items[s.off + f];
            if (frame.pos == (uint32_t)FRAME_ACCEPT)
                d->accept = true;
            else if (frame.pos == (uint32_t)FRAME_ESCAPE)
                d->escape = true;
            else
                reach_closure(d, frame.pos, frame.stack);
        }
    }
}

static void call(gr_dfa *d, const gn_node *n, uint32_t stack)
{
    uint32_t r = n->a, up = n->tail ? stack : grammar_dfa_push(d, stack, n->b);
    if (d->status) return;
    if (d->rule_mark[r] == d->stamp) {
        d->rule_stack[r] = join(d, d->rule_stack[r], up);
        return;
    }
    d->rule_mark[r] = d->stamp;
    d->rule_stack[r] = up;
    d->active[d->nfa->rank[r] >> 6] |= (uint64_t)1 << (d->nfa->rank[r] & 63);
}

static void enter_rules(gr_dfa *d)
{
    const gr_nfa *a = d->nfa;
    for (uint32_t w = 0; w < (a->n_rules + 63) / 64; w++)
        while (d->active[w]) {
            uint32_t r = a->by_rank[w * 64 + (uint32_t)__builtin_ctzll(d->active[w])];
            d->active[w] &= d->active[w] - 1;
            for (uint32_t e = a->clo_off[a->start[r]]; e < a->clo_off[a->start[r] + 1]; e++) {
                const gn_node *n = &a->nodes[a->clo[e]];
                if (d->status) break; /* still clears `active` */
                if (n->kind == GN_BYTE) reach(d, a->clo[e], d->rule_stack[r]);
                if (n->kind != GN_CALL) continue; /* an end: its caller has gone past it */
                uint32_t need = d->p.stacks[d->rule_stack[r]].depth + n->height;
                if (need > d->reach) d->reach = need;
                if (spend(d, 1) && need <= GR_MAX_DEPTH) call(d, n, d->rule_stack[r]);
            }
        }
}

static int by_pos(const void *a, const void *b)
{
    const gd_item *x = a, *y = b;
    return (x->pos > y->pos) - (x->pos < y->pos);
}

static uint32_t grammar_dfa_finish(gr_dfa *d)
{
    uint32_t n = 0, n_calls = d->n_touched;
    for (uint32_t k = 0; k < n_calls && !d->status; k++) /* enter_rules touches BYTEs alone */
        if (d->nfa->nodes[d->touched[k]].kind == GN_CALL)
            call(d, &d->nfa->nodes[d->touched[k]], d->stack_of[d->touched[k]]);
    enter_rules(d);
    if (d->status) return GD_DEAD;
    gd_item few[64], *v = d->n_touched <= 64 ? few : malloc(d->n_touched * sizeof *v);
    if (!v) {
        d->status = LQ_ENOMEM;
        return GD_DEAD;
    }
    for (uint32_t k = 0; k < d->n_touched; k++)
        if (d->nfa->nodes[d->touched[k]].kind == GN_BYTE)
            v[n++] = (gd_item){ d->touched[k], d->stack_of[d->touched[k]] };
    qsort(v, n, sizeof *v, by_pos);
    uint32_t to = intern_state(d, v, n, d->accept, d->escape, d->reach);
    if (v != few) free(v);
    return to;
}

uint32_t gd_start(gr_dfa *d)
{
    const gr_nfa *a = d->nfa;
    grammar_dfa_begin(d);
    reach_closure(d, a->start[0], GD_STACK_ROOT);
    leave_rules(d);
    return grammar_dfa_finish(d);
}

uint32_t gd_step_slow(gr_dfa *d, uint32_t s, unsigned byte)
{
    const gr_nfa *a = d->nfa;
    if (d->status || s == GD_DEAD) return GD_DEAD;
    if (!d->p.states[s].next) {
        size_t bytes = (size_t)a->n_classes * sizeof(uint32_t);
        uint32_t *next = malloc(bytes);
        if (!next) {
            d->status = LQ_ENOMEM;
            return GD_DEAD;
        }
        memset(next, 0xff, bytes);
        d->p.states[s].next = next;
        d->p.bytes += bytes;
    }
    grammar_dfa_begin(d);
    gd_state from = d->p.states[s];
    for (uint32_t i = 0; i < from.n && !d->status; i++) {
        gd_item x = d->p.items[from.off + i];
        if (gn_has(&a->sets[a->nodes[x.pos].a], byte)) reach_closure(d, a->nodes[x.pos].b, x.stack);
    }
    leave_rules(d);
    uint32_t to = grammar_dfa_finish(d);
    if (!d->status) d->p.states[s].next[a->class_of[byte]] = to;
    return to;
}

/* ---- states without the lower part of their stacks ---- */

/* The deepest stack that all stacks of the state stand on: again and again the deepest of a few is
 * replaced by what is below it. GD_STACK_ROOT when there are too many to look for. */
static uint32_t common_base(gr_dfa *d, gd_state s)
{
    uint32_t v[FEW];
    int n = 0, met = 0;
    for (uint32_t i = 0; i < s.n && n < FEW; i++) {
        uint32_t x = d->p.items[s.off + i].stack;
        int k = 0;
        while (k < n && v[k] != x)
            k++;
        if (k == n) v[n++] = x;
    }
    while (n > 1 && n < FEW && met++ < FEW) {
        int deep = 0;
        for (int k = 1; k < n; k++)
            if (d->p.stacks[v[k]].depth > d->p.stacks[v[deep]].depth) deep = k;
        gd_stack top = d->p.stacks[v[deep]];
        if (top.depth == 0) return GD_STACK_ROOT;
        v[deep] = v[--n];
        for (uint32_t f = 0; f < top.n && n < FEW; f++) {
            gd_item frame = d->p.items[top.off + f];
            if (frame.pos >= (uint32_t)FRAME_ESCAPE) return GD_STACK_ROOT;
            int k = 0;
            while (k < n && v[k] != frame.stack)
                k++;
            if (k == n) v[n++] = frame.stack;
        }
    }
    return n == 1 ? v[0] : GD_STACK_ROOT;
}

typedef struct {
    uint32_t from, to;
} moved_stack;

/* `stack` with moved[0].from replaced by moved[0].to; what was done already is in moved[*n]. */
static uint32_t rebase(gr_dfa *d, uint32_t stack, moved_stack *moved, int *n)
{
    for (int i = 0; i < *n; i++)
        if (moved[i].from == stack) return moved[i].to;
    gd_stack s = d->p.stacks[stack];
    if (!spend(d, s.n)) return 0;
    gd_item few[16], *v = s.n <= 16 ? few : malloc(s.n * sizeof *v);
    if (!v) {
        d->status = LQ_ENOMEM;
        return 0;
    }
    uint32_t depth = 0;
    for (uint32_t f = 0; f < s.n && !d->status; f++) {
        gd_item frame = d->p.items[s.off + f];
        v[f] = (gd_item){ frame.pos, rebase(d, frame.stack, moved, n) };
        uint32_t below = d->p.stacks[v[f].stack].depth;
        if (below + 1 > depth) depth = below + 1;
    }
    uint32_t to = d->status ? 0 : intern_stack(d, v, s.n, depth);
    if (v != few) free(v);
    if (*n < 2 * FEW) moved[(*n)++] = (moved_stack){ stack, to };
    return to;
}

uint32_t gd_localize(gr_dfa *d, uint32_t s, uint32_t *depth)
{
    gd_state from = d->p.states[s];
    if (from.local != GR_NONE) {
        *depth = from.cut;
        return from.local;
    }
    uint32_t base = from.n ? common_base(d, from) : GD_STACK_ROOT, need, most = 0;
    moved_stack moved[2 * FEW] = { { base, GD_STACK_UNKNOWN } };
    int n_moved = 1;
    *depth = 0;
    if (base == GD_STACK_ROOT || base == GD_STACK_UNKNOWN) return d->p.states[s].local = s;
    *depth = d->p.stacks[base].depth;
    gd_item few[64], *v = from.n <= 64 ? few : malloc(from.n * sizeof *v);
    if (!v) {
        d->status = LQ_ENOMEM;
        return s;
    }
    for (uint32_t i = 0; i < from.n && !d->status; i++) {
        gd_item x = d->p.items[from.off + i];
        v[i] = (gd_item){ x.pos, rebase(d, x.stack, moved, &n_moved) };
        need = d->p.stacks[v[i].stack].depth + d->nfa->nodes[x.pos].height;
        if (need > most) most = need;
    }
    uint32_t to = d->status ? s : intern_state(d, v, from.n, false, false, most);
    if (v != few) free(v);
    if (d->status) return s;
    d->p.states[s].cut = *depth;
    return d->p.states[s].local = to;
}

uint64_t gd_ahead(const gr_dfa *d, uint32_t s)
{
    const gd_state *x = &d->p.states[s];
    uint64_t sum = 1 + (uint64_t)x->accept + 2 * (uint64_t)x->escape;
    for (uint32_t i = 0; i < x->n; i++) {
        gd_item it = d->p.items[x->off + i];
        sum += lq_mix(gr_nfa_ahead(d->nfa, it.pos) + 7 * d->p.stacks[it.stack].ahead);
    }
    return lq_mix(sum);
}

/* ---- collecting ---- */

static void free_pools(gd_pools *p)
{
    for (size_t i = 0; i < p->n_states; i++)
        free(p->states[i].next);
    free(p->items);
    free(p->stacks);
    free(p->states);
    free(p->stack_table.slots);
    free(p->state_table.slots);
    *p = (gd_pools){ 0 };
}

/* The first stacks and states, whose numbers are fixed. */
static void seed(gr_dfa *d)
{
    gd_item accept = { (uint32_t)FRAME_ACCEPT, 0 }, escape = { (uint32_t)FRAME_ESCAPE, 0 };
    intern_stack(d, &accept, 1, 0);
    intern_stack(d, &escape, 1, 0);
    intern_state(d, NULL, 0, false, false, 0);
    memset(d->unions, 0xff, UNION_SLOTS * sizeof *d->unions);
}

static uint32_t copy_stack(gr_dfa *d, const gd_pools *old, uint32_t *moved, uint32_t id)
{
    if (moved[id] != GR_NONE || d->status) return moved[id];
    gd_stack s = old->stacks[id];
    gd_item *v = malloc(s.n * sizeof *v);
    if (!v) {
        d->status = LQ_ENOMEM;
        return 0;
    }
    for (uint32_t f = 0; f < s.n; f++) {
        gd_item frame = old->items[s.off + f];
        v[f] = (gd_item){ frame.pos, copy_stack(d, old, moved, frame.stack) };
    }
    moved[id] = intern_stack(d, v, s.n, s.depth);
    free(v);
    return moved[id];
}

lq_status gd_collect(gr_dfa *d, uint32_t **roots, size_t n)
{
    gd_pools old = d->p;
    d->p = (gd_pools){ 0 };
    seed(d);
    uint32_t *moved = malloc((old.n_stacks + 1) * sizeof *moved);
    if (!moved) d->status = LQ_ENOMEM;
    for (size_t i = 0; moved && i < old.n_stacks; i++)
        moved[i] = i <= GD_STACK_UNKNOWN ? (uint32_t)i : GR_NONE;
    for (size_t r = 0; r < n && !d->status; r++) {
        gd_state s = old.states[*roots[r]];
        gd_item *v = malloc((s.n + 1) * sizeof *v);
        if (!v) d->status = LQ_ENOMEM;
        for (uint32_t i = 0; v && i < s.n; i++) {
            gd_item x = old.items[s.off + i];
            v[i] = (gd_item){ x.pos, copy_stack(d, &old, moved, x.stack) };
        }
        if (v && !d->status) *roots[r] = intern_state(d, v, s.n, s.accept, s.escape, s.reach);
        free(v);
    }
    free(moved);
    free_pools(&old);
    return d->status;
}

/* ---- opening and closing ---- */

lq_status gd_open(gr_dfa *d, const gr_nfa *a, lq_err *err)
{
    size_t n = a->n_nodes, r = a->n_rules;
    *d = (gr_dfa){ .nfa = a };
    d->stack_of = calloc(n + 1, sizeof *d->stack_of);
    d->mark = calloc(n + 1, sizeof *d->mark);
    d->touched = calloc(n + 1, sizeof *d->touched);
    d->todo = calloc(r + 1, sizeof *d->todo); /* ends: one a rule */
    d->rule_stack = calloc(r + 1, sizeof *d->rule_stack);
    d->rule_mark = calloc(r + 1, sizeof *d->rule_mark);
    d->active = calloc(r / 64 + 1, sizeof *d->active);
    d->unions = malloc(UNION_SLOTS * sizeof *d->unions);
    bool ok = d->stack_of && d->mark && d->touched && d->todo && d->rule_stack && d->rule_mark &&
              d->active && d->unions;
    if (ok) seed(d);
    if (ok && !d->status) return LQ_OK;
    gd_close(d);
    return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
}

void gd_close(gr_dfa *d)
{
    free_pools(&d->p);
    free(d->stack_of);
    free(d->mark);
    free(d->touched);
    free(d->todo);
    free(d->rule_stack);
    free(d->rule_mark);
    free(d->active);
    free(d->unions);
    *d = (gr_dfa){ 0 };
}
