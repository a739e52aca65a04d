/* tests/unit/test_finite.c - numbers beside codes that no quantizer writes. */
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

enum { ROWS = 48, COLS = 1536 }; /* whole tiles; planes long enough for the pass of vectors */

#define NAN32 0x7fc00000u
#define INF32 0xff800000u
static const struct {
    const char *why, *scheme;
    qt_plane plane;
    lq_dtype d;
    uint32_t bits;
    const char *says; /* NULL: legal */
} cases[] = {
    { "f16 NaN", "u4-g32", QT_SCALES, LQ_F16, 0x7e00,
      "scales: expected finite numbers, found NaN" },
    { "f16 infinity", "u4-g32", QT_SCALES, LQ_F16, 0xfc00, "found infinity" },
    { "a scale of 0: a group of zeros", "u4-g32", QT_SCALES, LQ_F16, 0, NULL },
    { "a negative scale, as Q4_0 has", "u4-g32", QT_SCALES, LQ_F16, 0xb800, NULL },
    { "bf16 NaN", "bf16s u4-g32", QT_SCALES, LQ_BF16, 0x7fc0, "scales: " },
    { "f32 NaN", "f32s u4-g32-asym", QT_SCALES, LQ_F32, NAN32, "scales: " },
    { "a zero point that is none", "u4-g32-fzero", QT_ZEROS, LQ_F16, 0x7e00, "zeros: " },
    { "a bias that is none", "f32s u8-g32-bias", QT_ZEROS, LQ_F32, INF32, "zeros: " },
    { "a negative bias", "f32s u8-g32-bias", QT_ZEROS, LQ_F32, 0xbf800000u, NULL },
    { "a row's absmax", "i8-row", QT_SCALES, LQ_F32, NAN32, "from 0 on, found NaN" },
    { "an absmax below 0", "i8-row", QT_SCALES, LQ_F32, 0xc0400000u, "from 0 on, found -3" },
    { "a row of zeros", "i8-row", QT_SCALES, LQ_F32, 0, NULL },
    { "an absmax of -0", "i8-row", QT_SCALES, LQ_F32, 0x80000000u, NULL },
    { "a scale below 0, no absmax", "i8-row-asym", QT_SCALES, LQ_F32, 0xc0400000u, NULL },
    { "a block's absmax", "nf4", QT_SCALES, LQ_F32, INF32, "from 0 on, found infinity" },
    { "a block's below 0", "nf4", QT_SCALES, LQ_F32, 0x80000001u, "from 0 on, found -1.4" },
    { "the table", "nf4", QT_MAP, LQ_F32, NAN32, "map: " },
    { "absmax of absmax", "nf4-double", QT_SCALES2, LQ_F32, 0xbf800000u, "scales2: " },
    { "the table of absmax", "nf4-double", QT_MAP2, LQ_F32, NAN32, "map2: " },
    { "a code of fp8", "fp8-e4m3", QT_CODES, LQ_F8_E4M3, 0xff, "codes: " },
    { "its largest", "fp8-e4m3", QT_CODES, LQ_F8_E4M3, 0x7e, NULL },
    { "a scale of fp8", "fp8-e4m3", QT_SCALES, LQ_F32, NAN32, "scales: " },
    { "a scale of mxfp4", "mxfp4", QT_SCALES, LQ_F8_E8M0, 0xff, "scales: " },
    { "the largest of mxfp4", "mxfp4", QT_SCALES, LQ_F8_E8M0, 0xfe, NULL },
    { "a scale of nvfp4", "nvfp4", QT_SCALES, LQ_F8_E4M3, 0x7f, "scales: " },
    { "nvfp4's second, 0", "nvfp4", QT_SCALES2, LQ_F32, 0, NULL },
    { "nvfp4's second, below 0", "nvfp4", QT_SCALES2, LQ_F32, 0xbf800000u, "scales2: " },
    { "one that divides, 0", "recip nvfp4", QT_SCALES2, LQ_F32, 0, "above 0, found 0" },
    { "one that divides, infinite", "recip nvfp4", QT_SCALES2, LQ_F32, INF32, "scales2: " },
};

static qt_tensor tiled(const qt_tensor *p, lq_arena *a)
{
    qt_tensor t = { .scheme = p->scheme, .layout = QT_TILE16, .N = p->N, .K = p->K };
    void *w[QT_N_PLANES];
    for (int i = 0; i < QT_N_PLANES; i++) {
        const size_t n = qt_plane_bytes(&t.scheme, QT_TILE16, t.N, t.K, (qt_plane)i);
        w[i] = n ? lq_push(a, n) : NULL;
        t.plane[i] = (qt_span){ w[i], n };
    }
    tiles_pack_shared(w, p);
    tiles_pack(w, p, 0, p->N / TILE_N);
    return t;
}

