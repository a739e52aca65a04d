/* quantize/methods/cholesky.h: U^T U is the inverse, whatever the size and the number of threads and ranks. */
#include "quantize/methods/cholesky.h"

#include <stdlib.h>

#include "tests/support/check.h"
#include "tests/support/ranks.h"

static const int64_t sizes[] = { 1, 2, 127, 128, 129, 300 };

/* H = X^T X / rows + I / 4: eigenvalues in 0.25 .. 4 or so. */
static void fill(float *H, int64_t K)
{
    uint32_t seed = 12345;
    const int64_t rows = 2 * K + 3;
    float *x = malloc((size_t)(rows * K) * sizeof *x); /* [K, rows] */
    for (int64_t i = 0; i < rows * K; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i % K * rows + i / K] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = i == j ? 0.25 * (double)rows : 0;
            for (int64_t r = 0; r < rows; r++)
                sum += (double)x[i * rows + r] * (double)x[j * rows + r];
            H[i * K + j] = H[j * K + i] = (float)(sum / (double)rows);
        }
    free(x);
}

TEST(the_factor_squares_to_the_inverse)
{
    for (size_t s = 0; s < LQ_COUNT(sizes); s++) {
        const int64_t K = sizes[s];
        const size_t n = (size_t)(K * K);
        float *H = malloc(n * sizeof *H), *U = malloc(n * sizeof *U), *V = malloc(n * sizeof *V);
        int32_t *perm = malloc((size_t)K * sizeof *perm);
        pool *p = NULL;
        lq_err err = { "" };
        fill(H, K);
        for (int64_t i = 0; i < K; i++)
            perm[i] = (int32_t)(K - 1 - i);
        CHECK(!pool_open(&p, 3, &err), "%s", err.msg);
        CHECK(!cholesky_upper(U, H, perm, K, 0.01, NULL, NULL, p, &err), "%s", err.msg);
        CHECK(!cholesky_upper(V, H, perm, K, 0.01, NULL, NULL, NULL, &err), "%s", err.msg);
        CHECK(memcmp(U, V, n * sizeof *U) == 0, "K = %lld: threads change it", (long long)K);
        /* U H U^T = I. U and H lie in f32: 2^-23 of the sum of K terms of |U H| |U|, below 10. */
        double worst = 0;
        for (int64_t i = 0; i < K; i++) {
            double *uh = calloc((size_t)K, sizeof *uh);
            for (int64_t k = 0; k < K; k++)
                for (int64_t j = 0; j < K && U[i * K + k] != 0; j++) {
                    double h = (double)H[perm[k] * K + perm[j]] + (k == j ? 0.01 : 0);
                    uh[j] += (double)U[i * K + k] * h;
                }
            for (int64_t l = 0; l < K; l++) {
                double sum = l == i ? -1 : 0;
                for (int64_t j = 0; j < K; j++)
                    sum += uh[j] * (double)U[l * K + j];
                worst = fabs(sum) > worst ? fabs(sum) : worst;
                if (l < i) CHECK(U[i * K + l] == 0, "below the diagonal");
            }
            free(uh);
        }
        CHECK(worst < 10 * 0x1p-23 * 10, "K = %lld: off by %g", (long long)K, worst);
        pool_close(p);
        free(perm);
        free(V);
        free(U);
        free(H);
    }
}

TEST(what_is_not_positive_definite_is_refused)
{
    enum { K = 140 };
    static float H[K * K], U[K * K];
    int32_t perm[K];
    lq_err err = { "" };
    for (int i = 0; i < K; i++) {
        perm[i] = i;
        H[i * K + i] = 1;
    }
    H[1] = H[K] = 2; /* 1 2; 2 1 */
    CHECK(cholesky_upper(U, H, perm, K, 0.01, NULL, NULL, NULL, &err) == LQ_ECHECK, "taken");
}

/* One tile, fewer rows of tiles than ranks, several for each; on 2 threads. The last is refused by all. */
static const int64_t of_ranks[] = { 100, 300, 1100, 700 };
enum { OF_RANKS = LQ_COUNT(of_ranks), REFUSED = OF_RANKS - 1 };
static struct {
    float *H, *U; /* U: by one process */
    int32_t *perm;
} made[OF_RANKS];

/* Before the ranks begin, which have it then. */
static void make_of_one(void)
{
    lq_err err;
    for (size_t s = 0; s < OF_RANKS; s++) {
        const size_t k = (size_t)of_ranks[s], n = k * k;
        float *H = made[s].H = malloc(n * sizeof *H);
        made[s].U = malloc(n * sizeof *H);
        made[s].perm = malloc(k * sizeof *made[s].perm);
        fill(H, of_ranks[s]);
        if (s == REFUSED) H[1] = H[k] = 2 + H[0] + H[k + 1];
        for (size_t i = 0; i < k; i++)
            made[s].perm[i] = (int32_t)(k - 1 - i);
        const lq_status one =
            cholesky_upper(made[s].U, H, made[s].perm, of_ranks[s], 0.01, NULL, NULL, NULL, &err);
        CHECK(one == (s == REFUSED ? LQ_ECHECK : LQ_OK), "%zu: %d", k, one);
    }
}

static int on_ranks(comm *c)
{
    pool *p = NULL;
    lq_err err;
    if (pool_open(&p, 2, &err)) return 1;
    for (size_t s = 0; s < OF_RANKS; s++) {
        const size_t n = (size_t)(of_ranks[s] * of_ranks[s]);
        float *U = malloc(n * sizeof *U);
        for (size_t i = 0; i < n; i++) /* each element is written */
            U[i] = (float)comm_rank(c) + 7;
        const lq_status all =
            cholesky_upper(U, made[s].H, made[s].perm, of_ranks[s], 0.01, NULL, c, p, &err);
        if (all != (s == REFUSED ? LQ_ECHECK : LQ_OK)) return 2 + (int)s;
        if (!all && memcmp(U, made[s].U, n * sizeof *U) != 0) return 12 + (int)s;
        free(U);
    }
    pool_close(p);
    return 0;
}

TEST(ranks_do_not_change_a_bit)
{
    static const int ranks[] = { 2, 3, 4, 8 };
    make_of_one();
    for (size_t i = 0; i < LQ_COUNT(ranks); i++) {
        int codes[RANKS_MOST];
        as_ranks(ranks[i], on_ranks, codes);
        for (int k = 0; k < ranks[i]; k++)
            CHECK(codes[k] == 0, "rank %d of %d: step %d", k, ranks[i], codes[k]);
    }
    for (size_t s = 0; s < OF_RANKS; s++) {
        free(made[s].perm);
        free(made[s].U);
        free(made[s].H);
    }
}

int main(int argc, char **argv)
{
    RUN(the_factor_squares_to_the_inverse);
    RUN(what_is_not_positive_definite_is_refused);
    RUN(ranks_do_not_change_a_bit);
    return check_end();
}
