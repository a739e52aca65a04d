/* kernels/cuda/mm_thin.cu - up to 8 rows of bf16 times a weight in any scheme but f32: bound by
 * reading the weight, so what counts is how few instructions a weight costs. Through the matrix
 * units, mma.m16n8k16, with the weight as A, straight from memory, and the rows of x as B's eight
 * columns.
 *
 * One block of 8 warps computes T tiles of 16 outputs. Its warps take units of UNIT steps of 32
 * inputs in turns, and have the next one's codes and scales on their way meanwhile:
 *
 *          inputs 0     128   256   384        1024
 *          u4     [ w0 ][ w1 ][ w2 ][ w3 ] .. [ w0 ]        UNIT 4; of 16 bits 2
 *
 * Of a step lane (g, c) = (lane / 4, lane % 4) has chunk c (mm.cuh) of rows 2g and 2g + 1, which
 * lie beside each other: a warp's load of u4 is 256 bytes. They are rows g and g + 8 of the
 * product; its k are inputs 8c + 4h .. + 3 of each chunk, for the two products h of a step, and the
 * lane takes the same inputs of x's row g, as f32, and makes bf16 of them. So nothing is arranged
 * beforehand. Codes become bf16 less their zero points without a float between (mm_quick), 4-bit
 * floats by a table of bf16; others go as one or two bf16 (mm_terms).
 *
 * Order of each output's sum: the matrix unit adds up a group's products of a unit, times the
 * group's scale onto the warp's sum; then the warps in order, times the row's scale; onto the last
 * part of K the outliers' sum; then the parts (mm_cut_of, which a second kernel joins), bias, the
 * old y. It depends on the weight's shape and the device's multiprocessors, not on M or T.
 *
 * The kernel may end with what an MLP does (dev_mm_act): a block then has a tile of gate's and the
 * tile of up's that goes with it.
 *
 * It may begin before the launch before has ended (CU_FOLLOW), and then waits with its first codes
 * under way.
 *
 * Shared memory: the warps' sums, 8 x T x 16 x 8 floats (8192 B at T = 2), and two maps of 4-bit
 * floats (128 B). */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/mm.cuh"

inline namespace CU_NAME(mm_thin_cu)
{

enum { WARPS = 8, THREADS = WARPS * CU_WARP, ROWS = DEV_MM_SMALL };

__device__ constexpr int unit_of(mm_code code) { return mm_words(code) <= 2 ? 4 : 2; }

/* Blocks that registers are to leave room for on a multiprocessor; before sm_90, whose code takes a
 * few more, one less. */
__device__ constexpr int blocks_of(mm_code code, bool quick, int tiles)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    enum { LESS = 1 };
#else
    enum { LESS = 0 };
#endif
    const bool lean = quick && mm_words(code) == 1 && code != C_MAP;
    const int n = lean ? 4 - tiles : tiles == 1 || code == C_BF16 ? 2 : 1;
    return n - LESS > 1 ? n - LESS : 1;
}

struct thin_out {
    mm_sink to;
    float *parts;          /* [splits][M][N]; NULL: a block has all of K */
    int tiles;             /* that blocks begin with */
    int apart;             /* tiles from a block's first to its second */
    int splits, per_split; /* steps */
    int terms;
    dev_mm_act act;
    unsigned groups; /* 2^32 / group_steps, rounded up; 0: 1 step is a group */
};

/* What a lane needs of a unit, as it lies in memory. */
template <mm_code CODE, int T> struct unit {
    unsigned w[unit_of(CODE)][T][2][mm_words(CODE)];
    int group;               /* of the first step */
    uint2 scale[T], zero[T]; /* of that, rows 2g and 2g + 1 */
};

/* Those of rows i and i + 1, i even: as they lie, so that nothing waits for them here. */
__device__ __forceinline__ uint2 side_words(G<const uint8_t> p, lq_dtype d, unsigned i)
{
    if (d == LQ_F16 || d == LQ_BF16) return { cu_ldg<unsigned>(p + (size_t)i * 2), 0 };
    if (d == LQ_F8_E4M3 || d == LQ_F8_E8M0) return { cu_ldg<uint16_t>(p + (size_t)i), 0 };
    return cu_ldg<uint2>(p + (size_t)i * 4);
}
/* The bits of one of the two. */
__device__ __forceinline__ unsigned side_bits(uint2 words, lq_dtype d, int h)
{
    if (d == LQ_F16 || d == LQ_BF16) return words.x >> 16 * h & 0xffffu;
    if (d == LQ_F8_E4M3 || d == LQ_F8_E8M0) return words.x >> 8 * h & 0xffu;
    return h ? words.y : words.x;
}
/* How zero points lie: integers as other bytes. */
__device__ __forceinline__ lq_dtype zero_of(const mm_view &v)
{
    return v.zero == QT_ZERO_INT ? LQ_F8_E4M3 : v.zero_dtype;
}

