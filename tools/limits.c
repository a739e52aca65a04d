/* tools/limits.c - measuring bandwidth, arithmetic and free memory. */
#include "tools/limits.h"

#include "tools/progress.h"

#include <stdlib.h>

enum { PASSES = 5, PIECE = 1 << 20 };
static const size_t buffer_bytes = (size_t)256 << 20; /* several times the last cache */

typedef struct {
    const uint64_t *data;
    uint64_t *sums; /* one per piece, so that no reading can be left out */
} reading;

static void read_piece(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const reading *r = ctx;
    const uint64_t *x = r->data + (size_t)item * (PIECE / sizeof *x);
    uint64_t s[16] = { 0 }; /* independent sums: as many loads in flight as the core has */
    for (size_t i = 0; i < PIECE / sizeof *x; i += 16)
        for (size_t j = 0; j < 16; j++)
            s[j] += x[i + j];
    for (size_t j = 1; j < 16; j++)
        s[0] += s[j];
    r->sums[item] = s[0];
}

lq_status lim_read_bandwidth(double *bytes_s, pool *p, lq_err *err)
{
    *bytes_s = 0;
    int64_t pieces = (int64_t)(buffer_bytes / PIECE);
    uint64_t *data = aligned_alloc(64, buffer_bytes);
    uint64_t *sums = calloc((size_t)pieces, sizeof *sums);
    lq_status s = LQ_OK;
    if (!data || !sums) {
        s = lq_fail(err, LQ_ENOMEM, "no memory to measure the bandwidth with (%zu bytes)",
                    buffer_bytes);
        goto done;
    }
    memset(data, 1, buffer_bytes); /* so that the pages exist */
    reading r = { data, sums };
    pool_enter(p);
    double begun = prog_now();
    for (int i = 0; i < PASSES || prog_now() - begun < 0.5; i++) {
        double start = prog_now();
        pool_run(p, pieces, read_piece, &r);
        double rate = (double)buffer_bytes / (prog_now() - start);
        if (rate > *bytes_s) *bytes_s = rate;
    }
    pool_leave(p);
done:
    free(sums);
    free(data);
    return s;
}

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
