/* tests/unit/test_sensitivity.c - predicted effects: against the formula in double, and their order. */
#include "quantize/mixed/sensitivity.h"

#include <math.h>
#include <stdlib.h>

#include "quantize/methods/rtn.h"
#include "tests/support/check.h"

enum { N = 300, K = 96, BLOCKS = 2, FB = FISHER_BLOCK }; /* a block of rows and a tail */

static float W[N * K], H[K * K], G[BLOCKS * FB * FB], imp[K];
static pool *p;

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed / 2147483648.0f;
}

/* A covariance of n values out of 2n vectors with a common part. */
static void covariance(float *c, int n, int ld, uint32_t seed)
{
    float v[FB];
    for (int t = 0; t < 2 * n; t++) {
        const float common = noise(&seed);
        for (int i = 0; i < n; i++)
            v[i] = noise(&seed) + common;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                c[i * ld + j] += v[i] * v[j] / (float)(2 * n);
    }
}

static void make_data(void)
{
    uint32_t seed = 1;
    for (int i = 0; i < N * K; i++)
        W[i] = noise(&seed);
    covariance(H, K, K, 2);
    covariance(G, FB, FB, 3);
    covariance(G + FB * FB, N - FB, FB, 4);
    for (int k = 0; k < K; k++)
        imp[k] = H[k * K + k];
}

static qt_scheme scheme(int bits, int64_t group)
{
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = bits,
                        .group = group,
                        .zero = QT_ZERO_INT,
                        .zbits = bits,
                        .scale_dtype = LQ_F16 };
}

static qt_tensor weight(void)
{
    qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = N, .K = K };
    t.plane[QT_CODES] = (qt_span){ W, sizeof W };
    return t;
}

/* 1/2 tr(G D H D^T) of rounding to nearest, in double; without H or G: the identity. */
static double by_formula(const qt_scheme *s, const float *h, const float *g)
{
    lq_arena a = { 0 };
    qz_out q;
    float *d = malloc(N * K * sizeof *d);
    double *dh = calloc(N * K, sizeof *dh), sum = 0;
    const grid_spec spec = rtn_spec(s, GRID_FREE, true);
    CHECK(!qz_out_alloc(&q, s, N, K, &a, NULL), "memory");
    CHECK(!rtn_run(&q, W, LQ_F32, h ? imp : NULL, &spec, p, NULL), "rounding");
    qt_dequant(d, &q.t, 0, N);
    for (int i = 0; i < N * K; i++)
        d[i] = W[i] - d[i];
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < K; j++)
                dh[n * K + k] += (double)d[n * K + j] * (h ? (double)h[j * K + k] : j == k);
    for (int n = 0; n < N; n++)
        for (int m = n / FB * FB; m < N && m < n / FB * FB + FB; m++) {
            if (!g && m != n) continue;
            double pair = 0;
            for (int k = 0; k < K; k++)
                pair += dh[n * K + k] * (double)d[m * K + k];
            sum += pair * (g ? (double)g[n * FB + m % FB] : 1);
        }
    lq_arena_free(&a);
    free(dh);
    free(d);
    return sum / 2;
}

TEST(effects_are_those_of_the_formula)
{
    const struct {
        const char *why;
        const float *H, *G;
    } cases[] = { { "the weights alone", NULL, NULL },
                  { "inputs", H, NULL },
                  { "inputs and answers", H, G } };
    const qt_scheme s[] = { scheme(2, 32), scheme(3, 96), { .kind = QT_DENSE }, scheme(4, 48) };
    const qt_tensor w = weight();
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const sensitivity_opts o = { .H = cases[i].H, .G = cases[i].G, .nearest = true };
        double effect[LQ_COUNT(s)] = { 0 };
        lq_status st = sensitivity_of(effect, s, LQ_COUNT(s), &w, &o, p, NULL);
        CHECK(!st, "%s: status %d", cases[i].why, st);
        for (size_t k = 0; k < LQ_COUNT(s); k++) {
            double want = s[k].kind == QT_DENSE ? 0 : by_formula(&s[k], cases[i].H, cases[i].G);
            /* f32 sums of at most K * FB products, much cancelling: 1e-4 is far above */
            CHECK(fabs(effect[k] - want) <= 1e-4 * want, "%s, scheme %zu: %.9g, expected %.9g",
                  cases[i].why, k, effect[k], want);
        }
    }
}

