/* tests/support/noise.h - values in -1..1 that repeat nowhere near; as tests/golden/backward makes them. */
#ifndef LLMQ_TESTS_SUPPORT_NOISE_H
#define LLMQ_TESTS_SUPPORT_NOISE_H

#include <stdint.h>

static inline float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed / 2147483648.0f;
}

static inline void fill(float *x, int64_t n, float size, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = size * noise(&seed);
}

#endif
