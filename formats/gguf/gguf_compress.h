/* formats/gguf/gguf_compress.h - attention to compressed positions, and lists that say one number for all layers
 * (gguf_arch.compress): DeepSeek V4. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_COMPRESS_H
#define LLMQ_FORMATS_GGUF_GGUF_COMPRESS_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* Positions for each compressed one in layers with an indexer, as llama.cpp runs them. */
enum { GGUF_SPARSE_EVERY = 4, GGUF_HEAVY_EVERY = 128, GGUF_HYPER = 4, GGUF_SQRT_SOFTPLUS = 4 };

/* Adds to j. LQ_EFORMAT, LQ_EUNSUPPORTED, LQ_ENOMEM. */
lq_status gguf_compress_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err);

#endif
