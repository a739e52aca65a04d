/* tests/unit/test_dev_lora.c - adapters on a device (kernels/cuda/lora.cu, runtime/forward/forward_dev_lora.c)
 * against the CPU's: types, odd sizes, architectures, mixes of adapters in one batch, graphs, several
 * devices. The device is tests/support/emulated.c's. */
#include "tests/support/check.h"
#include "tests/support/devpass.h"
#include "tests/support/lora_made.h"
#include "tests/support/lora_rows.h"

extern int emu_devices;
extern size_t emu_memory;

/* ---- the operation ---- */

enum { M = 21, LDL = 16 };

typedef struct {
    const char *why;
    int64_t K, N, rank;
    lq_dtype dtype;
    bool dora;
} shape;
static const shape shapes[] = {
    { "a multiple of everything", 64, 128, 8, LQ_BF16, false },
    { "odd sizes, more outputs than a block has", 37, 131, 5, LQ_F16, true },
    { "more inputs than the threads take at once, f32", 2060, 9, 3, LQ_F32, false },
    { "two turns of ranks", 24, 40, 16, LQ_BF16, true },
};

typedef struct {
    dev d;
    void *mem[16];
    int n;
} table;

static void *there(table *t, const void *host, size_t n)
{
    void *p = t->d.ops->alloc(&t->d, n);
    t->mem[t->n++] = p;
    if (host) t->d.ops->upload(&t->d, p, host, n);
    return p;
}

static float *some(lq_arena *a, int64_t n, uint64_t seed) { return numbers(a, n, &seed, 0, 1); }

/* [rows, n] padded to [padded rows, padded n], as `d`; rows and columns change places in eights where b. */
static void *laid_out(lq_arena *a, float *x, int64_t rows, int64_t n, lq_dtype d, bool b,
                      size_t *bytes)
{
    const int64_t P = DEV_LORA_PAD, wide = (n + P - 1) / P * P,
                  tall = b ? rows : (rows + P - 1) / P * P;
    const size_t each = lq_dtype_bytes(d);
    *bytes = (size_t)(wide * tall) * each;
    uint8_t *to = lq_push(a, *bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = b ? (k / P * rows + r) * P + k % P : r * wide + k;
            lq_from_f32(to + (size_t)at * each, &x[r * n + k], d, 1);
            lq_to_f32(&x[r * n + k], to + (size_t)at * each, d, 1); /* as it is there */
        }
    return to;
}

