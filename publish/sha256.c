/* publish/sha256.c - see sha256.h. */
#include "publish/sha256.h"

#include <stdio.h>

static void put_hex(char *out, const uint8_t *digest, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void sha_init(sha_state *s) { sha256_init(&s->ctx); }

void sha_add(sha_state *s, const void *data, size_t n)
{
    if (n) sha256_update(&s->ctx, n, data);
}

void sha_end(char out[SHA_HEX], sha_state *s)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&s->ctx, sizeof digest, digest);
    put_hex(out, digest, sizeof digest);
}

void sha_of(char out[SHA_HEX], const void *data, size_t n)
{
    sha_state s;
    sha_init(&s);
    sha_add(&s, data, n);
    sha_end(out, &s);
}

static size_t hex_digits(const char *s, size_t most)
{
    size_t k = 0;
    while (k < most && ((s[k] >= '0' && s[k] <= '9') || (s[k] >= 'a' && s[k] <= 'f')))
        k++;
    return k;
}

bool sha_is_hex(const char *s, size_t n) { return n == SHA_HEX - 1 && hex_digits(s, n) == n; }

bool sha1_is_hex(const char *s)
{
    return hex_digits(s, SHA1_HEX - 1) == SHA1_HEX - 1 && !s[SHA1_HEX - 1];
}

void sha1_git_init(struct sha1_ctx *c, uint64_t bytes)
{
    char head[40];
    const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)bytes);
    sha1_init(c);
    sha1_update(c, (size_t)n + 1, (const uint8_t *)head);
}

void sha1_end(char out[SHA1_HEX], struct sha1_ctx *c)
{
    uint8_t digest[SHA1_DIGEST_SIZE];
    sha1_digest(c, sizeof digest, digest);
    put_hex(out, digest, sizeof digest);
}
