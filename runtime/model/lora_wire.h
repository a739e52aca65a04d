/* runtime/model/lora_wire.h - an adapter as bytes, for the other processes that share a model (part.h): rank 0 reads
 * the file, the others make their part of what it sends. Only for the same program, which part_agree asks for. */
#ifndef LLMQ_RUNTIME_MODEL_LORA_WIRE_H
#define LLMQ_RUNTIME_MODEL_LORA_WIRE_H

#include "formats/source/adapter.h"

/* *out: malloc'ed. */
lq_status lora_wire_put(uint8_t **out, size_t *n, const adp_adapter *a, lq_err *err);
/* What lora_wire_put made; a borrows it, but for its arena: adp_close. */
lq_status lora_wire_get(adp_adapter *a, const uint8_t *bytes, lq_err *err);

#endif
