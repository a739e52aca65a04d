/* tests/unit/test_row_grid.c - grids of GGUF's blocks: what is stored is what was fitted, and no worse than what ggml
 * makes of the same weights. */
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <stdlib.h>

enum { N = 16, K = 512 };

/* sum (w - q)^2 / sum w^2 of fill_row's row of seed 7: ggml_quantize_chunk of llama.cpp 0c1e570 with an importance
 * of 1 throughout. */
static const struct {
    const char *name;
    double ggml;
} types[] = {
    { "Q4_1", 0.004143 },   { "Q5_0", 0.001254 },    { "Q5_1", 0.000979 },
    { "Q2_K", 0.064102 },   { "Q3_K", 0.017670 },    { "Q4_K", 0.004227 },
    { "Q5_K", 0.001054 },   { "Q6_K", 0.000247 },    { "IQ4_NL", 0.004840 },
    { "IQ4_XS", 0.004912 }, { "IQ2_XXS", 0.111961 }, { "IQ2_XS", 0.085444 },
    { "IQ2_S", 0.056478 },  { "IQ3_XXS", 0.030823 }, { "IQ3_S", 0.017160 },
};

static qz_out round_rows(const blk_type *t, const float *w, const float *imp, lq_arena *a)
{
    const qt_scheme s = { .kind = QT_BLOCKS, .blocks = t->id };
    const grid_spec spec = rtn_spec(&s, GRID_FREE, true);
    lq_err err = { "" };
    qz_out out;
    CHECK(!qz_out_alloc(&out, &s, N, K, a, &err), "%s", err.msg);
    pool *p;
    CHECK(!pool_open(&p, 2, &err), "%s", err.msg);
    CHECK(!rtn_run(&out, w, LQ_F32, imp, &spec, p, &err), "%s", err.msg);
    pool_close(p);
    return out;
}

static double error(const qz_out *out, const float *w, const float *imp)
{
    double e = 0, all = 0;
    float q[K];
    for (int64_t n = 0; n < N; n++) {
        qt_dequant(q, &out->t, n, n + 1);
        for (int k = 0; k < K; k++) {
            const double d = (double)w[n * K + k] - (double)q[k], x = (double)w[n * K + k];
            e += d * d * (imp ? (double)imp[k] : 1);
            all += x * x * (imp ? (double)imp[k] : 1);
        }
    }
    return e / all;
}

TEST(blocks_are_as_close_as_ggmls)
{
    static float w[N * K];
    uint64_t seed = 7;
    fill_row(w, N * K, &seed);
    for (size_t i = 0; i < LQ_COUNT(types); i++) {
        lq_arena a = { 0 };
        const qz_out out = round_rows(blk_named(types[i].name), w, NULL, &a);
        const double e = error(&out, w, NULL);
        CHECK(e <= types[i].ggml, "%s: %.6f, ggml %.6f", types[i].name, e, types[i].ggml);
        lq_arena_free(&a);
    }
}

TEST(weights_that_count_more_are_closer)
{
    static float w[N * K], imp[K];
    uint64_t seed = 8;
    fill_row(w, N * K, &seed);
    for (int k = 0; k < K; k++)
        imp[k] = k % 7 == 0 ? 50 : 1;
    for (size_t i = 0; i < LQ_COUNT(types); i++) {
        lq_arena a = { 0 };
        const blk_type *t = blk_named(types[i].name);
        const qz_out plain = round_rows(t, w, NULL, &a), by_imp = round_rows(t, w, imp, &a);
        const double before = error(&plain, w, imp), after = error(&by_imp, w, imp);
        CHECK(after < before, "%s: %.6f, without importance %.6f", t->name, after, before);
        lq_arena_free(&a);
    }
}

TEST(codes_and_grids_say_what_is_stored)
{
    float w[K], q[K];
    uint8_t codes[K];
    grid_param params[K / 16];
    row_head heads[K / 32];
    uint64_t seed = 9;
    fill_row(w, K, &seed);
    for (size_t i = 0; i < LQ_COUNT(types); i++) {
        const blk_type *t = blk_named(types[i].name);
        const qt_scheme s = { .kind = QT_BLOCKS, .blocks = t->id };
        const grid_spec spec = rtn_spec(&s, GRID_FREE, true);
        lq_arena a = { 0 };
        lq_err err = { "" };
        qz_out out;
        CHECK(!qz_out_alloc(&out, &s, 1, K, &a, &err), "%s", err.msg);
        row_fit(params, heads, &spec, w, NULL, 0, K, t->group);
        for (int k = 0; k < K; k += t->group)
            row_codes(codes + k, &spec, w + k, NULL, t->group, params[k / t->group]);
        row_store(&out, 0, params, heads, codes, NULL);
        qt_dequant(q, &out.t, 0, 1);
        for (int k = 0; k < K; k++) {
            const float v = row_value(&spec, codes[k], params[k / t->group]);
            CHECK(fabsf(v - q[k]) <= 1e-6f, "%s[%d]: %g, stored %g", t->name, k, (double)v,
                  (double)q[k]);
        }
        lq_arena_free(&a);
    }
}

/* Groups of zeros, of one value, of huge and of the smallest numbers: finite, and zeros stay zeros. */
TEST(odd_groups_stay_finite)
{
    static float w[N * K];
    uint64_t seed = 10;
    fill_row(w, N * K, &seed);
    for (int k = 0; k < K; k++) {
        w[k] = 0;
        w[K + k] = 0.3f;
        w[2 * K + k] = -0.3f;
        w[3 * K + k] *= k < K / 2 ? 1e4f : 1e-4f;
        w[4 * K + k] *= 1e-30f;
        w[5 * K + k] = k == 77 ? 3 : 0;
    }
    for (size_t i = 0; i < LQ_COUNT(types); i++) {
        lq_arena a = { 0 };
        const qz_out out = round_rows(blk_named(types[i].name), w, NULL, &a);
        float q[K];
        for (int64_t n = 0; n < N; n++) {
            qt_dequant(q, &out.t, n, n + 1);
            for (int k = 0; k < K; k++) {
                CHECK(isfinite(q[k]), "%s[%lld,%d]: %g", types[i].name, (long long)n, k,
                      (double)q[k]);
                if (n == 0) CHECK(fabsf(q[k]) < 1e-4f, "%s: %g for 0", types[i].name, (double)q[k]);
                if (n == 1 || n == 2)
                    CHECK(fabsf(q[k] - w[n * K + k]) < 0.02f, "%s: %g for %g", types[i].name,
                          (double)q[k], (double)w[n * K + k]);
            }
        }
        lq_arena_free(&a);
    }
}

int main(int argc, char **argv)
{
    RUN(blocks_are_as_close_as_ggmls);
    RUN(weights_that_count_more_are_closer);
    RUN(codes_and_grids_say_what_is_stored);
    RUN(odd_groups_stay_finite);
    return check_end();
}
