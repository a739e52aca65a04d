/* kernels/simd/attn_tmpl.h - attention's steps on 16 lanes. Scores: a lane is a key (the tile is read
 * transposed, [D][32]), so d is summed in order; values: a lane is an element, keys in order.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/simd/kv_tmpl.h"
#include "kernels/simd/ops_tmpl.h"

/* One row to f32; D is any number, the last lanes go through the stack. */
V16 void kv_row(float *dst, const uint8_t *src, int64_t D, kv_dtype d)
{
    const int64_t bits = attn_kv_bits(d);
    const uint8_t *row = src;
    vf scale = kv_scale(row, d, 0, D);
    int64_t i = 0;
    src += attn_kv_head(d);
    for (; i + 16 <= D; i += 16, src += 2 * bits) {
        if (d == KV_I4) scale = kv_scale(row, d, i, D);
        vf_store(dst + i, kv_load(src, d, scale));
    }
    if (i < D) {
        if (d == KV_I4) scale = kv_scale(row, d, i, D);
        uint8_t rest[64] = { 0 };
        memcpy(rest, src, (size_t)(((D - i) * bits + 7) / 8));
        vf_storen(dst + i, kv_load(rest, d, scale), (int)(D - i));
    }
}

V16 void kv_rows(float *v, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    for (int j = 0; j < n; j++)
        kv_row(v + j * D, src + (size_t)j * attn_kv_row_bytes(d, D), D, d);
}

static inline void tmpl_attn_v(float *v, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    KV_KNOWN(d, kv_rows, v, src, n, D)
}

#if defined(__AVX512F__)
/* 16 rows, 16 elements at a time, in registers all the way. */
V16 void k_squares(float *kt, const uint8_t *src, int64_t D, kv_dtype d)
{
    const size_t bytes = attn_kv_row_bytes(d, D), head = (size_t)attn_kv_head(d);
    const int64_t bits = attn_kv_bits(d);
    const uint8_t *at = src + head;
    for (int64_t i = 0; i < D; i += 16, at += 2 * bits) {
        vf x[16];
        UNROLL
        for (int r = 0; r < 16; r++) {
            const uint8_t *row = src + (size_t)r * bytes;
            x[r] = kv_load(at + (size_t)r * bytes, d, kv_scale(row, d, i, D));
        }
        transpose16(x);
        UNROLL
        for (int c = 0; c < 16; c++)
            vf_store(kt + (i + c) * ATTN_TILE, x[c]);
    }
}
/* How many of n rows are done so. */
static inline int k_by_squares(float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    int j = 0;
    for (; D % 16 == 0 && j + 16 <= n; j += 16) {
        const uint8_t *from = src + (size_t)j * attn_kv_row_bytes(d, D);
        KV_KNOWN(d, k_squares, kt + j, from, D)
    }
    return j;
}
#else
static inline int k_by_squares(float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    (void)kt, (void)src, (void)n, (void)D, (void)d;
    return 0;
}
#endif

/* Eight rows at a time, so that a line of the transposed tile is written in halves, not in words.
 */
static inline void tmpl_attn_k(float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    enum { ROWS_AT_ONCE = 8, MAX_D = 512 };
    float row[ROWS_AT_ONCE * MAX_D];
    if (D > MAX_D) {
        k_ref.attn_k(kt, src, n, D, d);
        return;
    }
    size_t bytes = attn_kv_row_bytes(d, D);
    for (int j = k_by_squares(kt, src, n, D, d); j < n; j += ROWS_AT_ONCE) {
        int m = n - j < ROWS_AT_ONCE ? n - j : ROWS_AT_ONCE;
        tmpl_attn_v(row, src + (size_t)j * bytes, m, D, d);
        if (m < ROWS_AT_ONCE) {
            for (int r = 0; r < m; r++)
                for (int64_t i = 0; i < D; i++)
                    kt[i * ATTN_TILE + j + r] = row[r * D + i];
            continue;
        }
        int64_t i = 0;
        for (; i + 8 <= D; i += 8)
            transpose8(kt + i * ATTN_TILE + j, ATTN_TILE, row + i, D);
        for (; i < D; i++)
            for (int r = 0; r < m; r++)
                kt[i * ATTN_TILE + j + r] = row[r * D + i];
    }
}

