/* tests/unit/test_tiles_cut.c - parts of tiled tensors: their weights are the whole's, and products by
 * them, one beside the other or summed, the whole's product. */
#include "formats/tensor/tiles.h"
#include "tests/support/mm_rig.h"

static const char *const schemes[] = { FILL_SCHEMES };
enum { N = 70, K = 384, M = 3 };

/* A part that owns its planes. */
static lq_status cut(qt_tensor *part, const qt_tensor *t, const tile_rows *rows, int n, int64_t k0,
                     int64_t k1, lq_arena *a, lq_err *err)
{
    void *w[QT_N_PLANES];
    lq_status s = tiles_part(part, t, rows, n, k0, k1, err);
    for (int p = 0; p < QT_N_PLANES && !s; p++) {
        w[p] = part->plane[p].bytes ? lq_push(a, part->plane[p].bytes) : NULL;
        if (w[p]) memset(w[p], 0xa5, part->plane[p].bytes);
        part->plane[p].data = w[p];
    }
    if (!s) tiles_cut(w, part, t, rows, n, k0);
    const bool in_files = t->scheme.kind != QT_BLOCKS; /* their tiles are in memory alone */
    return s || !in_files ? s : qt_check_view(part, err);
}

/* All weights of a tiled tensor. */
static float *weights(const qt_tensor *t, lq_arena *a)
{
    qt_tensor p = { .scheme = t->scheme, .N = t->N, .K = t->K };
    void *w[QT_N_PLANES];
    lq_err err = { "" };
    for (int i = 0; i < QT_N_PLANES; i++) {
        const size_t n = qt_plane_bytes(&p.scheme, QT_PORTABLE, p.N, p.K, (qt_plane)i);
        w[i] = n ? lq_push(a, n) : NULL;
        p.plane[i] = (qt_span){ w[i], n };
    }
    CHECK(!tiles_unpack(w, t, &err), "%s", err.msg);
    float *out = lq_push(a, (size_t)(t->N * t->K) * sizeof *out);
    qt_dequant(out, &p, 0, t->N);
    return out;
}

/* Where inputs may be cut: a group of roundings or of weights, or what lies together. */
static int64_t step_of(const qt_tensor *t)
{
    if (t->scheme.act_group) return t->scheme.act_group;
    const tile_shape ts = tiles_shape(&t->scheme, t->N, t->K);
    return ts.ng > 1 || t->scheme.kind == QT_E2M1 ? ts.G : tiles_unit(&t->scheme);
}
static bool inputs_stay(const qt_scheme *s) { return s->act_order || (s->act && !s->act_group); }

static const struct {
    const char *why;
    tile_rows rows[3];
    int n;
    int k0, k1; /* in steps; k1 0: to the end */
} cuts[] = {
    { "whole tiles", { { 16, 48 } }, 1, 0, 0 },
    { "rows out of their tiles", { { 3, 21 }, { 40, 41 }, { 50, 70 } }, 3, 0, 0 },
    { "the last inputs", { { 0, 70 } }, 1, 1, 0 },
    { "inputs in the middle, of some rows", { { 17, 30 }, { 64, 70 } }, 2, 1, 3 },
    { "the first inputs", { { 0, 70 } }, 1, 0, 1 },
};

TEST(parts_have_the_weights_of_the_whole)
{
    int seen = 0;
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        problem b;
        if (!problem_make(&b, schemes[i], M, N, K, 7 + i)) continue;
        const qt_tensor *t = &b.w.t;
        const float *all = weights(t, &b.a);
        for (size_t j = 0; j < LQ_COUNT(cuts); j++) {
            const int64_t k0 = cuts[j].k0 * step_of(t);
            const int64_t k1 = cuts[j].k1 ? cuts[j].k1 * step_of(t) : K;
            lq_err err = { "" };
            qt_tensor part;
            if (k0 >= k1 || k1 > K || ((k0 || k1 < K) && inputs_stay(&t->scheme))) continue;
            lq_status s = cut(&part, t, cuts[j].rows, cuts[j].n, k0, k1, &b.a, &err);
            CHECK(!s, "%s, %s: %s", schemes[i], cuts[j].why, err.msg);
            if (s) continue;
            const float *got = weights(&part, &b.a);
            int64_t row = 0, wrong = 0;
            for (int r = 0; r < cuts[j].n; r++)
                for (int64_t n = cuts[j].rows[r].n0; n < cuts[j].rows[r].n1; n++, row++)
                    wrong += memcmp(got + row * part.K, all + n * K + k0,
                                    (size_t)part.K * sizeof *got) != 0;
            CHECK(row == part.N && wrong == 0, "%s, %s: %lld of %lld rows differ", schemes[i],
                  cuts[j].why, (long long)wrong, (long long)part.N);
            seen++;
        }
        problem_free(&b);
    }
    CHECK(seen > 200, "%d cuts", seen);
}

