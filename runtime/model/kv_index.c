/* runtime/model/kv_index.c - see kv_index.h. */
#include "runtime/model/kv_index.h"

#include <stdlib.h>

void kvi_clear(kv_index *x)
{
    free(x->slots);
    *x = (kv_index){ 0 };
}

static size_t home(const kv_index *x, const uint64_t key[2], unsigned part)
{
    return (size_t)(key[0] + part) & (x->n_slots - 1);
}

/* Its slot, or the empty one where it would be. */
static size_t slot_of(const kv_index *x, const uint64_t key[2], kv_part part)
{
    size_t i = home(x, key, (unsigned)part);
    for (;; i = (i + 1) & (x->n_slots - 1)) {
        const kvi_file *f = &x->slots[i];
        if (!f->part) return i;
        if (f->key[0] == key[0] && f->key[1] == key[1] && f->part == (unsigned)part + 1) return i;
    }
}

static kvi_file *find(const kv_index *x, const uint64_t key[2], kv_part part)
{
    kvi_file *f = x->n ? &x->slots[slot_of(x, key, part)] : NULL;
    return f && f->part ? f : NULL;
}

const kvi_file *kvi_find(const kv_index *x, const uint64_t key[2], kv_part part)
{
    return find(x, key, part);
}

static bool grow(kv_index *x)
{
    kv_index wide = { .n_slots = x->n_slots ? 2 * x->n_slots : 64, .n = x->n, .bytes = x->bytes };
    wide.slots = calloc(wide.n_slots, sizeof *wide.slots);
    if (!wide.slots) return false;
    for (size_t i = 0; i < x->n_slots; i++) {
        const kvi_file *f = &x->slots[i];
        if (f->part) wide.slots[slot_of(&wide, f->key, (kv_part)(f->part - 1))] = *f;
    }
    free(x->slots);
    *x = wide;
    return true;
}

bool kvi_add(kv_index *x, const uint64_t key[2], kv_part part, size_t bytes, int64_t used)
{
    if (2 * (size_t)(x->n + 1) > x->n_slots && !grow(x)) return false;
    kvi_file *f = &x->slots[slot_of(x, key, part)];
    if (f->part)
        x->bytes -= (size_t)f->pages * KVI_PAGE;
    else
        x->n++;
    *f = (kvi_file){ .key = { key[0], key[1] },
                     .used = used,
                     .pages = (uint32_t)kvi_pages(bytes),
                     .part = (uint8_t)(part + 1) };
    x->bytes += (size_t)f->pages * KVI_PAGE;
    return true;
}

void kvi_used(kv_index *x, const uint64_t key[2], kv_part part, int64_t used)
{
    kvi_file *f = find(x, key, part);
    if (f && f->used < used) f->used = used;
}

void kvi_remove(kv_index *x, const uint64_t key[2], kv_part part)
{
    kvi_file *f = find(x, key, part);
    if (!f) return;
    const size_t mask = x->n_slots - 1;
    size_t i = (size_t)(f - x->slots);
    x->bytes -= (size_t)f->pages * KVI_PAGE;
    x->n--;
    /* Close the gap: move back every later one of the run whose home is at or before it. */
    for (size_t j = (i + 1) & mask; x->slots[j].part; j = (j + 1) & mask) {
        const kvi_file *g = &x->slots[j];
        if (((j - home(x, g->key, g->part - 1u)) & mask) < ((j - i) & mask)) continue;
        x->slots[i] = *g;
        i = j;
    }
    x->slots[i].part = 0;
}

static int by_use(const void *a, const void *b)
{
    const kvi_file *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

void kvi_sort(kvi_file *all, int64_t n) { qsort(all, (size_t)n, sizeof *all, by_use); }

kvi_file *kvi_copy(const kv_index *x)
{
    kvi_file *all = malloc((size_t)(x->n + 1) * sizeof *all);
    int64_t n = 0;
    if (!all) return NULL;
    for (size_t i = 0; i < x->n_slots; i++)
        if (x->slots[i].part) all[n++] = x->slots[i];
    return all;
}
