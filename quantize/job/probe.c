/* quantize/job/probe.c - see probe.h. */
#include "quantize/job/probe.h"

#include <stdlib.h>

#include "base/clock.h"
#include "calib/gemm.h"

enum { ROWS = 1024, N = 768, K = 256, LEAST = 3, MOST = 200 };
static const double secs = 0.1;

double probe_speed(pool *p)
{
    float *x = malloc(((size_t)ROWS * K + (size_t)N * K + (size_t)ROWS * N) * sizeof *x);
    if (!x) return 0;
    float *w = x + ROWS * K, *y = w + N * K;
    for (int i = 0; i < ROWS * K + N * K; i++)
        x[i] = (float)(i % 7) - 3;
    const gemm_in a = { x, K, false }, b = { w, K, true };
    gemm_run(y, N, a, b, ROWS, N, K, 0, p); /* wakes the threads, touches the pages */
    const double began = lq_now();
    double now = began;
    int n = 0;
    for (; n < LEAST || (n < MOST && now - began < secs); n++) {
        gemm_run(y, N, a, b, ROWS, N, K, 0, p);
        now = lq_now();
    }
    free(x);
    return now > began ? (double)ROWS * N * K * n / (now - began) : 0;
}
