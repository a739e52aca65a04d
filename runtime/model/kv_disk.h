/* runtime/model/kv_disk.h - parts of blocks to and from a folder (kv_store.h) while the engine goes on: a
 * thread that writes what the cache gives up, and one that reads what prompts begin with
 * (docs/design/0013-kv-disk.md).
 *
 * The engine copies a part into a place of the queue, or out of one; the threads see files alone. Where
 * the queue is full, what leaves the cache is lost. A look is a prompt whose blocks are wanted: how far
 * the folder has them is found out by the thread, and they are read if that takes less time than
 * computing them would, by the pace of both as measured. */
#ifndef LLMQ_RUNTIME_MODEL_KV_DISK_H
#define LLMQ_RUNTIME_MODEL_KV_DISK_H

#include "runtime/model/kv_file.h"

typedef struct kv_disk kv_disk;

typedef struct {
    const char *dir;
    size_t bytes;   /* of the folder, at most */
    uint64_t of[2]; /* kvf_what's */
    int block_size;
    size_t part_bytes[KV_PARTS]; /* 0: there is no such part */
    /* Of a prompt that goes on after n blocks: the first that needs KV_NEAR. Any thread. */
    int64_t (*near_from)(const void *user, int64_t n);
    const void *near_user;
    /* Memory of the queues' places, NULL: out of memory; both NULL: malloc's. In kvd_open and kvd_close. */
    void *(*alloc)(void *user, size_t n);
    void (*free)(void *user, void *p);
    void (*wake)(void *user); /* there is something to take, or a look is over; any thread */
    void (*note)(void *user, const char *text); /* once, of a disk that fails; any thread */
    void *user;
} kvd_opts;

/* Memory of the queues. */
size_t kvd_memory(const size_t part_bytes[KV_PARTS]);
/* Errors: kvs_open's; LQ_EUSAGE: a block does not fit into `bytes`. */
lq_status kvd_open(kv_disk **d, const kvd_opts *o, lq_err *err);
/* Nothing is written that is not by then (lq_now's seconds). Any thread; at any time. */
void kvd_until(kv_disk *d, double until);
/* What was put is written first. Returns how many parts were not, since their time was over. NULL allowed. */
uint64_t kvd_close(kv_disk *d);

/* ---- what is written ---- */
/* A place for the part, of part_bytes, until kvd_put_end; NULL: the folder has it (it counts as used), or
 * the queue is full, or it is too late. used: nanoseconds of the real clock. wait: for the queue. */
uint8_t *kvd_put(kv_disk *d, const uint64_t key[2], kv_part part, const int32_t *tokens,
                 int64_t used, bool wait);
void kvd_put_end(kv_disk *d, uint8_t *place);
void kvd_put_drop(kv_disk *d, uint8_t *place); /* in place of it: it is not written, but lost */
bool kvd_failed(kv_disk *d);                   /* the last write did: the disk is full */

/* ---- what is read ---- */
typedef struct {
    uint64_t key[2];
    unsigned have; /* parts that are in memory (bits) */
    unsigned bad;  /* kv_disk.c's */
} kvd_block;
typedef struct kvd_look kvd_look;
/* The n blocks that a prompt's ids [n * block_size] fill, of which `usable` can be used as they are. pace:
 * seconds to compute a token; 0: not known. Both arrays are copied. NULL: out of memory. */
kvd_look *kvd_look_begin(kv_disk *d, const kvd_block *blocks, const int32_t *ids, int64_t n,
                         int64_t usable, double pace, void *user);
bool kvd_look_over(kv_disk *d, const kvd_look *l); /* and nothing of it is to be taken */
void kvd_look_end(kv_disk *d, kvd_look *l);        /* over or not */

typedef struct {
    void *user; /* the look's */
    int64_t i;  /* the block */
    kv_part part;
    const uint8_t *data;
    int place; /* kv_disk.c's */
} kvd_piece;
/* In the order in which they are used: rows of block after block, then what else is needed at the end. */
bool kvd_take(kv_disk *d, kvd_piece *p); /* false: nothing is there now */
void kvd_give_back(kv_disk *d, const kvd_piece *p);

typedef struct {
    int64_t files;
    size_t bytes;
    uint64_t hits, misses,
        slower; /* looks: something was read, nothing was there, computing is quicker */
    uint64_t reads, read_bytes, writes, written_bytes; /* files */
    uint64_t damaged, removed, lost,
        failed;                /* files: removed as such, to make room; parts that left memory
                                                and were not written; writes that failed */
    double read_seconds, pace; /* in reading; seconds to read a byte, 0: not known */
} kvd_stats;
void kvd_stats_get(kv_disk *d, kvd_stats *s);

#endif
