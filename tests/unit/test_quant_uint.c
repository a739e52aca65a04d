/* tests/unit/test_quant_uint.c - rounding to nearest and GPTQ on uniform grids, against plain numpy. */
#include "formats/hf/safetensors.h"
#include "quantize/methods/gptq.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    int bits;
    grid_mode mode;
    int group;
} cases[] = {
    { "u4a", 4, GRID_ASYM, 32 }, { "u4s", 4, GRID_SYM, 48 },  { "u4f", 4, GRID_SYM_FULL, 96 },
    { "u3a", 3, GRID_ASYM, 24 }, { "u2a", 2, GRID_ASYM, 16 }, { "u8s", 8, GRID_SYM, 96 },
};

static qt_scheme scheme_of(size_t i)
{
    bool asym = cases[i].mode == GRID_ASYM;
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = cases[i].bits,
                        .group = cases[i].group,
                        .zero = asym ? QT_ZERO_INT : QT_ZERO_NONE,
                        .zbits = asym ? cases[i].bits : 0,
                        .scale_dtype = LQ_F16 };
}

static grid_spec spec_of(size_t i, bool search)
{
    return (grid_spec){
        .bits = cases[i].bits, .mode = cases[i].mode, .scale_dtype = LQ_F16, .search = search
    };
}

static st_file golden;
static const float *W, *H;
static int64_t N, K;

static const uint8_t *find(const char *name, const char *tail)
{
    char key[64];
    snprintf(key, sizeof key, "%s%s", name, tail);
    const st_tensor *t = st_find(&golden, key);
    CHECK(t != NULL, "%s is not in the golden file", key);
    return t ? t->data : NULL;
}

static int64_t codes_that_differ(const qz_out *out, const uint8_t *want)
{
    int64_t bad = 0;
    size_t row = qt_row_bytes(K, out->t.scheme.bits);
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++)
            bad += qt_get((uint8_t *)out->w[QT_CODES] + (size_t)n * row, k, out->t.scheme.bits) !=
                   want[n * K + k];
    return bad;
}

static double loss_of(const qz_out *out, const float *w, const float *h)
{
    double sum = 0;
    float *d = malloc((size_t)(out->t.K) * sizeof *d);
    for (int64_t n = 0; d && n < out->t.N; n++) {
        qt_dequant(d, &out->t, n, n + 1);
        for (int64_t k = 0; k < out->t.K; k++)
            d[k] = w[n * out->t.K + k] - d[k];
        for (int64_t i = 0; i < out->t.K; i++)
            for (int64_t j = 0; j < out->t.K; j++)
                sum += (double)d[i] * (double)d[j] * (double)h[i * out->t.K + j];
    }
    free(d);
    return sum;
}

static lq_status run_gptq(qz_out *out, gptq_report *rep, const float *h, bool act_order,
                          const gptq_opts *o, lq_err *err)
{
    gptq_basis b;
    lq_status s = gptq_prepare(&b, h, K, 0, act_order, 1, NULL, NULL, NULL, err);
    if (!s) s = gptq_run(out, rep, W, &b, o, NULL, err);
    gptq_basis_free(&b);
    return s;
}

TEST(rounding_to_nearest_is_the_definition)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_arena a = { 0 };
        qz_out out;
        qt_scheme s = scheme_of(i);
        grid_spec spec = spec_of(i, false);
        lq_err err = { "" };
        CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
        CHECK(!rtn_run(&out, W, LQ_F32, NULL, &spec, NULL, &err), "%s", err.msg);
        const uint8_t *scales = find(cases[i].name, ".scales"), *c = find(cases[i].name, ".codes");
        const uint8_t *zeros = find(cases[i].name, ".zeros");
        int64_t ng = K / s.group;
        CHECK(!memcmp(scales, out.w[QT_SCALES], (size_t)(N * ng) * 2), "%s: scales", cases[i].name);
        for (int64_t j = 0; s.zero == QT_ZERO_INT && j < N * ng; j++) {
            const uint8_t *row =
                (uint8_t *)out.w[QT_ZEROS] + (size_t)(j / ng) * qt_row_bytes(ng, s.zbits);
            CHECK(qt_get(row, j % ng, s.zbits) == zeros[j], "%s: zero %lld", cases[i].name,
                  (long long)j);
        }
        int64_t bad = codes_that_differ(&out, c);
        CHECK(!bad, "%s: %lld codes differ", cases[i].name, (long long)bad);
        lq_arena_free(&a);
    }
}

