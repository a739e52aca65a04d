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
    return (uint8_t)(int8_t)(fabsf(q) <= 127.0f ? q : 0.0f);
}

/* The largest magnitude of D values at x, by one warp; one that is not finite: infinity. */
template <class P> __device__ float cache_largest(P x, int D)
{
    float max = 0;
    for (int i = threadIdx.x % CU_WARP; i < D; i += CU_WARP) {
        const float v = fabsf(x[i]);
        max = v > max ? v : v == v ? max : INFINITY;
    }
    return cu_warp_max(max);
}

/* As attn_int4.c's. */
__device__ __forceinline__ float cache_nibble(float u)
{
    const float q = rintf(u);
    return q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
}
/* Sums of whole numbers below 2^24: in any order. */
template <class P> __device__ int64_t cache_squares(P x, int from, int end, float inv)
{
    float sum = 0;
    for (int i = from + threadIdx.x % CU_WARP; i < end; i += CU_WARP) {
        const float u = x[i] * inv, off = rintf((u - cache_nibble(u)) * ATTN_I4_FINE);
        sum += off * off;
    }
    return (int64_t)cu_warp_sum(sum);
}
/* The bits of a block in its row's head. */
template <class P> __device__ unsigned cache_choose(P x, int from, int end, float base)
{
    float max = 0, first = -1e9f; /* the least place of the largest magnitude, negative */
    for (int i = from + threadIdx.x % CU_WARP; i < end; i += CU_WARP)
        if (fabsf(x[i]) > max) {
            max = fabsf(x[i]);
            first = (float)-i;
        }
    const float largest = cu_warp_max(max);
    first = cu_warp_max(max == largest ? first : -1e9f);
    const unsigned sign = largest > 0 && x[(int)-first] > 0 ? ATTN_I4_MINUS : 0;
    const int k = attn_i4_steps(largest, base);
    if (k == ATTN_I4_LEAST) return sign;
    const unsigned four = sign | (unsigned)(k - ATTN_I4_LEAST);
    const int64_t own = cache_squares(x, from, end, 1 / attn_i4_scale(base, four)),
                  other = cache_squares(x, from, end, 1 / attn_i4_scale(base, four - 1));
    return (k - 1) * (k - 1) * other < k * k * own ? four - 1 : four;
}

/* D values at x to a row of 4 bits, by one warp. */
template <class P> __device__ void cache_int4(G<uint8_t> row, P x, int D)
{
    const int lane = threadIdx.x % CU_WARP, block = (int)attn_i4_block(D);
    const float max = cache_largest(x, D);
    const bool finite = max < INFINITY, some = finite && max >= MM_I8_TINY;
    const unsigned bits = cu_f32_bf16(finite ? max / 8 : NAN);
    const float base = cu_bf16_f32(bits);
    unsigned head = some || !finite ? bits << 16 : 0;
    for (int from = 0, b = 0; from < D; from += block, b++) {
        const int end = from + block < D ? from + block : D;
        unsigned four = 0;
        if (some) four = cache_choose(x, from, end, base);
        head |= four << 4 * b;
        const float inv = some ? 1 / attn_i4_scale(base, four) : 0.0f;
        for (int i = from + 2 * lane; i < end; i += 2 * CU_WARP) {
            const unsigned low = some ? (unsigned)(cache_nibble(x[i] * inv) + 8) : 8u;
            unsigned high = 0;
            if (i + 1 < end) high = some ? (unsigned)(cache_nibble(x[i + 1] * inv) + 8) : 8u;
            cu_st<uint8_t>(row + 4 + i / 2, (uint8_t)(low | high << 4));
        }
    }
    if (lane == 0) cu_st<unsigned>(row, head);
}

/* D values at x to a row of codes behind their scale (attn.h), by one warp. */
template <class P> __device__ void cache_codes(G<uint8_t> row, P x, int D, kv_dtype d)
{
    const int lane = threadIdx.x % CU_WARP;
    const float max = cache_largest(x, D), most = d == KV_I8 ? 127.0f : 448.0f;
    const bool finite = max < INFINITY, ok = max >= MM_I8_TINY && finite;
    const float inv = ok ? most / max : 0.0f;
    if (lane == 0) cu_st<float>(row, ok ? max / most : finite ? 0.0f : NAN);
    for (int i = lane; i < D; i += CU_WARP)
        cu_st<uint8_t>(row + 4 + i, (uint8_t)cache_code(x[i], inv, d));
}

/* One head's D values at x, in device or shared memory, into one row of the cache, by one warp. */
template <class P> __device__ void cache_head(G<uint8_t> row, P x, int D, kv_dtype dtype)
{
    if (dtype == KV_I4) {
        cache_int4(row, x, D);
        return;
    }
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
