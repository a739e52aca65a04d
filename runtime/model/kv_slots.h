/* runtime/model/kv_slots.h - places of a memory that sequences hold and blocks of the prefix cache keep:
 * states (kv_state.h), and the K and V of layers with a window (kv_window.h).
 *
 * A slot is held by sequences (ref > 0), kept for a block (ref 0: the oldest of these goes first when a
 * slot is wanted), or free. */
#ifndef LLMQ_RUNTIME_MODEL_KV_SLOTS_H
#define LLMQ_RUNTIME_MODEL_KV_SLOTS_H

#include "base/base.h"

enum { KV_NO_SLOT = -1 };

typedef struct {
    int32_t ref;
    int32_t block;      /* that it is kept for; KV_NO_SLOT: none */
    int32_t prev, next; /* of those with ref 0 and a block */
} kv_slot;
typedef struct {
    int64_t n;
    kv_slot *at; /* [n] */
    int32_t *free_stack;
    int64_t n_free, n_kept;
    int32_t old, new;
} kv_slots;

lq_status kv_slots_open(kv_slots *st, int64_t n, lq_err *err);
void kv_slots_close(kv_slots *st);
size_t kv_slots_bytes(int64_t n);
/* Slots that can be had: free, or kept. */
static inline int64_t kv_slots_left(const kv_slots *st) { return st->n_free + st->n_kept; }
/* One with ref 1 and no block; KV_NO_SLOT: all are held. *lost: the block that it was kept for, or
 * KV_NO_SLOT. */
int32_t kv_slot_take(kv_slots *st, int32_t *lost);
void kv_slot_hold(kv_slots *st, int32_t slot);
void kv_slot_drop(kv_slots *st, int32_t slot);
void kv_slot_keep(kv_slots *st, int32_t slot, int32_t block); /* a held slot is that block's too */
void kv_slot_forget(kv_slots *st, int32_t slot);              /* it is no block's any more */

#endif
