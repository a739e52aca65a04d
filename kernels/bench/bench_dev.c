/* kernels/bench/bench_dev.c - rows of kernels/bench/bench_dev.h. */
#include "kernels/bench/bench_dev.h"
#include "base/clock.h"
#include "kernels/bench/bench_impl.h"
#include "kernels/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 6 }; /* copies of a weight: 6 x 29 MB is beyond 50 MB of L2 */

lq_status bench_dev_copy(dev *d, double *bytes_s, lq_err *err)
{
    enum { COPY_BYTES = 256 << 20, COPIES = 8 };
    const size_t room = d->ops->room(d) / 4, n = room < COPY_BYTES ? room : COPY_BYTES;
    void *from = d->ops->alloc(d, n), *to = d->ops->alloc(d, n);
    const dev_copy_args one = { to, from, n, n, n, 1 };
    d->ops->copy(d, &one); /* to warm up */
    lq_status s = d->ops->sync(d, err);
    const double start = lq_now();
    for (int i = 0; i < COPIES && !s; i++)
        d->ops->copy(d, &one);
    if (!s) s = d->ops->sync(d, err);
    *bytes_s = 2.0 * COPIES * (double)n / (lq_now() - start);
    d->ops->free(d, from);
    d->ops->free(d, to);
    return s;
}

/* ---- what is measured ---- */
typedef struct {
    dev *d;
    mm_acts acts;
    double copy;
    const char *only; /* rows, by how they begin */
    const lq_job *job;
    bench_dev_row *rows;
    int n;
    bool tiny;
    double one; /* seconds of one row of the weight at hand */
    void *mem[TURNS * QT_N_PLANES + 16];
    int n_mem;
} bench;

static void *bench_dev_take(bench *b, size_t bytes)
{
    void *p = b->d->ops->alloc(b->d, bytes);
    if (p) b->mem[b->n_mem++] = p;
    return p;
}

static void give_back(bench *b)
{
    while (b->n_mem)
        b->d->ops->free(b->d, b->mem[--b->n_mem]);
}

/* Random bytes, as zeros are read faster; of 16-bit numbers small finite ones. */
static void bench_dev_fill(uint8_t *to, size_t n, bool numbers)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < n; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t eight = x * 0x2545f4914f6cdd1du;
        if (numbers) /* 2^-2 or below, of f16 */
            eight = (eight & 0x83ff83ff83ff83ffu) | 0x3400340034003400u;
        memcpy(to + i, &eight, n - i < sizeof x ? n - i : sizeof x);
    }
}

/* The same bytes in n places. */
static lq_status bench_dev_put(bench *b, void **out, int n, size_t bytes, bool numbers, lq_err *err)
{
    uint8_t *host = malloc(bytes);
    if (!host) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", bytes);
    bench_dev_fill(host, bytes, numbers);
    for (int i = 0; i < n; i++) {
        out[i] = bench_dev_take(b, bytes);
        if (out[i]) b->d->ops->upload(b->d, out[i], host, bytes);
    }
    const lq_status s = b->d->ops->sync(b->d, err);
    free(host);
    return s;
}

/* Whether a row that begins so is asked for: one of b->only, parted by semicolons. NULL: all are. A shape that is
 * not known yet ("") is asked for where its name is. */
static bool asked_for(const bench *b, const char *name, const char *shape)
{
    char row[128];
    snprintf(row, sizeof row, "%s %s", name, shape);
    for (const char *p = b->only, *end; p; p = *end ? end + 1 : NULL) {
        end = p + strcspn(p, ";");
        const size_t n = (size_t)(end - p), have = strlen(row);
        if (strncmp(row, p, *shape || n < have ? n : have) == 0) return true;
    }
    return !b->only;
}

typedef void call_fn(void *ctx, int turn);

/* Seconds of one call. As many as make a graph worth its launch are captured, TURNS or more, and the
 * graph is queued until all take 0.1 s; where shapes are tiny it has one call, and is queued once. */
