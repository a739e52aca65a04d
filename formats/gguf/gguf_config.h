/* formats/gguf/gguf_config.h - what a GGUF file says about its model, as a config.json would. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_CONFIG_H
#define LLMQ_FORMATS_GGUF_GGUF_CONFIG_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* The row of general.architecture; NULL: none. */
const gguf_arch *gguf_arch_find(gguf_file *f);
/* Metadata and the shapes of f's tensors as config.json; keys that the file lacks have the values
 * that llama.cpp assumes. *out is the caller's. LQ_EFORMAT, LQ_EUNSUPPORTED (rotations that we do
 * not know), LQ_ENOMEM. */
lq_status gguf_config(cJSON **out, gguf_file *f, const gguf_arch *row, lq_err *err);

/* A factor for each pair's frequency. */
#define GGUF_ROPE_FREQS "rope_freqs.weight"         /* Llama 3's */
#define GGUF_ROPE_SHORT "rope_factors_short.weight" /* longrope's */
#define GGUF_ROPE_LONG "rope_factors_long.weight"
bool gguf_is_rope(const char *name);

#endif
