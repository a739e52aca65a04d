/* convert/gguf_meta.h - what a GGUF file says beside its tensors: the model's numbers and its
 * tokenizer, from a source's config.json, tokenizer.json and tokenizer_config.json. */
#ifndef LLMQ_CONVERT_GGUF_META_H
#define LLMQ_CONVERT_GGUF_META_H

#include "formats/gguf_names.h"
#include "formats/json.h"
#include "formats/source.h"

/* Key-value pairs, one after the other, and how many. */
typedef struct {
    js_buf b;
    uint64_t n;
} gguf_pairs;

void gguf_pair_int(gguf_pairs *p, const char *key, int64_t v); /* u32 */
void gguf_pair_str(gguf_pairs *p, const char *key, const char *v);
void gguf_put_le(js_buf *b, uint64_t v, int bytes);
void gguf_put_str(js_buf *b, const char *s, size_t n);

/* The row of the model's architecture; LQ_EUNSUPPORTED: llama.cpp's form of it is not known here,
 * or the config has something that GGUF has no key for. */
lq_status gguf_arch_of(const gguf_arch **a, const arch_config *c, lq_err *err);
lq_status gguf_put_config(gguf_pairs *p, const gguf_arch *a, const arch_config *c, lq_err *err);
/* Factors of the frequencies [rope_dims / 2] of Llama 3's scaling, in the arena; NULL: none. */
lq_status gguf_rope_factors(float **out, const arch_config *c, lq_arena *a, lq_err *err);
/* note: why there is no tokenizer, or "". LQ_EFORMAT: a tokenizer.json that is none. */
lq_status gguf_put_tokenizer(gguf_pairs *p, const src_source *src, char *note, size_t n,
                             lq_err *err);

#endif
