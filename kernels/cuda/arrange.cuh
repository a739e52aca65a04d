/* kernels/cuda/arrange.cuh - where a product of more than DEV_MM_SMALL rows has its inputs, in bf16:
 * what arranges them (mm.cu) and what makes them (rows.cu) share. */
#ifndef LLMQ_KERNELS_CUDA_ARRANGE_CUH
#define LLMQ_KERNELS_CUDA_ARRANGE_CUH

#include "kernels/cuda/cu.cuh"

/* Place p of row r of Kp; rows: of columns of 64 inputs, as mm_sm90.cu has them; 0: rows of Kp. */
__device__ __forceinline__ int64_t arrange_place(int64_t r, int64_t p, int64_t Kp, int64_t rows)
{
    if (rows == 0) return r * Kp + p;
    const int in = (int)(p % 32),
              at = (int)(p % 64) / 32 * 32 + in / 4 % 2 * 16 + in / 8 * 2 + in / 2 % 2 * 8 + in % 2;
    return (p / 64 * rows + r) * 64 + ((at / 8 ^ (int)(r % 8)) * 8 + at % 8);
}

#endif