/* f32 and f64 arithmetic part at halfway points: a handful of codes may move, by one step. */
TEST(gptq_is_the_papers_algorithm)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        for (int act = 0; act < 2; act++) {
            lq_arena a = { 0 };
            qz_out out;
            qt_scheme s = scheme_of(i);
            gptq_opts o = { .spec = spec_of(i, false), .static_groups = true };
            gptq_report rep;
            lq_err err = { "" };
            CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
            CHECK(!run_gptq(&out, &rep, H, act, &o, &err), "%s", err.msg);
            int64_t bad = codes_that_differ(
                &out, find(cases[i].name, act ? ".gptq_act.codes" : ".gptq.codes"));
            CHECK(bad <= N * K / 100, "%s act %d: %lld of %lld codes differ", cases[i].name, act,
                  (long long)bad, (long long)(N * K));
            CHECK(rep.dead == 1 && !rep.fallback && rep.damp == 0.01, "%s: report", cases[i].name);
            double loss = loss_of(&out, W, H);
            CHECK(fabs(loss - rep.loss) <= 1e-4 * loss, "%s: loss %g, reported %g", cases[i].name,
                  loss, rep.loss);
            CHECK(rep.loss < 0.8 * rep.loss_rtn, "%s: loss %g, rtn %g", cases[i].name, rep.loss,
                  rep.loss_rtn);
            lq_arena_free(&a);
        }
}

TEST(search_sweeps_and_groups_on_the_way_only_help)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        static const struct {
            bool act_order;
            gptq_opts o;
        } how[] = {
            { true, { .static_groups = true } },
            { true, { .static_groups = true, .spec.search = true } },
            { true, { .static_groups = true, .spec.search = true, .sweeps = 4 } },
            { false, { .spec.search = true } },
            { true, { .spec.search = true } }, /* act_order */
        };
        double loss[LQ_COUNT(how)];
        for (size_t j = 0; j < LQ_COUNT(how); j++) {
            lq_arena a = { 0 };
            qz_out out;
            qt_scheme s = scheme_of(i);
            gptq_opts o = how[j].o;
            o.spec = spec_of(i, o.spec.search);
            s.act_order = how[j].act_order && !o.static_groups;
            gptq_report rep;
            lq_err err = { "" };
            CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
            CHECK(!run_gptq(&out, &rep, H, how[j].act_order, &o, &err), "%s", err.msg);
            CHECK(!qt_check_view(&out.t, &err), "%s", err.msg);
            loss[j] = loss_of(&out, W, H);
            CHECK(fabs(loss[j] - rep.loss) <= 1e-3 * loss[j], "%s/%zu: loss %g, reported %g",
                  cases[i].name, j, loss[j], rep.loss);
            lq_arena_free(&a);
        }
        CHECK(loss[2] <= loss[1] * (1 + 1e-6), "%s: sweeps raised %g to %g", cases[i].name, loss[1],
              loss[2]);
        if (cases[i].bits < 8)
            CHECK(loss[1] < loss[0], "%s: the search raised %g to %g", cases[i].name, loss[0],
                  loss[1]);
    }
}

/* sum imp (w - q)^2 of the rounded rows. */
static double weighted_error(size_t i, const float *imp, grid_spec spec)
{
    lq_arena a = { 0 };
    qz_out out;
    const qt_scheme s = scheme_of(i);
    lq_err err = { "" };
    double sum = 0;
    CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
    CHECK(!rtn_run(&out, W, LQ_F32, imp, &spec, NULL, &err), "%s", err.msg);
    float *q = lq_push(&a, (size_t)(N * K) * sizeof *q);
    qt_dequant(q, &out.t, 0, N);
    for (int64_t k = 0; k < N * K; k++)
        sum += (double)imp[k % K] * pow((double)W[k] - (double)q[k], 2);
    lq_arena_free(&a);
    return sum;
}

TEST(searching_and_refitting_scales_lower_the_weighted_error)
{
    float imp[1024];
    for (int64_t k = 0; k < K; k++)
        imp[k] = H[k * K + k];
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        grid_spec spec = spec_of(i, false);
        const double plain = weighted_error(i, imp, spec);
        spec.search = true;
        const double searched = weighted_error(i, imp, spec);
        spec.refit = true;
        const double fitted = weighted_error(i, imp, spec);
        CHECK(searched < plain && fitted < searched, "%s: %g, searched %g, refitted %g",
              cases[i].name, plain, searched, fitted);
    }
}

