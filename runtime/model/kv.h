/* runtime/model/kv.h - the paged KV cache: a pool of blocks sized at start, reference counts, prefix
 * sharing; the states of layers that have one instead of K and V (docs/design/0009-state.md); and the K
 * and V of layers with a window apart, which go when nobody sees them any more (0011-windows.md).
 *
 * A block holds block_size tokens of K and V of every layer. Sequences own tables of block numbers;
 * blocks are shared by reference count, and a full block can be found again by the hash chain of
 * its tokens (with the tokens compared). */
#ifndef LLMQ_RUNTIME_MODEL_KV_H
#define LLMQ_RUNTIME_MODEL_KV_H

#include "formats/arch/arch.h"
#include "kernels/device.h"
#include "runtime/model/kv_part.h"
#include "runtime/model/kv_size.h"

typedef struct kv_cache kv_cache;

typedef struct {
    int64_t n_blocks;
    int block_size; /* 8, 16, 32 */
    kv_types dtype;
    int64_t n_states; /* of sequences and of borders kept; 0: as many as blocks (memory is taken as
                         they are used) */
    /* Slots for the K and V of layers with a window (kv_window.h), no more than blocks, and how many of
     * them a sequence holds at most (kv_window_slots); 0: these layers keep all that they have seen. */
    int64_t n_windows, windows_each;
    bool prefix_cache;
    dev *on; /* whose memory holds them (borrowed); NULL: the host's. Of peers each has those of
                its own KV heads */
    int64_t first; /* with it: of the layers before this one they are in the host's all the same */
    /* What prefixes are found by; NULL: XXH3-128. Blocks with equal ones are told apart by their
     * tokens and by their parents, salts by nothing else. */
    void (*hash)(uint64_t out[2], const void *data, size_t n);
    uint64_t
        of[2]; /* every chain begins with it: what else blocks depend on that outlive this cache */
} kv_opts;

size_t kv_table_bytes(const kv_opts *o); /* what is kept of the blocks besides K and V */
lq_status kv_open(kv_cache **kv, const arch_config *c, const kv_opts *o, lq_err *err);
void kv_close(kv_cache *kv);
const kv_opts *kv_options(const kv_cache *kv);
int64_t kv_free_blocks(const kv_cache *kv);   /* free now or by eviction of cached blocks */
int64_t kv_cached_blocks(const kv_cache *kv); /* of no sequence, kept for the prefix cache */
/* Blocks that sequences may have besides theirs: fewer than free ones where slots of windows are short. */
int64_t kv_spare_blocks(const kv_cache *kv);

size_t kv_state_bytes(const arch_config *c); /* a sequence's state; 0: no layer has one */
/* ... of layers from `first` on, what each of so many devices has of them */
size_t kv_state_bytes_on(const arch_config *c, int64_t first, int ranks);
/* On the cache's device: slot 0's state of the first layer there, and the floats from slot to slot. NULL: there are
 * none. */
float *kv_state_on(const kv_cache *kv, int rank, int64_t *stride);

/* A copy of a sequence's state at position `at`, made by a run, until kv_register. */
enum { KV_MARKS = 3, KV_UNDO = 15 }; /* at once */
typedef struct {
    int32_t slot;
    int64_t at;
    bool lasting; /* not dropped for the sequence's next one */
} kv_mark;

/* A sequence's blocks. tokens: how many positions are written or reserved. */
typedef struct {
    int32_t *table; /* [cap], owned */
    int64_t n_blocks, cap;
    int64_t tokens;
    uint64_t adapter; /* that K and V depend on, 0: none; the caller's, and kv_seq_free leaves it */
    uint64_t chain_state[2]; /* hash chain up to the last registered full block */
    int64_t registered;      /* full blocks already entered into the prefix cache */
    /* As table, of layers with a window: those from near_from to near_to - 1 are there. [cap], owned */
    int32_t *near;
    int64_t near_from, near_to;
    /* Of models with a state; kv.c's */
    int32_t state;    /* its slot + 1; 0: none yet */
    int64_t state_at; /* positions that it has seen */
    int64_t branch;   /* position up to which cached blocks agree but no state is kept: there one is
                         made; 0: none */
    int64_t passing;  /* of the copy that its next one replaces; 0: none */
    bool forked;      /* makes no copies */
    int n_marks;
    kv_mark marks[KV_MARKS];
    /* States to go back to, rising; the last n_next are made by the next run. */
    int n_undo, n_next;
    kv_mark undo[KV_UNDO];
} kv_seq;

