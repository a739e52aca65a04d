/* runtime/model/kv.c - see kv.h; the memory is kv_memory.c. Three states of a block:
 *
 *     held    ref > 0                    some sequence's table names it
 *     cached  ref = 0, findable          in the LRU list, oldest first out
 *     free    ref = 0, not findable      on the free stack
 *
 * A findable block is known by XXH3-128(hash of its parent, its tokens); the root's parent is the
 * hash of the salt and the adapter. A match is also checked by its tokens and by the serial number of its parent,
 * so a chain is followed only through the blocks that it was built on, whatever the hash does. */
#include "runtime/model/kv.h"

#include "base/hash.h"
#include "runtime/model/kv_move.h"
#include "runtime/model/kv_state.h"
#include "runtime/model/kv_window.h"
#include "runtime/model/rank.h"

#include <assert.h>
#include <stdlib.h>

enum { NONE = -1, MAX_BLOCK = KV_MAX_BLOCK };

typedef struct {
    int32_t ref;
    int32_t prev, next; /* LRU neighbours while cached */
    bool findable;
    uint64_t hash[2];
    uint64_t serial; /* of this registration; never used twice */
    uint64_t parent; /* serial of the parent block; 0 for the first block of a sequence */
    int32_t depth;   /* blocks before it */
    int32_t state;   /* slot of the state at its end, + 1; 0: none is kept */
} block;

struct kv_cache {
    kv_opts opts;
    int64_t table_cap;
    kv_memory memory;
    block *blocks;
    int32_t *tokens; /* [n_blocks, block_size] of findable blocks */
    int32_t *free_stack;
    int64_t n_free, n_cached;
    int32_t lru_old, lru_new;
    int32_t *slots; /* open addressing over hash[0]: block number or NONE */
    size_t n_slots; /* a power of two, at least twice n_blocks */
    uint64_t next_serial;
    kv_states states; /* floats 0: no layer has a state */
    kv_windows windows;
    void (*leaves)(void *user, int32_t block, unsigned parts); /* may be NULL */
    void *leaves_user;
    void (*copied)(void *user, kv_copy c); /* may be NULL */
    void *copied_user;
    kv_others others; /* zero: there are none */
};

/* A power of two, at least twice the blocks. */
static size_t slots_for(int64_t n_blocks)
{
    size_t n = 2;
    while (n < 2 * (size_t)n_blocks)
        n *= 2;
    return n;
}

static int64_t n_states(const kv_opts *o) { return o->n_states ? o->n_states : o->n_blocks; }

size_t kv_table_bytes(const kv_opts *o)
{
    const size_t per = sizeof(block) + ((size_t)o->block_size + 1) * sizeof(int32_t);
    return (size_t)o->n_blocks * per + slots_for(o->n_blocks) * sizeof(int32_t) +
           kv_slots_bytes(o->n_states) + kv_slots_bytes(o->n_windows) +
           (o->n_windows ? (size_t)o->n_blocks * sizeof(int32_t) : 0);
}

size_t kv_state_bytes(const arch_config *c)
{
    return (size_t)kv_state_offset(c, c->layers) * sizeof(float);
}

size_t kv_state_bytes_on(const arch_config *c, int64_t first, int ranks)
{
    arch_config own = *c;
    own.mix_heads /= ranks;
    own.mix_groups /= ranks;
    return kv_state_bytes(&own) - (size_t)kv_state_offset(&own, first) * sizeof(float);
}

static void hash_words(uint64_t out[2], const void *data, size_t n)
{
    lq_hash h = lq_hash_bytes(data, n);
    memcpy(out, h.b, sizeof h.b);
}

