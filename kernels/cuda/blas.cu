/* kernels/cuda/blas.cu - products by cuBLAS, which is loaded at run time where it is: of many rows
 * by a dense bf16 weight that lies in rows of K, or by what mm_wide.cu made of a quantized one.
 *
 *   bias    y = bias, or y + bias: before a product that is added to y; one thread an output.
 *
 * The workspace is the device's own, so that a product allocates nothing and can be captured. The
 * same call gives the same bytes each time ("Results reproducibility" in cuBLAS's manual: one
 * stream, a workspace of its own). */
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/mm.cuh"

#ifdef __CUDACC__
#include <dlfcn.h>
#endif

inline namespace CU_NAME(blas_cu)
{

    enum { THREADS = 256, WORKSPACE = 32 << 20 };

#ifdef __CUDACC__
    bool has(cublas_api * api, void *lib)
    {
        bool all = true;
#define X(field, name, args) all &= (api->field = (int(*) args)dlsym(lib, name)) != NULL;
        CUBLAS_CALLS(X)
#undef X
        api->text = (const char *(*)(int))dlsym(lib, "cublasGetStatusString");
        return all && api->text;
    }
    bool has(cublaslt_api * api, void *lib)
    {
        bool all = true;
#define X(field, name, args) all &= (api->field = (int(*) args)dlsym(lib, name)) != NULL;
        CUBLASLT_CALLS(X)
#undef X
        return all;
    }

    /* Of a library. No static of the template: the linker makes those of all programs one, and shows their names. */
    template <class API> struct loaded {
        API api;
        int state; /* 1: loaded, -1: not there */
    };

    /* NULL: it is not there, or lacks a call. */
    template <class API> const API *load(loaded<API> * l, const char *const names[3])
    {
        for (int i = 0; i < 3 && !l->state; i++) {
            void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
            if (lib && has(&l->api, lib))
                l->state = 1;
            else if (lib)
                dlclose(lib);
        }
        if (!l->state) l->state = -1;
        return l->state > 0 ? &l->api : NULL;
    }
    const cublas_api *load_cublas(void)
    {
        static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so" };
        static loaded<cublas_api> here;
        return load(&here, names);
    }
    const cublaslt_api *load_lt(void)
    {
        static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
                                             "libcublasLt.so" };
        static loaded<cublaslt_api> here;
        return load(&here, names);
    }
#else
    const cublas_api *load_cublas(void) { return emu_cublas_here ? &emu_cublas : NULL; }
    const cublaslt_api *load_lt(void) { return emu_cublas_here ? &emu_cublaslt : NULL; }
#endif

    void check(dev * d, const cublas_api *api, int result)
    {
        if (result == 0 || d->bad) return;
        d->bad = LQ_EDEVICE;
        lq_fail(&d->why, d->bad, "%s: cuBLAS: %s", d->name, api->text(result));
    }

    /* NULL: it is not there. With d->blas, unless d has failed. */
    const cublas_api *opened(dev * d)
    {
        const cublas_api *api = load_cublas();
        if (!api || d->blas || d->bad) return api;
        check(d, api, api->create(&d->blas));
        if (!d->bad) check(d, api, api->set_stream(d->blas, d->stream));
        return api;
    }

    __global__ void __launch_bounds__(THREADS)
        bias_kernel(G<float> y, int64_t ldy, G<const float> bias, int64_t N, bool add)
    {
        const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        if (n >= N) return;
        const G<float> to = y + ((int64_t)blockIdx.y * ldy + n);
        *to = add ? *to + bias[n] : (float)bias[n];
    }

}

bool CU_NAME(blas)(dev *d)
{
    enum { LEAST = 16 }; /* workspaces that are free: else weights and cache need what there is */
    if (!d->blas_room && CU_NAME(table).room(d) / WORKSPACE < LEAST) return false;
    const cublas_api *api = opened(d);
    if (!api || d->bad) return false;
    if (!d->blas_room) {
        d->blas_room = d->ops->alloc(d, WORKSPACE);
        if (!d->bad) check(d, api, api->set_workspace(d->blas, d->blas_room, WORKSPACE));
        d->lt = !d->bad && load_lt();
    }
    return !d->bad;
}

void CU_NAME(blas_load)(void)
{
    load_cublas();
    load_lt();
}

void CU_NAME(blas_close)(dev *d)
{
    if (d->blas) load_cublas()->destroy(d->blas);
    d->ops->free(d, d->blas_room);
    d->blas = d->blas_room = NULL;
    d->lt = false;
}

void CU_NAME(mm_blas)(dev *d, const dev_mm_args *a, const mm_input *x, const mm_dense *w)
{
    float *const y = a->y + w->n0;
    const float one = 1, beta = a->add || a->bias ? 1.0f : 0.0f;
    const cublas_api *api = load_cublas();
    if (a->bias)
        CU_LAUNCH(d, "bias", bias_kernel,
                  dim3((unsigned)lq_ceil_div(w->n, THREADS), (unsigned)a->M), THREADS, 0, y, a->ldy,
                  a->bias + w->n0, w->n, a->add);
    if (!d->bad)
        check(d, api,
              api->gemm_ex(d->blas, CUBLAS_T, CUBLAS_N, (int)w->n, (int)a->M, (int)w->ld, &one,
                           w->rows, CUBLAS_BF16, (int)w->ld, x->b, CUBLAS_BF16, (int)x->ldb, &beta,
                           y, CUBLAS_F32, (int)a->ldy, CUBLAS_IN_F32, CUBLAS_ANY));
}

bool CU_NAME(mm_lt_product)(dev *d, const mm_codes *c)
{
    enum { W, X, Y, N, NOT_SUPPORTED = 15 };
    const cublaslt_api *lt = load_lt();
    const cublas_api *api = load_cublas();
    const int in = c->f8 ? CUBLAS_E4M3 : CUBLAS_I8, out = c->f8 ? CUBLAS_F32 : CUBLAS_I32,
              transposed = CUBLAS_T;
    const int32_t one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    const uint64_t K = (uint64_t)c->K, n = (uint64_t)c->n, M = (uint64_t)c->M;
    void *desc = NULL, *of[N] = { NULL, NULL, NULL };
    if (d->bad) return true;
    int r = lt->desc(&desc, c->f8 ? CUBLAS_IN_F32 : CUBLAS_IN_I32, out);
    if (!r) r = lt->desc_set(desc, CUBLASLT_A_OP, &transposed, sizeof transposed);
    if (!r) r = lt->layout(&of[W], in, K, n, c->K);
    if (!r) r = lt->layout(&of[X], in, K, M, c->K);
    if (!r) r = lt->layout(&of[Y], out, n, M, c->n);
    if (!r)
        r = lt->matmul(d->blas, desc, c->f8 ? (const void *)&one_f : &one, c->w, of[W], c->x, of[X],
                       c->f8 ? (const void *)&zero_f : &zero, c->y, of[Y], c->y, of[Y], NULL,
                       d->blas_room, WORKSPACE, d->stream);
    for (int i = 0; i < N; i++)
        if (of[i]) lt->layout_drop(of[i]);
    if (desc) lt->desc_drop(desc);
    if (r != NOT_SUPPORTED) check(d, api, r);
    return r != NOT_SUPPORTED;
}