void kv_seq_init(kv_seq *s);
void kv_seq_free(kv_cache *kv,
                 kv_seq *s); /* drops references; blocks with a hash stay findable until evicted */
/* Room for `tokens` positions in all; LQ_EBUSY when the pool has too few blocks, states or slots of
 * windows (nothing changes).
 * The positions from s->tokens on may then be written: a block that is shared with others (after
 * kv_truncate or kv_fork) is copied first. */
lq_status kv_reserve(kv_cache *kv, kv_seq *s, int64_t tokens, lq_err *err);
/* A new sequence takes the longest cached prefix of ids (full blocks only, at most n - 1 tokens; where
 * there are states only up to one that is kept, where there are windows only up to where all is kept
 * that its next row sees); returns tokens taken. */
int64_t kv_match_prefix(kv_cache *kv, kv_seq *s, const int32_t *ids, int64_t n, const char *salt);
/* dst, which has no blocks, becomes a second sequence of src's: it holds the same ones. What either
 * writes next goes into blocks of its own (kv_reserve). */
lq_status kv_fork(kv_cache *kv, kv_seq *dst, const kv_seq *src, lq_err *err);
/* After positions up to `written` hold their K and V: enter newly full blocks into the prefix
 * cache. Where another sequence has entered the same tokens, its block takes the place of ours (the
 * bytes are the same). Not during a step: tables change. */
void kv_register(kv_cache *kv, kv_seq *s, const int32_t *ids, int64_t written, const char *salt);
/* The next run of s, whose blocks and state are reserved, keeps the state before each of its last n
 * rows until kv_truncate; returns for how many there is room, n where the model has no state. */
int64_t kv_keep_states(kv_cache *kv, kv_seq *s, int64_t n);
/* Drop positions from `tokens` on (rejected drafts). A sequence with a state that has seen them goes
 * back to one that was kept at `tokens`, which must be there unless that is 0; one with slots of windows
 * goes back to 0, or no further than to where its newest run began. */
void kv_truncate(kv_cache *kv, kv_seq *s, int64_t tokens);

/* A sequence whose blocks are reserved begins a run of n positions from pos0, which it has seen so many
 * of; it then has seen them too. Slots of windows that it sees no more are given up, those of the run
 * are taken. `ends`: the run has the last of a prompt. marks: after
 * how many rows of the run (1 or more) a copy of each layer's state is wanted, rising; of equal ones
 * each has its own. */
typedef struct {
    float *state; /* all layers'; NULL: the model has none */
    int n_marks;
    struct {
        int64_t after;
        float *copy;
    } marks[KV_MARKS + KV_UNDO];
} kv_run;
void kv_run_begin(kv_cache *kv, kv_seq *s, int64_t pos0, int64_t n, bool ends, kv_run *run);

/* ---- blocks that are kept elsewhere (kv_part.h) ----
 * Of a cache on devices kv_block_read and kv_link_put queue their copies: `to` and `data` are alloc_host's, and
 * are there, or may be written, after the devices' next dev_sync. */

size_t kv_part_bytes(const kv_cache *kv, kv_part part); /* 0: the cache has no such part */
/* Of a sequence that goes on after its first n blocks: those from there on need KV_NEAR too. Any thread. */
int64_t kv_near_from(const kv_cache *kv, int64_t n);
/* `leaves` is called before parts of a block (bits) are overwritten that could be found. */
void kv_on_leave(kv_cache *kv, void (*leaves)(void *user, int32_t block, unsigned parts),
                 void *user);