static lq_status open_cache(kv_cache **out, const arch_config *c, const kv_opts *o, lq_err *err)
{
    if (o->block_size != 8 && o->block_size != 16 && o->block_size != 32)
        return lq_fail(err, LQ_EVALUE, "KV block size: expected 8, 16 or 32, found %d",
                       o->block_size);
    if (o->n_blocks < 1 || o->n_blocks > INT32_MAX / MAX_BLOCK)
        return lq_fail(err, LQ_EVALUE, "KV blocks: expected 1..%d, found %lld",
                       INT32_MAX / MAX_BLOCK, (long long)o->n_blocks);
    if (c->w.mla && !kv_alike(o->dtype))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "KV cache: latent attention has one row for K and V: expected one type, "
                       "found %s",
                       kv_types_text(o->dtype));
    kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv) return lq_fail(err, LQ_ENOMEM, "KV cache: out of memory");
    size_t n = (size_t)o->n_blocks;
    kv->opts = *o;
    if (!o->on) kv->opts.first = c->layers;
    kv->table_cap = lq_ceil_div(c->max_pos > 0 ? c->max_pos : 1, o->block_size);
    if (kv->table_cap > o->n_blocks) kv->table_cap = o->n_blocks;
    kv->lru_old = kv->lru_new = NONE;
    kv->next_serial = 1;
    kv->n_slots = slots_for(o->n_blocks);
    if (!kv->opts.hash) kv->opts.hash = hash_words;
    kv->blocks = calloc(n, sizeof *kv->blocks);
    kv->tokens = calloc(n * (size_t)o->block_size, sizeof *kv->tokens);
    kv->free_stack = malloc(n * sizeof *kv->free_stack);
    kv->slots = malloc(kv->n_slots * sizeof *kv->slots);
    lq_status s = LQ_OK;
    if (!kv->blocks || !kv->tokens || !kv->free_stack || !kv->slots)
        s = lq_fail(err, LQ_ENOMEM, "KV cache: no memory for the tables of %zu blocks", n);
    if (!s) s = kv_memory_open(&kv->memory, c, &kv->opts, err);
    if (!s) s = kv_windows_open(&kv->windows, c, o, err);
    if (!s && arch_has_state(c))
        s = kv_states_open(&kv->states, c, n_states(o), o->on, o->first, err);
    if (s) {
        kv_close(kv);
        return s;
    }
    for (size_t i = 0; i < kv->n_slots; i++)
        kv->slots[i] = NONE;
    for (size_t i = 0; i < n; i++)
        kv->free_stack[i] = (int32_t)(n - 1 - i); /* 0 is taken first */
    kv->n_free = o->n_blocks;
    *out = kv;
    return LQ_OK;
}

lq_status kv_open(kv_cache **out, const arch_config *whole, const kv_opts *o, lq_err *err)
{
    lq_arena a = { 0 };
    arch_config own = *whole; /* what one device has of a block */
    *out = NULL;
    lq_status s = LQ_OK;
    if (o->on && dev_ranks(o->on) > 1) s = rank_config(&own, whole, dev_ranks(o->on), &a, err);
    if (!s) s = open_cache(out, &own, o, err);
    lq_arena_free(&a);
    return s;
}
void kv_close(kv_cache *kv)
{
    if (!kv) return;
    kv_memory_close(&kv->memory);
    kv_states_close(&kv->states);
    kv_windows_close(&kv->windows);
    free(kv->blocks);
    free(kv->tokens);
    free(kv->free_stack);
    free(kv->slots);
    free(kv);
}

const kv_opts *kv_options(const kv_cache *kv) { return &kv->opts; }
int64_t kv_free_blocks(const kv_cache *kv) { return kv->n_free + kv->n_cached; }
int64_t kv_cached_blocks(const kv_cache *kv) { return kv->n_cached; }
int64_t kv_spare_blocks(const kv_cache *kv)
{
    const int64_t n = kv_free_blocks(kv), near = kv->windows.slots.n - kv->windows.promised;
    return kv->windows.slots.n && near < n ? near : n;
}
size_t kv_block_stride(const kv_cache *kv, int64_t layer) { return kv->memory.place[layer].stride; }
bool kv_in_window(const kv_cache *kv, int64_t layer) { return kv->memory.place[layer].near; }
uint8_t *kv_k_on(kv_cache *kv, int64_t layer, int rank)
{
    kv_memory *m = &kv->memory;
    return (layer < m->first ? m->data : m->data_on[rank]) + m->place[layer].at;
}
uint8_t *kv_k(kv_cache *kv, int64_t layer) { return kv_k_on(kv, layer, 0); }
uint8_t *kv_v_on(kv_cache *kv, int64_t layer, int rank)
{
    return kv_k_on(kv, layer, rank) + kv->memory.place[layer].k_bytes;
}
uint8_t *kv_v(kv_cache *kv, int64_t layer) { return kv_v_on(kv, layer, 0); }

void kv_zero(kv_cache *kv) { kv_memory_zero(&kv->memory); }

/* ---- LRU list of cached blocks ---- */

static void lru_add(kv_cache *kv, int32_t b)
{
    block *x = &kv->blocks[b];
    x->prev = kv->lru_new;
    x->next = NONE;
    if (kv->lru_new != NONE)
        kv->blocks[kv->lru_new].next = b;
    else
        kv->lru_old = b;
    kv->lru_new = b;
    kv->n_cached++;
}

static void lru_remove(kv_cache *kv, int32_t b)
{
    const block *x = &kv->blocks[b];
    if (x->prev != NONE)
        kv->blocks[x->prev].next = x->next;
    else
        kv->lru_old = x->next;
    if (x->next != NONE)
        kv->blocks[x->next].prev = x->prev;
    else
        kv->lru_new = x->prev;
    kv->n_cached--;
}

/* ---- the table of findable blocks ---- */

static size_t home(const kv_cache *kv, int32_t b)
{
    return (size_t)kv->blocks[b].hash[0] & (kv->n_slots - 1);
}

static void index_add(kv_cache *kv, int32_t b)
{
    size_t i = home(kv, b);
    while (kv->slots[i] != NONE)
        i = (i + 1) & (kv->n_slots - 1);
    kv->slots[i] = b;
    kv->blocks[b].findable = true;
}

