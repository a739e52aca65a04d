/* publish/sha256.h - SHA-256, the digest that registries, git-lfs and SHA256SUMS go by.
 *
 * Our own because no library that llmq links has it; files of .llmq carry XXH3 (formats/base.h),
 * which is ten times as fast but known to none of those.
 *
 * Source: FIPS 180-4, section 6.2. */
#ifndef LLMQ_PUBLISH_SHA256_H
#define LLMQ_PUBLISH_SHA256_H

#include "formats/base.h"

enum { SHA_HEX = 65 }; /* 64 hex digits and NUL */

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64]; /* bytes % 64 of it wait */
} sha_state;

void sha_init(sha_state *s);
void sha_add(sha_state *s, const void *data, size_t n);
/* Lower-case hex digits; s is done with. */
void sha_end(char out[SHA_HEX], sha_state *s);
void sha_of(char out[SHA_HEX], const void *data, size_t n);
/* 64 lower-case hex digits, and nothing behind them in the `n` bytes. */
bool sha_is_hex(const char *s, size_t n);

#endif
