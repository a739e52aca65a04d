/* kernels/cuda/mm_i8.cu - MM_I8 of integer codes: mma.m16n8k32 of the codes (u8, as A) and the
 * int8 activations of eight rows (s8, as B), summed in s32.
 *
 *   quantize  x into the tile's places and to int8, a scale for each block of A places, as
 *             ref_mm_quant; one warp a block
 *   few       up to 8 rows: a tile a block of 8 warps, which share K
 *   many      4 warps, a tile and BM = 8 NT rows each, all of K
 *
 * A block's sum D is an exact integer, whoever adds it; what is done in f32 with D is one chain
 * for each output, in mm.h's order. So both kernels give the bits of the CPU's MM_I8.
 *
 * A step is one product. Lane (g, c) has rows 2g and 2g + 1 of the tile, which the matrix knows as
 * g and g + 8, so that their cells (mm.cuh) are one load; inputs 8c..8c+3 stand at k = 4c.. of
 * either operand, 8c+4..8c+7 at 16 + 4c..: a cell of u4 is those by its low and its high nibbles.
 *
 * few: a warp takes UNIT = 4 steps, 4 / NA blocks of A = 32 NA places, the block of warps 32 steps
 * a round. The sums of a round lie in shared memory while 128 threads, one an output and row, go on
 * with their chains, and the others multiply the next round:
 *
 *            steps 0..3   4..7   ..  28..31 | 32..35 ..       sums [2 rounds][8 warps][4 / NA]
 *   tile     warp 0       warp 1     warp 7 | warp 0               [8 rows][16 outputs + 4]
 *
 * Rows of sums are 20 ints apart, so that 16 lanes store 8 bytes each to 32 banks. Shared memory:
 * 2 x 8 x 4 / NA x 640 = 10240, 20480, 40960 bytes for A = 128, 64, 32.
 *
 * many: codes go from memory to registers, as no other warp needs them, one stage of two steps
 * ahead; activations by cp.async, three stages deep:
 *
 *        x (int8) by rows                 weight, packed
 *      0       64      128 -> K         0    64    128
 *   0  [ stage ][ stage ]          t+0  [ this ][ next ]  warp 0
 *  BM  [ 0     ][ 1     ]          t+3                    warp 3
 *
 * Rows of a stage are 64 bytes; their halves change places in every other pair of rows, so that 16
 * lanes read 8 bytes each from 32 banks. Shared memory: 3 x 64 BM = 12288 bytes for NT = 8. */
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_i8_cu)
{

    enum {
        QUANTIZERS = 8, /* warps */
        WARPS = 8,
        UNIT = 4,
        ROWS = 8,
        APART = 20,
        TILES = 4,
        STEPS = 2,
        X_ROW = STEPS * TILE_K,
        DEPTH = 3
    };

    /* ---- activations ---- */
    struct quant_in {
        const float *x;
        const int32_t *perm, *out_idx; /* of all rows, unless of a group; NULL: none */
        int64_t ldx, K, Kp, G, Gp;
        int A, n_out;
        bool by_part; /* perm and out_idx are the parts' */
    };

    /* Whether input k is an outlier: idx [n] rises. */
    __device__ bool is_outlier(G<const int32_t> idx, int n, int64_t k)
    {
        int lo = 0, hi = n;
        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (idx[mid] < k)
                lo = mid + 1;
            else
                hi = mid;
        }
        return lo < n && idx[lo] == k;
    }

    /* q [M, Kp]; s [M, Kp / A] of scale and sum. */
    __global__ void __launch_bounds__(QUANTIZERS * CU_WARP)
        quant_kernel(G<int8_t> q, G<float2> s, mm_rows rows, quant_in in)
    {
        const int lane = threadIdx.x % CU_WARP, per_row = (int)(in.Kp / in.A);
        const int64_t i = (int64_t)blockIdx.x * QUANTIZERS + threadIdx.x / CU_WARP, m = i / per_row;
        if (m >= rows.M) return;
        G<const int32_t> perm = in.perm, out_idx = in.out_idx;
        if (in.by_part) {
            const mm_part part = mm_part_of(rows, mm_panel_of(rows, m, 1).part);
            perm = part.perm;
            out_idx = part.out_idx;
            in.n_out = part.n_out;
        }
        const G<const float> x = G<const float>(in.x) + m * in.ldx;
        const int64_t p0 = i % per_row * in.A;
        float v[4], max = 0;
        for (int j = 0; j < 4; j++) {
            const int64_t p = p0 + j * CU_WARP + lane, at = p % in.Gp, k = p / in.Gp * in.G + at;
            const bool there = j * CU_WARP < in.A && at < in.G && k < in.K;
            v[j] = 0;
            if (there && !is_outlier(out_idx, in.n_out, k)) v[j] = x[perm ? (int64_t)perm[k] : k];
            const float a = fabsf(v[j]);
            max = a < INFINITY ? (a > max ? a : max) : INFINITY; /* NaN too */
        }
        max = cu_warp_max(max);
        const bool ok = max >= MM_I8_TINY && max < INFINITY;
        const float inv = ok ? 127.0f / max : 0.0f;
        float sum = 0; /* an integer below 2^24 */
        for (int j = 0; j < 4; j++) {
            const float r = ok ? rintf(v[j] * inv) : 0.0f;
            sum += r;
            if (j * CU_WARP < in.A)
                cu_st<int8_t>(q + (m * in.Kp + p0 + j * CU_WARP + lane), (int8_t)r);
        }
        sum = cu_warp_sum(sum);
        const float scale = !(max < INFINITY) ? NAN : ok ? max / 127.0f : 0.0f;
        if (lane == 0) cu_st<float2>(s + i, float2{ scale, sum });
    }

    /* ---- weights ---- */
    /* What a lane reads of a step. */
    template <mm_code CODE>
    __device__ __forceinline__ void load_cells(uint2 raw[], G<const uint8_t> step)
    {
        const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
        for (int i = 0; i < mm_words(CODE); i++)
            raw[i] = cu_ldg<uint2>(step + (64 * mm_word(CODE, c, i) + 8 * g));
    }
    /* Codes of inputs 8c + 4 half .. + 3 of a row, a byte each. */
    template <mm_code CODE>
    __device__ __forceinline__ unsigned codes_of(unsigned w0, unsigned w1, int c, int half)
    {
        const int low = 4 * (c % 2) + 2 * half;
        if (CODE == C_U8) return half ? w1 : w0;
        if (CODE == C_U4) return w0 >> 4 * half & 0x0f0f0f0fu;
        if (CODE == C_U2) return w0 >> low & 0x03030303u;
        return (w0 >> low & 0x03030303u) | (w1 >> (2 * c + half) & 0x01010101u) << 2;
    }
    template <mm_code CODE>
    __device__ __forceinline__ void operand(unsigned a[4], const uint2 raw[])
    {
        const int c = threadIdx.x % 4, last = mm_words(CODE) - 1;
        for (int half = 0; half < 2; half++) {
            a[2 * half] = codes_of<CODE>(raw[0].x, raw[last].x, c, half);
            a[2 * half + 1] = codes_of<CODE>(raw[0].y, raw[last].y, c, half);
        }
    }

    /* ---- results ---- */
    struct i8_in {
        const int8_t *q;
        const float2 *s;
        int64_t ldq, nb; /* of s: blocks of a row */
        int na;          /* steps of a block */
    };
    struct i8_out {
        float *y;
        const float *bias, *x_out;
        int64_t ldy, ldo, N, tiles;
        bool add;
    };

    /* m: of the launch's rows; r: of the tile's. */
    template <mm_code CODE>
    __device__ void finish(float y, const i8_out &o, const mm_view &outliers, int64_t m,
                           int64_t tile, int r)
    {
        const int64_t n = tile * TILE_N + r;
        if (n >= o.N) return;
        if (CODE == C_U8 && outliers.steps)
            y += mm_outlier_sum(outliers, tile, r, G<const float>(o.x_out) + m * o.ldo);
        if (o.bias) y += G<const float>(o.bias)[n];
        const G<float> to = G<float>(o.y) + (m * o.ldy + n);
        *to = o.add ? y + *to : y;
    }

    /* ---- few rows ---- */
    template <mm_code CODE, int NA>
    __global__ void __launch_bounds__(WARPS * CU_WARP, 3)
        few_kernel(mm_view v, mm_view outliers, mm_rows group, i8_in in, i8_out o)
    {
        enum { BLOCKS = UNIT / NA, SUMS = WARPS * BLOCKS * ROWS * APART };
        CU_SHARED(int, sums, 2 * SUMS);
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const mm_panel panel = mm_panel_of(group, blockIdx.y, ROWS);
        const int64_t tile = blockIdx.x, m0 = panel.m0;
        const int rows = (int)panel.rows; /* what returns here does so as a block */
        if (rows <= 0 || !mm_member(&v, &outliers, &o.bias, group, panel.part)) return;
        const G<const uint8_t> codes = G<const uint8_t>(v.codes) + tile * v.tile_bytes;
        const G<const int8_t> q =
            G<const int8_t>(in.q) + ((m0 + (g < rows ? g : rows - 1)) * in.ldq + 8 * c);
        const int r = threadIdx.x % TILE_N, m = threadIdx.x / TILE_N;
        const G<const float2> s = G<const float2>(in.s) + (m0 + m) * in.nb;
        mm_scale_of of = { 0, 0 };
        float y = 0, acc = 0;
        uint2 raw[UNIT][mm_words(CODE)];
        for (int j = 0; j < UNIT; j++)
            if (warp * UNIT + j < v.steps)
                load_cells<CODE>(raw[j], codes + (int64_t)(warp * UNIT + j) * v.step_bytes);
        for (int round = 0; round * WARPS * UNIT < v.steps; round++) {
            const S<int> to = sums + round % 2 * SUMS;
            const int step0 = (round * WARPS + warp) * UNIT, next = step0 + WARPS * UNIT;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                if (step0 + b * NA >= v.steps) break; /* the same in all lanes of a warp */
                int d[4] = { 0, 0, 0, 0 };
#pragma unroll
                for (int j = 0; j < NA; j++) {
                    unsigned a[4];
                    operand<CODE>(a, raw[b * NA + j]);
                    const uint2 x = cu_ldg<uint2>(q + (int64_t)(step0 + b * NA + j) * TILE_K);
                    const unsigned two[2] = { x.x, x.y };
                    cu_mma_u8s8(d, a, two);
                }
                const S<int> at = to + ((warp * BLOCKS + b) * ROWS + 2 * c) * APART + 2 * g;
                cu_st<uint2>(at, uint2{ (unsigned)d[0], (unsigned)d[2] });
                cu_st<uint2>(at + APART, uint2{ (unsigned)d[1], (unsigned)d[3] });
            }
            for (int j = 0; j < UNIT; j++)
                if (next + j < v.steps)
                    load_cells<CODE>(raw[j], codes + (int64_t)(next + j) * v.step_bytes);
            __syncthreads(); /* all sums of this round; nobody reads those of the one before the last */
            if (m >= rows) continue;
            const int b0 = round * WARPS * BLOCKS;
            for (int i = 0; i < WARPS * BLOCKS && b0 + i < in.nb; i++) {
                const int step = (b0 + i) * NA;
                if (step % v.group_steps == 0) of = mm_scales(v, tile, step, 0, r);
                const float2 sx = cu_ldg<float2>(s + (b0 + i));
                const float D = (float)to[(i * ROWS + m) * APART + r];
                acc = fmaf(sx.x, fmaf(-of.zero, sx.y, D), acc);
                if ((step + NA) % v.group_steps != 0) continue;
                y = fmaf(of.scale, acc, y);
                acc = 0;
            }
        }
        if (m < rows) finish<CODE>(y, o, outliers, m0 + m, tile, r);
    }

    /* ---- many rows ---- */
    __device__ __forceinline__ int x_at(int row, int byte)
    {
        return row * X_ROW + (byte ^ (row / 2 % 2) * TILE_K);
    }

    template <int NT>
    __device__ void bring(S<uint8_t> xs, G<const int8_t> q, int64_t ldq, int64_t rows, int steps,
                          int step0)
    {
        enum { PIECES = X_ROW / 16 };
        for (int i = threadIdx.x; i < NT * 8 * PIECES; i += TILES * CU_WARP) {
            const int row = i / PIECES, piece = i % PIECES;
            const bool there = row < rows && step0 + piece / 2 < steps;
            cu_copy16(xs + x_at(row, 16 * piece),
                      q + (there ? row * ldq + (int64_t)step0 * TILE_K + 16 * piece : 0), there);
        }
    }

    template <mm_code CODE, int NT>
    __global__ void __launch_bounds__(TILES * CU_WARP, NT == 8 ? 2 : 4)
        many_kernel(mm_view v, mm_view outliers, mm_rows group, i8_in in, i8_out o)
    {
        enum { BM = 8 * NT };
        CU_SHARED(uint8_t, xs, DEPTH * BM * X_ROW);
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const int64_t tile = (int64_t)blockIdx.x * TILES + warp;
        const mm_panel panel = mm_panel_of(group, blockIdx.y, BM);
        const int64_t m0 = panel.m0, rows = panel.rows;
        const int n = (v.steps + STEPS - 1) / STEPS;
        if (rows <= 0 || !mm_member(&v, &outliers, &o.bias, group, panel.part)) return;
        const bool there = tile < o.tiles; /* the same in all lanes of a warp */
        const G<const uint8_t> codes =
            G<const uint8_t>(v.codes) + (there ? tile * v.tile_bytes : 0);
        const G<const int8_t> q = G<const int8_t>(in.q) + m0 * in.ldq;
        const G<const float2> s = G<const float2>(in.s) + m0 * in.nb;
        for (int i = 0; i < DEPTH - 1; i++) {
            if (i < n) bring<NT>(xs + i * BM * X_ROW, q, in.ldq, rows, v.steps, i * STEPS);
            cu_copy_commit();
        }
        uint2 raw[STEPS][mm_words(CODE)];
        for (int j = 0; j < STEPS; j++)
            if (j < v.steps) load_cells<CODE>(raw[j], codes + (int64_t)j * v.step_bytes);
        float y[NT][4] = {}, acc[NT][4] = {};
        int d[NT][4] = {};
        mm_scale_of of[2] = {};
        for (int i = 0; i < n; i++) {
            const int next = i + DEPTH - 1;
            cu_copy_wait<DEPTH - 2>();
            __syncthreads(); /* everybody's copies of this stage; nobody reads the one before */
            if (next < n)
                bring<NT>(xs + next % DEPTH * BM * X_ROW, q, in.ldq, rows, v.steps, next * STEPS);
            cu_copy_commit();
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                const int step = i * STEPS + j;
                if (step >= v.steps || !there) break;
                unsigned a[4];
                operand<CODE>(a, raw[j]);
                if (step + STEPS < v.steps)
                    load_cells<CODE>(raw[j], codes + (int64_t)(step + STEPS) * v.step_bytes);
                const S<uint8_t> x = xs + i % DEPTH * BM * X_ROW;
                for (int nt = 0; nt < NT; nt++) {
                    const uint2 b = cu_ld<uint2>(x + x_at(8 * nt + g, TILE_K * j + 8 * c));
                    const unsigned two[2] = { b.x, b.y };
                    cu_mma_u8s8(d[nt], a, two);
                }
                if ((step + 1) % in.na != 0) continue;
                const int64_t block = step / in.na;
                if (block * in.na % v.group_steps == 0)
                    for (int h = 0; h < 2; h++)
                        of[h] = mm_scales(v, tile, step, 0, 2 * g + h);
                const bool last = (step + 1) % v.group_steps == 0; /* of its group */
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                    for (int two = 0; two < 2; two++) {
                        const int row = 8 * nt + 2 * c + two;
                        float2 sx = { 0, 0 };
                        if (row < rows) sx = cu_ldg<float2>(s + (row * in.nb + block));
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const int k = 2 * h + two;
                            const float D = (float)d[nt][k];
                            acc[nt][k] = fmaf(sx.x, fmaf(-of[h].zero, sx.y, D), acc[nt][k]);
                            d[nt][k] = 0;
                            if (!last) continue;
                            y[nt][k] = fmaf(of[h].scale, acc[nt][k], y[nt][k]);
                            acc[nt][k] = 0;
                        }
                    }
            }
        }
        if (!there) return;
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int row = 8 * nt + 2 * c + k % 2;
                if (row < rows) finish<CODE>(y[nt][k], o, outliers, m0 + row, tile, 2 * g + k / 2);
            }
    }

    template <mm_code CODE>
    void launch(dev * d, const dev_mm_args *a, const mm_input *x, const i8_in &in)
    {
        const mm_view v = CU_NAME(mm_view_of)(a->w), out = CU_NAME(mm_outliers_of)(a->w);
        const i8_out o = { a->y, a->bias, x->out, a->ldy, x->ldo, v.N, a->w->s.tiles, a->add };
        const unsigned tiles = (unsigned)a->w->s.tiles,
                       fours = (unsigned)lq_ceil_div(a->w->s.tiles, TILES);
#define FEW(NA)                                                                        \
    CU_LAUNCH(d, "few", (few_kernel<CODE, NA>), dim3(tiles, mm_panels(x->rows, ROWS)), \
              WARPS *CU_WARP, 0, v, out, x->rows, in, o)
#define MANY(NT)                                                                           \
    CU_LAUNCH(d, "many", (many_kernel<CODE, NT>), dim3(fours, mm_panels(x->rows, 8 * NT)), \
              TILES *CU_WARP, 0, v, out, x->rows, in, o)
        if (x->most <= DEV_MM_SMALL) {
            if (in.na == 4)
                FEW(4);
            else if (in.na == 2)
                FEW(2);
            else
                FEW(1);
        } else if (x->rows.M <= 16 * (x->rows.parts ? (int64_t)x->rows.n : 1)) {
            MANY(2);
        } else {
            MANY(8);
        }
#undef FEW
#undef MANY
    }

}