/* The state at the end of a block is kept no more. */
static void forget_state(kv_cache *kv, int32_t b)
{
    if (kv->blocks[b].state) kv_slot_forget(&kv->states.slots, kv->blocks[b].state - 1);
    kv->blocks[b].state = 0;
}

static void index_remove(kv_cache *kv, int32_t b)
{
    size_t mask = kv->n_slots - 1, i = home(kv, b);
    while (kv->slots[i] != b)
        i = (i + 1) & mask;
    /* Close the gap: move back every later entry of the run whose home lies at or before it. */
    for (size_t j = (i + 1) & mask; kv->slots[j] != NONE; j = (j + 1) & mask) {
        if (((j - home(kv, kv->slots[j])) & mask) < ((j - i) & mask)) continue;
        kv->slots[i] = kv->slots[j];
        i = j;
    }
    kv->slots[i] = NONE;
    kv->blocks[b].findable = false;
    forget_state(kv, b);
    kv_windows_forget(&kv->windows, b);
}

typedef struct {
    uint64_t hash[2];
    uint64_t parent;
} chain_link;

/* Before the first block. */
static void chain_root(const kv_cache *kv, uint64_t hash[2], uint64_t adapter, const char *salt)
{
    const uint64_t *of = kv->opts.of;
    hash[0] = hash[1] = 0;
    if (salt) kv->opts.hash(hash, salt, strlen(salt));
    if (!of[0] && !of[1] && !adapter) return;
    const uint64_t all[] = { of[0], of[1], adapter, hash[0], hash[1] };
    kv->opts.hash(hash, all, sizeof all);
}

static chain_link chain_next(const kv_cache *kv, const uint64_t parent_hash[2], uint64_t parent,
                             const int32_t *ids)
{
    uint8_t bytes[16 + MAX_BLOCK * 4];
    size_t n = (size_t)kv->opts.block_size * sizeof *ids;
    memcpy(bytes, parent_hash, 16);
    memcpy(bytes + 16, ids, n);
    chain_link l = { .parent = parent };
    kv->opts.hash(l.hash, bytes, 16 + n);
    return l;
}

static int32_t index_find(const kv_cache *kv, const chain_link *l, const int32_t *ids)
{
    size_t bs = (size_t)kv->opts.block_size;
    for (size_t i = (size_t)l->hash[0] & (kv->n_slots - 1); kv->slots[i] != NONE;
         i = (i + 1) & (kv->n_slots - 1)) {
        int32_t b = kv->slots[i];
        const block *x = &kv->blocks[b];
        if (x->hash[0] == l->hash[0] && x->hash[1] == l->hash[1] && x->parent == l->parent &&
            memcmp(kv->tokens + (size_t)b * bs, ids, bs * sizeof *ids) == 0)
            return b;
    }
    return NONE;
}

/* ---- taking and dropping blocks ---- */

static unsigned parts_of(const kv_cache *kv, int32_t b)
{
    const block *x = &kv->blocks[b];
    const bool near = kv->windows.slots.n && kv->windows.kept[b];
    return !x->findable
               ? 0
               : 1u << KV_ROWS | (x->state ? 1u << KV_STATE : 0) | (near ? 1u << KV_NEAR : 0);
}

static void leaving(const kv_cache *kv, int32_t b, unsigned parts)
{
    if (kv->leaves && parts) kv->leaves(kv->leaves_user, b, parts);
}

/* The caller knows that kv_free_blocks > 0. */
static int32_t take_block(kv_cache *kv)
{
    int32_t b;
    if (kv->n_free) {
        b = kv->free_stack[--kv->n_free];
    } else {
        b = kv->lru_old;
        leaving(kv, b, parts_of(kv, b));
        lru_remove(kv, b);
        index_remove(kv, b);
    }
    kv->blocks[b].ref = 1;
    return b;
}

static void hold_block(kv_cache *kv, int32_t b)
{
    if (kv->blocks[b].ref++ == 0) lru_remove(kv, b);
}

static void drop_block(kv_cache *kv, int32_t b)
{
    if (--kv->blocks[b].ref > 0) return;
    if (kv->blocks[b].findable)
        lru_add(kv, b);
    else
        kv->free_stack[kv->n_free++] = b;
}

void kv_make_copy(kv_cache *kv, kv_copy c)
{
    switch (c.kind) {
    case KV_COPY_ROWS:
    case KV_COPY_NEAR:
        kv_move_copy(&kv->memory, c.kind == KV_COPY_NEAR ? KV_NEAR : KV_ROWS, (size_t)c.dst,
                     (size_t)c.src);
        break;
    case KV_COPY_STATE:
        kv_states_copy(&kv->states, c.dst, c.src);
        break;
    case KV_CLEAR_STATE:
        kv_states_clear(&kv->states, c.dst);
        break;
    }
    if (kv->copied) kv->copied(kv->copied_user, c);
}

