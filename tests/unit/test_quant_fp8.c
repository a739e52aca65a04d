/* tests/unit/test_quant_fp8.c - rounding to 8-bit floats: codes, scales, blocks, threads. */
#include "base/random.h"
#include "formats/tensor/qtensor.h"
#include "quantize/methods/fp8.h"
#include "quantize/methods/gptq.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"

#include <stdlib.h>

static qt_scheme scheme(int64_t rows, int64_t group)
{
    return (qt_scheme){ .kind = QT_E4M3, .rows = rows, .group = group };
}

/* Numbers of all sizes that a row with 448 in it may have. */
static void fill(float *w, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = lq_random(&seed);
        w[i] = ldexpf((float)(int32_t)(uint32_t)r / 2147483648.0f, 8 - (int)(r >> 40) % 20);
    }
}

static void codes_are_the_nearest(void)
{
    enum { K = 100000 };
    static float w[K];
    lq_arena a = { 0 };
    qz_out out;
    lq_err err;
    pool *p = NULL;
    const qt_scheme s = scheme(1, 0);
    fill(w, K, 1);
    for (int i = 0; i < 64; i++) { /* halves between codes */
        w[1 + 2 * i] = (lq_e4m3_to_f32((uint8_t)i) + lq_e4m3_to_f32((uint8_t)(i + 1))) / 2;
        w[2 + 2 * i] = -w[1 + 2 * i];
    }
    w[0] = 448;
    CHECK(!pool_open(&p, 1, &err), "pool");
    CHECK(!qz_out_alloc(&out, &s, 1, K, &a, &err), "alloc");
    CHECK(!fp8_run(&out, w, LQ_F32, p, &err), "run");
    const uint8_t *codes = out.w[QT_CODES];
    for (int i = 0; i < K; i++)
        CHECK(codes[i] == lq_f32_to_e4m3(w[i]), "%g: code %02x, expected %02x", (double)w[i],
              codes[i], lq_f32_to_e4m3(w[i]));
    pool_close(p);
    lq_arena_free(&a);
}

static void scales_are_the_largest_of_what_shares_them(void)
{
    static const struct {
        const char *why;
        int64_t N, K, rows, group;
        lq_dtype d;
    } cases[] = {
        { "rows", 5, 33, 1, 0, LQ_F32 },          { "rows of bf16", 5, 33, 1, 0, LQ_BF16 },
        { "the matrix", 7, 40, 0, 0, LQ_F16 },    { "blocks", 256, 256, 128, 128, LQ_BF16 },
        { "cut blocks", 37, 70, 16, 32, LQ_F32 },
    };
    for (size_t c = 0; c < LQ_COUNT(cases); c++) {
        const int64_t N = cases[c].N, K = cases[c].K;
        const int64_t R = cases[c].rows ? cases[c].rows : N,
                      C = cases[c].group ? cases[c].group : K;
        lq_arena a = { 0 };
        uint8_t first[1 << 17];
        for (int threads = 1; threads <= 3; threads += 2) {
            qz_out out;
            lq_err err;
            pool *p = NULL;
            float *w = lq_push(&a, (size_t)(N * K) * 4);
            uint8_t *stored = lq_push(&a, (size_t)(N * K) * 4);
            const qt_scheme s = scheme(cases[c].rows, cases[c].group);
            fill(w, N * K, c);
            for (int64_t k = 0; k < K; k++)
                w[k] = R == 1 ? 0 : w[k]; /* a row of zeros */
            lq_from_f32(stored, w, cases[c].d, (size_t)(N * K));
            lq_to_f32(w, stored, cases[c].d, (size_t)(N * K));
            CHECK(!pool_open(&p, threads, &err), "pool");
            CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "alloc");
            CHECK(!fp8_run(&out, stored, cases[c].d, p, &err), "run");
            for (int64_t i = 0; i < N * K; i++) {
                float most = 0, v;
                const int64_t r = i / K / R * R, k = i % K / C * C;
                for (int64_t y = r; y < r + R && y < N; y++)
                    for (int64_t x = k; x < k + C && x < K; x++)
                        most = fmaxf(most, fabsf(w[y * K + x]));
                v = most / 448;
                if (cases[c].d == LQ_BF16) v = lq_bf16_to_f32(lq_f32_to_bf16(v));
                if (!(v > 0)) v = 1;
                const float found = qt_scale(&out.t, i / K, i % K);
                if (i % 97 == 0)
                    CHECK(memcmp(&found, &v, 4) == 0, "%s: scale %g, expected %g", cases[c].why,
                          (double)found, (double)v);
            }
            if (threads == 1) memcpy(first, out.w[QT_CODES], (size_t)(N * K));
            CHECK(memcmp(first, out.w[QT_CODES], (size_t)(N * K)) == 0, "%s: %d threads",
                  cases[c].why, threads);
            pool_close(p);
        }
        lq_arena_free(&a);
    }
}

