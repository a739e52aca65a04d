/* tests/unit/test_tiles.c - the tiled layout: the header's picture by hand, and there and back again. */
#include "formats/tensor/tiles.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

static const char *const schemes[] = { FILL_SCHEMES };

static bool alloc_planes(void *w[QT_N_PLANES], qt_tensor *t, lq_arena *a)
{
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t n = qt_plane_bytes(&t->scheme, t->layout, t->N, t->K, (qt_plane)p);
        w[p] = n ? lq_push(a, n) : NULL;
        t->plane[p] = (qt_span){ w[p], n };
        if (n && !w[p]) return false;
    }
    return true;
}

TEST(codes_lie_where_the_picture_says)
{
    /* One row of 32 codes: code of input i is distinct enough to be found again. */
    static const struct {
        int bits, input, byte, shift, high_byte, high_shift;
    } at[] = {
        { 8, 0, 0, 0, 0, 0 },   { 8, 5, 65, 0, 0, 0 },    { 8, 31, 7 * 64 + 3, 0, 0, 0 },
        { 4, 3, 3, 0, 0, 0 },   { 4, 4, 0, 4, 0, 0 },     { 4, 31, 3 * 64 + 3, 4, 0, 0 },
        { 2, 6, 2, 2, 0, 0 },   { 2, 16, 64, 0, 0, 0 },   { 2, 31, 64 + 3, 6, 0, 0 },
        { 3, 6, 2, 2, 130, 1 }, { 3, 17, 65, 0, 129, 4 }, { 3, 31, 64 + 3, 6, 131, 7 },
    };
    lq_arena a;
    lq_arena_init(&a, 0, NULL);
    for (size_t i = 0; i < LQ_COUNT(at); i++) {
        int bits = at[i].bits;
        char name[16];
        snprintf(name, sizeof name, "u%d-g32", bits);
        qt_scheme s = fill_scheme(name);
        qt_tensor p, t = { .scheme = s, .layout = QT_TILE16, .N = 2, .K = 32 };
        void *w[QT_N_PLANES], *tw[QT_N_PLANES];
        CHECK(!qt_alloc(&p, w, &s, 2, 32, &a, NULL) && alloc_planes(tw, &t, &a), "alloc");
        uint8_t row[32] = { 0 };
        row[at[i].input] = (uint8_t)((1u << bits) - 1);
        qt_pack_row((uint8_t *)w[QT_CODES] + qt_row_bytes(32, bits), row, 32, bits); /* row 1 */
        tiles_pack(tw, &p, 0, 1);
        const uint8_t *c = tw[QT_CODES];
        unsigned low = bits == 3 ? 3 : (1u << bits) - 1;
        int ones = 0, want = bits;
        CHECK(c[4 + at[i].byte] == low << at[i].shift, "%d bit input %d", bits, at[i].input);
        if (bits == 3)
            CHECK(c[4 + at[i].high_byte] == 1u << at[i].high_shift, "high bit of %d", at[i].input);
        for (size_t b = 0; b < t.plane[QT_CODES].bytes; b++)
            ones += __builtin_popcount(c[b]);
        CHECK(ones == want, "%d bit input %d: %d bits set", bits, at[i].input, ones);
    }
    lq_arena_free(&a);
}

/* Once more, tile by tile from the last on. */
static void unpack_in_parts(void *w[QT_N_PLANES], const qt_tensor *t, int64_t tiles,
                            const qt_tensor *back, lq_arena *a)
{
    uint8_t *scratch = lq_push(a, tiles_scratch(t));
    for (int p = 0; p < QT_N_PLANES; p++)
        if (w[p]) memset(w[p], 0, back->plane[p].bytes);
    for (int64_t k = tiles - 1; k >= 0; k--)
        tiles_unpack_part(w, t, k, k + 1, scratch);
    tiles_unpack_shared(w, t);
}

