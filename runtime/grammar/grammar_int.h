/* runtime/grammar/grammar_int.h - what the grammar*.c files share; nothing else includes it.
 *
 * Front ends build rules out of nodes (grammar_ast.c); grammar_nfa.c turns them into one flat
 * automaton and checks it; grammar_dfa.c walks it, grammar_vocab.c asks for whole vocabularies. */
#ifndef LLMQ_RUNTIME_GRAMMAR_GRAMMAR_INT_H
#define LLMQ_RUNTIME_GRAMMAR_GRAMMAR_INT_H

#include "runtime/grammar/grammar.h"

#include "base/random.h"

#include <pthread.h>

#define GR_NONE UINT32_MAX
/* Begins the bytes of a special token, which no text has: only a tree's texts allow it. */
enum { GR_SPECIAL = 0xff };

/* ---- rules as trees ----
 * A builder carries the first error; after it, functions return NULL (or 0) and do nothing, so that
 * a front end checks once, at its end. Everything lives in the builder's arena. */
typedef enum {
    GA_CHARS,  /* one code point of some ranges */
    GA_BYTES,  /* a literal */
    GA_SEQ,    /* all children */
    GA_ALT,    /* one child */
    GA_REPEAT, /* the child, min..max times; max -1: no bound */
    GA_REF,    /* a rule */
    GA_CHAIN   /* see ga_chain */
} ga_kind;

typedef struct {
    uint32_t lo, hi; /* inclusive */
} ga_range;

typedef struct ga_node ga_node;
struct ga_node {
    ga_kind kind;
    ga_node *child, *last, *next;
    ga_range *ranges; /* GA_CHARS: sorted, disjoint */
    int n_ranges;
    const char *bytes; /* GA_BYTES */
    size_t n_bytes;
    int64_t min, max; /* GA_REPEAT; GA_CHAIN: min */
    uint32_t rule;    /* GA_REF */
    bool optional;    /* a child of a GA_CHAIN that may be left out */
    bool stops;       /* GA_CHAIN: a list that may end after `min` children */
};

typedef struct {
    ga_node *body; /* NULL: named and not defined yet */
    const char *name;
    uint32_t hash; /* of the name */
} ga_rule;

/* The code points of a general category; finding them looks through all of Unicode. */
typedef struct {
    char name[3];
    ga_range *ranges;
    int n;
} ga_property;

typedef struct {
    lq_arena arena;
    ga_rule *rules;
    uint32_t n_rules, cap_rules;
    int64_t n_nodes;
    ga_property properties[64]; /* that were asked for, [n_properties]: there are fewer */
    int n_properties;
    const gr_vocab *v; /* NULL: none */
    lq_status status;
    lq_err *err;
} ga_builder;

void ga_open(ga_builder *b, lq_err *err);
void ga_close(ga_builder *b);
void *ga_push(ga_builder *b, size_t bytes); /* NULL: the builder has failed */
/* The first error stays. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void ga_fail(ga_builder *b, lq_status s, const char *fmt, ...);

uint32_t ga_new_rule(ga_builder *b, const char *name); /* name is copied; "" for a hidden one */
/* Of those from number `first` on; GR_NONE: there is none. */
uint32_t ga_find_rule(const ga_builder *b, uint32_t first, const char *name);
ga_node *ga_ref(ga_builder *b, uint32_t rule);
ga_node *ga_seq(ga_builder *b);
ga_node *ga_alt(ga_builder *b);
void ga_add(ga_node *parent, ga_node *child); /* NULL: nothing */
ga_node *ga_bytes(ga_builder *b, const char *s, size_t n);
ga_node *ga_text(ga_builder *b, const char *s);
/* Sorts and joins the ranges; `not`: the other code points. Surrogates are none. Empty matches
 * nothing. */
ga_node *ga_chars(ga_builder *b, const ga_range *r, int n, bool negated);
ga_node *ga_repeat(ga_builder *b, ga_node *child, int64_t min, int64_t max);
ga_node *ga_optional(ga_builder *b, ga_node *child);
/* Children in order with the rule `sep` between those that are there; ga_add them. Each one whose
 * `optional` is set may be left out. `stops`: none may, but the list may end after min children. */
ga_node *ga_chain(ga_builder *b, uint32_t sep);

/* ---- front ends: fill the builder; the start is rule 0 ---- */
uint32_t gr_parse_gbnf(ga_builder *b, const char *text,
                       size_t n); /* the rule of its root, as below */
uint32_t gr_parse_lark(ga_builder *b, const char *text, size_t n,
                       bool json); /* of its start; json: as gr_regex */
