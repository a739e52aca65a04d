/* kernels/cuda/act.cuh - what an MLP does with one number of its first products (k_act_mul). */
#ifndef LLMQ_KERNELS_CUDA_ACT_CUH
#define LLMQ_KERNELS_CUDA_ACT_CUH

#include "kernels/cuda/cu.cuh"

__device__ __forceinline__ float act_of(float x, k_act_fn f)
{
    switch (f) {
    case ACT_SILU:
        return km_silu(x);
    case ACT_GELU:
        return km_gelu(x);
    case ACT_GELU_TANH:
        return km_gelu_tanh(x);
    case ACT_RELU2:
        return x < 0 ? 0.0f : x * x;
    default:
        return x < 0 ? 0.0f : x;
    }
}

/* alone: u is not looked at. */
__device__ __forceinline__ float act_mul(float g, float u, bool alone, k_act_fn f, float limit)
{
    if (f == ACT_SWIGLU_CLAMPED) return km_swiglu_clamped(g, u, limit);
    if (f == ACT_SILU_LIMITED) return km_silu_limited(g, u, limit);
    if (f == ACT_SILU_CAPPED) return km_silu_capped(g, u, limit);
    return alone ? act_of(g, f) : act_of(g, f) * u;
}

#endif
