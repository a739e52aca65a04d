/* kernels/cuda/emu/emu.h - CUDA's words with host meanings, so that the kernels of kernels/cuda/
 * run where no GPU is. Included by kernels/cuda/cu.cuh in place of its device half; C++17, without
 * exceptions, RTTI or the C++ library.
 *
 * One block runs at a time, in rising order, or in falling, by turns. Each thread of it is a fibre with a stack of
 * its own, which runs until it waits: at a block barrier, or at a warp operation for the other 31
 * lanes. What a launch finds ends it and is its error (cudaGetErrorString says it in full):
 *
 *   divergence  threads that wait for each other in different places, or for some that have ended
 *   bounds      an access outside the array that the pointer came from: shared arrays one by one,
 *               device memory by the cudaMalloc that it came from; also one that is not aligned
 *   race        two threads touch a byte of shared memory, one of them writing, with neither a
 *               __syncthreads between nor, within a warp, a __syncwarp (shuffles order nothing)
 *   unwritten   a read of shared memory that nobody has written in this block
 *   follow      of a launch that may begin before the one before it has ended: device memory, but
 *               for cu_ldg's and cu_copy16_ldg's, that is touched before cu_after; a thread that
 *               ends without it
 *   pinned      memory of cudaMallocHost that changed before the stream was waited for, though an
 *               asynchronous copy may not have read it yet; copies to it arrive at the wait
 *   devices     a launch on a stream of another device than cudaSetDevice's of this thread; memory
 *               of another device than the stream's (of a kernel: bounds)
 *   capture     what a capture forbids (graph.cc); a graph's copy from or to host memory that is
 * not pinned any more, or device memory that is gone (of a kernel: bounds)
 *   shared      more shared memory than the part has for a block, or than the kernel is allowed
 *               (limits.cc)
 *
 *   blocks      device memory that a block touches though another of the launch has written it,
 *               without fences and a counter between (order.cc); of threads of one block: race
 *   registers   more threads than a kernel is compiled for
 *   constant    memory that is read as unchanging (cu_ldg) and was written in the launch
 *
 * Not seen: the hardware's order inside an mma, speed.
 *
 * G<T> and S<T> are pointers to device and shared memory that carry the bounds of their array.
 * cp.async copies happen at the wait for them, not before: a forgotten wait reads what was there.
 * mma sums each output from k = 0 up, by fused multiply-adds in f32 onto c. */
#ifndef LLMQ_KERNELS_CUDA_EMU_EMU_H
#define LLMQ_KERNELS_CUDA_EMU_EMU_H

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/nccl.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

extern "C" size_t emu_memory; /* of a device, in bytes; may be set before anything is allocated */
extern "C" int emu_devices;   /* how many; at first 1 */
extern "C" const char *emu_name; /* as the driver calls each; at first "emulated" */
extern "C" int emu_cc;           /* compute capability of each, 80, 86, ..; at first 90 */
extern "C" int emu_sm;           /* multiprocessors of each; at first 4 */
extern "C" size_t emu_launches;  /* after so many the devices are lost: every launch fails */
extern "C" bool emu_lost_late; /* ... or the one whose turn it is, which is seen at a wait alone */
extern "C" size_t emu_graphs;  /* so many can be instantiated, then memory is out */
/* What has been done since the start. Launches: of one kernel; graphs: launches of a graph; nodes:
 * the kernels that those ran; copies: those of graphs included; kept: graphs instantiated. Waits:
 * the host for the stream, in a synchronization or in a copy from or to memory that is not pinned.
 * Adds: cu_adds, of blocks that join parts one each. */
struct emu_counts {
    size_t launches, waits, copies, allocations, graphs, nodes, kept, adds;
};
extern "C" emu_counts emu_counted;

extern "C" bool emu_nccl_here; /* false: as on a machine without it */
extern "C" const nccl_api emu_nccl;
extern "C" bool emu_cublas_here;
extern "C" const cublas_api emu_cublas;
extern "C" bool emu_cublaslt_refuses; /* for tests: it does no product */
extern "C" const cublaslt_api emu_cublaslt;

