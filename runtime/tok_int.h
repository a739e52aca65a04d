/* runtime/tok_int.h - what the tokenizer's own files share: the blob and the opened form.
 *
 * The blob (little endian, offsets from its start):
 *
 *     tok_head | heap (all text) | tokens | vocab | merges | scores | added | post | ops[4]
 *
 * A section is (offset, count of elements); all are 8-byte aligned. Tokens are indexed by id.
 * `vocab` (text -> id) and `merges` (pair -> rank, id) are open-addressing hash tables of a power
 * of two with linear probing and at least one empty slot. The pipeline's stages are lists of
 * fixed-size ops; a Sequence is flattened into its members. */
#ifndef LLMQ_RUNTIME_TOK_INT_H
#define LLMQ_RUNTIME_TOK_INT_H

#include "runtime/tok.h"
#include "runtime/tok_regex.h"
#include "runtime/tok_text.h"

#include <assert.h>
#include <cjson/cJSON.h>

#define TOK_MAGIC "LQTOK\1\0\0"
#define TOK_NONE UINT32_MAX
enum { TOK_MAX_IDS = 1 << 24, TOK_MAX_OPS = 256, TOK_MAX_ADDED_BYTES = 1 << 24 };

typedef enum { TOK_NORM, TOK_PRE, TOK_POST, TOK_DEC, TOK_N_STAGES } tok_stage;
typedef enum { TOK_BPE, TOK_UNIGRAM, TOK_WORDLEVEL, TOK_N_MODELS } tok_model;
enum { TOK_FUSE_UNK = 1, TOK_BYTE_FALLBACK = 2, TOK_IGNORE_MERGES = 4 }; /* model */
enum { TOK_SPECIAL = 1, TOK_SINGLE_WORD = 2, TOK_LSTRIP = 4, TOK_RSTRIP = 8, TOK_NORMALIZED = 16 };

typedef struct {
    uint64_t off, n;
} tok_section;

typedef struct {
    uint32_t off, len; /* into the heap; off TOK_NONE: absent */
} tok_str;

typedef struct {
    uint32_t left, right, rank, id; /* rank TOK_NONE: empty slot */
} tok_merge;

typedef struct {
    uint32_t id, flags;
    tok_str text;
} tok_added;

typedef struct {
    uint32_t kind, arg[3];
    tok_str s[2];
} tok_op;

typedef struct {
    uint8_t magic[8];
    uint64_t bytes; /* of the whole blob */
    uint32_t model, flags;
    uint32_t unk, reserved; /* id or TOK_NONE */
    tok_str prefix, suffix; /* BPE: continuing_subword_prefix, end_of_word_suffix */
    tok_section heap, tokens, vocab, merges, scores, added, post;
    tok_section ops[TOK_N_STAGES];
} tok_head;

static_assert(sizeof(tok_str) == 8 && sizeof(tok_merge) == 16 && sizeof(tok_added) == 16, "blob");
static_assert(sizeof(tok_op) == 32 && sizeof(tok_head) == 224, "blob");

