/* formats/gguf/gguf_tok.h - what a GGUF file says about text, as a folder's JSON files would. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_TOK_H
#define LLMQ_FORMATS_GGUF_GGUF_TOK_H

#include "base/json.h"
#include "formats/gguf/gguf.h"

/* tokenizer.json into b. Where the file has no tokenizer that we know, *why says so and b is left
 * alone (LQ_OK). LQ_EFORMAT: tokens that are no text. */
lq_status gguf_tokenizer(lq_buf *b, gguf_file *f, const char **why, lq_err *err);
/* tokenizer_config.json: special tokens and chat template. */
lq_status gguf_tokenizer_config(lq_buf *b, gguf_file *f, lq_err *err);
/* tokenizer.ggml.pre of a tokenizer that cuts text by this regular expression before merging bytes
 * (NULL: GPT-2's own); NULL: we know of none. */
const char *gguf_pre_for(const char *regex);

/* tokenizer.ggml.model "llama": pieces of SentencePiece, which become a tokenizer.model in *b. As
 * gguf_tokenizer otherwise. (gguf_spm.c) */
bool gguf_is_sentencepiece(gguf_file *f);
lq_status gguf_sentencepiece(lq_buf *b, gguf_file *f, const char **why, lq_err *err);

#endif