__device__ __forceinline__ void bring_sides(uint2 *scale, uint2 *zero, const mm_view &v, int tile,
                                            int group)
{
    const unsigned lane = threadIdx.x % CU_WARP, r = lane / 4 * 2, c = lane % 4;
    const unsigned g = (unsigned)(tile * v.ng + group);
    if (v.scale_dtype == LQ_BOOL) return;
    *scale = side_words(G<const uint8_t>(v.scales), v.scale_dtype,
                        (v.subs == 2 ? 2 * g + c / 2 : g) * TILE_N + r);
    if (v.zero == QT_ZERO_NONE) return;
    *zero = side_words(G<const uint8_t>(v.zeros), zero_of(v), g * TILE_N + r);
}

/* Of row 2g + h, without what all of the row is scaled by. */
__device__ __forceinline__ mm_scale_of side_of(const mm_view &v, int h, uint2 scale, uint2 zero)
{
    if (v.scale_dtype == LQ_BOOL) return { 1.0f, 0.0f, 0 };
    return mm_scale_made(v, mm_side_of(side_bits(scale, v.scale_dtype, h), v.scale_dtype),
                         side_bits(zero, zero_of(v), h));
}

template <mm_code CODE, int T>
__device__ __forceinline__ void bring(unit<CODE, T> *u, const mm_view &v, const thin_out &o,
                                      int tile, int step, int to)
{
    enum { STEP = 64 * mm_bits(CODE) };
    const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
    if (step >= to) return;
    u->group = o.groups ? (int)((uint64_t)(unsigned)step * o.groups >> 32) : step;
#pragma unroll
    for (int t = 0; t < T; t++) {
        const int at = tile + t * o.apart;
        const G<const uint8_t> codes =
            G<const uint8_t>(v.codes) +
            ((int64_t)at * v.tile_bytes + (int64_t)step * STEP + 64 * mm_word(CODE, c, 0) + 8 * g);
#pragma unroll
        for (int i = 0; i < unit_of(CODE); i++) {
            if (step + i >= to) break;
            if (CODE == C_ROWS) {
#pragma unroll
                for (int h = 0; h < 2; h++) { /* behind the last row it again */
                    const int64_t n = (int64_t)at * TILE_N + 2 * g + h;
                    const uint4 w = cu_ldg<uint4>(
                        G<const uint8_t>(v.codes) +
                        ((n < v.N ? n : v.N - 1) * v.Kp + (int64_t)(step + i) * TILE_K + 8 * c) *
                            2);
                    const unsigned four[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
                    for (int k = 0; k < mm_words(CODE); k++)
                        u->w[i][t][h][k] = four[k];
                }
            } else {
#pragma unroll
                for (int k = 0; k < mm_words(CODE); k++) {
                    const uint2 w = cu_ldg<uint2>(
                        codes + (i * STEP + 64 * (mm_word(CODE, c, k) - mm_word(CODE, c, 0))));
                    u->w[i][t][0][k] = w.x;
                    u->w[i][t][1][k] = w.y;
                }
            }
        }
        bring_sides(&u->scale[t], &u->zero[t], v, at, u->group);
    }
}

/* The numbers of 4-bit floats, as floats, and as two bf16 that add up to them: high | low << 16. */
struct maps {
    S<float> number;
    S<unsigned> two;
};

/* a, and low what a leaves of them, of two rows of C_MAP. */
__device__ __forceinline__ void from_map(unsigned a[2][4], unsigned low[2][4],
                                         const unsigned w[2][mm_words(C_MAP)], const maps &map)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int h = i % 2, half = i / 4, byte = i / 2 % 2 * 16 + 4 * half;
        const unsigned first = map.two[(int)(w[h][0] >> byte & 15u)],
                       second = map.two[(int)(w[h][0] >> (byte + 8) & 15u)];
        a[half][i % 4] = __byte_perm(first, second, 0x5410u);
        low[half][i % 4] = __byte_perm(first, second, 0x7632u);
    }
}

