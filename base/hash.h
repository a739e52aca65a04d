/* base/hash.h - checksums: XXH3 of 128 bits, at once or in parts. */
#ifndef LLMQ_BASE_HASH_H
#define LLMQ_BASE_HASH_H

#include "base/base.h"

/* 16 bytes in canonical (big-endian) order. */
typedef struct {
    uint8_t b[16];
} lq_hash;
lq_hash lq_hash_bytes(const void *data, size_t n);
void lq_hash_hex(char out[33], const lq_hash *h);
/* What lq_hash_hex wrote; false: anything else. */
bool lq_hash_read(lq_hash *h, const char *hex);

typedef struct lq_hasher lq_hasher;
lq_hasher *lq_hasher_new(void); /* NULL: out of memory */
void lq_hasher_add(lq_hasher *h, const void *data, size_t n);
lq_hash lq_hasher_end(lq_hasher *h); /* frees h */

#endif