typedef struct {
    uint64_t hash[2];
    const int32_t *tokens; /* [block_size] */
    int64_t depth;         /* blocks before it */
    unsigned parts;        /* that are there */
} kv_findable;
/* False: the other processes' part of it did not come. */
bool kv_block_read(const kv_cache *kv, int32_t block, kv_part part, void *to);
kv_findable kv_block_find(const kv_cache *kv, int32_t block);
/* The block of no sequence that was used before (newer: after) b; b < 0: the newest (oldest) one. < 0:
 * there is none. */
int32_t kv_cached_next(const kv_cache *kv, int32_t b, bool newer);

/* A place in a chain of blocks. */
typedef struct {
    uint64_t hash[2];
    uint64_t serial;
    int32_t block; /* < 0: none is in memory, or this is the root */
    bool root;
} kv_link;
kv_link kv_link_root(const kv_cache *kv, uint64_t adapter, const char *salt);
/* The next place, and which parts of its block are in memory (bits). */
unsigned kv_link_next(const kv_cache *kv, kv_link *next, const kv_link *at, const int32_t *ids);
/* Parts of the block at x, whose parent is `at`, come from elsewhere: KV_ROWS first, which may have been
 * computed meanwhile. The block is then cached. False: there is no room, or a block has gone. */
bool kv_link_put(kv_cache *kv, kv_link *x, const kv_link *at, const int32_t *ids, int64_t depth,
                 kv_part part, const void *data);

/* ---- several processes with the same blocks and states (runtime/model/part.h) ---- */
typedef enum { KV_COPY_ROWS, KV_COPY_NEAR, KV_COPY_STATE, KV_CLEAR_STATE } kv_copy_kind;
typedef struct {
    kv_copy_kind kind;
    int32_t dst, src; /* blocks, slots of windows, slots of states */
} kv_copy;
/* `copied` is called when one was made, which the others then make too. */
void kv_on_copy(kv_cache *kv, void (*copied)(void *user, kv_copy c), void *user);
void kv_make_copy(kv_cache *kv, kv_copy c);
/* A run by numbers of slots, for a cache of the same size; `state` is one more, 0: the model has none. */
typedef struct {
    int32_t state, n_marks;
    struct {
        int64_t after;
        int64_t slot;
    } marks[KV_MARKS + KV_UNDO];
} kv_run_slots;
kv_run_slots kv_slots_of_run(const kv_cache *kv, const kv_run *run);
kv_run kv_run_of_slots(const kv_cache *kv, const kv_run_slots *s);

/* Of a cache that has a part of the heads, and others the rest: what kept parts have of theirs behind this one's own.
 * States are whole everywhere. */
typedef struct {
    size_t bytes[KV_PARTS];
    /* i: the block, of KV_NEAR and KV_STATE the slot. theirs: [bytes]; own: what this one has of it. False: they
     * cannot be reached. */
    bool (*read)(void *user, kv_part part, int32_t i, void *theirs);
    bool (*write)(void *user, kv_part part, int32_t i, const void *own, const void *theirs);
    void *user;
} kv_others;
void kv_on_others(kv_cache *kv, const kv_others *o);
size_t kv_own_bytes(const kv_cache *kv, kv_part part);
/* This process's own of block or slot i, to `to` or from `from`; the other is NULL. */
void kv_move_own(const kv_cache *kv, kv_part part, int32_t i, void *to, const void *from);

/* K and V of all blocks become zeros, written one by one: memory that was touched. */
void kv_zero(kv_cache *kv);
/* Pointers for kernels/attn.h, or for the device's attention. A block's V follows its K: a layer is
 * n_blocks of its strides from kv_k. Of a layer that reads another's (arch.h) they are that one's. */
uint8_t *kv_k(kv_cache *kv, int64_t layer); /* start of that layer's K of block 0 */
uint8_t *kv_v(kv_cache *kv, int64_t layer);
uint8_t *kv_k_on(kv_cache *kv, int64_t layer, int rank); /* on one of several devices */
uint8_t *kv_v_on(kv_cache *kv, int64_t layer, int rank);
/* From block to block, of K and of V alike. */
size_t kv_block_stride(const kv_cache *kv, int64_t layer);
/* Are the layer's blocks those of kv_seq.near? */
bool kv_in_window(const kv_cache *kv, int64_t layer);

#endif
