/* kernels/simd/mm_wide.h - MM_F32 for many rows: weights are unpacked once for all of them, in blocks
 * that stay in the caches; part of mm_tmpl.h.
 *
 *             WIDE_K places
 *     x  [ WIDE_PANEL rows  ]      second cache, for WIDE_CHUNK tiles
 *     w  [ WIDE_TILES tiles ]      f32, first cache, for all rows of the panel
 *     sums [ tiles ][ rows ][ 16 ] go on from one block of places to the next
 *
 * An f32 sum that rests in memory between two steps is the same sum, so the bytes are those of
 * f32_block. WIDE_TILES and WIDE_ROWS, the sums that registers hold, come from the includer.
 *
 * Included once per instruction set; no include guard on purpose. */

#include <assert.h>

enum {
    WIDE_FROM = 12, /* rows: with fewer, unpacking costs more than it saves */
    WIDE_PANEL = 96,
    WIDE_K = 256, /* a multiple of TILE_K */
    WIDE_CHUNK = 8
};
static_assert(WIDE_PANEL % WIDE_ROWS == 0 && WIDE_CHUNK % WIDE_TILES == 0, "whole blocks");

/* w[TILE_N * (p - p0)] := the weights of places p0..p1 of a tile, those of a place together. */
V16 void wide_unpack(float *w, const mm_task *t, w_src src, int64_t tile, int64_t p0, int64_t p1)
{
    const vlut lut = vlut_load(t->w->scheme.kind == QT_LUT4 ? t->w->plane[QT_MAP].data : qt_e2m1);
    const uint8_t *step = (const uint8_t *)t->w->plane[QT_CODES].data +
                          (size_t)tile * t->s.tile_bytes + (size_t)(p0 / TILE_K) * t->s.step_bytes;
    for (int64_t p = p0; p < p1; p += TILE_K, step += t->s.step_bytes) {
        const int64_t g = p / t->s.Gp;
        vf s = load_scale(t, tile, g, 0);
        const vf z = src > W_BF16 && src < W_LUT4 ? load_zero(t, tile, g, src) : vf_set1(0);
        for (int turn = 0; turn < 8 / quads(src); turn++) {
            if (src == W_NV4 && turn == 2) s = load_scale(t, tile, g, 1);
            UNROLL
            for (int k = 0; k < quads(src); k++, w += 4 * TILE_N) {
                vf q[4];
                weights4(q, src, step, turn, k, s, z, lut);
                UNROLL
                for (int j = 0; j < 4; j++)
                    vf_store(w + j * TILE_N, q[j]);
            }
        }
    }
}

#define WIDE_CASE(SRC)                        \
    case SRC:                                 \
        wide_unpack(w, t, SRC, tile, p0, p1); \
        return w;
/* The same where it is, or in w. */
static inline const float *wide_weights(float *w, const mm_task *t, int64_t tile, int64_t p0,
                                        int64_t p1)
{
    switch (w_src_of(&t->w->scheme)) {
    case W_F32:
        return (const float *)t->w->plane[QT_CODES].data + (tile * t->s.Kp + p0) * TILE_N;
        WIDE_CASE(W_F16)
        WIDE_CASE(W_BF16)
        WIDE_CASE(W_U2)
        WIDE_CASE(W_U3)
        WIDE_CASE(W_U4)
        WIDE_CASE(W_U8)
        WIDE_CASE(W_U2B)
        WIDE_CASE(W_U3B)
        WIDE_CASE(W_U4B)
        WIDE_CASE(W_U8B)
        WIDE_CASE(W_NV4)
        WIDE_CASE(W_E4M3)
    default:
        WIDE_CASE(W_LUT4)
    }
}

typedef float wide_sums[WIDE_PANEL][TILE_N]; /* of a tile */

/* WIDE_ROWS rows of WIDE_TILES tiles: sums += x w over n places, or = where they begin. `first` is the first row's in
 * the first tile. A place at a time: in a loop over several compilers load ahead, and keep a sum in memory for want of a register. */
V16 void wide_block(float (*first)[TILE_N], const float *const *x, const float *const *w, int64_t n,
                    bool begins)
{
    vf acc[WIDE_ROWS][WIDE_TILES];
    UNROLL
    for (int r = 0; r < WIDE_ROWS; r++) {
        UNROLL
        for (int i = 0; i < WIDE_TILES; i++)
            acc[r][i] = begins ? vf_set1(0) : vf_load(first[i * WIDE_PANEL + r]);
    }
    for (int64_t p = 0; p < n; p++) {
        vf v[WIDE_TILES];
        UNROLL
        for (int i = 0; i < WIDE_TILES; i++)
            v[i] = vf_load(w[i] + p * TILE_N);
        UNROLL
        for (int r = 0; r < WIDE_ROWS; r++) {
            const vf xv = vf_set1(x[r][p]);
            UNROLL
            for (int i = 0; i < WIDE_TILES; i++)
                acc[r][i] = vf_fma(xv, v[i], acc[r][i]);
        }
    }
    UNROLL
    for (int r = 0; r < WIDE_ROWS; r++) {
        UNROLL
        for (int i = 0; i < WIDE_TILES; i++)
            vf_store(first[i * WIDE_PANEL + r], acc[r][i]);
    }
}

/* Rows m0..m1 of tiles t0..t1 of the task: at most a panel and a chunk. */
static inline void wide_panel(const mm_task *t, int64_t m0, int64_t m1, int64_t t0, int64_t t1)
{
    wide_sums sums[WIDE_CHUNK];
    float unpacked[WIDE_TILES][WIDE_K * TILE_N];
    for (int64_t p = 0; p < t->s.Kp; p += WIDE_K) {
        const int64_t end = t->s.Kp - p < WIDE_K ? t->s.Kp : p + WIDE_K;
        for (int64_t tile = t0; tile < t1; tile += WIDE_TILES) {
            const float *w[WIDE_TILES], *x[WIDE_ROWS];
            for (int i = 0; i < WIDE_TILES; i++)
                w[i] = i && tile + i >= t1 ? w[0] : wide_weights(unpacked[i], t, tile + i, p, end);
            for (int64_t m = m0; m < m1; m += WIDE_ROWS) {
                for (int r = 0; r < WIDE_ROWS; r++)
                    x[r] = t->x.f + (m + r < m1 ? m + r : m1 - 1) * t->x.ldf + p;
                wide_block(&sums[tile - t0][m - m0], x, w, end - p, p == 0);
            }
        }
    }
    for (int64_t tile = t0; tile < t1; tile += WIDE_TILES)
        for (int64_t m = m0; m < m1; m += WIDE_ROWS) {
            const block b = block_at(t, m, tile, WIDE_ROWS, WIDE_TILES);
            vf acc[WIDE_ROWS * WIDE_TILES];
            for (int r = 0; r < WIDE_ROWS; r++)
                for (int i = 0; i < WIDE_TILES; i++)
                    acc[r * WIDE_TILES + i] = vf_load(sums[tile - t0 + i][m - m0 + r]);
            block_store(t, &b, acc, WIDE_TILES);
        }
}

static inline void f32_wide(const mm_task *t)
{
    for (int64_t m = t->m0; m < t->m1; m += WIDE_PANEL)
        for (int64_t tile = t->t0; tile < t->t1; tile += WIDE_CHUNK)
            wide_panel(t, m, m + WIDE_PANEL < t->m1 ? m + WIDE_PANEL : t->m1, tile,
                       tile + WIDE_CHUNK < t->t1 ? tile + WIDE_CHUNK : t->t1);
}
