/* tests/unit/test_gemm.c - products over tiles against double precision. */
#include "calib/gemm.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <math.h>
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

/* What the whole product has: tiles that are not above the diagonal to the bit, the others as they were; and all of it,
 * within the sums' rounding, once mirrored. */
TEST(a_symmetric_product_is_made_once_and_mirrored)
{
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (size_t i = 0; i < LQ_COUNT(shapes); i++) {
        const int64_t M = shapes[i].M, R = 50;
        const gemm_tiles cut = gemm_cut(M, M);
        uint64_t seed = i;
        float *x = calloc((size_t)(R * M + 3 * M * M), sizeof *x), *all = x + R * M;
        float *lower = all + M * M, *rest = lower + M * M;
        const gemm_in a = { x, M, true }, b = { x, M, false };
        int64_t made = 0, bad = 0;
        fill_row(x, R * M, &seed);
        gemm_run(all, M, a, b, M, M, R, 0, p);
        /* and of another, which has no tile of the first half */
        const gemm_square both[] = { { lower, x, M, 0, cut.n }, { rest, x, M, cut.n / 2, cut.n } };
        gemm_lower(both, 2, M, M, R, 1, p);
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < M; n++) {
                const bool above = n / cut.side > m / cut.side;
                made += !above && m % cut.side == 0 && n % cut.side == 0;
                bad += lower[m * M + n] != (above ? 0 : all[m * M + n]);
                const bool ours = m / cut.side * cut.across + n / cut.side >= cut.n / 2;
                bad += rest[m * M + n] != (ours ? lower[m * M + n] : 0);
            }
        CHECK(!bad, "%s: %lld values", shapes[i].why, (long long)bad);
        CHECK(fabs(gemm_lower_part(M) - (double)made / (double)cut.n) < 1e-12, "%s: %g",
              shapes[i].why, gemm_lower_part(M));
        gemm_mirror(lower, M, M);
        for (int64_t m = 0; m < M * M; m++) {
            const double size = sqrt((double)all[m / M * (M + 1)] * (double)all[m % M * (M + 1)]);
            bad += fabs((double)lower[m] - (double)all[m]) > 2 * (double)R * 0x1p-24 * size;
        }
        CHECK(!bad, "%s: %lld values once mirrored", shapes[i].why, (long long)bad);
        free(x);
    }
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(a_symmetric_product_is_made_once_and_mirrored);
    RUN(a_quadratic_form_takes_half_of_h_and_is_whole);
    return check_end();
}
