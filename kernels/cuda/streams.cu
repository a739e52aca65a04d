/* kernels/cuda/streams.cu - several residual streams of which layers work on the first (AltUp, arXiv:2301.13310;
 * runtime/forward/forward_altup.c has the equations).
 *
 *   altup   a block of 256 threads a row, which reads x for the sum of squares and the products with the router's
 *           rows at once, and then all streams: one launch before a layer and one after it
 *                                             shared: 8 x (streams + 1) + streams^2 floats, 544 B
 *   gauge   a block of 256 threads a row of a stream                     shared: 64 B
 *
 * And of hyper-connections (runtime/forward/forward_hyper.c):
 *
 *   collapse  a block of 256 threads a row, which reads all streams twice; where they are mixed its first warp
 *             makes the matrix while the others read them again   shared: 8 + streams + streams^2 floats, 320 B
 *   spread    one thread an element of a row, of all streams */
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(streams_cu)
{

    struct altup_shape {
        int K, n;
        float offset, eps;
    };

    /* w [rows] = coef [rows, n] m, by a thread each; part: of m's sums before their norm and tanh, by warps. */
    template <int MOST>
    __device__ __forceinline__ void weigh(S<float> w, S<const float> part, G<const float> coef,
                                          int rows, const altup_shape &s)
    {
        const float factor = norm_factor(norm_all(part + MOST * NORM_WARPS), s.K, s.eps);
        const int at = (int)threadIdx.x;
        if (at >= rows) return;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < MOST; i++)
            if (i < s.n)
                sum += cu_ldg<float>(coef + (at * s.n + i)) *
                       km_tanh(norm_all(part + i * NORM_WARPS) * factor / (float)s.K);
        w[at] = sum;
    }

    /* Up to MOST streams. AFTER: a layer. */
    template <int MOST, bool AFTER>
    __global__ void __launch_bounds__(NORM_THREADS)
        altup_kernel(G<float> x, G<float> streams, G<float> first, G<float> y, G<const float> norm,
                     G<const float> router, G<const float> coef, G<const float> scale,
                     altup_shape s)
    {
        CU_SHARED(float, part, (MOST + 1) * NORM_WARPS);
        CU_SHARED(float, w, MOST *MOST);
        const int64_t at = (int64_t)blockIdx.x * s.K;
        const G<float> row = x + at, was = first + at;
        const G<float> others = streams + at * (s.n - 1);
        float squares = 0, dot[MOST] = {};
        cu_follow();
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            const float v = cu_ld<float>(row + k), u = v * (cu_ldg<float>(norm + k) + s.offset);
            squares = fmaf(v, v, squares);
#pragma unroll
            for (int i = 0; i < MOST; i++)
                if (i < s.n)
                    dot[i] = fmaf(cu_ldg<float>(router + ((int64_t)i * s.K + k)), u, dot[i]);
        }
#pragma unroll
        for (int i = 0; i < MOST; i++)
            norm_put(part + i * NORM_WARPS, dot[i]);
        norm_put(part + MOST * NORM_WARPS, squares);
        __syncthreads();
        weigh<MOST>(w, part, coef, AFTER ? s.n : s.n * s.n, s);
        __syncthreads();
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            float v[MOST] = {};
#pragma unroll
            for (int i = 0; i < MOST; i++)
                if (i < s.n) v[i] = cu_ld<float>(i ? others + ((i - 1) * s.K + k) : row + k);
            if (AFTER) {
                const float before = cu_ld<float>(was + k), news = v[0] - before;
#pragma unroll
                for (int i = 0; i < MOST; i++)
                    if (i < s.n) v[i] = news * (w[i] + 1) + (i ? v[i] : before);
                cu_st(y + (at + k), v[0] * cu_ldg<float>(scale + k));
            } else {
                float sum[MOST];
#pragma unroll
                for (int j = 0; j < MOST; j++) {
                    sum[j] = 0;
#pragma unroll
                    for (int i = 0; i < MOST; i++)
                        if (i < s.n && j < s.n) sum[j] += v[i] * w[j * s.n + i];
                }
#pragma unroll
                for (int i = 0; i < MOST; i++)
                    if (i < s.n) v[i] += sum[i];
                cu_st(was + k, v[0]);
            }
