/* runtime/model/kv_state.c - see kv_state.h. */
#include "runtime/model/kv_state.h"

#include "kernels/core/operands.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- sizes ---- */

static int64_t padded(int64_t n) { return lq_ceil_div(n, SCAN_LANES) * SCAN_LANES; }

int64_t kv_state_conv_floats(const arch_config *c)
{
    return padded((c->conv_taps - 1) * arch_conv_channels(c, c->row->mixer));
}

int64_t kv_state_floats(const arch_config *c, int64_t layer)
{
    const arch_mixer m = c->layer[layer].mixer;
    if (!arch_mixer_has_state(m)) return 0;
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

size_t kv_states_table_bytes(int64_t n) { return (size_t)n * (sizeof(kv_slot) + sizeof(int32_t)); }

lq_status kv_states_open(kv_states *st, const arch_config *c, int64_t n, lq_err *err)
{
    size_t bytes;
    memset(st, 0, sizeof *st);
    st->n = n;
    st->floats = kv_state_offset(c, c->layers);
    st->old = st->new = KV_NO_STATE;
    st->slots = calloc((size_t)n, sizeof *st->slots);
    st->free_stack = malloc((size_t)n * sizeof *st->free_stack);
    if (!lq_mul((size_t)st->floats * sizeof(float), (size_t)n, &bytes) || !st->slots ||
        !st->free_stack)
        return lq_fail(err, LQ_ENOMEM, "no memory for %lld states of sequences", (long long)n);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of %lld states of sequences", bytes,
                       (long long)n);
    madvise(p, bytes, MADV_HUGEPAGE); /* a hint: works without */
    st->data = p;
    for (int64_t i = 0; i < n; i++) {
        st->slots[i].block = KV_NO_STATE;
        st->free_stack[i] = (int32_t)(n - 1 - i); /* 0 is taken first */
    }
    st->n_free = n;
    return LQ_OK;
}

void kv_states_close(kv_states *st)
{
    if (st->data) munmap(st->data, (size_t)(st->n * st->floats) * sizeof(float));
    free(st->slots);
    free(st->free_stack);
    memset(st, 0, sizeof *st);
}

/* ---- the list of those that are kept for a block and held by nobody, oldest first ---- */

static void list_add(kv_states *st, int32_t s)
{
    kv_slot *x = &st->slots[s];
    x->prev = st->new;
    x->next = KV_NO_STATE;
    *(st->new == KV_NO_STATE ? &st->old : &st->slots[st->new].next) = s;
    st->new = s;
    st->n_kept++;
}

static void list_remove(kv_states *st, int32_t s)
{
    const kv_slot *x = &st->slots[s];
    *(x->prev == KV_NO_STATE ? &st->old : &st->slots[x->prev].next) = x->next;
    *(x->next == KV_NO_STATE ? &st->new : &st->slots[x->next].prev) = x->prev;
    st->n_kept--;
}

/* ---- slots ---- */

int32_t kv_state_take(kv_states *st, int32_t *lost)
{
    int32_t s = KV_NO_STATE;
    *lost = KV_NO_STATE;
    if (st->n_free) {
        s = st->free_stack[--st->n_free];
    } else if (st->n_kept) {
        s = st->old;
        list_remove(st, s);
        *lost = st->slots[s].block;
        st->slots[s].block = KV_NO_STATE;
    }
    if (s != KV_NO_STATE) st->slots[s].ref = 1;
    return s;
}

void kv_state_hold(kv_states *st, int32_t slot)
{
    if (st->slots[slot].ref++ == 0) list_remove(st, slot);
}

void kv_state_drop(kv_states *st, int32_t slot)
{
    if (--st->slots[slot].ref > 0) return;
    if (st->slots[slot].block == KV_NO_STATE)
        st->free_stack[st->n_free++] = slot;
    else
        list_add(st, slot);
}

void kv_state_keep(kv_states *st, int32_t slot, int32_t block) { st->slots[slot].block = block; }

void kv_state_forget(kv_states *st, int32_t slot)
{
    st->slots[slot].block = KV_NO_STATE;
    if (st->slots[slot].ref > 0) return;
    list_remove(st, slot);
    st->free_stack[st->n_free++] = slot;
}
