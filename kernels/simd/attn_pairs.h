/* kernels/simd/attn_pairs.h - attention's steps on pairs of bf16 numbers (VDPBF16PS, BFDOT): twice the
 * rate of f32, and tiles of half the size, each in two halves of 16 keys. Scores: a lane is a key,
 * and a word of the tile two elements of it, [D/2][16]; values: a lane is an element, and a word
 * the two keys 2j, 2j+1, [8][D]. The next tile is asked for between the products of this one: what
 * is asked for at once is more than can be under way. The includer has
 *
 *     dot2(acc, a, b)          two products added to each lane
 *     vi_to_bf16(low, high)    32 numbers as bf16, in order
 *     vi_load32(p)             32 bytes, and zeros
 *     vi_zip16(z, a, b)        the halves of words of a and b in turn: of the first 8 lanes in
 *                              z[0], of the others in z[1]
 *     store_keys(kt, x, n, words)
 *                              kt[c][r] := word c of x[r], r < n; x [PAIR_KEYS] is lost
 *
 * and PAIR_KEYS; PAIR_ROWS and PAIR_FEWER, rows of the scores' sums, of two vectors each;
 * PAIR_PV_VECS, vectors of the values' sums of four rows.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/core/k_ops.h"
#include "kernels/simd/kv_tmpl.h"

/* 32 elements (16 and zeros), from i on, of a row of D as bf16, in order; scale: of other types than
 * int4, the row's. */
V16 vi kv_bf16(const uint8_t *row, kv_dtype d, vf scale, int64_t i, int64_t D, int elements)
{
    const uint8_t *p = row + attn_kv_head(d) + i * attn_kv_bits(d) / 8;
    if (d == KV_BF16) return elements == 32 ? vi_load(p) : vi_load32(p);
    vf second = scale, high = vf_set1(0);
    if (d == KV_I4) {
        scale = kv_scale(row, d, i, D);
        second = elements == 32 ? kv_scale(row, d, i + 16, D) : scale;
    }
    if (elements == 32) high = kv_load(p + 2 * attn_kv_bits(d), d, second);
    return vi_to_bf16(kv_load(p, d, scale), high);
}

/* n <= PAIR_KEYS keys, `elements` of each from i on. */
V16 void k_pairs_part(uint32_t *kt, const uint8_t *src, int n, int64_t i, int elements, int64_t D,
                      kv_dtype d)
{
    const size_t bytes = attn_kv_row_bytes(d, D);
    vf x[PAIR_KEYS];
    UNROLL
    for (int r = 0; r < PAIR_KEYS; r++) {
        const uint8_t *row = src + (size_t)(r < n ? r : n - 1) * bytes;
        x[r] = vf_cast(kv_bf16(row, d, kv_scale(row, d, i, D), i, D, elements));
    }
    store_keys(kt + i / 2 * ATTN_LANES, x, n, elements / 2);
}

V16 void k_pairs(uint32_t *kt, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    const size_t bytes = attn_kv_row_bytes(d, D);
    for (int j = 0; j < n; j += PAIR_KEYS, src += PAIR_KEYS * bytes) {
        uint32_t *to = kt + j / ATTN_LANES * (D / 2 * ATTN_LANES) + j % ATTN_LANES;
        int64_t i = 0;
        for (; i + 32 <= D; i += 32)
            if (n - j >= PAIR_KEYS)
                k_pairs_part(to, src, PAIR_KEYS, i, 32, D, d);
            else
                k_pairs_part(to, src, n - j, i, 32, D, d);
        if (i < D) k_pairs_part(to, src, n - j < PAIR_KEYS ? n - j : PAIR_KEYS, i, 16, D, d);
    }
}

static void pairs_attn_k(uint32_t *kt, const uint8_t *src, int n, int64_t D,
                         kv_dtype d){ KV_KNOWN(d, k_pairs, kt, src, n, D) }