#pragma unroll
            for (int i = 0; i < MOST; i++)
                if (i < s.n) cu_st(i ? others + ((i - 1) * s.K + k) : row + k, v[i]);
        }
    }

    struct gauge_shape {
        int K;
        int64_t ld;
        float factor;
    };

    __global__ void __launch_bounds__(NORM_THREADS) gauge_kernel(
        G<float> out, G<const float> y, G<const float> x, G<const float> base, gauge_shape s)
    {
        const float LEAST = 1e-5f;
        CU_SHARED(float, part, 2 * NORM_WARPS);
        const int64_t at = (int64_t)blockIdx.x * s.K,
                      of = (int64_t)blockIdx.x * s.ld + (int64_t)blockIdx.y * s.K;
        float all[2] = { 0, 0 };
        cu_follow();
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            const float v = cu_ld<float>(x + (at + k)), u = cu_ld<float>(y + (of + k));
            all[0] = fmaf(v, v, all[0]);
            all[1] = fmaf(u, u, all[1]);
        }
        norm_put(part, all[0]);
        norm_put(part + NORM_WARPS, all[1]);
        __syncthreads();
        const float mean = norm_all(part + NORM_WARPS) / (float)s.K;
        const float by = sqrtf(norm_all(part) / (float)s.K) / sqrtf(mean < LEAST ? LEAST : mean);
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            const float from = base ? cu_ld<float>(base + (at + k)) : 0.0f;
            cu_st(out + (of + k), (from + cu_ld<float>(y + (of + k)) * by) * s.factor);
        }
    }

    struct collapse_shape {
        int K, n, steps;
        int64_t ldm;
        float norm_eps, eps, post;
        bool after;
    };

    __device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + km_exp(-x)); }

    /* n numbers, step apart, divided by their sum plus eps. */
    __device__ __forceinline__ void divide(S<float> x, int n, int step, float eps)
    {
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum += x[i * step];
        sum += eps;
        for (int i = 0; i < n; i++)
            x[i * step] = x[i * step] / sum;
    }

    /* m [n, n] to the matrix that mixes streams, by a warp: a lane a row, then a lane a column. */
    __device__ __forceinline__ void make_stochastic(S<float> m, int lane, const collapse_shape &s)
    {
        const bool in = lane < s.n;
        const S<float> row = m + lane * s.n;
        if (in) {
            float max = row[0];
            for (int k = 1; k < s.n; k++)
                max = fmaxf(max, row[k]);
            for (int k = 0; k < s.n; k++)
                row[k] = km_exp(row[k] - max);
            divide(row, s.n, 1, 0);
            for (int k = 0; k < s.n; k++)
                row[k] = row[k] + s.eps;
        }
        for (int step = 0; step < s.steps; step++) {
            if (in && step) divide(row, s.n, 1, s.eps);
            __syncwarp();
            if (in) divide(m + lane, s.n, s.n, s.eps);
            __syncwarp();
        }
    }

    __global__ void __launch_bounds__(NORM_THREADS)
        collapse_kernel(G<float> x, G<float> mix, G<const float> streams, G<const float> base,
                        G<const float> scale, collapse_shape s)
    {
        CU_SHARED(float, part, NORM_WARPS);
        CU_SHARED(float, pre, DEV_STREAMS);
        CU_SHARED(float, m, DEV_STREAMS *DEV_STREAMS);
        const int64_t at = (int64_t)blockIdx.x * s.K;
        const G<const float> all = streams + at * s.n;
        const G<float> own = mix + (int64_t)blockIdx.x * s.ldm;
        const int i = (int)threadIdx.x, squares = s.steps ? s.n * s.n : 0,
                  aside = s.steps ? CU_WARP : 0; /* threads that make the matrix */
        float sum = 0;
        cu_follow();
        for (int k = i; mix && k < s.n * s.K; k += NORM_THREADS) {
            const float v = cu_ld<float>(all + k);
            sum = fmaf(v, v, sum);
        }
        norm_put(part, sum);
        __syncthreads();
        const float by = norm_factor(norm_all(part), s.n * s.K, s.norm_eps);
        if (!mix && i < s.n)
            pre[i] = 1 / (float)s.n;
        else if (mix && i < (s.after ? 2 : 1) * s.n + squares) {
            const int kind = i < 2 * s.n ? i >= s.n : 2;
            const float v =
                cu_ld<float>(own + i) * by * cu_ldg<float>(scale + kind) + cu_ldg<float>(base + i);
            if (kind == 0)
                pre[i] = sigmoid(v) + s.eps;
            else if (kind == 1)
                cu_st(own + i, s.post * sigmoid(v) + (s.steps ? 0.0f : s.eps));
            else
                m[i - 2 * s.n] = v;
        }
        __syncthreads();
        if (i < aside) {
            make_stochastic(m, i, s);
            for (int k = i; k < squares; k += CU_WARP)
                cu_st(own + (2 * s.n + k), (float)m[k]);
            return;
        }
        for (int k = i - aside; k < s.K; k += NORM_THREADS - aside) {
            float v = 0;
            for (int j = 0; j < s.n; j++)
                v += pre[j] * cu_ld<float>(all + (j * s.K + k));
            cu_st(x + (at + k), v);
        }
    }

    /* MIXED: n of them at most. 0: streams stay apart. */
    template <int MIXED>
    __global__ void __launch_bounds__(NORM_THREADS) spread_kernel(
        G<float> streams, G<const float> y, G<const float> by, int K, int n, int64_t ldb)
    {
        const int64_t at = (int64_t)blockIdx.x * K;
        const int k = (int)(blockIdx.y * NORM_THREADS + threadIdx.x);
        cu_follow();
        if (k >= K) return;
        const float v = cu_ld<float>(y + (at + k));
        const G<const float> f = by + (int64_t)blockIdx.x * ldb;
        float was[MIXED ? MIXED : 1];
#pragma unroll
        for (int j = 0; j < MIXED; j++)
            was[j] = j < n ? cu_ld<float>(streams + (at * n + (int64_t)j * K + k)) : 0;
        for (int j = 0; j < n; j++) {
            const G<float> to = streams + (at * n + (int64_t)j * K + k);
            float sum = cu_ld<float>(f + j) * v;
            if (!MIXED) sum += cu_ld<float>(to);
#pragma unroll
            for (int i = 0; i < MIXED; i++)
                if (i < n) sum += cu_ld<float>(f + (n + i * n + j)) * was[i];
            cu_st(to, sum);
        }
    }

}

