/* base/random.h - splitmix64 (Steele, Lea, Flood 2014): the numbers that choose calibration
 * windows, answers and orders. The same for a seed on every machine. */
#ifndef LLMQ_BASE_RANDOM_H
#define LLMQ_BASE_RANDOM_H

#include <stdint.h>

/* The number of one counter: of a stream whose i-th number needs no other. */
static inline uint64_t cal_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The next number of a stream; *state begins as the seed. */
static inline uint64_t cal_random(uint64_t *state)
{
    uint64_t z = cal_mix(*state);
    *state += 0x9e3779b97f4a7c15u;
    return z;
}

#endif
