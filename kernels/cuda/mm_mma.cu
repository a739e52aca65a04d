/* kernels/cuda/mm_mma.cu - many rows times a weight in any scheme but f32, through the matrix
 * units: mma.m16n8k16 with the weight as A (a tile is its 16 rows) and the activations as B.
 *
 * One block of 4 warps computes 4 tiles of 16 outputs for BM = 8 NT rows of x (of a group: rows of
 * one of its weights); each warp one tile, all of K:
 *
 *        x (bf16) by rows                 weight, packed
 *      0       64      128 -> K         0    64    128
 *   0  [ stage ][ stage ]          t+0  [stage][stage]    warp 0
 *   .  [ 0     ][ 1     ]          t+1  [ 0   ][ 1   ]    warp 1
 *  BM  [       ][       ]          t+2                    warp 2
 *                                  t+3                    warp 3
 *
 * A stage is two steps of 32 inputs, brought by cp.async, STAGES deep. Codes become bf16 in
 * registers, less their zero point, which is exact for integer codes; the products of a group are
 * summed by the matrix unit and then scaled onto the output's sum in f32, groups in order. (Numbers
 * that need more than bf16's 8 bits go as two, high and low: two terms. Two scales within a step,
 * nvfp4's, are multiplied into the numbers, exactly; the row's scale follows in the end.)
 *
 * Which k of the product is which input does not matter as long as both sides agree: lane (g, c)
 * holds inputs 8c..8c+7 of each step, four to each of two products (mm.cuh).
 *
 * Shared memory, per stage: x 128 BM bytes, its eight 16-byte pieces turned by 4 in odd rows, so
 * that eight lanes read 128 different bytes; weights 4 tiles x 2 steps, 32 bytes of padding after
 * what a chunk's lanes read at once, so that four chunks of eight rows lie in 32 banks. Sum for
 * NT = 8: u4 3 x (8192 + 3072) = 33792, u8 3 x (8192 + 5120) = 39936, 16 bit 2 x (8192 + 9216) =
 * 34816; and the map, 64. */
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_mma_cu)
{

enum { WARPS = 4, THREADS = WARPS * CU_WARP, STEPS = 2, X_ROW = STEPS * TILE_K * 2, PAD = 32 };

template <mm_code CODE> struct stage_of {
    static constexpr int words = mm_words(CODE);
    static constexpr int bits = mm_bits(CODE);
    /* u3's two words are not neighbours: 64 bytes at a time, as u2 */
    static constexpr int run = CODE == C_U3 ? 64 : 64 * words; /* bytes between paddings */
    static constexpr int step = 64 * bits, padded = step / run * (run + PAD);
    static constexpr int depth = bits == 16 ? 2 : 3;
    static constexpr int weights = WARPS * STEPS * padded;
};

/* Where byte `off` of a step stands once padded. */
template <mm_code CODE> __device__ __forceinline__ int padded_at(int off)
{
    return off + off / stage_of<CODE>::run * PAD;
}
__device__ __forceinline__ int x_at(int row, int piece)
{
    return row * X_ROW + ((piece ^ (row & 1) << 2) << 4);
}

template <mm_code CODE, int NT>
__device__ void bring(S<uint8_t> xs, S<uint8_t> ws, const mm_view &v, int64_t tile0, int64_t tiles,
                      G<const uint16_t> x, int64_t ldb, int64_t rows, int step0)
{
    typedef stage_of<CODE> st;
    for (int i = threadIdx.x; i < NT * 8 * (X_ROW / 16); i += THREADS) {
        const int row = i / (X_ROW / 16), piece = i % (X_ROW / 16), step = step0 + piece / 4;
        const bool there = row < rows && step < v.steps;
        cu_copy16(xs + x_at(row, piece),
                  x + (there ? row * ldb + (int64_t)step * TILE_K + piece % 4 * 8 : 0), there);
    }
    for (int i = threadIdx.x; i < WARPS * STEPS * (st::step / 16); i += THREADS) {
        const int part = i / (st::step / 16), off = i % (st::step / 16) * 16;
        const int step = step0 + part % STEPS;
        const int64_t tile = tile0 + part / STEPS;
        const bool there = tile < tiles && step < v.steps;
        cu_copy16(ws + (part * st::padded + padded_at<CODE>(off)),
                  G<const uint8_t>(v.codes) +
                      (there ? tile * v.tile_bytes + (int64_t)step * st::step + off : 0),
                  there);
    }
}

/* One step of one tile: part[nt] += its products, before the scales in `s` (rows g and g + 8). */
template <mm_code CODE, int NT>
__device__ void one_step(float part[NT][4], mm_scale_of s[2], const mm_view &v, int64_t tile,
                         int step, S<const uint8_t> xs, S<const uint8_t> ws, int in_stage,
                         S<const float> map, int terms)
{
    const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
    float q[2][8];
    for (int h = 0; h < 2; h++) {
        unsigned w[mm_words(CODE)];
        for (int i = 0; i < mm_words(CODE); i++)
            w[i] =
                cu_ld<unsigned>(ws + (padded_at<CODE>(64 * mm_word(CODE, c, i)) + 4 * (g + 8 * h)));
        s[h] = mm_scales(v, tile, step, c, g + 8 * h);
        mm_numbers<CODE>(q[h], w, c, map);
        mm_center(q[h], &s[h], v.zero);
        if (CODE == C_MAP && v.subs == 2) mm_sub_scale(q[h], &s[h], v, tile, step, c, g + 8 * h);
    }
    for (int term = 0; term < terms; term++) {
        unsigned a[2][4];
        mm_fragments(a, q);
        for (int nt = 0; nt < NT; nt++) {
            const uint4 x = cu_ld<uint4>(xs + x_at(8 * nt + g, 4 * in_stage + c));
            const unsigned b0[2] = { x.x, x.y }, b1[2] = { x.z, x.w };
            cu_mma_bf16(part[nt], a[0], b0);
            cu_mma_bf16(part[nt], a[1], b1);
        }
        if (term + 1 < terms) mm_rest(q);
    }
}

template <mm_code CODE, int NT>
__global__ void __launch_bounds__(THREADS, NT == 8 ? 2 : 4)
    mma_kernel(mm_view v, mm_view outliers, mm_rows group, G<const uint16_t> x, int64_t ldb,
               mm_sink o, int64_t tiles, int terms)
{
    typedef stage_of<CODE> st;
    enum { BM = 8 * NT };
    CU_SHARED(uint8_t, xs, st::depth * BM * X_ROW);
    CU_SHARED(uint8_t, ws, st::depth * st::weights);
    CU_SHARED(float, map, 16);
    const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
              c = lane % 4;
    const int64_t tile0 = (int64_t)blockIdx.x * WARPS, tile = tile0 + warp;
    const mm_panel panel = mm_panel_of(group, blockIdx.y, BM);
    const int64_t m0 = panel.m0, rows = panel.rows;
    const int n = (v.steps + STEPS - 1) / STEPS;
    if (rows <= 0 || !mm_member(&v, &outliers, &o.bias, group, panel.part)) return;
    if (CODE == C_MAP) mm_load_map(map, v);
    for (int i = 0; i < st::depth - 1; i++) {
        if (i < n)
            bring<CODE, NT>(xs + i * BM * X_ROW, ws + i * st::weights, v, tile0, tiles,
                            x + m0 * ldb, ldb, rows, i * STEPS);
        cu_copy_commit();
    }
    float acc[NT][4] = {}, part[NT][4] = {};
    for (int i = 0; i < n; i++) {
        const int at = i % st::depth, next = i + st::depth - 1;
        cu_copy_wait<st::depth - 2>();
        __syncthreads(); /* everybody's copies of this stage; nobody reads the one before */
        if (next < n)
            bring<CODE, NT>(xs + next % st::depth * BM * X_ROW, ws + next % st::depth * st::weights,
                            v, tile0, tiles, x + m0 * ldb, ldb, rows, next * STEPS);
        cu_copy_commit();
        for (int j = 0; j < STEPS; j++) {
            const int step = i * STEPS + j;
            if (step >= v.steps || tile >= tiles) break; /* the same in all lanes of a warp */
            mm_scale_of s[2];
            one_step<CODE, NT>(part, s, v, tile, step, xs + at * BM * X_ROW,
                               ws + (at * st::weights + (warp * STEPS + j) * st::padded), j, map,
                               terms);
            if ((step + 1) % v.group_steps != 0) continue;
            for (int nt = 0; nt < NT; nt++)
                for (int k = 0; k < 4; k++) {
                    acc[nt][k] = fmaf(s[k / 2].scale, part[nt][k], acc[nt][k]);
                    part[nt][k] = 0;
                }
        }
    }
    if (tile >= tiles) return;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int row = 8 * nt + 2 * c + k % 2;
            const int64_t m = m0 + row, out = tile * TILE_N + g + 8 * (k / 2);
            if (row >= rows || out >= o.N) continue;
            mm_finish(acc[nt][k], o, outliers, tile, g + 8 * (k / 2), m, out);
        }
}