template <int MOST, bool AFTER> static void launch(dev *d, const dev_altup_args *a)
{
    const altup_shape s = { (int)a->K, (int)a->n, a->offset, a->eps };
    CU_FOLLOW(d, "altup", (altup_kernel<MOST, AFTER>), dim3((unsigned)a->T), NORM_THREADS, 0, a->x,
              a->streams, a->first, a->y, a->norm, a->router, a->coef, a->scale, s);
}

void CU_NAME(altup)(dev *d, const dev_altup_args *a)
{
    const bool few = a->n <= DEV_STREAMS / 2; /* Gemma 3n's */
    if (a->T == 0) return;
    if (a->scale && few)
        launch<DEV_STREAMS / 2, true>(d, a);
    else if (a->scale)
        launch<DEV_STREAMS, true>(d, a);
    else if (few)
        launch<DEV_STREAMS / 2, false>(d, a);
    else
        launch<DEV_STREAMS, false>(d, a);
}

void CU_NAME(gauge)(dev *d, const dev_gauge_args *a)
{
    const gauge_shape s = { (int)a->K, a->ld, a->factor };
    if (a->T == 0 || a->n == 0) return;
    CU_FOLLOW(d, "gauge", gauge_kernel, dim3((unsigned)a->T, (unsigned)a->n), NORM_THREADS, 0,
              a->out, a->y, a->x, a->base, s);
}

void CU_NAME(collapse)(dev *d, const dev_collapse_args *a)
{
    const collapse_shape s = { (int)a->K,   (int)a->n, (int)a->steps, a->ldm,
                               a->norm_eps, a->eps,    a->post,       a->after };
    if (a->T == 0) return;
    CU_FOLLOW(d, "collapse", collapse_kernel, dim3((unsigned)a->T), NORM_THREADS, 0, a->x, a->mix,
              a->streams, a->base, a->scale, s);
}

template <int MIXED> static void spread(dev *d, const dev_spread_args *a)
{
    CU_FOLLOW(d, "spread", spread_kernel<MIXED>,
              dim3((unsigned)a->T, (unsigned)lq_ceil_div(a->K, NORM_THREADS)), NORM_THREADS, 0,
              a->streams, a->y, a->by, (int)a->K, (int)a->n, a->ldb);
}

void CU_NAME(spread)(dev *d, const dev_spread_args *a)
{
    if (a->T == 0) return;
    if (!a->mixed)
        spread<0>(d, a);
    else if (a->n <= DEV_STREAMS / 2)
        spread<DEV_STREAMS / 2>(d, a);
    else
        spread<DEV_STREAMS>(d, a);
}
