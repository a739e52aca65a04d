/* tests/unit/test_backward_dev.c - backward passes whose products a device makes (calib/gemm_dev.h): products to the bit,
 * and layers next to the CPU's. */
#include "calib/dense_layer.h"
#include "calib/gemm_dev.h"
#include "calib/kl.h"
#include "tests/support/check.h"
#include "tests/support/emucounts.h"
#include "tests/support/fill.h"
#include "tests/support/rig.h"

#include <math.h>
#include <stdlib.h>

extern size_t emu_memory;

static float *numbers(int64_t n, uint64_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    if (x) fill_row(x, n, &seed);
    return x;
}

/* ---- products ---- */
enum { M = 130, N = 150, K = 70, LDC = N + 3 };

static float in_order(const float *A, const float *B, bool ta, bool tb, int64_t m, int64_t n)
{
    float sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum = fmaf(A[ta ? k * (M + 5) + m : m * (K + 1) + k], B[tb ? n * K + k : k * (N + 2) + n],
                   sum);
    return sum;
}

TEST(products_are_summed_in_order)
{
    dev d;
    gemm_dev *on;
    lq_err err = { "" };
    CHECK(!dev_open(&d, "cuda", &err) && !gemm_dev_open(&on, &d, &err), "%s", err.msg);
    for (int i = 0; i < 4; i++) {
        const bool ta = i & 1, tb = i & 2;
        const float beta = i == 0 ? 0 : i == 1 ? 1 : 0.5f;
        float *A = numbers(M * (K + 5) + K * (M + 5), 1), *B = numbers(N * K + K * (N + 2), 2),
              *C = numbers(M * LDC, 3), *got = numbers(M * LDC, 3);
        int64_t others = 0;
        gemm_dev_run(on, got, LDC, (gemm_in){ A, ta ? M + 5 : K + 1, ta },
                     (gemm_in){ B, tb ? K : N + 2, tb }, M, N, K, beta, NULL);
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < LDC; n++) {
                float want = C[m * LDC + n]; /* after a row: as it was */
                if (n < N) want = in_order(A, B, ta, tb, m, n) + (i ? beta * want : 0);
                others += memcmp(&got[m * LDC + n], &want, sizeof want) != 0;
            }
        CHECK(others == 0, "ta %d tb %d: %lld others", ta, tb, (long long)others);
        free(A);
        free(B);
        free(C);
        free(got);
    }
    CHECK(!gemm_dev_check(on, &err), "%s", err.msg);
    gemm_dev_close(on);
    d.ops->close(&d);
}

/* Kept, they go up once; where there is no room they make room for each other; a device without any says so. */
TEST(kept_matrices_go_up_once_and_make_room_for_each_other)
{
    enum { SIDE = 96, n = SIDE * SIDE };
    dev d;
    gemm_dev *on;
    lq_err err = { "" };
    float *A = numbers(n, 1), *B = numbers(n, 2), *C = numbers(n, 3), *want = numbers(n, 3);
    const gemm_in a = { A, SIDE, false }, b = { B, SIDE, true };
    if (check_real_gpu("its memory is what it is")) return;
    CHECK(!dev_open(&d, "cuda", &err) && !gemm_dev_open(&on, &d, &err), "%s", err.msg);
    gemm_dev_run(on, want, SIDE, a, b, SIDE, SIDE, SIDE, 0, NULL);
    gemm_dev_keep(on, A, n);
    gemm_dev_keep(on, B, n);
    const size_t memory = emu_memory, *const limits = (size_t[]){ memory, 1 << 20, memory };
    for (int i = 0; i < 3; i++) {
        emu_memory = limits[i];
        for (int again = 0; again < 2; again++) {
            const emu_counts before = emu_counted;
            memset(C, 0, n * sizeof *C);
            gemm_dev_run(on, C, SIDE, a, b, SIDE, SIDE, SIDE, 0, NULL);
            const size_t copies = counted_since(&before).copies;
            CHECK(memcmp(C, want, n * sizeof *C) == 0, "limit %d: others", i);
            CHECK(i == 1 || copies == (again || i ? 1 : 3), "limit %d, %d: %zu copies", i, again,
                  copies);
        }
    }
    /* a part of what is kept: its last rows */
    gemm_dev_run(on, C, SIDE, (gemm_in){ A + 32 * SIDE, SIDE, false }, b, SIDE - 32, SIDE, SIDE, 0,
                 NULL);
    CHECK(memcmp(C, want + 32 * SIDE, (n - 32 * SIDE) * sizeof *C) == 0, "others of a part");
    gemm_dev_forget(on, A);
    A[0] += 1;
    gemm_dev_run(on, C, SIDE, a, b, SIDE, SIDE, SIDE, 0, NULL);
    CHECK(memcmp(C, want, SIDE * sizeof *C) != 0, "it was forgotten");
    CHECK(!gemm_dev_check(on, &err), "%s", err.msg);
    gemm_dev_forget(on, B);
    emu_memory = 1;
    gemm_dev_keep(on, B, n);
    gemm_dev_run(on, C, SIDE, a, b, SIDE, SIDE, SIDE, 0, NULL);
    CHECK(gemm_dev_check(on, &err) == LQ_ENOMEM && strstr(err.msg, "out of memory"), "%s", err.msg);
    emu_memory = memory;
    gemm_dev_close(on);
    d.ops->close(&d);
    free(A);
    free(B);
    free(C);
    free(want);
}

