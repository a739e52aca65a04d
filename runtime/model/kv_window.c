/* runtime/model/kv_window.c - see kv_window.h. */
#include "runtime/model/kv_window.h"

#include <assert.h>
#include <stdlib.h>

/* ---- which layers, and how much ---- */

bool kv_has_window(const arch_config *c, int64_t layer)
{
    const arch_layer *l = &c->layer[layer];
    if (!c->window || !l->window || l->kv_back || c->w.both_ways || !arch_mixer_attends(l->mixer))
        return false;
    for (int64_t i = layer + 1; i < c->layers; i++)
        if (c->layer[i].kv_back == i - layer && !c->layer[i].window) return false;
    return true;
}

size_t kv_window_bytes(const arch_config *c, int block_size, kv_types d)
{
    size_t n = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (kv_has_window(c, i)) n += kv_layer_bytes(c, i, block_size, d);
    return n;
}

/* A run's first row sees window - 1 positions before it, which are read from a tile's beginning on. */
int64_t kv_window_slots(const arch_config *c, int block_size, int64_t rows)
{
    if (!kv_window_bytes(c, block_size, KV_F32)) return 0;
    return lq_ceil_div(c->window - 1 + ATTN_TILE - 1 + rows, block_size) + 1;
}

/* The first position that a row at pos has read. */
static int64_t read_from(const kv_windows *w, int64_t pos)
{
    const int64_t first = w->chunks ? pos - pos % w->window : pos - w->window + 1;
    return first > 0 ? first / ATTN_TILE * ATTN_TILE : 0;
}

lq_status kv_windows_open(kv_windows *w, const arch_config *c, const kv_opts *o, lq_err *err)
{
    memset(w, 0, sizeof *w);
    if (!o->n_windows) return LQ_OK;
    w->window = c->window;
    w->chunks = c->row && c->row->window == WINDOW_CHUNKS;
    w->block_size = o->block_size;
    w->most = o->windows_each;
    assert(w->most && !o->on);
    if (o->n_windows < w->most || o->n_windows > o->n_blocks)
        return lq_fail(err, LQ_EVALUE,
                       "KV cache: expected %lld..%lld slots of layers with a window, found %lld",
                       (long long)w->most, (long long)o->n_blocks, (long long)o->n_windows);
    w->kept = calloc((size_t)o->n_blocks, sizeof *w->kept);
    if (!w->kept) return lq_fail(err, LQ_ENOMEM, "KV cache: out of memory");
    return kv_slots_open(&w->slots, o->n_windows, err);
}

void kv_windows_close(kv_windows *w)
{
    free(w->kept);
    kv_slots_close(&w->slots);
}

/* ---- promises ---- */

static int64_t due(const kv_windows *w, int64_t blocks)
{
    return blocks < w->most ? blocks : w->most;
}

bool kv_windows_room(const kv_windows *w, int64_t blocks, int64_t more)
{
    return w->promised + due(w, blocks + more) - due(w, blocks) <= w->slots.n;
}

void kv_windows_resize(kv_windows *w, int64_t blocks, int64_t to)
{
    w->promised += due(w, to) - due(w, blocks);
}

/* ---- slots of a sequence ---- */

static int32_t take(kv_windows *w)
{
    int32_t lost;
    const int32_t slot = kv_slot_take(&w->slots, &lost);
    assert(slot != KV_NO_SLOT);
    if (lost != KV_NO_SLOT && w->lost) w->lost(w->user, lost);
    if (lost != KV_NO_SLOT) w->kept[lost] = 0;
    return slot;
}

int32_t kv_windows_keep(kv_windows *w, int32_t block)
{
    if (!kv_slots_left(&w->slots)) return KV_NO_SLOT;
    const int32_t slot = take(w);
    kv_slot_keep(&w->slots, slot, block);
    w->kept[block] = slot + 1;
    kv_slot_drop(&w->slots, slot);
    return slot;
}

void kv_windows_begin_run(kv_windows *w, kv_seq *s, int64_t pos0, int64_t n)
{
    const int64_t first = read_from(w, pos0) / w->block_size;
    assert(s->near_from <= first && first <= s->near_to);
    while (s->near_from < first)
        kv_slot_drop(&w->slots, s->near[s->near_from++]);
    while (s->near_to * w->block_size < pos0 + n)
        s->near[s->near_to++] = take(w);
}

void kv_windows_cut(kv_windows *w, kv_seq *s, int64_t n_blocks)
{
    while (s->near_to > n_blocks && s->near_to > s->near_from)
        kv_slot_drop(&w->slots, s->near[--s->near_to]);
    if (s->near_to > n_blocks) s->near_from = s->near_to = n_blocks;
}

int64_t kv_windows_from(const kv_windows *w, int64_t n)
{
    return read_from(w, n * w->block_size) / w->block_size;
}

bool kv_windows_may_begin(const kv_windows *w, const kv_seq *s, int64_t n)
{
    int64_t i = kv_windows_from(w, n);
    while (i < n && w->kept[s->table[i]])
        i++;
    return i == n;
}

void kv_windows_begin(kv_windows *w, kv_seq *s, int64_t n)
{
    s->near_from = kv_windows_from(w, n);
    s->near_to = n;
    for (int64_t i = s->near_from; i < n; i++) {
        s->near[i] = w->kept[s->table[i]] - 1;
        kv_slot_hold(&w->slots, s->near[i]);
    }
}

void kv_windows_fork(kv_windows *w, kv_seq *dst, const kv_seq *src)
{
    dst->near_from = src->near_from;
    dst->near_to = src->near_to;
    for (int64_t i = src->near_from; i < src->near_to; i++) {
        dst->near[i] = src->near[i];
        kv_slot_hold(&w->slots, dst->near[i]);
    }
}

static bool holds(const kv_seq *s, int64_t i) { return i >= s->near_from && i < s->near_to; }

void kv_windows_enter(kv_windows *w, kv_seq *s, int64_t i)
{
    const int32_t b = s->table[i], kept = w->kept[b] - 1;
    if (!holds(s, i) || kept == s->near[i]) return;
    if (kept < 0) {
        kv_slot_keep(&w->slots, s->near[i], b);
        w->kept[b] = s->near[i] + 1;
        return;
    }
    kv_slot_hold(&w->slots, kept); /* the bytes are the same */
    kv_slot_drop(&w->slots, s->near[i]);
    s->near[i] = kept;
}

void kv_windows_forget(kv_windows *w, int32_t block)
{
    if (!w->slots.n || !w->kept[block]) return;
    kv_slot_forget(&w->slots, w->kept[block] - 1);
    w->kept[block] = 0;
}

bool kv_windows_own(kv_windows *w, kv_seq *s, int64_t i, int32_t *from)
{
    if (!holds(s, i)) return false;
    *from = s->near[i];
    const kv_slot *x = &w->slots.at[*from];
    if (x->ref == 1 && x->block == KV_NO_SLOT) return false;
    s->near[i] = take(w);
    return true;
}
