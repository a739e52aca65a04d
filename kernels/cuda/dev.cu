/* kernels/cuda/dev.cu - opening a device, its memory, and the table of operations. */
#include "kernels/cuda/ops.cuh"

#include <stdio.h>
#include <stdlib.h>
#ifdef __CUDACC__
#include <dlfcn.h>
#endif

/* What the fat binary holds code for (Makefile, CUDA_ARCHS): nothing below runs. */
enum { CC_MIN = 80 };

/* Tells what the kernels were compiled for: cu_after is nothing below sm_90, also where a later
 * device has compiled their PTX. */
inline namespace CU_NAME(dev_cu)
{
    __global__ void probe_kernel() {}

    /* There is no version of a driver: its library is not there, in the loader's words, or is another.
     * Its modules may be: a container has the library only if it is asked for. */
    void say_missing(lq_err * why)
    {
        const char *said = "libcuda.so.1";
#ifdef __CUDACC__
        void *lib = dlopen(said, RTLD_LAZY | RTLD_LOCAL);
        if (lib) {
            dlclose(lib);
            lq_fail(why, LQ_EDEVICE, "no GPU: %s is here and says no version of a driver", said);
            return;
        }
        said = dlerror();
#endif
        lq_fail(why, LQ_EDEVICE, "no GPU: the library of NVIDIA's driver is not here (%s)", said);
    }

    void say_none(lq_err * why, cudaError_t e)
    {
        const char *seen = getenv("CUDA_VISIBLE_DEVICES");
        lq_fail(why, LQ_EDEVICE, "no GPU: %s%s%s%s", cudaGetErrorString(e),
                seen ? " (CUDA_VISIBLE_DEVICES is '" : "", seen ? seen : "", seen ? "')" : "");
    }
}

static void CU_NAME(versions)(int *toolkit, int *driver)
{
    *toolkit = CUDART_VERSION;
    *driver = 0;
    cudaDriverGetVersion(driver);
    cudaGetLastError();
}

static int CU_NAME(count)(lq_err *why)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) return n;
    int driver = 0;
    cudaDriverGetVersion(&driver); /* the CUDA that it supports; 0: there is none */
    cudaGetLastError();
    if (driver == 0)
        say_missing(why);
    else if (e == cudaErrorInsufficientDriver && driver < CUDART_VERSION)
        lq_fail(why, LQ_EDEVICE, "no GPU: expected a driver of CUDA %d.%d, found one of %d.%d",
                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver / 1000,
                driver % 1000 / 10);
    else
        say_none(why, e == cudaSuccess ? cudaErrorNoDevice : e);
    return 0;
}

static void CU_NAME(close)(dev *d)
{
    if (d->ops) CU_NAME(blas_close)(d);
    if (d->done) cudaFree(d->done);
    if (d->stream) cudaStreamDestroy((cudaStream_t)d->stream);
    memset(d, 0, sizeof *d);
}