/* ---- sequences ---- */

void kv_seq_init(kv_seq *s) { memset(s, 0, sizeof *s); }

static void drop_from(kv_cache *kv, kv_seq *s, int64_t n_blocks)
{
    if (kv->windows.slots.n && s->n_blocks > n_blocks) {
        kv_windows_cut(&kv->windows, s, n_blocks);
        kv_windows_resize(&kv->windows, s->n_blocks, n_blocks);
    }
    /* Last first: the start of a prefix, which more requests share, is evicted last. */
    while (s->n_blocks > n_blocks)
        drop_block(kv, s->table[--s->n_blocks]);
}

/* ---- states ---- */

static int32_t take_state(kv_cache *kv)
{
    int32_t lost, slot = kv_slot_take(&kv->states.slots, &lost);
    if (lost != KV_NO_SLOT) {
        leaving(kv, lost, 1u << KV_STATE);
        kv->blocks[lost].state = 0;
    }
    return slot;
}

static void drop_marks(kv_cache *kv, kv_seq *s)
{
    while (s->n_marks)
        kv_slot_drop(&kv->states.slots, s->marks[--s->n_marks].slot);
}

static void drop_undo(kv_cache *kv, kv_seq *s)
{
    while (s->n_undo)
        kv_slot_drop(&kv->states.slots, s->undo[--s->n_undo].slot);
    s->n_next = 0;
}

static void drop_state(kv_cache *kv, kv_seq *s)
{
    drop_marks(kv, s);
    drop_undo(kv, s);
    if (s->state) kv_slot_drop(&kv->states.slots, s->state - 1);
    s->state = 0;
    s->state_at = 0;
}

/* Does the sequence need a slot before it can be written: a first one, or one of its own? */
static bool wants_state(const kv_cache *kv, const kv_seq *s)
{
    if (!kv->states.floats) return false;
    const kv_slot *x = s->state ? &kv->states.slots.at[s->state - 1] : NULL;
    return !x || x->ref > 1 || x->block != KV_NO_SLOT;
}

/* A slot can be had: the sequence's state moves there, or begins with zeros. */
static void own_state(kv_cache *kv, kv_seq *s)
{
    const int32_t slot = take_state(kv);
    if (s->state) {
        kv_make_copy(kv, (kv_copy){ KV_COPY_STATE, slot, s->state - 1 });
        kv_slot_drop(&kv->states.slots, s->state - 1);
    } else {
        kv_make_copy(kv, (kv_copy){ KV_CLEAR_STATE, slot, slot });
        s->state_at = 0;
    }
    s->state = slot + 1;
}

/* A copy will be made at position `at` of the run if a slot can be had. */
static void add_mark(kv_cache *kv, kv_seq *s, int64_t at, bool lasting)
{
    if (s->n_marks && s->marks[s->n_marks - 1].at >= at) return;
    const int32_t slot = take_state(kv);
    if (slot != KV_NO_SLOT) s->marks[s->n_marks++] = (kv_mark){ slot, at, lasting };
}

int64_t kv_keep_states(kv_cache *kv, kv_seq *s, int64_t n)
{
    if (!kv->states.floats) return n;
    while (s->n_next > n) { /* of a run that was not made */
        kv_slot_drop(&kv->states.slots, s->undo[--s->n_undo].slot);
        s->n_next--;
    }
    for (int32_t slot; s->n_next < n && s->n_undo < KV_UNDO; s->n_next++) {
        slot = take_state(kv);
        if (slot == KV_NO_SLOT) break;
        s->undo[s->n_undo++].slot = slot;
    }
    return s->n_next;
}

static int32_t slot_of(const kv_cache *kv, const float *state)
{
    return (int32_t)((state - kv->states.data) / kv->states.floats);
}

float *kv_state_on(const kv_cache *kv, int rank, int64_t *stride)
{
    *stride = kv->states.floats - kv->states.here;
    return kv->states.data_on[rank];
}

kv_run_slots kv_slots_of_run(const kv_cache *kv, const kv_run *run)
{
    kv_run_slots s = { .state = run->state ? slot_of(kv, run->state) + 1 : 0,
                       .n_marks = run->n_marks };
    for (int i = 0; i < run->n_marks; i++) {
        s.marks[i].after = run->marks[i].after;
        s.marks[i].slot = slot_of(kv, run->marks[i].copy);
    }
    return s;
}

kv_run kv_run_of_slots(const kv_cache *kv, const kv_run_slots *s)
{
    kv_run run = { .state = s->state ? kv_state_data(&kv->states, s->state - 1) : NULL,
                   .n_marks = s->n_marks };
    for (int i = 0; i < s->n_marks; i++) {
        run.marks[i].after = s->marks[i].after;
        run.marks[i].copy = kv_state_data(&kv->states, (int32_t)s->marks[i].slot);
    }
    return run;
}

