/* kernels/cuda/cu_sm90.cuh - words of sm_90a: barriers in shared memory that the copy engine counts
 * on (mbarrier), its copies (cp.async.bulk, the part of TMA that needs no tensor map), and products
 * of a warpgroup (wgmma). Files that use them are called *_sm90.cu and compiled for sm_90a alone;
 * the host calls them where dev.cc is 90. Emulated in emu/emu_sm90.h.
 *
 *   CU_DYNAMIC_1K(T, name)     the launch's shared memory, at a multiple of 1,024 bytes
 *   cu_bar_init(bar, n)        by one thread; then cu_bars_ready() and a block's barrier
 *   cu_bar_arrive, cu_bar_expect(bar, bytes)   one of n arrivals; also so many bytes to come
 *   cu_copy_arrive(bar)        an arrival once this thread's cu_copy16 so far are done
 *   cu_bar_wait(bar, parity)   until the phase of that parity is over; the first one's is 0
 *   cu_bulk(dst, src, bytes, bar)   multiples of 16, at multiples of 16; its bytes count on bar
 *   cu_bulk_ldg(the same)      of what no kernel writes: also before cu_after
 *   cu_desc_k(at), cu_desc_mn(at, next)   what wgmma takes for a matrix in shared memory, below
 *   cu_wgmma<F16, N, MN>       d [64, N] (+)= a [64, 16] b [16, N], of four warps: a in registers
 *                              as mma.m16n8k16 has it, 16 rows a warp; d likewise; b in shared
 *                              memory
 *   cu_wgmma_begin, _commit, _wait<N>   before the first; behind those of a group; until at most
 *                              N groups are not done. d, a and b stay as they are until then
 *   cu_regs_less<N>, _more<N>  a warpgroup gives registers back, or takes them
 *   cu_meet(id, n)             a barrier of n threads, id 1..15
 *   cu_fence_async()           what this thread wrote may be read by wgmma, once it has arrived; and
 *                              by this warp's what others wrote whose arrivals it has waited for
 *
 * A matrix in shared memory is made of rows of 128 bytes, whose eight 16-byte pieces are turned by
 * the row: piece p of row r lies at p ^ r % 8, from a multiple of 1,024 bytes on. cu_desc_k: a row
 * is one n (or m), 64 of k; `at` may begin 16 k (32 bytes) further in. cu_desc_mn: a row is one k,
 * 64 of n; 64 n more lie `next` bytes behind; MN says so to cu_wgmma. */
#ifndef LLMQ_KERNELS_CUDA_CU_SM90_CUH
#define LLMQ_KERNELS_CUDA_CU_SM90_CUH

#include "kernels/cuda/cu.cuh"

/* Fields of a matrix descriptor: PTX ISA, "Matrix Descriptor Format"; addresses and strides are in
 * 16 bytes; 1 << 62: 128-byte swizzle. In both the groups of eight rows are 1,024 bytes apart (the
 * stride); the leading one is of n where a row is one k, and not looked at otherwise. */
__device__ __forceinline__ uint64_t cu_desc(unsigned at, unsigned lead)
{
    return (uint64_t)(at >> 4 & 0x3fffu) | (uint64_t)(lead >> 4 & 0x3fffu) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#ifdef __CUDACC__
#define CU_DYNAMIC_1K(T, name)                                     \
    extern __shared__ __align__(1024) unsigned char cu_bytes_1k[]; \
    T *const name = reinterpret_cast<T *>(cu_bytes_1k)

template <class T> __device__ __forceinline__ unsigned cu_at(T *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void cu_bar_init(uint64_t *bar, unsigned n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cu_at(bar)), "r"(n) : "memory");
}
__device__ __forceinline__ void cu_bars_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
}
__device__ __forceinline__ void cu_bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cu_at(bar)) : "memory");
}
__device__ __forceinline__ void cu_copy_arrive(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cu_at(bar))
                 : "memory");
}
__device__ __forceinline__ void cu_bar_expect(uint64_t *bar, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cu_at(bar)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cu_bar_wait(uint64_t *bar, unsigned parity)
{
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(cu_at(bar)), "r"(parity)
                     : "memory");
    } while (!done);
}
template <class T, class U>
__device__ __forceinline__ void cu_bulk(T *dst, U *src, unsigned bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(cu_at(dst)),
                 "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(cu_at(bar))
                 : "memory");
}
template <class T, class U>
__device__ __forceinline__ void cu_bulk_ldg(T *dst, U *src, unsigned bytes, uint64_t *bar)
{
    cu_bulk(dst, src, bytes, bar);
}
template <int N> __device__ __forceinline__ void cu_regs_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void cu_regs_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ __forceinline__ void cu_meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ __forceinline__ void cu_fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void cu_wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void cu_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int GROUPS> __device__ __forceinline__ void cu_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
/* The compiler is not to move what it does with d across here. */
template <int N> __device__ __forceinline__ void cu_keep(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define CU_F8(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define CU_F32(d, i) CU_F8(d, i), CU_F8(d, i + 8), CU_F8(d, i + 16), CU_F8(d, i + 24)
#define CU_R32                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CU_R64                                                                                  \
    CU_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
           "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* p0..p5: the numbers of the operands behind d. */
#define CU_WGMMA_RS(type, n, regs, d_, p0, p1, p2, p3, p4, p5, p6)                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" regs "}, " \
                 "{%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";\n}"     \
                 : d_                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(MN))
#define CU_D32 CU_F32(d, 0)
#define CU_D64 CU_F32(d, 0), CU_F32(d, 32)

template <bool F16, int N, int MN = 0>
__device__ __forceinline__ void cu_wgmma(float (&d)[N / 2], const unsigned a[4], uint64_t b,
                                         bool add)
{
    static_assert(N == 64 || N == 128, "columns");
    if constexpr (N == 64 && F16)
        CU_WGMMA_RS("f16", 64, CU_R32, CU_D32, 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (N == 64)
        CU_WGMMA_RS("bf16", 64, CU_R32, CU_D32, 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (F16)
        CU_WGMMA_RS("f16", 128, CU_R64, CU_D64, 64, 65, 66, 67, 68, 69, 70);
    else
        CU_WGMMA_RS("bf16", 128, CU_R64, CU_D64, 64, 65, 66, 67, 68, 69, 70);
}
#else
#include "kernels/cuda/emu/emu_sm90.h"
#endif

template <class P> __device__ __forceinline__ uint64_t cu_desc_k(P p)
{
    return cu_desc(cu_at(p), 16);
}
template <class P> __device__ __forceinline__ uint64_t cu_desc_mn(P p, unsigned next)
{
    return cu_desc(cu_at(p), next);
}

enum { CU_GROUP = 4 * CU_WARP }; /* a warpgroup */

#endif
