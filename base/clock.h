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

/* A time of lq_now for pthread_cond_timedwait; the condition's clock is CLOCK_MONOTONIC. */
static inline struct timespec lq_timespec(double seconds)
{
    const time_t whole = (time_t)seconds;
    return (struct timespec){ .tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9) };
}

#endif