void CU_NAME(mm_i8)(dev *d, const dev_mm_args *a, const mm_input *x, void *room, bool arranged)
{
    const qt_scheme *sc = &a->w->t.scheme;
    const bool permuted = sc->kind == QT_UINT && sc->act_order,
               outliers = sc->kind == QT_I8_OUTLIER && sc->n_out;
    const int64_t A = mm_i8_block(&a->w->s), nb = a->w->s.Kp / A, M = a->M;
    int8_t *q = (int8_t *)room;
    float2 *s = (float2 *)(q + M * a->w->s.Kp);
    const quant_in from = { x->f,
                            permuted ? (const int32_t *)a->w->t.plane[QT_GIDX].data : NULL,
                            (const int32_t *)a->w->t.plane[QT_OUT_IDX].data,
                            x->ldf,
                            a->w->t.K,
                            a->w->s.Kp,
                            a->w->s.G,
                            a->w->s.Gp,
                            (int)A,
                            outliers ? (int)sc->n_out : 0,
                            x->rows.parts && (permuted || outliers) };
    if (!arranged)
        CU_LAUNCH(d, "quantize", quant_kernel, dim3((unsigned)lq_ceil_div(M * nb, QUANTIZERS)),
                  QUANTIZERS * CU_WARP, 0, q, s, x->rows, from);
    const i8_in in = { q, s, a->w->s.Kp, nb, (int)(A / TILE_K) };
    switch (CU_NAME(mm_code_of)(&a->w->t)) {
#define CASE(code)                 \
    case code:                     \
        launch<code>(d, a, x, in); \
        return;
        CASE(C_U2)
        CASE(C_U3)
        CASE(C_U4)
        CASE(C_U8)
#undef CASE
    default:
        return; /* dev_mm_ints is false */
    }
}