/* ---- the part of the runtime's interface that dev.cu uses ---- */
typedef int cudaError_t;
typedef void *cudaStream_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph_exec *cudaGraphExec_t;
enum {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorNoDevice = 100,
    cudaErrorIllegalState = 401,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorStreamCaptureWrongThread = 908
};
enum { cudaStreamCaptureModeThreadLocal = 1 };
#define CUDART_VERSION 0
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
enum { cudaStreamNonBlocking = 1, cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i);
cudaError_t cudaSetDevice(int i);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t n);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, int kind, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t ldd, const void *src, size_t lds, size_t n,
                              size_t rows, int kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *dst, int v, size_t n, cudaStream_t s);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
struct cudaFuncAttributes {
    int binaryVersion, ptxVersion;
};
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F *)
{
    a->binaryVersion = emu_cc;
    a->ptxVersion = 90;
    return cudaSuccess;
}

namespace emu
{

cudaError_t allow_shared(const void *kernel, int bytes);

struct point {
    unsigned x, y, z;
};
extern point thread_idx, block_idx, block_dim, grid_dim;

struct span {
    uintptr_t lo, hi;
};
/* The allocation that p is in; {p, p} where it is in none. */
span find_global(const void *p);
/* The block's shared array `key` of so many bytes; the first thread that asks makes it. */
void *shared_static(const void *key, size_t bytes, size_t align, span *s);
void *shared_dynamic(span *s);
/* Checks of an access by the running thread. */
void inside(const void *p, size_t n, size_t align, span s);
void read_global(const void *p, size_t n, size_t align, span s);
void write_global(const void *p, const void *value, size_t n, size_t align, span s);
void touch_constant(const void *p, size_t n, size_t align, span s);
void touch_shared(const void *p, size_t n, size_t align, span s, bool write);

void bound(int threads); /* CU_BOUND */

/* cu_add, cu_fence (order.cc). */
int add(int *p, int v, span s);
void order_add(const void *p);
void order_fence();

/* Wait for the whole warp; `in` of n bytes, at most PEER_BYTES, is what this lane brings. After it
 * peers()[l] is what lane l brought, until the next one. */
enum { PEER_BYTES = 64 };
typedef unsigned char brought[PEER_BYTES];
void warp_meet(const char *file, int line, const char *what, const void *in, size_t n);
const brought *peers();
int lane();
void block_meet(const char *file, int line);
void warp_order(const char *file, int line);
void copy_later(void *dst, span d, const void *src, span s, size_t n, bool zero, bool constant);
void copy_commit();
void copy_wait(int groups);

/* For the emulated NCCL: a stream's device; whether [p, p + n) is in one cudaMalloc of it. */
int stream_device(const void *stream);
bool on_device(const void *p, size_t n, int device);
/* Its device is lost; it waits for one that is, until `waits` is taken back. */
bool stream_lost(const void *stream);
void stream_waits(void *stream, bool waits);

/* The running thread is of a launch that follows; it is over. */
void follow_begin();
void follow_end();
void follow_after();

/* A launch: each thread runs body(ctx); ctx of `bytes` bytes is copied where it is recorded. */
struct work {
    dim3 grid, block;
    size_t shared; /* dynamic, bytes */
    const void *kernel;
    void (*body)(void *ctx);
    void *ctx;
    size_t bytes;
    bool follows;
};
cudaError_t launch(void *stream, const work *w);

template <class T> struct plain {
    typedef T type;
};
template <class T> struct plain<const T> {
    typedef T type;
};

/* A place in memory that says when it is read and written. */
template <class P> struct place {
    P at;
    typedef typename P::value V;
    operator V() const { return at.load(); }
    const place &operator=(V v) const
    {
        at.store(v);
        return *this;
    }
    const place &operator=(const place &o) const { return *this = (V)o; }
    const place &operator+=(V v) const { return *this = (V)(at.load() + v); }
    place(P p) : at(p) {}
    place(const place &) = default;
};

template <class T, bool SHARED> struct ptr {
    typedef typename plain<T>::type value;
    T *p;
    span s;
    ptr(T *q = nullptr) : p(q), s(SHARED ? span{ 0, 0 } : find_global((const void *)q)) {}
    ptr(T *q, span b) : p(q), s(b) {}
    operator ptr<const T, SHARED>() const { return { p, s }; }
    explicit operator bool() const { return p; }
    /* As integers: a pointer outside its array is made and never used, as kernels may do. */
    ptr operator+(int64_t n) const { return { (T *)((uintptr_t)p + (uintptr_t)n * sizeof(T)), s }; }
    ptr operator-(int64_t n) const { return *this + -n; }
    ptr &operator+=(int64_t n) { return *this = *this + n; }
    place<ptr> operator[](int64_t n) const { return { *this + n }; }
    place<ptr> operator*() const { return { *this }; }
    value load() const { return load_as<value>(); }
    void store(value v) const { store_as(v); }
    template <class V> V load_as() const
    {
        V v;
        if (SHARED)
            touch_shared((const void *)p, sizeof v, alignof(V), s, false);
        else
            read_global((const void *)p, sizeof v, alignof(V), s);
        memcpy(&v, (const void *)p, sizeof v);
        return v;
    }
    template <class V> void store_as(V v) const
    {
        if (SHARED)
            touch_shared((const void *)p, sizeof v, alignof(V), s, true);
        else
            write_global((const void *)p, &v, sizeof v, alignof(V), s);
        memcpy((void *)p, &v, sizeof v);
    }
};

/* A kernel's parameter as the host gives it. */
template <class P> struct param {
    typedef P type;
};
template <class T> struct param<ptr<T, false>> {
    typedef T *type;
};
/* Parameters are taken by value, at the launch. */
template <class B>
cudaError_t launch_body(void *stream, dim3 grid, dim3 block, size_t shared, const void *kernel,
                        bool follows, B body)
{
    static_assert(__is_trivially_copyable(B), "parameters are bytes");
    const work w = { grid,  block,       shared, kernel, [](void *ctx) { (*(B *)ctx)(); },
                     &body, sizeof body, follows };
    return launch(stream, &w);
}
template <class... P>
cudaError_t launch_kernel(void *stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                          typename param<P>::type... args)
{
    return launch_body(stream, grid, block, shared, (const void *)kernel, false,
                       [=] { kernel(args...); });
}

/* The same of a launch that follows. */
template <class... P>
cudaError_t launch_follow(void *stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                          typename param<P>::type... args)
{
    return launch_body(stream, grid, block, shared, (const void *)kernel, true, [=] {
        follow_begin();
        kernel(args...);
        follow_end();
    });
}

template <class T> ptr<T, true> make_shared(const void *key, size_t n)
{
    span s;
    T *p = (T *)shared_static(key, n * sizeof(T), 16, &s);
    return { p, s };
}
template <class T> ptr<T, true> make_dynamic()
{
    span s;
    T *p = (T *)shared_dynamic(&s);
    return { p, s };
}
} // namespace emu

