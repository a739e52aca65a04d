/* kernels/bench/bench.c - limits, and rows of kernels beside them. */
#include "base/clock.h"
#include "kernels/attn.h"
#include "kernels/bench/bench_impl.h"
#include "kernels/dispatch.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double bench_row_seconds(const bench_opts *o) { return o && o->seconds > 0 ? o->seconds : 0.03; }
static size_t buffer_bytes(const bench_opts *o)
{
    return o && o->bytes >= (1u << 20) ? o->bytes / (1u << 20) * (1u << 20) : (size_t)256 << 20;
}

/* Seconds of the fastest of repeated calls, for about `budget` seconds. */
static double best_of(void (*fn)(void *), void *ctx, double budget)
{
    double best = 1e300, begun = lq_now();
    for (int i = 0; i < 3 || lq_now() - begun < budget; i++) {
        double start = lq_now();
        fn(ctx);
        double t = lq_now() - start;
        if (t < best) best = t;
        if (t > 4 * budget) break;
    }
    return best;
}

/* ---- limits ---- */
enum { PIECE = 1 << 20, ROUNDS = 20000 };

typedef struct {
    pool *p;
    bench_reader read;
    double (*peak)(int64_t rounds);
    _Atomic uint32_t sink; /* what was read: so that reading cannot be left out */
    double ops;            /* of one item */
} limit_ctx;

static void read_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    limit_ctx *c = ctx;
    atomic_fetch_xor(&c->sink, k_get()->read_all(c->read.data + (size_t)item * PIECE, PIECE));
}
static void read_all(void *ctx)
{
    limit_ctx *c = ctx;
    pool_run(c->p, (int64_t)(c->read.bytes / PIECE), read_item, c);
}
static void peak_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    limit_ctx *c = ctx;
    double ops = c->peak(ROUNDS);
    if (item == 0) c->ops = ops;
}
enum { PEAK_ITEMS = 16 }; /* per thread: one that is held up leaves its share to the others */
static void peak_all(void *ctx)
{
    limit_ctx *c = ctx;
    pool_run(c->p, PEAK_ITEMS * pool_threads(c->p), peak_item, c);
}

static void limits_of(bench_limits *l, limit_ctx *c, double budget)
{
    const k_ops *k = k_get();
    double (*const peaks[MM_N_ACTS])(int64_t) = { k->peak_f32, k->peak_bf16, k->peak_i8 };
    *l = (bench_limits){ .threads = pool_threads(c->p) };
    pool_enter(c->p);
    l->read_gbytes_s = (double)c->read.bytes / best_of(read_all, c, 4 * budget) * 1e-9;
    for (int i = 0; i < MM_N_ACTS; i++) {
        if (!peaks[i]) continue;
        c->peak = peaks[i];
        double t = best_of(peak_all, c, budget);
        l->gflops[i] = c->ops * PEAK_ITEMS * l->threads / t * 1e-9;
    }
    pool_leave(c->p);
}

lq_status bench_reader_open(bench_reader *r, const bench_opts *o, lq_err *err)
{
    r->bytes = buffer_bytes(o);
    r->data = malloc(r->bytes);
    if (!r->data) return lq_fail(err, LQ_ENOMEM, "no memory to read %zu bytes", r->bytes);
    memset(r->data, 1, r->bytes); /* so that the pages exist */
    return LQ_OK;
}

double bench_reader_run(const bench_reader *r, pool *p)
{
    limit_ctx c = { .p = p, .read = *r };
    pool_enter(p);
    const double start = lq_now();
    read_all(&c);
    const double seconds = lq_now() - start;
    pool_leave(p);
    return (double)r->bytes / seconds * 1e-9;
}

void bench_reader_close(bench_reader *r)
{
    free(r->data);
    *r = (bench_reader){ NULL, 0 };
}