/* Text to its hash; merges hash their pair the same way. */
static inline uint32_t tok_hash(const void *s, size_t n)
{
    const uint8_t *p = s;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u; /* FNV-1a */
    return (uint32_t)(h ^ h >> 32);
}
static inline uint32_t tok_hash_pair(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

/* ---- compiling (tok_compile.c) ---- */
typedef struct {
    tok_buf heap, tokens, vocab, merges, scores, added, post, ops[TOK_N_STAGES];
    tok_head head;
} tok_builder;
tok_str tok_put_text(tok_builder *b, const char *s); /* a string of the tree; U+0000 undone */
/* {"Regex": ...} or {"String": ...} into s[0]; arg[0] = is a regex. */
lq_status tok_put_pattern(tok_builder *b, const cJSON *pattern, tok_op *op, lq_err *err);
const char *tok_json_str(const cJSON *o, const char *key); /* NULL: absent or no string */
bool tok_json_bool(const cJSON *o, const char *key, bool otherwise);
/* A member whose text is one of names[n] (or, absent, the first): its index into *out. */
lq_status tok_json_choice(const cJSON *o, const char *key, const char *const *names, size_t n,
                          uint32_t *out, lq_err *err);
uint32_t tok_find_text(const tok_builder *b, const char *s, size_t n); /* model's id or TOK_NONE */

/* ---- the opened tokenizer ---- */
typedef struct { /* an op with its strings resolved and its pattern compiled */
    const tok_op *op;
    const uint8_t *s[2];
    size_t n[2];
    tok_pattern *pattern;
} tok_step;

typedef struct tok_trie tok_trie; /* byte strings -> index; longest match (tok_trie.c) */
tok_trie *tok_trie_new(void);
void tok_trie_free(tok_trie *t);
bool tok_trie_add(tok_trie *t, const uint8_t *s, size_t n,
                  uint32_t value); /* the first one stays */
enum { TOK_TRIE_ROOT = 0 };
/* The node below `node` for byte c, or -1; its value or TOK_NONE. */
int64_t tok_trie_down(const tok_trie *t, int64_t node, uint8_t c);
uint32_t tok_trie_value(const tok_trie *t, int64_t node);
bool tok_trie_empty(const tok_trie *t);

struct tok_tokenizer {
    uint8_t *owned;
    const tok_head *head;
    const uint8_t *heap;
    const tok_str *tokens;
    size_t n_tokens; /* of the model */
    const uint32_t *vocab;
    size_t vocab_mask;
    const tok_merge *merges;
    size_t merge_mask;
    const double *scores;
    const tok_added *added;
    size_t n_added;
    const int32_t *post;
    tok_step *steps[TOK_N_STAGES];
    size_t n_steps[TOK_N_STAGES];
    size_t n_ids;       /* model and added */
    uint32_t *added_of; /* [n_ids] index into added, or TOK_NONE */
    uint8_t *special;   /* [n_ids] */
    tok_trie *raw, *normalized, *unigram;
    tok_pattern *word; /* one word character, for single_word */
    double unk_score;
    size_t longest;
    bool byte_level, byte_fallback; /* what the decoder undoes */
};

static inline const uint8_t *tok_text(const tok_tokenizer *t, tok_str s) { return t->heap + s.off; }
uint32_t tok_lookup(const tok_tokenizer *t, const uint8_t *s,
                    size_t n); /* model's id or TOK_NONE */
const tok_merge *tok_find_merge(const tok_tokenizer *t, uint32_t left, uint32_t right);

/* ---- running ---- */
typedef struct {
    size_t off, len;
    int32_t id; /* an added token, or -1: text */
    bool first; /* starts where the whole text starts */
} tok_piece;

typedef struct {
    tok_buf text;
    tok_piece *p;
    size_t n, cap;
    bool oom;
} tok_pieces;

typedef struct { /* one symbol of a word on its way through the merges */
    uint32_t id;
    int32_t prev, next;    /* -1: none */
    uint32_t rank, merged; /* of the pair with next; rank TOK_NONE: no merge */
} tok_symbol;
typedef struct {
    uint32_t rank, pos;
} tok_candidate;

typedef struct { /* all of one call of tok_encode */
    const tok_tokenizer *t;
    tok_matcher *matcher;
    unsigned flags;    /* of tok_encode */
    tok_buf a, b;      /* texts between normalizers; free in the later stages */
    tok_pieces pieces; /* current, and where the next stage writes */
    tok_pieces next;
    tok_buf ids; /* int32 */
    tok_symbol *symbols;
    size_t n_symbols, cap_symbols;
    tok_candidate *heap;
    size_t n_heap, cap_heap;
    tok_buf paths; /* unigram */
    lq_err *err;
} tok_run;

void tok_emit(tok_pieces *out, const uint8_t *s, size_t n, int32_t id, bool first);
static inline void tok_add_id(tok_run *r, uint32_t id)
{
    int32_t v = (int32_t)id;
    tok_buf_add(&r->ids, &v, sizeof v);
}
static inline lq_status tok_oom(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "tokenizer: out of memory");
}

/* ---- stages: each file owns its table of kinds. `kind` in the blob is the row's index. ----
 * compile: JSON member -> op (strings into the heap). open: an op from a blob, before it runs. */
typedef struct {
    const char *name;
    lq_status (*compile)(tok_builder *b, const cJSON *j, tok_op *op,
                         lq_err *err);                             /* NULL: no args */
    lq_status (*open)(tok_tokenizer *t, tok_step *s, lq_err *err); /* NULL: nothing to check */
    union {
        lq_status (*norm)(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out);
        /* Split one piece (which starts the text if `first`) into `out`. */
        lq_status (*pre)(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                         tok_pieces *out);
        lq_status (*post)(tok_run *r, const tok_step *st, tok_buf *out);
        /* A piece of token text for step i of the stream; `start`: a new token begins here;
         * s NULL: the end of all tokens. */
        lq_status (*dec)(tok_stream *d, size_t i, const uint8_t *s, size_t n, bool start);
    } run;
} tok_kind;
typedef struct {
    const char *name;   /* "normalizer" */
    const char *member; /* of a Sequence: "normalizers" */
    const tok_kind *kinds;
    size_t n_kinds;
} tok_stage_table;
extern const tok_stage_table tok_norm_table, tok_pre_table, tok_post_table, tok_dec_table;
const tok_stage_table *tok_stage_of(tok_stage s);
lq_status tok_open_pattern(tok_tokenizer *t, tok_step *s, lq_err *err); /* s[0], arg[0]: regex */

lq_status tok_normalize(tok_run *r, const uint8_t *s, size_t n, const uint8_t **out, size_t *n_out);
lq_status tok_pre_tokenize(tok_run *r); /* r->pieces to r->pieces */
lq_status tok_bpe(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_unigram(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_wordlevel(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_post_process(tok_run *r);

/* GPT-2's alphabet: a byte's character, and a character's byte or -1. */
uint32_t tok_byte_char(uint8_t byte);
int tok_char_byte(uint32_t cp);
/* "<0x0A>" -> 10, anything else -1. */
int tok_byte_token(const uint8_t *s, size_t n);

#endif
