/* quantize/methods/fp4.h: what is stored is what was chosen, plain scales are the published ones, a search is no worse. */
#include "quantize/methods/fp4.h"
#include "quantize/methods/kinds.h"
#include "quantize/methods/methods.h"
#include "quantize/methods/rules.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

enum { N = 16, K = 128 };

static const char *const names[] = { "mxfp4", "nvfp4" };

static double error_of(qz_out *out, const char *name, const float *w, bool clip, lq_arena *a)
{
    qz_opts o = { .clip = clip };
    qt_scheme s;
    lq_err err = { "" };
    float q[K];
    double e = 0;
    CHECK(!qz_method_find(&o.method, "rtn", &err), "%s", err.msg);
    CHECK(!qz_scheme_asked(&s, name, "--to", o.method, &err), "%s", err.msg);
    CHECK(!qz_out_alloc(out, &s, N, K, a, &err), "%s", err.msg);
    CHECK(!qz_round_weights(out, &o, w, LQ_F32, NULL, &err), "%s", err.msg);
    CHECK(!qt_check_view(&out->t, &err), "%s", err.msg);
    for (int64_t n = 0; n < N; n++) {
        qt_dequant(q, &out->t, n, n + 1);
        for (int k = 0; k < K; k++)
            e += ((double)w[n * K + k] - (double)q[k]) * ((double)w[n * K + k] - (double)q[k]);
    }
    return e;
}

TEST(a_search_is_no_worse_and_plain_values_are_nearest)
{
    float w[N * K];
    uint64_t seed = 4;
    fill_row(w, N * K, &seed);
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        lq_arena a = { 0 };
        qz_out plain, sought;
        const double e0 = error_of(&plain, names[i], w, false, &a);
        const double e1 = error_of(&sought, names[i], w, true, &a);
        CHECK(e1 < e0, "%s: %g, plain %g", names[i], e1, e0);
        for (int64_t n = 0; n < N; n++) {
            float q[K];
            qt_dequant(q, &plain.t, n, n + 1);
            for (int k = 0; k < K; k++) {
                const float s = qt_scale(&plain.t, n, k);
                double least = INFINITY;
                for (int c = 0; c < 16; c++)
                    least = fmin(least, fabs((double)w[n * K + k] - (double)(qt_e2m1[c] * s)));
                const double e = fabs((double)w[n * K + k] - (double)q[k]);
                CHECK(e <= least + 1e-7, "%s[%d]: off by %g, nearest %g", names[i], k, e, least);
            }
        }
        lq_arena_free(&a);
    }
}

/* absmax 3: MX's rule gives 2^(1 - 2); of NVFP4 the whole's scale is 448 * 6 / 3, a group of half that 224. */
TEST(plain_scales_are_the_published_ones)
{
    float w[N * K] = { 0 };
    lq_arena a = { 0 };
    qz_out mx, nv;
    w[0] = 3;
    w[20] = -1.5f;
    CHECK(error_of(&mx, "mxfp4", w, false, &a) < 1e-12, "exact");
    CHECK(error_of(&nv, "nvfp4", w, false, &a) < 1e-12, "exact");
    CHECK(qt_scale(&mx.t, 0, 0) == 0.5f, "%g", (double)qt_scale(&mx.t, 0, 0));
    float whole;
    memcpy(&whole, nv.w[QT_SCALES2], sizeof whole);
    CHECK(whole == 896, "%g", (double)whole);
    const uint8_t *s = nv.w[QT_SCALES];
    CHECK(lq_e4m3_to_f32(s[0]) == 448 && lq_e4m3_to_f32(s[1]) == 224, "%d, %d", s[0], s[1]);
    lq_arena_free(&a);
}

TEST(odd_groups_stay_finite)
{
    float w[N * K];
    uint64_t seed = 5;
    fill_row(w, N * K, &seed);
    for (int k = 0; k < K; k++) {
        w[k] = 0;
        w[K + k] *= 1e-30f;
        w[2 * K + k] *= 1e20f;
        w[3 * K + k] = 0.3f;
    }
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        lq_arena a = { 0 };
        qz_out out;
        CHECK(isfinite(error_of(&out, names[i], w, true, &a)), "%s", names[i]);
        float q[K];
        qt_dequant(q, &out.t, 0, 1);
        for (int k = 0; k < K; k++)
            CHECK(q[k] == 0, "%s: %g for 0", names[i], (double)q[k]);
        lq_arena_free(&a);
    }
}

int main(int argc, char **argv)
{
    RUN(a_search_is_no_worse_and_plain_values_are_nearest);
    RUN(plain_scales_are_the_published_ones);
    RUN(odd_groups_stay_finite);
    return check_end();
}
