/* formats/tensor/blocks_iq_put.c - blocks of IQ2 and IQ3 from their parts: the inverse of blocks_iq.c. */
#include "formats/tensor/blocks.h"

#include <assert.h>

/* The number of the point that these codes are. */
static unsigned number(const blk_book *b, const uint8_t *code)
{
    unsigned point = 0;
    int lo = 0, hi = b->n - 1;
    for (int i = 0; i < b->dim; i++)
        point |= (code[i] & ((1u << b->bits) - 1u)) << b->bits * i;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (b->point[mid] < point)
            lo = mid + 1;
        else
            hi = mid;
    }
    assert(b->point[lo] == point);
    return (unsigned)lo;
}

/* Signs of eight elements. */
static unsigned signs(const blk_book *b, const uint8_t *code)
{
    unsigned s = 0;
    for (int i = 0; i < 8; i++)
        s |= (code[i] >> b->bits & 1u) << i;
    return s;
}

static void put_half(uint8_t *p, unsigned x)
{
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
}

static void put_word(uint8_t *p, uint32_t x)
{
    put_half(p, x & 0xffffu);
    put_half(p + 2, x >> 16);
}

/* n scales 2 s + 1 as nibbles. */
static void put_odd_nibbles(uint8_t *p, const int8_t *sc, int n)
{
    for (int i = 0; i < n; i++)
        p[i / 2] |= (uint8_t)((unsigned)(sc[i] - 1) / 2 << 4 * (i % 2));
}

/* 4 x 7 bits of signs and 4 of a scale. */
static void put_signs_and_scale(uint8_t *p, const blk_book *book, const uint8_t *code, int sc)
{
    uint32_t s = (uint32_t)(sc - 1) / 2 << 28;
    for (int i = 0; i < 4; i++)
        s |= (signs(book, code + 8 * i) & 127u) << 7 * i;
    put_word(p, s);
}

void blk_put_iq2_xxs(uint8_t *p, const blk_parts *b)
{
    const blk_book *book = &blk_book_iq2_xxs;
    for (int g = 0; g < 8; g++) {
        uint8_t *q = p + 2 + 8 * g;
        for (int i = 0; i < 4; i++)
            q[i] = (uint8_t)number(book, b->code + 32 * g + 8 * i);
        put_signs_and_scale(q + 4, book, b->code + 32 * g, b->sc[g]);
    }
}

void blk_put_iq2_xs(uint8_t *p, const blk_parts *b)
{
    const blk_book *book = &blk_book_iq2_xs;
    put_odd_nibbles(p + 66, b->sc, 16);
    for (int i = 0; i < 32; i++)
        put_half(p + 2 + 2 * i,
                 number(book, b->code + 8 * i) | (signs(book, b->code + 8 * i) & 127u) << 9);
}

void blk_put_iq2_s(uint8_t *p, const blk_parts *b)
{
    const blk_book *book = &blk_book_iq2_s;
    uint8_t *qs = p + 2, *sign = p + 34, *qh = p + 66;
    put_odd_nibbles(p + 74, b->sc, 16);
    for (int i = 0; i < 32; i++) {
        const unsigned n = number(book, b->code + 8 * i);
        qs[i] = (uint8_t)n;
        qh[i / 4] |= (uint8_t)(n >> 8 << 2 * (i % 4));
        sign[i] = (uint8_t)signs(book, b->code + 8 * i);
    }
}

void blk_put_iq3_xxs(uint8_t *p, const blk_parts *b)
{
    const blk_book *book = &blk_book_iq3_xxs;
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < 8; i++)
            p[2 + 8 * g + i] = (uint8_t)number(book, b->code + 32 * g + 4 * i);
        put_signs_and_scale(p + 66 + 4 * g, book, b->code + 32 * g, b->sc[g]);
    }
}

void blk_put_iq3_s(uint8_t *p, const blk_parts *b)
{
    const blk_book *book = &blk_book_iq3_s;
    uint8_t *qs = p + 2, *qh = p + 66, *sign = p + 74;
    put_odd_nibbles(p + 106, b->sc, 8);
    for (int i = 0; i < 64; i++) {
        const unsigned n = number(book, b->code + 4 * i);
        qs[i] = (uint8_t)n;
        qh[i / 8] |= (uint8_t)(n >> 8 << i % 8);
    }
    for (int i = 0; i < 32; i++)
        sign[i] = (uint8_t)signs(book, b->code + 8 * i);
}