/* m's copy is made by the run, behind those that are made before it; at its beginning at once. */
static void make_copy(kv_cache *kv, kv_run *run, const kv_mark *m, int64_t pos0)
{
    float *copy = kv_state_data(&kv->states, m->slot);
    int i = run->n_marks;
    if (m->at == pos0) {
        kv_make_copy(kv, (kv_copy){ KV_COPY_STATE, m->slot, slot_of(kv, run->state) });
        return;
    }
    for (; i > 0 && run->marks[i - 1].after > m->at - pos0; i--)
        run->marks[i] = run->marks[i - 1];
    run->marks[i].after = m->at - pos0;
    run->marks[i].copy = copy;
    run->n_marks++;
}

void kv_run_begin(kv_cache *kv, kv_seq *s, int64_t pos0, int64_t n, bool ends, kv_run *run)
{
    const int64_t bs = kv->opts.block_size, end = pos0 + n, border = (end - 1) / bs * bs;
    *run = (kv_run){ 0 };
    if (kv->windows.slots.n) kv_windows_begin_run(&kv->windows, s, pos0, n);
    if (!kv->states.floats) return;
    assert(s->state && s->state_at == pos0);
    drop_marks(kv, s);
    if (kv->opts.prefix_cache && !s->forked) {
        const bool branches = s->branch > pos0 && s->branch <= end;
        if (branches && s->branch <= border) add_mark(kv, s, s->branch, true);
        if (border > pos0) add_mark(kv, s, border, ends && n > 1 && !s->n_next);
        if (end % bs == 0) add_mark(kv, s, end, branches && s->branch == end);
    }
    run->state = kv_state_data(&kv->states, s->state - 1);
    for (int i = 0; i < s->n_marks; i++)
        make_copy(kv, run, &s->marks[i], pos0);
    for (; s->n_next > 0; s->n_next--) {
        kv_mark *m = &s->undo[s->n_undo - s->n_next];
        m->at = end - s->n_next;
        make_copy(kv, run, m, pos0);
    }
    s->state_at = end;
}

/* Where a run can stop only to be continued, the copy before is of no use any more. */
static void pass(kv_cache *kv, kv_seq *s, int64_t at)
{
    const int64_t bs = kv->opts.block_size;
    if (s->passing && s->passing < at && s->passing / bs <= s->n_blocks) {
        const int32_t b = s->table[s->passing / bs - 1], slot = kv->blocks[b].state - 1;
        if (slot >= 0 && kv->states.slots.at[slot].ref == 0) forget_state(kv, b);
    }
    s->passing = at;
}

/* The copies that the last run made go to the blocks that end there, once these can be found. */
static void keep_marks(kv_cache *kv, kv_seq *s)
{
    const int64_t bs = kv->opts.block_size;
    for (int i = 0; i < s->n_marks; i++) {
        const kv_mark *m = &s->marks[i];
        const int64_t n = m->at / bs;
        block *x = n <= s->registered ? &kv->blocks[s->table[n - 1]] : NULL;
        if (x && x->findable && !x->state) {
            x->state = m->slot + 1;
            kv_slot_keep(&kv->states.slots, m->slot, s->table[n - 1]);
            if (!m->lasting) pass(kv, s, m->at);
        }
    }
    drop_marks(kv, s);
}

void kv_seq_free(kv_cache *kv, kv_seq *s)
{
    if (kv->states.floats) drop_state(kv, s);
    drop_from(kv, s, 0);
    free(s->table);
    free(s->near);
    *s = (kv_seq){ .adapter = s->adapter };
}

/* Room in the table itself. The first call takes what the longest sequence needs, so that nothing
 * is allocated while a sequence grows. */
static bool table_room(const kv_cache *kv, kv_seq *s, int64_t n)
{
    if (n <= s->cap) return true;
    int64_t cap = n > kv->table_cap ? n : kv->table_cap;
    int32_t *t = realloc(s->table, (size_t)cap * sizeof *t);
    if (!t) return false;
    s->table = t;
    if (kv->windows.slots.n) {
        t = realloc(s->near, (size_t)cap * sizeof *t);
        if (!t) return false;
        s->near = t;
    }
    s->cap = cap;
    return true;
}

/* The block that the next position is written into, or NONE when that is a new one. After
 * kv_truncate it can be one that others hold or can find, which must not be written. */
static int32_t open_block(const kv_cache *kv, const kv_seq *s, int64_t tokens)
{
    if (tokens <= s->tokens || s->tokens % kv->opts.block_size == 0) return NONE;
    return s->table[s->tokens / kv->opts.block_size];
}

