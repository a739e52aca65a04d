/* runtime/tokenizer/tok.h - tokenizers: text to ids and back, exactly as Hugging Face `tokenizers` does it.
 *
 * A tokenizer.json is compiled once into a flat, position-independent blob (little endian,
 * offsets only, no pointers) that .llmq files carry and that is used in place from the map; a
 * blob from a file is checked completely by tok_open, so that no other function needs to.
 * The five stages are tables: normalizer, pre-tokenizer, model, post-processor, decoder; a kind
 * is one row of its stage's table. Unknown kinds are refused by name (LQ_EUNSUPPORTED).
 *
 * Not taken from tokenizer.json: `truncation` and `padding` (the caller's business).
 * Decoding departs from the library in one point: in a run of byte tokens (<0xE4>) of which some
 * are invalid, the valid code points stay, where the library makes the whole run U+FFFD; a stream
 * has sent them by then. What was encoded decodes alike.
 *
 * Threads: a tok_tokenizer is read-only after tok_open; any number of threads may use it.
 * Source: the documentation and observable behaviour of huggingface/tokenizers. */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_H

#include "base/base.h"

typedef struct tok_tokenizer tok_tokenizer;

/* tokenizer.json bytes -> blob; free(*blob). */
lq_status tok_compile(uint8_t **blob, size_t *blob_bytes, const char *json, size_t json_bytes,
                      lq_err *err);
/* Use a blob in place: it must outlive the tokenizer and be 8-byte aligned. */
lq_status tok_open(tok_tokenizer **t, const uint8_t *blob, size_t blob_bytes, lq_err *err);
/* Whether a blob has this build's layout; another build's is made again from the files next to it.
 */
bool tok_blob_current(const uint8_t *blob, size_t blob_bytes);
/* Compile and open a tokenizer.json file; the tokenizer owns the blob. */
lq_status tok_open_file(tok_tokenizer **t, const char *path, lq_err *err);
void tok_close(tok_tokenizer *t); /* NULL allowed */

int32_t tok_vocab(const tok_tokenizer *t); /* highest id + 1, added tokens included */
int32_t tok_find(const tok_tokenizer *t, const char *s,
                 size_t n); /* id of an exact token text, or -1 */
bool tok_is_special(const tok_tokenizer *t, int32_t id);
/* The token as the vocabulary spells it (not decoded); NULL for an unused id. Not NUL-terminated.
 */
const char *tok_token(const tok_tokenizer *t, int32_t id, size_t *n);
/* The raw bytes of the token in running text (byte-level and byte-fallback undone,
 * metaspace as a space). Returns the length, writes at most cap bytes. */
size_t tok_token_bytes(const tok_tokenizer *t, int32_t id, uint8_t *out, size_t cap);
size_t
tok_max_token_bytes(const tok_tokenizer *t); /* longest token in bytes: bounds text per token */

typedef enum {
    TOK_ADD_SPECIAL = 1,   /* run the post-processor (BOS, EOS, ...) */
    TOK_PLAIN_SPECIAL = 2, /* special tokens in the text are ordinary text (user content) */
} tok_flags;

/* UTF-8 text -> ids; *ids is malloc'd (free it), never NULL on success. Invalid UTF-8 becomes
 * U+FFFD. Time is O(n log n) in the text's length. Errors: LQ_ENOMEM; LQ_EVALUE for text above 1
 * GiB. */
lq_status tok_encode(const tok_tokenizer *t, const char *text, size_t n, unsigned flags,
                     int32_t **ids, size_t *n_ids, lq_err *err);

/* What TOK_ADD_SPECIAL adds to the ids of a text that was encoded without it; *out as above. */
lq_status tok_add_special(const tok_tokenizer *t, const int32_t *ids, size_t n, int32_t **out,
                          size_t *n_out, lq_err *err);

/* Likewise two texts as one: what the tokenizer has for a pair. The first *n_first ids are of the first type (BERT's
 * segments), the others of the second. LQ_EUNSUPPORTED: its post-processor has nothing for a pair. */
lq_status tok_add_special_pair(const tok_tokenizer *t, const int32_t *a, size_t n_a,
                               const int32_t *b, size_t n_b, int32_t **out, size_t *n_out,
                               size_t *n_first, lq_err *err);

/* Ids before a text that windows of calibration and of evaluation have room for; with more they begin without. */
enum { TOK_BEGIN = 4 };
/* The ids that TOK_ADD_SPECIAL puts around a text: *before of them first (BOS), then *after (EOS);
 * *ids is malloc'd. */
lq_status tok_around(const tok_tokenizer *t, int32_t **ids, size_t *before, size_t *after,
                     lq_err *err);
/* Those before it, into ids [most], for a model of `vocab` embeddings. LQ_EUNSUPPORTED: there are
 * more, or one that the model has no embedding for; *n is 0. */
lq_status tok_begin(const tok_tokenizer *t, int64_t vocab, int most, int32_t *ids, int *n,
                    lq_err *err);

/* The same without TOK_ADD_SPECIAL, where own[n] says which bytes may spell special tokens: one in
 * the text counts only where own[i] != 0 for each of its bytes, and is ordinary text otherwise. */
lq_status tok_encode_own(const tok_tokenizer *t, const char *text, const uint8_t *own, size_t n,
                         int32_t **ids, size_t *n_ids, lq_err *err);

/* ids -> UTF-8 text as the library's decode gives it; *text is malloc'd, NUL-terminated.
 * Ids outside the vocabulary are LQ_EVALUE. */
lq_status tok_decode(const tok_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *n_text, lq_err *err);

/* ---- streaming: the concatenation of all deltas plus the flush equals tok_decode of all ids.
 * A delta ends on a whole code point; bytes that may still become one are held back. ---- */
typedef struct tok_stream tok_stream;
lq_status tok_stream_new(tok_stream **s, const tok_tokenizer *t, bool skip_special, lq_err *err);
/* Continue after a prompt's ids: they shape the context (leading space, split characters) but are
 * not emitted. */
lq_status tok_stream_prime(tok_stream *s, const int32_t *ids, size_t n, lq_err *err);
/* *delta points into the stream until the next call; may be empty. */
lq_status tok_stream_push(tok_stream *s, int32_t id, const char **delta, size_t *n, lq_err *err);
lq_status tok_stream_flush(tok_stream *s, const char **delta, size_t *n, lq_err *err);
void tok_stream_reset(tok_stream *s); /* as new, with its memory */
void tok_stream_free(tok_stream *s);

#endif
