/* kernels/cuda/cache.cuh - heads on their way into the cache: what the rotation's own kernel
 * (rows.cu) and attention that does it itself (attn_decode.cu) share, so that both have the same
 * bits. */
#ifndef LLMQ_KERNELS_CUDA_CACHE_CUH
#define LLMQ_KERNELS_CUDA_CACHE_CUH

#include "kernels/cuda/cu.cuh"

/* Number d of a head x, the first R of whose dims are rotated (k_rope); cos, sin [R / 2]. half:
 * pairs (i, i + R/2), else (2i, 2i + 1). */
template <class P>
__device__ __forceinline__ float cache_turned(P x, int d, G<const float> cos, G<const float> sin,
                                              int R, bool half)
{
    if (d >= R) return x[d];
    const int n = R / 2, i = half ? d % n : d / 2;
    const bool second = half ? d >= n : d % 2;
    const float own = x[d], c = cos[i], s = sin[i];
    if (second) return own * c + x[half ? d - n : d - 1] * s;
    return own * c - x[half ? d + n : d + 1] * s;
}

/* As attn.c's code_of(). */
__device__ __forceinline__ unsigned cache_code(float x, float inv, kv_dtype d)
{
    if (d == KV_F8) return cu_f32_e4m3(x * inv);
    const float q = rintf(x * inv);
    if (d == KV_I8) return (uint8_t)(int8_t)(fabsf(q) <= 127.0f ? q : 0.0f);
    return (unsigned)(q >= -8.0f ? (q < 7.0f ? q : 7.0f) + 8.0f : 0.0f);
}

/* D values at x to a row of codes behind their scale (attn.h), by one warp. */
template <class P> __device__ void cache_codes(G<uint8_t> row, P x, int D, kv_dtype d)
{
    const int lane = threadIdx.x % CU_WARP;
    float max = 0, nan = 0, first = -1e9f; /* the least place of the largest magnitude, negative */
    for (int i = lane; i < D; i += CU_WARP) {
        const float v = fabsf(x[i]);
        max = v > max ? v : max;
        if (v != v) nan = 1;
    }
    max = cu_warp_max(max);
    nan = cu_warp_max(nan);
    for (int i = lane; i < D; i += CU_WARP)
        if (fabsf(x[i]) == max && (float)-i > first) first = (float)-i;
    first = cu_warp_max(first);
    const bool finite = max < INFINITY && nan == 0, ok = max >= MM_I8_TINY && finite;
    const float m = d == KV_I4 && ok ? (float)x[(int)-first] : max;
    const float most = d == KV_I8 ? 127.0f : d == KV_I4 ? -8.0f : 448.0f;
    const float inv = ok ? most / m : 0.0f;
    if (lane == 0) cu_st<float>(row, ok ? m / most : finite ? 0.0f : NAN);
    if (d != KV_I4) {
        for (int i = lane; i < D; i += CU_WARP)
            cu_st<uint8_t>(row + 4 + i, (uint8_t)cache_code(x[i], inv, d));
        return;
    }
    for (int i = 2 * lane; i < D; i += 2 * CU_WARP) {
        const unsigned high = i + 1 < D ? cache_code(x[i + 1], inv, d) : 0u;
        cu_st<uint8_t>(row + 4 + i / 2, (uint8_t)(cache_code(x[i], inv, d) | high << 4));
    }
}

/* One head's D values at x, in device or shared memory, into one row of the cache, by one warp. */
template <class P> __device__ void cache_head(G<uint8_t> row, P x, int D, kv_dtype dtype)
{
    if (dtype != KV_F32 && dtype != KV_F16 && dtype != KV_BF16) {
        cache_codes(row, x, D, dtype);
        return;
    }
    for (int i = threadIdx.x % CU_WARP; i < D; i += CU_WARP) {
        const float v = x[i];
        if (dtype == KV_F32)
            cu_st<float>(row + 4 * i, v);
        else
            cu_st<uint16_t>(row + 2 * i,
                            dtype == KV_F16 ? cu_f32_f16(v) : (uint16_t)cu_f32_bf16(v));
    }
}

#endif
