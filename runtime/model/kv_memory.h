/* runtime/model/kv_memory.h - the memory of a KV cache (kv.h): K and V of all its blocks, and of its slots of
 * windows.
 *
 * One mapping (or piece of device memory; or one of each, for the layers that run there) holds, for
 * each layer, the K and then the V of block after block; their rows may be of different widths, and
 * layers of different sizes:
 *
 *     [layer][block][K, V][kv head][slot][row_bytes]
 *
 * so that neighbouring blocks of a layer are neighbours in memory. */
#ifndef LLMQ_RUNTIME_MODEL_KV_MEMORY_H
#define LLMQ_RUNTIME_MODEL_KV_MEMORY_H

#include "runtime/model/kv.h"

/* Where a layer's blocks are: of one that reads another's it is that one's. */
typedef struct {
    size_t at;      /* bytes before it in its memory */
    size_t k_bytes; /* K of a block */
    size_t stride;  /* K and V of it */
    bool other;     /* it is another layer's */
    bool near;      /* slots of windows instead of blocks */
} kv_place;

typedef struct {
    kv_place *place;       /* [layers] */
    int64_t layers, first; /* those before `first` are the host's */
    uint8_t *data;
    uint8_t *data_on[DEV_RANKS]; /* on each device: K and V of its own heads */
    bool alike;                  /* each device has the same (latents): one part stands for all */
    size_t data_bytes, on_bytes;
    dev *on;
} kv_memory;

/* c: what one device has of the heads. Also after an error kv_memory_close is called. */
lq_status kv_memory_open(kv_memory *m, const arch_config *c, const kv_opts *o, lq_err *err);
void kv_memory_close(kv_memory *m);
void kv_memory_zero(kv_memory *m);

#endif
