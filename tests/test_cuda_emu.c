/* tests/test_cuda_emu.c - the emulation finds each mistake that it says it finds, and none where
 * there is none. */
#include "tests/check.h"
#include "tests/cuda_broken.h"

extern const dev_ops emu_table;

TEST(each_detector_finds_its_mistake)
{
    for (size_t i = 0; i < BROKEN_N; i++) {
        const broken_case *c = &broken_cases[i];
        lq_err err = { "" };
        dev d;
        float host[BROKEN_FLOATS] = { 0 };
        CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
        float *buf = emu_table.alloc(&d, sizeof host);
        emu_table.upload(&d, buf, host, sizeof host);
        c->run(&d, buf);
        lq_status s = emu_table.sync(&d, &err);
        if (c->said)
            CHECK(s == LQ_EDEVICE && strstr(err.msg, c->said), "%s: expected '%s', found '%s'",
                  c->why, c->said, err.msg);
        else
            CHECK(!s, "%s: %s", c->why, err.msg);
        emu_table.free(&d, buf);
        CHECK(!emu_table.sync(&d, &err), "%s: %s", c->why, err.msg);
        emu_table.close(&d);
    }
}

TEST(after_a_failure_nothing_runs_until_it_was_asked_for)
{
    lq_err err = { "" };
    dev d;
    float host[BROKEN_FLOATS] = { 7 };
    CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
    float *buf = emu_table.alloc(&d, sizeof host);
    emu_table.upload(&d, buf, host, sizeof host);
    broken_cases[9].run(&d, buf); /* writes buf[1].. */
    emu_table.zero(&d, buf, sizeof host);
    CHECK(emu_table.sync(&d, &err) == LQ_EDEVICE, "%s", err.msg);
    emu_table.download(&d, host, buf, sizeof host);
    CHECK(!emu_table.sync(&d, &err) && host[0] == 7, "%s, %g", err.msg, (double)host[0]);
    emu_table.free(&d, buf);
    emu_table.close(&d);
}

int main(int argc, char **argv)
{
    RUN(each_detector_finds_its_mistake);
    RUN(after_a_failure_nothing_runs_until_it_was_asked_for);
    return check_end();
}
