/* tests/unit/test_gemm.c - products over tiles against double precision. */
#include "calib/gemm.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <stdlib.h>

static const struct {
    const char *why;
    int64_t M, K;
} shapes[] = {
    { "one row, one input", 1, 1 },
    { "less than a tile", 7, 100 },
    { "a tile", 128, 256 },
    { "a tile and one", 129, 257 },
    { "large tiles and a tail", 1100, 1030 },
};

TEST(a_quadratic_form_takes_half_of_h_and_is_whole)
{
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (size_t i = 0; i < LQ_COUNT(shapes); i++) {
        const int64_t M = shapes[i].M, K = shapes[i].K;
        uint64_t seed = i;
        float *D = calloc((size_t)(2 * M * K), sizeof *D), *G = D + M * K;
        float *H = calloc((size_t)(K * K), sizeof *H);
        double *sums = calloc((size_t)(2 * M), sizeof *sums), *alone = sums + M;
        fill_row(D, M * K, &seed);
        for (int64_t k = 0; k < K; k++) {
            fill_row(H + k * K, k + 1, &seed);
            for (int64_t j = 0; j < k; j++)
                H[j * K + k] = H[k * K + j];
        }
        gemm_quadratic(sums, D, G, H, M, K, p);
        gemm_quadratic(alone, D, G, H, M, K, NULL);
        CHECK(memcmp(sums, alone, (size_t)M * sizeof *sums) == 0, "%s: threads", shapes[i].why);
        for (int64_t m = 0; m < M; m += M / 3 + 1) {
            double want = 0, abs = 0;
            for (int64_t k = 0; k < K; k++)
                for (int64_t j = 0; j < K; j++) {
                    const double x =
                        (double)D[m * K + k] * (double)H[k * K + j] * (double)D[m * K + j];
                    want += x;
                    abs += fabs(x);
                }
            /* an f32 sum of K products, each of them rounded: 2 K 2^-24 at most */
            CHECK(fabs(sums[m] - want) <= 2 * (double)K * 0x1p-24 * abs,
                  "%s: row %lld: %.9g, expected %.9g", shapes[i].why, (long long)m, sums[m], want);
        }
        free(sums);
        free(H);
        free(D);
    }
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(a_quadratic_form_takes_half_of_h_and_is_whole);
    return check_end();
}
