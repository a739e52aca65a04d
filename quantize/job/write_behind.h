/* quantize/job/write_behind.h - one call at a time in the background: a tensor is written while the
 * next one is rounded.
 *
 *     round 1 | round 2 | round 3 |
 *             | write 1 | write 2 | write 3
 *
 * The call runs on a thread of its own and does not use the pool. */
#ifndef LLMQ_QUANTIZE_JOB_WRITE_BEHIND_H
#define LLMQ_QUANTIZE_JOB_WRITE_BEHIND_H

#include <pthread.h>

#include "base/base.h"

/* Zero: none under way. */
typedef struct {
    lq_status (*call)(void *ctx, lq_err *err);
    void *ctx;
    pthread_t thread;
    bool running;
    lq_status status;
    lq_err err;
} write_behind;

/* call(ctx): at once where the system gives no thread. The one before it was waited for. */
void write_behind_start(write_behind *b, lq_status (*call)(void *ctx, lq_err *err), void *ctx);
/* The end of the call under way and what it returned, its message in err (else err stays as it
 * is); LQ_OK without one. */
lq_status write_behind_wait(write_behind *b, lq_err *err);

#endif