/* The block at the end is written next, and others hold it too. */
static void copy_last(kv_cache *kv, kv_seq *s)
{
    const int64_t i = s->tokens / kv->opts.block_size;
    const int32_t last = s->table[i], fresh = take_block(kv);
    int32_t from;
    kv_make_copy(kv, (kv_copy){ KV_COPY_ROWS, fresh, last });
    if (kv->windows.slots.n && kv_windows_own(&kv->windows, s, i, &from)) {
        kv_make_copy(kv, (kv_copy){ KV_COPY_NEAR, s->near[i], from });
        kv_slot_drop(&kv->windows.slots, from);
    }
    drop_block(kv, last);
    s->table[i] = fresh;
}

lq_status kv_reserve(kv_cache *kv, kv_seq *s, int64_t tokens, lq_err *err)
{
    int64_t need = lq_ceil_div(tokens, kv->opts.block_size), more = need - s->n_blocks;
    if (more < 0) more = 0;
    if (need > kv->opts.n_blocks)
        return lq_fail(err, LQ_EBUSY, "KV cache: %lld tokens need %lld blocks, the cache has %lld",
                       (long long)tokens, (long long)need, (long long)kv->opts.n_blocks);
    if (!table_room(kv, s, need)) return lq_fail(err, LQ_ENOMEM, "KV cache: out of memory");
    int32_t last = open_block(kv, s, tokens);
    bool copy = last != NONE && kv->blocks[last].ref > 1;
    if (more + (copy ? 1 : 0) > kv_free_blocks(kv))
        return lq_fail(err, LQ_EBUSY, "KV cache: %lld more blocks needed, %lld free",
                       (long long)(more + (copy ? 1 : 0)), (long long)kv_free_blocks(kv));
    if (kv->windows.slots.n && !kv_windows_room(&kv->windows, s->n_blocks, more))
        return lq_fail(err, LQ_EBUSY, "KV cache: the %lld slots of layers with a window are in use",
                       (long long)kv->windows.slots.n);
    if (tokens > s->tokens && wants_state(kv, s)) {
        if (!kv_slots_left(&kv->states.slots))
            return lq_fail(err, LQ_EBUSY, "KV cache: the states of %lld sequences are all in use",
                           (long long)kv->states.slots.n);
        own_state(kv, s);
    }
    if (copy)
        copy_last(kv, s);
    else if (last != NONE && kv->blocks[last].findable)
        index_remove(kv, last);
    kv_windows_resize(&kv->windows, s->n_blocks, s->n_blocks + more);
    while (s->n_blocks < need)
        s->table[s->n_blocks++] = take_block(kv);
    if (tokens > s->tokens) s->tokens = tokens;
    return LQ_OK;
}

static uint64_t last_serial(const kv_cache *kv, const kv_seq *s)
{
    return s->registered ? kv->blocks[s->table[s->registered - 1]].serial : 0;
}

/* Can a sequence go on after the first n of its blocks? */
static bool may_begin(const kv_cache *kv, const kv_seq *s, int64_t n)
{
    const kv_windows *w = &kv->windows;
    if (kv->states.floats && !kv->blocks[s->table[n - 1]].state) return false;
    return !w->slots.n || (kv_windows_room(w, 0, n) && kv_windows_may_begin(w, s, n));
}

/* Of the blocks that a prompt has found, those up to the last with what else is needed. */
static void go_back_to_whole(kv_cache *kv, kv_seq *s, const char *salt)
{
    const int64_t bs = kv->opts.block_size, found = s->registered;
    int64_t n = found;
    while (n > 0 && !may_begin(kv, s, n))
        n--;
    if (n < found) s->branch = found * bs;
    if (n > 0)
        memcpy(s->chain_state, kv->blocks[s->table[n - 1]].hash, sizeof s->chain_state);
    else
        chain_root(kv, s->chain_state, s->adapter, salt);
    if (n > 0 && kv->states.floats) {
        s->state = kv->blocks[s->table[n - 1]].state;
        s->state_at = n * bs;
        kv_slot_hold(&kv->states.slots, s->state - 1);
    }
    kv_windows_resize(&kv->windows, 0, found); /* which drop_from takes back but for n */
    drop_from(kv, s, n);
    if (kv->windows.slots.n) kv_windows_begin(&kv->windows, s, n);
    s->registered = n;
}

int64_t kv_match_prefix(kv_cache *kv, kv_seq *s, const int32_t *ids, int64_t n, const char *salt)
{
    int64_t bs = kv->opts.block_size, full = n > 0 ? (n - 1) / bs : 0;
    if (!kv->opts.prefix_cache || s->n_blocks || full > kv->opts.n_blocks ||
        !table_room(kv, s, full))
        return 0;
    chain_root(kv, s->chain_state, s->adapter, salt);
    while (s->registered < full) {
        const int32_t *t = ids + s->registered * bs;
        chain_link l = chain_next(kv, s->chain_state, last_serial(kv, s), t);
        int32_t b = index_find(kv, &l, t);
        if (b == NONE) break;
        hold_block(kv, b);
        s->table[s->n_blocks++] = b;
        memcpy(s->chain_state, l.hash, sizeof l.hash);
        s->registered++;
    }
    if (kv->states.floats || kv->windows.slots.n) go_back_to_whole(kv, s, salt);
    s->tokens = s->registered * bs;
    return s->tokens;
}

