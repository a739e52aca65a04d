/* tests/unit/test_error_bound.c - what rounds to nearest lies within its scheme's bound; what does not, is
 * named. */
#include "formats/tensor/error_bound.h"
#include "quantize/methods/int8.h"
#include "quantize/methods/lut4.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <stdlib.h>

enum { N = 6, K = 128 };

/* Uneven weights: heavy tails, a row of zeros, one large column. */
static void fill_weights(float *w)
{
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < N * K; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            sum += (double)(x >> 11) * 0x1p-53;
        }
        w[i] = (float)(sum * fabs(sum) * 0.02 * (i % K == 5 ? 8 : 1) * (i / K == 3 ? 0 : 1));
    }
}

static const struct {
    const char *why;
    qt_scheme s;
} schemes[] = {
    { "u4", { .kind = QT_UINT, .bits = 4, .group = 32, .scale_dtype = LQ_F16 } },
    { "u3 asym",
      { .kind = QT_UINT,
        .bits = 3,
        .group = 64,
        .zero = QT_ZERO_INT,
        .zbits = 3,
        .scale_dtype = LQ_F16 } },
    { "u2", { .kind = QT_UINT, .bits = 2, .group = 16, .scale_dtype = LQ_F32 } },
    { "u8 asym",
      { .kind = QT_UINT,
        .bits = 8,
        .group = 128,
        .zero = QT_ZERO_INT,
        .zbits = 8,
        .scale_dtype = LQ_BF16 } },
    { "i8", { .kind = QT_I8, .div127 = true } },
    { "i8 asym", { .kind = QT_I8, .zero = QT_ZERO_INT } },
    { "i8 outlier", { .kind = QT_I8_OUTLIER, .n_out = 1, .div127 = true } },
    { "nf4", { .kind = QT_LUT4, .group = 64 } },
    { "fp4", { .kind = QT_LUT4, .group = 64, .fp4 = true } },
    { "nf4 double", { .kind = QT_LUT4, .group = 64, .dbl = true } },
};

static lq_status quantize(qz_out *out, const qt_scheme *s, const float *w, lq_arena *a, lq_err *err)
{
    static const int32_t outliers[] = { 5 };
    const grid_spec spec = rtn_spec(s, GRID_FREE, true); /* drawn-in ends must pass too */
    lq_status st = qz_out_alloc(out, s, N, K, a, err);
    if (st) return st;
    if (s->kind == QT_UINT) return rtn_run(out, w, LQ_F32, NULL, &spec, NULL, err);
    if (s->kind == QT_LUT4) return lut4_run(out, w, LQ_F32, NULL, err);
    return int8_run(out, w, LQ_F32, outliers, NULL, err);
}

static bound_report compare(const qt_tensor *t, const float *w)
{
    float q[K], lo[K], hi[K], tol[K];
    bound_state s = { .rows = 0 };
    for (int64_t n = 0; n < N; n++) {
        qt_dequant(q, t, n, n + 1);
        bound_row(lo, hi, tol, t, n, LQ_F32);
        bound_add_row(&s, w + n * K, q, lo, hi, tol, n, K);
    }
    return bound_end(&s, K);
}

TEST(rounding_to_nearest_lies_within_the_bound_of_every_scheme)
{
    static float w[N * K], moved[N * K];
    fill_weights(w);
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        lq_arena a;
        qz_out out;
        lq_err err = { "" };
        lq_arena_init(&a, 0, NULL);
        lq_status s = quantize(&out, &schemes[i].s, w, &a, &err);
        CHECK(!s, "%s: %s", schemes[i].why, err.msg);
        if (!s) {
            bound_report r = compare(&out.t, w);
            CHECK(r.max_excess <= 0, "%s: [%d,%d] %.3g steps beyond", schemes[i].why, (int)r.row,
                  (int)r.col, r.max_excess);
            CHECK(r.rmse > 0 && r.worst_rms < 2, "%s: %g, %g", schemes[i].why, r.rmse, r.worst_rms);
            /* Another sign for an ordinary weight: many steps away, wherever that is. */
            memcpy(moved, w, sizeof w);
            int at = 2 * K + 40;
            while (fabsf(w[at]) < 0.02f)
                at++;
            moved[at] = -w[at];
            r = compare(&out.t, moved);
            CHECK(r.max_excess > 0 && r.row == 2 && r.col == at - 2 * K,
                  "%s: a moved weight: [%d,%d]", schemes[i].why, (int)r.row, (int)r.col);
            moved[at] = NAN;
            r = compare(&out.t, moved);
            CHECK(r.max_excess > 0 && r.col == at - 2 * K, "%s: NaN", schemes[i].why);
        }
        lq_arena_free(&a);
    }
}

