/* kernels/cuda/attn.cuh - what the kernels of attention share. */
#ifndef LLMQ_KERNELS_CUDA_ATTN_CUH
#define LLMQ_KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/ops.cuh"

/* The caches that the matrix units read (dev_attn_units). */
#define ATTN_CACHES(X) X(KV_F16) X(KV_BF16) X(KV_I8) X(KV_I4) X(KV_F8)

/* What attention's kernels are told beside their pointers; by value. */
struct attn_view {
    int H, Hkv, D, Dv, block_size, chunk_rows, row_k, row_v;
    int64_t ldq, ldo, window;
    size_t block_stride;
    kv_dtype dtype;
    float scale, softcap;
    bool alibi_scaled, alibi_bf16;
    bool bf16; /* out is rounded to it */
    int split; /* keys */
};

__device__ __forceinline__ float attn_bf16(float x) { return cu_bf16_f32(cu_f32_bf16(x)); }

/* Soft-cap and ALiBi (slope 0: none), as attn.c's adjust(). */
__device__ __forceinline__ float attn_adjust(float s, const attn_view &v, float slope, int64_t key,
                                             int64_t query)
{
    if (v.softcap > 0) s = v.softcap * km_tanh(s / v.softcap);
    if (slope == 0) return s;
    const float f = v.alibi_scaled ? v.scale : 1.0f;
    if (v.alibi_bf16) return s + f * attn_bf16(attn_bf16(slope) * attn_bf16((float)key));
    return s + slope * f * (float)(key - query);
}

/* Numbers d .. d + 7 of a row of D, two a word: of int8, int4, fp8 over the row's scale (attn_scale). */
template <kv_dtype T>
__device__ __forceinline__ uint4 attn_eight(G<const uint8_t> row, int d, int D)
{
    if (T == KV_F16 || T == KV_BF16) return cu_ld<uint4>(row + 2 * d);
    float f[8];
    if (T == KV_I4) {
        const unsigned w = cu_ld<unsigned>(row + (4 + d / 2));
        const float times =
            (float)attn_i4_times(cu_ld<unsigned>(row) >> 4 * (d / (int)attn_i4_block(D)));
        for (int j = 0; j < 8; j++)
            f[j] = times * ((float)(w >> 4 * j & 15u) - 8.0f);
    } else {
        const unsigned w[2] = { cu_ld<unsigned>(row + (4 + d)), cu_ld<unsigned>(row + (8 + d)) };
        for (int j = 0; j < 8; j++) {
            const unsigned c = w[j / 4] >> j % 4 * 8 & 255u;
            f[j] = T == KV_F8 ? cu_e4m3_f32(c) : (float)(int8_t)c;
        }
    }
    return { cu_pair<false>(f[0], f[1]), cu_pair<false>(f[2], f[3]), cu_pair<false>(f[4], f[5]),
             cu_pair<false>(f[6], f[7]) };
}

/* What the numbers of attn_eight are to be multiplied by. */
template <kv_dtype T> __device__ __forceinline__ float attn_scale(G<const uint8_t> row)
{
    if (T != KV_I4) return cu_ld<float>(row);
    return cu_bf16_f32(cu_ld<unsigned>(row) >> 16) * 0.0625f;
}

/* A tile's largest scores, of this lane's columns of rows g and g + 8, become the rows' maxima; the
 * sums so far, and what is added up by them, are to be multiplied by keep. */
__device__ __forceinline__ void attn_rise(float m[2], float l[2], float keep[2],
                                          const float largest[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = largest[h];
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            const float other = cu_shfl_xor(top, lanes);
            top = other > top ? other : top;
        }
        if (m[h] > top) top = m[h];
        keep[h] = top > -INFINITY ? km_exp(m[h] - top) : 1.0f; /* 1: nothing seen yet */
        m[h] = top;
        l[h] *= keep[h];
    }
}

/* What the sums of a row of head h, by the largest score m, are multiplied by in the end: 1 / l,
 * with the sink's share of l. */
