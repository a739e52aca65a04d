/* runtime/tokenizer/tok_int.h - what the tokenizer's own files share: the blob and the opened form.
 *
 * The blob (little endian, offsets from its start):
 *
 *     tok_head | heap (all text) | tokens | vocab | merges | scores | added | post | trie | data
 *         | ops[4]
 *
 * A section is (offset, count of elements); all are 8-byte aligned. Tokens are indexed by id.
 * `vocab` (text -> id) and `merges` (pair -> rank, id) are open-addressing hash tables of a power
 * of two with linear probing and at least one empty slot; so is `trie` (node, byte -> node), which
 * the models that look for the longest token have. `data` is what steps keep besides text. The
 * pipeline's stages are lists of fixed-size ops; a Sequence is flattened into its members. */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_INT_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_INT_H

#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_regex.h"
#include "runtime/tokenizer/tok_text.h"

#include <assert.h>
#include <cjson/cJSON.h>

#define TOK_MAGIC "LQTOK\2\0\0"
#define TOK_NONE UINT32_MAX
enum { TOK_SHORT_CHARS = 0x800 /* of at most two bytes */ };
enum { TOK_MAX_IDS = 1 << 24, TOK_MAX_OPS = 256, TOK_MAX_ADDED_BYTES = 1 << 24 };

typedef enum { TOK_NORM, TOK_PRE, TOK_POST, TOK_DEC, TOK_N_STAGES } tok_stage;
typedef enum { TOK_BPE, TOK_UNIGRAM, TOK_WORDLEVEL, TOK_WORDPIECE, TOK_N_MODELS } tok_model;
enum { /* of the model */
       TOK_FUSE_UNK = 1,
       TOK_BYTE_FALLBACK = 2,
       TOK_IGNORE_MERGES = 4,
       TOK_SENTENCEPIECE =
           16,              /* Unigram: an unknown stretch is no token, whatever it spells; single
                               precision */
       TOK_WORDS_ALONE = 8, /* no merge crosses the place before a metaspace */
};
enum {
    TOK_SPECIAL = 1,
    TOK_SINGLE_WORD = 2,
    TOK_LSTRIP = 4,
    TOK_RSTRIP = 8,
    TOK_NORMALIZED = 16,
    TOK_VERBATIM = 32 /* its text in normalized text is its own */
};

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
    uint32_t from, to, value; /* nodes, and the value of `to` or TOK_NONE */
    uint32_t byte;            /* plus 1; 0: empty slot */
} tok_edge;

typedef struct {
    uint32_t kind, arg[3];
    tok_str s[2];
} tok_op;

typedef struct {
    uint8_t magic[8];
    uint64_t bytes; /* of the whole blob */
    uint32_t model, flags;
    uint32_t unk;           /* id or TOK_NONE */
    uint32_t max_chars;     /* WordPiece: of a word */
    tok_str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix */
    tok_section heap, tokens, vocab, merges, scores, added, post, trie, data;
    tok_section ops[TOK_N_STAGES];
} tok_head;

static_assert(sizeof(tok_str) == 8 && sizeof(tok_merge) == 16 && sizeof(tok_added) == 16, "blob");
static_assert(sizeof(tok_edge) == 16 && sizeof(tok_op) == 32 && sizeof(tok_head) == 256, "blob");

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

