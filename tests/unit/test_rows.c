/* quantize/methods/rows.h: every family against the plain definitions, to the bit, at odd lengths. */
#include "quantize/methods/rows.h"

#include "formats/tensor/qtensor.h"
#include "kernels/ops.h"
#include "tests/support/check.h"

enum { MOST = 1100 };
static const int64_t lengths[] = { 1, 2, 31, 32, 33, 63, 64, 127, 256, 257, 1099 };

/* The families that this machine has. */
static int families(const qz_rows_ops **out)
{
    int n = 0;
    out[n++] = &qz_rows_ref;
#if defined(__x86_64__)
    if (strstr(k_list(), "avx2")) out[n++] = &qz_rows_avx2;
#endif
    return n;
}

static void fill(float *w, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        w[i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (seed % 97 == 0 ? 8.0f : 1.0f);
    }
    if (n > 2) w[n / 2] = -0.0f;
}

TEST(ranges_and_codes_are_those_of_the_grid)
{
    const qz_rows_ops *f[4];
    float w[MOST];
    uint8_t codes[MOST], packed[MOST], want[MOST];
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++)
            for (int bits = 2; bits <= 8; bits += bits == 4 ? 4 : 1) {
                const int64_t n = lengths[l];
                const float M = grid_max_code(bits);
                const grid_spec s = { .bits = bits, .mode = GRID_ASYM, .scale_dtype = LQ_F16 };
                fill(w, n, (uint32_t)(n * bits));
                const grid_range a = f[k]->range(w, n), b = grid_find_range(w, n);
                CHECK(a.lo == b.lo && a.hi == b.hi, "%s, %lld", f[k]->name, (long long)n);
                const grid_param p = grid_candidate(&s, b, 7); /* drawn in: codes are clamped */
                f[k]->codes(codes, w, n, p, M);
                for (int64_t i = 0; i < n; i++)
                    CHECK(codes[i] == (uint8_t)grid_code(w[i], p, M), "%s: code %lld of %lld",
                          f[k]->name, (long long)i, (long long)n);
                if (bits != 4) continue;
                for (int64_t i = 0; i < n; i += 2)
                    want[i / 2] = (uint8_t)(codes[i] | (i + 1 < n ? codes[i + 1] << 4 : 0));
                f[k]->pack4(packed, codes, n);
                CHECK(memcmp(packed, want, qt_row_bytes(n, 4)) == 0, "%s: pack %lld", f[k]->name,
                      (long long)n);
            }
}

TEST(sums_over_a_grid_are_alike_in_every_family)
{
    enum { LINES = 7 };
    const qz_rows_ops *f[4];
    float w[MOST], imp[MOST], table[16], mid[15];
    for (int i = 0; i < 16; i++)
        table[i] = (float)(i * i - 120);
    for (int i = 0; i < 15; i++)
        mid[i] = 0.5f * (table[i] + table[i + 1]);
    fill(w, MOST, 5);
    fill(imp, MOST, 6);
    for (int i = 0; i < MOST; i++)
        imp[i] = fabsf(imp[i]) + 0.01f;
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (int c = 0; c < 8; c++) {
            const rows_grid g = {
                .lo = -4, .hi = 3, .mid = c & 4 ? mid : NULL, .table = c & 4 ? table : NULL
            };
            for (int64_t n = 8; n <= 64; n += 8) {
                rows_line line[LINES];
                rows_sums a[LINES], b[LINES];
                for (int i = 0; i < LINES; i++)
                    line[i] = (rows_line){ (c & 1 ? 0.02f : -0.3f) * (1 + 0.1f * (float)i),
                                           (c & 2 ? -0.4f : 0) - 0.01f * (float)(i * (c & 2)) };
                f[k]->sums(a, w, c & 1 ? imp : NULL, n, &g, line, LINES);
                for (int i = 0; i < LINES; i++)
                    qz_rows_ref.sums(&b[i], w, c & 1 ? imp : NULL, n, &g, &line[i], 1);
                CHECK(memcmp(a, b, sizeof a) == 0, "%s, %d, %lld: %g and %g", f[k]->name, c,
                      (long long)n, (double)a[0].e, (double)b[0].e);
                CHECK(a[0].one > 0 && a[0].e > 0, "%s, %d", f[k]->name, c);
            }
        }
}