V16 void v_pairs(uint32_t *v, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    const size_t bytes = attn_kv_row_bytes(d, D);
    for (int j = 0; j < n; j += 2, src += 2 * bytes, v += D) {
        const uint8_t *b = j + 1 < n ? src + bytes : src; /* of the last, anything finite */
        const vf sa = kv_scale(src, d, 0, D), sb = kv_scale(b, d, 0, D);
        int64_t i = 0;
        for (; i + 32 <= D; i += 32) {
            const vi x = kv_bf16(src, d, sa, i, D, 32), y = kv_bf16(b, d, sb, i, D, 32);
            vi z[2];
            vi_zip16(z, x, y);
            vi_store(v + i, z[0]);
            vi_store(v + i + 16, z[1]);
        }
        if (i < D) {
            const vi x = kv_bf16(src, d, sa, i, D, 16), y = kv_bf16(b, d, sb, i, D, 16);
            vi z[2];
            vi_zip16(z, x, y);
            vi_store(v + i, z[0]);
        }
    }
}

static void pairs_attn_v(uint32_t *v, const uint8_t *src, int n, int64_t D,
                         kv_dtype d){ KV_KNOWN(d, v_pairs, v, src, n, D) }

V16 void ask_next(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        v16_prefetch(p + i);
}

/* R rows against the tile: R x 2 sums. next: NULL or what is asked for meanwhile. */
V16 void scores_pairs(float *s, const uint16_t *q, const uint32_t *const kt[2], int64_t D,
                      float scale, const k_next *next, int R)
{
    vf sum[PAIR_ROWS][2];
    UNROLL
    for (int r = 0; r < R; r++)
        sum[r][0] = sum[r][1] = vf_set1(0);
    const uint32_t *low = kt[0], *high = kt[1];
    const size_t step = next ? next->bytes / (size_t)(D / 8) : 0; /* of the turns of a run */
    for (int64_t run = 0, d = 0; run < 4; run++) {
        const uint8_t *ask = next ? next->at[run] : NULL;
        for (; d < (run + 1) * D / 4; d += 2, low += ATTN_LANES, high += ATTN_LANES) {
            const vi k0 = vi_load(low), k1 = vi_load(high);
            if (next) {
                ask_next(ask, step);
                ask += step;
            }
            UNROLL
            for (int r = 0; r < R; r++) {
                const vi x = vi_word(q + r * D + d);
                sum[r][0] = dot2(sum[r][0], k0, x);
                sum[r][1] = dot2(sum[r][1], k1, x);
            }
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int h = 0; h < 2; h++)
            vf_store(s + r * ATTN_TILE + 16 * h, vf_mul(vf_set1(scale), sum[r][h]));
    }
}

static void pairs_attn_scores(float *s, const uint16_t *q, const uint32_t *const kt[2], int64_t R,
                              int64_t D, float scale, const k_next *next)
{
    int64_t r = 0; /* the first rows ask */
    if (R >= PAIR_ROWS)
        scores_pairs(s, q, kt, D, scale, next, PAIR_ROWS), r = PAIR_ROWS;
    else if (R >= PAIR_FEWER)
        scores_pairs(s, q, kt, D, scale, next, PAIR_FEWER), r = PAIR_FEWER;
    else if (R > 0)
        scores_pairs(s, q, kt, D, scale, next, 1), r = 1;
    for (; r + PAIR_ROWS <= R; r += PAIR_ROWS)
        scores_pairs(s + r * ATTN_TILE, q + r * D, kt, D, scale, NULL, PAIR_ROWS);
    for (; r + PAIR_FEWER <= R; r += PAIR_FEWER)
        scores_pairs(s + r * ATTN_TILE, q + r * D, kt, D, scale, NULL, PAIR_FEWER);
    for (; r < R; r++)
        scores_pairs(s + r * ATTN_TILE, q + r * D, kt, D, scale, NULL, 1);
}