/* part += one step of a tile by x's, whose scales are s. */
template <mm_code CODE, bool QUICK>
__device__ __forceinline__ void
one_step(float part[4], mm_scale_of s[2], const unsigned w[2][mm_words(CODE)],
         const unsigned b[2][2], const mm_view &v, int tile, int step, const maps &map, int terms)
{
    const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
    unsigned a[2][4], low[2][4];
    float q[2][8];
    if constexpr (QUICK && CODE == C_MAP)
        from_map(a, low, w, map);
    else if constexpr (QUICK)
        mm_quick<CODE>(a, w, c, s);
    else {
        for (int h = 0; h < 2; h++) {
            mm_numbers<CODE>(q[h], w[h], c, map.number);
            mm_center(q[h], &s[h], v.zero);
            if (CODE != C_MAP) continue;
            mm_sub_scale(q[h], &s[h], v, tile, step, c, 2 * g + h);
            s[h].scale = 1.0f;
        }
        mm_fragments(a, q);
    }
    cu_mma_bf16(part, a[0], b[0]);
    cu_mma_bf16(part, a[1], b[1]);
    if (terms == 1 || (QUICK && CODE != C_MAP)) return;
    if constexpr (!QUICK) {
        mm_rest(q);
        mm_fragments(low, q);
    }
    cu_mma_bf16(part, low[0], b[0]);
    cu_mma_bf16(part, low[1], b[1]);
}

/* The scales of a group, of each tile. */
template <int T>
__device__ __forceinline__ void sides_of(mm_scale_of s[T][2], const uint2 *scale, const uint2 *zero,
                                         const mm_view &v)
{
#pragma unroll
    for (int t = 0; t < T; t++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            s[t][h] = side_of(v, h, scale[t], zero[t]);
}

/* Inputs 8c .. 8c + 7 of a step as B of its two products. */
__device__ __forceinline__ void inputs_of(unsigned b[2][2], G<const float> x, int step)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float4 four = cu_ld<float4>(x + ((int64_t)step * TILE_K + 4 * h));
        b[h][0] = cu_pair<false>(four.x, four.y);
        b[h][1] = cu_pair<false>(four.z, four.w);
    }
}

/* acc += a unit by x from step `first` on. WHOLE: it has all its steps, of one group, which is the
 * rule; else it goes step by step. */
template <mm_code CODE, bool QUICK, int T, bool WHOLE>
__device__ __forceinline__ void add_unit(float acc[T][4], const unit<CODE, T> &u, const mm_view &v,
                                         const thin_out &o, int tile, G<const float> x,
                                         const maps &map, int first, int to)
{
    enum { UNIT = unit_of(CODE) };
    float part[T][4] = {};
    mm_scale_of s[T][2];
    int end = (u.group + 1) * v.group_steps;
    sides_of<T>(s, u.scale, u.zero, v);
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        const int step = first + i;
        unsigned b[2][2];
        if (!WHOLE && step >= to) break;
        if (!WHOLE && step == end) {
            uint2 scale[T] = {}, zero[T] = {};
#pragma unroll
            for (int t = 0; t < T; t++)
                bring_sides(&scale[t], &zero[t], v, tile + t * o.apart, end / v.group_steps);
            sides_of<T>(s, scale, zero, v);
            end += v.group_steps;
        }
        inputs_of(b, x, step);
#pragma unroll
        for (int t = 0; t < T; t++) {
            mm_scale_of now[2] = { s[t][0], s[t][1] };
            one_step<CODE, QUICK>(part[t], now, u.w[i][t], b, v, tile + t * o.apart, step, map,
                                  o.terms);
            if (i + 1 < UNIT && (WHOLE || (step + 1 < to && step + 1 < end))) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[t][k] = fmaf(now[k / 2].scale, part[t][k], acc[t][k]);
                part[t][k] = 0;
            }
        }
    }
}

/* The warp's units of steps from .. to - 1: acc[t] of T tiles from `tile` on. Columns beyond the
 * last of `rows` repeat it, and nobody looks at them. */
template <mm_code CODE, bool QUICK, int T>
__device__ void sweep(float acc[T][4], unit<CODE, T> *next, const mm_view &v, const thin_out &o,
                      int tile, G<const float> x, int64_t ldx, int rows, const maps &map, int from,
                      int to)
{
    enum { UNIT = unit_of(CODE), STRIDE = UNIT * WARPS };
    const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
    x = x + ((g < rows ? g : rows - 1) * ldx + 8 * c);
#pragma unroll 1
    for (int first = from; first < to; first += STRIDE) {
        const unit<CODE, T> u = *next;
        bring<CODE, T>(next, v, o, tile, first + STRIDE, to);
        if (first + UNIT <= to && first + UNIT <= (u.group + 1) * v.group_steps)
            add_unit<CODE, QUICK, T, true>(acc, u, v, o, tile, x, map, first, to);
        else
            add_unit<CODE, QUICK, T, false>(acc, u, v, o, tile, x, map, first, to);
    }
}

