/* formats/gguf/gguf_ends.h - the tokens that end an answer.
 *
 * A GGUF file has one eos_token_id, where generation_config.json has a list. The others are found
 * by the metadata's eot, eom and FIM ids, and by name, as llama.cpp does (src/llama-vocab.cpp of
 * 2026-10). */
#ifndef LLMQ_FORMATS_GGUF_GGUF_ENDS_H
#define LLMQ_FORMATS_GGUF_GGUF_ENDS_H

#include "formats/gguf/gguf.h"

enum { GGUF_MAX_ENDS = 16 };

/* Ids without repetition, eos_token_id first; returns how many. More than GGUF_MAX_ENDS are cut. */
int gguf_ends(int64_t ids[GGUF_MAX_ENDS], const gguf_file *f);
/* Is it a name that is given to nothing but the end of an answer ("<|im_end|>")? Then the token is
 * special, whatever tokenizer.ggml.token_type says. */
bool gguf_is_end_name(const char *s, size_t n);

#endif
