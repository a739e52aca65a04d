/* kernels/cuda/link.cu - several devices that work on one model: sums over all of them, and rows
 * gathered on the first, over NCCL.
 *
 * NCCL is loaded when a link is first asked for, so that everything else runs without it. It only
 * carries bytes (ncclSend, ncclRecv): the order of its own sums is its choice, ours is fixed. Of n
 * floats x over R ranks:
 *
 *     n <= CU_WHOLE   each rank sends its x to all others, and adds all R itself: one exchange
 *     n >  CU_WHOLE   rank r receives slice r of all others, adds, and sends the sum to all others:
 *                     two exchanges, 2 (R - 1) / R of the bytes of x out of each device
 *
 *              rank 0      rank 1      rank 2
 *        x   [ a b c ]   [ d e f ]   [ g h i ]     slices
 *     scratch  . d g       b . h       c f .       after the first exchange, in order of ranks
 *        x   [ S . . ]   [ . S . ]   [ . . S ]     S = ((x0 + x1) + x2) + ...
 *        x   [ S S S ]   [ S S S ]   [ S S S ]     after the second
 *
 * Both ways each element is summed from rank 0 up: the same bytes on every rank, and whatever n is.
 * No shared memory. */
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/ops.cuh"

#include <stdlib.h>
#ifdef __CUDACC__
#include <dlfcn.h>
#endif

struct dev_link {
    const nccl_api *nccl;
    dev *d[DEV_RANKS];
    void *comm[DEV_RANKS];
    float *scratch[DEV_RANKS]; /* of each rank: a slice of each other one */
    int n;
    bool broken; /* its exchanges were ended */
};

inline namespace CU_NAME(link_cu)
{

    enum { THREADS = 256 };

    /* x [n] = the sum in order of ranks, of which `own` is x itself and the others are `parts` [ranks -
 * 1, n]. */
    __global__ void __launch_bounds__(THREADS)
        sum_kernel(G<float> x, G<const float> parts, int ranks, int own, int64_t n)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        if (i >= n) return;
        const float mine = x[i];
        float sum = 0;
        for (int r = 0; r < ranks; r++) {
            const float v = r == own ? mine : (float)parts[(r < own ? r : r - 1) * n + i];
            sum = r ? sum + v : v;
        }
        x[i] = sum;
    }

#ifdef __CUDACC__
    const nccl_api *load_nccl(lq_err * err)
    {
        static nccl_api api;
        static bool loaded;
        if (loaded) return &api;
        void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!lib) {
            lq_fail(err, LQ_EDEVICE, "several GPUs need NCCL: %s", dlerror());
            return NULL;
        }
        const char *missing = NULL;
#define X(field, name, args) \
    if (!(api.field = (int(*) args)dlsym(lib, name))) missing = name;
        NCCL_CALLS(X)
#undef X
        api.text = (const char *(*)(int))dlsym(lib, "ncclGetErrorString");
        if (missing || !api.text) {
            lq_fail(err, LQ_EDEVICE, "several GPUs need NCCL 2.7 or later: libnccl.so.2 has no %s",
                    missing ? missing : "ncclGetErrorString");
            dlclose(lib);
            return NULL;
        }
        loaded = true;
        return &api;
    }
#else
    const nccl_api *load_nccl(lq_err * err)
    {
        if (emu_nccl_here) return &emu_nccl;
        lq_fail(err, LQ_EDEVICE,
                "several GPUs need NCCL: the emulation was told that it is not here");
        return NULL;
    }
#endif

    /* What fails on one device fails on all: none waits for it. False: it has. */
    bool all_well(dev_link * l)
    {
        const dev *bad = NULL;
        if (l->broken && !l->d[0]->bad) {
            l->d[0]->bad = LQ_EDEVICE;
            lq_fail(&l->d[0]->why, LQ_EDEVICE, "a device that shares the model was lost before");
        }
        for (int r = 0; r < l->n; r++)
            if (l->d[r]->bad && !bad) bad = l->d[r];
        for (int r = 0; r < l->n && bad; r++) {
            dev *d = l->d[r];
            if (d->bad) continue;
            d->bad = bad->bad;
            d->why = bad->why;
        }
        return !bad;
    }

    void check(dev_link * l, const char *what, int result)
    {
        dev *d = l->d[0];
        if (result == 0 || d->bad) return;
        d->bad = LQ_EDEVICE;
        lq_fail(&d->why, d->bad, "%s: %s: %s", d->name, what, l->nccl->text(result));
    }

    /* Slice r of n floats over R. */
    int64_t begin_of(const dev_link *l, int r, int64_t n) { return n * r / l->n; }

    struct piece {
        int64_t at, n;
    };
    piece slice_of(const dev_link *l, int r, int64_t n, bool whole)
    {
        const int64_t at = whole ? 0 : begin_of(l, r, n);
        return { at, whole ? n : begin_of(l, r + 1, n) - at };
    }

    void send(dev_link * l, int from, int to, const float *x, int64_t n)
    {
        if (n)
            check(l, "ncclSend",
                  l->nccl->send(x, (size_t)n, NCCL_FLOAT32, to, l->comm[from], l->d[from]->stream));
    }
    void receive(dev_link * l, int at, int from, float *x, int64_t n)
    {
        if (n)
            check(l, "ncclRecv",
                  l->nccl->recv(x, (size_t)n, NCCL_FLOAT32, from, l->comm[at], l->d[at]->stream));
    }

    void open_group(dev_link * l) { check(l, "ncclGroupStart", l->nccl->group_start()); }
    void close_group(dev_link * l) { check(l, "ncclGroupEnd", l->nccl->group_end()); }

}

