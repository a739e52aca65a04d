/* formats/tensor/blocks_bits.h - bits of eight elements, the bytes of a word, at once. */
#ifndef LLMQ_FORMATS_TENSOR_BLOCKS_BITS_H
#define LLMQ_FORMATS_TENSOR_BLOCKS_BITS_H

#include <stdint.h>
#include <string.h>

#define EACH_BYTE UINT64_C(0x0101010101010101)
static inline uint64_t get_eight(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}
static inline void put_eight(uint8_t *p, uint64_t x) { memcpy(p, &x, 8); }

/* dst[i] = src[i] >> shift & mask; n is a multiple of 8. */
static inline void get_bits(uint8_t *dst, const uint8_t *src, int n, int shift, unsigned mask)
{
    for (int i = 0; i < n; i += 8)
        put_eight(dst + i, get_eight(src + i) >> shift & mask * EACH_BYTE);
}
/* dst[i] |= (src[i] >> shift & mask) << up */
static inline void add_bits(uint8_t *dst, const uint8_t *src, int n, int shift, unsigned mask,
                            int up)
{
    for (int i = 0; i < n; i += 8)
        put_eight(dst + i, get_eight(dst + i) | (get_eight(src + i) >> shift & mask * EACH_BYTE)
                                                    << up);
}
/* 32 elements: low nibbles, then high ones. */
static inline void get_nibbles(uint8_t *code, const uint8_t *qs)
{
    get_bits(code, qs, 16, 0, 15);
    get_bits(code + 16, qs, 16, 4, 15);
}
static inline uint16_t get_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}
static inline uint32_t get_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

#endif
