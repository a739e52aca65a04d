/* publish/sha256.h - SHA-256 in hex, the digest that registries, git-lfs and SHA256SUMS go by,
 * and git's own SHA-1 of a file (files of .llmq carry XXH3, base/base.h). Computed by nettle. */
#ifndef LLMQ_PUBLISH_SHA256_H
#define LLMQ_PUBLISH_SHA256_H

#include <nettle/sha1.h>
#include <nettle/sha2.h>

#include "base/base.h"

enum { SHA_HEX = 2 * SHA256_DIGEST_SIZE + 1, SHA1_HEX = 2 * SHA1_DIGEST_SIZE + 1 }; /* and NUL */

typedef struct {
    struct sha256_ctx ctx;
} sha_state;

void sha_init(sha_state *s);
void sha_add(sha_state *s, const void *data, size_t n);
/* Lower-case hex digits; s is done with. */
void sha_end(char out[SHA_HEX], sha_state *s);
void sha_of(char out[SHA_HEX], const void *data, size_t n);
/* 64 lower-case hex digits, and nothing after them in the `n` bytes. */
bool sha_is_hex(const char *s, size_t n);
bool sha1_is_hex(const char *s); /* 40 of them */

/* The name that git gives a file of so many bytes: SHA-1 of "blob BYTES", NUL, and the bytes. */
void sha1_git_init(struct sha1_ctx *c, uint64_t bytes);
void sha1_end(char out[SHA1_HEX], struct sha1_ctx *c);

#endif
