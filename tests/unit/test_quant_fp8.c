/* tests/unit/test_quant_fp8.c - rounding to 8-bit floats: codes, scales, blocks, threads. */
#include "base/random.h"
#include "formats/tensor/qtensor.h"
#include "quantize/methods/fp8.h"
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

int main(int argc, char **argv)
{
    RUN(codes_are_the_nearest);
    RUN(scales_are_the_largest_of_what_shares_them);
    return check_end();
}
