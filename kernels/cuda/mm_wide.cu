/* kernels/cuda/mm_wide.cu - many rows by a quantized weight through cuBLAS: a panel of its outputs becomes bf16
 * in the scratch, as rows of the tile's places, and cuBLAS multiplies by it; then the next.
 *
 *       W [N, Kp] codes      scratch [n, Kp] bf16        y [M, N]
 *       [ panel 0 ]  expand  [ panel ]  cuBLAS  x^T      [ n | ... ]
 *       [ panel 1 ]     ->
 *
 * A panel is DEV_MM_WIDE_BYTES at most: what most devices of 8.0 and later keep in L2 between the two.
 * One block of 256 threads expands 16 outputs by 2,048 inputs: a thread the same eight of each of 16
 * steps in a row, four lanes write 64 bytes of an output side by side. Weights are rounded to bf16, to
 * nearest: an error of 2^-8 of each at most.
 *
 * Shared memory: the map of 4-bit floats (64 B). */
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_wide_cu)
{

    /* A thread has its chunk of TURNS times STEPS steps in a row: most groups are as long as STEPS, and
     * have one scale. */
    enum {
        THREADS = 256,
        STEPS = 4,
        TURNS = 4,
        LANES = THREADS / TILE_N,
        BLOCK_STEPS = LANES / 4 * STEPS * TURNS
    };

    template <mm_code CODE>
    __global__ void __launch_bounds__(THREADS) expand_kernel(mm_view v, int64_t tile0, G<uint4> out)
    {
        CU_SHARED(float, map, 16);
        if (CODE == C_MAP) mm_load_map(map, v);
        const int r = threadIdx.x / LANES, c = threadIdx.x % 4;
        const int from = (int)blockIdx.x * BLOCK_STEPS + threadIdx.x % LANES / 4 * STEPS * TURNS,
                  to = from + STEPS * TURNS < v.steps ? from + STEPS * TURNS : v.steps;
        const int64_t tile = tile0 + blockIdx.y,
                      row = ((int64_t)blockIdx.y * TILE_N + r) * (v.Kp / 8);
        const G<const uint8_t> codes = G<const uint8_t>(v.codes) + (tile * v.tile_bytes + 4 * r);
        auto bring = [&](unsigned(&w)[mm_words(CODE)], int step) {
            for (int i = 0; i < mm_words(CODE); i++)
                w[i] = cu_ldg<unsigned>(codes +
                                        ((int64_t)step * v.step_bytes + 64 * mm_word(CODE, c, i)));
        };
        auto put = [&](const unsigned(&w)[mm_words(CODE)], int step, mm_scale_of s) {
            float q[8];
            mm_numbers<CODE>(q, w, c, map);
            mm_center(q, &s, v.zero);
            for (int j = 0; j < 8; j++)
                q[j] *= s.scale;
            out[row + 4 * step + c] = { cu_pair<false>(q[0], q[1]), cu_pair<false>(q[2], q[3]),
                                        cu_pair<false>(q[4], q[5]), cu_pair<false>(q[6], q[7]) };
        };
        int group = from / v.group_steps,
            bound = (group + 1) * v.group_steps; /* behind the group */
        for (int at = from; at < to;) {
            unsigned w[STEPS][mm_words(CODE)];
            const bool whole = at + STEPS <= to && at + STEPS <= bound;
#pragma unroll
            for (int n = 0; n < STEPS; n++) /* all are asked for before the first is used */
                if (n == 0 || whole) bring(w[n], at + n);
            const mm_scale_of s = mm_group_scales(v, tile, group, c, r);
#pragma unroll
            for (int n = 0; n < STEPS; n++)
                if (n == 0 || whole) put(w[n], at + n, s);
            at += whole ? STEPS : 1;
            if (at == bound) {
                group++;
                bound += v.group_steps;
            }
        }
    }

    void expand(dev * d, mm_code code, const mm_view &v, int64_t tile0, int64_t tiles, uint4 *out)
    {
        const dim3 grid((unsigned)lq_ceil_div(v.steps, BLOCK_STEPS), (unsigned)tiles);
        switch (code) {
#define X(CODE)                                                                       \
    case CODE:                                                                        \
        CU_LAUNCH(d, "expand", expand_kernel<CODE>, grid, THREADS, 0, v, tile0, out); \
        break;
            MM_CODES(X)
#undef X
        default:
            break;
        }
    }

}

void CU_NAME(mm_wide)(dev *d, const dev_mm_args *a, const mm_input *x)
{
    const mm_view v = CU_NAME(mm_view_of)(a->w);
    const mm_code code = CU_NAME(mm_code_of)(&a->w->t);
    const int64_t room = (int64_t)(dev_mm_wide_bytes(x->most, v.N, v.Kp) / (TILE_N * 2)) / v.Kp,
                  most = room < CU_WIDE ? room : CU_WIDE; /* tiles of a panel */
    const int64_t tiles = a->w->s.tiles, each = lq_ceil_div(tiles, lq_ceil_div(tiles, most));
    uint4 *const panel = (uint4 *)x->parts;
    for (int64_t t = 0; t < tiles; t += each) {
        const int64_t n = tiles - t < each ? tiles - t : each, n0 = t * TILE_N;
        const mm_dense rows = { panel, n0, v.N - n0 < n * TILE_N ? v.N - n0 : n * TILE_N, v.Kp };
        expand(d, code, v, t, n, panel);
        CU_NAME(mm_blas)(d, a, x, &rows);
    }
}
