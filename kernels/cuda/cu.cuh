/* kernels/cuda/cu.cuh - the words that kernels are written in beside CUDA's own, with two meanings:
 * the device's, here, and the host's, in emu/emu.h.
 *
 *   G<T>, S<T>                   pointer to device memory, to the block's shared memory
 *   CU_SHARED(T, name, count)    a shared array; CU_DYNAMIC(T, name): the launch's dynamic one
 *   CU_BOUND(threads)            in a kernel whose blocks have several sizes: what its
 *                                __launch_bounds__ allows; all others are launched by that number
 *   cu_ld<V>(p), cu_st(p, v)     one access of sizeof(V) bytes, aligned to as many
 *   cu_ldg<V>(p)                 the same of memory that nobody writes during the launch
 *   cu_as<U>(p)                  the same address as another type
 *   cu_shfl, cu_shfl_xor         a float from another lane; all 32 lanes take part
 *   cu_shfl_long, _double        an int64_t, a double likewise
 *   cu_same(v)                   the lanes, as bits, that have the same v
 *   cu_copy16, _commit, _wait    cp.async; cu_copy16_ldg: of memory as cu_ldg's; cu_copy4: of 4 bytes
 *   cu_mma_bf16, cu_mma<F16>     mma.m16n8k16, bf16 or f16 with f32 sums
 *   cu_mma_u8s8                  mma.m16n8k32, unsigned by signed bytes with s32 sums
 *   cu_ldmatrix<TRANS>(r, row)   ldmatrix.x4: lane l says where row l % 8 of matrix l / 8 is
 *   cu_pair<F16>(lo, hi)         two numbers as f16 or bf16 in one word
 *   cu_sub_bf16(a, b)            a - b, of two bf16 each
 *   cu_fma_bf16(a, b, c)         a * b + c likewise, rounded once
 *   cu_exp2(x)                   2^x, relative error below 2^-22; below 2^-126 zero
 *   cu_opaque(v)                 v, of which the compiler knows nothing: it is kept in a register, not
 *                                worked out anew, and what is made of it in a loop is made there
 *   cu_add(p, v)                 an int in device memory += v, at once; what it was
 *   cu_fence()                   what this thread has written before is seen by all that see what
 *                                it writes after it; what it reads after it is as new
 *   CU_ALLOW(d, kernel, arrays)  before its launch, where that has dynamic shared memory: as much as a
 *                                block may have beside so many bytes of CU_SHARED's; always the same,
 *                                so that the nodes of graphs keep what they need
 *   CU_LAUNCH(d, name, kernel, grid, block, shared, args...)
 *   CU_FOLLOW(the same)          of a kernel that may begin before the launch before has ended
 *                                (programmatic dependent launch, sm_90 and later; below)
 *   cu_next()                    the next launch may begin; it waits for this one in its cu_after
 *   cu_after()                   the launch before has ended, and what it wrote is seen
 *   cu_follow()                  both
 *   cu_prefetch(p)               p's 128 bytes are wanted in the L2 cache
 *   CU_ROWS                      rows that a launch has in the grid's y at most (the device holds
 *                                65,535 blocks there); few in the emulation, so that tests have
 * more
 *   CU_WHOLE                     floats up to which sums over devices take one exchange (link.cu);
 *                                a guess: 128 KiB go over NVLink in less than a launch takes
 *   CU_PIECE                     floats that are summed together at most: bounds the scratch
 *   CU_WIDE                      tiles of a panel of mm_wide.cu at most, beside its bytes
 *   CU_DRAW, CU_CHUNKS           ids that a block of draw.cu has at least, where a row has several;
 *                                chunks of ids that it adds up at most
 *
 * Each thread of a kernel that follows calls cu_after, also one that has nothing to do: so what came
 * before the launch before has ended too. Before it, it touches no memory that any kernel writes;
 * behind it, it reads what kernels have written by cu_ld, as a cu_ldg may be moved to before it.
 *
 * Memory is touched through these alone; that is what the emulation watches. */
#ifndef LLMQ_KERNELS_CUDA_CU_CUH
#define LLMQ_KERNELS_CUDA_CU_CUH

#include "kernels/core/kmath.h"
#include "kernels/device.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>

#define CU_NAME(op) cu_##op
static inline void cu_part(void *, size_t) {} /* nobody watches */
enum { CU_ROWS = 32768, CU_WHOLE = 32768, CU_PIECE = 1 << 22, CU_WIDE = 65535 };
enum { CU_DRAW = 4096, CU_CHUNKS = 8192 };
template <class T> using G = T *;
template <class T> using S = T *;
#define CU_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define CU_BOUND(threads)
#define CU_DYNAMIC(T, name)                                   \
    extern __shared__ __align__(16) unsigned char cu_bytes[]; \
    T *const name = reinterpret_cast<T *>(cu_bytes)
