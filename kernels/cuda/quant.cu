/* kernels/cuda/quant.cu - quantization on a device: GPTQ's loops (quantize/methods/gptq.c, whose arithmetic
 * they repeat).
 *
 *   round   GPTQ's block of up to 128 columns: a warp has a row, a lane columns l, l + 32, ..; each
 *           column in turn is rounded and its error moved on, U's 128 x 128 in shared memory.
 *   errors  d = w - q; a thread a weight.
 *   sweep   coordinate descent: a block has a row, whose g = d H lies in shared memory; columns in
 *           order, and where a code moves all threads take its row of H off g. Then the row's loss,
 *           sum d g in f64.
 *
 *              column   0 .. 31 32 .. 63 64 .. 95 96 .. 127
 *     round    lane     0 .. 31 0  .. 31 0  .. 31 0  .. 31
 *
 * Shared memory: round 128 x 128 floats = 65536 B (dynamic); sweep K floats (dynamic) and 96 B. */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(quant_cu)
{

    enum {
        THREADS = 256,
        ROWS = THREADS / CU_WARP,
        BLOCK = DEV_GPTQ_BLOCK,
        PER_LANE = BLOCK / CU_WARP
    };

    /* quantize/methods/grid.h's grid_code and grid_value. */
    __device__ __forceinline__ float code_of(float w, float2 p, float most)
    {
        const float magic = 12582912.0f, lo = -p.y, hi = most - p.y;
        float x = w / p.x;
        x = x < lo ? lo : x > hi ? hi : x;
        return ((x + magic) - magic) + p.y;
    }
    __device__ __forceinline__ float value_of(float code, float2 p) { return p.x * (code - p.y); }

    __global__ void __launch_bounds__(THREADS)
        gptq_round_kernel(G<float> w, G<float> e, G<uint8_t> codes, G<const float> U,
                          G<const float2> params, G<const int32_t> perm, dev_gptq_args a)
    {
        CU_DYNAMIC(float, us);
        const int lane = threadIdx.x % CU_WARP, n = (int)(a.k1 - a.k0), size = (int)(a.K / a.ng);
        const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / CU_WARP;
        for (int i = threadIdx.x; i < n * BLOCK; i += THREADS)
            us[i] = i % BLOCK < n ? (float)U[(a.k0 + i / BLOCK) * a.K + a.k0 + i % BLOCK] : 0.0f;
        __syncthreads();
        if (row >= a.N) return; /* all of the warp */
        float v[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            v[i] = lane + CU_WARP * i < n ? (float)w[row * a.K + a.k0 + lane + CU_WARP * i] : 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            for (int l = 0; l < CU_WARP; l++) {
                const int j = CU_WARP * i + l;
                if (j >= n) break; /* all lanes alike */
                const int k = perm[a.k0 + j];
                const float2 p = cu_ldg<float2>(params + (row * a.ng + k / size));
                const float x = cu_shfl(v[i], l), code = code_of(x, p, a.most);
                const float err = (x - value_of(code, p)) / us[j * BLOCK + j];
                if (lane == l) {
                    codes[row * a.K + k] = (uint8_t)code;
                    e[row * BLOCK + j] = -err;
                }
#pragma unroll
                for (int o = 0; o < PER_LANE; o++)
                    if (o >= i && lane + CU_WARP * o > j)
                        v[o] -= err * us[j * BLOCK + lane + CU_WARP * o];
            }
    }

    __global__ void __launch_bounds__(THREADS)
        gptq_errors_kernel(G<float> d, G<const float> w, G<const uint8_t> codes,
                           G<const float2> params, dev_gptq_args a)
    {
        const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y,
                      size = a.K / a.ng;
        if (k >= a.K) return;
        const float2 p = cu_ldg<float2>(params + (row * a.ng + k / size));
        d[row * a.K + k] = w[row * a.K + k] - value_of((float)codes[row * a.K + k], p);
    }

    __global__ void __launch_bounds__(THREADS) gptq_sweep_kernel(
        G<float> d, G<const float> g, G<uint8_t> codes, G<const float> H, G<const float2> params,
        G<const int32_t> perm, G<const float> imp, G<double> loss, dev_gptq_args a)
    {
        CU_DYNAMIC(float, gs);
        CU_SHARED(float, step, 2);
        CU_SHARED(double, sums, ROWS);
        CU_SHARED(int, moved, 1);
        const int64_t row = blockIdx.x;
        const int t = threadIdx.x, size = (int)(a.K / a.ng);
        int at = 0;
        for (int64_t k = t; k < a.K; k += THREADS)
            gs[k] = g[row * a.K + k];
        if (t == 0) moved[0] = a.sweeps > 0;
        __syncthreads();
        for (int s = 0; s < a.sweeps; s++) {
            const bool on = moved[0];
            __syncthreads();
            if (!on) break; /* all threads alike */
            if (t == 0) moved[0] = 0;
            for (int64_t i = 0; i < a.K; i++) {
                const int k = perm[i];
                const float h = imp[k];
                if (!(h > 0)) continue; /* all threads alike */
                at ^= 1;                /* the one before may still be read */
                if (t == 0) {
                    const float2 p = cu_ldg<float2>(params + (row * a.ng + k / size));
                    const float old = (float)codes[row * a.K + k], q = value_of(old, p);
                    const float code = code_of(q + gs[k] / h, p, a.most);
                    step[at] = 0;
                    if (code != old) {
                        step[at] = value_of(code, p) - q;
                        codes[row * a.K + k] = (uint8_t)code;
                        d[row * a.K + k] = d[row * a.K + k] - step[at];
                        moved[0] = 1;
                    }
                }
                __syncthreads();
                const float by = step[at];
                if (by == 0) continue;
                for (int64_t j = t; j < a.K; j += THREADS)
                    gs[j] = gs[j] - by * H[(int64_t)k * a.K + j];
                __syncthreads();
            }
            __syncthreads();
        }
        double sum = 0;
        for (int64_t k = t; k < a.K; k += THREADS)
            sum += (double)(float)d[row * a.K + k] * (double)(float)gs[k];
        for (int m = CU_WARP / 2; m; m /= 2)
            sum += cu_shfl_double(sum, t % CU_WARP ^ m);
        if (t % CU_WARP == 0) sums[t / CU_WARP] = sum;
        __syncthreads();
        if (t > 0) return;
        for (int i = 1; i < ROWS; i++)
            sum += sums[i];
        loss[row] = sum;
    }

}

void CU_NAME(gptq_round)(dev *d, const dev_gptq_args *a)
{
    const int shared = BLOCK * BLOCK * (int)sizeof(float);
    CU_ALLOW(d, gptq_round_kernel, 0);
    CU_LAUNCH(d, "gptq round", gptq_round_kernel, dim3((unsigned)lq_ceil_div(a->N, ROWS)), THREADS,
              (size_t)shared, a->w, a->e, a->codes, a->U, (const float2 *)a->params, a->perm, *a);
}

void CU_NAME(gptq_errors)(dev *d, const dev_gptq_args *a)
{
    CU_LAUNCH(d, "gptq errors", gptq_errors_kernel,
              dim3((unsigned)lq_ceil_div(a->K, THREADS), (unsigned)a->N), THREADS, 0, a->d, a->w,
              a->codes, (const float2 *)a->params, *a);
}

void CU_NAME(gptq_sweep)(dev *d, const dev_gptq_args *a)
{
    const size_t shared = (size_t)a->K * sizeof(float);
    CU_ALLOW(d, gptq_sweep_kernel, 16 + ROWS * sizeof(double) + 16);
    CU_LAUNCH(d, "gptq sweep", gptq_sweep_kernel, dim3((unsigned)a->N), THREADS, shared, a->d,
              (const float *)a->g, a->codes, a->H, (const float2 *)a->params, a->perm, a->imp,
              a->loss, *a);
}