/* sum over rows of d H d. */
static double loss_of(const qz_out *out, const float *w, const float *H)
{
    const int64_t N = out->t.N, K = out->t.K;
    float *q = malloc((size_t)(N * K) * sizeof *q);
    double sum = 0;
    qt_dequant(q, &out->t, 0, N);
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < K; i++) {
            double dh = 0;
            for (int64_t j = 0; j < K; j++)
                dh += (double)(w[n * K + j] - q[n * K + j]) * (double)H[j * K + i];
            sum += dh * (double)(w[n * K + i] - q[n * K + i]);
        }
    free(q);
    return sum;
}

/* Inputs with a common part, so that errors can make up for each other. */
static void covariance(float *H, int64_t K)
{
    uint64_t seed = 7;
    for (int64_t t = 0; t < 2 * K; t++) {
        float v[128], common = (float)(int32_t)(uint32_t)lq_random(&seed) * 0x1p-31f;
        for (int64_t i = 0; i < K; i++)
            v[i] = (float)(int32_t)(uint32_t)lq_random(&seed) * 0x1p-31f + 2 * common;
        for (int64_t i = 0; i < K * K; i++)
            H[i] += v[i / K] * v[i % K] / (float)(2 * K);
    }
}

static void gptq_keeps_the_scales_and_loses_less(void)
{
    enum { N = 80, K = 128 };
    static const struct {
        const char *why;
        int64_t rows, group;
    } cases[] = { { "rows", 1, 0 }, { "the matrix", 0, 0 }, { "blocks", 16, 32 } };
    static float w[N * K], H[K * K];
    uint64_t seed = 3;
    for (int i = 0; i < N * K; i++)
        w[i] = (float)(int32_t)(uint32_t)lq_random(&seed) * 0x1p-31f;
    covariance(H, K);
    for (size_t c = 0; c < LQ_COUNT(cases); c++) {
        const qt_scheme s = scheme(cases[c].rows, cases[c].group);
        uint8_t first[N * K];
        for (int threads = 1; threads <= 3; threads += 2) {
            lq_arena a = { 0 };
            lq_err err = { "" };
            pool *p = NULL;
            qz_out plain, out;
            gptq_basis basis;
            gptq_report rep;
            CHECK(!pool_open(&p, threads, &err), "pool");
            lq_status st = qz_out_alloc(&plain, &s, N, K, &a, &err);
            if (!st) st = qz_out_alloc(&out, &s, N, K, &a, &err);
            if (!st) st = fp8_run(&plain, w, LQ_F32, p, &err);
            if (!st) st = fp8_scales(&out, w, LQ_F32, p, &err);
            if (!st) st = gptq_prepare(&basis, H, K, 0, true, 1, NULL, NULL, p, &err);
            CHECK(!st, "%s: %s", cases[c].why, err.msg);
            const gptq_opts o = { .spec = rtn_spec_of(&out, (grid_limits){ .narrow = true }, true),
                                  .static_groups = true,
                                  .sweeps = 4 };
            CHECK(!gptq_run(&out, &rep, w, &basis, &o, p, &err), "%s: %s", cases[c].why, err.msg);
            gptq_basis_free(&basis);
            CHECK(memcmp(out.w[QT_SCALES], plain.w[QT_SCALES], out.t.plane[QT_SCALES].bytes) == 0,
                  "%s: scales", cases[c].why);
            const double before = loss_of(&plain, w, H), after = loss_of(&out, w, H);
            CHECK(after < 0.5 * before, "%s: %g, plain %g", cases[c].why, after, before);
            CHECK(fabs(rep.loss_rtn - before) < 1e-3 * before &&
                      fabs(rep.loss - after) < 1e-2 * after,
                  "%s: said %g of %g, found %g of %g", cases[c].why, rep.loss, rep.loss_rtn, after,
                  before);
            if (threads == 1) memcpy(first, out.w[QT_CODES], sizeof first);
            CHECK(memcmp(first, out.w[QT_CODES], sizeof first) == 0, "%s: %d threads", cases[c].why,
                  threads);
            pool_close(p);
            lq_arena_free(&a);
        }
    }
}

int main(int argc, char **argv)
{
    RUN(codes_are_the_nearest);
    RUN(scales_are_the_largest_of_what_shares_them);
    RUN(gptq_keeps_the_scales_and_loses_less);
    return check_end();
}