/* Two adapters' rows in turn, but for every fifth, which has none. */
static void check_shape(table *t, const shape *s, const dev_ops *ops)
{
    lq_arena a = { 0 };
    lq_err err = { "" };
    const int64_t K = s->K, N = s->N, R = s->rank, ldx = K + 3, ldy = N + 5;
    float *x = some(&a, M * ldx, 1), *y = some(&a, M * ldy, 2), *base = some(&a, M * N, 3);
    float *A[2], *B[2], *gain = some(&a, N, 4), *got = lq_push(&a, (size_t)(M * ldy) * 4);
    int32_t rows[M], of[M];
    dev_lora_panel panels[8];
    dev_lora_part part[2] = { { 0 } };
    int n_panels = 0, at = 0;
    CHECK(!ops->open(&t->d, 0, &err), "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        size_t na, nb;
        A[i] = some(&a, R * K, 10 + (uint64_t)i);
        B[i] = some(&a, N * R, 20 + (uint64_t)i);
        void *pa = laid_out(&a, A[i], R, K, s->dtype, false, &na);
        void *pb = laid_out(&a, B[i], N, R, s->dtype, true, &nb);
        part[i] = (dev_lora_part){ .a = there(t, pa, na),
                                   .b = there(t, pb, nb),
                                   .gain = i && s->dora ? there(t, gain, (size_t)N * 4) : NULL,
                                   .rank = (int32_t)R,
                                   .dtype = s->dtype,
                                   .scale = 0.5f };
    }
    for (int i = 0; i < 2; i++) {
        const dev_lora_part *on = there(t, &part[i], sizeof part[i]);
        const int first = at;
        for (int m = 0; m < M; m++)
            if (m % 5 != 4 && m % 2 == i) rows[at++] = m;
        for (int k = first; k < at; k += DEV_LORA_ROWS)
            panels[n_panels++] =
                (dev_lora_panel){ on, k, at - k < DEV_LORA_ROWS ? at - k : DEV_LORA_ROWS };
        panels[n_panels++] = (dev_lora_panel){ .n = 0 };
    }
    for (int m = 0; m < M; m++)
        of[m] = m % 5 == 4 ? -1 : m % 2;
    dev_lora_args args = { .x = there(t, x, (size_t)(M * ldx) * 4),
                           .low = there(t, NULL, (size_t)(2 * M * LDL) * 4),
                           .panels = there(t, panels, (size_t)n_panels * sizeof *panels),
                           .rows = there(t, rows, (size_t)at * sizeof *rows),
                           .ldx = ldx,
                           .K = K,
                           .ldl = LDL,
                           .rows_most = M,
                           .n_panels = n_panels,
                           .rank = LDL,
                           .n = 1 };
    args.out[0] = (dev_lora_out){ .y = there(t, y, (size_t)(M * ldy) * 4),
                                  .base = there(t, base, (size_t)(M * N) * 4),
                                  .ldy = ldy,
                                  .ldb = N,
                                  .N = N };
    ops->lora(&t->d, &args);
    ops->download(&t->d, got, args.out[0].y, (size_t)(M * ldy) * 4);
    CHECK(!ops->sync(&t->d, &err), "%s: %s", s->why, err.msg);
    double worst = 0;
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < ldy; n++) {
            double want = y[m * ldy + n], size = fabs(want);
            const int i = of[m];
            double sum = 0, sizes = 0;
            for (int64_t r = 0; i >= 0 && n < N && r < R; r++) {
                double low = 0, l = 0;
                for (int64_t k = 0; k < K; k++) {
                    const double p = (double)A[i][r * K + k] * (double)x[m * ldx + k];
                    low += p;
                    l += fabs(p);
                }
                sum += 0.5 * low * (double)B[i][n * R + r];
                sizes += 0.5 * l * fabs((double)B[i][n * R + r]);
            }
            if (i == 1 && s->dora && n < N) {
                const double g = gain[n], w = base[m * N + n];
                sum = (g - 1) * w + g * sum;
                sizes = fabs(g - 1) * fabs(w) + fabs(g) * sizes;
            }
            want += sum;
            size += sizes;
            const double bound = 0x1p-24 * (3 * (double)(K + R) + 8) * size + 1e-30;
            worst = fmax(worst, fabs((double)got[m * ldy + n] - want) / bound);
            CHECK(i >= 0 || got[m * ldy + n] == y[m * ldy + n], "row %d has no adapter", (int)m);
        }
    CHECK(worst <= 1, "%s: %g of the bound", s->why, worst);
    while (t->n)
        ops->free(&t->d, t->mem[--t->n]);
    ops->close(&t->d);
    lq_arena_free(&a);
}

TEST(every_type_and_odd_sizes_give_the_sums)
{
    table t = { 0 };
    for (size_t i = 0; i < LQ_COUNT(shapes); i++)
        check_shape(&t, &shapes[i], dev_cuda());
}

/* ---- whole models ---- */

enum { SEQS = 4, LEN = 9, RANK = 6 };

/* Prompts beside decodes, of which the last row alone is asked for; then one row of each. */
static const int64_t mixed[][SEQS] = { { 3, 0, 2, 1 }, { 1, 5, 1, 4 }, { 1, 1, 1, 1 } };

/* Two adapters of the model as it was loaded, which is not on a device yet. */
static void make_two(adp_adapter a[2], rig *r, bool dora)
{
    make_adapter(&a[0], &r->m, 3, false, 5);
    make_adapter(&a[1], &r->m, RANK, dora, 6);
}

static void close_two(lora_adapter *l[2], adp_adapter a[2], rig *r, rig *cpu)
{
    for (int i = 0; i < 2; i++) {
        lora_unref(l[i]);
        adp_close(&a[i]);
    }
    rig_close(r);
    rig_close(cpu);
}

/* The logits of all sequences to out [SEQS, LEN, V], which end here. */
static void end(float *out, rig *r, lora_seq s[SEQS])
{
    const int64_t each = LEN * r->m.cfg->vocab;
    for (int i = 0; i < SEQS; i++) {
        memcpy(out + i * each, s[i].logits, (size_t)each * sizeof *out);
        lora_end(r, &s[i]);
    }
}

typedef struct {
    rig_opts o;
    bool dora, alone;
} how;

