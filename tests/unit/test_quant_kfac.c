/* tests/unit/test_quant_kfac.c - rounding with both sides' curvature: against GPTQ on the same loss. */
#include "quantize/methods/fp4.h"
#include "quantize/methods/kfac.h"
#include "quantize/methods/methods.h"
#include "quantize/methods/rtn.h"
#include "quantize/methods/rules.h"
#include "tests/support/check.h"
#include "tests/support/noise.h"

#include <math.h>
#include <stdlib.h>

enum { N = 300, K = 96, G = 32, BLOCKS = 2, FB = KFAC_BLOCK }; /* a block of rows and a tail */

static float W[N * K], H[K * K], Gm[BLOCKS * FB * FB];
static pool *p;

/* A covariance of n values out of 2n vectors with a common part, so that neighbours matter. */
static void covariance(float *c, int n, int ld, uint32_t seed)
{
    float *v = malloc((size_t)n * sizeof *v);
    for (int t = 0; t < 2 * n; t++) {
        float common = noise(&seed);
        for (int i = 0; i < n; i++)
            v[i] = (noise(&seed) + 2 * common) * (i % 7 ? 1 : 3);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                c[i * ld + j] += v[i] * v[j] / (float)(2 * n);
    }
    free(v);
}

static void make_data(void)
{
    uint32_t seed = 1;
    for (int i = 0; i < N * K; i++)
        W[i] = noise(&seed);
    covariance(H, K, K, 2);
    covariance(Gm, FB, FB, 3);
    covariance(Gm + FB * FB, N - FB, FB, 4);
}

static qt_scheme scheme(int bits)
{
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = bits,
                        .group = G,
                        .zero = QT_ZERO_INT,
                        .zbits = bits,
                        .scale_dtype = LQ_F16 };
}

/* tr(G D H D^T) in double. */
static double loss_of(const qt_tensor *t)
{
    float *q = malloc(N * K * sizeof *q);
    double *dh = malloc(N * K * sizeof *dh), sum = 0;
    qt_dequant(q, t, 0, N);
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) {
            double s = 0;
            for (int j = 0; j < K; j++)
                s += (double)(W[n * K + j] - q[n * K + j]) * (double)H[j * K + k];
            dh[n * K + k] = s;
        }
    for (int n = 0; n < N; n++)
        for (int m = n / FB * FB; m < N && m < n / FB * FB + FB; m++) {
            double s = 0;
            for (int k = 0; k < K; k++)
                s += (double)(W[n * K + k] - q[n * K + k]) * dh[m * K + k];
            sum += s * (double)Gm[n / FB * FB * FB + n % FB * FB + m % FB];
        }
    free(dh);
    free(q);
    return sum;
}

static lq_status kfac_of(qz_out *out, gptq_report *rep, const float *h, const float *curvature,
                         const kfac_opts *o, pool *threads, lq_err *err)
{
    gptq_basis b;
    lq_status s = gptq_prepare(&b, h, K, 0, true, 1, NULL, NULL, threads, err);
    if (s) return s;
    s = kfac_run(out, rep, W, &b, curvature, o, threads, err);
    gptq_basis_free(&b);
    return s;
}

static void run_kfac(qz_out *out, gptq_report *rep, lq_arena *a, int bits, int rounds,
                     const float *curvature, pool *threads)
{
    qt_scheme s = scheme(bits);
    lq_err err = { "" };
    kfac_opts o = { .spec = { bits, GRID_ASYM, LQ_F16, true }, .sweeps = 4, .rounds = rounds };
    lq_status st = qz_out_alloc(out, &s, N, K, a, &err);
    if (!st) st = kfac_of(out, rep, H, curvature, &o, threads, &err);
    CHECK(!st, "%s", err.msg);
}

TEST(it_beats_gptq_on_the_loss_of_both_sides)
{
    for (int bits = 2; bits <= 4; bits++) {
        lq_arena a = { 0 };
        qz_out one, both, refitted;
        gptq_report rep;
        lq_err err = { "" };
        qt_scheme s = scheme(bits);
        gptq_opts o = { .spec = { bits, GRID_ASYM, LQ_F16, true },
                        .static_groups = true,
                        .sweeps = 4 };
        gptq_basis basis;
        lq_status st = qz_out_alloc(&one, &s, N, K, &a, &err);
        if (!st) st = gptq_prepare(&basis, H, K, 0, true, 1, NULL, NULL, p, &err);
        if (!st) st = gptq_run(&one, &rep, W, &basis, &o, p, &err);
        if (!st) gptq_basis_free(&basis);
        CHECK(!st, "%s", err.msg);
        run_kfac(&both, &rep, &a, bits, 0, Gm, p);
        CHECK(!rep.fallback && rep.loss > 0 && rep.loss < rep.loss_rtn, "%g, rtn %g", rep.loss,
              rep.loss_rtn);
        run_kfac(&refitted, &rep, &a, bits, 2, Gm, p);
        double l1 = loss_of(&one.t), l2 = loss_of(&both.t), l3 = loss_of(&refitted.t);
        CHECK(l2 < l1, "%d bits: %g, gptq %g", bits, l2, l1);
        CHECK(l3 < l2, "%d bits: refitted %g, before %g", bits, l3, l2);
        lq_arena_free(&a);
    }
}

