/* kernels/ref/attn_ref.c - attention's steps on one tile of keys, in plain C. */
#include "kernels/core/k_ops.h"
#include "kernels/core/kmath.h"
#include "kernels/ref/ref.h"

/* Element i of the codes of a row, next to its scale. */
static float code_value(const uint8_t *codes, int64_t i, kv_dtype d)
{
    if (d == KV_I8) return (float)(int8_t)codes[i];
    if (d == KV_F8) return lq_e4m3_to_f32(codes[i]);
    return (float)((codes[i / 2] >> (i % 2 * 4) & 15) - 8);
}

static float scale_of(const uint8_t *row, int64_t i, int64_t D, kv_dtype d)
{
    uint32_t head;
    float scale;
    memcpy(&head, row, sizeof head);
    if (d == KV_I4)
        return attn_i4_scale(lq_bf16_to_f32((uint16_t)(head >> 16)),
                             head >> 4 * (i / attn_i4_block(D)));
    memcpy(&scale, row, sizeof scale);
    return scale;
}

/* Elements i0..i0+n-1 of a cached row of D as f32. */
static void read_row(float *dst, const uint8_t *src, int64_t i0, int64_t n, int64_t D, kv_dtype d)
{
    static const lq_dtype plain[] = { [KV_F32] = LQ_F32, [KV_F16] = LQ_F16, [KV_BF16] = LQ_BF16 };
    if (!attn_kv_head(d)) {
        lq_to_f32(dst, src + i0 * attn_kv_bits(d) / 8, plain[d], (size_t)n);
        return;
    }
    for (int64_t i = i0; i < i0 + n; i++)
        dst[i - i0] = scale_of(src, i, D, d) * code_value(src + attn_kv_head(d), i, d);
}

void ref_attn_v(float *v, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    for (int j = 0; j < n; j++)
        read_row(v + j * D, src + (size_t)j * attn_kv_row_bytes(d, D), 0, D, D, d);
}

void ref_attn_k(float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d)
{
    enum { PIECE = 64 }; /* elements at a time, through the same reader */
    float row[PIECE];
    for (int j = 0; j < n; j++) {
        const uint8_t *r = src + (size_t)j * attn_kv_row_bytes(d, D);
        for (int64_t i = 0; i < D; i += PIECE) {
            int64_t m = D - i < PIECE ? D - i : PIECE;
            read_row(row, r, i, m, D, d);
            for (int64_t c = 0; c < m; c++)
                kt[(i + c) * ATTN_TILE + j] = row[c];
        }
    }
}

void ref_attn_scores(float *s, const float *const *q, const float *kt, int64_t R, int64_t D,
                     float scale)
{
    for (int64_t r = 0; r < R; r++)
        for (int j = 0; j < ATTN_TILE; j++) {
            float sum = 0;
            for (int64_t d = 0; d < D; d++)
                sum = fmaf(q[r][d], kt[d * ATTN_TILE + j], sum);
            s[r * ATTN_TILE + j] = scale * sum;
        }
}

void ref_attn_softmax(float *s, const int *lo, const int *hi, int64_t R, float *m, float *l,
                      float *a)
{
    for (int64_t r = 0; r < R; r++, s += ATTN_TILE) {
        if (lo[r] >= hi[r]) continue;
        float max = m[r], half[ATTN_TILE / 2];
        for (int j = lo[r]; j < hi[r]; j++)
            max = s[j] > max ? s[j] : max;
        a[r] = km_exp(m[r] - max);
        for (int j = 0; j < ATTN_TILE; j++)
            s[j] = j >= lo[r] && j < hi[r] ? km_exp(s[j] - max) : 0.0f;
        for (int j = 0; j < ATTN_TILE / 2; j++)
            half[j] = s[j] + s[j + ATTN_TILE / 2];
        l[r] = fmaf(l[r], a[r], km_sum16(half));
        m[r] = max;
    }
}

void ref_attn_pv(float *acc, const float *s, const float *v, const float *a, const int *lo,
                 const int *hi, int64_t R, int64_t D)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t d = 0; d < D && lo[r] < hi[r]; d++) {
            float sum = acc[r * D + d] * a[r];
            for (int j = lo[r]; j < hi[r]; j++)
                sum = fmaf(s[r * ATTN_TILE + j], v[j * D + d], sum);
            acc[r * D + d] = sum;
        }
}