// it takes the brackets for comparisons:
// clang-format off
#define CU_LAUNCH_(stream, grid, block, shared, kernel, ...)                       \
    ((kernel)<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__), \
     cudaGetLastError())
// clang-format on
template <class T> struct cu_given {
    typedef T type;
};
template <class... P>
cudaError_t cu_launch_follow(const dev *d, dim3 grid, dim3 block, size_t shared,
                             void (*kernel)(P...), typename cu_given<P>::type... args)
{
    cudaLaunchAttribute early;
    cudaLaunchConfig_t how = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = grid;
    how.blockDim = block;
    how.dynamicSmemBytes = shared;
    how.stream = (cudaStream_t)d->stream;
    how.attrs = &early;
    how.numAttrs = d->follows ? 1 : 0;
    const cudaError_t e = cudaLaunchKernelEx(&how, kernel, args...);
    cudaGetLastError();
    return e;
}
__device__ __forceinline__ void cu_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void cu_after()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <class T> __device__ __forceinline__ void cu_prefetch(T *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

template <class U, class T> __device__ __forceinline__ U *cu_as(T *p) { return (U *)p; }
template <class V, class T> __device__ __forceinline__ V cu_ld(T *p) { return *(const V *)p; }
template <class V, class T> __device__ __forceinline__ V cu_ldg(T *p)
{
    return __ldg((const V *)p);
}
template <class V, class T> __device__ __forceinline__ void cu_st(T *p, V v) { *(V *)p = v; }
__device__ __forceinline__ float cu_shfl(float v, int lane)
{
    return __shfl_sync(0xffffffffu, v, lane);
}
__device__ __forceinline__ float cu_shfl_xor(float v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
__device__ __forceinline__ int64_t cu_shfl_long(int64_t v, int lane)
{
    return __shfl_sync(0xffffffffu, (long long)v, lane);
}
__device__ __forceinline__ double cu_shfl_double(double v, int lane)
{
    return __shfl_sync(0xffffffffu, v, lane);
}
__device__ __forceinline__ unsigned cu_same(int v) { return __match_any_sync(0xffffffffu, v); }
template <class T, class U> __device__ __forceinline__ void cu_copy16(T *dst, U *src, bool pred)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(src),
                 "r"(pred ? 16 : 0)
                 : "memory");
}
template <class T, class U> __device__ __forceinline__ void cu_copy4(T *dst, U *src)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(src) : "memory");
}
template <class T, class U> __device__ __forceinline__ void cu_copy16_ldg(T *dst, U *src, bool pred)
{
    cu_copy16(dst, src, pred);
}
__device__ __forceinline__ void cu_copy_commit() { asm volatile("cp.async.commit_group;" ::); }
template <int GROUPS> __device__ __forceinline__ void cu_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}
__device__ __forceinline__ void cu_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void cu_mma_f16(float d[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void cu_mma_u8s8(int d[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <bool TRANS, class T> __device__ __forceinline__ void cu_ldmatrix(unsigned r[4], T *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}
template <bool F16> __device__ __forceinline__ unsigned cu_pair(float lo, float hi)
{
    unsigned w;
    if (F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
}
__device__ __forceinline__ unsigned cu_sub_bf16(unsigned a, unsigned b)
{
    unsigned d;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else /* b times -1, plus a */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
#endif
    return d;
}
__device__ __forceinline__ unsigned cu_fma_bf16(unsigned a, unsigned b, unsigned c)
{
    unsigned d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ float cu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ int cu_opaque(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}
__device__ __forceinline__ int cu_add(int *p, int v) { return atomicAdd(p, v); }
__device__ __forceinline__ void cu_fence() { __threadfence(); }
__device__ __forceinline__ float cu_f16_f32(unsigned h)
{
    return __half2float(__ushort_as_half((unsigned short)h));
}
__device__ __forceinline__ uint16_t cu_f32_f16(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}
#else
#include "kernels/cuda/emu/emu.h"
#define CU_NAME(op) emu_##op
enum { CU_ROWS = 96, CU_WHOLE = 256, CU_PIECE = 1024, CU_WIDE = 3, CU_DRAW = 60, CU_CHUNKS = 4 };
static inline float cu_f16_f32(unsigned h) { return lq_f16_to_f32((uint16_t)h); }
static inline uint16_t cu_f32_f16(float f) { return lq_f32_to_f16(f); }
#endif

enum { CU_WARP = 32 };

__device__ __forceinline__ void cu_follow()
{
    cu_next();
    cu_after();
}

#define CU_LAUNCH(d, name, kernel, grid, block, shared, ...)                                      \
    do {                                                                                          \
        if (!(d)->bad)                                                                            \
            cu_check(d, name, CU_LAUNCH_((d)->stream, grid, block, shared, kernel, __VA_ARGS__)); \
    } while (0)
#define CU_FOLLOW(d, name, kernel, grid, block, shared, ...)                                  \
    do {                                                                                      \
        if (!(d)->bad)                                                                        \
            cu_check(d, name, cu_launch_follow(d, grid, block, shared, kernel, __VA_ARGS__)); \
    } while (0)
#define CU_TRY(d, call)                          \
    do {                                         \
        if (!(d)->bad) cu_check(d, #call, call); \
    } while (0)
#define CU_ALLOW(d, kernel, arrays)                                                     \
    CU_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                   (int)((d)->shared_per_block - (size_t)(arrays))))
static inline void cu_check(dev *d, const char *what, cudaError_t e)
{
    if (e == cudaSuccess || d->bad) return;
    d->bad = e == cudaErrorMemoryAllocation ? LQ_ENOMEM : LQ_EDEVICE;
    lq_fail(&d->why, d->bad, "%s: %.*s: %s", d->name, (int)strcspn(what, "("), what,
            cudaGetErrorString(e));
}

__device__ __forceinline__ float cu_bf16_f32(unsigned h) { return __uint_as_float(h << 16); }
__device__ __forceinline__ unsigned cu_f32_bf16(float f) /* to nearest even; NaN stays NaN */
{
    const unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
#ifndef __CUDACC__
template <bool F16> unsigned cu_pair(float lo, float hi)
{
    return F16 ? cu_f32_f16(lo) | (unsigned)cu_f32_f16(hi) << 16
               : cu_f32_bf16(lo) | cu_f32_bf16(hi) << 16;
}
static inline unsigned cu_sub_bf16(unsigned a, unsigned b)
{
    return cu_pair<false>(cu_bf16_f32(a & 0xffffu) - cu_bf16_f32(b & 0xffffu),
                          cu_bf16_f32(a >> 16) - cu_bf16_f32(b >> 16));
}
static inline float cu_exp2(float x) { return exp2f(x); }
/* To odd where a float does not hold it, so that rounding it again to fewer bits is rounding once. */
static inline float cu_odd(double x)
{
    const float f = (float)x;
    if ((double)f == x || x != x || __float_as_uint(f) & 1) return f;
    return nextafterf(f, x > (double)f ? INFINITY : -INFINITY);
}
static inline float cu_fma_odd(unsigned a, unsigned b, unsigned c)
{
    return cu_odd(fma((double)cu_bf16_f32(a), (double)cu_bf16_f32(b), (double)cu_bf16_f32(c)));
}
static inline unsigned cu_fma_bf16(unsigned a, unsigned b, unsigned c)
{
    return cu_pair<false>(cu_fma_odd(a & 0xffffu, b & 0xffffu, c & 0xffffu),
                          cu_fma_odd(a >> 16, b >> 16, c >> 16));
}
#endif
template <bool F16>
__device__ __forceinline__ void cu_mma(float d[4], const unsigned a[4], const unsigned b[2])
{
    if (F16)
        cu_mma_f16(d, a, b);
    else
        cu_mma_bf16(d, a, b);
}

__device__ __forceinline__ float cu_e4m3_f32(unsigned c)
{
    if ((c & 0x7fu) == 0x7fu) return NAN;
    /* exponent and mantissa moved up into a float's, 2^120 too small, subnormals included */
    const float f = __uint_as_float((c & 0x7fu) << 20) * 0x1p120f;
    return c & 0x80u ? -f : f;
}

/* To the nearest, even on ties, at most 448. */
__device__ __forceinline__ unsigned cu_f32_e4m3(float f)
{
    const unsigned u = __float_as_uint(f), sign = u >> 24 & 0x80u;
    const float a = fabsf(f);
    if (!(a < 464.0f)) return sign | (a != a ? 0x7fu : 0x7eu);
    if (a < 0x1p-6f) return sign | (unsigned)rintf(a * 512.0f); /* multiples of 2^-9 */
    const unsigned up = (u & 0x7fffffffu) + 0x7ffffu + (u >> 20 & 1u);
    return sign | ((up >> 20) - ((127u - 7u) << 3));
}

/* Sums over the lanes of a warp, every lane with the result: halves, quarters, ... */
__device__ __forceinline__ float cu_warp_sum(float v)
{
    for (int m = CU_WARP / 2; m; m /= 2)
        v += cu_shfl_xor(v, m);
    return v;
}
__device__ __forceinline__ float cu_warp_max(float v)
{
    for (int m = CU_WARP / 2; m; m /= 2) {
        const float o = cu_shfl_xor(v, m);
        v = o > v ? o : v;
    }
    return v;
}

#endif
