/* kernels/cuda/last.cuh - which of several blocks that make parts of one result is the last to be done,
 * and joins them: in the parts' order, so which it is changes nothing. */
#ifndef LLMQ_KERNELS_CUDA_LAST_CUH
#define LLMQ_KERNELS_CUDA_LAST_CUH

#include "kernels/cuda/cu.cuh"

/* Called by all threads of each of n blocks once their part is in device memory: true in the last one,
 * whose threads then see all parts. done: of these n blocks alone, 0, and again after the last. last:
 * shared memory that nobody reads or writes any more. */
__device__ __forceinline__ bool cu_last(G<int32_t> done, int n, S<int> last)
{
    cu_fence(); /* this thread's share of the part */
    __syncthreads();
    if (threadIdx.x == 0) {
        last[0] = cu_add(done, 1) == n - 1;
        if (last[0]) *done = 0; /* for the next launch */
    }
    __syncthreads();
    if (!last[0]) return false;
    cu_fence();
    return true;
}

#endif
