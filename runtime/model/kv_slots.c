/* runtime/model/kv_slots.c - see kv_slots.h. */
#include "runtime/model/kv_slots.h"

#include <stdlib.h>

size_t kv_slots_bytes(int64_t n) { return (size_t)n * (sizeof(kv_slot) + sizeof(int32_t)); }

lq_status kv_slots_open(kv_slots *st, int64_t n, lq_err *err)
{
    memset(st, 0, sizeof *st);
    st->n = st->n_free = n;
    st->old = st->new = KV_NO_SLOT;
    st->at = calloc((size_t)n, sizeof *st->at);
    st->free_stack = malloc((size_t)n * sizeof *st->free_stack);
    if (!st->at || !st->free_stack)
        return lq_fail(err, LQ_ENOMEM, "KV cache: no memory for a table of %lld slots",
                       (long long)n);
    for (int64_t i = 0; i < n; i++) {
        st->at[i].block = KV_NO_SLOT;
        st->free_stack[i] = (int32_t)(n - 1 - i); /* 0 is taken first */
    }
    return LQ_OK;
}

void kv_slots_close(kv_slots *st)
{
    free(st->at);
    free(st->free_stack);
    memset(st, 0, sizeof *st);
}

/* ---- the list of those that are kept for a block and held by nobody, oldest first ---- */

static void list_add(kv_slots *st, int32_t s)
{
    kv_slot *x = &st->at[s];
    x->prev = st->new;
    x->next = KV_NO_SLOT;
    *(st->new == KV_NO_SLOT ? &st->old : &st->at[st->new].next) = s;
    st->new = s;
    st->n_kept++;
}

static void list_remove(kv_slots *st, int32_t s)
{
    const kv_slot *x = &st->at[s];
    *(x->prev == KV_NO_SLOT ? &st->old : &st->at[x->prev].next) = x->next;
    *(x->next == KV_NO_SLOT ? &st->new : &st->at[x->next].prev) = x->prev;
    st->n_kept--;
}

/* ---- slots ---- */

int32_t kv_slot_take(kv_slots *st, int32_t *lost)
{
    int32_t s = KV_NO_SLOT;
    *lost = KV_NO_SLOT;
    if (st->n_free) {
        s = st->free_stack[--st->n_free];
    } else if (st->n_kept) {
        s = st->old;
        list_remove(st, s);
        *lost = st->at[s].block;
        st->at[s].block = KV_NO_SLOT;
    }
    if (s != KV_NO_SLOT) st->at[s].ref = 1;
    return s;
}

void kv_slot_hold(kv_slots *st, int32_t slot)
{
    if (st->at[slot].ref++ == 0) list_remove(st, slot);
}

void kv_slot_drop(kv_slots *st, int32_t slot)
{
    if (--st->at[slot].ref > 0) return;
    if (st->at[slot].block == KV_NO_SLOT)
        st->free_stack[st->n_free++] = slot;
    else
        list_add(st, slot);
}

void kv_slot_keep(kv_slots *st, int32_t slot, int32_t block) { st->at[slot].block = block; }

void kv_slot_forget(kv_slots *st, int32_t slot)
{
    st->at[slot].block = KV_NO_SLOT;
    if (st->at[slot].ref > 0) return;
    list_remove(st, slot);
    st->free_stack[st->n_free++] = slot;
}
