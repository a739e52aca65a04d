/* tests/unit/test_cuda_emu.c - the emulation finds each mistake that it says it finds, and none where
 * there is none. */
#include "tests/support/check.h"
#include "tests/support/cuda_broken.h"
#include "tests/support/emucounts.h"

#include <pthread.h>

extern const dev_ops emu_table;
extern int emu_devices;

TEST(each_detector_finds_its_mistake)
{
    for (size_t i = 0; i < broken_n; i++) {
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

/* Bytes at both ends of their range among them; no two rows or columns alike. */
TEST(a_product_of_bytes_is_the_plain_one)
{
    enum { M = 16, N = 8, K = 32 };
    lq_err err = { "" };
    dev d;
    uint8_t a[M * K];
    int8_t b[N * K];
    int32_t sums[M * N], got[M * N];
    CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
    for (int i = 0; i < M * K; i++)
        a[i] = (uint8_t)(i < K ? 255 : i * 37 + i / K);
    for (int i = 0; i < N * K; i++)
        b[i] = (int8_t)(i < K ? -128 : (i * 91 + i / K) % 256 - 128);
    for (int i = 0; i < M * N; i++)
        sums[i] = i * 1000 - 7;
    void *on[] = { emu_table.alloc(&d, sizeof sums), emu_table.alloc(&d, sizeof a),
                   emu_table.alloc(&d, sizeof b) };
    emu_table.upload(&d, on[0], sums, sizeof sums);
    emu_table.upload(&d, on[1], a, sizeof a);
    emu_table.upload(&d, on[2], b, sizeof b);
    broken_mma_u8s8(&d, on[0], on[1], on[2]);
    emu_table.download(&d, got, on[0], sizeof got);
    CHECK(!emu_table.sync(&d, &err), "%s", err.msg);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            int32_t want = sums[N * m + n];
            for (int k = 0; k < K; k++)
                want += a[K * m + k] * b[K * n + k];
            CHECK(got[N * m + n] == want, "%d, %d: %d, not %d", m, n, got[N * m + n], want);
        }
    for (int i = 0; i < 3; i++)
        emu_table.free(&d, on[i]);
    emu_table.close(&d);
}

/* A device, and these numbers on it. */
static float *open_with(dev *d, const float host[BROKEN_FLOATS])
{
    lq_err err = { "" };
    CHECK(!emu_table.open(d, 0, &err), "%s", err.msg);
    float *buf = emu_table.alloc(d, BROKEN_FLOATS * sizeof *buf);
    emu_table.upload(d, buf, host, BROKEN_FLOATS * sizeof *buf);
    return buf;
}

TEST(sums_of_a_product_under_way_are_no_numbers)
{
    lq_err err = { "" };
    dev d;
    float host[BROKEN_FLOATS] = { 0 };
    float *buf = open_with(&d, host);
    broken_read_early(&d, buf);
    emu_table.download(&d, host, buf, sizeof host);
    CHECK(!emu_table.sync(&d, &err) && isnan(host[0]), "%s, %g", err.msg, (double)host[0]);
    emu_table.free(&d, buf);
    emu_table.close(&d);
}

TEST(after_a_failure_nothing_runs_until_it_was_asked_for)
{
    lq_err err = { "" };
    dev d;
    float host[BROKEN_FLOATS] = { 7 };
    float *buf = open_with(&d, host);
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

/* Of one allocation: what broken_cases[8] (inside) and [9] (one behind) do with a part, and with
 * what lies between two. */
TEST(parts_of_an_allocation_are_watched_apart)
{
    enum { BYTES = BROKEN_FLOATS * sizeof(float), PARTS = 3 };
    lq_err err = { "" };
    dev d;
    float host[2 * BROKEN_FLOATS] = { 0 };
    CHECK(!emu_table.open(&d, 0, &err), "%s", err.msg);
    const size_t room = emu_table.room(&d);
    uint8_t *all = emu_table.alloc(&d, PARTS * BYTES);
    for (int i = 0; i < PARTS; i += 2)
        emu_table.part(&d, all + i * BYTES, BYTES);
    CHECK(emu_table.room(&d) == room - PARTS * BYTES, "parts are memory once");
    for (int i = 0; i < PARTS; i++) {
        float *at = (float *)(void *)(all + i * BYTES);
        emu_table.upload(&d, at, host, BYTES);
        broken_cases[8].run(&d, at);
        lq_status s = emu_table.sync(&d, &err);
        CHECK((s == LQ_EDEVICE) == (i == 1), "part %d: %s", i, err.msg);
        if (i == 1) continue;
        broken_cases[9].run(&d, at);
        s = emu_table.sync(&d, &err);
        CHECK(s == LQ_EDEVICE && strstr(err.msg, "allocation of 256 in device memory"), "%d: %s", i,
              err.msg);
        emu_table.upload(&d, at, host, BYTES + 4);
        CHECK(emu_table.sync(&d, &err) == LQ_EDEVICE, "a copy that goes beyond part %d", i);
    }
    emu_table.free(&d, all);
    CHECK(emu_table.room(&d) == room, "all is free");
    emu_table.upload(&d, all, host, BYTES);
    CHECK(emu_table.sync(&d, &err) == LQ_EDEVICE, "and its parts are gone");
    emu_table.part(&d, all, BYTES);
    CHECK(emu_table.room(&d) == room, "a part of nothing is none");
    emu_table.sync(&d, &err);
    emu_table.close(&d);
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

/* ---- captures ---- */

typedef struct {
    dev d;
    float *buf, *pinned; /* [BROKEN_FLOATS] */
} place;

static void open_place(place *p)
{
    lq_err err = { "" };
    CHECK(!emu_table.open(&p->d, 0, &err), "%s", err.msg);
    p->buf = emu_table.alloc(&p->d, BROKEN_FLOATS * sizeof(float));
    p->pinned = emu_table.alloc_host(&p->d, BROKEN_FLOATS * sizeof(float));
    for (int i = 0; i < BROKEN_FLOATS; i++)
        p->pinned[i] = (float)i;
    emu_table.upload(&p->d, p->buf, p->pinned, BROKEN_FLOATS * sizeof(float));
    CHECK(!emu_table.sync(&p->d, &err), "%s", err.msg);
}

static void close_place(place *p)
{
    lq_err err = { "" };
    emu_table.free(&p->d, p->buf);
    emu_table.free_host(&p->d, p->pinned);
    CHECK(!emu_table.sync(&p->d, &err), "%s", err.msg);
    emu_table.close(&p->d);
}

/* What lies in buf now. */
static float first_of(place *p)
{
    lq_err err = { "" };
    float host[BROKEN_FLOATS];
    emu_table.download(&p->d, host, p->buf, sizeof host);
    CHECK(!emu_table.sync(&p->d, &err), "%s", err.msg);
    return host[1];
}

static void waits(place *p) { emu_table.sync(&p->d, NULL); }
static void allocates(place *p) { emu_table.alloc(&p->d, 64); }
static void frees(place *p) { emu_table.free(&p->d, p->buf); }
static void allocates_here(place *p) { emu_table.alloc_host(&p->d, 64); }
static void frees_here(place *p) { emu_table.free_host(&p->d, p->pinned); }
static void reads_the_stack(place *p)
{
    const float host[2] = { 5, 6 };
    emu_table.upload(&p->d, p->buf, host, sizeof host);
}
static void writes_the_stack(place *p)
{
    float host[2];
    emu_table.download(&p->d, host, p->buf, sizeof host);
}
static void launches_elsewhere(place *p)
{
    void *own = p->d.stream;
    p->d.stream = NULL;
    broken_cases[8].run(&p->d, p->buf);
    p->d.stream = own;
}
static void reads_pinned_memory(place *p)
{
    emu_table.upload(&p->d, p->buf, p->pinned, BROKEN_FLOATS * sizeof(float));
}
static void launches(place *p) { broken_cases[8].run(&p->d, p->buf); }

static const struct {
    const char *why, *said; /* NULL: it may */
    void (*run)(place *p);
} in_a_capture[] = {
    { "a wait for the stream", "not permitted when stream is capturing", waits },
    { "cudaMalloc", "cudaMalloc: operation not permitted", allocates },
    { "cudaFree", "cudaFree: operation not permitted", frees },
    { "cudaMallocHost", "cudaMallocHost: operation not permitted", allocates_here },
    { "cudaFreeHost", "cudaFreeHost: operation not permitted", frees_here },
    { "a copy from the stack, which waits", "cudaMemcpyAsync: operation not", reads_the_stack },
    { "a copy to it", "cudaMemcpyAsync: operation not permitted", writes_the_stack },
    { "the legacy stream", "it: operation would make the legacy stream depend",
      launches_elsewhere },
    { "a copy from pinned memory", NULL, reads_pinned_memory },
    { "a launch", NULL, launches },
};

TEST(a_capture_forbids_what_waits_or_allocates_and_runs_nothing)
{
    for (size_t i = 0; i < LQ_COUNT(in_a_capture); i++) {
        const char *said = in_a_capture[i].said;
        lq_err err = { "" };
        place p;
        open_place(&p);
        CHECK(!emu_table.capture(&p.d, &err), "%s", err.msg);
        emu_table.zero(&p.d, p.buf, BROKEN_FLOATS * sizeof(float));
        in_a_capture[i].run(&p);
        dev_graph *g = emu_table.captured(&p.d, &err);
        if (said && in_a_capture[i].run == waits) /* sync takes the failure with it */
            said = "failed due to a previous error during capture";
        CHECK(!g == !!said && (!said || strstr(err.msg, said)), "%s: expected '%s', found '%s'",
              in_a_capture[i].why, said ? said : "a graph", err.msg);
        CHECK(!p.d.bad && first_of(&p) == 1, "%s: something has run", in_a_capture[i].why);
        emu_table.drop(&p.d, g);
        close_place(&p);
    }
}

static void *ends_it(void *arg)
{
    place *p = arg;
    lq_err err = { "" };
    CHECK(!emu_table.captured(&p->d, &err) && strstr(err.msg, "from another thread"), "%s",
          err.msg);
    return NULL;
}

TEST(a_capture_is_its_threads_and_one_at_a_time)
{
    lq_err err = { "" };
    pthread_t other;
    place p;
    open_place(&p);
    CHECK(!emu_table.capture(&p.d, &err), "%s", err.msg);
    CHECK(emu_table.capture(&p.d, &err) == LQ_EDEVICE && strstr(err.msg, "present state"), "%s",
          err.msg);
    CHECK(!pthread_create(&other, NULL, ends_it, &p) && !pthread_join(other, NULL), "thread");
    CHECK(!emu_table.captured(&p.d, &err) && strstr(err.msg, "previous error"), "%s", err.msg);
    CHECK(!emu_table.captured(&p.d, &err) && strstr(err.msg, "present state"), "%s", err.msg);
    close_place(&p);
}

/* Rows ids[0] and ids[1] of a table of 4 rows of 2, times scale. */
TEST(a_graph_has_the_arguments_of_its_capture_and_the_memory_of_its_launch)
{
    lq_err err = { "" };
    place p;
    open_place(&p);
    int32_t *ids = emu_table.alloc_host(&p.d, 8), *ids_on = emu_table.alloc(&p.d, 8);
    float *out = emu_table.alloc(&p.d, 16), *got = emu_table.alloc_host(&p.d, 16);
    dev_embed_args a = {
        .x = out, .table = p.buf, .dtype = LQ_F32, .ids = ids_on, .T = 2, .K = 2, .scale = 10
    };
    ids[0] = ids[1] = 0;
    const emu_counts before = emu_counted;
    CHECK(!emu_table.capture(&p.d, &err), "%s", err.msg);
    emu_table.upload(&p.d, ids_on, ids, 8);
    emu_table.embed(&p.d, &a);
    emu_table.download(&p.d, got, out, 16);
    dev_graph *g = emu_table.captured(&p.d, &err);
    CHECK(g, "%s", err.msg);
    a = (dev_embed_args){ 0 }; /* nobody reads it any more */
    for (int i = 0; i < 2; i++) {
        ids[0] = 1 + i;
        ids[1] = 3 - i;
        emu_table.replay(&p.d, g);
        CHECK(!emu_table.sync(&p.d, &err), "%s", err.msg);
        CHECK(got[0] == 10 * 2 * (float)ids[0] && got[3] == 10 * (2 * (float)ids[1] + 1),
              "launch %d: %g, %g", i, (double)got[0], (double)got[3]);
    }
    const emu_counts c = counted_since(&before);
    CHECK(c.kept == 1 && c.graphs == 2 && c.nodes == 2 && c.launches == 0 && c.copies == 4 &&
              c.waits == 2 && c.allocations == 0,
          "%zu kept, %zu graphs, %zu nodes, %zu launches, %zu copies, %zu waits", c.kept, c.graphs,
          c.nodes, c.launches, c.copies, c.waits);
    emu_table.free(&p.d, ids_on);
    emu_table.replay(&p.d, g);
    CHECK(emu_table.sync(&p.d, &err) == LQ_EDEVICE && strstr(err.msg, "outside of what cudaMalloc"),
          "device memory is gone: %s", err.msg);
    emu_table.free_host(&p.d, ids);
    emu_table.replay(&p.d, g);
    CHECK(emu_table.sync(&p.d, &err) == LQ_EDEVICE && strstr(err.msg, "not pinned any more"),
          "the host's is gone: %s", err.msg);
    emu_table.drop(&p.d, g);
    emu_table.free(&p.d, out);
    emu_table.free_host(&p.d, got);
    close_place(&p);
}

TEST(a_graph_that_has_no_memory_leaves_the_device_as_it_was)
{
    lq_err err = { "" };
    place p;
    open_place(&p);
    emu_graphs = 0;
    CHECK(!emu_table.capture(&p.d, &err), "%s", err.msg);
    emu_table.zero(&p.d, p.buf, BROKEN_FLOATS * sizeof(float));
    CHECK(!emu_table.captured(&p.d, &err) && strstr(err.msg, "cudaGraphInstantiate: out of memory"),
          "%s", err.msg);
    emu_graphs = SIZE_MAX;
    CHECK(!p.d.bad && first_of(&p) == 1, "something has run");
    close_place(&p);
}

/* The attribute is the kernel's, not the node's. */
TEST(a_graphs_launch_is_held_to_what_its_kernel_is_allowed_when_it_runs)
{
    enum { NODE = 60 << 10, LESS = 50 << 10 };
    lq_err err = { "" };
    place p;
    open_place(&p);
    broken_allow(&p.d, NODE);
    CHECK(!emu_table.capture(&p.d, &err), "%s", err.msg);
    broken_roomy(&p.d, p.buf, NODE);
    dev_graph *g = emu_table.captured(&p.d, &err);
    CHECK(g, "%s", err.msg);
    for (int less = 0; less < 2; less++) {
        if (less) broken_allow(&p.d, LESS);
        emu_table.replay(&p.d, g);
        const lq_status s = emu_table.sync(&p.d, &err);
        CHECK(less ? s == LQ_EDEVICE && strstr(err.msg, "the kernel is allowed 51200") : !s, "%s",
              err.msg);
    }
    emu_table.drop(&p.d, g);
    close_place(&p);
}

int main(int argc, char **argv)
{
    RUN(each_detector_finds_its_mistake);
    RUN(a_product_of_bytes_is_the_plain_one);
    RUN(sums_of_a_product_under_way_are_no_numbers);
    RUN(after_a_failure_nothing_runs_until_it_was_asked_for);
    RUN(after_a_failure_memory_goes_back_and_the_wait_is_one);
    RUN(parts_of_an_allocation_are_watched_apart);
    RUN(devices_have_streams_and_memory_of_their_own);
    RUN(pinned_memory_belongs_to_the_stream_until_the_wait);
    RUN(a_capture_forbids_what_waits_or_allocates_and_runs_nothing);
    RUN(a_capture_is_its_threads_and_one_at_a_time);
    RUN(a_graph_has_the_arguments_of_its_capture_and_the_memory_of_its_launch);
    RUN(a_graph_that_has_no_memory_leaves_the_device_as_it_was);
    RUN(a_graphs_launch_is_held_to_what_its_kernel_is_allowed_when_it_runs);
    return check_end();
}
