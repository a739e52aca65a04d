/* tests/unit/test_write_behind.c - quantize/job/write_behind.h: one call behind its caller's back. */
#include "quantize/job/write_behind.h"

#include <stdatomic.h>

#include "tests/support/check.h"

typedef struct {
    atomic_int may_end, ended;
    bool waits; /* for may_end */
    lq_status status;
} call;

static lq_status run(void *ctx, lq_err *err)
{
    call *c = ctx;
    while (c->waits && !atomic_load(&c->may_end)) {
    }
    atomic_store(&c->ended, 1);
    return c->status ? lq_fail(err, c->status, "it failed") : LQ_OK;
}

TEST(its_caller_goes_on)
{
    call c = { .waits = true };
    write_behind b = { 0 };
    write_behind_start(&b, run, &c); /* would not come back if it waited for the end */
    CHECK(!atomic_load(&c.ended), "the call has ended before it may");
    atomic_store(&c.may_end, 1);
    CHECK(write_behind_wait(&b, NULL) == LQ_OK && atomic_load(&c.ended),
          "waiting is not for the end");
}

TEST(an_error_is_told_once_and_to_who_waits)
{
    call bad = { .status = LQ_EIO }, good = { 0 };
    write_behind b = { 0 };
    lq_err err = { "as it was" };
    CHECK(write_behind_wait(&b, &err) == LQ_OK && strcmp(err.msg, "as it was") == 0, "%s", err.msg);
    write_behind_start(&b, run, &bad);
    CHECK(write_behind_wait(&b, &err) == LQ_EIO && strcmp(err.msg, "it failed") == 0, "%s",
          err.msg);
    CHECK(write_behind_wait(&b, NULL) == LQ_OK, "the same error twice");
    write_behind_start(&b, run, &good);
    CHECK(write_behind_wait(&b, &err) == LQ_OK, "%s", err.msg);
}

int main(int argc, char **argv)
{
    RUN(its_caller_goes_on);
    RUN(an_error_is_told_once_and_to_who_waits);
    return check_end();
}
