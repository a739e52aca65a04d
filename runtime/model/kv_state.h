/* runtime/model/kv_state.h - the states of sequences: what layers without a growing cache carry from one
 * position to the next, and copies of it at the borders of blocks, from which another sequence with
 * the same beginning goes on.
 *
 * A slot (kv_slots.h) holds all layers' states at one position. */
#ifndef LLMQ_RUNTIME_MODEL_KV_STATE_H
#define LLMQ_RUNTIME_MODEL_KV_STATE_H

#include "formats/arch/arch.h"
#include "kernels/device.h"
#include "runtime/model/kv_slots.h"

/* A state of one layer, in floats, and where it begins in a slot (layer = layers: a whole slot):
 *     the convolution's last inputs [conv_taps - 1, channels], padded to SCAN_LANES floats
 *     the heads' states [heads, blocks of SCAN_LANES values, mix_key, SCAN_LANES]
 *     of a layer with n-grams what runtime/forward/forward_ngram.c keeps
 * Of MIX_CCA [arch_cca_back, arch_cca_channels] q and k of the positions before, oldest first, then R_V_LATE's of the last,
 * padded together. Of one that compresses: what of the positions since the last compressed one goes into the next
 * [maximum, sum, weighted sum][head_dim]; of MIX_SPARSE also what goes into the one after that, and both
 * of the indexer's keys; each row padded to SCAN_LANES floats. A sum of 0: nothing yet */
int64_t kv_state_floats(const arch_config *c, int64_t layer);
/* Of MIX_TAPPED: where of it the inputs of R_K_CONV and so on [conv_taps - 1, channels] begin, oldest first; ARCH_N_ROLES:
 * where the last ends. */
int64_t kv_state_tapped(const arch_config *c, int64_t layer, arch_role r);
int64_t kv_state_conv_floats(const arch_config *c); /* before the heads' */
int64_t kv_state_ngrams_at(const arch_config *c, int64_t layer);
int64_t kv_state_offset(const arch_config *c, int64_t layer);

typedef struct {
    kv_slots slots;
    int64_t floats; /* of a slot */
    float *data;
    dev *on;      /* whose memory holds the states of layers from one on; NULL: all are here */
    int64_t here; /* floats of a slot before those; of the others `data` has untouched memory */
    float *data_on[DEV_RANKS]; /* [slots, floats - here] of each device */
} kv_states;

/* n slots, memory that is not touched before it is used, but for what is on a device: of layers from `first` on. c: what one
 * device has of a state. */
lq_status kv_states_open(kv_states *st, const arch_config *c, int64_t n, dev *on, int64_t first,
                         lq_err *err);
void kv_states_close(kv_states *st);
/* Slot dst becomes a copy of src; zeros. On a device they are queued. */
void kv_states_copy(const kv_states *st, int32_t dst, int32_t src);
void kv_states_clear(const kv_states *st, int32_t slot);
/* Bytes of a slot as that goes; with several devices their parts one behind the other. */
size_t kv_states_bytes(const kv_states *st);
/* A slot to `to` or from `from`; the other is NULL. Of a device as kv_move. */
void kv_states_move(const kv_states *st, int32_t slot, void *to, const void *from);
/* Of one that was just taken they are whatever they were. */
static inline float *kv_state_data(const kv_states *st, int32_t slot)
{
    return st->data + (int64_t)slot * st->floats;
}

#endif
