/* runtime/model/kv_state.c - see kv_state.h. */
#include "runtime/model/kv_state.h"

#include "base/os.h"
#include "kernels/core/operands.h"

#include <sys/mman.h>

/* ---- sizes ---- */

static int64_t padded(int64_t n) { return lq_ceil_div(n, SCAN_LANES) * SCAN_LANES; }

int64_t kv_state_conv_floats(const arch_config *c)
{
    const int64_t n = (c->conv_taps - 1) * arch_conv_channels(c, c->row->mixer);
    return padded(n ? n
                    : 1); /* of one tap there is nothing to keep, but each sequence has a place */
}

int64_t kv_state_floats(const arch_config *c, int64_t layer)
{
    const arch_mixer m = c->layer[layer].mixer;
    if (!arch_mixer_has_state(m)) return 0;
    if (m == MIX_HEAVY) return 3 * padded(c->head_dim);
    if (m == MIX_SPARSE) return 6 * (padded(c->head_dim) + padded(c->index_dim));
    const int64_t heads = m == MIX_CONV ? 0 : c->mix_heads;
    return kv_state_conv_floats(c) + heads * padded(c->mix_value) * c->mix_key;
}

int64_t kv_state_offset(const arch_config *c, int64_t layer)
{
    int64_t at = 0;
    for (int64_t i = 0; i < layer; i++)
        at += kv_state_floats(c, i);
    return at;
}

lq_status kv_states_open(kv_states *st, const arch_config *c, int64_t n, lq_err *err)
{
    size_t bytes;
    memset(st, 0, sizeof *st);
    st->floats = kv_state_offset(c, c->layers);
    lq_status s = kv_slots_open(&st->slots, n, err);
    if (s) return s;
    if (!lq_mul((size_t)st->floats * sizeof(float), (size_t)n, &bytes))
        return lq_fail(err, LQ_ENOMEM, "no memory for %lld states of sequences", (long long)n);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of %lld states of sequences", bytes,
                       (long long)n);
    os_huge_pages(p, bytes);
    st->data = p;
    return LQ_OK;
}

void kv_states_close(kv_states *st)
{
    if (st->data) munmap(st->data, (size_t)(st->slots.n * st->floats) * sizeof(float));
    kv_slots_close(&st->slots);
    memset(st, 0, sizeof *st);
}
