/* kernels/cuda/lora.cu - what rows' adapters add to products: of each row's own A and B. Rows are in
 * panels of up to 8 of one adapter, which the host has made; so A and B are read once for eight rows,
 * and which adapters there are is data: a graph serves any.
 *
 *   shrink  low[i] = scale A x[rows[i]]     a block 4 ranks of a panel by 256 threads along the inputs
 *   expand  y[rows[i]] += B low[i]          a block 128 outputs of a panel, a thread each
 *
 * A is [Rp, Ka], inputs and ranks padded to multiples of 8 by zeros; B [Rp / 8][N][8], so that the
 * lanes of a warp read side by side:
 *
 *       ranks     0..7   8..15            lane n: 8 ranks of output n, 16 bytes
 *       output 0 [    ] [     ]
 *       output 1 [    ] [     ]           DoRA: y += (g - 1) W x + g B low
 *
 * Order of each sum, whatever the other rows are: of A a thread's eight inputs of each 2,048 in order,
 * then lanes by halves, then the warps in order; of B the ranks in order, then the old y.
 *
 * Shared memory: shrink 8 x 32 floats (1,024 B), expand 8 x 32 floats of low (1,024 B). */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(lora_cu)
{

    enum {
        ROWS = DEV_LORA_ROWS,
        EIGHT = DEV_LORA_PAD,
        THREADS = 256,
        WARPS = THREADS / CU_WARP,
        RANKS = 4,   /* of a block of shrink */
        OUTS = 128,  /* of a block of expand */
        SHARED = 32, /* ranks of low that it has at a time */
    };

    /* Eight numbers of a matrix, the first of them element `at`. */
    __device__ __forceinline__ void eight(float v[EIGHT], G<const uint8_t> p, lq_dtype d,
                                          int64_t at)
    {
        if (d == LQ_F32) {
            const float4 lo = cu_ldg<float4>(p + 4 * at), hi = cu_ldg<float4>(p + 4 * at + 16);
            const float all[EIGHT] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
            for (int j = 0; j < EIGHT; j++)
                v[j] = all[j];
            return;
        }
        const uint4 w = cu_ldg<uint4>(p + 2 * at);
        const unsigned two[EIGHT / 2] = { w.x, w.y, w.z, w.w };
        for (int j = 0; j < EIGHT; j++) {
            const unsigned h = two[j / 2] >> 16 * (j % 2) & 0xffffu;
            v[j] = d == LQ_F16 ? cu_f16_f32(h) : cu_bf16_f32(h);
        }
    }

    struct lora_out {
        float *y;
        const float *base;
        int64_t ldy, ldb;
        int N, part;
    };
    struct lora_outs {
        lora_out of[DEV_LORA_OUTS];
        int64_t ldx, ldl, rows; /* rows: of low from output to output */
        int K, Ka;
        bool quads; /* rows of x can be read four at a time */
    };

    /* Inputs k .. k + 7 of a row of K; 0 behind its end. quads: they can be read four at a time. */
    __device__ __forceinline__ void inputs(float v[EIGHT], G<const float> x, int k, int K,
                                           bool quads)
    {
        if (quads && k + EIGHT <= K) {
            const float4 lo = cu_ld<float4>(x + k), hi = cu_ld<float4>(x + k + 4);
            const float all[EIGHT] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
            for (int j = 0; j < EIGHT; j++)
                v[j] = all[j];
            return;
        }
        for (int j = 0; j < EIGHT; j++)
            v[j] = k + j < K ? cu_ld<float>(x + (k + j)) : 0.0f;
    }

    /* The panel's part of output z; a NULL: it has none. */
    __device__ __forceinline__ dev_lora_part part_of(const dev_lora_panel &p, int part)
    {
        const dev_lora_part none = { NULL, NULL, NULL, 0, LQ_F32, 0 };
        return p.n ? cu_ld<dev_lora_part>(G<const dev_lora_part>(p.parts) + part) : none;
    }

    __global__ void __launch_bounds__(THREADS)
        shrink_kernel(G<float> low, G<const float> x, G<const dev_lora_panel> panels,
                      G<const int32_t> rows, lora_outs s)
    {
        CU_SHARED(float, sums, WARPS *RANKS *ROWS);
        cu_follow();
        const dev_lora_panel p = cu_ld<dev_lora_panel>(panels + (int64_t)blockIdx.y);
        const dev_lora_part part = part_of(p, s.of[blockIdx.z].part);
        const int lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP,
                  r0 = (int)blockIdx.x * RANKS;
        if (!part.a || r0 >= (part.rank + EIGHT - 1) / EIGHT * EIGHT) return;
        const G<const uint8_t> a((const uint8_t *)part.a);
        float acc[RANKS][ROWS] = {};
        int64_t at[ROWS];
#pragma unroll
        for (int m = 0; m < ROWS; m++)
            at[m] = (int64_t)cu_ld<int32_t>(rows + (p.first + (m < p.n ? m : p.n - 1))) * s.ldx;
        for (int k = EIGHT * (int)threadIdx.x; k < s.Ka; k += EIGHT * THREADS) {
            float w[RANKS][EIGHT];
#pragma unroll
            for (int r = 0; r < RANKS; r++)
                eight(w[r], a, part.dtype, (int64_t)(r0 + r) * s.Ka + k);
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                float in[EIGHT];
                if (m >= p.n) continue; /* all threads alike */
                inputs(in, x + at[m], k, s.K, s.quads);
#pragma unroll
                for (int r = 0; r < RANKS; r++)
                    for (int j = 0; j < EIGHT; j++)
                        acc[r][m] = fmaf(w[r][j], in[j], acc[r][m]);
            }
        }
#pragma unroll
        for (int r = 0; r < RANKS; r++)
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                const float sum = cu_warp_sum(acc[r][m]);
                if (lane == 0) sums[(warp * RANKS + r) * ROWS + m] = sum;
            }
        __syncthreads();
        if (threadIdx.x >= RANKS * ROWS) return;
        const int r = threadIdx.x / ROWS, m = threadIdx.x % ROWS;
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += sums[(w * RANKS + r) * ROWS + m];
        if (m < p.n)
            low[(int64_t)blockIdx.z * s.rows * s.ldl + (p.first + m) * s.ldl + r0 + r] =
                sum * part.scale;
    }

    __global__ void __launch_bounds__(OUTS, 6) expand_lora_kernel(
        G<const float> low, G<const dev_lora_panel> panels, G<const int32_t> rows, lora_outs s)
    {
        CU_SHARED(float, part_of_low, ROWS *SHARED);
        cu_follow();
        const dev_lora_panel p = cu_ld<dev_lora_panel>(panels + (int64_t)blockIdx.y);
        const lora_out o = s.of[blockIdx.z];
        const dev_lora_part part = part_of(p, o.part);
        const int n = (int)blockIdx.x * OUTS + (int)threadIdx.x;
        if (!part.b || (int)blockIdx.x * OUTS >= o.N) return; /* as a block */
        const G<const uint8_t> b((const uint8_t *)part.b);
        const int Rp = (part.rank + EIGHT - 1) / EIGHT * EIGHT;
        const G<const float> from = low + ((int64_t)blockIdx.z * s.rows + p.first) * s.ldl;
        float acc[ROWS] = {};
        for (int r0 = 0; r0 < Rp; r0 += SHARED) {
            const int here = Rp - r0 < SHARED ? Rp - r0 : SHARED;
            if (r0) __syncthreads(); /* those before were read */
            for (int i = threadIdx.x; i < p.n * here; i += OUTS)
                part_of_low[i / here * SHARED + i % here] =
                    cu_ld<float>(from + ((int64_t)(i / here) * s.ldl + r0 + i % here));
            __syncthreads();
            for (int r = 0; r < here && n < o.N; r += EIGHT) {
                float w[EIGHT];
                eight(w, b, part.dtype, ((int64_t)((r0 + r) / EIGHT) * o.N + n) * EIGHT);
#pragma unroll
                for (int m = 0; m < ROWS; m++) {
                    if (m >= p.n) continue;
#pragma unroll
                    for (int j = 0; j < EIGHT; j++)
                        acc[m] = fmaf(w[j], part_of_low[m * SHARED + r + j], acc[m]);
                }
            }
        }
        if (n >= o.N) return;
        const float g = part.gain ? cu_ldg<float>(G<const float>(part.gain) + n) : 1.0f;
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            if (m >= p.n) continue;
            const int64_t row = cu_ld<int32_t>(rows + (p.first + m));
            const G<float> y = G<float>(o.y) + (row * o.ldy + n);
            const float old = cu_ld<float>(y);
            *y = part.gain
                     ? old + ((g - 1) * cu_ld<float>(G<const float>(o.base) + (row * o.ldb + n)) +
                              g * acc[m])
                     : old + acc[m];
        }
    }

}

