/* tests/unit/test_amx_mm.c - the products of AMX, emulated (amx_emulated.h): of int8 the reference's
 * bytes, of bf16 within mm.h's bound of the exact ones; a row's are the same in any company. */
#include "kernels/core/cpu.h"
#include "tests/support/mm_rig.h"

static const char *const schemes[] = { FILL_SCHEMES };

/* N outputs of K inputs, one scale for each of `A` of them or more. */
static const struct {
    const char *why;
    int64_t N, K;
} shapes[] = {
    { "one tile", 16, 128 },
    { "less than a tile, a step", 5, 32 },
    { "three tiles, the last short", 41, 384 },
    { "groups that end short", 64, 172 },
    { "more inputs than are unpacked at once", 32, 576 },
};

static void take(const char *family)
{
    lq_err err = { "" };
    CHECK(!k_init(family, &err), "%s", err.msg);
}

TEST(every_scheme_gives_the_reference_s_bytes_with_any_number_of_rows)
{
    enum { M = 98 };
    static const int64_t rows[] = { 1, 5, 6, 7, 15, 16, 17, 31, 32, 33, 48, 49, 80, 97, M };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
            problem b;
            if (!problem_make(&b, schemes[i], M, shapes[j].N, shapes[j].K, 31 * i + j)) continue;
            const bool ints = mm_effective(&b.w.t.scheme, MM_I8) == MM_I8;
            take("ref");
            const float *want = run(&b, MM_I8, 0, M, NULL, true);
            take("amx");
            for (size_t r = 0; r < LQ_COUNT(rows) && ints; r++) {
                const float *got = run(&b, MM_I8, 0, rows[r], NULL, true);
                CHECK(memcmp(got, want, (size_t)(rows[r] * b.N) * 4) == 0, "%s, %s, %d rows",
                      schemes[i], shapes[j].why, (int)rows[r]);
            }
            problem_free(&b);
        }
}

TEST(bf16_products_are_within_the_bound_of_the_exact_ones)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
            problem b;
            if (!problem_make(&b, schemes[i], 21, shapes[j].N, shapes[j].K, 17 * i + j)) continue;
            take("amx");
            const double share = worst(&b, run(&b, MM_BF16, 0, b.M, NULL, false), MM_BF16);
            CHECK(share <= 1, "%s, %s: %g of the bound", schemes[i], shapes[j].why, share);
            problem_free(&b);
        }
}

TEST(a_row_has_the_same_bytes_wherever_in_a_panel)
{
    enum { M = 45, ROW = 90 };
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    take("amx");
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (mm_acts acts = MM_BF16; acts <= MM_I8; acts++) {
            problem b;
            if (!problem_make(&b, schemes[i], M, ROW, 384, i)) continue;
            const float *all = run(&b, acts, 0, M, p, false);
            for (int64_t m0 = 0, n = 1; m0 < M; m0 += n, n += 4) {
                if (n > M - m0) n = M - m0;
                const float *some = run(&b, acts, m0, n, n & 1 ? p : NULL, false);
                CHECK(memcmp(some, all + m0 * ROW, (size_t)(n * ROW) * 4) == 0,
                      "%s, %s: rows %d..+%d", schemes[i], acts == MM_I8 ? "int8" : "bf16", (int)m0,
                      (int)n);
            }
            problem_free(&b);
        }
    pool_close(p);
}

TEST(largest_codes_and_inputs_fit)
{
    problem b;
    CHECK(problem_make(&b, "u8-g128", 32, 32, 256, 1), "make");
    for (int64_t i = 0; i < b.M * b.ldx; i++)
        b.x[i] = i % 2 ? -3.0f : 3.0f;
    memset((void *)(uintptr_t)b.w.t.plane[QT_CODES].data, 255, b.w.t.plane[QT_CODES].bytes);
    take("ref");
    const float *want = run(&b, MM_I8, 0, b.M, NULL, false);
    take("amx");
    const float *got = run(&b, MM_I8, 0, b.M, NULL, false);
    CHECK(memcmp(got, want, (size_t)(b.M * b.N) * 4) == 0, "bytes differ");
    problem_free(&b);
}

int main(int argc, char **argv)
{
    if (!cpu_has_vnni()) {
        printf("skipped: AVX-512 with VNNI, which AMX comes with, is not on this machine\n0 "
               "passed, 0 failed\n");
        return 0;
    }
    RUN(every_scheme_gives_the_reference_s_bytes_with_any_number_of_rows);
    RUN(bf16_products_are_within_the_bound_of_the_exact_ones);
    RUN(a_row_has_the_same_bytes_wherever_in_a_panel);
    RUN(largest_codes_and_inputs_fit);
    return check_end();
}
