/* formats/tensor/blocks_iq.c - the IQ types: a code is a place in a table, and the places of four or
 * eight elements are a point of a lattice, named by number (blocks_grids.h). Signs of eight elements
 * are a byte, or 7 bits whose number of ones is made even. */
#include "formats/tensor/blocks.h"
#include "formats/tensor/blocks_bits.h"
#include "formats/tensor/blocks_grids.h"

const int8_t blk_iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113 };
/* Sizes, then the same below 0. */
const int8_t blk_iq3_xxs[16] = { 4,  12,  20,  28,  36,  44,  52,  62,
                                 -4, -12, -20, -28, -36, -44, -52, -62 };
const int8_t blk_iq3_s[16] = { 1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15 };
const int8_t blk_iq2[8] = { 8, 25, 43, 0, -8, -25, -43, 0 };
/* Eight times -1, 0, 1, each shifted by an eighth up or down. */
const int8_t blk_iq1[8] = { -7, 1, 9, 0, -9, -1, 7, 0 };

const blk_book blk_book_iq2_xxs = { 8, 256, 2, true, grid_iq2_xxs };
const blk_book blk_book_iq2_xs = { 8, 512, 2, true, grid_iq2_xs };
const blk_book blk_book_iq2_s = { 8, 1024, 2, false, grid_iq2_s };
const blk_book blk_book_iq3_xxs = { 4, 256, 3, true, grid_iq3_xxs };
const blk_book blk_book_iq3_s = { 4, 512, 3, false, grid_iq3_s };

static uint8_t even_signs(unsigned seven)
{
    unsigned odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return (uint8_t)(seven | (odd & 1u) << 7);
}

/* Places of n elements, `bits` of each, and the bit above them: its sign, or `above` of all. */
static void put_point(uint8_t *code, unsigned point, int n, int bits, unsigned above)
{
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)((point >> bits * i & ((1u << bits) - 1u)) | (above >> i & 1u) << bits);
}

/* 2 s + 1 of 16 nibbles, or of 8 nibbles in 4 bytes. */
static void odd_nibbles(int8_t *sc, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++)
        sc[i] = (int8_t)(2 * (p[i / 2] >> 4 * (i % 2) & 15) + 1);
}

/* Four bytes of points, then 4 x 7 bits of signs and 4 of a scale, for 32 elements. */
void blk_take_iq2_xxs(blk_parts *b, const uint8_t *p)
{
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = p + 2 + 8 * g;
        const uint32_t s = get_word(q + 4);
        b->sc[g] = (int8_t)(2 * (s >> 28) + 1);
        for (int i = 0; i < 4; i++)
            put_point(b->code + 32 * g + 8 * i, grid_iq2_xxs[q[i]], 8, 2,
                      even_signs(s >> 7 * i & 127u));
    }
}

void blk_take_iq2_xs(blk_parts *b, const uint8_t *p)
{
    odd_nibbles(b->sc, p + 66, 16);
    for (int i = 0; i < 32; i++) {
        const unsigned q = get_half(p + 2 + 2 * i);
        put_point(b->code + 8 * i, grid_iq2_xs[q & 511u], 8, 2, even_signs(q >> 9));
    }
}

void blk_take_iq2_s(blk_parts *b, const uint8_t *p)
{
    const uint8_t *qs = p + 2, *signs = p + 34, *qh = p + 66;
    odd_nibbles(b->sc, p + 74, 16);
    for (int i = 0; i < 32; i++) {
        const unsigned high = (unsigned)qh[i / 4] >> 2 * (i % 4) & 3u;
        put_point(b->code + 8 * i, grid_iq2_s[qs[i] | high << 8], 8, 2, signs[i]);
    }
}

void blk_take_iq3_xxs(blk_parts *b, const uint8_t *p)
{
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = p + 2 + 8 * g;
        const uint32_t s = get_word(p + 66 + 4 * g);
        b->sc[g] = (int8_t)(2 * (s >> 28) + 1);
        for (int i = 0; i < 8; i++)
            put_point(b->code + 32 * g + 4 * i, grid_iq3_xxs[q[i]], 4, 3,
                      (unsigned)even_signs(s >> 7 * (i / 2) & 127u) >> 4 * (i % 2));
    }
}

void blk_take_iq3_s(blk_parts *b, const uint8_t *p)
{
    const uint8_t *qs = p + 2, *qh = p + 66, *signs = p + 74;
    odd_nibbles(b->sc, p + 106, 8);
    for (int i = 0; i < 64; i++) {
        const unsigned high = (unsigned)qh[i / 8] >> i % 8 & 1u;
        put_point(b->code + 4 * i, grid_iq3_s[qs[i] | high << 8], 4, 3,
                  (unsigned)signs[i / 2] >> 4 * (i % 2));
    }
}

void blk_take_iq1_s(blk_parts *b, const uint8_t *p)
{
    for (int g = 0; g < 8; g++) {
        const unsigned h = get_half(p + 34 + 2 * g);
        b->sc[g] = (int8_t)(2 * (h >> 12 & 7u) + 1);
        for (int i = 0; i < 4; i++)
            put_point(b->code + 32 * g + 8 * i, grid_iq1[p[2 + 4 * g + i] | (h >> 3 * i & 7u) << 8],
                      8, 2, h >> 15 ? 255u : 0u);
    }
}

/* d is in the upper four bits of the four halves that hold the scales, 3 bits of each. */
void blk_take_iq1_m(blk_parts *b, const uint8_t *p)
{
    const uint8_t *qh = p + 32, *scales = p + 48;
    b->d = 0;
    for (int i = 0; i < 4; i++)
        b->d = (uint16_t)(b->d | get_half(scales + 2 * i) >> 12 << 4 * i);
    for (int g = 0; g < 16; g++)
        b->sc[g] = (int8_t)(2 * (get_half(scales + g / 4 * 2) >> 3 * (g % 4) & 7) + 1);
    for (int i = 0; i < 32; i++) {
        const unsigned h = (unsigned)qh[i / 2] >> 4 * (i % 2);
        put_point(b->code + 8 * i, grid_iq1[p[i] | (h & 7u) << 8], 8, 2, h & 8u ? 255u : 0u);
    }
}
