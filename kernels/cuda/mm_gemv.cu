/* kernels/cuda/mm_gemv.cu - rows of f32, or a weight of f32, in f32, a few rows at a time.
 *
 * One block of 8 warps computes one tile of 16 outputs for up to MB rows; the grid is tiles by
 * panels of MB rows; of a group, a panel finds its weight by where their rows begin. Where tiles
 * are fewer than multiprocessors K is cut in parts (mm_cut_of): up to 8 rows each part is a block,
 * and the last of them to be done (last.cuh) adds the sums, in order; of more rows a block takes part
 * after part. A
 * warp takes two neighbouring steps of 32 inputs, then the two 8 warps on:
 *
 *            lane  0..3    4..7    8..11   12..15 | 16..19 ...
 *   chunk           0       1       2       3     |   0    ...     16 bytes a lane:
 *   rows           0-3     0-3 ...                |                lane % 4 picks four rows of 16
 *                  (step 2i)                      | (step 2i + 1)
 *
 * so a warp's load of u4 is 512 bytes side by side, and a lane keeps 4 x MB sums. Of a weight in
 * rows (C_ROWS) a warp's load is 128 bytes of each of four rows, a lane's its chunk of one.
 *
 * Order of each output's sum: a chunk's eight products from its first input up, times the group's
 * scale, onto the lane's sum, its chunks in rising order; then lanes apart by 4, 8, 16; then the
 * warps in order; then the parts of K; then the outliers' sum, bias, the old y. It depends on the
 * weight's shape and the device's multiprocessors, not on M.
 *
 * A block asks for the beginning of its codes before it waits for what makes its inputs
 * (CU_FOLLOW).
 *
 * Shared memory: the warps' sums, 8 x 16 x MB floats (4096 B at MB = 8), and the map of 4-bit
 * floats (64 B). Activations come from the first cache: K x MB floats are read once by each block.
 */
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_gemv_cu)
{

    enum { WARPS = 8, THREADS = WARPS * CU_WARP, ROWS = 4 };

    __device__ __forceinline__ unsigned word_of(const uint4 &v, int i)
    {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }

    /* Chunk c of a step, of row r of a tile, of a weight in rows; behind the last row it again. */
    __device__ __forceinline__ G<const uint8_t> cell_of_row(const mm_view &v, int64_t tile, int r,
                                                            int step, int c)
    {
        const int64_t n = tile * TILE_N + r;
        return G<const uint8_t>(v.codes) +
               ((n < v.N ? n : v.N - 1) * v.Kp + (int64_t)step * TILE_K + 8 * c) * 2;
    }

    /* acc[r][m] += the chunks of this lane in steps from..to-1. x: row m at x + m * ldx; rows beyond M
 * repeat the last. */
    template <mm_code CODE, int MB>
    __device__ void sweep(float acc[ROWS][MB], const mm_view &v, int64_t tile, G<const float> x,
                          int64_t ldx, int M, S<const float> map, int from, int to)
    {
        constexpr bool PLAIN = CODE == C_F32; /* no registers for scales that it has not */
        const int lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
        const int quad = lane % 4, c = lane / 4 % 4, half = lane / 16;
        const G<const uint8_t> codes = G<const uint8_t>(v.codes) + tile * v.tile_bytes;
        for (int step = from + 2 * warp + half; step < to; step += 2 * WARPS) {
            uint4 raw[mm_words(CODE)];
            for (int i = 0; i < mm_words(CODE); i++)
                raw[i] =
                    cu_ldg<uint4>(CODE == C_ROWS ? cell_of_row(v, tile, ROWS * quad + i, step, c)
                                                 : codes + ((int64_t)step * v.step_bytes +
                                                            16 * quad + 64 * mm_word(CODE, c, i)));
            float q[ROWS][8];
            mm_scale_of s[ROWS];
            for (int r = 0; r < ROWS; r++) {
                unsigned w[mm_words(CODE)];
                for (int i = 0; i < mm_words(CODE); i++)
                    w[i] = CODE == C_ROWS ? word_of(raw[r], i) : word_of(raw[i], r);
                mm_numbers<CODE>(q[r], w, c, map);
                s[r] = { 1.0f, 0.0f, 0 };
                if (!PLAIN) {
                    s[r] = mm_scales(v, tile, step, c, ROWS * quad + r);
                    mm_center(q[r], &s[r], v.zero);
                }
            }
            for (int m = 0; m < MB; m++) {
                const int64_t at = (int64_t)step * TILE_K + 8 * c;
                const int row = m < M ? m : M - 1;
                /* of f32 a row's place takes one register, not two */
                const G<const float> in = PLAIN ? x + at + row * (int)ldx : x + (row * ldx + at);
                const float4 lo = cu_ld<float4>(in), hi = cu_ld<float4>(in + 4);
                const float xs[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
                for (int r = 0; r < ROWS; r++) {
                    float sum = 0;
                    for (int j = 0; j < 8; j++)
                        sum = fmaf(q[r][j], xs[j], sum);
                    acc[r][m] = fmaf(s[r].scale, sum, acc[r][m]);
                }
            }
        }
    }

    struct gemv_out {
        mm_sink to;
        float *parts;          /* [splits, and of outliers one more][M][N]; NULL: a block has all */
        int splits, per_split; /* steps */
        int32_t *done;         /* counters of tiles */
    };

    /* The block's sums: the lanes' with equal quad, then the warps'. part [WARPS][16][MB]. Thread
 * 16 m + r returns that of row r and input row m. */
    template <int MB> __device__ float join(float acc[ROWS][MB], S<float> part)
    {
        const int lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
        for (int r = 0; r < ROWS; r++)
            for (int m = 0; m < MB; m++) {
                float v = acc[r][m];
                v += cu_shfl_xor(v, 4);
                v += cu_shfl_xor(v, 8);
                v += cu_shfl_xor(v, 16);
                if (lane < 4) part[(warp * MB + m) * TILE_N + ROWS * lane + r] = v;
            }
        __syncthreads();
        float sum = 0;
        if (threadIdx.x < TILE_N * MB)
            for (int w = 0; w < WARPS; w++)
                sum += part[w * MB * TILE_N + threadIdx.x];
        return sum;
    }

    /* The beginning of the block's codes, while the launch before still runs: 32 KiB at most. */
    __device__ __forceinline__ void ask(const mm_view &v, const gemv_out &o)
    {
        enum { LINE = 128 };
        const int from = (o.parts ? (int)blockIdx.z : 0) * o.per_split;
        const int to = o.parts && from + o.per_split < v.steps ? from + o.per_split : v.steps;
        const int64_t at = (int64_t)from * v.step_bytes + LINE * (int64_t)threadIdx.x;
        if (at < (int64_t)to * v.step_bytes)
            cu_prefetch(G<const uint8_t>(v.codes) + ((int64_t)blockIdx.x * v.tile_bytes + at));
    }

    template <mm_code CODE, int MB>
    __global__ void __launch_bounds__(THREADS, MB == 1 ? 3 : 2)
        gemv_kernel(mm_view v, mm_view outliers, mm_rows group, G<const float> x, int64_t ldx,
                    G<const float> x_out, int64_t ldo, gemv_out o)
    {
        CU_SHARED(float, part, WARPS *TILE_N *MB);
        CU_SHARED(float, map, 16);
        cu_next();
        if (!group.parts && CODE != C_ROWS) ask(v, o);
        cu_after();
        const mm_panel panel = mm_panel_of(group, blockIdx.y, MB);
        const int64_t tile = blockIdx.x, m0 = panel.m0;
        const int rows = (int)panel.rows; /* what returns here does so as a block */
        if (rows <= 0 || !mm_member(&v, &outliers, &o.to.bias, group, panel.part)) return;
        if (CODE == C_MAP) mm_load_map(map, v);
        const int all = o.splits + (CODE == C_U8 && outliers.steps), z0 = (int)blockIdx.z;
        float y = 0;
        for (int z = z0; z < (o.parts ? z0 + 1 : all); z++) {
            float acc[ROWS][MB] = {};
            const int from = z * o.per_split, to = from + o.per_split;
            if (CODE == C_U8 && z == o.splits)
                sweep<C_BF16, MB>(acc, outliers, tile, x_out + m0 * ldo, ldo, rows, map, 0,
                                  outliers.steps);
            else
                sweep<CODE, MB>(acc, v, tile, x + m0 * ldx, ldx, rows, map, from,
                                to < v.steps ? to : v.steps);
            if (z > z0) __syncthreads(); /* the sums before were read */
            y += join<MB>(acc, part);
        }
        const int r = threadIdx.x % TILE_N, m = threadIdx.x / TILE_N;
        const int64_t n = tile * TILE_N + r;
        const bool mine = m < rows && m < MB && n < o.to.N;
        if (o.parts) {
            if (mine) G<float>(o.parts)[(z0 * group.M + m0 + m) * o.to.N + n] = y;
            if (!cu_last(G<int32_t>(o.done) + (int)tile, (int)gridDim.z, cu_as<int>(part))) return;
            if (mine) y = mm_joined(o.parts, o.to, (int)gridDim.z, group.M, m0 + m, n);
        }
        if (mine) mm_put(y, o.to, m0 + m, n);
    }

    template <mm_code CODE>
    void launch(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v,
                const mm_view &out)
    {
        const mm_cut cut = mm_cut_of(a->w, d->n_sm);
        const bool alone = !x->rows.parts,
                   apart = alone && cut.splits > 1 && x->rows.M <= DEV_MM_SMALL;
        const gemv_out o = { mm_sink_of(a, x, v), apart ? x->parts : NULL, alone ? cut.splits : 1,
                             alone ? cut.per_split : v.steps, d->done };
        const unsigned tiles = (unsigned)a->w->s.tiles,
                       parts = apart ? (unsigned)(cut.splits + (out.steps > 0)) : 1;
        if (x->most == 1) {
            CU_FOLLOW(d, "gemv", (gemv_kernel<CODE, 1>), dim3(tiles, mm_panels(x->rows, 1), parts),
                      THREADS, 0, v, out, x->rows, x->f, x->ldf, x->out, x->ldo, o);
        } else if (x->most <= 4) {
            CU_FOLLOW(d, "gemv", (gemv_kernel<CODE, 4>), dim3(tiles, mm_panels(x->rows, 4), parts),
                      THREADS, 0, v, out, x->rows, x->f, x->ldf, x->out, x->ldo, o);
        } else {
            CU_FOLLOW(d, "gemv", (gemv_kernel<CODE, 8>), dim3(tiles, mm_panels(x->rows, 8), parts),
                      THREADS, 0, v, out, x->rows, x->f, x->ldf, x->out, x->ldo, o);
        }
    }

}

void CU_NAME(mm_gemv)(dev *d, const dev_mm_args *a, const mm_input *x)
{
    const mm_view v = CU_NAME(mm_view_of)(a->w), out = CU_NAME(mm_outliers_of)(a->w);
    switch (CU_NAME(mm_code_of)(&a->w->t)) {
#define CASE(code)                     \
    case code:                         \
        launch<code>(d, a, x, v, out); \
        return;
        MM_CODES(CASE)
        CASE(C_F32)
        CASE(C_ROWS)
#undef CASE
    }
}
