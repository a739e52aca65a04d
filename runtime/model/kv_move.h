/* runtime/model/kv_move.h - copies of the blocks of a KV cache (kv_memory.h): to and from one piece of the host's
 * memory, and from block to block. On devices copies are queued: behind the steps that wrote what is read,
 * before those that read what is written; of the host's memory there they want alloc_host's. */
#ifndef LLMQ_RUNTIME_MODEL_KV_MOVE_H
#define LLMQ_RUNTIME_MODEL_KV_MOVE_H

#include "runtime/model/kv_memory.h"

/* Of a block's KV_ROWS, or of a slot's KV_NEAR. */
size_t kv_move_bytes(const kv_memory *m, kv_part part);
/* From block or slot i to `to`, or from `from` there; the other is NULL. Of several devices one part lies
 * behind the other, but where they are alike. */
void kv_move(const kv_memory *m, kv_part part, size_t i, void *to, const void *from);
void kv_move_copy(const kv_memory *m, kv_part part, size_t dst, size_t src);

#endif
