/* kernels/cuda/attn.cuh - what the kernels of attention share. */
#ifndef LLMQ_KERNELS_CUDA_ATTN_CUH
#define LLMQ_KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/ops.cuh"

/* What attention's kernels are told beside their pointers; by value. */
struct attn_view {
    int H, Hkv, D, Dv, block_size, chunk_rows, row_k, row_v;
    int64_t ldq, ldo, window;
    size_t block_stride;
    kv_dtype dtype;
    float scale, softcap;
    bool alibi_scaled, alibi_bf16;
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

/* Host: each split of DEV_ATTN_UNITS, _WIDE, _DECODE, to scratch. */
void CU_NAME(attn_units)(dev *d, const dev_attn_args *a, const attn_view *v);
void CU_NAME(attn_sm90)(dev *d, const dev_attn_args *a, const attn_view *v);
void CU_NAME(attn_decode)(dev *d, const dev_attn_args *a, const attn_view *v);

#endif