/* Where a finished sum goes; n: of y. up: of a pair. */
__device__ __forceinline__ void put(float y, float up, const mm_sink &o, const dev_mm_act &act,
                                    int64_t m, int64_t n)
{
    if (act.kind == DEV_ACT_NONE) {
        mm_put(y, o, m, n);
        return;
    }
    if (o.bias) {
        y += G<const float>(o.bias)[n];
        if (act.kind == DEV_ACT_PAIR) up += G<const float>(o.bias)[o.N / 2 + n];
    }
    y = act_mul(y, up, act.kind == DEV_ACT_ALONE, act.f, act.limit);
    G<float>(o.y)[m * o.ldy + n] = act.bf16 ? cu_bf16_f32(cu_f32_bf16(y)) : y;
}

template <mm_code CODE, bool QUICK, int T>
__global__ void __launch_bounds__(THREADS, blocks_of(CODE, QUICK, T))
    thin_kernel(mm_view v, mm_view outliers, mm_rows group, G<const float> x, int64_t ldx,
                thin_out o)
{
    CU_SHARED(float, sums, WARPS *T *TILE_N *ROWS);
    CU_SHARED(float, numbers, 16);
    CU_SHARED(unsigned, two, 16);
    const maps map = { numbers, two };
    const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
              c = lane % 4;
    const int tile = (int)blockIdx.x * (o.apart == 1 ? T : 1);
    const int z0 = (int)blockIdx.z, z1 = o.parts ? z0 + 1 : o.splits;
    const int lead = unit_of(CODE) * warp; /* of a part, what the warp begins with */
    unit<CODE, T> next;
    cu_next();
    if (!group.parts) bring<CODE, T>(&next, v, o, tile, z0 * o.per_split + lead, v.steps);
    cu_after();
    const mm_panel panel = mm_panel_of(group, blockIdx.y, ROWS);
    if (panel.rows <= 0 || !mm_member(&v, &outliers, &o.to.bias, group, panel.part))
        return; /* as a block */
    if (CODE == C_MAP) {
        mm_load_map(numbers, v);
        if (threadIdx.x < 16) {
            const float all = numbers[threadIdx.x], high = cu_bf16_f32(cu_f32_bf16(all));
            two[threadIdx.x] = cu_pair<false>(high, all - high);
        }
        __syncthreads();
    }
    const int t = threadIdx.x / (ROWS * TILE_N), m = threadIdx.x / TILE_N % ROWS,
              r = threadIdx.x % TILE_N;
    const int pair = o.act.kind == DEV_ACT_PAIR && !o.parts;
    const int at = tile + t * o.apart;
    const int64_t n = (int64_t)at * TILE_N + r, row = panel.m0 + m;
    const bool mine = t + pair < T && m < panel.rows && n < o.to.N;
    float y[2] = { 0, 0 };
    for (int z = z0; z < z1; z++) {
        const int from = z * o.per_split, end = from + o.per_split,
                  to = end < v.steps ? end : v.steps;
        if (group.parts || z > z0) bring<CODE, T>(&next, v, o, tile, from + lead, to);
        float acc[T][4] = {};
        sweep<CODE, QUICK, T>(acc, &next, v, o, tile, x + panel.m0 * ldx, ldx, (int)panel.rows, map,
                              from + lead, to);
        if (z > z0) __syncthreads(); /* the sums before were read */
#pragma unroll
        for (int i = 0; i < T; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[((warp * T + i) * ROWS + 2 * c + k % 2) * TILE_N + 2 * g + k / 2] = acc[i][k];
        __syncthreads();
        for (int i = 0; mine && i < 1 + pair; i++) {
            float part = 0;
            for (int w = 0; w < WARPS; w++)
                part += sums[w * T * ROWS * TILE_N + threadIdx.x + i * ROWS * TILE_N];
            part = mm_row_scaled(part, v, at + i * o.apart, r);
            if (outliers.steps && to == v.steps)
                part += mm_outlier_sum(outliers, at + i * o.apart, r,
                                       G<const float>(o.to.x_out) + row * o.to.ldo);
            y[i] = z > z0 ? y[i] + part : part;
        }
    }
    if (!mine) return;
    if (o.parts)
        G<float>(o.parts)[(z0 * group.M + row) * o.to.N + n] = y[0];
    else
        put(y[0], y[1], o.to, o.act, row, n);
}

/* A thread an output. */
__global__ void __launch_bounds__(THREADS)
    thin_join_kernel(mm_sink o, dev_mm_act act, G<const float> parts, int n_parts, int64_t M)
{
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x, m = blockIdx.y;
    const bool pair = act.kind == DEV_ACT_PAIR;
    const int64_t N = pair ? o.N / 2 : o.N;
    cu_follow();
    if (n >= N) return;
    float y[2] = { 0, 0 };
    for (int i = 0; i < 1 + pair; i++)
        for (int z = 0; z < n_parts; z++)
            y[i] += parts[(z * M + m) * o.N + i * N + n];
    put(y[0], y[1], o, act, m, n);
}

template <mm_code CODE, bool QUICK, int T>
void run_tiles(dev *d, const mm_input *x, const mm_view &v, const mm_view &out, const thin_out &o,
               int parts)
{
    CU_FOLLOW(d, "thin", (thin_kernel<CODE, QUICK, T>),
              dim3((unsigned)lq_ceil_div(o.tiles, o.apart == 1 ? T : 1), mm_panels(x->rows, ROWS),
                   (unsigned)parts),
              THREADS, 0, v, out, x->rows, x->f, x->ldf, o);
}

template <mm_code CODE, int T>
void run(dev *d, const mm_input *x, const mm_view &v, const mm_view &out, const thin_out &o,
         int parts)
{
    constexpr bool always = CODE == C_ROWS || CODE == C_BF16, map = CODE == C_MAP;
    if (mm_is_quick(CODE, v.zero) || (map && v.subs != 2))
        run_tiles<CODE, mm_can_quick(CODE) || map, T>(d, x, v, out, o, parts);
    else
        run_tiles<CODE, always, T>(d, x, v, out, o, parts);
}

template <mm_code CODE>
void launch(dev *d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
{
    enum { BUSY = 8 }; /* blocks a multiprocessor from which on one has two tiles */
    const mm_view out = CU_NAME(mm_outliers_of)(a->w);
    mm_cut cut = mm_cut_of(a->w, d->n_sm);
    if (x->rows.parts) cut = { 1, v.steps };
    const dev_mm_act act = a->act;
    const bool apart = cut.splits > 1 && x->rows.M <= ROWS,
               pair = act.kind == DEV_ACT_PAIR && !apart;
    thin_out o = { mm_sink_of(a, x, v),
                   apart ? x->parts : NULL,
                   (int)(pair ? a->w->s.tiles / 2 : a->w->s.tiles),
                   (int)(pair ? a->w->s.tiles / 2 : 1),
                   cut.splits,
                   cut.per_split,
                   mm_terms(a->w, v),
                   act,
                   v.group_steps > 1 ? (unsigned)(UINT32_MAX / (unsigned)v.group_steps + 1) : 0 };
    if (pair || (mm_words(CODE) == 1 && o.tiles % 2 == 0 && o.tiles >= 2 * BUSY * d->n_sm))
        run<CODE, 2>(d, x, v, out, o, apart ? cut.splits : 1);
    else
        run<CODE, 1>(d, x, v, out, o, apart ? cut.splits : 1);
    if (apart) CU_NAME(mm_join)(d, &o.to, &act, x->parts, cut.splits, x->rows.M);
}

} // namespace

void CU_NAME(mm_join)(dev *d, const mm_sink *o, const dev_mm_act *act, const float *parts, int n,
                      int64_t M)
{
    CU_FOLLOW(d, "mm_join", thin_join_kernel,
              dim3((unsigned)lq_ceil_div(o->N, THREADS), (unsigned)M), THREADS, 0, *o, *act, parts,
              n, M);
}

void CU_NAME(mm_thin)(dev *d, const dev_mm_args *a, const mm_input *x)
{
    const mm_view v = CU_NAME(mm_view_of)(a->w);
    switch (CU_NAME(mm_code_of)(&a->w->t)) {
#define CASE(code)                \
    case code:                    \
        launch<code>(d, a, x, v); \
        return;
        MM_CODES(CASE)
        CASE(C_ROWS)
#undef CASE
    case C_F32:
        return; /* mm.cu sends it elsewhere */
    }
}