TEST(feedback_lowers_them_and_bits_and_small_groups_too)
{
    const qt_scheme s[] = { scheme(2, 96), scheme(2, 32), scheme(3, 96), scheme(4, 96),
                            scheme(8, 96) };
    const qt_tensor w = weight();
    const sensitivity_opts near = { .H = H, .nearest = true }, gptq = { .H = H };
    double a[LQ_COUNT(s)] = { 0 }, b[LQ_COUNT(s)] = { 0 };
    CHECK(!sensitivity_of(a, s, LQ_COUNT(s), &w, &near, p, NULL), "to nearest");
    CHECK(!sensitivity_of(b, s, LQ_COUNT(s), &w, &gptq, p, NULL), "with feedback");
    for (size_t i = 0; i < LQ_COUNT(s); i++)
        CHECK(b[i] < 0.9 * a[i], "scheme %zu: %g with feedback, %g without", i, b[i], a[i]);
    for (size_t i = 1; i < LQ_COUNT(s); i++) {
        CHECK(b[i] < b[0], "scheme %zu: %g, of the coarsest %g", i, b[i], b[0]);
        if (i > 2) CHECK(b[i] < b[i - 1], "scheme %zu: %g, before it %g", i, b[i], b[i - 1]);
    }
}

TEST(they_do_not_depend_on_threads)
{
    const qt_scheme s[] = { scheme(2, 32), scheme(3, 96), scheme(4, 48) };
    const qt_tensor w = weight();
    const sensitivity_opts o = { .H = H, .G = G };
    double first[LQ_COUNT(s)] = { 0 };
    CHECK(!sensitivity_of(first, s, LQ_COUNT(s), &w, &o, NULL, NULL), "one thread");
    for (int threads = 2; threads <= 8; threads += 3) {
        pool *q;
        double effect[LQ_COUNT(s)] = { 0 };
        CHECK(!pool_open(&q, threads, NULL), "threads");
        CHECK(!sensitivity_of(effect, s, LQ_COUNT(s), &w, &o, q, NULL), "%d threads", threads);
        CHECK(memcmp(effect, first, sizeof first) == 0, "%d threads: other figures", threads);
        pool_close(q);
    }
}

TEST(inputs_that_cannot_be_factored_mean_rounding_to_nearest)
{
    const qt_scheme s = scheme(3, 32);
    const qt_tensor w = weight();
    static float bad[K * K];
    for (int k = 0; k < K; k++)
        bad[k * K + (k + 1) % K] = 1; /* no diagonal: not positive definite at any damping */
    const sensitivity_opts near = { .H = bad, .nearest = true }, gptq = { .H = bad };
    double a = 0, b = 0;
    CHECK(!sensitivity_of(&a, &s, 1, &w, &near, p, NULL), "to nearest");
    CHECK(!sensitivity_of(&b, &s, 1, &w, &gptq, p, NULL), "with feedback");
    CHECK(memcmp(&a, &b, sizeof a) == 0, "%g and %g", a, b);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (pool_open(&p, 2, &err)) return 1;
    make_data();
    RUN(effects_are_those_of_the_formula);
    RUN(feedback_lowers_them_and_bits_and_small_groups_too);
    RUN(they_do_not_depend_on_threads);
    RUN(inputs_that_cannot_be_factored_mean_rounding_to_nearest);
    pool_close(p);
    return check_end();
}
