/* publish/sha256.c */
#include "publish/sha256.h"

#include <stdio.h>

static const uint32_t round_key[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t load_be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* One round; the eight words change places by their names, not in memory. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                                       \
    do {                                                                                       \
        const uint32_t t1 = h + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + \
                            round_key[t] + w[t];                                               \
        d += t1;                                                                               \
        h = t1 + (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));        \
    } while (0)

static void add_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++)
        w[t] = load_be(p + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (ror(x, 7) ^ ror(x, 18) ^ x >> 3) + w[t - 7] +
               (ror(y, 17) ^ ror(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < 64; t += 8) {
        ROUND(a, b, c, d, e, f, g, h, t);
        ROUND(h, a, b, c, d, e, f, g, t + 1);
        ROUND(g, h, a, b, c, d, e, f, t + 2);
        ROUND(f, g, h, a, b, c, d, e, t + 3);
        ROUND(e, f, g, h, a, b, c, d, t + 4);
        ROUND(d, e, f, g, h, a, b, c, t + 5);
        ROUND(c, d, e, f, g, h, a, b, t + 6);
        ROUND(b, c, d, e, f, g, h, a, t + 7);
    }
    const uint32_t after[8] = { a, b, c, d, e, f, g, h };
    for (int i = 0; i < 8; i++)
        state[i] += after[i];
}

void sha_init(sha_state *s)
{
    *s = (sha_state){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void sha_add(sha_state *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    while (n) {
        const size_t at = (size_t)(s->bytes % sizeof s->block);
        if (!at && n >= sizeof s->block) {
            add_block(s->state, p);
            p += sizeof s->block;
            n -= sizeof s->block;
            s->bytes += sizeof s->block;
            continue;
        }
        const size_t k = n < sizeof s->block - at ? n : sizeof s->block - at;
        memcpy(s->block + at, p, k);
        p += k;
        n -= k;
        s->bytes += k;
        if (s->bytes % sizeof s->block == 0) add_block(s->state, s->block);
    }
}

void sha_end(char out[SHA_HEX], sha_state *s)
{
    const uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha_add(s, "\x80", 1);
    while (s->bytes % sizeof s->block != sizeof s->block - sizeof length)
        sha_add(s, "", 1);
    sha_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", s->state[i]);
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
