/* publish/retry.c - see retry.h. */
#include "publish/retry.h"

#include <time.h>

static bool wait_ms(const lq_job *job, int64_t ms)
{
    for (; ms > 0 && !lq_stopped(job); ms -= 50)
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    return !lq_stopped(job);
}

bool retry_again(retry_state *t, lq_status *s, const hc_answer *a, lq_err *err)
{
    const bool worth =
        *s ? *s == LQ_EIO && a->lost
           : a->status == 408 || a->status == 429 || (a->status >= 500 && a->status != 501);
    if (!worth || ++t->tries >= RETRY_TRIES) return false;
    int64_t ms = 200 << t->tries;
    if (a->retry_after >= 0 && a->retry_after <= 60) ms = a->retry_after * 1000;
    if (*s)
        pub_say(t->o, "%s; trying again", err->msg);
    else
        pub_say(t->o, "%s: answered %d; trying again", t->base, a->status);
    if (wait_ms(t->o->job, ms)) return true;
    *s = lq_fail(err, LQ_EINTR, "interrupted");
    return false;
}

void retry_file(retry_state *t, uint64_t bytes)
{
    t->tries = t->anew = 0;
    t->reached = 0;
    t->bytes = bytes;
}

void retry_reached(retry_state *t, uint64_t at)
{
    const uint64_t part = t->bytes / RETRY_STEPS,
                   step = part > RETRY_MIN_STEP ? part : RETRY_MIN_STEP;
    if (at <= t->reached || (at - t->reached < step && at < t->bytes)) return;
    t->reached = at;
    t->tries = 0;
}

lq_status retry_anew(retry_state *t, lq_err *err)
{
    return ++t->anew < RETRY_TRIES ? LQ_OK
                                   : lq_fail(err, LQ_EIO,
                                             "%s: expected a blob to be taken up where it ended, "
                                             "found it started over %d times",
                                             t->base, RETRY_TRIES);
}
