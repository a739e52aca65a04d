/* runtime/grammar/grammar.c - grammars, their matchers, and masks of whole vocabularies.
 *
 * The tokens that may follow a state are found by one walk of the vocabulary's trie, and kept. The
 * walk starts from the state above an unknown stack (gd_localize), so that a place in a rule is
 * walked once, whatever called the rule, and places that look alike as far as the longest token
 * reaches share what was found (the middle of a long repetition): tokens that stay within what is
 * known are decided for good; those that go on after the rule's end depend on the stack and are
 * tried, few as they are, each time. Near the greatest depth of nesting the stack's height matters
 * and the walk is made for the state itself. */
#include "runtime/grammar/grammar_int.h"

#include "base/buf.h"

#include "base/machine.h"

#include <stdlib.h>

enum {
    COUNTED_BYTES = 1 << 20,            /* so many more are counted before an operation's end */
    SOFT_BYTES = GR_MAX_STATE_BYTES / 4 /* of states and masks, beyond which they are collected */
};

/* Tokens that may follow a state. */
typedef struct {
    uint32_t *bits; /* [words], or NULL and ids[n] */
    int32_t *ids;
    int64_t n;
    int32_t *open; /* [n_open] tokens to be tried on the whole stack */
    int64_t n_open;
    uint32_t reach; /* most depth + height met on the way */
    uint64_t ahead; /* gd_ahead of its states */
} part;

struct grammar {
    atomic_int refs;
    pthread_mutex_t lock;
    gr_nfa nfa;
    gr_dfa dfa;
    const gr_vocab *v;
    gr_matcher *matchers;
    uint32_t start;
    part *parts;
    size_t n_parts, cap_parts, part_bytes, limit;
    size_t pinned;         /* bytes that were left when it was last collected */
    size_t fixed, counted; /* bytes of what does not grow; of it in v->held */
    uint32_t *part_slots;  /* [2 * cap_parts] parts by `ahead` */
    uint32_t *at;          /* [max_depth + 1] states along a path of the trie */
    bool *left;            /* whether the path has left what is known of the stack */
    uint32_t *bits;
    int32_t *open;
};

struct gr_matcher {
    grammar *g;
    gr_matcher *prev, *next;
    uint32_t states[GR_ROLLBACK + 1]; /* a ring: the last is at n_steps % its length */
    int64_t n_steps, n_known;         /* n_known: steps that can be taken back */
};

const char *gr_kind_text(gr_kind k)
{
    static const char *const text[GR_N_KINDS] = { "grammar",     "regex", "choice", "json object",
                                                  "json schema", "tree",  "lark" };
    return text[k];
}

/* ---- making ---- */

static void parse(ga_builder *b, const gr_spec *spec)
{
    if (spec->n > GR_MAX_TEXT) {
        ga_fail(b, LQ_EVALUE, "the %s has %zu bytes: expected at most %d", gr_kind_text(spec->kind),
                spec->n, GR_MAX_TEXT);
        return;
    }
    switch (spec->kind) {
    case GR_GRAMMAR:
        gr_parse_grammar(b, spec->text, spec->n);
        break;
    case GR_LARK:
        gr_parse_lark(b, spec->text, spec->n, false);
        break;
    case GR_REGEX: {
        uint32_t root = ga_new_rule(b, "regex");
        ga_node *body = gr_regex(b, spec->text, spec->n, false, false, "regex");
        if (!b->status) b->rules[root].body = body;
        break;
    }
    case GR_CHOICE:
        gr_parse_choice(b, spec->text, spec->n);
        break;
    case GR_JSON:
        gr_parse_json(b, spec);
        break;
    case GR_TREE:
        gr_parse_tree(b, spec);
        break;
    case GR_SCHEMA:
    case GR_N_KINDS:
        gr_parse_schema(b, spec);
        break;
    }
}