uint32_t gr_parse_grammar(ga_builder *b, const char *text,
                          size_t n); /* in either notation, told by the first rule */
void gr_parse_json(ga_builder *b, const gr_spec *spec);
void gr_parse_schema(ga_builder *b, const gr_spec *spec);
void gr_parse_tree(ga_builder *b, const gr_spec *spec);
uint32_t gr_parse_choice(ga_builder *b, const char *text, size_t n);
/* A regular expression. `json`: it describes a string's value, and what comes out is the text
 * between the quotes. `search`: it may match anywhere unless anchored, as JSON schema's `pattern`.
 * what: for messages. */
ga_node *gr_regex(ga_builder *b, const char *text, size_t n, bool json, bool search,
                  const char *what);

/* Rules that begin with themselves, also through others, are written so that they end with themselves
 * (grammar_left.c). Not those that do so behind what may be empty: gr_nfa_build refuses them. */
void ga_turn_left(ga_builder *b);

/* ---- JSON (grammar_json.c) ---- */
typedef struct {
    ga_builder *b;
    uint32_t sep, colon; /* rules: "," blanks; ":" blanks */
    uint32_t blanks;     /* rule; GR_NONE: none are allowed */
    uint32_t value, object, array, string, number, integer, any_char; /* rules; GR_NONE: not yet */
} gj_rules;
void gj_open(gj_rules *j, ga_builder *b, const gr_spec *spec);
ga_node *gj_value(gj_rules *j); /* any */
ga_node *gj_string(gj_rules *j);
ga_node *gj_number(gj_rules *j);
ga_node *gj_integer(gj_rules *j);
ga_node *gj_any_char(gj_rules *j); /* one of a string's value */
/* A member: a key (a whole string), the colon, a value. */
ga_node *gj_member(gj_rules *j, ga_node *key, ga_node *value);
/* head, blanks, what (NULL: nothing), blanks, tail. */
ga_node *gj_wrap(gj_rules *j, const char *head, ga_node *what, const char *tail);
/* One code point of a string's value as written between the quotes, escaped where it must be. */
ga_node *gj_chars(ga_builder *b, const ga_range *r, int n, bool negated);
/* Between lo and hi (both inclusive, below 10^18 both) with exactly `places` digits after the
 * point: the number's value times 10^places. */
ga_node *gj_range(ga_builder *b, int64_t lo, int64_t hi, int places);

/* ---- the automaton ---- */
typedef enum { GN_BYTE, GN_CALL, GN_EPS, GN_END } gn_kind;
typedef struct {
    uint8_t kind;
    bool tail;       /* CALL: nothing but the rule's end follows */
    uint16_t height; /* least stack that reaching the rule's end needs; > GR_MAX_DEPTH: cannot */
    uint32_t a, b;   /* BYTE: set, next; CALL: rule, next; EPS: two ways, GR_NONE: none */
} gn_node;

typedef struct {
    uint64_t bits[4];
} gn_set;
static inline bool gn_has(const gn_set *s, unsigned byte)
{
    return s->bits[byte >> 6] >> (byte & 63) & 1;
}

typedef struct {
    gn_node *nodes;
    uint32_t n_nodes;
    gn_set *sets;
    uint32_t n_sets;
    uint32_t *start, *rank; /* [n_rules]; rank: callers on the left first */
    uint32_t n_rules;
    uint32_t *by_rank;                 /* [n_rules] */
    uint32_t *clo_off, *clo;           /* closure of node i: clo[clo_off[i] .. clo_off[i+1]) */
    uint8_t class_of[256], first[256]; /* bytes that all sets treat alike; one of each */
    int n_classes;
    uint64_t *ahead; /* by node, where closures are: what may follow within some bytes, as a hash;
                        NULL: gr_nfa_look_ahead was not called, or it was too much */
} gr_nfa;

size_t gr_nfa_bytes(const gr_nfa *a);
lq_status gr_nfa_emit(gr_nfa *a, ga_builder *b); /* nodes, sets and starts alone */
lq_status gr_nfa_build(gr_nfa *a, ga_builder *b, lq_err *err);
void gr_nfa_free(gr_nfa *a);
/* Fills a->ahead for that many bytes. Nodes of one number take the same texts of up to `bytes`
 * bytes with the same heights: the places of a long repetition that are far from its ends, or the
 * same form in two places of a schema. */
lq_status gr_nfa_look_ahead(gr_nfa *a, uint32_t bytes, lq_err *err);
/* The same of one BYTE node. */
uint64_t gr_nfa_ahead(const gr_nfa *a, uint32_t node);