/* R rows from r on against the tile: R x 2 sums. */
V16 void scores_rows(float *s, const float *const *q, const float *kt, int64_t D, float scale,
                     int R)
{
    vf sum[SCORE_ROWS][2];
    UNROLL
    for (int r = 0; r < R; r++)
        sum[r][0] = sum[r][1] = vf_set1(0);
    for (int64_t d = 0; d < D; d++) {
        vf k0 = vf_load(kt + d * ATTN_TILE), k1 = vf_load(kt + d * ATTN_TILE + 16);
        UNROLL
        for (int r = 0; r < R; r++) {
            vf x = vf_set1(q[r][d]);
            sum[r][0] = vf_fma(x, k0, sum[r][0]);
            sum[r][1] = vf_fma(x, k1, sum[r][1]);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        vf_store(s + r * ATTN_TILE, vf_mul(vf_set1(scale), sum[r][0]));
        vf_store(s + r * ATTN_TILE + 16, vf_mul(vf_set1(scale), sum[r][1]));
    }
}

static inline void tmpl_attn_scores(float *s, const float *const *q, const float *kt, int64_t R,
                                    int64_t D, float scale)
{
    int64_t r = 0;
    for (; r + SCORE_ROWS <= R; r += SCORE_ROWS)
        scores_rows(s + r * ATTN_TILE, q + r, kt, D, scale, SCORE_ROWS);
    for (; r + SCORE_ROWS / 2 <= R; r += SCORE_ROWS / 2)
        scores_rows(s + r * ATTN_TILE, q + r, kt, D, scale, SCORE_ROWS / 2);
    for (; r < R; r++)
        scores_rows(s + r * ATTN_TILE, q + r, kt, D, scale, 1);
}

/* Up to 16 rows: what a row's own steps wait for is done for all rows at once. */
V16 void softmax_rows(float *s, const int *lo, const int *hi, int R, float *m, float *l, float *a)
{
    float top[16];
    vf x[16];
    UNROLL
    for (int r = 0; r < 16; r++) {
        float *row = s + r * ATTN_TILE;
        x[r] = vf_set1(0);
        if (r >= R) continue;
        for (int j = 0; j < lo[r]; j++)
            row[j] = -INFINITY;
        for (int j = hi[r]; j < ATTN_TILE; j++)
            row[j] = -INFINITY;
        /* The greater of two is the second where one is NaN, as in plain C. */
        x[r] = vf_max(vf_load(row), vf_max(vf_load(row + 16), vf_set1(m[r])));
    }
    const vf tops = vf_tops(x, R), old = vf_loadn(m, R), scale = vf_exp(vf_sub(old, tops));
    vf_store(top, tops);
    UNROLL
    for (int r = 0; r < 16; r++) {
        float *row = s + r * ATTN_TILE;
        if (r >= R) continue;
        const vf e0 = vf_exp(vf_sub(vf_load(row), vf_set1(top[r])));
        const vf e1 = vf_exp(vf_sub(vf_load(row + 16), vf_set1(top[r])));
        vf_store(row, e0);
        vf_store(row + 16, e1);
        x[r] = vf_add(e0, e1);
    }
    float sums[16], scales[16];
    vf_store(sums, vf_fma(vf_loadn(l, R), scale, vf_sums(x, R)));
    vf_store(scales, scale);
    for (int r = 0; r < R; r++) {
        if (lo[r] >= hi[r]) continue;
        l[r] = sums[r];
        m[r] = top[r];
        a[r] = scales[r];
    }
}

static inline void tmpl_attn_softmax(float *s, const int *lo, const int *hi, int64_t R, float *m,
                                     float *l, float *a)
{
    for (int64_t r = 0; r < R; r += 16)
        softmax_rows(s + r * ATTN_TILE, lo + r, hi + r, R - r < 16 ? (int)(R - r) : 16, m + r,
                     l + r, a + r);
}

/* acc[r] for R rows that see the same keys, NV vectors of elements at a time. */
V16 void pv_rows(float *acc, const float *s, const float *v, const float *a, int lo, int hi,
                 int64_t D, int R, int NV)
{
    vf sum[4][4];
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int n = 0; n < NV; n++)
            sum[r][n] = vf_mul(vf_load(acc + r * D + 16 * n), vf_set1(a[r]));
    }
    for (int j = lo; j < hi; j++) {
        vf val[4];
        UNROLL
        for (int n = 0; n < NV; n++)
            val[n] = vf_load(v + j * D + 16 * n);
        UNROLL
        for (int r = 0; r < R; r++) {
            vf p = vf_set1(s[r * ATTN_TILE + j]);
            UNROLL
            for (int n = 0; n < NV; n++)
                sum[r][n] = vf_fma(p, val[n], sum[r][n]);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int n = 0; n < NV; n++)
            vf_store(acc + r * D + 16 * n, sum[r][n]);
    }
}

V16 void pv_all(float *acc, const float *s, const float *v, const float *a, int lo, int hi,
                int64_t D, int R)
{
    int64_t d = 0;
    for (; d + 16 * PV_VECS <= D; d += 16 * PV_VECS)
        pv_rows(acc + d, s, v + d, a, lo, hi, D, R, PV_VECS);
    for (; d + 16 <= D; d += 16)
        pv_rows(acc + d, s, v + d, a, lo, hi, D, R, 1);
    for (; d < D; d++)
        for (int r = 0; r < R; r++) {
            float sum = acc[r * D + d] * a[r];
            for (int j = lo; j < hi; j++)
                sum = fmaf(s[r * ATTN_TILE + j], v[j * D + d], sum);
            acc[r * D + d] = sum;
        }
}

static inline void tmpl_attn_pv(float *acc, const float *s, const float *v, const float *a,
                                const int *lo, const int *hi, int64_t R, int64_t D)
{
    for (int64_t r = 0; r < R;) {
        const int same = rows_alike(lo + r, hi + r, R - r < PV_ROWS ? (int)(R - r) : PV_ROWS);
        if (same == PV_ROWS)
            pv_all(acc + r * D, s + r * ATTN_TILE, v, a + r, lo[r], hi[r], D, PV_ROWS);
        else
            for (int64_t i = r; i < r + same && lo[i] < hi[i]; i++)
                pv_all(acc + i * D, s + i * ATTN_TILE, v, a + i, lo[i], hi[i], D, 1);
        r += same;
    }
}
