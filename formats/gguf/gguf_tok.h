/* formats/gguf/gguf_tok.h - what a GGUF file says about text, as a folder's JSON files would. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_TOK_H
#define LLMQ_FORMATS_GGUF_GGUF_TOK_H

#include "base/buf.h"
#include "base/json.h"
#include "formats/gguf/gguf.h"

/* Why there is no tokenizer, or what is uncertain about it; "": nothing to say. */
typedef struct {
    char text[240];
} gguf_reason;

/* Where the file has no tokenizer that is known here, b is left alone, *why says so, and the result
 * is LQ_OK. LQ_EFORMAT: tokens that are no text. */
/* tokenizer.ggml.model "gpt2", "gemma4": merges of pairs; "bert": WordPiece; as a tokenizer.json. */
lq_status gguf_tokenizer(lq_buf *b, gguf_file *f, gguf_reason *why, lq_err *err);
/* "llama", "t5": pieces of SentencePiece, as a tokenizer.model. (gguf_spm.c) */
bool gguf_is_sentencepiece(gguf_file *f);
lq_status gguf_sentencepiece(lq_buf *b, gguf_file *f, gguf_reason *why, lq_err *err);

/* Has tokenizer.ggml.token_type, where it is there, an integer for each token? Else *why says so: without
 * types control tokens would be text. (gguf_spm.c) */
bool gguf_types_fit(const gguf_file *f, uint64_t tokens, gguf_reason *why);

/* tokenizer_config.json: class, special tokens and chat template. */
lq_status gguf_tokenizer_config(lq_buf *b, gguf_file *f, lq_err *err);
/* Is it a user-defined piece that llama.cpp cuts out of a text as it does a special token, so that what follows
 * begins with a space as a text does? */
bool gguf_is_apart(gguf_file *f, gguf_text t, int64_t type);

#endif
