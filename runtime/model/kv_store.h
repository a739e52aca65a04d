/* runtime/model/kv_store.h - a folder with files of the KV cache (kv_file.h): bounded, shared by several
 * servers, and every file whole or not there.
 *
 *     HASH.k HASH.s HASH.w   the files; others are left alone
 *     llmq-kv.tmp            the one that is written: it gets its name when it is whole
 *     llmq-kv.lock           who writes or removes holds it; in it a number that grows with every batch,
 *                            so that others see that their index is old
 *
 * Files are read without the lock: what is damaged, cut off or of something else is removed and counts as
 * missing. Nothing is synced: a power cut leaves files whose sum is wrong. Any thread, but kvs_begin to
 * kvs_end is one. */
#ifndef LLMQ_RUNTIME_MODEL_KV_STORE_H
#define LLMQ_RUNTIME_MODEL_KV_STORE_H

#include "runtime/model/kv_file.h"

/* Files at most: more go as if the room were used up. */
enum { KVS_FILES = 1 << 20 };

typedef struct kv_store kv_store;

size_t kvs_least(size_t bytes); /* that a file of so many counts for */

/* bytes: of all files together, at most. Errors: lq_private_folder's; LQ_ENOMEM. */
lq_status kvs_open(kv_store **s, const char *dir, size_t bytes, lq_err *err);
void kvs_close(kv_store *s); /* NULL allowed */

/* May write; false: another server has had the folder for too long, or until *until (lq_now's seconds; 0: it is not
 * looked at), or it cannot be locked. until: NULL, or set by any thread meanwhile. */
bool kvs_begin(kv_store *s, const _Atomic double *until);
void kvs_end(kv_store *s);
/* Between the two. file [KVF_HEAD + w->bytes], the part in its place; used: as of kvs_use. Others go to
 * make room, those first that were not used for longest. *written: false where it was there. LQ_EIO: the
 * disk is full, or fails; LQ_EVALUE: it is larger than all that may be there. */
lq_status kvs_put(kv_store *s, const kvf_what *w, uint8_t *file, int64_t used, bool *written,
                  lq_err *err);

bool kvs_knows(kv_store *s, const uint64_t key[2], kv_part part); /* as far as is known here */
bool kvs_has(const kv_store *s, const uint64_t key[2], kv_part part);
/* It was used at that nanosecond of the real clock. */
void kvs_use(kv_store *s, const uint64_t key[2], kv_part part, int64_t used);
typedef enum { KVS_READ, KVS_MISSING, KVS_DAMAGED } kvs_found;
kvs_found kvs_read(kv_store *s, const kvf_what *w, uint8_t *file, int64_t used);

typedef struct {
    int64_t files;
    size_t bytes;
    uint64_t removed; /* to make room */
} kvs_stats;
void kvs_stats_get(kv_store *s, kvs_stats *st);
int64_t kvs_now(void); /* nanoseconds of the real clock */

#endif
