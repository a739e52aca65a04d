/* formats/tensor/bitpack.c - codes of 2, 3, 4 and 8 bits next to each other in a row of bytes. */
#include "formats/tensor/qtensor.h"

/* Of a known number of bits a compiler makes shifts by constants. */
#if defined(__GNUC__)
#define QT_BITS static inline __attribute__((always_inline))
#else
#define QT_BITS static inline
#endif

#define EACH_BITS(bits, fn, dst, src, n) \
    switch (bits) {                      \
    case 2:                              \
        fn(dst, src, n, 2);              \
        break;                           \
    case 3:                              \
        fn(dst, src, n, 3);              \
        break;                           \
    case 4:                              \
        fn(dst, src, n, 4);              \
        break;                           \
    default:                             \
        fn(dst, src, n, bits);           \
        break;                           \
    }

/* Eight codes as the bytes of a word, and side by side: neighbours move together, then pairs, then
 * fours. */
typedef struct {
    int gap;                 /* bits of a byte that a code leaves */
    uint64_t one, two, four; /* the lower of two codes in every 16 bits, pair in every 32, four */
} packing;

static packing packing_of(int bits)
{
    const uint64_t bit = 1;
    return (packing){ .gap = 8 - bits,
                      .one = ((bit << bits) - 1) * 0x0001000100010001u,
                      .two = ((bit << 2 * bits) - 1) * 0x0000000100000001u,
                      .four = (bit << 4 * bits) - 1 };
}

QT_BITS uint64_t together(uint64_t x, packing p)
{
    x = (x & p.one) | (x & p.one << 8) >> p.gap;
    x = (x & p.two) | (x & p.two << 16) >> 2 * p.gap;
    return (x & p.four) | (x & p.four << 32) >> 4 * p.gap;
}

QT_BITS uint64_t apart(uint64_t x, packing p, int bits)
{
    x = (x & p.four) | (x & p.four << 4 * bits) << 4 * p.gap;
    x = (x & p.two) | (x & p.two << 2 * bits) << 2 * p.gap;
    return (x & p.one) | (x & p.one << bits) << p.gap;
}

QT_BITS void pack_bits(uint8_t *row, const uint8_t *codes, int64_t K, int bits)
{
    const packing p = packing_of(bits);
    const uint8_t *end = row + qt_row_bytes(K, bits);
    uint64_t x = 0;
    for (; K >= 8 && end - row >= 8; K -= 8, codes += 8, row += bits) {
        memcpy(&x, codes, 8);
        x = together(x, p);
        memcpy(row, &x, 8); /* what is too much the next codes go over */
    }
    for (; K > 0; K -= 8, codes += 8, row += bits) {
        x = 0;
        memcpy(&x, codes, K < 8 ? (size_t)K : 8);
        x = together(x, p);
        memcpy(row, &x, end - row < 8 ? (size_t)(end - row) : 8);
    }
}

QT_BITS void unpack_bits(uint8_t *codes, const uint8_t *row, int64_t K, int bits)
{
    const packing p = packing_of(bits);
    const uint8_t *end = row + qt_row_bytes(K, bits);
    uint64_t x = 0;
    for (; K >= 8 && end - row >= 8; K -= 8, codes += 8, row += bits) {
        memcpy(&x, row, 8);
        x = apart(x, p, bits);
        memcpy(codes, &x, 8);
    }
    for (; K > 0; K -= 8, codes += 8, row += bits) {
        x = 0;
        memcpy(&x, row, end - row < 8 ? (size_t)(end - row) : 8);
        x = apart(x, p, bits);
        memcpy(codes, &x, K < 8 ? (size_t)K : 8);
    }
}

/* Nibbles, 32 at a time: a loop of a fixed length that compilers make vectors of. Returns how many
 * were done. */
static int64_t unpack_nibbles(uint8_t *restrict codes, const uint8_t *restrict row, int64_t K)
{
    enum { BYTES = 16 };
    int64_t k = 0;
    for (; k + 2 * BYTES <= K; k += 2 * BYTES)
        for (int j = 0; j < BYTES; j++) {
            codes[k + 2 * j] = row[k / 2 + j] & 15;
            codes[k + 2 * j + 1] = row[k / 2 + j] >> 4;
        }
    return k;
}

static int64_t pack_nibbles(uint8_t *restrict row, const uint8_t *restrict codes, int64_t K)
{
    enum { BYTES = 16 };
    int64_t k = 0;
    for (; k + 2 * BYTES <= K; k += 2 * BYTES)
        for (int j = 0; j < BYTES; j++) {
            uint16_t two;
            memcpy(&two, codes + k + 2 * j, 2);
            row[k / 2 + j] = (uint8_t)((two & 15) | (two >> 4 & 0xf0));
        }
    return k;
}

void qt_pack_row(uint8_t *row, const uint8_t *codes, int64_t K, int bits)
{
    if (bits == 8) {
        memcpy(row, codes, (size_t)K);
        return;
    }
    const int64_t k = bits == 4 ? pack_nibbles(row, codes, K) : 0;
    EACH_BITS(bits, pack_bits, row + k / 2, codes + k, K - k);
}

static void unpack_row(uint8_t *codes, const uint8_t *row, int64_t K, int bits)
{
    if (bits == 8) {
        memcpy(codes, row, (size_t)K);
        return;
    }
    const int64_t k = bits == 4 ? unpack_nibbles(codes, row, K) : 0;
    EACH_BITS(bits, unpack_bits, codes + k, row + k / 2, K - k);
}

void qt_unpack(uint8_t *codes, const uint8_t *row, int64_t k, int64_t n, int bits)
{
    for (; n && k % 8; k++, n--)
        *codes++ = (uint8_t)qt_get(row, k, bits);
    if (n) unpack_row(codes, row + (size_t)k / 8 * (size_t)bits, n, bits);
}
