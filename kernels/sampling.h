/* kernels/sampling.h - the arithmetic of a draw, once for the sampler (runtime/engine/sample.c) and for the
 * kernel that does the same on a device (kernels/cuda/draw.cu).
 *
 * An id's weight exp((x - max) / temperature) is counted in units of 2^-s, rounded down, where 2^s
 * times the vocabulary stays below 2^62 (of 128,256 ids: s = 45). Sums of integers have no order,
 * so whoever adds them, in whatever pieces, draws the same id. What is below a unit is never drawn:
 * together less than 2^-28 of all. */
#ifndef LLMQ_KERNELS_SAMPLING_H
#define LLMQ_KERNELS_SAMPLING_H

#include "kernels/core/kmath.h"

#include "base/random.h"

/* 2^s for a vocabulary of V ids. */
LQ_INLINE float draw_unit(int64_t V)
{
    int bits = 0;
    while (V >> bits)
        bits++;
    return km_pow2(62 - bits);
}

/* In 0..1; 1 for the largest. */
LQ_INLINE float draw_weight(float x, float max, float temperature)
{
    if (x >= max) return 1.0f; /* also where a penalty took both beyond all numbers */
    const float z = (x - max) / temperature;
    return z < -87.0f ? 0.0f : km_exp(z); /* e^-87 is the last normal number */
}

LQ_INLINE uint64_t draw_units(float weight, float unit) { return (uint64_t)(weight * unit); }

/* A logit under penalties: n times in the output (n > 0), in the prompt alone (n < 0). */
LQ_INLINE float draw_penalize(float x, int32_t n, float repetition, float presence, float frequency)
{
    if (repetition > 0 && repetition != 1.0f) x = x > 0 ? x / repetition : x * repetition;
    if (n < 0) return x;
    x -= frequency * (float)n;
    return x - presence;
}

/* Of a total the least sum that reaches p of it: at least 1. */
LQ_INLINE uint64_t draw_share(float p, uint64_t total)
{
    const uint64_t n = (uint64_t)((double)p * (double)total);
    return n ? n : 1;
}

/* Random numbers: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
/* 53 bits of draw i of a seed. */
LQ_INLINE uint64_t draw_bits(uint64_t seed, uint64_t i)
{
    /* The seed is mixed first, so that neighbouring seeds are not shifts of one stream. */
    return lq_mix(lq_random_of(seed) + (i + 1) * LQ_GOLDEN) >> 11;
}

/* bits / 2^53 of a total, rounded down: the draw takes the first id at which the running sum is
 * larger. */
LQ_INLINE uint64_t draw_point(uint64_t bits, uint64_t total)
{
    const uint64_t a = bits << 11, a0 = a & 0xffffffffu, a1 = a >> 32;
    const uint64_t b0 = total & 0xffffffffu, b1 = total >> 32;
    const uint64_t mid = a1 * b0 + (a0 * b0 >> 32), low = a0 * b1 + (mid & 0xffffffffu);
    return a1 * b1 + (mid >> 32) + (low >> 32); /* the upper 64 bits of a * total */
}

#endif
