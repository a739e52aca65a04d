/* tests/unit/test_backward_attention.c - windows that are longer than what attention takes at a time: the forward half
 * against the runtime's, the gradient at the input against differences. */
#include "calib/dense_layer.h"
#include "tests/support/rig.h"

#include <math.h>
#include <stdlib.h>

enum { WINDOWS = 2, LEN = 300, ROWS = WINDOWS * LEN };

typedef struct {
    rig r;
    lq_arena a;
    grad_ctx *g;
    grad_layer l;
    float *W[GRAD_BUFFERS], *x, *dir;
    size_t n;
} bench;

static bool bench_open(bench *b, const char *folder)
{
    lq_err err = { "" };
    uint32_t seed = 7;
    memset(b, 0, sizeof *b);
    if (!rig_open(&b->r, folder, (rig_opts){ .threads = 2 })) return false;
    const arch_config *c = b->r.m.cfg;
    b->n = (size_t)(ROWS * c->hidden);
    lq_status s = grad_open(&b->g, c, WINDOWS, LEN, false, b->r.p, &err);
    if (!s) s = dense_buffers(b->W, c, &b->a, &err);
    if (!s) s = dense_layer(&b->l, b->W, b->r.src, 0, LEN, &b->a, b->r.p, &err);
    b->x = lq_push(&b->a, b->n * sizeof *b->x);
    b->dir = lq_push(&b->a, b->n * sizeof *b->dir);
    CHECK(!s && b->x && b->dir, "%s: %s", folder, err.msg);
    for (size_t i = 0; i < 2 * b->n; i++) {
        seed = seed * 1664525u + 1013904223u;
        (i < b->n ? b->x : b->dir)[i % b->n] = (float)(int32_t)seed / 2147483648.0f;
    }
    return !s;
}

static void bench_close(bench *b)
{
    grad_close(b->g);
    lq_arena_free(&b->a);
    rig_close(&b->r);
}

/* y = layer(x + h dir). */
static float *forward_at(bench *b, float h)
{
    lq_err err = { "" };
    float *y = malloc(b->n * sizeof *y);
    for (size_t i = 0; i < b->n; i++)
        y[i] = b->x[i] + h * b->dir[i];
    CHECK(!grad_forward(b->g, &b->l, 0, y, WINDOWS, &err), "%s", err.msg);
    return y;
}

static void check_forward(bench *b, const char *folder)
{
    const arch_config *c = b->r.m.cfg;
    lq_arena scratch = { 0 };
    lq_err err = { "" };
    float *want = malloc(b->n * sizeof *want), *got = forward_at(b, 0);
    double worst = 0, size = 0;
    memcpy(want, b->x, b->n * sizeof *want);
    lq_status s = lq_arena_init(&scratch, fwd_layer_scratch(c, ROWS, pool_threads(b->r.p)), &err);
    if (!s)
        s = fwd_layer(c, &b->r.m.layers[0], 0, want, WINDOWS, LEN, MM_F32, NULL, NULL, &scratch,
                      b->r.p, &err);
    CHECK(!s, "%s: %s", folder, err.msg);
    for (size_t i = 0; i < b->n; i++) {
        worst = fmax(worst, fabs((double)want[i] - (double)got[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    /* Two f32 programs that sum at most ffn products, or LEN, in other orders. */
    CHECK(worst <= (double)(c->ffn + LEN) * 0x1p-23 * size, "%s: off by %g of %g", folder, worst,
          size);
    free(want);
    free(got);
    lq_arena_free(&scratch);
}

/* loss = sum r y, r being of the last tokens alone (or of all): its slope along dir by central differences of two
 * widths, whose error is of fourth order. */
static void check_back(bench *b, const char *folder, int64_t first)
{
    const size_t D = (size_t)b->r.m.cfg->hidden;
    lq_err err = { "" };
    float *d = calloc(b->n, sizeof *d);
    double slope = 0, got = 0, norm = 0;
    for (size_t i = 0; i < b->n; i++)
        if (i / D % LEN >= (size_t)first) d[i] = (float)(i * 104729 % 997) / 498 - 1;
    for (int side = 0; side < 4; side++) {
        const float h = (side & 1 ? 1 : -1) * (side & 2 ? 0x1p-8f : 0x1p-9f);
        float *y = forward_at(b, h);
        double sum = 0;
        for (size_t i = 0; i < b->n; i++)
            sum += (double)y[i] * (double)d[i];
        slope += sum / (2 * (double)h) * (side & 2 ? -1.0 / 3 : 4.0 / 3);
        free(y);
    }
    const grad_out out = { .W = { 0 } };
    CHECK(!grad_backward(b->g, &b->l, 0, b->x, d, WINDOWS, &out, &err), "%s", err.msg);
    for (size_t i = 0; i < b->n; i++) {
        got += (double)d[i] * (double)b->dir[i];
        norm += fabs((double)d[i] * (double)b->dir[i]);
    }
    CHECK(fabs(slope - got) <= 0.01 * fabs(slope) + 0.0005 * norm,
          "%s from %lld: slope %g, gradient %g of %g", folder, (long long)first, slope, got, norm);
    free(d);
}

TEST(windows_of_several_blocks_go_forward_and_back)
{
    static const char *const folders[] = { "models/novels-1m",
                                           "tests/golden/arch/mistral-swa",
                                           "tests/golden/arch/qwen3",
                                           "tests/golden/arch/gemma2",
                                           "tests/golden/arch/qwen3.5",
                                           "tests/golden/arch/bamba",
                                           "tests/golden/arch/lfm2",
                                           "tests/golden/arch/falcon-mamba",
                                           "tests/golden/arch/falcon-rw-alibi" };
    for (size_t i = 0; i < LQ_COUNT(folders); i++) {
        bench b;
        if (!bench_open(&b, folders[i])) continue;
        check_forward(&b, folders[i]);
        check_back(&b, folders[i], 0);
        check_back(&b, folders[i], LEN - 10); /* through what they see of the blocks before */
        bench_close(&b);
    }
}

int main(int argc, char **argv)
{
    RUN(windows_of_several_blocks_go_forward_and_back);
    return check_end();
}