/* Blocks are chosen by the loss with G as damped: 0.05 of its diagonal's mean added. */
static double damped_loss_of(const qt_tensor *t)
{
    static float keep[BLOCKS * FB * FB];
    memcpy(keep, Gm, sizeof keep);
    for (int b = 0; b < BLOCKS; b++) {
        float *g = Gm + b * FB * FB;
        int rows = N - b * FB < FB ? N - b * FB : FB;
        double mean = 0;
        for (int i = 0; i < rows; i++)
            mean += (double)g[i * FB + i] / rows;
        for (int i = 0; i < rows; i++)
            g[i * FB + i] += (float)(0.05 * mean);
    }
    double loss = loss_of(t);
    memcpy(Gm, keep, sizeof keep);
    return loss;
}

/* With all other values held the damped loss is least that far from a code's value. */
TEST(what_is_left_is_the_way_to_the_best_value_beside_the_others)
{
    static int8_t rest[N * K];
    static float q[N * K];
    for (int bits = 2; bits <= 4; bits++) {
        lq_arena a = { 0 };
        qz_out out;
        gptq_report rep;
        lq_err err = { "" };
        qt_scheme s = scheme(bits);
        kfac_opts o = {
            .spec = { bits, GRID_ASYM, LQ_F16, true }, .sweeps = 4, .rounds = 1, .rest = rest
        };
        lq_status st = qz_out_alloc(&out, &s, N, K, &a, &err);
        if (!st) st = kfac_of(&out, &rep, H, Gm, &o, p, &err);
        CHECK(!st && !rep.fallback, "%s", err.msg);
        qt_dequant(q, &out.t, 0, N);
        double worst = 0;
        for (int i = 0; i < N * K; i += 37) {
            const int n = i / K, k = i % K, first = n / FB * FB;
            const int rows = N - first < FB ? N - first : FB;
            const float *g = Gm + first * FB;
            double mean = 0, slope = 0;
            float scale;
            for (int m = 0; m < rows; m++)
                mean += (double)g[m * FB + m] / rows;
            for (int m = 0; m < rows; m++)
                for (int j = 0; j < K; j++)
                    slope +=
                        ((double)g[(n - first) * FB + m] + (first + m == n ? 0.05 * mean : 0)) *
                        (double)(W[(first + m) * K + j] - q[(first + m) * K + j]) *
                        (double)H[j * K + k];
            lq_to_f32(&scale, (const uint8_t *)out.t.plane[QT_SCALES].data + 2 * (i / G), LQ_F16,
                      1);
            double way = slope / (((double)g[(n - first) * (FB + 1)] + 0.05 * mean) *
                                  (double)H[k * K + k] * (double)scale);
            way = way > 127.0 / 64 ? 127.0 / 64 : way < -127.0 / 64 ? -127.0 / 64 : way;
            worst = fmax(worst, fabs(way - rest[i] / 64.0));
        }
        CHECK(worst <= 0.51 / 64, "%d bits: %g steps off", bits, worst);
        lq_arena_free(&a);
    }
}

/* Weights in two heaps, for which ends drawn in cost little. */
TEST(each_block_keeps_the_best_of_its_grids)
{
    static float keep[N * K];
    memcpy(keep, W, sizeof keep);
    for (uint32_t seed = 1; seed <= 6; seed++) {
        lq_arena a = { 0 };
        qz_out q, covering, nearest;
        gptq_report rep;
        lq_err err = { "" };
        uint32_t draw = seed;
        const int bits = 2 + (int)seed % 3;
        qt_scheme s = scheme(bits);
        grid_spec spec = { .bits = bits, .mode = GRID_ASYM, .scale_dtype = LQ_F16 };
        kfac_opts o = { .spec = spec, .sweeps = 4, .rounds = 1 };
        for (int i = 0; i < N * K; i++)
            W[i] = noise(&draw) > 0 ? 1 + 0.2f * noise(&draw) : -1 + 0.2f * noise(&draw);
        lq_status st = qz_out_alloc(&covering, &s, N, K, &a, &err);
        if (!st) st = qz_out_alloc(&nearest, &s, N, K, &a, &err);
        if (!st) st = kfac_of(&covering, &rep, H, Gm, &o, p, &err);
        if (!st) st = rtn_run(&nearest, W, LQ_F32, NULL, &spec, p, &err);
        CHECK(!st, "%s", err.msg);
        run_kfac(&q, &rep, &a, bits, 1, Gm, p);
        double l = damped_loss_of(&q.t), c = damped_loss_of(&covering.t);
        CHECK(l <= c * (1 + 1e-5), "%d bits: %g, grids that cover all %g", bits, l, c);
        CHECK(l < damped_loss_of(&nearest.t), "%d bits: no better than to nearest", bits);
        lq_arena_free(&a);
    }
    memcpy(W, keep, sizeof keep);
}