/* ---- layers ---- */
enum { WINDOWS = 2, LEN = 20, ROWS = WINDOWS * LEN };

typedef struct {
    float *y, *d, *W[GRAD_LINEARS], *G[GRAD_LINEARS];
    int64_t n, nW[GRAD_LINEARS], nG[GRAD_LINEARS];
} passed;

static bool pass(passed *p, rig *r, grad_ctx *g, const grad_layer *l, int64_t layer, lq_arena *a)
{
    const arch_config *c = r->m.cfg;
    grad_out out = { .W = { 0 } };
    lq_err err = { "" };
    uint64_t seed = 7;
    p->n = ROWS * c->hidden;
    float *x = lq_push(a, (size_t)p->n * sizeof *x);
    p->y = lq_push(a, (size_t)p->n * sizeof *x);
    p->d = lq_push(a, (size_t)p->n * sizeof *x);
    for (int k = 0; k < GRAD_LINEARS; k++) {
        int64_t rows, cols;
        if (!l->W[k]) continue;
        arch_role_shape(c, grad_linear_roles[k], &rows, &cols);
        p->nW[k] = rows * cols;
        p->nG[k] = lq_ceil_div(rows, GRAD_BLOCK) * GRAD_BLOCK * GRAD_BLOCK;
        out.W[k] = p->W[k] = lq_push(a, (size_t)p->nW[k] * sizeof *x);
        out.G[k] = p->G[k] = lq_push(a, (size_t)p->nG[k] * sizeof *x);
        out.squares[k] = lq_push(a, ROWS * sizeof *x);
    }
    fill_row(x, p->n, &seed);
    fill_row(p->d, p->n, &seed);
    memcpy(p->y, x, (size_t)p->n * sizeof *x);
    lq_status s = grad_forward(g, l, layer, p->y, WINDOWS, &err);
    if (!s) s = grad_backward(g, l, layer, x, p->d, WINDOWS, &out, &err);
    for (int k = 0; k < GRAD_LINEARS; k++)
        for (int64_t at = 0; p->G[k] && at < p->nG[k]; at += GRAD_BLOCK * GRAD_BLOCK)
            gemm_mirror(p->G[k] + at, GRAD_BLOCK, GRAD_BLOCK);
    CHECK(!s, "%s", err.msg);
    return !s;
}

/* Largest distance over the largest number. */
static double apart(const float *got, const float *want, int64_t n)
{
    double most = 0, far = 0;
    for (int64_t i = 0; i < n; i++) {
        const double v = fabs((double)want[i]), e = fabs((double)got[i] - (double)want[i]);
        most = v > most ? v : most;
        far = e > far ? e : far;
    }
    return far / (most > 0 ? most : 1);
}