/* ---- building a blob (tok_build.c) ---- */
typedef struct {
    lq_buf heap, tokens, vocab, merges, scores, added, post, trie, data, ops[TOK_N_STAGES];
    tok_head head;
    lq_buf apart;     /* uint32 ids that no search for the longest token finds */
    const char *file; /* for messages */
    bool ids_given;   /* added tokens keep the ids that they come with */
} tok_builder;
void tok_build_init(tok_builder *b, const char *file);
void tok_build_free(tok_builder *b);
lq_status tok_build_finish(tok_builder *b, uint8_t **blob, size_t *blob_bytes, lq_err *err);
tok_str tok_put_text(tok_builder *b, const char *s); /* a string of the tree; U+0000 undone */
tok_str tok_put_bytes(tok_builder *b, const void *s, size_t n);
lq_status tok_begin_vocab(tok_builder *b, size_t n_ids, size_t n_tokens, lq_err *err);
/* One id for two texts is LQ_EFORMAT; of two ids for one text the last stays. */
lq_status tok_put_token(tok_builder *b, tok_str text, uint32_t id, lq_err *err);
uint32_t tok_find_text(const tok_builder *b, const void *s, size_t n); /* model's id or TOK_NONE */
lq_status tok_begin_merges(tok_builder *b, size_t n, lq_err *err);
void tok_put_merge(tok_builder *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* For vocabularies without a list of merges: two tokens whose sum is a token merge with the sum's
 * rank[id]; TOK_NONE: takes no part. */
lq_status tok_put_splits(tok_builder *b, const uint32_t *rank, lq_err *err);

/* ---- from tokenizer.json's tree (tok_compile.c) ---- */
/* added_tokens and the four stages of `root`. */
lq_status tok_compile_rest(tok_builder *b, const cJSON *root, lq_err *err);
lq_status tok_compile_model(tok_builder *b, const cJSON *model, lq_err *err);

/* ---- from other files (tok_files.h) ---- */
typedef struct {   /* what tokenizer_config.json says */
    cJSON *config; /* or NULL */
    cJSON *tree;   /* a tokenizer.json's tree in the making; has its added_tokens */
    const char *bos_text, *eos_text;
    bool bos, eos;  /* whether they surround a text */
    bool legacy;    /* a metaspace in front of each stretch of text, not of the first alone */
    bool no_prefix; /* nor there */
} tok_folder;
lq_status tok_compile_spm(uint8_t **blob, size_t *blob_bytes, const uint8_t *data, size_t n,
                          tok_folder *f, lq_err *err);
bool tok_is_ranks(const uint8_t *s, size_t n);
lq_status tok_compile_ranks(uint8_t **blob, size_t *blob_bytes, const char *file,
                            const uint8_t *data, size_t n, tok_folder *f, lq_err *err);
/* A special token to a list of added_tokens. (tok_ranks.c) */
lq_status tok_put_special(cJSON *list, const char *text, uint32_t id, lq_err *err);
lq_status tok_compile_tekken(uint8_t **blob, size_t *blob_bytes, const cJSON *root, tok_folder *f,
                             lq_err *err);
/* post_processor of the tree: BOS, text, EOS, as f says and the vocabulary has them. */
lq_status tok_put_template(tok_builder *b, cJSON *root, const tok_folder *f, lq_err *err);
/* The tree's stages of a byte-level BPE; pattern NULL: GPT-2's. */
lq_status tok_put_byte_level(cJSON *root, const char *pattern, bool nfc, bool prefix, lq_err *err);
/* tok_json.c
 * {"Regex": ...} or {"String": ...} into s[0]; arg[0] = is a regex. */
lq_status tok_put_pattern(tok_builder *b, const cJSON *pattern, tok_op *op, lq_err *err);
const char *tok_json_str(const cJSON *o, const char *key); /* NULL: absent or no string */
bool tok_json_bool(const cJSON *o, const char *key, bool otherwise);
/* A member whose text is one of names[n] (or, absent, the first): its index into *out. */
lq_status tok_json_choice(const cJSON *o, const char *key, const char *const *names, size_t n,
                          uint32_t *out, lq_err *err);

/* ---- the opened tokenizer ---- */
typedef struct { /* an op with its strings resolved and its pattern compiled */
    const tok_op *op;
    const uint8_t *s[2];
    size_t n[2];
    tok_pattern *pattern;
} tok_step;

typedef struct { /* byte strings -> index; longest match (tok_trie.c) */
    const tok_edge *edges;
    size_t mask;
    tok_edge *own;       /* NULL: a view of a blob's */
    uint8_t starts[256]; /* 1: a member of an own trie begins with this byte */
    size_t n, n_nodes;
} tok_trie;
tok_trie *tok_trie_new(void);
tok_trie *tok_trie_view(const tok_edge *edges, size_t n); /* n: a power of two */
void tok_trie_free(tok_trie *t);
bool tok_trie_add(tok_trie *t, const uint8_t *s, size_t n,
                  uint32_t value); /* the first one stays */
const tok_edge *tok_trie_edges(const tok_trie *t, size_t *n);
bool tok_trie_empty(const tok_trie *t);
/* The longest member at the start of s[n]: its value and length, or TOK_NONE. */
uint32_t tok_trie_longest(const tok_trie *t, const uint8_t *s, size_t n, size_t *len);
enum { TOK_TRIE_ROOT = 0 };

static inline uint32_t tok_hash_edge(uint32_t from, uint8_t byte)
{
    return (uint32_t)(((uint64_t)from << 8 | byte) * 0x9E3779B97F4A7C15u >> 32);
}
/* The edge from node `from` by byte c, or NULL. */
static inline const tok_edge *tok_trie_down(const tok_trie *t, uint32_t from, uint8_t c)
{
    for (size_t i = tok_hash_edge(from, c) & t->mask;; i = (i + 1) & t->mask) {
        const tok_edge *e = &t->edges[i];
        if (e->byte == 0) return NULL;
        if (e->from == from && e->byte == c + 1u) return e;
    }
}

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
    const uint8_t *data;
    tok_step *steps[TOK_N_STAGES];
    size_t n_steps[TOK_N_STAGES];
    size_t n_ids;       /* model and added */
    uint32_t *added_of; /* [n_ids] index into added, or TOK_NONE */
    uint8_t *special;   /* [n_ids] */
    tok_trie *raw, *normalized;
    tok_trie *all;                       /* of the model's tokens: Unigram and WordPiece */
    uint32_t short_ids[TOK_SHORT_CHARS]; /* the model's token of one character, or TOK_NONE */
    uint32_t byte_ids[256];              /* and of one byte: "<0x0A>" */
    tok_pattern *word;                   /* one word character, for single_word */
    double unk_score;
    size_t longest;
    bool byte_level, byte_fallback; /* what the decoder undoes */
};