__device__ __forceinline__ float attn_last(float m, float l, int h, G<const float> sinks)
{
    float f = 1.0f;
    if (sinks) {
        const float sink = sinks[h], max = sink > m ? sink : m;
        f = km_exp(m - max);
        l = fmaf(l, f, km_exp(sink - max));
    }
    return f / l;
}
__device__ __forceinline__ float attn_out(float y, const attn_view &v)
{
    return v.bf16 ? cu_bf16_f32(cu_f32_bf16(y)) : y;
}

/* What a block of many rows ends with: to its split's place for the merge or, where every chunk has
 * one split, as that would leave it. */
struct attn_end {
    float *parts, *out; /* one of them is NULL */
    const float *sinks;
};
/* The later slots of a launch, which have more keys, begin first. */
__device__ __forceinline__ int attn_slot() { return (int)(gridDim.x - 1 - blockIdx.x); }

/* A lane's sums of columns 8n + 2c and 8n + 2c + 1 of head h of row i of a chunk. */
template <int N>
__device__ __forceinline__ void attn_put(const attn_end &e, const attn_view &v,
                                         const dev_attn_chunk &ch, int slot, int i, int h, float m,
                                         float l, const float (&sums)[N][2])
{
    const int c = threadIdx.x % 4;
    const int64_t row = (int64_t)slot * v.chunk_rows + i;
    const float f = e.out ? attn_last(m, l, h, e.sinks) : 1.0f;
    const G<float> out = G<float>(e.out) + ((ch.row + i) * v.ldo + (int64_t)h * v.Dv);
    const G<float> part = G<float>(e.parts) + (row * v.H + h) * (int64_t)(v.Dv + 2);
    if (!e.out && c == 0) {
        part[0] = m;
        part[1] = l;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (8 * n >= v.Dv) continue;
        if (e.out)
            cu_st(out + (8 * n + 2 * c),
                  float2{ attn_out(sums[n][0] * f, v), attn_out(sums[n][1] * f, v) });
        else
            cu_st(part + (2 + 8 * n + 2 * c), float2{ sums[n][0], sums[n][1] });
    }
}

/* By one warp: row i of a chunk, of head h: its splits in order, then the sink, to out. */
__device__ __forceinline__ void attn_merge(G<float> out, G<const float> parts,
                                           const dev_attn_chunk &c, int i, int h,
                                           G<const float> sinks, const attn_view &v)
{
    enum { ACC = DEV_ATTN_WIDTH / CU_WARP };
    const int lane = threadIdx.x % CU_WARP;
    float m = -INFINITY, l = 0, acc[ACC];
#pragma unroll
    for (int x = 0; x < ACC; x++)
        acc[x] = 0;
#pragma unroll 1
    for (int s = 0; s < c.n_splits; s++) {
        const int64_t row = (int64_t)(c.slot + s) * v.chunk_rows + i;
        const G<const float> from = parts + (row * v.H + h) * (int64_t)(v.Dv + 2);
        const float pm = from[0], pl = from[1];
        if (pl == 0) continue;
        const bool begins = l == 0;
        const float max = pm > m ? pm : m;
        const float a = begins ? 0.0f : km_exp(m - max), b = begins ? 1.0f : km_exp(pm - max);
        l = begins ? pl : l * a + pl * b;
#pragma unroll
        for (int x = 0; x < ACC; x++) {
            const int d = x * CU_WARP + lane;
            if (d < v.Dv) acc[x] = begins ? (float)from[2 + d] : acc[x] * a + from[2 + d] * b;
        }
        m = max;
    }
    const float f = attn_last(m, l, h, sinks);
#pragma unroll
    for (int x = 0; x < ACC; x++) {
        const int d = x * CU_WARP + lane;
        const float y = acc[x] * f;
        if (d < v.Dv) out[(c.row + i) * v.ldo + (int64_t)h * v.Dv + d] = attn_out(y, v);
    }
}

/* Host: each split of DEV_ATTN_UNITS, _WIDE, _DECODE. */
void CU_NAME(attn_units)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e);
void CU_NAME(attn_sm90)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e);
void CU_NAME(attn_decode)(dev *d, const dev_attn_args *a, const attn_view *v);

#endif
