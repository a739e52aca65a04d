/* runtime/grammar/grammar_left.c - rules that begin with themselves, turned to end with themselves.
 *
 * Of some rules A, B, ... whose alternatives begin with one of them or with none,
 *
 *     A ::= A x | B y | b        B ::= A z | c
 *
 * a sentence of A begins with one of the alternatives of the second kind, b or c, has made an A or a B with it, and
 * each alternative of the first kind makes more of it, until it is the A that was wanted:
 *
 *     A ::= b A-A | c A-B        A-A ::= "" | x A-A | z A-B        A-B ::= y A-A
 *
 * where A-B is what makes an A of a B. The automaton calls what a rule ends with without a deeper stack, so a list
 * may be of any length. Source: the left-corner transform (Rosenkrantz and Lewis, 1970). */
#include "runtime/grammar/grammar_int.h"

#include <stdlib.h>

/* An alternative, `lead` in front if there is one of the rules, and `rest`, a rule that may be GR_NONE: nothing. */
typedef struct {
    uint32_t of, lead,
        rest; /* numbers among the rules that are turned; lead GR_NONE: none of them */
} way;

typedef struct {
    ga_builder *b;
    uint32_t *number; /* [b->n_rules at first]: of those that are turned; GR_NONE: of no interest */
    uint32_t n_rules, n_turned;
    uint32_t *turned; /* [n_turned] */
    way *ways;
    uint32_t n_ways, cap_ways;
    uint32_t *made; /* [n_turned * n_turned]: the rule that makes the first of the second */
    bool *reaches;  /* likewise: whether there is one */
    int nest;
} left;

/* ---- which rules ---- */

/* Marks each rule that a tree may begin with; what may be empty hides nothing here: gr_nfa_build looks at that. */
static void beginnings(const ga_node *t, void (*mark)(void *, uint32_t), void *self, int nest)
{
    if (!t || nest > GR_MAX_TREE_NEST) return;
    if (t->kind == GA_REF) mark(self, t->rule);
    if (t->kind == GA_SEQ || (t->kind == GA_REPEAT && t->max != 0))
        beginnings(t->child, mark, self, nest + 1);
    if (t->kind == GA_ALT)
        for (const ga_node *k = t->child; k; k = k->next)
            beginnings(k, mark, self, nest + 1);
}

/* Which rule begins with which, of all rules. */
typedef struct {
    ga_builder *b;
    uint32_t (*v)[2]; /* [n]: a rule, and one that it begins with */
    uint32_t n, cap, of;
} edges;

static void mark_edge(void *self, uint32_t rule)
{
    edges *e = self;
    if (e->n == e->cap && !e->b->status) {
        const uint32_t cap = e->cap ? 2 * e->cap : 256;
        void *v = realloc(e->v, cap * sizeof *e->v);
        if (!v) {
            ga_fail(e->b, LQ_ENOMEM, "grammar: out of memory");
            return;
        }
        e->v = v;
        e->cap = cap;
    }
    if (e->b->status) return;
    e->v[e->n][0] = e->of;
    e->v[e->n++][1] = rule;
}

/* Sets out[r] of the rules that no edge leaves (from 0) or reaches (from 1), but for those of rules that are out.
 * room: 3 n_rules + 2 + n. How many are out now, of n_rules. */
static uint32_t peel(const edges *e, uint8_t *out, int from, uint32_t n_rules, uint32_t *room)
{
    uint32_t *degree = room, *at = room + n_rules, *queue = at + n_rules + 2, *v = queue + n_rules;
    uint32_t n = 0, n_out = 0;
    memset(room, 0, (2 * (size_t)n_rules + 2) * sizeof *room);
    for (uint32_t i = 0; i < e->n; i++) {
        if (out[e->v[i][0]] || out[e->v[i][1]]) continue;
        degree[e->v[i][from]]++;
        at[e->v[i][!from] + 2]++;
    }
    for (uint32_t r = 0; r < n_rules; r++)
        at[r + 1] += at[r];
    for (uint32_t i = 0; i < e->n; i++)
        if (!out[e->v[i][0]] && !out[e->v[i][1]]) v[at[e->v[i][!from] + 1]++] = e->v[i][from];
    for (uint32_t r = 0; r < n_rules; r++) {
        n_out += out[r];
        if (!out[r] && !degree[r]) out[r] = 1, queue[n++] = r;
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = at[queue[k]]; i < at[queue[k] + 1]; i++)
            if (--degree[v[i]] == 0) out[v[i]] = 1, queue[n++] = v[i];
    return n_out + n;
}

