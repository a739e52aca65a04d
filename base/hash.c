/* base/hash.c - see hash.h. */
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

struct lq_hasher {
    XXH3_state_t *state;
};

static lq_hash canonical(XXH128_hash_t h)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, h);
    lq_hash out;
    memcpy(out.b, c.digest, sizeof out.b);
    return out;
}

lq_hash lq_hash_bytes(const void *data, size_t n)
{
    static const char none[1];
    return canonical(XXH3_128bits(n ? data : none, n));
}

void lq_hash_hex(char out[33], const lq_hash *h)
{
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", h->b[i]);
}

bool lq_hash_read(lq_hash *h, const char *hex)
{
    if (strlen(hex) != 32 || strspn(hex, "0123456789abcdef") != 32) return false;
    for (int i = 0; i < 16; i++) {
        const char pair[3] = { hex[2 * i], hex[2 * i + 1], 0 };
        h->b[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

lq_hasher *lq_hasher_new(void)
{
    lq_hasher *h = malloc(sizeof *h);
    if (!h) return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->state);
    return h;
}

void lq_hasher_add(lq_hasher *h, const void *data, size_t n)
{
    if (n) XXH3_128bits_update(h->state, data, n);
}

lq_hash lq_hasher_end(lq_hasher *h)
{
    lq_hash out = canonical(XXH3_128bits_digest(h->state));
    XXH3_freeState(h->state);
    free(h);
    return out;
}