static lq_status start(grammar *g, lq_err *err)
{
    lq_status s = gd_open(&g->dfa, &g->nfa, err);
    if (s) return s;
    size_t depth = g->v ? g->v->max_depth : 0, V = g->v ? (size_t)g->v->V : 0;
    g->at = calloc(depth + 1, sizeof *g->at);
    g->left = calloc(depth + 1, sizeof *g->left);
    g->bits = calloc(V / 32 + 1, sizeof *g->bits);
    g->open = calloc(V + 1, sizeof *g->open);
    if (!g->at || !g->left || !g->bits || !g->open)
        return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    g->dfa.work = GR_MAX_WORK;
    g->limit = SOFT_BYTES;
    g->start = gd_start(&g->dfa);
    if (g->dfa.status)
        return lq_fail(err, g->dfa.status, "the grammar is too ambiguous at its start");
    return LQ_OK;
}

/* Counts what g holds among all grammars of its vocabulary; false: those have more than `most`. */
static bool count(grammar *g, size_t most)
{
    if (!g->v) return true;
    const size_t now = g->fixed + g->dfa.p.bytes + g->part_bytes, more = now - g->counted;
    g->counted = now;
    return atomic_fetch_add(g->v->held, more) + more <= most; /* what shrinks wraps around */
}

lq_status gr_compile(grammar **out, const gr_spec *spec, const gr_vocab *v, lq_err *err)
{
    *out = NULL;
    grammar *g = calloc(1, sizeof *g);
    if (!g) return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->v = v;
    ga_builder b;
    ga_open(&b, err);
    b.v = v;
    parse(&b, spec);
    ga_turn_left(&b);
    lq_status s = gr_nfa_build(&g->nfa, &b, err);
    ga_close(&b);
    if (!s && v) s = gr_nfa_look_ahead(&g->nfa, v->max_depth + 1, err);
    if (!s) s = start(g, err);
    g->fixed = gr_nfa_bytes(&g->nfa);
    if (!s && !count(g, GR_MAX_ALL_BYTES))
        s = lq_fail(err, LQ_ENOMEM, "all grammars together have more than %d bytes",
                    GR_MAX_ALL_BYTES);
    if (s)
        gr_unref(g);
    else
        *out = g;
    return s;
}

int64_t gr_mask_ids(const grammar *g) { return g->v ? g->v->V : 0; }

grammar *gr_ref(grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

static void drop_parts(grammar *g)
{
    for (size_t i = 0; i < g->n_parts; i++) {
        free(g->parts[i].bits);
        free(g->parts[i].ids);
        free(g->parts[i].open);
    }
    g->n_parts = g->part_bytes = 0;
    if (g->part_slots) memset(g->part_slots, 0xff, 2 * g->cap_parts * sizeof *g->part_slots);
}

void gr_unref(grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1) return;
    if (g->v) atomic_fetch_sub(g->v->held, g->counted);
    const size_t held = g->fixed + g->dfa.p.bytes + g->part_bytes;
    drop_parts(g);
    free(g->parts);
    free(g->part_slots);
    free(g->at);
    free(g->left);
    free(g->bits);
    free(g->open);
    gd_close(&g->dfa);
    gr_nfa_free(&g->nfa);
    pthread_mutex_destroy(&g->lock);
    free(g);
    machine_give_back(held);
}

void gr_stats_get(grammar *g, gr_stats *s)
{
    pthread_mutex_lock(&g->lock);
    *s = (gr_stats){ .nodes = g->nfa.n_nodes,
                     .rules = g->nfa.n_rules,
                     .states = (int64_t)g->dfa.p.n_states,
                     .masks = (int64_t)g->n_parts,
                     .bytes = g->dfa.p.bytes + g->part_bytes };
    pthread_mutex_unlock(&g->lock);
}

/* ---- under the lock ---- */

static uint32_t *current(gr_matcher *m) { return &m->states[m->n_steps % (GR_ROLLBACK + 1)]; }