lq_status kv_fork(kv_cache *kv, kv_seq *dst, const kv_seq *src, lq_err *err)
{
    if (!table_room(kv, dst, src->n_blocks))
        return lq_fail(err, LQ_ENOMEM, "KV cache: out of memory");
    for (int64_t b = 0; b < src->n_blocks; b++) {
        hold_block(kv, src->table[b]);
        dst->table[b] = src->table[b];
    }
    dst->n_blocks = src->n_blocks;
    dst->tokens = src->tokens;
    dst->registered = src->registered;
    dst->adapter = src->adapter;
    memcpy(dst->chain_state, src->chain_state, sizeof dst->chain_state);
    if (kv->windows.slots.n) {
        kv_windows_resize(&kv->windows, 0, dst->n_blocks);
        kv_windows_fork(&kv->windows, dst, src);
    }
    if (src->state) {
        kv_slot_hold(&kv->states.slots, src->state - 1);
        dst->state = src->state;
        dst->state_at = src->state_at;
        dst->forked = true;
    }
    return LQ_OK;
}

/* From now on the block can be found. */
static void enter(kv_cache *kv, int32_t b, const chain_link *l, const int32_t *ids, int64_t depth)
{
    const size_t bs = (size_t)kv->opts.block_size;
    block *x = &kv->blocks[b];
    memcpy(x->hash, l->hash, sizeof l->hash);
    x->parent = l->parent;
    x->serial = kv->next_serial++;
    x->depth = (int32_t)depth;
    memcpy(kv->tokens + (size_t)b * bs, ids, bs * sizeof *ids);
    index_add(kv, b);
}

void kv_register(kv_cache *kv, kv_seq *s, const int32_t *ids, int64_t written, const char *salt)
{
    int64_t bs = kv->opts.block_size;
    if (!kv->opts.prefix_cache) return;
    if (s->registered == 0) chain_root(kv, s->chain_state, s->adapter, salt);
    while ((s->registered + 1) * bs <= written && s->registered < s->n_blocks) {
        const int32_t *t = ids + s->registered * bs;
        chain_link l = chain_next(kv, s->chain_state, last_serial(kv, s), t);
        int32_t *mine = &s->table[s->registered], other = index_find(kv, &l, t);
        if (other == NONE) {
            enter(kv, *mine, &l, t, s->registered);
        } else if (other != *mine) {
            /* Somebody else computed the same block: the same bytes, so one copy is enough. */
            hold_block(kv, other);
            drop_block(kv, *mine);
            *mine = other;
        }
        if (kv->windows.slots.n) kv_windows_enter(&kv->windows, s, s->registered);
        memcpy(s->chain_state, l.hash, sizeof l.hash);
        s->registered++;
    }
    keep_marks(kv, s);
}

/* The state that was kept at this position becomes the sequence's. */
static void go_back(kv_cache *kv, kv_seq *s, int64_t tokens)
{
    int i = 0;
    if (tokens == 0) {
        drop_state(kv, s);
        return;
    }
    while (i < s->n_undo && s->undo[i].at != tokens)
        i++;
    assert(i < s->n_undo);
    const int32_t slot = s->undo[i].slot;
    s->undo[i].slot = s->state - 1; /* drop_undo's */
    s->state = slot + 1;
    s->state_at = tokens;
}

void kv_truncate(kv_cache *kv, kv_seq *s, int64_t tokens)
{
    if (s->state && tokens < s->state_at) go_back(kv, s, tokens);
    drop_undo(kv, s);
    if (tokens >= s->tokens) return;
    int64_t bs = kv->opts.block_size;
    drop_from(kv, s, lq_ceil_div(tokens, bs));
    s->tokens = tokens;
    if (s->registered <= tokens / bs) return;
    s->registered = tokens / bs; /* 0: kv_register starts from the salt again */
    if (s->registered)
        memcpy(s->chain_state, kv->blocks[s->table[s->registered - 1]].hash, sizeof s->chain_state);
}

/* ---- blocks that are kept elsewhere ---- */

size_t kv_part_bytes(const kv_cache *kv, kv_part part)
{
    return kv_own_bytes(kv, part) + kv->others.bytes[part];
}

size_t kv_own_bytes(const kv_cache *kv, kv_part part)
{
    return part == KV_STATE ? kv_states_bytes(&kv->states) : kv_move_bytes(&kv->memory, part);
}

int64_t kv_near_from(const kv_cache *kv, int64_t n)
{
    return kv->windows.slots.n ? kv_windows_from(&kv->windows, n) : n;
}

static void window_lost(void *user, int32_t b) { leaving(user, b, 1u << KV_NEAR); }

void kv_on_leave(kv_cache *kv, void (*leaves)(void *user, int32_t block, unsigned parts),
                 void *user)
{
    kv->leaves = leaves;
    kv->leaves_user = user;
    kv->windows.lost = window_lost;
    kv->windows.user = kv;
}