TEST(every_scheme_comes_back_bit_for_bit)
{
    static const struct {
        const char *why;
        int64_t N, K;
    } shapes[] = { { "one row", 1, 384 },    { "a tile and one", 17, 384 },
                   { "odd width", 16, 172 }, { "two tiles and a row", 33, 96 },
                   { "tiny", 3, 16 },        { "odd elements", 5, 43 } };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
            int64_t N = shapes[j].N, K = shapes[j].K;
            qt_scheme s = fill_scheme(schemes[i]);
            if (fill_misfit(&s, K)) continue;
            if (s.kind == QT_I8_OUTLIER) s.n_out = j == 0 ? 0 : K / 5 + 1;
            lq_arena a;
            lq_arena_init(&a, 0, NULL);
            qt_tensor p = fill_tensor(s, N, K, &a, i * 100 + j);
            qt_tensor t = {
                .scheme = tiles_scheme(&p.scheme, N, K), .layout = QT_TILE16, .N = N, .K = K
            };
            qt_tensor back = { .scheme = t.scheme, .N = N, .K = K };
            void *w[QT_N_PLANES], *bw[QT_N_PLANES];
            lq_err err = { "" };
            CHECK(alloc_planes(w, &t, &a) && alloc_planes(bw, &back, &a), "alloc");
            tiles_pack_shared(w, &p);
            int64_t tiles = tiles_shape(&t.scheme, N, K).tiles;
            for (int64_t k = tiles - 1; k >= 0; k--)
                tiles_pack(w, &p, k, k + 1); /* any order */
            CHECK(!qt_check_view(&t, &err), "%s: %s", schemes[i], err.msg);
            CHECK(!tiles_unpack(bw, &t, &err), "%s: %s", schemes[i], err.msg);
            if (j % 2) unpack_in_parts(bw, &t, tiles, &back, &a);
            CHECK(!qt_check_view(&back, &err), "%s: %s", schemes[i], err.msg);
            bool kept = t.scheme.kind == p.scheme.kind && t.scheme.dbl == p.scheme.dbl;
            for (int q = 0; q < QT_N_PLANES && kept; q++)
                CHECK(back.plane[q].bytes == p.plane[q].bytes &&
                          (!p.plane[q].bytes ||
                           memcmp(back.plane[q].data, p.plane[q].data, p.plane[q].bytes) == 0),
                      "%s, %s [%lld,%lld]: plane %s", schemes[i], shapes[j].why, (long long)N,
                      (long long)K, qt_plane_text((qt_plane)q));
            float *x = lq_push(&a, (size_t)(N * K) * 4), *y = lq_push(&a, (size_t)(N * K) * 4);
            qt_dequant(x, &p, 0, N);
            qt_dequant(y, &back, 0, N);
            CHECK(memcmp(x, y, (size_t)(N * K) * 4) == 0, "%s, %s: values", schemes[i],
                  shapes[j].why);
            lq_arena_free(&a);
        }
}

TEST(a_tiled_view_needs_a_permutation)
{
    lq_arena a;
    lq_arena_init(&a, 0, NULL);
    qt_tensor p = fill_tensor(fill_scheme("gidx u4-g32"), 3, 96, &a, 5);
    qt_tensor t = { .scheme = p.scheme, .layout = QT_TILE16, .N = 3, .K = 96 };
    void *w[QT_N_PLANES];
    CHECK(alloc_planes(w, &t, &a), "alloc");
    tiles_pack_shared(w, &p);
    tiles_pack(w, &p, 0, 1);
    CHECK(!qt_check_view(&t, NULL), "as packed");
    ((int32_t *)w[QT_GIDX])[3] = ((int32_t *)w[QT_GIDX])[4];
    CHECK(qt_check_view(&t, NULL) == LQ_EUNSUPPORTED, "an input twice");
    ((int32_t *)w[QT_GIDX])[3] = 96;
    CHECK(qt_check_view(&t, NULL) == LQ_EVALUE, "an input beyond the last");
    qt_tensor nf4 = fill_tensor(fill_scheme("nf4-double"), 3, 64, &a, 5);
    nf4.layout = QT_TILE16;
    CHECK(qt_check_view(&nf4, NULL) == LQ_EFORMAT, "double quantization is not tiled");
    lq_arena_free(&a);
}

int main(int argc, char **argv)
{
    RUN(codes_lie_where_the_picture_says);
    RUN(every_scheme_comes_back_bit_for_bit);
    RUN(a_tiled_view_needs_a_permutation);
    return check_end();
}
