/* tools/cli/limits.c - measuring the chosen kernels' arithmetic. */
#include "tools/cli/limits.h"

#include "base/clock.h"
#include "tools/cli/progress.h"

lq_status lim_matmul_flops(double *flops, const qt_scheme *scheme, mm_acts acts, pool *p,
                           lq_err *err)
{
    enum { M = 64, N = 1024, K = 1024 };
    *flops = 0;
    lq_arena a;
    qt_tensor t;
    void *planes[QT_N_PLANES];
    mm_weight w;
    lq_status s = lq_arena_init(&a, 0, err);
    if (!s) s = qt_alloc(&t, planes, scheme, N, K, &a, err); /* all zero: as fast as any weight */
    if (!s) s = mm_pack(&w, &t, &a, p, err);
    float *x = s ? NULL : lq_push(&a, (size_t)M * K * sizeof *x);
    float *y = s ? NULL : lq_push(&a, (size_t)M * N * sizeof *y);
    lq_arena scratch = { 0 };
    if (!s && (!x || !y)) s = lq_fail(err, LQ_ENOMEM, "no memory to measure the kernels with");
    if (!s) s = lq_arena_init(&scratch, mm_scratch_bytes(M, K, 1, pool_threads(p)), err);
    if (!s) {
        for (size_t i = 0; i < (size_t)M * K; i++)
            x[i] = (float)(i % 251) - 125.0f;
        mm_out out = { .w = &w, .y = y, .ldy = N };
        pool_enter(p);
        /* The first run warms up; then at least 0.1 s, the best of what was seen. */
        double begun = lq_now();
        for (int i = 0; i < 3 || lq_now() - begun < 0.1; i++) {
            double start = lq_now();
            mm_run(&out, 1, x, K, M, acts, &scratch, p);
            double rate = 2.0 * M * N * K / (lq_now() - start);
            if (i && rate > *flops) *flops = rate;
        }
        pool_leave(p);
    }
    lq_arena_free(&scratch);
    lq_arena_free(&a);
    return s;
}
