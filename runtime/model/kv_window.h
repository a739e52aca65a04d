/* runtime/model/kv_window.h - K and V of layers that see a window (arch_layer.window): they are in slots
 * of their own, fewer than blocks, which a sequence gives back once no later row of it sees them
 * (docs/design/0011-windows.md).
 *
 * A block that can be found keeps its slot until another sequence needs it; a prefix can be gone on
 * from where all slots are left that its next row sees. On the host. */
#ifndef LLMQ_RUNTIME_MODEL_KV_WINDOW_H
#define LLMQ_RUNTIME_MODEL_KV_WINDOW_H

#include "runtime/model/kv.h"
#include "runtime/model/kv_slots.h"

/* Has the layer K and V that are only ever seen through a window? */
bool kv_has_window(const arch_config *c, int64_t layer);
/* Of a slot: all such layers'. 0: there are none. */
size_t kv_window_bytes(const arch_config *c, int block_size, kv_types d);
/* Slots that a sequence holds at most, in runs of at most so many rows; 0: no layer has a window. */
int64_t kv_window_slots(const arch_config *c, int block_size, int64_t rows);

typedef struct {
    kv_slots slots;                 /* n 0: all K and V are in blocks */
    int32_t *kept;                  /* [n_blocks] the slot that each block keeps, + 1; 0: none */
    int64_t window, most, promised; /* most: of a sequence; promised: of all of them */
    bool chunks;
    int block_size;
    void (*lost)(void *user,
                 int32_t block); /* the slot that it keeps goes to another; may be NULL */
    void *user;
} kv_windows;

lq_status kv_windows_open(kv_windows *w, const arch_config *c, const kv_opts *o, lq_err *err);
void kv_windows_close(kv_windows *w);

/* Sequences are promised the slots that their blocks may come to hold: so a run always has them. May one
 * of so many blocks have more, as far as the promises go? */
bool kv_windows_room(const kv_windows *w, int64_t blocks, int64_t more);
void kv_windows_resize(kv_windows *w, int64_t blocks, int64_t to);

/* The rest is kv.c's. i: of s->table. */
void kv_windows_begin_run(kv_windows *w, kv_seq *s, int64_t pos0, int64_t n);
void kv_windows_cut(kv_windows *w, kv_seq *s, int64_t n_blocks); /* none from there on */
/* Can it go on after n blocks of its table, all of which can be found? Then it holds their slots. */
bool kv_windows_may_begin(const kv_windows *w, const kv_seq *s, int64_t n);
void kv_windows_begin(kv_windows *w, kv_seq *s, int64_t n);
void kv_windows_fork(kv_windows *w, kv_seq *dst, const kv_seq *src);
void kv_windows_enter(kv_windows *w, kv_seq *s, int64_t i); /* block i can be found now */
void kv_windows_forget(kv_windows *w, int32_t block);       /* it cannot any more */
/* A slot that the block keeps from now on, held by nobody; KV_NO_SLOT: all are held. */
int32_t kv_windows_keep(kv_windows *w, int32_t block);
/* The first block that a sequence sees which goes on after n blocks. */
int64_t kv_windows_from(const kv_windows *w, int64_t n);
/* Before i is written: its slot becomes the sequence's alone; true: *from is to be copied there. */
bool kv_windows_own(kv_windows *w, kv_seq *s, int64_t i, int32_t *from);

#endif
