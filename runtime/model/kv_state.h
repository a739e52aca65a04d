/* runtime/model/kv_state.h - the states of sequences: what layers without a growing cache carry from one
 * position to the next, and copies of it at the borders of blocks, from which another sequence with
 * the same beginning goes on.
 *
 * A slot holds all layers' states at one position. It is held by sequences (ref > 0), kept for a
 * block of the prefix cache (ref 0: the oldest of these goes first when a slot is wanted), or free. */
#ifndef LLMQ_RUNTIME_MODEL_KV_STATE_H
#define LLMQ_RUNTIME_MODEL_KV_STATE_H

#include "formats/arch/arch.h"

enum { KV_NO_STATE = -1 };

/* A state of one layer, in floats, and where it begins in a slot (layer = layers: a whole slot):
 *     the convolution's last inputs [conv_taps - 1, channels], padded to SCAN_LANES floats
 *     the heads' states [heads, blocks of SCAN_LANES values, mix_key, SCAN_LANES] */
int64_t kv_state_floats(const arch_config *c, int64_t layer);
int64_t kv_state_conv_floats(const arch_config *c); /* before the heads' */
int64_t kv_state_offset(const arch_config *c, int64_t layer);

typedef struct {
    int32_t ref;
    int32_t block;      /* whose end it is kept for; KV_NO_STATE: none */
    int32_t prev, next; /* of those with ref 0 and a block */
} kv_slot;
typedef struct {
    int64_t n, floats; /* of a slot */
    float *data;
    kv_slot *slots;
    int32_t *free_stack;
    int64_t n_free, n_kept;
    int32_t old, new;
} kv_states;

/* n slots, memory that is not touched before it is used. */
lq_status kv_states_open(kv_states *st, const arch_config *c, int64_t n, lq_err *err);
void kv_states_close(kv_states *st);
size_t kv_states_table_bytes(int64_t n);
/* Slots that can be had: free, or kept. */
static inline int64_t kv_states_left(const kv_states *st) { return st->n_free + st->n_kept; }
static inline float *kv_state_data(const kv_states *st, int32_t slot)
{
    return st->data + (int64_t)slot * st->floats;
}
/* One with ref 1 and no block; KV_NO_STATE: all are held. *lost: the block whose copy went for it,
 * or KV_NO_STATE. Its floats are whatever they were. */
int32_t kv_state_take(kv_states *st, int32_t *lost);
void kv_state_hold(kv_states *st, int32_t slot);
void kv_state_drop(kv_states *st, int32_t slot);
void kv_state_keep(kv_states *st, int32_t slot,
                   int32_t block);                 /* a held slot is that block's too */
void kv_state_forget(kv_states *st, int32_t slot); /* it is no block's any more */

#endif