/* The number at place i of the case's plane is exchanged, and put back. */
static void try(const qt_tensor *t, size_t c, size_t i)
{
    const size_t size = lq_dtype_bytes(cases[c].d);
    uint8_t *at = (uint8_t *)(uintptr_t)t->plane[cases[c].plane].data + i * size, was[4];
    lq_err err = { "" };
    char place[32];
    memcpy(was, at, size);
    memcpy(at, &cases[c].bits, size);
    const lq_status s = val_check(t, true, &err);
    snprintf(place, sizeof place, "at number %zu", i);
    CHECK(s == (cases[c].says ? LQ_EVALUE : LQ_OK), "%s, %zu: %d %s", cases[c].why, i, (int)s,
          err.msg);
    CHECK(!cases[c].says || (strstr(err.msg, cases[c].says) && strstr(err.msg, place)), "%s: %s",
          cases[c].why, err.msg);
    if (cases[c].plane == QT_CODES && cases[c].says)
        CHECK(!val_check(t, false, &err), "%s: codes are looked at where asked", cases[c].why);
    memcpy(at, was, size);
}

TEST(what_no_quantizer_writes_is_named)
{
    for (size_t c = 0; c < LQ_COUNT(cases); c++) {
        lq_arena a = { 0 };
        const qt_scheme s = fill_scheme(cases[c].scheme);
        const qt_tensor p = fill_tensor(s, ROWS, COLS, &a, c);
        qt_tensor both[2] = { p, p };
        if (tiles_keep(&s, ROWS, COLS)) both[1] = tiled(&p, &a);
        for (int k = 0; k < 2; k++) {
            lq_err err = { "" };
            const size_t n = both[k].plane[cases[c].plane].bytes / lq_dtype_bytes(cases[c].d);
            CHECK(!val_check(&both[k], true, &err), "%s: %s", cases[c].scheme, err.msg);
            try(&both[k], c, 0);
            try(&both[k], c, n / 2);
            try(&both[k], c, n - 1);
        }
        lq_arena_free(&a);
    }
}

TEST(every_scheme_of_the_other_tests_is_legal)
{
    static const char *const schemes[] = { FILL_SCHEMES };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        static const int64_t shapes[][2] = { { 1, 384 }, { 17, 384 }, { 16, 172 }, { 5, 43 } };
        for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
            qt_scheme s = fill_scheme(schemes[i]);
            lq_arena a = { 0 };
            lq_err err = { "" };
            if (fill_misfit(&s, shapes[j][1])) continue;
            if (s.kind == QT_I8_OUTLIER) s.n_out = j ? 3 : 0;
            const qt_tensor t = fill_tensor(s, shapes[j][0], shapes[j][1], &a, i);
            CHECK(!val_check(&t, true, &err), "%s: %s", schemes[i], err.msg);
            lq_arena_free(&a);
        }
    }
}

/* Rows beyond the last are 0 in a tile, also where 0 would be no number of the plane. */
TEST(padding_of_tiles_is_no_finding)
{
    lq_arena a = { 0 };
    lq_err err = { "" };
    const qt_tensor p = fill_tensor(fill_scheme("recip nvfp4"), 16, 64, &a, 1);
    qt_tensor t = tiled(&p, &a);
    float *second = (float *)(uintptr_t)t.plane[QT_SCALES2].data;
    t.N = 15;
    second[15] = 0;
    CHECK(!val_check(&t, true, &err), "%s", err.msg);
    second[14] = 0;
    CHECK(val_check(&t, true, &err) == LQ_EVALUE, "the last row that is there");
    lq_arena_free(&a);
}

TEST(the_largest_magnitude_is_found_wherever_it_stands)
{
    static const lq_dtype types[] = { LQ_F32, LQ_F16, LQ_BF16 };
    static const float values[] = { -3, INFINITY, NAN };
    for (size_t d = 0; d < LQ_COUNT(types); d++)
        for (size_t v = 0; v < LQ_COUNT(values); v++)
            for (size_t n = 1; n < 1200; n += 373)
                for (size_t at = 0; at < n; at += n < 8 ? 1 : n / 7) {
                    uint8_t data[1200 * 4] = { 0 };
                    const size_t size = lq_dtype_bytes(types[d]);
                    lq_from_f32(data + at * size, &values[v], types[d], 1);
                    const float most = val_largest(data, types[d], n);
                    CHECK(isnan(values[v]) ? isnan(most)
                                           : most >= fabsf(values[v]) && most <= fabsf(values[v]),
                          "%s: %g at %zu of %zu", lq_dtype_text(types[d]), (double)most, at, n);
                }
}

int main(int argc, char **argv)
{
    RUN(what_no_quantizer_writes_is_named);
    RUN(every_scheme_of_the_other_tests_is_legal);
    RUN(padding_of_tiles_is_no_finding);
    RUN(the_largest_magnitude_is_found_wherever_it_stands);
    return check_end();
}