template <mm_code CODE>
void launch(dev *d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
{
    const mm_view out = CU_NAME(mm_outliers_of)(a->w);
    const mm_sink o = mm_sink_of(a, x, v);
    const int terms = mm_terms(a->w, v);
    const unsigned blocks = (unsigned)lq_ceil_div(a->w->s.tiles, WARPS);
    /* of a group, by the rows of a weight on the average: either adds in the same order */
    if (x->rows.M <= 16 * (x->rows.parts ? (int64_t)x->rows.n : 1)) {
        CU_LAUNCH(d, "mma", (mma_kernel<CODE, 2>), dim3(blocks, mm_panels(x->rows, 16)), THREADS, 0,
                  v, out, x->rows, x->b, x->ldb, o, a->w->s.tiles, terms);
    } else {
        CU_LAUNCH(d, "mma", (mma_kernel<CODE, 8>), dim3(blocks, mm_panels(x->rows, 64)), THREADS, 0,
                  v, out, x->rows, x->b, x->ldb, o, a->w->s.tiles, terms);
    }
}

} // namespace

void CU_NAME(mm_mma)(dev *d, const dev_mm_args *a, const mm_input *x)
{
    const mm_view v = CU_NAME(mm_view_of)(a->w);
    switch (CU_NAME(mm_code_of)(&a->w->t)) {
#define CASE(code)                \
    case code:                    \
        launch<code>(d, a, x, v); \
        return;
        MM_CODES(CASE)
#undef CASE
    case C_F32:
    case C_ROWS:
        return; /* mm.cu sends them elsewhere */
    }
}
