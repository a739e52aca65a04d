/* tests/unit/test_backward_share.c - a layer forward and back by several ranks: each makes a part, all get the bytes of
 * one. */
#include "calib/dense_layer.h"
#include "calib/gemm.h"
#include "tests/support/ranks.h"
#include "tests/support/rig.h"

#include <stdlib.h>

/* 200 rows, and outputs of 128 and 384: tiles of 128 that do not come out even, one, two or three beside each other. */
enum { WINDOWS = 2, LEN = 100, ROWS = WINDOWS * LEN, LAYER = 1 };

typedef struct {
    float *x, *d, *W[GRAD_LINEARS], *G[GRAD_LINEARS], *squares[GRAD_LINEARS];
    int64_t N[GRAD_LINEARS], K[GRAD_LINEARS];
} passed;

typedef struct {
    rig r;
    lq_arena a;
    grad_ctx *g;
    grad_layer l;
    float *W[GRAD_BUFFERS];
} bench;

static const char *folder; /* of the model at work */

static bool bench_open(bench *b)
{
    lq_err err;
    memset(b, 0, sizeof *b);
    if (!rig_open(&b->r, folder, (rig_opts){ .threads = 2 })) return false;
    const arch_config *c = b->r.m.cfg;
    lq_status s = grad_open(&b->g, c, WINDOWS, LEN, false, b->r.p, &err);
    if (!s) s = dense_buffers(b->W, c, &b->a, &err);
    return !s && !dense_layer(&b->l, b->W, b->r.src, LAYER, LEN, &b->a, b->r.p, &err);
}

/* The layer on the same rows forward and back, its sums twice. */
static bool pass(passed *p, bench *b)
{
    const arch_config *c = b->r.m.cfg;
    const int64_t n = ROWS * c->hidden;
    grad_out out = { .W = { 0 } };
    lq_err err;
    p->x = lq_push(&b->a, (size_t)n * sizeof(float));
    p->d = lq_push(&b->a, (size_t)n * sizeof(float));
    float *y = lq_push(&b->a, (size_t)n * sizeof(float));
    for (int k = 0; k < GRAD_LINEARS; k++) {
        if (!b->l.W[k]) continue;
        arch_role_shape(c, grad_linear_roles[k], &p->N[k], &p->K[k]);
        const size_t blocks = (size_t)lq_ceil_div(p->N[k], GRAD_BLOCK);
        out.W[k] = p->W[k] = lq_push(&b->a, (size_t)(p->N[k] * p->K[k]) * sizeof(float));
        out.G[k] = p->G[k] = lq_push(&b->a, blocks * GRAD_BLOCK * GRAD_BLOCK * sizeof(float));
        out.squares[k] = p->squares[k] = lq_push(&b->a, ROWS * sizeof(float));
    }
    for (int64_t i = 0; i < n; i++) {
        p->x[i] = (float)(i * 7919 % 1009) / 504 - 1;
        p->d[i] = (float)(i * 104729 % 997) / 498 - 1;
    }
    memcpy(y, p->x, (size_t)n * sizeof *y);
    if (grad_forward(b->g, &b->l, LAYER, y, WINDOWS, &err)) return false;
    for (int i = 0; i < 2; i++)
        if (grad_backward(b->g, &b->l, LAYER, p->x, p->d, WINDOWS, &out, &err)) return false;
    memcpy(p->x, y, (size_t)n * sizeof *y);
    return true;
}

/* Are rows first .. end those of one process, and the others untouched? */
static bool has_own(const float *got, const float *want, int64_t M, int64_t N, int64_t first,
                    int64_t end)
{
    for (int64_t i = 0; i < M * N; i++) {
        const bool own = i >= first * N && i < end * N;
        if (memcmp(&got[i], own ? &want[i] : &(float){ 0 }, sizeof *got)) return false;
    }
    return true;
}

/* Sums of M rows: this rank's own, then all. */
static int check_sums(comm *c, float *got, const float *want, int64_t M, int64_t N, int64_t side)
{
    int64_t first, end;
    lq_err err;
    grad_own_rows(&first, &end, comm_rank(c), comm_size(c), M, side);
    if (!has_own(got, want, M, N, first, end)) return 1;
    if (grad_gather_rows(c, got, (size_t)N * sizeof *got, M, side, &err)) return 2;
    return memcmp(got, want, (size_t)(M * N) * sizeof *got) ? 3 : 0;
}

static int as_rank(comm *c)
{
    bench b;
    passed one = { .W = { 0 } }, ours = { .W = { 0 } };
    lq_err err;
    int code = 0;
    if (!bench_open(&b) || !pass(&one, &b)) return 90;
    if (grad_share(b.g, c, &err) || !pass(&ours, &b)) return 91;
    const size_t bytes = (size_t)(ROWS * b.r.m.cfg->hidden) * sizeof(float);
    if (memcmp(ours.x, one.x, bytes)) code = 10;
    if (memcmp(ours.d, one.d, bytes)) code = 11;
    const int64_t block = gemm_cut(GRAD_BLOCK, GRAD_BLOCK).side;
    for (int k = 0; k < GRAD_LINEARS && !code; k++) {
        if (!one.W[k]) continue;
        const int64_t N = one.N[k], K = one.K[k];
        code = check_sums(c, ours.W[k], one.W[k], N, K, gemm_cut(N, K).side);
        if (!code && memcmp(ours.squares[k], one.squares[k], ROWS * sizeof(float))) code = 4;
        if (!code) code = check_sums(c, ours.G[k], one.G[k], N, GRAD_BLOCK, block);
        if (code) code += 20 + 4 * k;
    }
    grad_close(b.g);
    lq_arena_free(&b.a);
    rig_close(&b.r);
    return code;
}

TEST(ranks_make_each_a_part_of_a_pass_and_have_the_bytes_of_one)
{
    static const int sizes[] = { 2, 3, 4, 8 };
    static const char *const folders[] = {
        "models/novels-1m",           "tests/golden/arch/phi3",    "tests/golden/arch/gemma2",
        "tests/golden/arch/gpt-neox", "tests/golden/arch/qwen3.5", "tests/golden/arch/youtu"
    };
    for (size_t i = 0; i < LQ_COUNT(sizes) * LQ_COUNT(folders); i++) {
        const int n = sizes[i % LQ_COUNT(sizes)];
        int codes[RANKS_MOST];
        folder = folders[i / LQ_COUNT(sizes)];
        as_ranks(n, as_rank, codes);
        for (int k = 0; k < n; k++)
            CHECK(codes[k] == 0, "%s: rank %d of %d: step %d", folder, k, n, codes[k]);
    }
}

int main(int argc, char **argv)
{
    RUN(ranks_make_each_a_part_of_a_pass_and_have_the_bytes_of_one);
    return check_end();
}