/* Whole numbers: many points are equally good, and the first counts. */
TEST(points_are_found_alike_in_every_family)
{
    const qz_rows_ops *f[4];
    enum { POINTS = 128 };
    float v[8 * POINTS], m[64], b[8], A[POINTS], B[POINTS], A1[POINTS], B1[POINTS];
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (int dim = 4; dim <= 8; dim += 4)
            for (int round = 0; round < 60; round++) {
                fill(v, 8 * POINTS, (uint32_t)round);
                fill(m, 64, (uint32_t)round + 1);
                fill(b, 8, (uint32_t)round + 2);
                for (int i = 0; round % 2 && i < 8 * POINTS; i++)
                    v[i] = rintf(2 * v[i]);
                for (int i = 0; round % 2 && i < 64; i++)
                    m[i] = rintf(2 * m[i]);
                for (int i = 0; round % 2 && i < 8; i++)
                    b[i] = rintf(2 * b[i]);
                const int p = f[k]->lowest_point(v, dim, POINTS, m, b);
                CHECK(p == qz_rows_ref.lowest_point(v, dim, POINTS, m, b), "%s", f[k]->name);
                f[k]->lines(A, B, v, dim, POINTS, b, m);
                qz_rows_ref.lines(A1, B1, v, dim, POINTS, b, m);
                CHECK(!memcmp(A, A1, sizeof A) && !memcmp(B, B1, sizeof B), "%s", f[k]->name);
                const int q = f[k]->lowest_line(A, B, POINTS, 0.5f);
                CHECK(q == qz_rows_ref.lowest_line(A, B, POINTS, 0.5f), "%s", f[k]->name);
            }
}

/* Value i of a run that meets every midpoint exactly, and lies just beside each. */
static float near_mid(const float mid[15], int64_t i, float scale)
{
    const float m = mid[i % 15];
    return (i % 3 == 0 ? m : i % 3 == 1 ? nextafterf(m, 2) : nextafterf(m, -2)) * scale;
}

TEST(tables_are_packed_alike_in_every_family)
{
    const qz_rows_ops *f[4];
    float w[MOST], mid[15];
    uint8_t packed[MOST], code[16];
    for (int i = 0; i < 15; i++)
        mid[i] = ((float)i - 7.2f) / 8;
    for (int i = 0; i < 16; i++)
        code[i] = (uint8_t)(i * 7 % 16); /* in no order */
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            fill(w, n, (uint32_t)n);
            for (int64_t i = 0; i < n; i += 2)
                w[i] = near_mid(mid, i / 2, 4); /* 1/4 is exact */
            memset(packed, 0xff, sizeof packed);
            f[k]->pack_table(packed, w, n, 0.25f, mid, code);
            for (int64_t i = 0; i < n + n % 2; i++) {
                int below = 0;
                for (int m = 0; m < 15; m++)
                    below += (i < n ? w[i] * 0.25f : 0) > mid[m];
                const int got = i & 1 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
                CHECK(got == code[below], "%s: %lld of %lld: %d, %d", f[k]->name, (long long)i,
                      (long long)n, got, code[below]);
            }
            CHECK(packed[(n + 1) / 2] == 0xff, "%s: %lld: one too many", f[k]->name, (long long)n);
        }
}

TEST(bytes_at_halves_and_of_tiny_rows_are_those_of_the_division)
{
    const qz_rows_ops *f[4];
    static const float largest[] = { 127, 1, 3.7f, 0x1p-90f, 0x1p-101f, 0x1p-140f, 3e38f };
    float w[MOST];
    int8_t code[MOST];
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(largest); l++) {
            const float a = largest[l];
            const int64_t n = 1019; /* halves, from -127 to 127, and their neighbours */
            for (int64_t i = 0; i < n; i++) {
                w[i] = ((float)(i / 2) / 2 - 127) / 127 * a;
                if (i % 2) w[i] = nextafterf(w[i], i % 4 == 1 ? INFINITY : -INFINITY);
                w[i] = w[i] > a ? a : w[i] < -a ? -a : w[i];
            }
            f[k]->codes_i8(code, w, n, a);
            for (int64_t i = 0; i < n; i++) {
                const float want = rintf((float)((double)w[i] * 127 / (double)a));
                CHECK((float)code[i] == want, "%s: %a of %a: %d, %g", f[k]->name, (double)w[i],
                      (double)a, code[i], (double)want);
            }
        }
}