lq_status bench_limits_run(bench_limits *one, bench_limits *all, const bench_opts *o, pool *p,
                           lq_err *err)
{
    limit_ctx c = { 0 };
    lq_status s = bench_reader_open(&c.read, o, err);
    if (s) return s;
    limits_of(one, &c, bench_row_seconds(o));
    *all = *one;
    if (pool_threads(p) > 1) {
        c.p = p;
        limits_of(all, &c, bench_row_seconds(o));
    }
    bench_reader_close(&c.read);
    return LQ_OK;
}

/* ---- matmuls ---- */
typedef struct {
    mm_out out;
    const float *x;
    int64_t K, M;
    mm_acts acts;
    lq_arena *scratch;
    pool *p;
} mm_ctx;

static void mm_once(void *ctx)
{
    mm_ctx *c = ctx;
    mm_run(&c->out, 1, c->x, c->K, c->M, c->acts, c->scratch, c->p);
}

lq_status bench_make_weight(mm_weight *w, const char *scheme, int64_t N, int64_t K, lq_arena *a,
                            lq_err *err)
{
    qt_scheme s;
    lq_status st = qt_scheme_parse(&s, scheme, err);
    if (!st && s.kind == QT_UINT && !s.group) s.group = K;
    if (!st) st = qt_check(&s, N, K, err);
    if (st) return st;
    s = tiles_scheme(&s, N, K);
    qt_tensor t = { .scheme = s, .layout = QT_TILE16, .N = N, .K = K };
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t n = qt_plane_bytes(&s, QT_TILE16, N, K, (qt_plane)p);
        uint8_t *data = n ? lq_push(a, n) : NULL;
        if (n && !data) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of weights", n);
        for (size_t i = 0; i < n; i++) /* 0x2c..: small normal numbers in every type */
            data[i] = p == QT_CODES && s.kind != QT_DENSE ? (uint8_t)(i * 37) : 0x2c;
        for (int i = 0; i < 16 && p == QT_MAP && n; i++) { /* no multiples of one small number */
            float v = (float)((i - 8) * abs(i - 8)) / 64.0f;
            memcpy(data + 4 * i, &v, sizeof v);
        }
        t.plane[p] = (qt_span){ data, n };
    }
    return mm_pack(w, &t, a, NULL, err);
}

static void share(bench_row *r, double flops, double bytes, double flops_limit, double bytes_limit)
{
    r->gflops = flops / r->seconds * 1e-9;
    r->gbytes_s = bytes / r->seconds * 1e-9;
    double f = flops_limit > 0 ? r->gflops / flops_limit : 0, b = r->gbytes_s / bytes_limit;
    r->percent_of_limit = 100 * (f > b ? f : b);
}