static void check_layer(const char *arch, int64_t layer)
{
    const double most =
        1e-5; /* of products of at most a few hundred numbers in f32, one after another */
    char path[256];
    rig r;
    lq_arena a = { 0 };
    grad_ctx *g;
    grad_layer l;
    float *W[GRAD_BUFFERS];
    dev d;
    gemm_dev *on;
    passed here = { .n = 0 }, there = { .n = 0 };
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/arch/%s", arch);
    if (!rig_open(&r, path, (rig_opts){ .threads = 2 })) return;
    const arch_config *c = r.m.cfg;
    CHECK(!grad_open(&g, c, WINDOWS, LEN, false, r.p, &err) && !dense_buffers(W, c, &a, &err) &&
              !dense_layer(&l, W, r.src, layer, LEN, &a, r.p, &err),
          "%s: %s", arch, err.msg);
    CHECK(!dev_open(&d, "cuda", &err) && !gemm_dev_open(&on, &d, &err), "%s", err.msg);
    bool ok = pass(&here, &r, g, &l, layer, &a);
    const emu_counts before = emu_counted;
    grad_use(g, on);
    ok = pass(&there, &r, g, &l, layer, &a) && ok;
    CHECK(getenv("LLMQ_TEST_DEVICE") || counted_since(&before).launches > 12,
          "%s: nothing is made there", arch);
    if (ok) {
        CHECK(apart(there.y, here.y, here.n) < most, "%s: forward %.2g", arch,
              apart(there.y, here.y, here.n));
        CHECK(apart(there.d, here.d, here.n) < most, "%s: gradient %.2g", arch,
              apart(there.d, here.d, here.n));
        for (int k = 0; k < GRAD_LINEARS; k++)
            if (here.W[k])
                CHECK(apart(there.W[k], here.W[k], here.nW[k]) < most &&
                          apart(there.G[k], here.G[k], here.nG[k]) < most,
                      "%s: linear %d: %.2g, %.2g", arch, k,
                      apart(there.W[k], here.W[k], here.nW[k]),
                      apart(there.G[k], here.G[k], here.nG[k]));
    }
    gemm_dev_close(on);
    d.ops->close(&d);
    grad_close(g);
    lq_arena_free(&a);
    rig_close(&r);
}

TEST(layers_there_are_the_cpus_within_rounding)
{
    static const char *const archs[] = { "llama3-gqa", "gemma2", "phi3", "qwen3.5", "youtu" };
    for (size_t i = 0; i < LQ_COUNT(archs); i++)
        check_layer(archs[i], 1);
}

TEST(a_head_there_gives_the_cpus_gradient_within_rounding)
{
    enum { V = 500, H = 48, R = 30 };
    dev d;
    gemm_dev *on;
    pool *p = NULL;
    lq_err err = { "" };
    float *W = numbers(V * H, 1), *x = numbers(2 * R * H, 2),
          *scratch = numbers((int64_t)kl_scratch(V), 3);
    float grad[2][R * H];
    double kl[2];
    CHECK(!pool_open(&p, 2, &err) && !k_init(NULL, &err), "%s", err.msg);
    CHECK(!dev_open(&d, "cuda", &err) && !gemm_dev_open(&on, &d, &err), "%s", err.msg);
    gemm_dev_keep(on, W, V * H);
    for (int there = 0; there < 2; there++) {
        const kl_head head = { .W = W, .V = V, .K = H, .cap = 20, .on = there ? on : NULL };
        kl[there] = kl_run(grad[there], x, &head, x + R * H, &head, R, 1, scratch, p);
        CHECK(!gemm_dev_check(on, &err), "%s", err.msg);
    }
    CHECK(fabs(kl[1] / kl[0] - 1) < 1e-5, "%g, there %g", kl[0], kl[1]);
    CHECK(apart(grad[1], grad[0], (int64_t)R * H) < 1e-5, "%.2g apart",
          apart(grad[1], grad[0], (int64_t)R * H));
    gemm_dev_close(on);
    d.ops->close(&d);
    pool_close(p);
    free(W);
    free(x);
    free(scratch);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(products_are_summed_in_order);
    RUN(kept_matrices_go_up_once_and_make_room_for_each_other);
    RUN(layers_there_are_the_cpus_within_rounding);
    RUN(a_head_there_gives_the_cpus_gradient_within_rounding);
    return check_end();
}
