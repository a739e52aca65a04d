/* tests/test_cuda_emu.c - the emulation finds each mistake that it says it finds, and none where
 * there is none. */
#include "tests/check.h"
#include "tests/cuda_broken.h"

extern const dev_ops emu_table;
extern int emu_devices;

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

TEST(after_a_failure_memory_goes_back_and_the_wait_is_one)
{
    lq_err err = { "" };
    dev d;
    float host[BROKEN_FLOATS];
    CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
    const size_t room = emu_table.room(&d);
    float *buf = emu_table.alloc(&d, sizeof host), *down = emu_table.alloc_host(&d, sizeof host);
    for (int i = 0; i < BROKEN_FLOATS; i++)
        host[i] = (float)i;
    emu_table.upload(&d, buf, host, sizeof host);
    emu_table.download(&d, down, buf, sizeof host);
    broken_cases[9].run(&d, buf);
    CHECK(emu_table.sync(&d, &err) == LQ_EDEVICE, "%s", err.msg);
    CHECK(down[3] == 3, "what was queued before is there: %g", (double)down[3]);
    broken_cases[9].run(&d, buf);
    emu_table.free_host(&d, down);
    emu_table.free(&d, buf);
    CHECK(emu_table.sync(&d, &err) == LQ_EDEVICE, "%s", err.msg);
    CHECK(emu_table.room(&d) == room, "%zu bytes are lost", room - emu_table.room(&d));
    emu_table.close(&d);
}

/* Of pinned memory copies are asynchronous. */
TEST(pinned_memory_belongs_to_the_stream_until_the_wait)
{
    for (int early = 0; early < 2; early++) {
        lq_err err = { "" };
        dev d;
        CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
        float *buf = emu_table.alloc(&d, 64), *up = emu_table.alloc_host(&d, 64),
              *down = emu_table.alloc_host(&d, 64);
        memset(up, 0, 64);
        up[3] = 5;
        emu_table.upload(&d, buf, up, 64);
        if (early) up[3] = 6;
        emu_table.download(&d, down, buf, 64);
        CHECK(isnan(down[3]), "%g arrived before the wait", (double)down[3]);
        const lq_status s = emu_table.sync(&d, &err);
        CHECK(early ? s == LQ_EDEVICE && strstr(err.msg, "pinned memory was changed") : !s, "%s",
              err.msg);
        CHECK(down[3] == 5, "%g", (double)down[3]);
        emu_table.free_host(&d, up);
        emu_table.free_host(&d, down);
        emu_table.free(&d, buf);
        emu_table.close(&d);
    }
}

enum { FIRST, SECOND };
/* broken_cases[8] writes inside of buf: what each of two devices may do with whose buffer. */
static const struct {
    const char *why, *said;
    int set, stream, memory;
} two_devices[] = {
    { "its own", NULL, SECOND, SECOND, SECOND },
    { "the other device is set", "a launch on a stream of device 1, device 0 is set", FIRST, SECOND,
      SECOND },
    { "memory of the other", "bounds: ", FIRST, FIRST, SECOND },
};

TEST(devices_have_streams_and_memory_of_their_own)
{
    lq_err err = { "" };
    dev d[2];
    float *buf[2], host[BROKEN_FLOATS] = { 0 };
    emu_devices = 2;
    for (int i = 0; i < 2; i++) {
        CHECK(!emu_table.open(&d[i], i, &err), "%s", err.msg);
        const size_t room = emu_table.room(&d[i]);
        buf[i] = emu_table.alloc(&d[i], sizeof host);
        CHECK(emu_table.room(&d[i]) == room - sizeof host, "device %d", i);
        emu_table.upload(&d[i], buf[i], host, sizeof host);
    }
    for (size_t i = 0; i < LQ_COUNT(two_devices); i++) {
        dev *on = &d[two_devices[i].stream];
        emu_table.bind(&d[two_devices[i].set]);
        broken_cases[8].run(on, buf[two_devices[i].memory]);
        const lq_status s = emu_table.sync(on, &err);
        if (two_devices[i].said)
            CHECK(s == LQ_EDEVICE && strstr(err.msg, two_devices[i].said), "%s: found '%s'",
                  two_devices[i].why, err.msg);
        else
            CHECK(!s, "%s: %s", two_devices[i].why, err.msg);
    }
    emu_table.upload(&d[0], buf[1], host, sizeof host);
    CHECK(emu_table.sync(&d[0], &err) == LQ_EDEVICE && strstr(err.msg, "gave on device 0"), "%s",
          err.msg);
    float *down[2];
    for (int i = 0; i < 2; i++) {
        down[i] = emu_table.alloc_host(&d[i], sizeof host);
        emu_table.download(&d[i], down[i], buf[i], sizeof host);
    }
    CHECK(!emu_table.sync(&d[0], &err) && !isnan(down[0][0]) && isnan(down[1][0]),
          "one stream's wait is not the other's");
    for (int i = 0; i < 2; i++) {
        emu_table.free_host(&d[i], down[i]);
        emu_table.free(&d[i], buf[i]);
        emu_table.close(&d[i]);
    }
    emu_devices = 1;
}

int main(int argc, char **argv)
{
    RUN(each_detector_finds_its_mistake);
    RUN(after_a_failure_nothing_runs_until_it_was_asked_for);
    RUN(after_a_failure_memory_goes_back_and_the_wait_is_one);
    RUN(devices_have_streams_and_memory_of_their_own);
    RUN(pinned_memory_belongs_to_the_stream_until_the_wait);
    return check_end();
}