/* How many rules begin, over some rules, with themselves, or are between such; the others are out. */
static uint32_t cycles(ga_builder *b, uint8_t *out)
{
    edges e = { .b = b };
    for (e.of = 0; e.of < b->n_rules; e.of++)
        beginnings(b->rules[e.of].body, mark_edge, &e, 0);
    uint32_t *room = malloc((3 * (size_t)b->n_rules + 2 + e.n) * sizeof *room), n_out = 0;
    if (!room) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    for (int from = 0; from < 2 && !b->status && n_out < b->n_rules; from++)
        n_out = peel(&e, out, from, b->n_rules, room);
    free(room);
    free(e.v);
    return b->status ? 0 : b->n_rules - n_out;
}

/* ---- alternatives ---- */

static uint32_t hidden(left *l, ga_node *body)
{
    const uint32_t r = ga_new_rule(l->b, "");
    if (l->b->status) return GR_NONE;
    l->b->rules[r].body = body;
    return r;
}

static ga_node *two(left *l, ga_node *a, uint32_t rest)
{
    ga_node *seq = ga_seq(l->b);
    ga_add(seq, a);
    if (rest != GR_NONE) ga_add(seq, ga_ref(l->b, rest));
    return seq;
}

static void add_way(left *l, uint32_t of, uint32_t lead, uint32_t rest)
{
    if (l->n_ways == l->cap_ways && !l->b->status) {
        const uint32_t cap = l->cap_ways ? 2 * l->cap_ways : 64;
        way *w = realloc(l->ways, cap * sizeof *w);
        if (!w) {
            ga_fail(l->b, LQ_ENOMEM, "grammar: out of memory");
            return;
        }
        l->ways = w;
        l->cap_ways = cap;
    }
    if (!l->b->status) l->ways[l->n_ways++] = (way){ of, lead, rest };
}

static void mark_turned(void *self, uint32_t rule)
{
    left *l = self;
    if (rule < l->n_rules && l->number[rule] != GR_NONE) l->nest = -1;
}

/* Whether t may begin with a rule that is turned. */
static bool leads(left *l, const ga_node *t)
{
    const int nest = l->nest;
    l->nest = 0;
    beginnings(t, mark_turned, l, 0);
    const bool yes = l->nest < 0;
    l->nest = nest;
    return yes;
}

/* The alternatives of t and then `rest` (a rule or GR_NONE), those of rule `of`. Nodes of t are in trees already and are
 * not put into others: what is needed elsewhere becomes a rule of its own. */
static void split(left *l, uint32_t of, ga_node *t, uint32_t rest)
{
    if (l->b->status) return;
    if (++l->nest > GR_MAX_TREE_NEST) ga_fail(l->b, LQ_EVALUE, "the grammar nests too deeply");
    if (!leads(l, t)) {
        const uint32_t r = hidden(l, t);
        add_way(l, of, GR_NONE, rest == GR_NONE ? r : hidden(l, two(l, ga_ref(l->b, r), rest)));
    } else if (t->kind == GA_REF) {
        add_way(l, of, l->number[t->rule], rest);
    } else if (t->kind == GA_ALT) {
        for (ga_node *k = t->child; k; k = k->next)
            split(l, of, k, rest);
    } else if (t->kind == GA_SEQ) {
        if (t->child->next) {
            ga_node *others = ga_seq(l->b);
            if (others) others->child = t->child->next, others->last = t->last;
            rest = hidden(l, two(l, others, rest));
        }
        split(l, of, t->child, rest);
    } else { /* a repetition: none, or one and what is left of it */
        const int64_t min = t->min > 0 ? t->min - 1 : 0, max = t->max > 0 ? t->max - 1 : t->max;
        if (t->min == 0) add_way(l, of, GR_NONE, rest == GR_NONE ? hidden(l, ga_seq(l->b)) : rest);
        if (max != 0)
            rest = hidden(
                l, two(l, ga_repeat(l->b, ga_ref(l->b, hidden(l, t->child)), min, max), rest));
        split(l, of, t->child, rest);
    }
    l->nest--;
}

/* ---- their new bodies ---- */

static void close_over(bool *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        pairs[i * n + i] = true;
    for (uint32_t m = 0; m < n; m++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n && pairs[i * n + m]; k++)
                pairs[i * n + k] |= pairs[m * n + k];
}

static bool is_unit(const way *w) { return w->lead != GR_NONE && w->rest == GR_NONE; }

