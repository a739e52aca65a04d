/* base/random.h - splitmix64 (Steele, Lea, Flood 2014): the numbers that choose calibration windows,
 * answers and orders. The same for a seed on every machine, and on a GPU. */
#ifndef LLMQ_BASE_RANDOM_H
#define LLMQ_BASE_RANDOM_H

#include "base/base.h" /* LQ_INLINE */

LQ_C_BEGIN

#define LQ_GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / the golden ratio: what a stream's state grows by */

/* The finalizer: bits that depend on all bits of z. */
LQ_INLINE uint64_t lq_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The number of one counter: of a stream whose i-th number needs no other. */
LQ_INLINE uint64_t lq_random_of(uint64_t z) { return lq_mix(z + LQ_GOLDEN); }

/* The next number of a stream; *state begins as the seed. */
LQ_INLINE uint64_t lq_random(uint64_t *state)
{
    *state += LQ_GOLDEN;
    return lq_mix(*state);
}

LQ_C_END

#endif