static inline const uint8_t *tok_text(const tok_tokenizer *t, tok_str s) { return t->heap + s.off; }
/* tok_vocab.c */
uint32_t tok_lookup(const tok_tokenizer *t, const uint8_t *s,
                    size_t n); /* model's id or TOK_NONE */
const tok_merge *tok_find_merge(const tok_tokenizer *t, uint32_t left, uint32_t right);
lq_status tok_open_pattern(tok_tokenizer *t, tok_step *s, lq_err *err); /* s[0], arg[0]: regex */

/* ---- running ---- */
typedef struct {
    size_t off, len;
    int32_t id; /* an added token, or -1: text */
    bool first; /* starts where the whole text starts */
} tok_piece;

typedef struct {
    lq_buf text;
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

typedef struct { /* a word of this text and where its ids are in tok_run.ids */
    const uint8_t *s;
    size_t ids_off;
    uint32_t len, ids_bytes; /* len 0: empty slot */
} tok_seen;

typedef struct { /* all of one call of tok_encode */
    const tok_tokenizer *t;
    tok_matcher *matcher;
    unsigned flags;    /* of tok_encode */
    bool first;        /* what is normalized starts the text */
    lq_buf a, b;       /* texts between normalizers; free in the later stages */
    tok_pieces pieces; /* current, and where the next stage writes */
    tok_pieces next;
    lq_buf ids; /* int32 */
    tok_symbol *symbols;
    size_t n_symbols, cap_symbols;
    tok_candidate *heap;
    size_t n_heap, cap_heap;
    lq_buf paths; /* unigram */
    tok_seen *seen;
    size_t seen_mask;
    lq_err *err;
    /* tok_encode_own: bytes of `raw` that may spell special tokens, or NULL; the segment of raw
     * that is being normalized, and whether its special tokens came through that one by one */
    const uint8_t *own, *raw;
    size_t seg_at, seg_end;
    bool in_normalized, same;
} tok_run;

void tok_emit(tok_pieces *out, const uint8_t *s, size_t n, int32_t id, bool first);
static inline void tok_add_id(tok_run *r, uint32_t id)
{
    int32_t v = (int32_t)id;
    lq_buf_add(&r->ids, &v, sizeof v);
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
        lq_status (*norm)(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out);
        /* Split one piece (which starts the text if `first`) into `out`. */
        lq_status (*pre)(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, bool first,
                         tok_pieces *out);
        lq_status (*post)(tok_run *r, const tok_step *st, lq_buf *out);
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
const tok_stage_table *tok_stage_of(tok_stage s); /* tok_stages.c */

lq_status tok_normalize(tok_run *r, const uint8_t *s, size_t n, const uint8_t **out, size_t *n_out);
lq_status tok_pre_tokenize(tok_run *r); /* r->pieces to r->pieces */
lq_status tok_bpe(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_unigram(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_wordlevel(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_wordpiece(tok_run *r, const uint8_t *s, size_t n);
lq_status tok_post_process(tok_run *r);
lq_status tok_post_pair(tok_run *r, size_t *n_first); /* r->ids and r->b to r->ids */

/* tok_charsmap.c: the steps Precompiled and SentencePiece; flags of the latter */
enum {
    TOK_SP_PREFIX = 1,     /* a metaspace in front ... */
    TOK_SP_SUFFIX = 2,     /* ... or at the end instead, */
    TOK_SP_FIRST_ONLY = 4, /* where the whole text starts */
    TOK_SP_SQUEEZE = 8,    /* no spaces at the ends, one at a time between */
    TOK_SP_ESCAPE = 16,    /* spaces become metaspaces */
};
lq_status tok_put_charsmap(tok_builder *b, tok_op *op, const uint8_t *map, size_t n, lq_err *err);
/* Add the step SentencePiece (tok_norm.c). */
lq_status tok_put_sentencepiece(tok_builder *b, const uint8_t *map, size_t n, uint32_t flags,
                                lq_err *err);
lq_status tok_compile_charsmap(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err);
lq_status tok_open_charsmap(tok_tokenizer *t, tok_step *s, lq_err *err);
lq_status tok_run_precompiled(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                              lq_buf *out);
lq_status tok_run_sentencepiece(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                lq_buf *out);

/* tok_bytes.c. GPT-2's alphabet: a byte's character, and a character's byte or -1. */
uint32_t tok_byte_char(uint8_t byte);
int tok_char_byte(uint32_t cp);
/* "<0x0A>" -> 10, anything else -1. */
int tok_byte_token(const uint8_t *s, size_t n);

#endif