void kv_on_copy(kv_cache *kv, void (*copied)(void *user, kv_copy c), void *user)
{
    kv->copied = copied;
    kv->copied_user = user;
}

void kv_on_others(kv_cache *kv, const kv_others *o) { kv->others = *o; }

void kv_move_own(const kv_cache *kv, kv_part part, int32_t i, void *to, const void *from)
{
    if (part == KV_STATE)
        kv_states_move(&kv->states, i, to, from);
    else
        kv_move(&kv->memory, part, (size_t)i, to, from);
}

static int32_t place_of(const kv_cache *kv, int32_t b, kv_part part)
{
    return part == KV_NEAR    ? kv->windows.kept[b] - 1
           : part == KV_STATE ? kv->blocks[b].state - 1
                              : b;
}

bool kv_block_read(const kv_cache *kv, int32_t b, kv_part part, void *to)
{
    const kv_others *o = &kv->others;
    const int32_t i = place_of(kv, b, part);
    kv_move_own(kv, part, i, to, NULL);
    return !o->read || o->read(o->user, part, i, (uint8_t *)to + kv_own_bytes(kv, part));
}

static bool write_part(const kv_cache *kv, int32_t b, kv_part part, const void *from)
{
    const kv_others *o = &kv->others;
    const int32_t i = place_of(kv, b, part);
    kv_move_own(kv, part, i, NULL, from);
    return !o->write ||
           o->write(o->user, part, i, from, (const uint8_t *)from + kv_own_bytes(kv, part));
}

kv_findable kv_block_find(const kv_cache *kv, int32_t b)
{
    const block *x = &kv->blocks[b];
    return (kv_findable){ .hash = { x->hash[0], x->hash[1] },
                          .tokens = kv->tokens + (int64_t)b * kv->opts.block_size,
                          .depth = x->depth,
                          .parts = parts_of(kv, b) };
}

int32_t kv_cached_next(const kv_cache *kv, int32_t b, bool newer)
{
    if (b < 0) return newer ? kv->lru_old : kv->lru_new;
    return newer ? kv->blocks[b].next : kv->blocks[b].prev;
}

kv_link kv_link_root(const kv_cache *kv, uint64_t adapter, const char *salt)
{
    kv_link l = { .block = NONE, .root = true };
    chain_root(kv, l.hash, adapter, salt);
    return l;
}

static bool still_there(const kv_cache *kv, const kv_link *x)
{
    return x->block >= 0 && kv->blocks[x->block].findable &&
           kv->blocks[x->block].serial == x->serial;
}

unsigned kv_link_next(const kv_cache *kv, kv_link *next, const kv_link *at, const int32_t *ids)
{
    const chain_link l = chain_next(kv, at->hash, at->serial, ids);
    const int32_t b = at->root || at->block >= 0 ? index_find(kv, &l, ids) : NONE;
    *next = (kv_link){ { l.hash[0], l.hash[1] }, b < 0 ? 0 : kv->blocks[b].serial, b, false };
    return b < 0 ? 0 : parts_of(kv, b);
}

static bool put_rows(kv_cache *kv, kv_link *x, const kv_link *at, const int32_t *ids, int64_t depth,
                     const void *data)
{
    const chain_link l = { { x->hash[0], x->hash[1] }, at->serial };
    int32_t b = index_find(kv, &l, ids);
    if (b == NONE) {
        if (!at->root) hold_block(kv, at->block); /* it is not what has to go */
        b = kv_free_blocks(kv) ? take_block(kv) : NONE;
        const bool put = b != NONE && write_part(kv, b, KV_ROWS, data);
        if (put) enter(kv, b, &l, ids, depth);
        if (b != NONE) drop_block(kv, b);
        if (!put) b = NONE;
        if (!at->root) drop_block(kv, at->block);
    }
    if (b == NONE) return false;
    x->block = b;
    x->serial = kv->blocks[b].serial;
    return true;
}

bool kv_link_put(kv_cache *kv, kv_link *x, const kv_link *at, const int32_t *ids, int64_t depth,
                 kv_part part, const void *data)
{
    if (part == KV_ROWS)
        return (at->root || still_there(kv, at)) && put_rows(kv, x, at, ids, depth, data);
    if (!still_there(kv, x)) return false;
    const int32_t b = x->block;
    if (parts_of(kv, b) >> part & 1) return true;
    if (part == KV_STATE) {
        const int32_t slot = take_state(kv);
        if (slot == KV_NO_SLOT) return false;
        kv->blocks[b].state = slot + 1;
        kv_slot_keep(&kv->states.slots, slot, b);
        kv_slot_drop(&kv->states.slots, slot);
    } else if (kv_windows_keep(&kv->windows, b) == KV_NO_SLOT) {
        return false;
    }
    return write_part(kv, b, part, data);
}
