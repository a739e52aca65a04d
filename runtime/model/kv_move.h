/* runtime/model/kv_move.h - where the blocks of a KV cache (kv.h) are, and copies of them: to and from one piece of
 * the host's memory, and from block to block. On devices copies are queued: behind the steps that wrote what
 * is read, before those that read what is written; of the host's memory there they want alloc_host's. */
#ifndef LLMQ_RUNTIME_MODEL_KV_MOVE_H
#define LLMQ_RUNTIME_MODEL_KV_MOVE_H

#include "kernels/device.h"
#include "runtime/model/kv_part.h"

/* Where a layer's blocks are: of one that reads another's it is that one's. */
typedef struct {
    size_t at;      /* bytes before it in its memory */
    size_t k_bytes; /* K of a block */
    size_t stride;  /* K and V of it */
    bool other;     /* it is another layer's */
    bool near;      /* slots of windows instead of blocks */
} kv_place;

typedef struct {
    const kv_place *place; /* [layers] */
    int64_t layers, first; /* those before `first` are the host's */
    uint8_t *data;
    uint8_t *const *data_on; /* on each device: K and V of its own heads */
    dev *on;
    bool alike; /* each device has the same (latents): one part stands for all */
} kv_memory;

/* Of a block's KV_ROWS, or of a slot's KV_NEAR. */
size_t kv_move_bytes(const kv_memory *m, kv_part part);
/* From block or slot i to `to`, or from `from` there; the other is NULL. Of several devices one part lies
 * behind the other, but where they are alike. */
void kv_move(const kv_memory *m, kv_part part, size_t i, void *to, const void *from);
void kv_move_copy(const kv_memory *m, kv_part part, size_t dst, size_t src);

#endif