/* A group's scale is one of few values: without rounds the one of least error to nearest. */
TEST(scales_of_4_bit_floats_are_chosen_with_their_codes)
{
    static const char *const names[] = { "mxfp4", "nvfp4" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        lq_arena a = { 0 };
        lq_err err = { "" };
        const qz_method *m;
        qt_scheme s;
        gptq_report rep;
        double loss[2] = { 0, 0 };
        lq_status st = qz_method_find(&m, "auto", &err);
        if (!st) st = qz_scheme_asked(&s, names[i], "--to", m, &err);
        for (int rounds = 0; rounds < 2 && !st; rounds++) {
            qz_out out;
            const float second = fp4_tensor_scale(1);
            kfac_opts o = { .spec = fp4_spec(&s, true), .sweeps = 4, .rounds = rounds };
            st = qz_out_alloc(&out, &s, N, K, &a, &err);
            if (!st && out.w[QT_SCALES2]) {
                memcpy(out.w[QT_SCALES2], &second, sizeof second);
                o.spec.tensor_scale = second;
            }
            if (!st) st = kfac_of(&out, &rep, H, Gm, &o, p, &err);
            if (!st) loss[rounds] = damped_loss_of(&out.t);
        }
        CHECK(!st && loss[1] < loss[0], "%s: %g, without %g; %s", names[i], loss[1], loss[0],
              err.msg);
        lq_arena_free(&a);
    }
}

TEST(its_bytes_do_not_depend_on_threads)
{
    lq_arena a = { 0 };
    qz_out first, out;
    gptq_report rep;
    static const int threads[] = { 1, 2, 5 };
    for (size_t i = 0; i < LQ_COUNT(threads); i++) {
        pool *q = NULL;
        lq_err err = { "" };
        CHECK(!pool_open(&q, threads[i], &err), "%s", err.msg);
        run_kfac(i ? &out : &first, &rep, &a, 3, 1, Gm, q);
        for (int pl = 0; i && pl < QT_N_PLANES; pl++)
            CHECK(first.t.plane[pl].bytes == out.t.plane[pl].bytes &&
                      (!first.t.plane[pl].bytes ||
                       !memcmp(first.t.plane[pl].data, out.t.plane[pl].data,
                               first.t.plane[pl].bytes)),
                  "%d threads: %s", threads[i], qt_plane_text((qt_plane)pl));
        pool_close(q);
    }
    lq_arena_free(&a);
}

TEST(curvature_of_no_use_means_rounding_to_nearest_and_is_said)
{
    static float zero[BLOCKS * FB * FB], bad[BLOCKS * FB * FB];
    const struct {
        const char *why;
        const float *g;
    } t[] = { { "no gradient ever came", zero }, { "not a number", bad } };
    memcpy(bad, Gm, sizeof bad);
    bad[FB + 1] = NAN;
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_arena a = { 0 };
        qz_out out;
        gptq_report rep;
        float row[K];
        run_kfac(&out, &rep, &a, 4, 1, t[i].g, p);
        CHECK(rep.fallback, "%s: not said", t[i].why);
        double worst = 0;
        for (int n = 0; n < N; n++) {
            qt_dequant(row, &out.t, n, n + 1);
            for (int k = 0; k < K; k++)
                worst = fmax(worst, fabs((double)(row[k] - W[n * K + k])));
        }
        /* Values in -1..1: half a step of 2/15, drawn in to at most 0.4125. */
        CHECK(worst < 0.7, "%s: off by %g", t[i].why, worst);
        lq_arena_free(&a);
    }
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (pool_open(&p, 2, &err)) return 1;
    make_data();
    RUN(it_beats_gptq_on_the_loss_of_both_sides);
    RUN(what_is_left_is_the_way_to_the_best_value_beside_the_others);
    RUN(each_block_keeps_the_best_of_its_grids);
    RUN(scales_of_4_bit_floats_are_chosen_with_their_codes);
    RUN(its_bytes_do_not_depend_on_threads);
    RUN(curvature_of_no_use_means_rounding_to_nearest_and_is_said);
    pool_close(p);
    return check_end();
}