/* Forgets what no matcher stands on; the next limit is twice what is left, or the usual one. */
static lq_status collect(grammar *g)
{
    size_t n = 1;
    for (gr_matcher *m = g->matchers; m; m = m->next)
        n += (size_t)m->n_known + 1;
    uint32_t **roots = malloc(n * sizeof *roots);
    if (!roots) return LQ_ENOMEM;
    n = 0;
    roots[n++] = &g->start;
    for (gr_matcher *m = g->matchers; m; m = m->next)
        for (int64_t k = 0; k <= m->n_known; k++)
            roots[n++] = &m->states[(m->n_steps - k) % (GR_ROLLBACK + 1)];
    drop_parts(g);
    lq_status s = gd_collect(&g->dfa, roots, n);
    for (size_t i = 0; s && i < n; i++)
        *roots[i] = GD_DEAD;
    free(roots);
    g->pinned = g->dfa.p.bytes;
    g->limit = 2 * g->pinned > SOFT_BYTES ? 2 * g->pinned : SOFT_BYTES;
    return s;
}

static lq_status grammar_begin(grammar *g)
{
    g->dfa.status = LQ_OK;
    g->dfa.work = GR_MAX_WORK;
    size_t limit = g->limit;
    if (!count(g, GR_MAX_ALL_BYTES / 2)) /* others need room: keep less */
        limit = 2 * g->pinned > SOFT_BYTES / 8 ? 2 * g->pinned : SOFT_BYTES / 8;
    if (g->dfa.p.bytes + g->part_bytes <= limit) return LQ_OK;
    lq_status s = collect(g);
    count(g, 0);
    return g->dfa.status = s;
}

static lq_status end(grammar *g, lq_err *err)
{
    lq_status s = g->dfa.status;
    count(g, 0);
    if (s == LQ_EVALUE)
        return lq_fail(err, s, "the grammar is too ambiguous to be followed within bounds");
    return s ? lq_fail(err, s, "grammar: out of memory") : LQ_OK;
}

static uint32_t walk(grammar *g, uint32_t s, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n && s != GD_DEAD; i++)
        s = gd_step(&g->dfa, s, bytes[i]);
    return s;
}

/* ---- parts ---- */

static void add_token(uint32_t *bits, const gr_vocab *v, int32_t id)
{
    for (; id >= 0; id = v->same[id])
        bits[id >> 5] |= 1u << (id & 31);
}

/* g->bits: tokens that stay alive; g->open: those that die after they left the known stack. */
static void walk_trie(grammar *g, uint32_t from, part *p)
{
    const gr_vocab *v = g->v;
    gr_dfa *d = &g->dfa;
    memset(g->bits, 0, ((size_t)v->V / 32 + 1) * sizeof *g->bits);
    g->at[0] = from;
    g->left[0] = false;
    p->reach = d->p.states[from].reach;
    for (uint32_t i = 0; i < v->n_nodes && !d->status;) {
        uint32_t k = v->depth[i], to = gd_step(d, g->at[k - 1], v->byte[i]);
        bool left = g->left[k - 1];
        if (to == GD_DEAD && !left) {
            i = v->end[i];
            continue;
        }
        const gd_state *s = &d->p.states[to];
        if (s->reach > p->reach) p->reach = s->reach;
        g->at[k] = to;
        g->left[k] = left || s->escape;
        if (v->token[i] >= 0 && to != GD_DEAD) add_token(g->bits, v, v->token[i]);
        if (v->token[i] >= 0 && to == GD_DEAD) g->open[p->n_open++] = v->token[i];
        if (d->p.bytes > GR_MAX_STATE_BYTES) d->status = LQ_EVALUE;
        if (g->fixed + d->p.bytes > g->counted + COUNTED_BYTES && !count(g, GR_MAX_ALL_BYTES))
            d->status = LQ_ENOMEM;
        i++;
    }
}