/* ---- states met (grammar_dfa.c) ----
 * A state is a set of (BYTE node, stack); stacks with the same node are merged, so a state has at
 * most one item per node. A stack is a set of frames (where to go on, the stack below), interned.
 */
typedef struct {
    uint32_t pos, stack;
} gd_item;
typedef struct {
    uint32_t off, n; /* frames: pos is the node after the call */
    uint32_t depth;
    uint64_t ahead; /* as gr_nfa.ahead, of all frames */
} gd_stack;
typedef struct {
    uint32_t off, n;
    uint32_t *next;      /* [n_classes], GR_NONE: not known yet; NULL: none is */
    uint32_t local, cut; /* gd_localize's answer; GR_NONE: not asked yet */
    uint32_t part;       /* grammar.c's: tokens that may come next; GR_NONE: not asked yet */
    bool accept;         /* the start rule's end was reached */
    bool escape;         /* the end of what is known of the stack was reached */
    uint16_t reach;      /* most depth + height that was asked of it */
} gd_state;
enum { GD_DEAD = 0 };                             /* the state of no items */
enum { GD_STACK_ROOT = 0, GD_STACK_UNKNOWN = 1 }; /* below the start rule; below what is known */

typedef struct {
    uint32_t *slots;
    uint32_t n, cap;
} gd_table;

typedef struct {
    gd_item *items;
    size_t n_items, cap_items;
    gd_stack *stacks;
    size_t n_stacks, cap_stacks;
    gd_state *states;
    size_t n_states, cap_states;
    gd_table stack_table, state_table;
    size_t bytes;
} gd_pools;

typedef struct {
    uint32_t a, b, to;
} gd_union;

typedef struct {
    const gr_nfa *nfa;
    gd_pools p;
    /* of one step */
    uint32_t *stack_of; /* [n_nodes] valid where mark == stamp */
    uint32_t *mark;
    uint32_t stamp;
    uint32_t *touched, n_touched, *todo, n_todo;
    uint32_t *rule_stack, *rule_mark; /* [n_rules] */
    uint64_t *active;                 /* bit per rank */
    gd_union *unions;                 /* a direct-mapped memory of unions */
    bool accept, escape;
    uint32_t reach;
    int64_t work; /* left, of a bounded operation */
    lq_status status;
} gr_dfa;

lq_status gd_open(gr_dfa *d, const gr_nfa *a, lq_err *err);
void gd_close(gr_dfa *d);
uint32_t gd_start(gr_dfa *d);
/* The state after a byte; GD_DEAD after an error, which d->status holds. */
uint32_t gd_step_slow(gr_dfa *d, uint32_t s, unsigned byte);
static inline uint32_t gd_step(gr_dfa *d, uint32_t s, unsigned byte)
{
    const uint32_t *next = d->p.states[s].next;
    uint32_t t = next ? next[d->nfa->class_of[byte]] : GR_NONE;
    return t != GR_NONE ? t : gd_step_slow(d, s, byte);
}
/* The same state above an unknown stack: what its items have in common below is cut off. *depth:
 * of what was cut. Returns s itself when nothing can be. */
uint32_t gd_localize(gr_dfa *d, uint32_t s, uint32_t *depth);
/* A hash of what may follow a state, within the bytes of gr_nfa_look_ahead: states of one hash have
 * the same masks. */
uint64_t gd_ahead(const gr_dfa *d, uint32_t s);
/* Forget all states but those of roots[n], which are renumbered in place. */
lq_status gd_collect(gr_dfa *d, uint32_t **roots, size_t n);

/* ---- the vocabulary: its trie in preorder (grammar_vocab.c) ---- */
struct gr_vocab {
    int64_t V;
    uint8_t *bytes; /* of all tokens; token i is bytes[off[i] .. off[i+1]) */
    size_t *off;
    int32_t *special; /* ids whose bytes are GR_SPECIAL and their text; [n_special] */
    int64_t n_special;
    uint32_t n_nodes, max_depth;
    uint8_t *byte;       /* [n_nodes] on the edge to it */
    uint32_t *depth;     /* bytes from the root, 1 and more */
    uint32_t *end;       /* first node after its subtree */
    int32_t *token;      /* that ends here, or -1 */
    int32_t *same;       /* [V] next token of the same bytes, or -1 */
    atomic_size_t *held; /* bytes of all grammars of this vocabulary */
};

/* The special token that s begins with: its bytes, GR_SPECIAL and the text; *n: of the text. NULL:
 * none. */
const uint8_t *gr_special_at(const gr_vocab *v, const char *s, size_t *n);

#endif
