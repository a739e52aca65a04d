/* publish/sha256.c - see sha256.h. */
#include "publish/sha256.h"

#include <stdio.h>

void sha_init(sha_state *s) { sha256_init(&s->ctx); }

void sha_add(sha_state *s, const void *data, size_t n)
{
    if (n) sha256_update(&s->ctx, n, data);
}

void sha_end(char out[SHA_HEX], sha_state *s)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&s->ctx, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void sha_of(char out[SHA_HEX], const void *data, size_t n)
{
    sha_state s;
    sha_init(&s);
    sha_add(&s, data, n);
    sha_end(out, &s);
}

bool sha_is_hex(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && ((s[k] >= '0' && s[k] <= '9') || (s[k] >= 'a' && s[k] <= 'f')))
        k++;
    return n == SHA_HEX - 1 && k == n;
}
