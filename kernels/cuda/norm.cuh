/* kernels/cuda/norm.cuh - the norm of a row by one block of 256 threads: what the norm's own kernel
 * (rows.cu) and a product that begins with one (mm_thin.cu) share, so that both have the same bits.
 *
 * Thread t has elements 4t .. 4t + 3 of each 1,024, in order; then lanes by halves, then the warps
 * in order. */
#ifndef LLMQ_KERNELS_CUDA_NORM_CUH
#define LLMQ_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cu.cuh"

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / CU_WARP };

struct norm_how {
    float offset, eps;
    bool layer;
};

/* Elements k .. k + 3 of a row of K. quads: a multiple of four, at a multiple of 16 bytes. What is
 * behind the row's end is 0. */
__device__ __forceinline__ float4 norm_four(G<const float> row, int k, int K, bool quads)
{
    if (quads) return cu_ld<float4>(row + k);
    float v[4];
    for (int i = 0; i < 4; i++)
        v[i] = k + i < K ? cu_ld<float>(row + (k + i)) : 0.0f;
    return { v[0], v[1], v[2], v[3] };
}

/* sum + the elements, or + the squares of what they are more than `mean`; n of them are there. */
__device__ __forceinline__ float norm_sum(float sum, const float4 &v, int n, bool squares,
                                          float mean)
{
    const float four[4] = { v.x, v.y, v.z, v.w };
    for (int i = 0; i < 4 && i < n; i++)
        sum = squares ? fmaf(four[i] - mean, four[i] - mean, sum) : sum + four[i];
    return sum;
}
__device__ __forceinline__ float norm_sum_row(G<const float> row, int K, bool quads, bool squares,
                                              float mean)
{
    float sum = 0;
#pragma unroll 2
    for (int k = 4 * (int)threadIdx.x; k < K; k += 4 * NORM_THREADS)
        sum = norm_sum(sum, norm_four(row, k, K, quads), K - k, squares, mean);
    return sum;
}

/* This warp's part of the block's sum into part [NORM_WARPS]; behind a barrier, all of it. */
__device__ __forceinline__ void norm_put(S<float> part, float sum)
{
    sum = cu_warp_sum(sum);
    if (threadIdx.x % CU_WARP == 0) part[threadIdx.x / CU_WARP] = sum;
}
__device__ __forceinline__ float norm_all(S<const float> part)
{
    float sum = 0;
    for (int w = 0; w < NORM_WARPS; w++)
        sum += part[w];
    return sum;
}

/* What an element less the mean is multiplied by, from the sum of squares. */
__device__ __forceinline__ float norm_factor(float squares, int K, float eps)
{
    return 1.0f / sqrtf(squares / (float)K + eps);
}
/* An element v whose weight and bias are w and b, which are looked at where they are. */
__device__ __forceinline__ float norm_value(float v, float mean, float factor, bool has_w, float w,
                                            bool has_b, float b, const norm_how &how)
{
    v = (v - mean) * factor;
    if (has_w) v *= w + how.offset;
    return has_b ? v + b : v;
}
/* Four; w, b: NULL, or of the first, at a multiple of 16 bytes. */
__device__ __forceinline__ float4 norm_values(const float4 &v, float mean, float factor,
                                              G<const float> w, G<const float> b,
                                              const norm_how &how)
{
    float4 s = { 0, 0, 0, 0 }, t = s;
    const bool has_w = (bool)w, has_b = (bool)b;
    if (has_w) s = cu_ld<float4>(w);
    if (has_b) t = cu_ld<float4>(b);
    return { norm_value(v.x, mean, factor, has_w, s.x, has_b, t.x, how),
             norm_value(v.y, mean, factor, has_w, s.y, has_b, t.y, how),
             norm_value(v.z, mean, factor, has_w, s.z, has_b, t.z, how),
             norm_value(v.w, mean, factor, has_w, s.w, has_b, t.w, how) };
}

#endif