template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), int, int bytes)
{
    return emu::allow_shared((const void *)kernel, bytes);
}

template <class T> using G = emu::ptr<T, false>;
template <class T> using S = emu::ptr<T, true>;

#define threadIdx emu::thread_idx
#define blockIdx emu::block_idx
#define blockDim emu::block_dim
#define gridDim emu::grid_dim
#define CU_SHARED(T, name, count)     \
    static const char name##_key = 0; \
    const S<T> name = emu::make_shared<T>(&name##_key, (size_t)(count))
#define CU_BOUND(threads) emu::bound(threads)
#define CU_DYNAMIC(T, name) const S<T> name = emu::make_dynamic<T>()
#define cu_launch_follow(d, grid, block, shared, kernel, ...) \
    emu::launch_follow((d)->stream, grid, block, shared, kernel, __VA_ARGS__)
#define CU_LAUNCH_(stream, grid, block, shared, kernel, ...) \
    emu::launch_kernel(stream, grid, block, shared, (kernel), __VA_ARGS__)

template <class U, class T, bool B> emu::ptr<U, B> cu_as(emu::ptr<T, B> p)
{
    return { (U *)(uintptr_t)p.p, p.s };
}
template <class V, class T, bool B> V cu_ld(emu::ptr<T, B> p) { return p.template load_as<V>(); }
template <class V, class T, bool B> V cu_ldg(emu::ptr<T, B> p)
{
    V v;
    emu::touch_constant((const void *)p.p, sizeof v, alignof(V), p.s);
    memcpy(&v, (const void *)p.p, sizeof v);
    return v;
}
static inline int cu_opaque(int v) { return v; }
static inline int cu_add(G<int> p, int v) { return emu::add(p.p, v, p.s); }
static inline void cu_fence() { emu::order_fence(); }
void cu_part(void *p, size_t n); /* see dev.h: part */
static inline void cu_next() {}
static inline void cu_after() { emu::follow_after(); }
template <class T, bool B> void cu_prefetch(emu::ptr<T, B> p)
{
    emu::inside((const void *)p.p, 1, 1, p.s);
}
template <class V, class T, bool B> void cu_st(emu::ptr<T, B> p, V v) { p.store_as(v); }

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
static inline void __syncthreads(EMU_HERE) { emu::block_meet(file, line); }
static inline void __syncwarp(EMU_HERE) { emu::warp_order(file, line); }
static inline float cu_shfl(float v, int lane, EMU_HERE)
{
    emu::warp_meet(file, line, "cu_shfl", &v, sizeof v);
    memcpy(&v, emu::peers()[lane & 31], sizeof v);
    return v;
}
static inline float cu_shfl_xor(float v, int mask, EMU_HERE)
{
    return cu_shfl(v, emu::lane() ^ mask, file, line);
}
static inline int64_t cu_shfl_long(int64_t v, int lane, EMU_HERE)
{
    emu::warp_meet(file, line, "cu_shfl_long", &v, sizeof v);
    memcpy(&v, emu::peers()[lane & 31], sizeof v);
    return v;
}
static inline double cu_shfl_double(double v, int lane, EMU_HERE)
{
    emu::warp_meet(file, line, "cu_shfl_double", &v, sizeof v);
    memcpy(&v, emu::peers()[lane & 31], sizeof v);
    return v;
}
static inline unsigned cu_same(int v, EMU_HERE)
{
    unsigned lanes = 0;
    emu::warp_meet(file, line, "cu_same", &v, sizeof v);
    for (int l = 0; l < 32; l++)
        lanes |= (unsigned)(memcmp(&v, emu::peers()[l], sizeof v) == 0) << l;
    return lanes;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(bytes >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
/* 16 bytes from device to shared memory; zeros where !pred, and src is not read. */
template <class T, class U> void cu_copy16(S<T> dst, G<U> src, bool pred)
{
    emu::copy_later((void *)dst.p, dst.s, (const void *)src.p, src.s, 16, !pred, false);
}
template <class T, class U> void cu_copy4(S<T> dst, G<U> src)
{
    emu::copy_later((void *)dst.p, dst.s, (const void *)src.p, src.s, 4, false, false);
}
template <class T, class U> void cu_copy16_ldg(S<T> dst, G<U> src, bool pred)
{
    emu::copy_later((void *)dst.p, dst.s, (const void *)src.p, src.s, 16, !pred, true);
}
static inline void cu_copy_commit() { emu::copy_commit(); }
template <int GROUPS> void cu_copy_wait() { emu::copy_wait(GROUPS); }

/* d[16,8] += a[16,16] b[16,8]; fragments as PTX says for mma.m16n8k16: g = lane / 4, c = lane % 4,
 * a = (g, 2c), (g + 8, 2c), (g, 2c + 8), (g + 8, 2c + 8); b = (2c, g), (2c + 8, g), two
 * neighbouring k in one word, the lower one low; d = (g, 2c), (g, 2c + 1), (g + 8, 2c), .. + 1. */
void cu_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], EMU_HERE);
void cu_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], EMU_HERE);