/* "Not ready" is an error that the next launch would report, were it not taken back. */
static cudaError_t query(const dev *d)
{
    const cudaError_t e = cudaStreamQuery((cudaStream_t)d->stream);
    if (e == cudaErrorNotReady) cudaGetLastError();
    return e;
}

void CU_NAME(watch)(dev *d)
{
    dev_link *l = d->link;
    while (!l->broken && query(d) == cudaErrorNotReady)
        for (int r = 0; r < l->n && !l->broken; r++) {
            const cudaError_t e = query(l->d[r]);
            if (e == cudaSuccess || e == cudaErrorNotReady) continue;
            cu_check(l->d[r], "cudaStreamQuery", e);
            all_well(l);
            for (int p = 0; p < l->n; p++) {
                if (l->comm[p]) l->nccl->abort(l->comm[p]);
                l->comm[p] = NULL;
            }
            l->broken = true;
        }
}

void CU_NAME(libraries)(int devices)
{
    lq_err later; /* a link says it */
    CU_NAME(blas_load)();
    if (devices > 1) load_nccl(&later);
}

void CU_NAME(unlink)(dev_link *l)
{
    if (!l) return;
    for (int r = 0; r < l->n; r++) {
        l->d[r]->link = NULL;
        CU_NAME(table).free(l->d[r], l->scratch[r]);
        if (l->comm[r]) l->nccl->destroy(l->comm[r]);
    }
    free(l);
}

lq_status CU_NAME(link)(dev_link **out, dev *d, lq_err *err)
{
    const int n = dev_ranks(d);
    int devices[DEV_RANKS];
    *out = NULL;
    const nccl_api *nccl = load_nccl(err);
    if (!nccl) return LQ_EDEVICE;
    dev_link *l = (dev_link *)calloc(1, sizeof *l);
    if (!l) return lq_fail(err, LQ_ENOMEM, "out of memory");
    l->nccl = nccl;
    l->n = n;
    const int64_t slice = lq_ceil_div(CU_PIECE, n);
    const int64_t floats = (n - 1) * (slice > CU_WHOLE ? slice : CU_WHOLE);
    for (int r = 0; r < n; r++, d = d->peer) {
        l->d[r] = d;
        devices[r] = d->index;
    }
    for (int r = 0; r < n && all_well(l); r++)
        l->scratch[r] =
            (float *)CU_NAME(table).alloc(l->d[r], (size_t)floats * sizeof *l->scratch[r]);
    if (all_well(l)) check(l, "ncclCommInitAll", nccl->init_all(l->comm, n, devices));
    lq_status s = LQ_OK;
    if (!all_well(l))
        for (int r = 0; r < n; r++)
            s = CU_NAME(table).sync(l->d[r], err);
    if (s) {
        CU_NAME(unlink)(l);
        return s;
    }
    for (int r = 0; r < n; r++)
        l->d[r]->link = l;
    *out = l;
    return LQ_OK;
}

inline namespace CU_NAME(link_cu)
{

    /* Of each rank's x the n <= CU_PIECE floats from `at` on. */
    void reduce_piece(dev_link * l, float *const *all, int64_t at, int64_t n)
    {
        const bool whole = n <= CU_WHOLE;
        float *x[DEV_RANKS];
        for (int r = 0; r < l->n; r++)
            x[r] = all[r] + at;
        open_group(l);
        for (int r = 0; r < l->n; r++) {
            const piece own = slice_of(l, r, n, whole);
            for (int p = 0; p < l->n; p++) {
                const piece other = slice_of(l, p, n, whole);
                if (p == r) continue;
                send(l, r, p, x[r] + other.at, other.n);
                receive(l, r, p, l->scratch[r] + (p < r ? p : p - 1) * own.n, own.n);
            }
        }
        close_group(l);
        for (int r = 0; r < l->n && all_well(l); r++) {
            const piece own = slice_of(l, r, n, whole);
            dev *d = l->d[r];
            if (own.n == 0) continue;
            CU_NAME(table).bind(d);
            CU_LAUNCH(d, "sum", sum_kernel, dim3((unsigned)lq_ceil_div(own.n, THREADS)), THREADS, 0,
                      x[r] + own.at, l->scratch[r], l->n, r, own.n);
        }
        if (whole || !all_well(l)) return;
        open_group(l);
        for (int r = 0; r < l->n; r++) {
            const piece own = slice_of(l, r, n, false);
            for (int p = 0; p < l->n; p++) {
                const piece other = slice_of(l, p, n, false);
                if (p == r) continue;
                send(l, r, p, x[r] + own.at, own.n);
                receive(l, r, p, x[r] + other.at, other.n);
            }
        }
        close_group(l);
    }

}

void CU_NAME(all_reduce)(dev_link *l, float *const *x, int64_t n)
{
    for (int64_t at = 0; at < n && all_well(l); at += CU_PIECE)
        reduce_piece(l, x, at, n - at < CU_PIECE ? n - at : CU_PIECE);
    all_well(l);
}

void CU_NAME(gather)(dev_link *l, float *to, float *const *x, int64_t n)
{
    if (n == 0 || !all_well(l)) return;
    const dev_copy_args own = { to, x[0], (size_t)n * sizeof *to, 0, 0, 1 };
    CU_NAME(table).bind(l->d[0]);
    CU_NAME(table).copy(l->d[0], &own);
    open_group(l);
    for (int r = 1; r < l->n; r++) {
        send(l, r, 0, x[r], n);
        receive(l, 0, r, to + r * n, n);
    }
    close_group(l);
    all_well(l);
}