static lq_status time_calls(bench *b, double *seconds, call_fn *call, void *ctx, lq_err *err)
{
    enum { LONG = 8 * TURNS, MOST = 1024 };
    const double slow = 4e-3; /* of a call: the graph's launch is nothing then */
    const dev_ops *ops = b->d->ops;
    int calls = 1;
    if (lq_stopped(b->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    call(ctx, 0); /* what it loads is there before the capture */
    lq_status s = ops->sync(b->d, err);
    if (!s && !b->tiny) {
        const double start = lq_now();
        call(ctx, 1);
        s = ops->sync(b->d, err);
        calls = lq_now() - start > slow ? TURNS : LONG;
    }
    if (!s) s = ops->capture(b->d, err);
    if (s) return s;
    for (int i = 0; i < calls; i++)
        call(ctx, i % TURNS);
    dev_graph *g = ops->captured(b->d, err);
    if (!g) return LQ_EDEVICE;
    if (!b->tiny) ops->replay(b->d, g); /* the first launch carries the graph to the device */
    s = ops->sync(b->d, err);
    for (int n = 1; !s; n *= 4) {
        const double start = lq_now();
        for (int i = 0; i < n; i++)
            ops->replay(b->d, g);
        s = ops->sync(b->d, err);
        *seconds = (lq_now() - start) / (n * calls);
        if (b->tiny || *seconds * n * calls > 0.1 || n >= MOST) break;
    }
    ops->drop(b->d, g);
    return s;
}

static bench_dev_row *add(bench *b, const char *name, double seconds, double flops, double bytes)
{
    bench_dev_row *r = &b->rows[b->n++];
    *r = (bench_dev_row){ .seconds = seconds,
                          .gflops = flops / seconds * 1e-9,
                          .gbytes_s = bytes / seconds * 1e-9,
                          .percent_of_copy = 100 * bytes / seconds / b->copy };
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

/* ---- products ---- */
typedef struct {
    dev *d;
    dev_weight w[TURNS];
    dev_mm_args a;
} product;

static void run_product(void *ctx, int turn)
{
    product *p = ctx;
    p->a.w = &p->w[turn];
    p->d->ops->matmul(p->d, &p->a);
}

/* The same weight in TURNS places. */
static lq_status make_weights(bench *b, dev_weight w[TURNS], const qt_scheme *s, int64_t N,
                              int64_t K, lq_err *err)
{
    lq_status st = LQ_OK;
    const qt_scheme tiled = tiles_scheme(s, N, K);
    dev_weight one = { { .scheme = tiled, .layout = QT_TILE16, .N = N, .K = K },
                       tiles_shape(&tiled, N, K) };
    if (dev_in_rows(&one.t) && !b->d->batch_invariant && b->d->ops->blas(b->d))
        one.t.layout = QT_PORTABLE; /* as a model's */
    for (int i = 0; i < TURNS; i++)
        w[i] = one;
    for (int p = 0; p < QT_N_PLANES && !st; p++) {
        const size_t n = qt_plane_bytes(&tiled, one.t.layout, N, K, (qt_plane)p);
        void *on[TURNS] = { NULL };
        const bool codes = p == QT_CODES && tiled.kind != QT_DENSE;
        if (n) st = bench_dev_put(b, on, TURNS, n, !codes && p != QT_ZEROS, err);
        for (int i = 0; i < TURNS; i++)
            w[i].t.plane[p] = (qt_span){ on[i], n };
    }
    return st;
}

static lq_status product_row(bench *b, product *p, const char *scheme, const char *how, lq_err *err)
{
    const int64_t M = p->a.M, N = p->w->t.N, K = p->w->t.K;
    size_t weight = 0;
    double seconds = 0;
    char name[32], shape[64];
    snprintf(name, sizeof name, "%s %s", scheme, how);
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)M, (long long)N, (long long)K);
    if (!asked_for(b, name, shape)) return LQ_OK;
    const lq_status st = time_calls(b, &seconds, run_product, p, err);
    if (st) return st;
    for (int i = 0; i < QT_N_PLANES; i++)
        weight += p->w->t.plane[i].bytes;
    bench_dev_row *r = add(b, name, seconds, 2.0 * (double)(M * N * K),
                           (double)weight + (double)(M * (N + K)) * sizeof(float));
    snprintf(r->shape, sizeof r->shape, "%s", shape);
    if (M == 1) b->one = seconds;
    if (b->one > 0) r->of_one = seconds / b->one;
    return LQ_OK;
}

/* both: of many rows also each of the two ways that there are, whichever the device's is. */
static lq_status scheme_rows(bench *b, const char *scheme, const int64_t *M, int n, bool both,
                             lq_err *err)
{
    const int64_t N = b->tiny ? 48 : 14336, K = b->tiny ? 256 : 4096, own = b->d->wide;
    product p = { .d = b->d };
    qt_scheme s;
    void *x = NULL;
    if (!asked_for(b, scheme, "")) return LQ_OK;
    b->one = 0;
    lq_status st = qt_scheme_parse(&s, scheme, err);
    if (!st) st = make_weights(b, p.w, &s, N, K, err);
    const int64_t most = M[n - 1];
    if (!st) st = bench_dev_put(b, &x, 1, (size_t)(most * K) * sizeof(float), true, err);
    p.a = (dev_mm_args){ .y = bench_dev_take(b, (size_t)(most * N) * sizeof(float)),
                         .x = x,
                         .scratch = bench_dev_take(b, b->d->ops->mm_scratch(&p.w[0], most)),
                         .ldy = N,
                         .ldx = K,
                         .acts = b->acts };
    const char *how = dev_mm_ints(&p.w[0], b->acts) ? "int8" : b->acts == MM_F32 ? "f32" : "bf16";
    for (int i = 0; i < n && !st; i++) {
        p.a.M = M[i];
        st = product_row(b, &p, scheme, how, err);
        b->d->wide = true;
        if (!st && both && dev_mm_wide(b->d, &p.w[0], b->acts, M[i])) {
            st = product_row(b, &p, scheme, "expanded", err);
            b->d->wide = false;
            if (!st && !b->tiny) st = product_row(b, &p, scheme, "units", err);
        }
        b->d->wide = own;
    }
    give_back(b);
    return st;
}

/* ---- attention ---- */
typedef struct {
    const char *name;
    int64_t seqs, rows, keys, H, Hkv, D; /* rows of each, the last at key keys - 1 */
    kv_dtype dtype;
} attention;

typedef struct {
    dev *d;
    dev_attn_args a;
    const uint8_t *k[TURNS];
    size_t v;
} attending;

static void run_attention(void *ctx, int turn)
{
    attending *t = ctx;
    t->a.k = t->k[turn];
    t->a.v = t->a.k + t->v;
    t->d->ops->attn(t->d, &t->a);
}

static lq_status upload_plan(bench *b, dev_attn_args *a, const attention *at, lq_err *err)
{
    const int64_t per_seq = lq_ceil_div(at->keys, a->block_size);
    int64_t chunks = 0, slots = 0;
    const attn_seq one = { 0, at->rows, at->keys - at->rows, NULL };
    a->split =
        dev_attn_split(b->d, a->how, at->seqs * dev_attn_blocks(a->how, at->rows, at->H, at->Hkv));
    dev_attn_plan(a->how, NULL, &chunks, NULL, &slots, &one, 0, a->split, at->H, at->Hkv, 0, 0);
    dev_attn_chunk *c = malloc((size_t)(chunks * at->seqs) * sizeof *c);
    int32_t *of = malloc((size_t)(slots * at->seqs) * sizeof *of);
    int32_t *table = malloc((size_t)(per_seq * at->seqs) * sizeof *table);
    lq_status s = LQ_OK;
    if (!c || !of || !table) {
        s = lq_fail(err, LQ_ENOMEM, "no memory for a plan");
        goto done;
    }
    for (int64_t i = 0; i < at->seqs; i++) {
        const attn_seq seq = { i * at->rows, at->rows, at->keys - at->rows, NULL };
        dev_attn_plan(a->how, c, &a->n_chunks, of, &a->n_slots, &seq, (int32_t)(i * per_seq),
                      a->split, at->H, at->Hkv, 0, 0);
    }
    for (int64_t i = 0; i < per_seq * at->seqs; i++) /* blocks lie apart, as in use */
        table[i] = (int32_t)(i * 7919 % (per_seq * at->seqs));
    void *on[3] = { bench_dev_take(b, (size_t)a->n_chunks * sizeof *c),
                    bench_dev_take(b, (size_t)a->n_slots * sizeof *of),
                    bench_dev_take(b, (size_t)(per_seq * at->seqs) * sizeof *table) };
    b->d->ops->upload(b->d, on[0], c, (size_t)a->n_chunks * sizeof *c);
    b->d->ops->upload(b->d, on[1], of, (size_t)a->n_slots * sizeof *of);
    b->d->ops->upload(b->d, on[2], table, (size_t)(per_seq * at->seqs) * sizeof *table);
    if (a->how == DEV_ATTN_DECODE) { /* it merges its splits itself, as in use */
        const size_t bytes = (size_t)dev_attn_done(a->n_chunks, at->H, at->Hkv) * sizeof *a->done;
        a->done = bench_dev_take(b, bytes);
        b->d->ops->zero(b->d, a->done, bytes);
    }
    a->chunks = on[0];
    a->chunk_of = on[1];
    a->tables = on[2];
    s = b->d->ops->sync(b->d, err);
done:
    free(c);
    free(of);
    free(table);
    return s;
}

static lq_status attention_row(bench *b, const attention *given, lq_err *err)
{
    enum { BLOCK = 16 };
    const int64_t D = given->D;
    attention at = *given;
    if (b->tiny) {
        at.seqs = at.seqs > 2 ? 2 : at.seqs;
        at.keys = at.rows > 1 ? 40 : 100;
        at.rows = at.rows > 1 ? 40 : 1;
        at.H = D > 128 ? at.Hkv : at.H;
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%lld x %lld, %lld/%lldx%lld", (long long)at.seqs,
             (long long)at.keys, (long long)at.H, (long long)at.Hkv, (long long)D);
    if (!asked_for(b, at.name, shape)) return LQ_OK;
    const int64_t T = at.seqs * at.rows, blocks = at.seqs * lq_ceil_div(at.keys, BLOCK);
    const size_t half = attn_kv_row_bytes(at.dtype, D) * (size_t)(at.Hkv * BLOCK);
    const size_t beyond = (size_t)128 << 20; /* any L2: such a cache need not take turns */
    const int turns = at.rows > 1 || 2 * half * (size_t)blocks > beyond ? 1 : TURNS;
    attending t = { .d = b->d, .v = half };
    void *q = NULL, *caches[TURNS] = { NULL };
    lq_status s = bench_dev_put(b, &q, 1, (size_t)(T * at.H * D) * sizeof(float), true, err);
    if (!s) s = bench_dev_put(b, caches, turns, 2 * half * (size_t)blocks, true, err);
    for (int i = 0; i < TURNS; i++)
        t.k[i] = caches[i % turns];
    t.a = (dev_attn_args){ .how = dev_attn_choose(b->d, b->acts, at.dtype, D, D, false, at.rows),
                           .q = q,
                           .out = bench_dev_take(b, (size_t)(T * at.H * D) * sizeof(float)),
                           .ldq = at.H * D,
                           .ldo = at.H * D,
                           .H = at.H,
                           .Hkv = at.Hkv,
                           .D = D,
                           .Dv = D,
                           .block_stride = 2 * half,
                           .block_size = BLOCK,
                           .dtype = at.dtype,
                           .scale = 0.088f };
    if (!s) s = upload_plan(b, &t.a, &at, err);
    t.a.scratch = bench_dev_take(b, b->d->ops->attn_scratch(&t.a));
    double seconds = 0;
    if (!s) s = time_calls(b, &seconds, run_attention, &t, err);
    if (!s) {
        const double seen = at.rows > 1 ? 0.5 * (double)at.rows * (double)at.keys : (double)at.keys;
        bench_dev_row *r = add(b, at.name, seconds, 4.0 * (double)(D * at.seqs * at.H) * seen,
                               (double)(2 * half * (size_t)blocks));
        snprintf(r->shape, sizeof r->shape, "%s", shape);
    }
    give_back(b);
    return s;
}

/* ---- scans of layers with a state ---- */
typedef struct {
    const char *name;
    int64_t seqs, rows, H, G, K; /* rows of each; heads of K x K, in groups that share a key */
} scan;

typedef struct {
    dev *d;
    dev_scan_args a;
} scanning;

static void run_scan(void *ctx, int turn)
{
    scanning *t = ctx;
    (void)turn; /* rows and states are passed once */
    t->d->ops->scan(t->d, &t->a);
}

static lq_status upload_runs(bench *b, dev_states *to, const scan *of, lq_err *err)
{
    dev_run *runs = calloc((size_t)of->seqs, sizeof *runs);
    if (!runs) return lq_fail(err, LQ_ENOMEM, "no memory for a plan");
    for (int64_t i = 0; i < of->seqs; i++)
        runs[i] =
            (dev_run){ (int32_t)(i * of->rows), (int32_t)of->rows, (int32_t)i, 0, { { 0, 0 } } };
    dev_run *on = bench_dev_take(b, (size_t)of->seqs * sizeof *runs);
    b->d->ops->upload(b->d, on, runs, (size_t)of->seqs * sizeof *runs);
    to->runs = on;
    to->n = of->seqs;
    const lq_status s = b->d->ops->sync(b->d, err);
    free(runs);
    return s;
}

static lq_status scan_row(bench *b, const scan *given, lq_err *err)
{
    scan of = *given;
    if (b->tiny) of.rows = of.rows > 1 ? 20 : 1;
    if (b->tiny) of.seqs = of.seqs > 2 ? 2 : of.seqs;
    char shape[64];
    snprintf(shape, sizeof shape, "%lld x %lld, %lld/%lldx%lld", (long long)of.seqs,
             (long long)of.rows, (long long)of.H, (long long)of.G, (long long)of.K);
    if (!asked_for(b, of.name, shape)) return LQ_OK;
    const int64_t T = of.seqs * of.rows, K = of.K, W = (2 * of.G + of.H) * K,
                  state = of.H * K * (int64_t)lq_round_up((size_t)K, SCAN_LANES);
    void *x = NULL, *rates = NULL, *states = NULL;
    lq_status s = bench_dev_put(b, &x, 1, (size_t)(T * W) * sizeof(float), true, err);
    if (!s) s = bench_dev_put(b, &rates, 1, (size_t)(2 * T * of.H) * sizeof(float), true, err);
    if (!s) s = bench_dev_put(b, &states, 1, (size_t)(of.seqs * state) * sizeof(float), true, err);
    const float *q = x, *r = rates;
    scanning t = { .d = b->d,
                   .a = { .kind = DEV_SCAN_DELTA,
                          .states = { .of = states, .stride = state },
                          .q = q,
                          .k = q ? q + of.G * K : NULL,
                          .v = q ? q + 2 * of.G * K : NULL,
                          .beta = r,
                          .decay = r ? r + T * of.H : NULL,
                          .out = bench_dev_take(b, (size_t)(T * of.H * K) * sizeof(float)),
                          .ld = W,
                          .H = of.H,
                          .G = of.G,
                          .K = K,
                          .V = K } };
    if (!s) s = upload_runs(b, &t.a.states, &of, err);
    double seconds = 0;
    if (!s) s = time_calls(b, &seconds, run_scan, &t, err);
    if (!s) {
        const double moved = (double)(T * (W + of.H * K + 2 * of.H) + 2 * of.seqs * state);
        bench_dev_row *row =
            add(b, of.name, seconds, 6.0 * (double)(T * of.H * K * K), moved * sizeof(float));
        snprintf(row->shape, sizeof row->shape, "%s", shape);
    }
    give_back(b);
    return s;
}

lq_status bench_dev_run(bench_dev_row rows[BENCH_DEV_ROWS], int *n_rows, dev *d, mm_acts acts,
                        double copy_bytes_s, const char *only, const lq_job *job, lq_err *err)
{
    static const int64_t few[] = { 1, 16, 64, 512 }, some[] = { 1, 16, 64, 256, 512 },
                         tiny[] = { 1, 9, 40 }, tiny_too[] = { 1, 9, 40, 512 },
                         many[] = { 1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 4096 };
#define ROWS(of) of, (int)LQ_COUNT(of)
    static const struct {
        const char *name;
        const int64_t *M;
        int n;
        bool both;
    } schemes[] = {
        { "u4-g128", ROWS(many), true },     { "u4-g128-asym", ROWS(few), false },
        { "u2-g64-asym", ROWS(few), false }, { "u3-g128-asym", ROWS(few), false },
        { "u8-g128", ROWS(few), false },     { "i8-row", ROWS(few), false },
        { "nf4", ROWS(some), true },         { "mxfp4", ROWS(some), true },
        { "fp8-e4m3", ROWS(some), true },    { "bf16", ROWS(many), false }
    }; /* the last: cuBLAS, beside the first */
    static const attention kinds[] = {
        { "prefill bf16", 1, 8192, 8192, 32, 8, 128, KV_BF16 },
        { "prefill int8", 1, 8192, 8192, 32, 8, 128, KV_I8 },
        { "decode bf16", 32, 1, 4096, 32, 8, 128, KV_BF16 },
        { "decode bf16", 32, 1, 4096, 64, 8, 128, KV_BF16 },
        { "decode bf16", 1, 1, 32768, 32, 8, 128, KV_BF16 },
        { "decode int8", 32, 1, 4096, 32, 8, 128, KV_I8 },
        { "decode fp8", 32, 1, 4096, 32, 8, 128, KV_F8 },
        { "decode int4", 32, 1, 4096, 32, 8, 128, KV_I4 },
        { "prefill bf16", 1, 8192, 8192, 32, 4, 512, KV_BF16 }, /* Gemma 4's global layers */
        { "decode bf16", 32, 1, 4096, 32, 4, 512, KV_BF16 },
    };
    static const scan scans[] = { { "scan delta", 1, 2048, 32, 16, 128 }, /* Qwen3-Next */
                                  { "scan delta", 32, 1, 32, 16, 128 } };
    bench b = { .d = d,
                .acts = acts,
                .copy = copy_bytes_s,
                .only = only,
                .job = job,
                .rows = rows,
                .tiny = d->memory < BENCH_DEV_MEMORY };
    lq_status s = LQ_OK;
    if (!d->batch_invariant) d->ops->blas(d); /* as a model does */
    for (size_t i = 0; i < LQ_COUNT(schemes) && !s; i++) {
        const char *name = schemes[i].name;
        s = b.tiny && i ? scheme_rows(&b, name, ROWS(tiny), false, err)
            : b.tiny    ? scheme_rows(&b, name, ROWS(tiny_too), true, err)
                        : scheme_rows(&b, name, schemes[i].M, schemes[i].n, schemes[i].both, err);
    }
    for (size_t i = 0; i < LQ_COUNT(kinds) && !s; i++)
        s = attention_row(&b, &kinds[i], err);
    for (size_t i = 0; i < LQ_COUNT(scans) && !s; i++)
        s = scan_row(&b, &scans[i], err);
#undef ROWS
    give_back(&b);
    *n_rows = b.n;
    return s;
}