void CU_NAME(lora)(dev *d, const dev_lora_args *a)
{
    lora_outs outs = { {},
                       a->ldx,
                       a->ldl,
                       a->rows_most,
                       (int)a->K,
                       (int)lq_round_up((size_t)a->K, EIGHT),
                       a->ldx % 4 == 0 && (uintptr_t)a->x % 16 == 0 };
    int64_t most = 0;
    for (int i = 0; i < a->n; i++) {
        const dev_lora_out *o = &a->out[i];
        outs.of[i] = { o->y, o->base, o->ldy, o->ldb, (int)o->N, o->part };
        if (o->N > most) most = o->N;
    }
    const unsigned ranks = (unsigned)lq_ceil_div(a->rank, RANKS),
                   tiles = (unsigned)lq_ceil_div(most, OUTS);
    for (int64_t at = 0; at < a->n_panels; at += CU_ROWS) {
        const unsigned n = (unsigned)(a->n_panels - at < CU_ROWS ? a->n_panels - at : CU_ROWS);
        CU_FOLLOW(d, "shrink", shrink_kernel, dim3(ranks, n, (unsigned)a->n), THREADS, 0, a->low,
                  a->x, a->panels + at, a->rows, outs);
        CU_FOLLOW(d, "expand", expand_lora_kernel, dim3(tiles, n, (unsigned)a->n), OUTS, 0, a->low,
                  a->panels + at, a->rows, outs);
    }
}
