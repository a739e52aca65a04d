/* quantize/rows.h: every family against the plain definitions, to the bit, at odd lengths. */
#include "quantize/rows.h"

#include "formats/qt.h"
#include "kernels/ops.h"
#include "tests/check.h"

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
                const float M = ug_max_code(bits);
                const ug_spec s = { .bits = bits, .mode = UG_ASYM, .scale_dtype = LQ_F16 };
                fill(w, n, (uint32_t)(n * bits));
                const ug_range a = f[k]->range(w, n), b = ug_find_range(w, n);
                CHECK(a.lo == b.lo && a.hi == b.hi, "%s, %lld", f[k]->name, (long long)n);
                const ug_param p = ug_candidate(&s, b, 7); /* drawn in: codes are clamped */
                f[k]->codes(codes, w, n, p, M);
                for (int64_t i = 0; i < n; i++)
                    CHECK(codes[i] == (uint8_t)ug_code(w[i], p, M), "%s: code %lld of %lld",
                          f[k]->name, (long long)i, (long long)n);
                if (bits != 4) continue;
                qt_pack_row(want, codes, n, 4);
                f[k]->pack4(packed, codes, n);
                CHECK(memcmp(packed, want, qt_row_bytes(n, 4)) == 0, "%s: pack %lld", f[k]->name,
                      (long long)n);
            }
}

TEST(cells_bytes_and_errors_are_alike_in_every_family)
{
    const qz_rows_ops *f[4];
    float w[MOST], v[MOST], mid[15];
    uint8_t cell[MOST];
    int8_t code[MOST];
    for (int i = 0; i < 15; i++)
        mid[i] = ((float)i - 7.2f) / 8;
    for (int k = 0, n_f = families(f); k < n_f; k++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++) {
            const int64_t n = lengths[l];
            double sum = 0;
            float most = 0;
            fill(w, n, (uint32_t)n);
            fill(v, n, (uint32_t)n + 1);
            for (int64_t i = 0; i < n; i++)
                most = fabsf(w[i]) > most ? fabsf(w[i]) : most;
            CHECK(f[k]->absmax(w, n) == most, "%s: %lld", f[k]->name, (long long)n);
            f[k]->cells(cell, w, n, 1 / most, mid);
            f[k]->codes_i8(code, w, n, most);
            for (int64_t i = 0; i < n; i++) {
                int below = 0;
                for (int m = 0; m < 15; m++)
                    below += w[i] * (1 / most) > mid[m];
                CHECK(cell[i] == below, "%s: cell %lld", f[k]->name, (long long)i);
                CHECK(code[i] == (int8_t)ug_round((float)((double)w[i] * 127 / (double)most)),
                      "%s: byte %lld", f[k]->name, (long long)i);
                sum += ((double)w[i] - (double)v[i]) * ((double)w[i] - (double)v[i]);
            }
            /* Each difference, its square and a sum of 8 of them round once: 10 * 2^-24. */
            const double got = f[k]->square_error(w, v, n);
            CHECK(fabs(got - sum) <= 11 * 0x1p-24 * sum, "%s: %g, %g", f[k]->name, got, sum);
            CHECK(got == qz_rows_ref.square_error(w, v, n), "%s: not as ref", f[k]->name);
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
    RUN(ranges_and_codes_are_those_of_the_grid);
    RUN(cells_bytes_and_errors_are_alike_in_every_family);
    RUN(zeros_have_no_sign);
    return check_end();
}
