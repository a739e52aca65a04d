/* runtime/model/kv_part.h - what of a block of the KV cache can be kept outside of it. */
#ifndef LLMQ_RUNTIME_MODEL_KV_PART_H
#define LLMQ_RUNTIME_MODEL_KV_PART_H

#include <stdint.h>

typedef enum {
    KV_ROWS,  /* K and V of its tokens, all layers */
    KV_STATE, /* the states at its end (kv_state.h) */
    KV_NEAR,  /* K and V of layers with a window (kv_window.h) */
    KV_PARTS
} kv_part;

enum { KV_MAX_BLOCK = 32 }; /* tokens */

#endif
