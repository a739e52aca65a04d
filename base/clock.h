/* base/clock.h - the monotonic clock: seconds since a fixed moment; it never goes back. */
#ifndef LLMQ_BASE_CLOCK_H
#define LLMQ_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t lq_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double lq_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