/* The sums of R rows with the keys of one word, of which `seen` masks those that they see: what
 * they do not see may be no number, and zero times it would be none. p: the word of the first row's
 * weights. */
V16 void pv_word(vf sum[4][4], const float *p, const uint32_t *v, int R, int NV, vi seen)
{
    vi val[4];
    UNROLL
    for (int n = 0; n < NV; n++)
        val[n] = vi_and(seen, vi_load(v + 16 * n));
    UNROLL
    for (int r = 0; r < R; r++) {
        const vi x = vi_word(p + r * ATTN_TILE);
        UNROLL
        for (int n = 0; n < NV; n++)
            sum[r][n] = dot2(sum[r][n], val[n], x);
    }
}

/* Word j of the tile. */
V16 const uint32_t *pv_at(const uint32_t *const v[2], int j, int64_t D)
{
    return v[j / (ATTN_LANES / 2)] + j % (ATTN_LANES / 2) * D;
}

/* R rows that see the same keys, NV vectors of elements from d on. */
V16 void pv_pairs(float *acc, const float *p, const uint32_t *const v[2], const float *a, int lo,
                  int hi, int64_t d, int64_t D, const k_next *next, int R, int NV)
{
    vf sum[4][4];
    const size_t step = next ? next->bytes / 4 : 0; /* four words to a run */
    acc += d;
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int n = 0; n < NV; n++)
            sum[r][n] = vf_mul(vf_load(acc + r * D + 16 * n), vf_set1(a[r]));
    }
    int j = lo / 2;
    if (lo % 2) {
        pv_word(sum, p + j, pv_at(v, j, D) + d, R, NV, vi_set1(INT32_C(-0x10000)));
        j++;
    }
    for (; j < hi / 2; j++) {
        if (next) ask_next(next->at[j / 4] + (size_t)(j % 4) * step, step);
        pv_word(sum, p + j, pv_at(v, j, D) + d, R, NV, vi_set1(-1));
    }
    if (hi % 2) pv_word(sum, p + j, pv_at(v, j, D) + d, R, NV, vi_set1(0xffff));
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int n = 0; n < NV; n++)
            vf_store(acc + r * D + 16 * n, sum[r][n]);
    }
}

V16 void pv_pairs_all(float *acc, const float *p, const uint32_t *const v[2], const float *a,
                      int lo, int hi, int64_t D, const k_next *next, int R)
{
    const int NV = R == 1 ? 4 : PAIR_PV_VECS;
    int64_t d = 0;
    if (next && 16 * NV <= D) {
        pv_pairs(acc, p, v, a, lo, hi, 0, D, next, R, NV);
        d = 16 * NV;
    }
    for (; d + 16 * NV <= D; d += 16 * NV)
        pv_pairs(acc, p, v, a, lo, hi, d, D, NULL, R, NV);
    for (; d < D; d += 16)
        pv_pairs(acc, p, v, a, lo, hi, d, D, NULL, R, 1);
}

static void pairs_attn_pv(float *acc, float *s, const uint32_t *const v[2], const float *a,
                          const int *lo, const int *hi, int64_t R, int64_t D, const k_next *next)
{
    for (int64_t r = 0; r < R; r++) { /* a row's weights as words, in its first half */
        float *row = s + r * ATTN_TILE;
        vi_store(row, vi_to_bf16(vf_load(row), vf_load(row + 16)));
    }
    for (int64_t r = 0; r < R;) {
        const int same = rows_alike(lo + r, hi + r, R - r < 4 ? (int)(R - r) : 4);
        if (same == 4)
            pv_pairs_all(acc + r * D, s + r * ATTN_TILE, v, a + r, lo[r], hi[r], D, next, 4);
        else
            for (int64_t i = r; i < r + same && lo[i] < hi[i]; i++, next = NULL)
                pv_pairs_all(acc + i * D, s + i * ATTN_TILE, v, a + i, lo[i], hi[i], D, next, 1);
        next = NULL; /* the first rows ask */
        r += same;
    }
}
