/* tests/unit/test_dev_link.c - several devices that sum and gather (kernels/device.h, "link"): the order of
 * the sum, every way to exchange, failures. On a machine's own GPUs as many ranks as there are. */
#include "tests/support/devrig.h"

#include <stdio.h>

extern int emu_devices;
extern bool emu_nccl_here, emu_lost_late;
extern size_t emu_launches;
static bool emulated;

typedef struct {
    dev d[DEV_RANKS];
    dev_link *l;
    float *x[DEV_RANKS], *host[DEV_RANKS];
    int ranks;
    int64_t n;
} links;

enum { MOST = 3001 };

/* Each rank's x [n] random; of very different sizes, so that orders of sums differ. */
static bool links_open(links *k, int ranks, int64_t n)
{
    lq_err err = { "" };
    *k = (links){ .ranks = ranks, .n = n };
    for (int r = 0; r < ranks; r++) {
        uint64_t seed = (uint64_t)(97 * r + n);
        CHECK(!ops->open(&k->d[r], r, &err), "%s", err.msg);
        if (r) k->d[r - 1].peer = &k->d[r];
        k->x[r] = ops->alloc(&k->d[r], MOST * sizeof(float));
        k->host[r] = malloc(MOST * sizeof(float));
        fill_row(k->host[r], n, &seed);
        for (int64_t i = 0; i < n; i++)
            k->host[r][i] *= r % 2 ? 1000 : 1;
        ops->upload(&k->d[r], k->x[r], k->host[r], (size_t)n * sizeof(float));
    }
    const lq_status s = ops->link(&k->l, &k->d[0], &err);
    CHECK(!s, "%d ranks: %s", ranks, err.msg);
    return !s;
}

static void links_close(links *k)
{
    ops->unlink(k->l);
    for (int r = 0; r < k->ranks; r++) {
        ops->free(&k->d[r], k->x[r]);
        ops->close(&k->d[r]);
        free(k->host[r]);
    }
}

static int most_ranks(int want)
{
    const int have = dev_count(NULL);
    return want < have ? want : have;
}

TEST(sums_are_taken_in_the_order_of_ranks_on_every_rank)
{
    static const int64_t sizes[] = { 1, 2, 5, 255, 256, 257, 1024, 1025, MOST };
    for (int ranks = 2; ranks <= most_ranks(5); ranks++)
        for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
            links k;
            const int64_t n = sizes[i];
            float want[MOST], got[MOST];
            if (!links_open(&k, ranks, n)) return;
            for (int64_t j = 0; j < n; j++) {
                want[j] = k.host[0][j];
                for (int r = 1; r < ranks; r++)
                    want[j] += k.host[r][j];
            }
            ops->all_reduce(k.l, k.x, n);
            for (int r = 0; r < ranks; r++) {
                lq_err err = { "" };
                ops->download(&k.d[r], got, k.x[r], (size_t)n * sizeof *got);
                CHECK(!ops->sync(&k.d[r], &err), "%s", err.msg);
                CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0,
                      "%lld floats of %d ranks: rank %d has others", (long long)n, ranks, r);
            }
            links_close(&k);
        }
}

TEST(rows_are_gathered_on_the_first_rank)
{
    enum { N = 37 };
    links k;
    float got[4 * N];
    lq_err err = { "" };
    const int ranks = most_ranks(4);
    if (!links_open(&k, ranks, N)) return;
    float *to = ops->alloc(&k.d[0], sizeof got);
    ops->gather(k.l, to, k.x, N);
    ops->download(&k.d[0], got, to, (size_t)(ranks * N) * sizeof *got);
    CHECK(!ops->sync(&k.d[0], &err), "%s", err.msg);
    for (int r = 0; r < ranks; r++)
        CHECK(memcmp(got + r * N, k.host[r], N * sizeof *got) == 0, "rank %d", r);
    ops->free(&k.d[0], to);
    links_close(&k);
}

TEST(what_fails_on_one_device_fails_on_all)
{
    links k;
    lq_err err = { "" };
    if (!links_open(&k, 2, 8)) return;
    ops->bind(&k.d[1]);
    CHECK(!ops->alloc(&k.d[1], (size_t)1 << 60), "so much memory");
    ops->all_reduce(k.l, k.x, 8);
    for (int r = 0; r < 2; r++)
        CHECK(ops->sync(&k.d[r], &err) == LQ_ENOMEM, "rank %d: %s", r, err.msg);
    ops->all_reduce(k.l, k.x, 8); /* and then they work again */
    for (int r = 0; r < 2; r++)
        CHECK(!ops->sync(&k.d[r], &err), "rank %d: %s", r, err.msg);
    links_close(&k);
}

/* Of a device that is lost without a word the others wait for its parts: any wait finds it. */
TEST(a_device_that_is_lost_in_an_exchange_ends_it)
{
    for (int lost = 0; lost < 2 && emulated; lost++)
        for (int wait = 0; wait < 2; wait++) {
            links k;
            lq_err err = { "" };
            float host[4];
            if (!links_open(&k, 3, 8)) return;
            emu_launches = (size_t)lost; /* sums that are made before */
            emu_lost_late = true;
            ops->all_reduce(k.l, k.x, 8);
            ops->all_reduce(k.l, k.x, 8);
            CHECK(emu_launches > 3, "it is lost");
            ops->download(&k.d[2 - wait], host, k.x[2 - wait], sizeof host);
            CHECK(ops->sync(&k.d[2 - wait], &err) == LQ_EDEVICE && strstr(err.msg, "lost"), "%s",
                  err.msg);
            ops->all_reduce(k.l, k.x, 8);
            CHECK(ops->sync(&k.d[1], &err) == LQ_EDEVICE, "and stays so");
            emu_launches = SIZE_MAX;
            emu_lost_late = false;
            links_close(&k);
        }
}

TEST(without_nccl_there_is_no_link)
{
    links k = { .ranks = 2 };
    lq_err err = { "" };
    if (!emulated) return;
    emu_nccl_here = false;
    for (int r = 0; r < 2; r++)
        CHECK(!ops->open(&k.d[r], r, &err), "%s", err.msg);
    k.d[0].peer = &k.d[1];
    const lq_status s = ops->link(&k.l, &k.d[0], &err);
    CHECK(s == LQ_EDEVICE && !k.l && strstr(err.msg, "several GPUs need NCCL"), "%s", err.msg);
    for (int r = 0; r < 2; r++)
        ops->close(&k.d[r]);
    emu_nccl_here = true;
}

int main(int argc, char **argv)
{
    emulated = dev_cuda() && strcmp(dev_cuda()->name, "emulated") == 0;
    if (emulated) emu_devices = 5;
    if (!rig_table()) return check_end();
    if (dev_count(NULL) < 2) {
        printf("skipped: one GPU\n0 passed, 0 failed\n");
        return check_end();
    }
    RUN(sums_are_taken_in_the_order_of_ranks_on_every_rank);
    RUN(rows_are_gathered_on_the_first_rank);
    RUN(what_fails_on_one_device_fails_on_all);
    RUN(a_device_that_is_lost_in_an_exchange_ends_it);
    RUN(without_nccl_there_is_no_link);
    return check_end();
}