/* Logits [SEQS, LEN, V] of an architecture's sequences with the adapters 0, none, 1 and 0. */
static float *mix_of(const char *name, how h, int64_t *n)
{
    rig cpu, r;
    adp_adapter a[2] = { { 0 } };
    lora_adapter *l[2] = { NULL };
    lora_seq s[SEQS];
    lq_err err = { "" };
    float *out = NULL;
    h.o.lora_rank = RANK;
    if (open_arch(&cpu, name, (rig_opts){ 0 })) make_two(a, &cpu, h.dora);
    CHECK(a[1].n, "%s: nothing is changed", name);
    if (open_arch(&r, name, h.o)) {
        const int64_t V = r.m.cfg->vocab;
        *n = SEQS * LEN * V;
        out = calloc((size_t)*n, sizeof *out);
        for (int i = 0; i < 2; i++)
            CHECK(!lora_make(&l[i], &r.m, &a[i], RANK, r.p, &err), "%s: %s", name, err.msg);
        const lora_adapter *of[SEQS] = { l[0], NULL, l[1], l[0] };
        for (int i = 0; i < SEQS; i++)
            lora_begin(&s[i], i, LEN, of[i], V);
        for (size_t k = 0; k < LQ_COUNT(mixed); k++)
            for (int i = 0; i < (h.alone ? SEQS : 1); i++) {
                int64_t rows[SEQS] = { 0 };
                memcpy(rows, mixed[k], sizeof rows);
                for (int q = 0; q < SEQS && h.alone; q++)
                    if (q != i) rows[q] = 0;
                if (rows[0] + rows[1] + rows[2] + rows[3]) lora_step(&r, s, SEQS, rows, k < 2);
            }
        end(out, &r, s);
    }
    close_two(l, a, &r, &cpu);
    return out;
}

static const struct {
    const char *name, *why;
    bool dora, hard;
} archs[] = {
    { "llama3-gqa", "q, k and v joined on the device, gate and up too; DoRA", true, false },
    { "phi3", "one matrix in the checkpoint", false, false },
    { "falcon-40b-gqa", "q, k and v of each group in turn, a plain MLP", false, false },
    { "gemma2", "norms behind the branches", false, true },
    { "olmo2", "no norms before them", false, true },
    { "cohere", "a parallel MLP", true, true },
    { "mixtral-moe", "attention alone", false, true },
    { "phi2", "biases", true, true },
};

TEST(adapters_give_the_cpus_logits)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        int64_t n;
        if (archs[i].hard && !check_hard()) continue;
        float *want = mix_of(archs[i].name, (how){ .dora = archs[i].dora }, &n);
        float *got =
            mix_of(archs[i].name, (how){ .o = { .device = true }, .dora = archs[i].dora }, &n);
        const double d = want && got ? apart(got, want, n) : HUGE_VAL;
        CHECK(d <= ROUNDING, "%s (%s): %.2g of the largest logit", archs[i].name, archs[i].why, d);
        free(want);
        free(got);
    }
}

/* As forward_dev's: bf16 has a half-way point for every input. */
TEST(in_bf16_they_stray_no_further_than_the_cpu_does)
{
    int64_t n;
    how h = { .dora = true };
    float *exact = mix_of("llama3-gqa", h, &n);
    h.o.acts = MM_BF16;
    float *cpu = mix_of("llama3-gqa", h, &n);
    h.o.device = true;
    float *got = mix_of("llama3-gqa", h, &n);
    if (exact && cpu && got) {
        const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
        CHECK(own > 0 && d <= 2 * own, "%.2g, the CPU from f32 %.2g", d, own);
    }
    free(exact);
    free(cpu);
    free(got);
}

/* In f32, and in bf16 where answers are to depend on no load. */
TEST(a_row_does_not_depend_on_the_adapters_beside_it)
{
    for (int bf16 = check_hard() ? 0 : 1; bf16 < 2; bf16++) {
        int64_t n;
        how h = { .o = { .device = true, .acts = bf16 ? MM_BF16 : MM_F32, .batch_invariant = bf16 },
                  .dora = true };
        float *together = mix_of("llama3-gqa", h, &n);
        h.alone = true;
        float *alone = mix_of("llama3-gqa", h, &n);
        CHECK(together && alone && memcmp(together, alone, (size_t)n * sizeof *alone) == 0,
              "activations %s", bf16 ? "bf16" : "f32");
        free(together);
        free(alone);
    }
}

TEST(parts_of_the_model_elsewhere_change_roundings_alone)
{
    static const struct {
        const char *why;
        int64_t layers;
        int ranks;
        bool dora;
    } parts[] = { { "a layer on the CPU", 1, 0, true }, { "two devices", 0, 2, true } };
    emu_devices = 2;
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        int64_t n;
        if (parts[i].ranks > dev_count(NULL)) continue; /* a real machine has as many as it has */
        how h = { .dora = parts[i].dora };
        float *want = mix_of("llama3-gqa", h, &n);
        h.o.device = true;
        h.o.gpu_layers = parts[i].layers;
        h.o.ranks = parts[i].ranks;
        float *got = mix_of("llama3-gqa", h, &n);
        const double d = want && got ? apart(got, want, n) : HUGE_VAL;
        CHECK(d <= ROUNDING, "%s: %.2g of the largest logit", parts[i].why, d);
        free(want);
        free(got);
    }
    emu_devices = 1;
}