/* A rule that may be another alone gets the alternatives of that one: none is another alone then. */
static void without_units(left *l)
{
    const uint32_t n = l->n_turned, n_ways = l->n_ways;
    uint32_t kept = 0;
    memset(l->reaches, 0, (size_t)n * n * sizeof *l->reaches);
    for (uint32_t w = 0; w < n_ways; w++)
        if (is_unit(&l->ways[w])) l->reaches[l->ways[w].of * n + l->ways[w].lead] = true;
    close_over(l->reaches, n);
    for (uint32_t w = 0; w < n_ways && !l->b->status; w++)
        for (uint32_t i = 0; i < n && !is_unit(&l->ways[w]); i++)
            if (i != l->ways[w].of && l->reaches[i * n + l->ways[w].of])
                add_way(l, i, l->ways[w].lead, l->ways[w].rest);
    for (uint32_t w = 0; w < l->n_ways; w++)
        if (!is_unit(&l->ways[w])) l->ways[kept++] = l->ways[w];
    l->n_ways = kept;
}

/* reaches[i][k]: a k becomes an i, by none or some of the alternatives that begin with one of the rules. */
static void reach(left *l)
{
    const uint32_t n = l->n_turned;
    memset(l->reaches, 0, (size_t)n * n * sizeof *l->reaches);
    for (uint32_t w = 0; w < l->n_ways; w++)
        if (l->ways[w].lead != GR_NONE) l->reaches[l->ways[w].of * n + l->ways[w].lead] = true;
    close_over(l->reaches, n);
}

/* A rule that makes an i of a k; its body is made by make_all. */
static uint32_t maker(left *l, uint32_t i, uint32_t k)
{
    uint32_t *r = &l->made[i * l->n_turned + k];
    if (*r == GR_NONE) *r = ga_new_rule(l->b, "");
    return *r;
}

static ga_node *rest_of(left *l, const way *w, uint32_t then)
{
    ga_node *seq = ga_seq(l->b);
    if (w->rest != GR_NONE) ga_add(seq, ga_ref(l->b, w->rest));
    ga_add(seq, ga_ref(l->b, then));
    return seq;
}

static void make_all(left *l, uint32_t i)
{
    const uint32_t n = l->n_turned;
    ga_node *body = ga_alt(l->b);
    for (uint32_t w = 0; w < l->n_ways && !l->b->status; w++)
        if (l->ways[w].lead == GR_NONE && l->reaches[i * n + l->ways[w].of])
            ga_add(body, rest_of(l, &l->ways[w], maker(l, i, l->ways[w].of)));
    if (!l->b->status) l->b->rules[l->turned[i]].body = body;
    for (uint32_t k = 0; k < n && !l->b->status; k++) {
        if (!l->reaches[i * n + k]) continue;
        const uint32_t rule = maker(l, i, k);
        ga_node *alt = ga_alt(l->b);
        if (k == i) ga_add(alt, ga_seq(l->b));
        for (uint32_t w = 0; w < l->n_ways && !l->b->status; w++)
            if (l->ways[w].lead == k && l->reaches[i * n + l->ways[w].of])
                ga_add(alt, rest_of(l, &l->ways[w], maker(l, i, l->ways[w].of)));
        if (!l->b->status) l->b->rules[rule].body = alt;
    }
}

static void turn(left *l, const uint8_t *out)
{
    const size_t squares = (size_t)l->n_turned * l->n_turned;
    l->number = malloc((l->n_rules + 1) * sizeof *l->number);
    l->turned = malloc(l->n_turned * sizeof *l->turned);
    l->made = malloc(squares * sizeof *l->made);
    l->reaches = calloc(squares, sizeof *l->reaches);
    if (!l->number || !l->turned || !l->made || !l->reaches) {
        ga_fail(l->b, LQ_ENOMEM, "grammar: out of memory");
        return;
    }
    memset(l->made, 0xff, squares * sizeof *l->made);
    uint32_t n = 0;
    for (uint32_t r = 0; r < l->n_rules; r++) {
        l->number[r] = out[r] ? GR_NONE : n;
        if (!out[r]) l->turned[n++] = r;
    }
    for (uint32_t i = 0; i < n; i++)
        split(l, i, l->b->rules[l->turned[i]].body, GR_NONE);
    without_units(l);
    reach(l);
    for (uint32_t i = 0; i < n && !l->b->status; i++)
        make_all(l, i);
}

void ga_turn_left(ga_builder *b)
{
    left l = { .b = b, .n_rules = b->n_rules };
    for (uint32_t r = 0; r < b->n_rules && !b->status; r++)
        if (!b->rules[r].body) return; /* gr_nfa_emit says so */
    uint8_t *out = b->status ? NULL : calloc(b->n_rules + 1, 1);
    if (!out) {
        ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
        return;
    }
    l.n_turned = cycles(b, out);
    if (l.n_turned > GR_MAX_LEFT)
        ga_fail(b, LQ_EVALUE, "the grammar is too large: more than %d rules begin with themselves",
                GR_MAX_LEFT);
    else if (l.n_turned)
        turn(&l, out);
    free(out);
    free(l.number);
    free(l.turned);
    free(l.ways);
    free(l.made);
    free(l.reaches);
}