static lq_status bench_weight(bench_row *rows, int *n, const char *scheme, mm_acts acts,
                              const bench_limits *lim, const bench_opts *o, pool *p, lq_err *err)
{
    static const struct {
        int64_t M, N, K;
    } shapes[] = { { 1, 16384, 2048 }, { 4, 16384, 2048 }, { 8, 2048, 2048 }, { 256, 2048, 2048 } };
    static const char *const text[MM_N_ACTS] = { "f32", "bf16", "int8" };
    enum { M_MAX = 256, K_MAX = 2048, N_MAX = 16384 };
    lq_arena a, scratch = { 0 };
    mm_weight w;
    lq_status st = lq_arena_init(&a, 0, err);
    float *x = st ? NULL : lq_push(&a, (size_t)M_MAX * K_MAX * 4);
    float *y = st ? NULL : lq_push(&a, (size_t)M_MAX * K_MAX * 4);
    if (!st && (!x || !y)) st = lq_fail(err, LQ_ENOMEM, "no memory for the benchmark");
    if (!st) st = lq_arena_init(&scratch, mm_scratch_bytes(M_MAX, K_MAX, 1, pool_threads(p)), err);
    for (int64_t i = 0; !st && i < (int64_t)M_MAX * K_MAX; i++)
        x[i] = (float)(i % 251) - 125.0f;
    if (!st) st = bench_make_weight(&w, scheme, N_MAX, K_MAX, &a, err);
    for (size_t i = 0; i < LQ_COUNT(shapes) && !st; i++) {
        mm_weight part = w; /* its first N outputs */
        part.N = part.t.N = shapes[i].N;
        mm_ctx c = { .out = { .w = &part, .y = y, .ldy = part.N },
                     .x = x,
                     .K = shapes[i].K,
                     .M = shapes[i].M,
                     .acts = acts,
                     .scratch = &scratch,
                     .p = p };
        bench_row *r = &rows[(*n)++];
        *r = (bench_row){ .threads = pool_threads(p) };
        snprintf(r->name, sizeof r->name, "%s %s", scheme, text[acts]);
        snprintf(r->shape, sizeof r->shape, "%lldx%lldx%lld", (long long)c.M, (long long)part.N,
                 (long long)c.K);
        r->seconds = best_of(mm_once, &c, bench_row_seconds(o));
        double bytes = 0;
        for (int q = 0; q < QT_N_PLANES; q++)
            bytes += (double)qt_plane_bytes(&part.t.scheme, QT_TILE16, part.N, c.K, (qt_plane)q);
        double limit = lim->gflops[acts] > 0 ? lim->gflops[acts] : lim->gflops[MM_F32];
        share(r, 2.0 * (double)c.M * (double)part.N * (double)c.K,
              bytes + 4.0 * (double)(c.M * (c.K + part.N)), limit, lim->read_gbytes_s);
    }
    lq_arena_free(&scratch);
    lq_arena_free(&a);
    return st;
}

/* ---- sharing ---- */
enum { MEETINGS = 2000, LOAD_TURNS = 4, LOAD_ROUNDS = 10 };
#define BUSY_S 0.006 /* of every LOAD_PERIOD_S */
#define LOAD_PERIOD_S 0.010

typedef struct {
    atomic_int inside; /* threads that are in this region */
    int threads;
} meeting;

static void meet_item(void *ctx, int64_t item, int thread)
{
    (void)item, (void)thread;
    meeting *m = ctx;
    atomic_fetch_add(&m->inside, 1);
    for (int i = 0; atomic_load(&m->inside) < m->threads; i++)
        if (i > 10000) sched_yield(); /* more threads than processors */
}