TEST(dense_types_are_bounded_by_their_last_place)
{
    static const struct {
        const char *why;
        lq_dtype d, source;
        float w;
        float off; /* added to what is stored, relative to w */
        bool ok;
    } t[] = {
        { "bf16 rounds", LQ_BF16, LQ_F32, 1.003f, 0, true },
        { "bf16 off by a place", LQ_BF16, LQ_F32, 1.003f, 0x1p-6f, false },
        { "f16 rounds", LQ_F16, LQ_F32, 0.3f, 0, true },
        { "f16 off by two places", LQ_F16, LQ_F32, 0.3f, 0x1p-9f, false },
        { "f16 subnormal", LQ_F16, LQ_F32, 1.1e-7f, 0, true },
        { "f32 is exact", LQ_F32, LQ_F32, 0.3f, 0, true },
        { "f32 off by one place", LQ_F32, LQ_F32, 0.3f, 0x1p-23f, false },
        { "the same type is exact", LQ_BF16, LQ_BF16, 1.0f, 0x1p-7f, false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t stored[4];
        float v = t[i].w * (1 + t[i].off), q, lo, hi, tol;
        lq_from_f32(stored, &v, t[i].d, 1);
        const qt_tensor x = { .scheme = { .kind = QT_DENSE, .dtype = t[i].d },
                              .N = 1,
                              .K = 1,
                              .plane = { [QT_CODES] = { stored, lq_dtype_bytes(t[i].d) } } };
        bound_state s = { .rows = 0 };
        qt_dequant(&q, &x, 0, 1);
        bound_row(&lo, &hi, &tol, &x, 0, t[i].source);
        bound_add_row(&s, &t[i].w, &q, &lo, &hi, &tol, 0, 1);
        CHECK((bound_end(&s, 1).max_excess <= 0) == t[i].ok, "%s", t[i].why);
    }
}

/* A weight half way to the next number is within its bound, the next number is not. */
TEST(small_floats_are_bounded_by_half_the_gap_to_the_next)
{
    static const struct {
        const char *why, *scheme;
        uint8_t code, next; /* of larger size */
    } t[] = {
        { "subnormal", "fp8-e4m3", 0x03, 0x04 },
        { "zero", "fp8-e4m3", 0x00, 0x01 },
        { "normal", "fp8-e4m3", 0x39, 0x3a },
        { "negative", "fp8-e4m3", 0xb9, 0xba },
        { "below the largest", "fp8-e4m3", 0x7d, 0x7e },
        { "mxfp4", "mxfp4", 2, 3 },
        { "mxfp4, gap of two", "mxfp4", 6, 7 },
        { "nvfp4", "nvfp4", 12, 13 },
        { "nvfp4, zero", "nvfp4", 0, 1 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_arena a;
        qt_tensor x, y;
        void *w[QT_N_PLANES], *v[QT_N_PLANES];
        const qt_scheme s = fill_scheme(t[i].scheme);
        lq_arena_init(&a, 0, NULL);
        CHECK(!qt_alloc(&x, w, &s, 1, 32, &a, NULL) && !qt_alloc(&y, v, &s, 1, 32, &a, NULL),
              "alloc");
        for (int p = 0; p < QT_N_PLANES; p++) /* scales: some number, the same for both */
            for (size_t b = 0; b < x.plane[p].bytes; b++)
                ((uint8_t *)w[p])[b] = ((uint8_t *)v[p])[b] = p == QT_CODES ? 0 : 0x3c;
        ((uint8_t *)w[QT_CODES])[0] = t[i].code;
        ((uint8_t *)v[QT_CODES])[0] = t[i].next;
        float q[32], far[32], lo[32], hi[32], tol[32];
        qt_dequant(q, &x, 0, 1);
        qt_dequant(far, &y, 0, 1);
        bound_row(lo, hi, tol, &x, 0, LQ_F32);
        for (int half = 0; half < 2; half++) {
            bound_state b = { .rows = 0 };
            float source[32] = { half ? (q[0] + far[0]) / 2 : far[0] };
            bound_add_row(&b, source, q, lo, hi, tol, 0, 32);
            CHECK((bound_end(&b, 32).max_excess <= 0) == (half == 1), "%s, %d", t[i].why, half);
        }
        lq_arena_free(&a);
    }
}

int main(int argc, char **argv)
{
    RUN(rounding_to_nearest_lies_within_the_bound_of_every_scheme);
    RUN(small_floats_are_bounded_by_half_the_gap_to_the_next);
    RUN(dense_types_are_bounded_by_their_last_place);
    return check_end();
}