/* g->bits and g->open into memory of p's own: a list where that is smaller. */
static bool grammar_keep(grammar *g, part *p)
{
    size_t words = (size_t)g->v->V / 32 + 1;
    for (size_t w = 0; w < words; w++)
        p->n += __builtin_popcount(g->bits[w]);
    if ((size_t)p->n < words)
        p->ids = malloc(((size_t)p->n + 1) * sizeof *p->ids);
    else
        p->bits = malloc(words * sizeof *p->bits);
    p->open = malloc(((size_t)p->n_open + 1) * sizeof *p->open);
    if ((!p->ids && !p->bits) || !p->open) return false;
    if (p->bits) memcpy(p->bits, g->bits, words * sizeof *p->bits);
    memcpy(p->open, g->open, (size_t)p->n_open * sizeof *p->open);
    int64_t n = 0;
    for (size_t w = 0; p->ids && w < words; w++)
        for (uint32_t x = g->bits[w]; x; x &= x - 1)
            p->ids[n++] = (int32_t)(32 * w) + __builtin_ctz(x);
    g->part_bytes += ((p->bits ? words : (size_t)p->n) + (size_t)p->n_open) * 4 + sizeof *p;
    return true;
}

/* The slot of a part, or the free one where it belongs. */
static uint32_t *slot_of(grammar *g, uint64_t ahead)
{
    size_t n = 2 * g->cap_parts, at = (size_t)(ahead % n);
    while (g->part_slots[at] != GR_NONE && g->parts[g->part_slots[at]].ahead != ahead)
        at = at + 1 < n ? at + 1 : 0;
    return &g->part_slots[at];
}

static bool part_room(grammar *g)
{
    if (g->n_parts < g->cap_parts) return true;
    size_t cap = 2 * g->cap_parts + 16;
    part *more = realloc(g->parts, cap * sizeof *more);
    if (more) g->parts = more;
    uint32_t *slots = malloc(2 * cap * sizeof *slots);
    if (!more || !slots) {
        free(slots);
        return false;
    }
    memset(slots, 0xff, 2 * cap * sizeof *slots);
    free(g->part_slots);
    g->part_slots = slots;
    g->cap_parts = cap;
    for (size_t i = 0; i < g->n_parts; i++)
        *slot_of(g, g->parts[i].ahead) = (uint32_t)i;
    return true;
}

static const part *part_of(grammar *g, uint32_t state)
{
    uint32_t at = g->dfa.p.states[state].part;
    if (at != GR_NONE) return &g->parts[at];
    if (!part_room(g)) {
        g->dfa.status = LQ_ENOMEM;
        return NULL;
    }
    part p = { .ahead = gd_ahead(&g->dfa, state) };
    uint32_t *slot = slot_of(g, p.ahead);
    if (*slot != GR_NONE) {
        g->dfa.p.states[state].part = *slot;
        return &g->parts[*slot];
    }
    walk_trie(g, state, &p);
    if (g->dfa.status) return NULL;
    if (!grammar_keep(g, &p)) {
        free(p.bits);
        free(p.ids);
        free(p.open);
        g->dfa.status = LQ_ENOMEM;
        return NULL;
    }
    *slot = g->dfa.p.states[state].part = (uint32_t)g->n_parts;
    g->parts[g->n_parts] = p;
    return &g->parts[g->n_parts++];
}

static void fill_mask(grammar *g, uint32_t state, uint32_t *mask)
{
    const gr_vocab *v = g->v;
    size_t words = ((size_t)v->V + 31) / 32;
    uint32_t cut = 0;
    const part *p = part_of(g, gd_localize(&g->dfa, state, &cut));
    if (p && cut + p->reach > GR_MAX_DEPTH) p = part_of(g, state);
    if (!p) return;
    if (p->bits)
        memcpy(mask, p->bits, words * sizeof *mask);
    else
        memset(mask, 0, words * sizeof *mask);
    for (int64_t i = 0; p->ids && i < p->n; i++)
        mask[p->ids[i] >> 5] |= 1u << (p->ids[i] & 31);
    for (int64_t i = 0; i < p->n_open; i++) {
        int32_t id = p->open[i];
        if (walk(g, state, v->bytes + v->off[id], v->off[id + 1] - v->off[id]) != GD_DEAD)
            add_token(mask, v, id);
    }
}

/* ---- matchers ---- */

static void link_matcher(gr_matcher *m, grammar *g)
{
    m->g = g;
    m->prev = NULL;
    m->next = g->matchers;
    if (m->next) m->next->prev = m;
    g->matchers = m;
}

