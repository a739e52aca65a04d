/* formats/gguf/gguf_pre.h - tokenizer.ggml.pre: how a byte-pair tokenizer cuts text before it merges.
 *
 * A row holds what a tokenizer.json says in "normalizer", "pre_tokenizer" and "ignore_merges". The
 * names are llama.cpp's (src/llama-vocab.cpp of 2026-10); the patterns are those of the published
 * tokenizer.json files, which llama.cpp restates where its own expressions lack a construct. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_PRE_H
#define LLMQ_FORMATS_GGUF_GGUF_PRE_H

#include "base/buf.h"
#include "base/json.h"

typedef struct gguf_pre gguf_pre;

/* The row of a name; NULL: the name is not known. */
const gguf_pre *gguf_pre_find(const char *name);
/* The name of a tokenizer.json that cuts text as a row does; NULL: none does. */
const char *gguf_pre_of(const cJSON *tokenizer);

bool gguf_pre_adds_bos(const gguf_pre *p); /* where tokenizer.ggml.add_bos_token is absent */
bool gguf_pre_ignores_merges(const gguf_pre *p);
/* Pieces are text with U+2581 for a space and bytes as "<0x0A>"; else bytes are letters (GPT-2). */
bool gguf_pre_is_text(const gguf_pre *p);
/* Members of a tokenizer.json: "normalizer" and "pre_tokenizer"; "decoder". */
void gguf_pre_put(lq_buf *b, const gguf_pre *p);
void gguf_pre_put_decoder(lq_buf *b, const gguf_pre *p);

#endif
