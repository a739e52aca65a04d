/* tests/unit/test_quant_awq.c - scales, folding, clipping, groups that fit. */
#include "quantize/layer/plan.h"
#include "quantize/methods/awq.h"
#include "quantize/methods/loss.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { N = 48, K = 64, T = 256, G = 32 };

static float W[N * K], H[K * K], X[T * K], mean_abs[K];

/* Inputs with a few loud channels, weights in -1..1; a linear congruence makes them. */
static void make_data(void)
{
    uint32_t state = 12345;
    for (int i = 0; i < N * K; i++) {
        state = state * 1664525 + 1013904223;
        W[i] = (float)(int32_t)state / 2147483648.0f;
    }
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) {
            state = state * 1664525 + 1013904223;
            float loud = k % 17 == 3 ? 20.0f : 1.0f;
            X[t * K + k] = loud * (float)(int32_t)state / 2147483648.0f;
            mean_abs[k] += fabsf(X[t * K + k]) / T;
        }
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) {
            double sum = 0;
            for (int t = 0; t < T; t++)
                sum += (double)X[t * K + i] * (double)X[t * K + j];
            H[i * K + j] = (float)(sum / T);
        }
}

static const qt_scheme u4 = {
    .kind = QT_UINT, .bits = 4, .group = G, .zero = QT_ZERO_INT, .zbits = 4, .scale_dtype = LQ_F16
};
static const grid_spec plain = { .bits = 4, .mode = GRID_ASYM, .scale_dtype = LQ_F16 };

static awq_site site_of(const int32_t *tie)
{
    awq_site s = { .n = 1, .K = K, .H = H, .mean_abs = mean_abs, .tie = tie };
    s.lin[0].W = W;
    s.lin[0].N = N;
    s.lin[0].group = G;
    s.lin[0].spec = plain;
    return s;
}

TEST(scales_lower_the_loss_and_what_is_reported_is_true)
{
    float s[K], *w = malloc(sizeof W), *h = malloc(sizeof H);
    awq_report rep;
    awq_site site = site_of(NULL);
    lq_err err = { "" };
    lq_arena a = { 0 };
    CHECK(!awq_search(s, &rep, &site, NULL, &err), "%s", err.msg);
    CHECK(rep.after < 0.5 * rep.before, "from %g to %g", rep.before, rep.after);
    memcpy(w, W, sizeof W);
    memcpy(h, H, sizeof H);
    awq_scale_columns(w, s, N, K, NULL);
    awq_scale_h(h, s, K, NULL);
    qz_out q, c;
    qz_loss loss, clipped, raw;
    CHECK(!qz_out_alloc(&q, &u4, N, K, &a, &err) && !qz_out_alloc(&c, &u4, N, K, &a, &err),
          "alloc");
    CHECK(!rtn_run(&q, w, LQ_F32, NULL, &plain, NULL, &err), "%s", err.msg);
    CHECK(!qz_loss_of(&loss, &q.t, w, LQ_F32, h, (qz_fold){ .cols = s }, NULL, &err), "%s",
          err.msg);
    CHECK(fabs(loss.loss - rep.after) <= 1e-3 * rep.after, "loss %g, reported %g", loss.loss,
          rep.after);
    CHECK(!rtn_run(&q, W, LQ_F32, NULL, &plain, NULL, &err), "%s", err.msg);
    CHECK(!qz_loss_of(&raw, &q.t, W, LQ_F32, H, (qz_fold){ 0 }, NULL, &err), "%s", err.msg);
    CHECK(fabs(raw.loss - rep.before) <= 1e-3 * rep.before, "before: %g, reported %g", raw.loss,
          rep.before);
    grid_spec search = plain;
    search.search = true;
    CHECK(!awq_round(&c, w, h, &search, NULL, &err), "%s", err.msg);
    CHECK(!qz_loss_of(&clipped, &c.t, w, LQ_F32, h, (qz_fold){ 0 }, NULL, &err), "%s", err.msg);
    CHECK(clipped.loss < loss.loss, "clipping raised %g to %g", loss.loss, clipped.loss);
    lq_arena_free(&a);
    free(w);
    free(h);
}

TEST(tied_inputs_share_a_scale)
{
    float s[K];
    int32_t tie[K];
    awq_report rep;
    lq_err err = { "" };
    for (int k = 0; k < K; k++)
        tie[k] = k % 16; /* four heads read each row */
    awq_site site = site_of(tie);
    CHECK(!awq_search(s, &rep, &site, NULL, &err), "%s", err.msg);
    for (int k = 0; k < K; k++)
        CHECK(s[k] == s[k % 16], "input %d: %g", k, (double)s[k]);
}

TEST(silent_inputs_and_zero_weights_give_scales_of_numbers)
{
    float s[K], quiet[K] = { 0 }, zero[K * K] = { 0 }, none[N * K] = { 0 };
    awq_report rep;
    lq_err err = { "" };
    awq_site site = site_of(NULL);
    site.mean_abs = quiet;
    site.H = zero;
    CHECK(!awq_search(s, &rep, &site, NULL, &err), "%s", err.msg);
    for (int k = 0; k < K; k++)
        CHECK(s[k] == 1, "no input: scale %g", (double)s[k]);
    site = site_of(NULL);
    site.lin[0].W = none;
    CHECK(!awq_search(s, &rep, &site, NULL, &err), "%s", err.msg);
    for (int k = 0; k < K; k++)
        CHECK(isnormal(s[k]), "no weights: scale %g", (double)s[k]);
}

TEST(groups_are_fitted_to_the_width)
{
    static const int64_t t[][3] = { { 256, 128, 128 }, { 172, 128, 86 },    { 96, 128, 96 },
                                    { 64, -1, 64 },    { 127, 64, 127 },    { 768, 100, 96 },
                                    { 24, 8, 8 },      { 29568, 128, 128 }, { 34, 32, 17 },
                                    { 26, 24, 26 },    { 576, 128, 64 },    { 2880, 128, 64 },
                                    { 160, 128, 32 },  { 192, 96, 96 },     { 200, 128, 100 } };
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        CHECK(qz_fit_group(t[i][0], t[i][1]) == t[i][2], "%lld of %lld: %lld", (long long)t[i][1],
              (long long)t[i][0], (long long)qz_fit_group(t[i][0], t[i][1]));
}

int main(int argc, char **argv)
{
    make_data();
    RUN(scales_lower_the_loss_and_what_is_reported_is_true);
    RUN(tied_inputs_share_a_scale);
    RUN(silent_inputs_and_zero_weights_give_scales_of_numbers);
    RUN(groups_are_fitted_to_the_width);
    return check_end();
}