/* ---- graphs, memory ---- */

static float *swap_adapters(bool eager, emu_counts *c, size_t *bytes)
{
    rig r;
    adp_adapter a[2] = { { 0 } };
    lora_adapter *l[2] = { NULL };
    lora_seq s[SEQS];
    lq_err err = { "" };
    const rig_opts o = { .device = true, .eager = eager, .lora_rank = RANK };
    float *out = NULL;
    rig cpu;
    if (open_arch(&cpu, "llama3-gqa", (rig_opts){ 0 })) make_two(a, &cpu, false);
    if (open_arch(&r, "llama3-gqa", o)) {
        const int64_t V = r.m.cfg->vocab;
        for (int i = 0; i < SEQS; i++)
            lora_begin(&s[i], i, LEN, NULL, V);
        const emu_counts before = emu_counted;
        for (int k = 0; k < LEN - 1; k++) {
            /* Of ranks that are rounded up alike, of one panel: a graph serves all; each step has a new one. */
            lora_unref(l[k % 2]);
            CHECK(!lora_make(&l[k % 2], &r.m, &a[k % 2], RANK, r.p, &err), "%s", err.msg);
            for (int i = 0; i < SEQS; i++)
                s[i].l = k < 3 || (i + k) % SEQS == 0 ? NULL : l[k % 2];
            lora_step(&r, s, SEQS, (int64_t[]){ 1, 1, 1, 1 }, false);
        }
        *c = counted_since(&before);
        *bytes = (size_t)(SEQS * LEN * V) * sizeof *out;
        out = calloc(1, *bytes);
        end(out, &r, s);
    }
    close_two(l, a, &r, &cpu);
    return out;
}

/* Steps without adapters have one shape, those with one another. */
TEST(a_graph_serves_adapters_that_come_and_go)
{
    emu_counts c = { 0 }, plain = { 0 };
    size_t n = 0;
    float *got = swap_adapters(false, &c, &n), *want = swap_adapters(true, &plain, &n);
    CHECK(got && want && memcmp(got, want, n) == 0, "bytes");
    if (!getenv("LLMQ_TEST_DEVICE")) {
        CHECK(c.kept == 2 && c.graphs == LEN - 1 - 2, "%zu graphs of %zu", c.graphs, c.kept);
        CHECK(c.launches + c.nodes == plain.launches, "%zu and %zu launches, %zu without",
              c.launches, c.nodes, plain.launches);
    }
    free(got);
    free(want);
}

TEST(their_memory_is_counted_and_goes_with_them)
{
    rig cpu, r;
    adp_adapter a = { 0 };
    lora_adapter *l = NULL;
    lq_err err = { "" };
    if (check_real_gpu("others may take its memory")) return;
    if (open_arch(&cpu, "llama3-gqa", (rig_opts){ 0 })) make_adapter(&a, &cpu.m, RANK, true, 5);
    if (open_arch(&r, "llama3-gqa", (rig_opts){ .device = true, .lora_rank = RANK })) {
        dev *d = model_dev(&r.m);
        const size_t before = dev_room(d), memory = emu_memory;
        CHECK(!lora_make(&l, &r.m, &a, RANK, r.p, &err), "%s", err.msg);
        const size_t took = before - dev_room(d);
        CHECK(l && took > 0 && took <= l->bytes && l->bytes < took + 4096, "%zu of %zu bytes", took,
              l ? l->bytes : 0);
        lora_unref(l);
        CHECK(dev_room(d) == before, "%zu bytes are left", before - dev_room(d));
        emu_memory -= before - took + 1;
        lq_status s = lora_make(&l, &r.m, &a, RANK, r.p, &err);
        CHECK(s == LQ_ENOMEM && !l && strstr(err.msg, "an adapter needs"), "%s", err.msg);
        emu_memory = memory;
        CHECK(dev_room(d) == before, "%zu bytes are left", before - dev_room(d));
    }
    adp_close(&a);
    rig_close(&r);
    rig_close(&cpu);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(every_type_and_odd_sizes_give_the_sums);
    RUN(adapters_give_the_cpus_logits);
    RUN(in_bf16_they_stray_no_further_than_the_cpu_does);
    RUN(a_row_does_not_depend_on_the_adapters_beside_it);
    RUN(parts_of_the_model_elsewhere_change_roundings_alone);
    RUN(a_graph_serves_adapters_that_come_and_go);
    RUN(their_memory_is_counted_and_goes_with_them);
    return check_end();
}
