/* formats/gguf/gguf_state.h - what a GGUF file says of a model some of whose layers carry a state, as its
 * config.json would: which layers attend, which have a state, an MLP or experts (by their tensors), and
 * the sizes of heads of both kinds. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_STATE_H
#define LLMQ_FORMATS_GGUF_GGUF_STATE_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* Adds to j, which has the numbers that are one for all layers. LQ_EFORMAT, LQ_ENOMEM. */
lq_status gguf_state_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err);

#endif
