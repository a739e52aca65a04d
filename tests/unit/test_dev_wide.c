/* tests/unit/test_dev_wide.c - many rows by quantized weights that a device table expands for cuBLAS: which, and
 * that they agree with the CPU's. */
#include "tests/support/devtwins.h"
#include "tests/support/emucounts.h"

static const char *const schemes[] = { FILL_SCHEMES };

/* The product agrees, and by its launches is one of cuBLAS or not. */
static void check_expanded(twins *o, const char *scheme, const char *why, bool want)
{
    enum { ROWS = 96, TILES = 3 }; /* of the emulation: CU_ROWS, CU_WIDE */
    const size_t before = emu_counted.launches, pieces = (size_t)lq_ceil_div(o->M, ROWS),
                 panels = (size_t)lq_ceil_div(o->dw.s.tiles, TILES),
                 expanded = pieces * (1 + 3 * panels);
    twins_check(o, scheme, why, MM_BF16);
    const size_t n = emu_counted.launches - before;
    if (getenv("LLMQ_TEST_DEVICE")) return;
    CHECK(want ? n == expanded : n < expanded, "%s, %s, %lld rows: %zu launches, %zu if expanded",
          scheme, why, (long long)o->M, n, expanded);
}

static const struct {
    const char *why;
    int64_t M, N, K;
} wide[] = {
    { "one panel", 512, 33, 96 },
    { "panels, the last short, padded groups", 513, 65, 172 },
    { "a tail of steps", 520, 17, 608 },
};

/* So many rows find their weight as bf16, a panel at a time, and cuBLAS multiplies. */
TEST(many_rows_of_codes_are_expanded_for_cublas)
{
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(wide); j++) {
            twins o;
            if ((i + j) % 6 != 0 && !check_hard()) continue;
            if (!twins_open(&o, schemes[i], wide[j].M, wide[j].N, wide[j].K, j)) continue;
            o.dw = put_weight(&o.r, &o.w.t);
            if (ops->blas(&o.r.d) && dev_mm_wide(&o.r.d, &o.dw, MM_BF16, o.M)) {
                check_expanded(&o, schemes[i], wide[j].why, true);
                n++;
            }
            rig_close(&o.r);
        }
    CHECK(n > 10 || getenv("LLMQ_TEST_DEVICE"), "%d products", n);
}

static const struct {
    const char *scheme;
    int64_t from;
} codes[] = {
    { "u2-g32", 512 }, { "u3-g32", 512 }, { "u4-g32", 512 },   { "u4-g64-asym", 512 },
    { "u8-g32", 512 }, { "i8-row", 512 }, { "f16", 512 },      { "nf4", 256 },
    { "mxfp4", 256 },  { "nvfp4", 256 },  { "fp8-e4m3", 256 },
};

TEST(each_code_is_expanded_from_its_own_number_of_rows_on)
{
    static const int64_t rows[] = { 255, 256, 511, 512 };
    for (size_t i = 0; i < LQ_COUNT(codes); i++)
        for (size_t j = 0; j < LQ_COUNT(rows); j++) {
            twins o;
            if (!twins_open(&o, codes[i].scheme, rows[j], 65, 64, j)) {
                CHECK(false, "%s", codes[i].scheme);
                continue;
            }
            o.dw = put_weight(&o.r, &o.w.t);
            if (ops->blas(&o.r.d))
                check_expanded(&o, codes[i].scheme, "by code", rows[j] >= codes[i].from);
            rig_close(&o.r);
        }
}

/* A panel is more than what other kernels keep there, and the last bytes of it are written. */
TEST(the_scratch_has_room_for_what_is_expanded)
{
    twins o;
    if (!twins_open(&o, "mxfp4", 256, 544, 512, 1)) return;
    o.dw = put_weight(&o.r, &o.w.t);
    if (ops->blas(&o.r.d)) check_expanded(&o, "mxfp4", "a panel of much", true);
    rig_close(&o.r);
    for (size_t i = 0; i < LQ_COUNT(codes); i++) {
        enum { N = 14336, K = 4096 };
        dev_weight w = { .t.scheme = fill_scheme(codes[i].scheme), .t.layout = QT_TILE16 };
        w.t.N = N;
        w.t.K = K;
        if (w.t.scheme.kind == QT_I8) w.t.scheme.group = K;
        w.s = tiles_shape(&w.t.scheme, N, K);
        CHECK(ops->mm_scratch(&w, codes[i].from) > DEV_MM_WIDE_BYTES, "%s", codes[i].scheme);
    }
}

TEST(which_rows_are_expanded)
{
    static const struct {
        const char *why, *scheme;
        int64_t M;
        mm_acts acts;
        bool wide, blas, invariant, want;
    } cases[] = {
        { "many", "u4-g32", 512, MM_BF16, true, true, false, true },
        { "one fewer", "u4-g32", 511, MM_BF16, true, true, false, false },
        { "a device that has better", "u4-g32", 4096, MM_BF16, false, true, false, false },
        { "no cuBLAS", "u4-g32", 4096, MM_BF16, true, false, false, false },
        { "one order for any M", "u4-g32", 4096, MM_BF16, true, true, true, false },
        { "one order for any M, of floats", "mxfp4", 4096, MM_BF16, true, true, true, false },
        { "f32", "u4-g32", 4096, MM_F32, true, true, false, false },
        { "integers", "u4-g32", 4096, MM_I8, true, true, false, false },
        { "codes that are none", "nf4", 256, MM_I8, true, true, false, true },
        { "f32 weights", "f32", 4096, MM_BF16, true, true, false, false },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        twins o;
        int here;
        if (!twins_open(&o, cases[i].scheme, 1, 16, 64, 1)) continue;
        const dev_weight w = { o.w.t, tiles_shape(&o.w.t.scheme, 16, 64) };
        const dev d = { .wide = cases[i].wide,
                        .blas_room = cases[i].blas ? &here : NULL,
                        .batch_invariant = cases[i].invariant };
        CHECK(dev_mm_wide(&d, &w, cases[i].acts, cases[i].M) == cases[i].want, "%s", cases[i].why);
        rig_close(&o.r);
    }
    CHECK(dev_mm_wide_bytes(255, 4096, 4096) == 0 && dev_mm_wide_bytes(256, 17, 64) == 4096 &&
              dev_mm_wide_bytes(256, 14336, 4096) == DEV_MM_WIDE_BYTES,
          "what is expanded at a time");
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(many_rows_of_codes_are_expanded_for_cublas);
    RUN(each_code_is_expanded_from_its_own_number_of_rows_on);
    RUN(the_scratch_has_room_for_what_is_expanded);
    RUN(which_rows_are_expanded);
    return check_end();
}
