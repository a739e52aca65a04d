/* formats/tensor/blocks.h - GGUF's types of blocks: how many elements and bytes, and what they mean.
 *
 *     w = scale * value(code) + bias
 *     scale = d * unit * sc[group], bias = sign * dmin * m[group], each product rounded to f32
 *     value(code) = table ? table[code] : code - zero
 *
 * d, dmin: f16, one of each in a block; sc, m: whole numbers, one of each for a group of inputs,
 * where `fine` says so, else 1. Every type of GGUF has this form but the three of floats and these,
 * which other schemes of qtensor.h hold as they are: Q4_0, Q8_0, MXFP4, NVFP4.
 *
 * Source: ggml-quants.c's dequantize_row functions and gguf-py's quants.py of 2026-08; values are
 * theirs to the bit. */
#ifndef LLMQ_FORMATS_TENSOR_BLOCKS_H
#define LLMQ_FORMATS_TENSOR_BLOCKS_H

#include "formats/tensor/qtensor.h"

LQ_C_BEGIN

/* X(name, GGUF's number, elements of a block, bytes of a block) */
#define BLK_TYPES(X)        \
    X(Q4_1, 3, 32, 20)      \
    X(Q5_0, 6, 32, 22)      \
    X(Q5_1, 7, 32, 24)      \
    X(Q2_K, 10, 256, 84)    \
    X(Q3_K, 11, 256, 110)   \
    X(Q4_K, 12, 256, 144)   \
    X(Q5_K, 13, 256, 176)   \
    X(Q6_K, 14, 256, 210)   \
    X(IQ2_XXS, 16, 256, 66) \
    X(IQ2_XS, 17, 256, 74)  \
    X(IQ3_XXS, 18, 256, 98) \
    X(IQ1_S, 19, 256, 50)   \
    X(IQ4_NL, 20, 32, 18)   \
    X(IQ3_S, 21, 256, 110)  \
    X(IQ2_S, 22, 256, 82)   \
    X(IQ4_XS, 23, 256, 136) \
    X(IQ1_M, 29, 256, 56)   \
    X(TQ1_0, 34, 256, 54)   \
    X(TQ2_0, 35, 256, 66)   \
    X(Q1_0, 41, 128, 18)    \
    X(Q2_0, 42, 64, 18)
typedef enum {
#define X(name, id, elements, bytes) BLK_##name = id,
    BLK_TYPES(X)
#undef X
} blk_id;

enum { BLK_ELEMENTS = 256, BLK_GROUPS = 16 }; /* at most in a block */

/* A block taken apart. */
typedef struct {
    uint8_t code[BLK_ELEMENTS];
    int8_t sc[BLK_GROUPS];
    uint8_t m[BLK_GROUPS];
    uint16_t d, dmin;
} blk_parts;

typedef struct {
    blk_id id;
    const char *name; /* "Q4_K" */
    int elements, bytes;
    int d_at, dmin_at;   /* bytes before them; -1: none, or IQ1_M's d, which is in four parts */
    int bits, group;     /* of a code; inputs of a scale: 16 or 32 */
    int zero;            /* where there is no table */
    const int8_t *table; /* [1 << bits] */
    int bias;            /* the sign of dmin * m; 0: none */
    bool fine;
    float unit;
    void (*take)(blk_parts *b, const uint8_t *block); /* all but what is at d_at and dmin_at */
} blk_type;

const blk_type *blk_find(int64_t id); /* NULL: none of them */
const blk_type *blk_named(const char *name);
static inline size_t blk_row_bytes(const blk_type *t, int64_t K)
{
    return (size_t)(K / t->elements) * (size_t)t->bytes;
}
static inline int blk_value(const blk_type *t, unsigned code)
{
    return t->table ? t->table[code] : (int)code - t->zero;
}
/* Codes, d, and what the type has of dmin, sc and m. */
void blk_take(blk_parts *b, const blk_type *t, const uint8_t *block);
/* d and dmin at least. */
void blk_take_scales(blk_parts *b, const blk_type *t, const uint8_t *block);
/* Scale and bias of a group of a block. */
float blk_scale(const blk_type *t, const blk_parts *b, int g);
float blk_bias(const blk_type *t, const blk_parts *b, int g);
/* A row of blocks as f32 [K]. */
void blk_dequant(float *dst, const blk_type *t, const uint8_t *blocks, int64_t K);

/* Points that a block names by number: the places of `dim` elements in the type's table, `bits` of each, the first
 * lowest; numbers rise. A code is a place and, above its bits, a sign; `even`: of eight signs an even number is set. */
typedef struct {
    int dim, n, bits;
    bool even;
    const uint16_t *point;
} blk_book;

/* ---- blocks_put.c ---- */
/* A type that quantizers make: what sc and m hold (1: there are none). */
typedef struct {
    blk_id id;
    int sc_lo, sc_hi, m_hi;
    int sc_step;          /* from one sc to the next */
    const blk_book *book; /* that codes are points of; NULL: each is its own */
    void (*put)(uint8_t *block, const blk_parts *b); /* into zeros, all but d and dmin */
} blk_made;
const blk_made *blk_made_of(const blk_type *t); /* NULL: none of them */
/* The inverse of blk_take. */
void blk_put(uint8_t *block, const blk_type *t, const blk_parts *b);

/* ---- blocks_iq.c ---- */
extern const int8_t blk_iq4[16], blk_iq3_xxs[16], blk_iq3_s[16], blk_iq2[8], blk_iq1[8];
void blk_take_iq2_xxs(blk_parts *b, const uint8_t *p);
void blk_take_iq2_xs(blk_parts *b, const uint8_t *p);
void blk_take_iq2_s(blk_parts *b, const uint8_t *p);
void blk_take_iq3_xxs(blk_parts *b, const uint8_t *p);
void blk_take_iq3_s(blk_parts *b, const uint8_t *p);
void blk_take_iq1_s(blk_parts *b, const uint8_t *p);
void blk_take_iq1_m(blk_parts *b, const uint8_t *p);
extern const blk_book blk_book_iq2_xxs, blk_book_iq2_xs, blk_book_iq2_s, blk_book_iq3_xxs,
    blk_book_iq3_s;

/* ---- blocks_iq_put.c: codes are points of the type's book ---- */
void blk_put_iq2_xxs(uint8_t *p, const blk_parts *b);
void blk_put_iq2_xs(uint8_t *p, const blk_parts *b);
void blk_put_iq2_s(uint8_t *p, const blk_parts *b);
void blk_put_iq3_xxs(uint8_t *p, const blk_parts *b);
void blk_put_iq3_s(uint8_t *p, const blk_parts *b);

LQ_C_END

#endif
