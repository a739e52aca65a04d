/* runtime/model/kv_state.c - see kv_state.h. */
#include "runtime/model/kv_state.h"

#include "base/os.h"
#include "formats/arch/ngrams.h"
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

int64_t kv_state_tapped(const arch_config *c, int64_t layer, arch_role r)
{
    static const arch_role roles[] = { R_K_CONV, R_V_CONV, R_ATTN_CONV, R_MLP_CONV };
    const arch_config *own = arch_at(c, layer);
    int64_t at = 0;
    for (size_t i = 0; i < LQ_COUNT(roles) && roles[i] != r; i++) {
        int64_t N, K;
        arch_role_shape(own, roles[i], &N, &K);
        at += K / c->conv_taps * (c->conv_taps - 1);
    }
    return at;
}

int64_t kv_state_ngrams_at(const arch_config *c, int64_t layer)
{
    const arch_mixer m = c->layer[layer].mixer;
    if (!arch_mixer_has_state(m)) return 0;
    if (m == MIX_CCA)
        return padded(arch_cca_back(c) * arch_cca_channels(c) + c->kv_heads * c->v_dim / 2);
    if (m == MIX_TAPPED) return padded(kv_state_tapped(c, layer, ARCH_N_ROLES));
    if (m == MIX_HEAVY) return 3 * padded(c->head_dim);
    if (m == MIX_SPARSE) return 6 * (padded(c->head_dim) + padded(c->index_dim));
    const int64_t heads = m == MIX_CONV ? 0 : c->mix_heads;
    return kv_state_conv_floats(c) + heads * padded(c->mix_value) * c->mix_key;
}

int64_t kv_state_floats(const arch_config *c, int64_t layer)
{
    const int64_t n = kv_state_ngrams_at(c, layer);
    if (!c->layer[layer].ngrams) return n;
    return n + padded(arch_ngram_back(c) * c->hyper * c->hidden + c->ngram - 1);
}

int64_t kv_state_offset(const arch_config *c, int64_t layer)
{
    int64_t at = 0;
    for (int64_t i = 0; i < layer; i++)
        at += kv_state_floats(c, i);
    return at;
}

/* Of a slot on the device. */
static size_t row_bytes(const kv_states *st)
{
    return (size_t)(st->floats - st->here) * sizeof(float);
}
static float *row_on(const kv_states *st, int rank, int32_t slot)
{
    return st->data_on[rank] + slot * (st->floats - st->here);
}

lq_status kv_states_open(kv_states *st, const arch_config *c, int64_t n, dev *on, int64_t first,
                         lq_err *err)
{
    size_t bytes;
    memset(st, 0, sizeof *st);
    st->floats = kv_state_offset(c, c->layers);
    st->here = on ? kv_state_offset(c, first) : st->floats;
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
    if (st->here == st->floats) return LQ_OK;
    st->on = on;
    int r = 0;
    for (; on && !s; on = on->peer, r++) {
        s = dev_take(&p, on, row_bytes(st) * (size_t)n, "the states of sequences need", err);
        if (!s) st->data_on[r] = p;
    }
    return s;
}

void kv_states_close(kv_states *st)
{
    int r = 0;
    for (dev *on = st->on; on; on = on->peer, r++)
        if (st->data_on[r]) on->ops->free(on, st->data_on[r]);
    if (st->data) munmap(st->data, (size_t)(st->slots.n * st->floats) * sizeof(float));
    kv_slots_close(&st->slots);
    memset(st, 0, sizeof *st);
}

/* ---- slots ---- */

void kv_states_copy(const kv_states *st, int32_t dst, int32_t src)
{
    const size_t n = row_bytes(st);
    int r = 0;
    memcpy(kv_state_data(st, dst), kv_state_data(st, src), (size_t)st->here * sizeof(float));
    for (dev *on = st->on; on; on = on->peer, r++) {
        on->ops->bind(on);
        on->ops->copy(on, &(dev_copy_args){ row_on(st, r, dst), row_on(st, r, src), n, n, n, 1 });
    }
}

void kv_states_clear(const kv_states *st, int32_t slot)
{
    int r = 0;
    memset(kv_state_data(st, slot), 0, (size_t)st->here * sizeof(float));
    for (dev *on = st->on; on; on = on->peer, r++) {
        on->ops->bind(on);
        on->ops->zero(on, row_on(st, r, slot), row_bytes(st));
    }
}

size_t kv_states_bytes(const kv_states *st)
{
    return (size_t)st->here * sizeof(float) +
           row_bytes(st) * (size_t)(st->on ? dev_ranks(st->on) : 0);
}

void kv_states_move(const kv_states *st, int32_t slot, void *to, const void *from)
{
    size_t at = (size_t)st->here * sizeof(float);
    float *own = kv_state_data(st, slot);
    int r = 0;
    memcpy(to ? to : own, to ? own : from, at);
    for (dev *on = st->on; on; on = on->peer, r++, at += row_bytes(st)) {
        on->ops->bind(on);
        if (to)
            on->ops->download(on, (uint8_t *)to + at, row_on(st, r, slot), row_bytes(st));
        else
            on->ops->upload(on, row_on(st, r, slot), (const uint8_t *)from + at, row_bytes(st));
    }
}
