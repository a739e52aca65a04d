/* formats/gguf/gguf_lists.h - heads and widths of an MLP that are lists, a number for each layer (gguf_arch.lists):
 * Deci's layers without attention or MLP (0), Laguna's heads and its two rotations, MiMo V2's heads of two
 * kinds of layers. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_LISTS_H
#define LLMQ_FORMATS_GGUF_GGUF_LISTS_H

#include "base/json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"

/* Adds to j, which has the largest of each list. LQ_EFORMAT, LQ_ENOMEM. */
lq_status gguf_lists_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err);

#endif