/* Rows of tiles of GGUF's blocks, f32 [K][16] each. */
static float *blocks_weights(const qt_tensor *t, lq_arena *a)
{
    const int64_t tiles = lq_ceil_div(t->N, TILE_N);
    float *out = lq_push(a, (size_t)(tiles * TILE_N * t->K) * sizeof *out);
    for (int64_t i = 0; i < tiles; i++)
        tiles_blocks(out + i * TILE_N * t->K, t, i);
    return out;
}

TEST(parts_of_blocks_have_the_weights_of_the_whole)
{
    uint32_t seed = 1;
#define X(name, number, elements, bytes) number,
    static const int ids[] = { BLK_TYPES(X) };
#undef X
    for (size_t at = 0; at < LQ_COUNT(ids); at++) {
        const blk_type *type = blk_find(ids[at]);
        const int64_t K3 = 3 * type->elements;
        const size_t bytes = (size_t)N * blk_row_bytes(type, K3);
        lq_arena a = { 0 };
        uint8_t *p = lq_push(&a, bytes);
        for (size_t i = 0; i < bytes; i++)
            p[i] = (seed = seed * 1664525u + 1013904223u) >> 24 & 0x3bu; /* no infinite f16 */
        const qt_tensor stored = { .scheme = { .kind = QT_BLOCKS, .blocks = ids[at] },
                                   .N = N,
                                   .K = K3,
                                   .plane[QT_CODES] = { p, bytes } };
        mm_weight all;
        lq_err err = { "" };
        CHECK(!mm_pack(&all, &stored, &a, NULL, &err), "%s: %s", type->name, err.msg);
        const float *want = blocks_weights(&all.t, &a);
        for (size_t j = 0; j < LQ_COUNT(cuts); j++) {
            qt_tensor part;
            if (cuts[j].k0 || cuts[j].k1) continue;
            lq_status s = cut(&part, &all.t, cuts[j].rows, cuts[j].n, 0, K3, &a, &err);
            CHECK(!s, "%s, %s: %s", type->name, cuts[j].why, err.msg);
            if (s) continue;
            const float *got = blocks_weights(&part, &a);
            int64_t row = 0, wrong = 0;
            for (int i = 0; i < cuts[j].n; i++)
                for (int64_t n = cuts[j].rows[i].n0; n < cuts[j].rows[i].n1; n++, row++)
                    for (int64_t k = 0; k < K3; k++)
                        wrong += memcmp(got + (row / TILE_N * K3 + k) * TILE_N + row % TILE_N,
                                        want + (n / TILE_N * K3 + k) * TILE_N + n % TILE_N,
                                        sizeof *got) != 0;
            CHECK(row == part.N && wrong == 0, "%s, %s: %lld weights differ", type->name,
                  cuts[j].why, (long long)wrong);
        }
        lq_arena_free(&a);
    }
}

/* y [M, N of the part] = x W^T of inputs from k0 on. */
static float *times(problem *b, const qt_tensor *part, int64_t k0)
{
    mm_weight w;
    lq_err err = { "" };
    lq_arena scratch;
    CHECK(!mm_pack(&w, part, &b->a, NULL, &err), "%s", err.msg);
    float *y = lq_push(&b->a, (size_t)(M * part->N) * sizeof *y);
    mm_out o = { .w = &w, .y = y, .ldy = part->N };
    lq_arena_init(&scratch, mm_scratch_bytes(M, K, 1, 1), NULL);
    mm_run(&o, 1, b->x + k0, b->ldx, M, MM_F32, &scratch, NULL);
    lq_arena_free(&scratch);
    return y;
}