/* d[16,8] += a[16,32] b[32,8], exactly, of unsigned by signed bytes; fragments as PTX says for
 * mma.m16n8k32: a = (g, 4c), (g + 8, 4c), (g, 4c + 16), (g + 8, 4c + 16); b = (4c, g), (4c + 16,
 * g), four neighbouring k in one word, the lowest one low; d as above. */
void cu_mma_u8s8(int d[4], const unsigned a[4], const unsigned b[2], EMU_HERE);

/* Four matrices of 8 rows of eight 16-bit numbers: lane l brings row l % 8 of matrix l / 8, and
 * gets of each, in one word, columns 2c and 2c + 1 of row g; transposed, of rows 2c, 2c + 1 column
 * g. */
template <bool TRANS, class T> void cu_ldmatrix(unsigned r[4], S<T> row, EMU_HERE)
{
    const uint4 own = cu_ld<uint4>(row);
    emu::warp_meet(file, line, "cu_ldmatrix", &own, sizeof own);
    const emu::brought *rows = emu::peers();
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t two[2];
        for (int k = 0; k < 2; k++) {
            const uint16_t *from = (const uint16_t *)rows[8 * i + (TRANS ? 2 * c + k : g)];
            two[k] = from[TRANS ? g : 2 * c + k];
        }
        r[i] = two[0] | (unsigned)two[1] << 16;
    }
}

static inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}

#endif