static lq_status CU_NAME(open)(dev *d, int index, lq_err *err)
{
    cudaDeviceProp p;
    cudaStream_t stream;
    cudaFuncAttributes code;
    const int n = CU_NAME(count)(err);
    memset(d, 0, sizeof *d);
    if (n == 0) return LQ_EDEVICE;
    if (index < 0 || index >= n)
        return lq_fail(err, LQ_EDEVICE,
                       n > 1 ? "cuda:%d: expected one of %d GPUs, cuda:0 .. cuda:%d"
                             : "cuda:%d: expected the %d GPU that is here, cuda:%d",
                       index, n, n - 1);
    snprintf(d->name, sizeof d->name, "cuda:%d", index);
    CU_TRY(d, cudaGetDeviceProperties(&p, index));
    if (!d->bad && p.major * 10 + p.minor < CC_MIN)
        return lq_fail(err, LQ_EDEVICE,
                       "cuda:%d: %s: expected compute capability %d.%d or later, found %d.%d",
                       index, p.name, CC_MIN / 10, CC_MIN % 10, p.major, p.minor);
    CU_TRY(d, cudaSetDevice(index));
    CU_TRY(d, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU_TRY(d, cudaFuncGetAttributes(&code, probe_kernel));
    if (!d->bad) d->stream = stream;
    CU_TRY(d, cudaMalloc((void **)&d->done, DEV_DONE * sizeof *d->done));
    CU_TRY(d, cudaMemsetAsync(d->done, 0, DEV_DONE * sizeof *d->done, (cudaStream_t)d->stream));
    if (d->bad) {
        const lq_status s = d->bad;
        *err = d->why;
        CU_NAME(close)(d);
        return s;
    }
    d->index = index;
    d->cc = p.major * 10 + p.minor;
    d->code = code.binaryVersion;
    d->ptx = code.ptxVersion;
    d->follows = dev_may_follow(d->cc, d->ptx);
    d->wide = true;
    d->n_sm = p.multiProcessorCount;
    d->memory = p.totalGlobalMem;
    d->shared_per_block = p.sharedMemPerBlockOptin;
    snprintf(d->name, sizeof d->name, "%.*s", (int)sizeof d->name - 1, p.name);
    d->ops = &CU_NAME(table);
    return LQ_OK;
}

static void CU_NAME(bind)(dev *d) { CU_TRY(d, cudaSetDevice(d->index)); }

static size_t CU_NAME(room)(dev *d)
{
    size_t left = 0, all = 0;
    CU_NAME(bind)(d);
    CU_TRY(d, cudaMemGetInfo(&left, &all));
    return left;
}

static void copy_rows(dev *d, const dev_copy_args *a, cudaMemcpyKind how)
{
    if (a->n && a->rows)
        CU_TRY(d, cudaMemcpy2DAsync(a->dst, a->ldd, a->src, a->lds, a->n, (size_t)a->rows, how,
                                    (cudaStream_t)d->stream));
}
static void CU_NAME(copy)(dev *d, const dev_copy_args *a)
{
    copy_rows(d, a, cudaMemcpyDeviceToDevice);
}
static void CU_NAME(upload_rows)(dev *d, const dev_copy_args *a)
{
    copy_rows(d, a, cudaMemcpyHostToDevice);
}
static void CU_NAME(download_rows)(dev *d, const dev_copy_args *a)
{
    copy_rows(d, a, cudaMemcpyDeviceToHost);
}

static void *CU_NAME(alloc)(dev *d, size_t n)
{
    void *p = NULL;
    CU_NAME(bind)(d);
    const cudaError_t e = d->bad ? cudaSuccess : cudaMalloc(&p, n ? n : 1);
    if (e == cudaErrorMemoryAllocation) cudaGetLastError(); /* or a later launch would give it */
    cu_check(d, "cudaMalloc", e);
    return d->bad ? NULL : p;
}

static void CU_NAME(free)(dev *d, void *p)
{
    if (p) cu_check(d, "cudaFree", cudaFree(p));
}

static void CU_NAME(part)(dev *d, void *p, size_t n)
{
    (void)d;
    cu_part(p, n);
}

static void *CU_NAME(alloc_host)(dev *d, size_t n)
{
    void *p = NULL;
    CU_TRY(d, cudaMallocHost(&p, n ? n : 1));
    return d->bad ? NULL : p;
}

static void CU_NAME(free_host)(dev *d, void *p)
{
    if (p) cu_check(d, "cudaFreeHost", cudaFreeHost(p));
}

/* Pageable memory is staged by the driver before the call returns. */
static void CU_NAME(upload)(dev *d, void *dst, const void *host, size_t n)
{
    if (n)
        CU_TRY(d, cudaMemcpyAsync(dst, host, n, cudaMemcpyHostToDevice, (cudaStream_t)d->stream));
}

static void CU_NAME(download)(dev *d, void *host, const void *src, size_t n)
{
    if (n)
        CU_TRY(d, cudaMemcpyAsync(host, src, n, cudaMemcpyDeviceToHost, (cudaStream_t)d->stream));
}

static void CU_NAME(zero)(dev *d, void *dst, size_t n)
{
    if (n) CU_TRY(d, cudaMemsetAsync(dst, 0, n, (cudaStream_t)d->stream));
}

static lq_status CU_NAME(sync)(dev *d, lq_err *err)
{
    if (d->link) CU_NAME(watch)(d);
    /* Also what was queued before a failure still reads and writes the host's memory. */
    cu_check(d, "cudaStreamSynchronize", cudaStreamSynchronize((cudaStream_t)d->stream));
    const lq_status s = d->bad;
    if (s && err) *err = d->why;
    d->bad = LQ_OK;
    return s;
}

/* Of this thread alone: what others do with the device meanwhile is theirs. */
static lq_status CU_NAME(capture)(dev *d, lq_err *err)
{
    const cudaError_t e =
        cudaStreamBeginCapture((cudaStream_t)d->stream, cudaStreamCaptureModeThreadLocal);
    if (e == cudaSuccess) return LQ_OK;
    cudaGetLastError();
    return lq_fail(err, LQ_EDEVICE, "%s: cudaStreamBeginCapture: %s", d->name,
                   cudaGetErrorString(e));
}

static dev_graph *CU_NAME(captured)(dev *d, lq_err *err)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t run = NULL;
    /* Also after a failure, which then is the reason. */
    cu_check(d, "cudaStreamEndCapture", cudaStreamEndCapture((cudaStream_t)d->stream, &g));
    CU_TRY(d, cudaGraphInstantiate(&run, g, 0));
    if (g) cudaGraphDestroy(g);
    if (d->bad) {
        *err = d->why;
        d->bad = LQ_OK;
        cudaGetLastError();
    }
    return (dev_graph *)run;
}

static void CU_NAME(replay)(dev *d, dev_graph *g)
{
    CU_TRY(d, cudaGraphLaunch((cudaGraphExec_t)g, (cudaStream_t)d->stream));
}

static void CU_NAME(drop)(dev *d, dev_graph *g)
{
    if (g) cu_check(d, "cudaGraphExecDestroy", cudaGraphExecDestroy((cudaGraphExec_t)g));
}

extern "C" const dev_ops CU_NAME(table) = {
#ifdef __CUDACC__
    "cuda",
#else
    "emulated",
#endif
#define TABLE(result, op, args) CU_NAME(op),
    DEV_OPS(TABLE)
#undef TABLE
};
