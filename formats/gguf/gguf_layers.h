/* formats/gguf/gguf_layers.h - sizes that differ from layer to layer, and what else only Gemma 3n and 4 have in
 * their metadata (gguf_arch.layered). */
#ifndef LLMQ_FORMATS_GGUF_GGUF_LAYERS_H
#define LLMQ_FORMATS_GGUF_GGUF_LAYERS_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* Adds them to a config.json. LQ_EFORMAT, LQ_EUNSUPPORTED name the key. */
lq_status gguf_layers_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err);

#endif
