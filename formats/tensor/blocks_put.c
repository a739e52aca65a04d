/* formats/tensor/blocks_put.c - blocks from their parts: the inverse of blocks.c, for the types that quantizers make. */
#include "formats/tensor/blocks.h"
#include "formats/tensor/blocks_bits.h"

/* dst[i] |= (code[i] >> from & mask) << to */
static void put_bits(uint8_t *dst, const uint8_t *code, int n, int from, unsigned mask, int to)
{
    add_bits(dst, code, n, from, mask, to);
}
/* 32 elements: low nibbles, then high ones. */
static void put_nibbles(uint8_t *qs, const uint8_t *code)
{
    put_bits(qs, code, 16, 0, 15, 0);
    put_bits(qs, code + 16, 16, 0, 15, 4);
}
/* The fifth bit of 32 elements. */
static void put_fifth(uint8_t *qh, const uint8_t *code)
{
    for (int i = 0; i < 32; i++)
        qh[i / 8] |= (uint8_t)((code[i] >> 4 & 1) << i % 8);
}
static void put_q4_1(uint8_t *p, const blk_parts *b) { put_nibbles(p + 4, b->code); }
static void put_q5_0(uint8_t *p, const blk_parts *b)
{
    put_nibbles(p + 6, b->code);
    put_fifth(p + 2, b->code);
}
static void put_q5_1(uint8_t *p, const blk_parts *b)
{
    put_nibbles(p + 8, b->code);
    put_fifth(p + 4, b->code);
}
static void put_iq4_nl(uint8_t *p, const blk_parts *b) { put_nibbles(p + 2, b->code); }

/* ---- 256 elements ---- */
static void put_crumbs(uint8_t *qs, const uint8_t *code)
{
    for (int i = 0; i < 8; i++)
        put_bits(qs + 32 * (i / 4), code + 32 * i, 32, 0, 3, 2 * (i % 4));
}
static void put_k_nibbles(uint8_t *qs, const uint8_t *code)
{
    for (int i = 0; i < 8; i++)
        put_bits(qs + 32 * (i / 2), code + 32 * i, 32, 0, 15, 4 * (i % 2));
}
static void put_q2_k(uint8_t *p, const blk_parts *b)
{
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)((b->sc[i] & 15) | b->m[i] << 4);
    put_crumbs(p + 16, b->code);
}
static void put_q3_k(uint8_t *p, const blk_parts *b)
{
    uint8_t *s = p + 96;
    for (int i = 0; i < 16; i++) {
        const unsigned v = (unsigned)(b->sc[i] + 32);
        s[i % 8] |= (uint8_t)((v & 15) << 4 * (i / 8));
        s[8 + i % 4] |= (uint8_t)(v >> 4 << 2 * (i / 4));
    }
    put_crumbs(p + 32, b->code);
    for (int i = 0; i < 8; i++)
        put_bits(p, b->code + 32 * i, 32, 2, 1, i);
}
static void put_six_bits(uint8_t *s, const blk_parts *b)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(b->sc[j] | b->sc[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(b->m[j] | b->m[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((b->sc[j + 4] & 15) | b->m[j + 4] << 4);
    }
}
static void put_q4_k(uint8_t *p, const blk_parts *b)
{
    put_six_bits(p + 4, b);
    put_k_nibbles(p + 16, b->code);
}
static void put_q5_k(uint8_t *p, const blk_parts *b)
{
    put_six_bits(p + 4, b);
    put_k_nibbles(p + 48, b->code);
    for (int i = 0; i < 8; i++)
        put_bits(p + 16, b->code + 32 * i, 32, 4, 1, i);
}
static void put_q6_k(uint8_t *p, const blk_parts *b)
{
    memcpy(p + 192, b->sc, 16);
    for (int i = 0; i < 8; i++) {
        const int h = i / 4, c = i % 4;
        put_bits(p + 64 * h + 32 * (c & 1), b->code + 32 * i, 32, 0, 15, 4 * (c >> 1));
        put_bits(p + 128 + 32 * h, b->code + 32 * i, 32, 4, 3, 2 * c);
    }
}
static void put_iq4_xs(uint8_t *p, const blk_parts *b)
{
    unsigned high = 0;
    for (int i = 0; i < 8; i++) {
        const unsigned v = (unsigned)(b->sc[i] + 32);
        p[4 + i / 2] |= (uint8_t)((v & 15) << 4 * (i % 2));
        high |= v >> 4 << 2 * i;
        put_nibbles(p + 8 + 16 * i, b->code + 32 * i);
    }
    const uint16_t word = (uint16_t)high;
    memcpy(p + 2, &word, 2);
}

static const blk_made made[] = {
    { BLK_Q4_1, 1, 1, 1, 1, NULL, put_q4_1 },
    { BLK_Q5_0, 1, 1, 0, 1, NULL, put_q5_0 },
    { BLK_Q5_1, 1, 1, 1, 1, NULL, put_q5_1 },
    { BLK_Q2_K, 0, 15, 15, 1, NULL, put_q2_k },
    { BLK_Q3_K, -32, 31, 0, 1, NULL, put_q3_k },
    { BLK_Q4_K, 0, 63, 63, 1, NULL, put_q4_k },
    { BLK_Q5_K, 0, 63, 63, 1, NULL, put_q5_k },
    { BLK_Q6_K, -128, 127, 0, 1, NULL, put_q6_k },
    { BLK_IQ4_NL, 1, 1, 0, 1, NULL, put_iq4_nl },
    { BLK_IQ4_XS, -32, 31, 0, 1, NULL, put_iq4_xs },
    { BLK_IQ2_XXS, 1, 31, 0, 2, &blk_book_iq2_xxs, blk_put_iq2_xxs },
    { BLK_IQ2_XS, 1, 31, 0, 2, &blk_book_iq2_xs, blk_put_iq2_xs },
    { BLK_IQ2_S, 1, 31, 0, 2, &blk_book_iq2_s, blk_put_iq2_s },
    { BLK_IQ3_XXS, 1, 31, 0, 2, &blk_book_iq3_xxs, blk_put_iq3_xxs },
    { BLK_IQ3_S, 1, 31, 0, 2, &blk_book_iq3_s, blk_put_iq3_s },
};

const blk_made *blk_made_of(const blk_type *t)
{
    for (size_t i = 0; t && i < LQ_COUNT(made); i++)
        if (made[i].id == t->id) return &made[i];
    return NULL;
}

void blk_put(uint8_t *block, const blk_type *t, const blk_parts *b)
{
    memset(block, 0, (size_t)t->bytes);
    memcpy(block + t->d_at, &b->d, sizeof b->d);
    if (t->bias) memcpy(block + t->dmin_at, &b->dmin, sizeof b->dmin);
    blk_made_of(t)->put(block, b);
}
