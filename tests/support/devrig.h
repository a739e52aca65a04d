/* tests/support/devrig.h - a device, arrays there and here, and how far apart they are: for the tests that
 * hold a device table's operations against their twins on the CPU, on the device of
 * tests/support/emulated.c. */
#ifndef LLMQ_TESTS_SUPPORT_DEVRIG_H
#define LLMQ_TESTS_SUPPORT_DEVRIG_H

#include "kernels/device.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <assert.h>
#include <stdlib.h>

typedef struct {
    dev d;
    lq_arena a;     /* host */
    void *mem[512]; /* device */
    int n_mem;
} rig;

static const dev_ops *ops; /* rig_table chooses it */

static inline void rig_open(rig *r)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_arena_init(&r->a, 0, NULL);
    CHECK(!ops->open(&r->d, 0, &err), "%s", err.msg);
}
static inline void rig_close(rig *r)
{
    while (r->n_mem)
        ops->free(&r->d, r->mem[--r->n_mem]);
    ops->close(&r->d);
    lq_arena_free(&r->a);
}
/* n bytes on the device, with what `host` holds or, where NULL, as they come. */
static inline void *put(rig *r, const void *host, size_t n)
{
    void *p = ops->alloc(&r->d, n);
    assert(r->n_mem < (int)LQ_COUNT(r->mem));
    r->mem[r->n_mem++] = p;
    if (host) ops->upload(&r->d, p, host, n);
    return p;
}
static inline void *floats(rig *r, int64_t n, uint64_t seed)
{
    float *x = lq_push(&r->a, (size_t)n * 4);
    fill_row(x, n, &seed);
    return x;
}
/* What device memory holds now; false, said by a failed check, where anything failed. */
static inline bool get(rig *r, void *host, const void *p, size_t n, const char *why)
{
    lq_err err = { "" };
    ops->download(&r->d, host, p, n);
    lq_status s = ops->sync(&r->d, &err);
    CHECK(!s, "%s: %s", why, err.msg);
    return !s;
}

/* The largest |got - want| / (u bound + tiny); bound NULL: of |want|. */
static inline double share(const float *got, const float *want, int64_t n, double relative)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);
        double bound = relative * fabs((double)want[i]) + 1e-30;
        if (!(diff <= worst * bound)) worst = diff / bound;
    }
    return worst;
}

/* The table to test, or why there is none and false. */
static inline bool rig_table(void)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return false;
    }
    ops = dev_cuda();
    return true;
}

#endif