TEST(numbers_and_errors_are_alike_in_every_family)
{
    const qz_rows_ops *f[4];
    static const lq_dtype types[] = { LQ_F32, LQ_F16, LQ_BF16 };
    float w[MOST], v[MOST], got[MOST];
    uint16_t half[MOST];
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            double sum = 0;
            float most = 0;
            fill(w, n, (uint32_t)n);
            fill(v, n, (uint32_t)n + 1);
            for (int64_t i = 0; i < n; i++) {
                most = fabsf(w[i]) > most ? fabsf(w[i]) : most;
                sum += ((double)w[i] - (double)v[i]) * ((double)w[i] - (double)v[i]);
                half[i] = (uint16_t)(i * 27 | (i & 1) << 15); /* finite, of both types */
            }
            CHECK(f[k]->absmax(w, n) == most, "%s: %lld", f[k]->name, (long long)n);
            /* Each difference, its square and a sum of 8 of them round once: 10 * 2^-24. */
            const double error = f[k]->square_error(w, v, n);
            CHECK(fabs(error - sum) <= 11 * 0x1p-24 * sum, "%s: %g, %g", f[k]->name, error, sum);
            CHECK(error == qz_rows_ref.square_error(w, v, n), "%s: not as ref", f[k]->name);
            for (size_t t = 0; t < LQ_COUNT(types); t++) {
                const void *from = types[t] == LQ_F32 ? (const void *)w : half;
                lq_to_f32(v, from, types[t], (size_t)n);
                f[k]->to_f32(got, from, types[t], (size_t)n);
                CHECK(memcmp(got, v, (size_t)n * sizeof *v) == 0, "%s: %s of %lld", f[k]->name,
                      lq_dtype_text(types[t]), (long long)n);
            }
        }
}

/* Weights of a group after some steps: values, codes that moved, moments. */
TEST(codes_are_trained_alike_in_every_family)
{
    const qz_rows_ops *f[4];
    static float dW[MOST], off[2][MOST], m[2][MOST], v[2][MOST], w[2][MOST];
    static uint8_t code[2][MOST];
    const grid_param p = { -0.013f, 5.5f };
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            int64_t moved = 0;
            for (int who = 0; who < 2; who++) {
                const qz_rows_ops *ops = who ? f[k] : &qz_rows_ref;
                memset(m[who], 0, sizeof m[who]);
                memset(v[who], 0, sizeof v[who]);
                fill(off[who], n, 9);
                for (int64_t i = 0; i < n; i++) {
                    code[who][i] = (uint8_t)(i * 5 % 16);
                    off[who][i] *= 0.05f;
                }
                for (int step = 1; step <= 12; step++) {
                    const rows_adam a = { p.scale,
                                          0.07f,
                                          0.9f,
                                          0.99f,
                                          1.0f + 3.0f / (float)step,
                                          1.0f + 9.0f / (float)step,
                                          15 };
                    fill(dW, n, (uint32_t)(step % 3 + 1));
                    if (n > 5) dW[5] = 0; /* no moment, no change */
                    ops->train(code[who], off[who], m[who], v[who], dW, n, &a);
                }
                ops->values(w[who], code[who], n, p);
            }
            const size_t bytes = (size_t)n * sizeof(float);
            for (int64_t i = 0; i < n; i++)
                moved += code[1][i] != i * 5 % 16;
            CHECK(!memcmp(off[0], off[1], bytes) && !memcmp(m[0], m[1], bytes) &&
                      !memcmp(v[0], v[1], bytes) && !memcmp(w[0], w[1], bytes) &&
                      !memcmp(code[0], code[1], (size_t)n),
                  "%s: %lld", f[k]->name, (long long)n);
            CHECK(n < 31 || (moved > n / 8 && moved < n), "%lld of %lld codes moved",
                  (long long)moved, (long long)n);
        }
}

TEST(zeros_have_no_sign)
{
    const qz_rows_ops *f[4];
    const float zeros[40] = { 0, -0.0f };
    for (int k = 0, n_f = families(f); k < n_f; k++)
        CHECK(!signbit(f[k]->absmax(zeros, 40)), "%s", f[k]->name);
}

int main(int argc, char **argv)
{
    RUN(sums_over_a_grid_are_alike_in_every_family);
    RUN(ranges_and_codes_are_those_of_the_grid);
    RUN(points_are_found_alike_in_every_family);
    RUN(tables_are_packed_alike_in_every_family);
    RUN(bytes_at_halves_and_of_tiny_rows_are_those_of_the_division);
    RUN(numbers_and_errors_are_alike_in_every_family);
    RUN(codes_are_trained_alike_in_every_family);
    RUN(zeros_have_no_sign);
    return check_end();
}
