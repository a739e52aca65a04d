/* runtime/grammar/grammar.h - structured output: which tokens may come next under a grammar.
 *
 * A grammar (GBNF, Lark's, a regular expression, a list of choices, any JSON object, a JSON schema) is
 * compiled into a pushdown automaton over bytes. A matcher walks it along an answer; at each step
 * the mask of the tokens that may follow is computed for a whole vocabulary:
 *
 *     text --front end--> rules over code points --gr_nfa--> byte automaton --lazily--> states
 *     state + trie of the vocabulary --walk, kept per state--> mask [V/32]
 *
 * Whatever the mask allows can be continued to a whole sentence of the grammar, byte by byte,
 * within GR_MAX_DEPTH levels of nesting: deeper nesting is what the mask does not allow. Texts are
 * UTF-8; what is generated is too. Special tokens are in a mask only where a text of a GR_TREE has
 * them; the caller adds the ids that end an answer where gr_may_end says so.
 *
 * Bounds: text 1 MiB, GR_MAX_NODES nodes, repetitions up to GR_MAX_REPEAT, stacks of GR_MAX_DEPTH,
 * work per mask and memory of states; what is larger is refused, or ends the request with an error.
 * A mask depends on the grammar, the vocabulary and the bytes so far alone, so answers stay
 * deterministic; states and masks are made when first met, so a step under a grammar allocates.
 *
 * Threads: a grammar may be shared by any number of threads and matchers (a lock inside); a matcher
 * belongs to one thread at a time. Source: the idea of masks per automaton position with tokens
 * that depend on the stack apart is XGrammar's (arXiv:2411.15100); merging stacks is Tomita's
 * graph. */
#ifndef LLMQ_RUNTIME_GRAMMAR_GRAMMAR_H
#define LLMQ_RUNTIME_GRAMMAR_GRAMMAR_H

#include "runtime/limits.h"
#include "runtime/tokenizer/tok.h"

enum { GR_ROLLBACK = 64 /* steps that a matcher can take back */ };

typedef enum {
    GR_GRAMMAR, /* GBNF, llama.cpp's notation: the sentences of `root`; or Lark's, told by the first rule */
    GR_REGEX,  /* the whole answer matches */
    GR_CHOICE, /* text is a JSON array of strings: one of them */
    GR_JSON,   /* any JSON object; no text */
    GR_SCHEMA, /* text is a JSON schema */
    GR_TREE,   /* texts around values of schemas: grammar_tree.c */
    GR_LARK,   /* Lark's: the sentences of `start` */
    GR_N_KINDS
} gr_kind;
const char *gr_kind_text(
    gr_kind k); /* "grammar", "regex", "choice", "json object", "json schema", "tree", "lark" */

/* A string of a schema that holds a text of this grammar in Lark's notation: what a custom tool becomes. */
#define GR_LARK_KEYWORD "x-lark"

typedef struct {
    gr_kind kind;
    const char *text; /* UTF-8 */
    size_t n;
    bool compact;        /* JSON without white space */
    const char *blanks;  /* JSON: a regular expression for white space; NULL: see grammar_json.c */
    bool any_properties; /* schema: `properties` without additionalProperties allows others */
    bool strict;         /* schemas: unknown keywords are refused; else they are annotations */
} gr_spec;

typedef struct grammar grammar;
typedef struct gr_vocab gr_vocab;

/* ---- the vocabulary: a trie of the tokens' bytes, read-only and shared by grammars ---- */
/* Ids that are special, unused, empty or >= tok_vocab are in no mask. V: ids of a mask. */
lq_status gr_vocab_open(gr_vocab **v, const tok_tokenizer *t, int64_t V, lq_err *err);
/* From byte strings: token i is bytes[off[i] .. off[i+1]); empty ones are in no mask. */
lq_status gr_vocab_of(gr_vocab **v, const uint8_t *bytes, const size_t *off, int64_t V,
                      lq_err *err);
void gr_vocab_close(gr_vocab *v); /* NULL allowed; after the last grammar that uses it */

/* ---- a grammar ---- */
/* v may be NULL: no masks then. The new grammar has one reference.
 * LQ_EVALUE: the text is wrong, or matches nothing, begins with itself behind what may be empty, or is too large; err says
 * what and where. LQ_EUNSUPPORTED: a construct that cannot be honoured, by name. */
lq_status gr_compile(grammar **g, const gr_spec *spec, const gr_vocab *v, lq_err *err);
int64_t gr_mask_ids(const grammar *g); /* ids of its masks; 0: none can be made */
grammar *gr_ref(grammar *g);
void gr_unref(grammar *g); /* NULL allowed */
/* For reports: nodes of the automaton, and what has been met of it since. */
typedef struct {
    int64_t nodes, rules, states, masks;
    size_t bytes; /* of states and masks */
} gr_stats;
void gr_stats_get(grammar *g, gr_stats *s);

/* ---- a matcher: a place in the grammar; it holds a reference ---- */
typedef struct gr_matcher gr_matcher;
lq_status gr_matcher_new(gr_matcher **m, grammar *g, lq_err *err);
lq_status gr_matcher_clone(gr_matcher **m, const gr_matcher *from, lq_err *err);
void gr_matcher_free(gr_matcher *m); /* NULL allowed */

/* One step along n bytes. *ok false: they do not fit, and the matcher stays where it was.
 * LQ_EVALUE: the grammar is too ambiguous for its bounds; LQ_ENOMEM. */
lq_status gr_accept(gr_matcher *m, const uint8_t *s, size_t n, bool *ok, lq_err *err);
/* The same along a text in which special tokens count as themselves. */
lq_status gr_accept_text(gr_matcher *m, const char *s, bool *ok, lq_err *err);
/* One step along a token of the vocabulary. */
lq_status gr_accept_token(gr_matcher *m, int32_t id, bool *ok, lq_err *err);
/* Take back the last n steps; false when fewer are remembered (GR_ROLLBACK at most). */
bool gr_rollback(gr_matcher *m, int64_t n);
bool gr_may_end(gr_matcher *m);  /* what there is, is a sentence */
bool gr_must_end(gr_matcher *m); /* and nothing can follow it */
/* Sets bit (id % 32) of mask[id / 32] for each token that may come next, clears all others;
 * mask has (V + 31) / 32 words. Errors as gr_accept. */
lq_status gr_mask(gr_matcher *m, uint32_t *mask, lq_err *err);

/* ---- compiled grammars by their text, least recently used out first ---- */
typedef struct gr_cache gr_cache;
/* Makes the vocabulary's trie when it is first asked. tok must outlive it. Any thread. */
lq_status gr_cache_open(gr_cache **c, const tok_tokenizer *tok, int64_t V, int n, lq_err *err);
void gr_cache_close(gr_cache *c); /* NULL allowed; after the last use of its grammars */
/* A reference to the grammar of spec: gr_unref it. Errors as gr_compile. */
lq_status gr_cache_get(gr_cache *c, grammar **g, const gr_spec *spec, lq_err *err);

#endif
