/* base/os_wait.c - waiting as POSIX has it, with a clock that nobody sets; macOS has a call of its own. */
#include "base/os.h"

#if defined(__APPLE__)
#include "base/clock.h"

#include <errno.h>

void os_cond_init(pthread_cond_t *c) { pthread_cond_init(c, NULL); }

int os_cond_until(pthread_cond_t *c, pthread_mutex_t *m, double until)
{
    const double left = until - lq_now();
    if (!(left > 0)) return ETIMEDOUT;
    const time_t whole = (time_t)left;
    const struct timespec t = { .tv_sec = whole, .tv_nsec = (long)((left - (double)whole) * 1e9) };
    return pthread_cond_timedwait_relative_np(c, m, &t);
}
#else
void os_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

int os_cond_until(pthread_cond_t *c, pthread_mutex_t *m, double until)
{
    const time_t whole = (time_t)until;
    const struct timespec t = { .tv_sec = whole, .tv_nsec = (long)((until - (double)whole) * 1e9) };
    return pthread_cond_timedwait(c, m, &t);
}
#endif
