/* tools/limits.c - measuring the chosen kernels' arithmetic, and free memory. */
#include "tools/limits.h"

#include "tools/progress.h"

#include <stdio.h>

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
        double begun = prog_now();
        for (int i = 0; i < 3 || prog_now() - begun < 0.1; i++) {
            double start = prog_now();
            mm_run(&out, 1, x, K, M, acts, &scratch, p);
            double rate = 2.0 * M * N * K / (prog_now() - start);
            if (i && rate > *flops) *flops = rate;
        }
        pool_leave(p);
    }
    lq_arena_free(&scratch);
    lq_arena_free(&a);
    return s;
}

/* A file of one number; "max" and absence are no number. */
static bool read_number(const char *path, double *v)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool ok = fscanf(f, "%lf", v) == 1;
    fclose(f);
    return ok;
}

size_t lim_memory_bytes(void)
{
    double available = 0, limit, used;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf kB", &available) == 1) available *= 1024;
    if (f) fclose(f);
    static const char *const cgroup[][2] = {
        { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current" },
        { "/sys/fs/cgroup/memory/memory.limit_in_bytes",
          "/sys/fs/cgroup/memory/memory.usage_in_bytes" },
    };
    for (size_t i = 0; i < LQ_COUNT(cgroup); i++)
        if (read_number(cgroup[i][0], &limit) && read_number(cgroup[i][1], &used) &&
            limit - used < available)
            available = limit > used ? limit - used : 0;
    return (size_t)available;
}
