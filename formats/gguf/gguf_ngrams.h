/* formats/gguf/gguf_ngrams.h - embeddings of n-grams, and groups of positions that an indexer chooses by their mean
 * (gguf_arch.ngrams): Qwen4-Exp. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_NGRAMS_H
#define LLMQ_FORMATS_GGUF_GGUF_NGRAMS_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* Adds to j. The file has what a seed and a base are made into: LQ_EUNSUPPORTED where no such seed is found. LQ_EFORMAT,
 * LQ_ENOMEM. */
lq_status gguf_ngrams_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err);

#endif