/* The bound of kernels/mm.h, of y of row m. */
static double bound(const problem *b, const float *w, int64_t m, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += fabs((double)b->x[m * b->ldx + k] * (double)w[n * K + k]);
    return 3 * K * 0x1p-24 * sum + 1e-30;
}

TEST(products_by_parts_make_the_product_by_the_whole)
{
    enum { RANKS = 2 };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        problem b;
        if (!problem_make(&b, schemes[i], M, N, K, 70 + i)) continue;
        const qt_tensor *t = &b.w.t;
        const float *w = weights(t, &b.a), *want = times(&b, t, 0);
        lq_err err = { "" };
        qt_tensor part[RANKS];
        for (int r = 0; r < RANKS; r++) { /* by outputs: the same bytes */
            const int64_t n0 = r * N / RANKS;
            const tile_rows rows = { n0, (r + 1) * N / RANKS };
            CHECK(!cut(&part[r], t, &rows, 1, 0, K, &b.a, &err), "%s: %s", schemes[i], err.msg);
            const float *got = times(&b, &part[r], 0);
            for (int64_t m = 0; m < M; m++)
                CHECK(memcmp(got + m * part[r].N, want + m * N + n0,
                             (size_t)part[r].N * sizeof *got) == 0,
                      "%s: outputs of part %d", schemes[i], r);
        }
        const int64_t half = K / 2 / step_of(t) * step_of(t);
        if (half && !t->scheme.act && !t->scheme.act_order) { /* by inputs: one more rounding */
            const tile_rows rows = { 0, N };
            CHECK(!cut(&part[0], t, &rows, 1, 0, half, &b.a, &err) &&
                      !cut(&part[1], t, &rows, 1, half, K, &b.a, &err),
                  "%s: %s", schemes[i], err.msg);
            const float *y0 = times(&b, &part[0], 0), *y1 = times(&b, &part[1], half);
            for (int64_t m = 0; m < M; m++)
                for (int64_t n = 0; n < N; n++) {
                    const double apart =
                        fabs((double)(y0[m * N + n] + y1[m * N + n]) - (double)want[m * N + n]);
                    CHECK(apart <= 2 * bound(&b, w, m, n), "%s: (%lld, %lld) %g apart", schemes[i],
                          (long long)m, (long long)n, apart);
                }
        }
        problem_free(&b);
    }
}

static const struct {
    const char *why, *scheme, *said;
    int64_t k0, k1;
    lq_status status;
} refused[] = {
    { "within a group", "u4-g128", "inputs 0..192 of 384: expected multiples of 128, a group", 0,
      192, LQ_ESHAPE },
    { "from within a group", "mxfp4", "expected multiples of 32, a group", 16, 384, LQ_ESHAPE },
    { "within what lies together", "u3-gK-asym", "expected multiples of 32, which lie together", 0,
      16, LQ_ESHAPE },
    { "permuted inputs", "gidx u4-g32-asym", "in an order of their own", 0, 192, LQ_EUNSUPPORTED },
    { "rounded by the largest", "i8-row-a8", "rounded by the largest of all", 0, 192,
      LQ_EUNSUPPORTED },
    { "within a group of roundings", "u4-g32-a8-g64", "rounded by the largest of groups", 0, 32,
      LQ_EUNSUPPORTED },
};

TEST(inputs_are_not_cut_where_a_part_would_differ)
{
    for (size_t i = 0; i < LQ_COUNT(refused); i++) {
        problem b;
        lq_err err = { "" };
        qt_tensor part;
        if (!problem_make(&b, refused[i].scheme, M, N, K, i)) continue;
        const tile_rows all = { 0, N };
        lq_status s = tiles_part(&part, &b.w.t, &all, 1, refused[i].k0, refused[i].k1, &err);
        CHECK(s == refused[i].status && strstr(err.msg, refused[i].said), "%s: %s", refused[i].why,
              err.msg);
        problem_free(&b);
    }
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    CHECK(!k_init(NULL, &err), "%s", err.msg);
    RUN(parts_have_the_weights_of_the_whole);
    RUN(parts_of_blocks_have_the_weights_of_the_whole);
    RUN(products_by_parts_make_the_product_by_the_whole);
    RUN(inputs_are_not_cut_where_a_part_would_differ);
    return check_end();
}