static int by_size(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void measure_meetings(bench_sharing *s, pool *p)
{
    double seconds[MEETINGS];
    if (s->threads < 2) return;
    for (int i = 0; i < MEETINGS; i++) {
        meeting m = { .threads = s->threads };
        double start = lq_now();
        pool_run(p, s->threads, meet_item, &m);
        seconds[i] = lq_now() - start;
    }
    qsort(seconds, MEETINGS, sizeof *seconds, by_size);
    s->meet_best = seconds[0];
    s->meet_median = seconds[MEETINGS / 2];
}

/* Somebody else: busy for a part of each period while `on`. */
typedef struct {
    atomic_int on, quit;
    double busy, waited; /* seconds of its processor's time, and of all time, while on */
} rival;

static double thread_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(double s)
{
    struct timespec t = { .tv_nsec = (long)(s * 1e9) };
    if (s > 0) nanosleep(&t, NULL);
}

static void *rival_main(void *arg)
{
    rival *r = arg;
    while (!atomic_load(&r->quit)) {
        if (!atomic_load(&r->on)) {
            nap(LOAD_PERIOD_S / 10);
            continue;
        }
        const double begun = lq_now(), had = thread_now();
        while (thread_now() - had < BUSY_S)
            ;
        nap(LOAD_PERIOD_S - (lq_now() - begun));
        r->busy += thread_now() - had;
        r->waited += lq_now() - begun;
    }
    return NULL;
}

/* Seconds of one product, over about `budget` seconds of them. */
static double mean_product(mm_ctx *c, double budget)
{
    const double begun = lq_now();
    int n = 0;
    do
        for (int i = 0; i < LOAD_ROUNDS; i++, n++)
            mm_once(c);
    while (lq_now() - begun < budget);
    return (lq_now() - begun) / n;
}

static lq_status measure_rival(bench_sharing *s, mm_ctx *c, double budget, lq_err *err)
{
    rival r = { .on = 0 };
    pthread_t thread;
    if (pthread_create(&thread, NULL, rival_main, &r))
        return lq_fail(err, LQ_ENOMEM, "no thread for the benchmark");
    double alone = 0, beside = 0;
    for (int turn = 0; turn < LOAD_TURNS; turn++) {
        alone += mean_product(c, budget);
        atomic_store(&r.on, 1);
        nap(LOAD_PERIOD_S / 5);
        beside += mean_product(c, budget);
        atomic_store(&r.on, 0);
        nap(2 * LOAD_PERIOD_S);
    }
    atomic_store(&r.quit, 1);
    pthread_join(thread, NULL);
    s->load = r.waited > 0 ? r.busy / r.waited : 0;
    s->slowdown = beside / alone;
    const double left = s->cpus - s->load;
    s->fair = left < s->threads ? s->threads / left : 1;
    return LQ_OK;
}

lq_status bench_sharing_run(bench_sharing *s, const bench_opts *o, pool *p, lq_err *err)
{
    enum { N = 8192, K = 2048 };
    *s = (bench_sharing){ .threads = pool_threads(p), .cpus = pool_default_threads() };
    lq_arena a, scratch = { 0 };
    mm_weight w;
    lq_status st = lq_arena_init(&a, 0, err);
    if (st) return st;
    float *x = lq_push(&a, (size_t)K * 4), *y = lq_push(&a, (size_t)N * 4);
    if (!x || !y) st = lq_fail(err, LQ_ENOMEM, "no memory for the benchmark");
    if (!st) st = bench_make_weight(&w, "u4-g128", N, K, &a, err);
    if (!st) st = lq_arena_init(&scratch, mm_scratch_bytes(1, K, 1, s->threads), err);
    if (!st) {
        for (int64_t i = 0; i < K; i++)
            x[i] = (float)(i % 251) - 125.0f;
        mm_ctx c = { { .w = &w, .y = y, .ldy = N }, x, K, 1, MM_I8, &scratch, p };
        pool_enter(p);
        measure_meetings(s, p);
        st = measure_rival(s, &c, 5 * bench_row_seconds(o), err);
        pool_leave(p);
    }
    lq_arena_free(&scratch);
    lq_arena_free(&a);
    return st;
}

/* ---- attention ---- */
typedef struct {
    attn_args a;
    lq_arena *scratch;
    pool *p;
} attn_ctx;

static void attn_once(void *ctx)
{
    attn_ctx *c = ctx;
    attn_run(&c->a, c->scratch, c->p);
}

static lq_status bench_attention(bench_row *rows, int *n, kv_dtype d, int64_t M,
                                 const bench_limits *lim, const bench_opts *o, pool *p, lq_err *err)
{
    enum { H = 32, HKV = 4, D = 64, BLOCK = 16, DEPTH = 2048, N_BLOCKS = DEPTH / BLOCK };
    size_t half = attn_kv_row_bytes(d, D) * HKV * BLOCK;
    lq_arena a, scratch = { 0 };
    lq_status st = lq_arena_init(&a, 0, err);
    if (st) return st;
    uint8_t *kv = lq_push(&a, 2 * half * N_BLOCKS);
    float *q = lq_push(&a, (size_t)(M * H * D) * 4), *out = lq_push(&a, (size_t)(M * H * D) * 4);
    int32_t *table = lq_push(&a, N_BLOCKS * sizeof *table);
    if (!kv || !q || !out || !table) st = lq_fail(err, LQ_ENOMEM, "no memory for the benchmark");
    if (!st) st = lq_arena_init(&scratch, attn_scratch_bytes(H, D, pool_threads(p)), err);
    if (!st) {
        for (int i = 0; i < N_BLOCKS; i++)
            table[i] = i;
        for (int64_t i = 0; i < M * H * D; i++)
            q[i] = (float)(i % 17) * 0.01f;
        attn_seq seq = { .n_rows = M, .pos0 = DEPTH - M, .table = table };
        attn_ctx c = { .a = { .q = q,
                              .ldq = H * D,
                              .out = out,
                              .ldo = H * D,
                              .k = kv,
                              .v = kv + half,
                              .block_stride = 2 * half,
                              .block_size = BLOCK,
                              .dtype = d,
                              .bf16 = true, /* as models run it */
                              .paired = attn_paired(d, BLOCK, D, D, true),
                              .H = H,
                              .Hkv = HKV,
                              .D = D,
                              .Dv = D,
                              .scale = 0.125f,
                              .seqs = &seq,
                              .n_seqs = 1 },
                       .scratch = &scratch,
                       .p = p };
        bench_row *r = &rows[(*n)++];
        *r = (bench_row){ .threads = pool_threads(p) };
        snprintf(r->name, sizeof r->name, "attention %s", kv_types_text(d));
        snprintf(r->shape, sizeof r->shape, "%lld at %d, %d/%dx%d", (long long)M, DEPTH, H, HKV, D);
        r->seconds = best_of(attn_once, &c, bench_row_seconds(o));
        double keys = (double)M * (DEPTH - (double)(M - 1) / 2);
        share(r, 4.0 * keys * H * D, (double)(2 * half * N_BLOCKS),
              lim->gflops[attn_in_bf16(&c.a) ? MM_BF16 : MM_F32], lim->read_gbytes_s);
    }
    lq_arena_free(&scratch);
    lq_arena_free(&a);
    return st;
}

lq_status bench_kernels_run(bench_row rows[BENCH_MAX_ROWS], int *n_rows, const bench_limits *all,
                            const bench_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    static const struct {
        const char *scheme;
        mm_acts acts;
    } mms[] = {
        { "u4-g128", MM_I8 },  { "u4-g32", MM_I8 },  { "u4-g128-asym", MM_I8 },
        { "u2-g64", MM_I8 },   { "u3-g128", MM_I8 }, { "u8-g128", MM_I8 },
        { "i8-row", MM_I8 },   { "bf16", MM_BF16 },  { "u4-g128", MM_BF16 },
        { "i8-row", MM_BF16 }, { "f32", MM_F32 },    { "f16", MM_F32 },
        { "u4-g128", MM_F32 }, { "nf4", MM_I8 },     { "nf4", MM_F32 },
        { "mxfp4", MM_I8 },    { "nvfp4", MM_I8 },
    };
    static const struct {
        kv_dtype d;
        int64_t M;
    } attns[] = { { KV_F16, 1 }, { KV_BF16, 1 }, { KV_I8, 1 }, { KV_F16, 128 } };
    lq_status st = LQ_OK;
    const size_t n_mms = LQ_COUNT(mms), n_attns = LQ_COUNT(attns);
    const double total = (double)(n_mms + n_attns);
    *n_rows = 0;
    pool_enter(p);
    for (size_t i = 0; i < n_mms && !st; i++) {
        if (lq_stopped(job)) st = lq_fail(err, LQ_EINTR, "interrupted");
        if (!st) st = bench_weight(rows, n_rows, mms[i].scheme, mms[i].acts, all, o, p, err);
        lq_report(job, "kernels", (double)i + 1, total);
    }
    for (size_t i = 0; i < n_attns && !st; i++) {
        if (lq_stopped(job)) st = lq_fail(err, LQ_EINTR, "interrupted");
        if (!st) st = bench_attention(rows, n_rows, attns[i].d, attns[i].M, all, o, p, err);
        lq_report(job, "kernels", (double)(n_mms + i) + 1, total);
    }
    pool_leave(p);
    return st;
}