lq_status gr_matcher_new(gr_matcher **out, grammar *g, lq_err *err)
{
    gr_matcher *m = *out = calloc(1, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    pthread_mutex_lock(&g->lock);
    m->states[0] = g->start;
    link_matcher(m, gr_ref(g));
    pthread_mutex_unlock(&g->lock);
    return LQ_OK;
}

lq_status gr_matcher_clone(gr_matcher **out, const gr_matcher *from, lq_err *err)
{
    gr_matcher *m = *out = malloc(sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    grammar *g = from->g;
    pthread_mutex_lock(&g->lock);
    *m = *from;
    link_matcher(m, gr_ref(g));
    pthread_mutex_unlock(&g->lock);
    return LQ_OK;
}

void gr_matcher_free(gr_matcher *m)
{
    if (!m) return;
    grammar *g = m->g;
    pthread_mutex_lock(&g->lock);
    if (m->prev)
        m->prev->next = m->next;
    else
        g->matchers = m->next;
    if (m->next) m->next->prev = m->prev;
    pthread_mutex_unlock(&g->lock);
    gr_unref(g);
    free(m);
}

lq_status gr_accept(gr_matcher *m, const uint8_t *s, size_t n, bool *ok, lq_err *err)
{
    grammar *g = m->g;
    *ok = false;
    pthread_mutex_lock(&g->lock);
    lq_status st = grammar_begin(g);
    uint32_t to = st ? GD_DEAD : walk(g, *current(m), s, n);
    st = end(g, err);
    if (!st && to != GD_DEAD) {
        *ok = true;
        m->n_steps++;
        if (m->n_known < GR_ROLLBACK) m->n_known++;
        *current(m) = to;
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

lq_status gr_accept_text(gr_matcher *m, const char *s, bool *ok, lq_err *err)
{
    lq_buf b = { 0 };
    while (*s) {
        size_t n;
        const uint8_t *special = gr_special_at(m->g->v, s, &n);
        lq_buf_add(&b, special ? (const void *)special : s, special ? n + 1 : 1);
        s += special ? n : 1;
    }
    lq_status st =
        b.oom ? lq_fail(err, LQ_ENOMEM, "grammar: out of memory") : gr_accept(m, b.u, b.n, ok, err);
    lq_buf_free(&b);
    return st;
}

lq_status gr_accept_token(gr_matcher *m, int32_t id, bool *ok, lq_err *err)
{
    const gr_vocab *v = m->g->v;
    *ok = false;
    if (!v || id < 0 || id >= v->V || v->off[id + 1] == v->off[id]) return LQ_OK;
    return gr_accept(m, v->bytes + v->off[id], v->off[id + 1] - v->off[id], ok, err);
}

bool gr_rollback(gr_matcher *m, int64_t n)
{
    if (n < 0 || n > m->n_known) return false;
    pthread_mutex_lock(&m->g->lock); /* a collection renumbers the states */
    m->n_steps -= n;
    m->n_known -= n;
    pthread_mutex_unlock(&m->g->lock);
    return true;
}

static gd_state state_of(gr_matcher *m)
{
    pthread_mutex_lock(&m->g->lock);
    gd_state s = m->g->dfa.p.states[*current(m)];
    pthread_mutex_unlock(&m->g->lock);
    return s;
}

bool gr_may_end(gr_matcher *m) { return state_of(m).accept; }

bool gr_must_end(gr_matcher *m)
{
    gd_state s = state_of(m);
    return s.accept && s.n == 0;
}

lq_status gr_mask(gr_matcher *m, uint32_t *mask, lq_err *err)
{
    grammar *g = m->g;
    if (!g->v) return lq_fail(err, LQ_EVALUE, "grammar: no vocabulary to make masks of");
    pthread_mutex_lock(&g->lock);
    if (!grammar_begin(g)) fill_mask(g, *current(m), mask);
    lq_status s = end(g, err);
    pthread_mutex_unlock(&g->lock);
    return s;
}
