/* kernels/cuda/mm_lt.cu - many rows by weights whose checkpoint rounds the inputs too (W8A8 of int8 and of
 * e4m3: one scale a row of each), through cuBLASLt: codes by codes, and scales behind the sums.
 *
 *   round    a row of x to codes and their scale; one block a row
 *   codes    tiles to rows of codes, a panel of outputs at a time; a thread eight of one output
 *   product  cuBLASLt: of int8 exact sums in int32, of e4m3 in f32
 *   join     y = scale of the output * (scale of the row * sum), + bias, + y; a thread an output
 *
 *      x [M, K] -> codes [M, Kp], scales [M]      W tiles -> codes [n, Kp]      sums [M, n] -> y
 *
 * All of it is in the scratch that the same product would take otherwise (mm.cu): codes, scales and sums
 * where x rounded and arranged would be, four bytes a place of either; the panel where mm_wide's is.
 *
 * Shared memory: round 8 floats (32 B). */
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_lt_cu)
{

    enum { THREADS = 256, WARPS = THREADS / CU_WARP, ALIGN = 256, PAD = 16 };

    /* Of a row that has NaN or Inf the scale is NaN. */
    __global__ void __launch_bounds__(THREADS)
        lt_round_kernel(G<uint8_t> codes, G<float> scales, G<const float> x, int64_t ldx, int K,
                        int Kp, bool f8, float fixed)
    {
        CU_SHARED(float, most, WARPS);
        const int64_t m = blockIdx.x;
        float max = 0;
        for (int k = threadIdx.x; k < K; k += THREADS) {
            const float a = fabsf(x[m * ldx + k]);
            max = a < INFINITY ? (a > max ? a : max) : INFINITY; /* NaN too */
        }
        max = cu_warp_max(max);
        if (threadIdx.x % CU_WARP == 0) most[threadIdx.x / CU_WARP] = max;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            max = fmaxf(max, most[w]);
        const bool ok = max < INFINITY;
        const float scale = fixed > 0 ? fixed : max / (f8 ? 448.0f : 127.5f);
        for (int k = threadIdx.x; k < Kp; k += THREADS) {
            const float q = ok && scale > 0 && k < K ? x[m * ldx + k] / scale : 0.0f;
            const int i = (int)fminf(fmaxf(rintf(f8 ? 0.0f : q), -128.0f), 127.0f);
            codes[m * Kp + k] = f8 ? (uint8_t)cu_f32_e4m3(q) : (uint8_t)i;
        }
        if (threadIdx.x == 0) scales[m] = ok ? scale : NAN;
    }

    /* Rows of Kp codes of tiles from tile0 on; flip: what makes unsigned ones signed. */
    __global__ void __launch_bounds__(THREADS)
        lt_codes_kernel(G<uint2> out, mm_view v, int64_t tile0, unsigned flip)
    {
        const int64_t cells = v.Kp / 8, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        const int r = (int)(i / cells);
        if (r >= TILE_N) return;
        const int cell = (int)(i % cells), c = cell % 4;
        const G<const uint8_t> from =
            G<const uint8_t>(v.codes) +
            ((tile0 + blockIdx.y) * v.tile_bytes + (int64_t)(cell / 4) * v.step_bytes + 4 * r);
        const unsigned lo = cu_ldg<unsigned>(from + 64 * mm_word(C_U8, c, 0)),
                       hi = cu_ldg<unsigned>(from + 64 * mm_word(C_U8, c, 1));
        out[((int64_t)blockIdx.y * TILE_N + r) * cells + cell] = { lo ^ flip, hi ^ flip };
    }

    /* sums [M, n]: int32, or f32. Outputs from n0 on. */
    __global__ void __launch_bounds__(THREADS)
        lt_join_kernel(mm_sink to, mm_view v, G<const unsigned> sums, G<const float> scales,
                       int64_t n0, int n, bool f8)
    {
        const int i = (int)blockIdx.x * THREADS + (int)threadIdx.x;
        const int64_t m = blockIdx.y, out = n0 + i;
        if (i >= n || out >= to.N) return;
        const unsigned sum = sums[m * n + i];
        const float s = f8 ? __uint_as_float(sum) : (float)(int)sum;
        const mm_scale_of w = mm_group_scales(v, out / TILE_N, 0, 0, (int)(out % TILE_N));
        mm_put(w.scale * (scales[m] * s), to, m, out);
    }

}

bool CU_NAME(mm_lt)(dev *d, const dev_mm_args *a, int64_t all, bool arranged)
{
    const qt_scheme *sc = &a->w->t.scheme;
    const mm_view v = CU_NAME(mm_view_of)(a->w);
    const bool f8 = sc->act == QT_ACT_F8;
    const int64_t K = a->w->t.K, M = (int64_t)lq_round_up((size_t)a->M, PAD),
                  rows = all < CU_ROWS ? all : CU_ROWS;
    const size_t x_bytes = lq_round_up((size_t)(rows * K) * 4, ALIGN) +
                           lq_round_up((size_t)(rows * v.Kp) * 4, ALIGN),
                 codes_bytes = lq_round_up((size_t)(M * v.Kp), ALIGN),
                 sums_at = codes_bytes + lq_round_up((size_t)M * 4, ALIGN);
    uint8_t *const room = (uint8_t *)a->scratch;
    float *const scales = (float *)(room + codes_bytes);
    uint8_t *const panel = room + x_bytes;
    const int64_t by_sums = (int64_t)((x_bytes - sums_at) / ((size_t)M * TILE_N * 4)),
                  by_panel = (int64_t)(dev_mm_wide_bytes(all, v.N, v.Kp) / (size_t)(TILE_N * v.Kp)),
                  tiles = a->w->s.tiles;
    int64_t most = by_sums < by_panel ? by_sums : by_panel;
    if (most > CU_WIDE) most = CU_WIDE;
    if (!arranged)
        CU_LAUNCH(d, "round", lt_round_kernel, dim3((unsigned)a->M), THREADS, 0, room, scales, a->x,
                  a->ldx, (int)K, (int)v.Kp, f8, sc->act_scale);
    const int64_t each = lq_ceil_div(tiles, lq_ceil_div(tiles, most));
    const mm_sink to = { a->y, a->bias, NULL, a->ldy, 0, v.N, a->add };
    for (int64_t t = 0; t < tiles; t += each) {
        const int64_t n = (tiles - t < each ? tiles - t : each) * TILE_N;
        const mm_codes c = { panel, room, room + sums_at, M, n, v.Kp, f8 };
        CU_LAUNCH(d, "codes", lt_codes_kernel,
                  dim3((unsigned)lq_ceil_div(TILE_N * v.Kp / 8, THREADS), (unsigned)(n / TILE_N)),
                  THREADS, 0, (uint2 *)panel, v, t, f8 ? 0 : 0x80808080u);
        if (!CU_NAME(mm_lt_product)(d, &c)) {
            d->lt = false;
            return false;
        }
        CU_LAUNCH(d, "join", lt_join_kernel,
                  dim3((unsigned)lq_ceil_div(n, THREADS), (unsigned)a->M), THREADS, 0, to, v,
                  (const unsigned *)c.y, scales, t * TILE_N, (int)n, f8);
    }
    return true;
}
