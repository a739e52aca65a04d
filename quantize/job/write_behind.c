/* quantize/job/write_behind.c - see write_behind.h. */
#include "quantize/job/write_behind.h"

#include "base/locale.h"

#include <assert.h>

static void *write_behind_run(void *arg)
{
    lq_locale_c();
    write_behind *b = arg;
    b->status = b->call(b->ctx, &b->err);
    return NULL;
}

void write_behind_start(write_behind *b, lq_status (*call)(void *ctx, lq_err *err), void *ctx)
{
    assert(!b->running && !b->status);
    b->call = call;
    b->ctx = ctx;
    b->running = pthread_create(&b->thread, NULL, write_behind_run, b) == 0;
    if (!b->running) write_behind_run(b);
}

lq_status write_behind_wait(write_behind *b, lq_err *err)
{
    if (b->running) pthread_join(b->thread, NULL);
    b->running = false;
    const lq_status s = b->status;
    b->status = LQ_OK;
    if (s && err) *err = b->err;
    return s;
}