TEST(an_unusable_h_falls_back_to_rounding_to_nearest)
{
    static const struct {
        const char *why;
        float diag, off;
    } bad[] = { { "no activation at all", 0, 0 },
                { "not finite", INFINITY, 0 },
                { "NaN", NAN, 0 },
                { "far from positive definite", 1, -30 } };
    float *h = malloc((size_t)(K * K) * sizeof *h);
    for (size_t i = 0; h && i < LQ_COUNT(bad); i++) {
        for (int64_t j = 0; j < K * K; j++)
            h[j] = j % (K + 1) ? bad[i].off : bad[i].diag;
        lq_arena a = { 0 };
        qz_out out, plain;
        qt_scheme s = scheme_of(0);
        gptq_opts o = { .spec = spec_of(0, false), .static_groups = true };
        gptq_report rep;
        lq_err err = { "" };
        CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
        CHECK(!qz_out_alloc(&plain, &s, N, K, &a, &err), "%s", err.msg);
        CHECK(!run_gptq(&out, &rep, h, true, &o, &err), "%s: %s", bad[i].why, err.msg);
        CHECK(!rtn_run(&plain, W, LQ_F32, NULL, &o.spec, NULL, &err), "%s", err.msg);
        CHECK(rep.fallback, "%s: no fallback, damp %g", bad[i].why, rep.damp);
        CHECK(!memcmp(out.w[QT_CODES], plain.w[QT_CODES], out.t.plane[QT_CODES].bytes),
              "%s: codes are not rounded to nearest", bad[i].why);
        lq_arena_free(&a);
    }
    free(h);
}

/* Edges of one group: what must come back, and within what. */
TEST(grids_of_odd_groups)
{
    static const struct {
        const char *why;
        float w[4], tol; /* of the largest magnitude */
    } t[] = {
        { "zeros", { 0, 0, 0, 0 }, 0 },
        { "minus zeros", { -0.0f, 0, -0.0f, 0 }, 0 },
        { "one sign", { 1, 2, 3, 4 }, 0.07f },
        { "the other", { -1, -2, -3, -4 }, 0.07f },
        { "a single spike", { 0, 0, -7, 0 }, 0.07f },
        { "beyond f16", { 3e8f, -1e8f, 1e8f, 0 }, 0.07f },
        { "below f16", { 3e-9f, -1e-9f, 1e-9f, 0 }, 0.07f },
        { "near the largest float", { 3e38f, -3e38f, 1e38f, 0 }, 0.13f },
        { "denormal", { 3e-40f, -1e-40f, 0, 0 }, 0.07f },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        for (int m = GRID_ASYM; m <= GRID_SYM_FULL; m++)
            for (int search = 0; search < 2; search++) {
                float a = 0, M = grid_max_code(4);
                for (int k = 0; k < 4; k++)
                    a = fabsf(t[i].w[k]) > a ? fabsf(t[i].w[k]) : a;
                grid_spec s = { .bits = 4,
                                .mode = (grid_mode)m,
                                .scale_dtype = grid_scale_dtype(a, 4),
                                .search = search };
                grid_param p = grid_fit(&s, t[i].w, NULL, 4);
                CHECK(isfinite(p.scale) && p.scale != 0, "%s: scale %g", t[i].why, (double)p.scale);
                for (int k = 0; k < 4; k++) {
                    float c = grid_code(t[i].w[k], p, M), e = fabsf(grid_value(c, p) - t[i].w[k]);
                    CHECK(c >= 0 && c <= M && c == floorf(c), "%s: code %g", t[i].why, (double)c);
                    CHECK(e <= t[i].tol * a || (search && e <= 0.3f * a),
                          "%s mode %d: %g off by %g", t[i].why, m, (double)t[i].w[k], (double)e);
                }
            }
    grid_param one = { 1, 0 };
    CHECK(grid_code(2.5f, one, 15) == 2 && grid_code(3.5f, one, 15) == 4, "halves go to even");
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (st_open(&golden, "tests/golden/quant/uniform.safetensors", &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const st_tensor *w = st_find(&golden, "w"), *h = st_find(&golden, "h");
    N = w->shape[0];
    K = w->shape[1];
    lq_arena a = { 0 };
    float *copy = lq_push(&a, w->bytes), *hcopy = lq_push(&a, h->bytes);
    memcpy(copy, w->data, w->bytes);
    memcpy(hcopy, h->data, h->bytes);
    W = copy;
    H = hcopy;
    RUN(rounding_to_nearest_is_the_definition);
    RUN(gptq_is_the_papers_algorithm);
    RUN(search_sweeps_and_groups_on_the_way_only_help);
    RUN(searching_and_refitting_scales_lower_the_weighted_error);
    RUN(an_unusable_h_falls_back_to_rounding_to_nearest);
    RUN(grids_of_odd_groups);
    lq_arena_free(&a);
    st_close(&golden);
    return check_end();
}
