/* kernels/cuda/gemm.cu - C = op(A) op(B) + beta C of f32 matrices, for quantization. Each sum goes
 * over k in order, by fma, as the CPU's products do (kernels/mm.h, MM_F32): so a calibration pass
 * has the same bits on a device, and what follows from it the same codes. That is why it is not
 * cuBLAS's.
 *
 * A block has T x T of C, T = 64 B; a thread B x B pieces of 4 x 4, 64 rows or columns apart:
 *
 *       tx   0    1   ..   15   0    1   ..   15
 *   ty  0  [4x4][4x4] .. [4x4][4x4][4x4] .. [4x4]     B = 2
 *       .    .                  .
 *      15    .                  .
 *       0    .                  .
 *
 * K goes by in steps of 8, of which A's and B's parts lie in shared memory by k; those of the next
 * step are on their way into registers meanwhile. A warp reads two pieces of A, the same in 16
 * lanes, and 16 of B: three wavefronts for each 16 B fma of a lane.
 *
 * Shared memory: 2 x 8 x (T + 4) floats, 4352 B and 8448 B. */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(gemm_cu)
{

    enum { SIDE = 64, STEP = 8, THREADS = 256 };

    /* One matrix of the product as its steps go by: C's rows or columns from m0 on lie `along` its rows
 * or across them. */
    struct matrix {
        const float *p;
        int64_t ld, m0, rows; /* of C that it has */
        bool along;
    };

    /* A thread's numbers of a step: m along C, k along K. Neighbouring threads read neighbouring
 * numbers, whichever way the matrix lies. */
    template <int B> struct panel {
        static constexpr int T = SIDE * B, n = STEP * T / THREADS, row = T + 4;
        G<const float> at; /* the first of them */
        unsigned there;    /* a bit for each whose m there is */
        float now[n];
    };
    template <int B> __device__ __forceinline__ int m_of(const matrix &a, int i)
    {
        const int t = threadIdx.x;
        return a.along ? t % panel<B>::T : t / STEP + THREADS / STEP * i;
    }
    template <int B> __device__ __forceinline__ int k_of(const matrix &a, int i)
    {
        const int t = threadIdx.x;
        return a.along ? t / panel<B>::T + THREADS / panel<B>::T * i : t % STEP;
    }

    template <int B> __device__ __forceinline__ void begin(panel<B> * to, const matrix &a)
    {
        const int64_t m = a.m0 + m_of<B>(a, 0), k = k_of<B>(a, 0);
        to->at = G<const float>(a.p) + (a.along ? k * a.ld + m : m * a.ld + k);
        to->there = 0;
#pragma unroll
        for (int i = 0; i < panel<B>::n; i++)
            to->there |= (unsigned)(a.m0 + m_of<B>(a, i) < a.rows) << i;
    }

    /* Of a step that has `left` inputs; and to the next. */
    template <int B>
    __device__ __forceinline__ void fetch(panel<B> * to, const matrix &a, int64_t left)
    {
        const int64_t by = (int64_t)(a.along ? THREADS / panel<B>::T : THREADS / STEP) * a.ld;
#pragma unroll
        for (int i = 0; i < panel<B>::n; i++)
            to->now[i] =
                (to->there >> i & 1u) && k_of<B>(a, i) < left ? (float)to->at[i * by] : 0.0f;
        to->at = to->at + (a.along ? STEP * a.ld : STEP);
    }
    template <int B>
    __device__ __forceinline__ void put(S<float> to, const panel<B> &from, const matrix &a)
    {
#pragma unroll
        for (int i = 0; i < panel<B>::n; i++)
            to[k_of<B>(a, i) * panel<B>::row + m_of<B>(a, i)] = from.now[i];
    }

    /* The B pieces of four that begin at 4 i. */
    template <int B>
    __device__ __forceinline__ void pieces(float v[4 * B], S<const float> of, int k, int i)
    {
#pragma unroll
        for (int b = 0; b < B; b++) {
            const float4 four = cu_ld<float4>(of + (k * panel<B>::row + SIDE * b + 4 * i));
            v[4 * b] = four.x;
            v[4 * b + 1] = four.y;
            v[4 * b + 2] = four.z;
            v[4 * b + 3] = four.w;
        }
    }

    template <int B>
    __global__ void __launch_bounds__(THREADS, 2)
        gemm_kernel(G<float> C, const float *of_a, const float *of_b, dev_gemm_args g)
    {
        enum { T = panel<B>::T };
        CU_SHARED(float, as, STEP *panel<B>::row);
        CU_SHARED(float, bs, STEP *panel<B>::row);
        const int64_t m0 = (int64_t)blockIdx.y * T, n0 = (int64_t)blockIdx.x * T;
        const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
        if (g.lower && n0 >= m0 + T) return;
        const matrix a = { of_a, g.lda, m0, g.M, g.ta }, b = { of_b, g.ldb, n0, g.N, !g.tb };
        panel<B> pa, pb;
        float sum[4 * B][4 * B] = {};
        begin(&pa, a);
        begin(&pb, b);
        fetch(&pa, a, g.K);
        fetch(&pb, b, g.K);
        for (int64_t left = g.K; left > 0; left -= STEP) {
            __syncthreads(); /* the step before was read */
            put(as, pa, a);
            put(bs, pb, b);
            __syncthreads();
            if (left > STEP) {
                fetch(&pa, a, left - STEP);
                fetch(&pb, b, left - STEP);
            }
#pragma unroll 2 /* so that registers last, on sm_120 too */
            for (int k = 0; k < STEP; k++) {
                float x[4 * B], y[4 * B];
                pieces<B>(x, as, k, ty);
                pieces<B>(y, bs, k, tx);
#pragma unroll
                for (int i = 0; i < 4 * B; i++)
#pragma unroll
                    for (int j = 0; j < 4 * B; j++)
                        sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
        }
        const int n = (int)(g.N - n0 < T ? g.N - n0 : T);
#pragma unroll
        for (int i = 0; i < 4 * B; i++) {
            const int64_t m = m0 + SIDE * (i / 4) + 4 * ty + i % 4;
            if (m >= g.M) continue;
            const G<float> to = C + (m * g.ldc + n0);
#pragma unroll
            for (int j = 0; j < 4 * B; j++) {
                const int at = SIDE * (j / 4) + 4 * tx + j % 4;
                if (at < n) to[at] = g.beta == 0 ? sum[i][j] : sum[i][j] + g.beta * to[at];
            }
        }
    }

    template <int B> void launch(dev * d, const dev_gemm_args *a)
    {
        enum { T = SIDE * B };
        CU_LAUNCH(d, "gemm", gemm_kernel<B>,
                  dim3((unsigned)lq_ceil_div(a->N, T), (unsigned)lq_ceil_div(a->M, T)), THREADS, 0,
                  a->C, a->A, a->B, *a);
    }

    /* C -= A op(B), of f64: SIDE x SIDE of C a block, 4 x 4 of it a thread; of a step both matrices lie in
     * shared memory by k. */
    template <bool TB> __global__ void __launch_bounds__(THREADS, 2) minus_kernel(dev_minus_args g)
    {
        enum { ROW = SIDE + 2, EACH = SIDE * STEP / THREADS };
        CU_SHARED(double, as, STEP *ROW);
        CU_SHARED(double, bs, STEP *ROW);
        const int64_t m0 = (int64_t)blockIdx.x * SIDE, n0 = (int64_t)blockIdx.y * SIDE;
        const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
        const G<const double> A = G<const double>(g.A) + m0 * g.lda,
                              B = G<const double>(g.B) + (TB ? n0 * g.ldb : n0);
        double sum[4][4] = {};
        for (int64_t k0 = 0; k0 < g.K; k0 += STEP) {
            __syncthreads(); /* the step before was read */
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int at = threadIdx.x + i * THREADS, k = at % STEP, m = at / STEP;
                as[k * ROW + m] = A[m * g.lda + k0 + k];
                if (TB)
                    bs[k * ROW + m] = B[m * g.ldb + k0 + k];
                else
                    bs[at / SIDE * ROW + at % SIDE] = B[(k0 + at / SIDE) * g.ldb + at % SIDE];
            }
            __syncthreads();
#pragma unroll 2
            for (int k = 0; k < STEP; k++) {
                double x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[i] = as[k * ROW + 4 * ty + i];
                    y[i] = bs[k * ROW + 4 * tx + i];
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        sum[i][j] = fma(x[i], y[j], sum[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const G<double> to = G<double>(g.C) + ((m0 + 4 * ty + i) * g.ldc + n0 + 4 * tx);
#pragma unroll
            for (int j = 0; j < 4; j++)
                to[j] = to[j] - sum[i][j];
        }
    }

}

void CU_NAME(gemm)(dev *d, const dev_gemm_args *a)
{
    /* blocks of 128 by 128 where there are enough of them */
    const int64_t large = lq_ceil_div(a->M, 2 * SIDE) * lq_ceil_div(a->N, 2 * SIDE);
    if (a->M == 0 || a->N == 0) return;
    if (large >= d->n_sm)
        launch<2>(d, a);
    else
        launch<1>(d, a);
}

void CU_NAME(minus)(dev *d, const dev_minus_args *a)
{
    static_assert((int)DEV_MINUS == (int)SIDE, "a block's part of C");
    const dim3 grid((unsigned)(a->M / SIDE), (unsigned)(a->N / SIDE));
    if (a->M == 0 || a->N == 0) return;
    if (a->tb)
        CU_LAUNCH(d, "minus", minus_kernel<true>, grid, THREADS, 0, *a);
    else
        CU_LAUNCH(d, "minus", minus_kernel<false>, grid, THREADS, 0, *a);
}
