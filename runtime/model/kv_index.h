/* runtime/model/kv_index.h - what files of the KV cache on disk there are, as far as this server knows:
 * their keys, sizes and when they were last used. */
#ifndef LLMQ_RUNTIME_MODEL_KV_INDEX_H
#define LLMQ_RUNTIME_MODEL_KV_INDEX_H

#include "base/base.h"
#include "runtime/model/kv_part.h"

typedef struct {
    uint64_t key[2];
    int64_t used; /* nanoseconds of the real clock */
    uint32_t pages;
    uint8_t part; /* + 1; 0: an empty slot */
} kvi_file;

/* Zeros: empty. */
typedef struct {
    kvi_file *slots; /* open addressing, a power of two of them */
    size_t n_slots;
    int64_t n;
    size_t bytes; /* of all, in pages of the disk */
} kv_index;

enum { KVI_PAGE = 4096 };

void kvi_clear(kv_index *x); /* and gives its memory back */
/* What a file of so many bytes counts for. */
static inline size_t kvi_pages(size_t bytes) { return (bytes + KVI_PAGE - 1) / KVI_PAGE; }
const kvi_file *kvi_find(const kv_index *x, const uint64_t key[2], kv_part part); /* NULL: no */
/* A file that is there, or was used. False: out of memory, it is not known then. */
bool kvi_add(kv_index *x, const uint64_t key[2], kv_part part, size_t bytes, int64_t used);
void kvi_used(kv_index *x, const uint64_t key[2], kv_part part, int64_t used);
void kvi_remove(kv_index *x, const uint64_t key[2], kv_part part);
/* All of them: [x->n], to be free'd; NULL: out of memory. */
kvi_file *kvi_copy(const kv_index *x);
void kvi_sort(kvi_file *all, int64_t n); /* those that were not used for longest first */

#endif
