/* kernels/cuda/mm_sm90.cu - more than 32 rows times a weight in any scheme but f32, on sm_90a:
 * wgmma with the weight as A, converted in registers, and the activations as B, in shared memory.
 *
 * One block computes OUT = 128 MT outputs for BN rows of x: two warpgroups of 64 MT outputs each
 * (a warp: MT tiles of 16) and one warp that brings what they need. Each has all of K, or of a few
 * tiles a fixed part of it (SPLITS below):
 *
 *        x (bf16), 64 inputs a column     weight, packed, 8 MT tiles
 *      0     128    256 -> K            0    128   256
 *   0  [  |  ][  |  ][  |              t  [stage][stage]   warpgroup 0: tiles 0 .. 4 MT - 1
 *   .  [stage][stage]                  .  [ 0   ][ 1   ]   warpgroup 1: the others
 *  BN  [ 0   ][ 1   ]                  .  [     ][     ]   warpgroup 2: one warp asks for copies
 *
 * A stage is four steps of 32 inputs, brought by the copy engine: of each tile its steps, which lie
 * together in the file's own layout, and of x two columns. arrange_sm90 in mm.cu has made x's rows
 * such that a column of BN rows is one piece of memory, turned as wgmma wants it, with the inputs
 * of each step in the order in which a lane's codes come (mm.cuh): place 16 h + 2 c + 8 u + e of a
 * step is its input 8 c + 4 h + 2 u + e, for halves h, lanes c, u and e = 0, 1.
 *
 * A lane's words of a step are read in an order that differs by lane (word_at), so that the four
 * chunks lie in different banks though nothing is padded. As in mm_mma.cu codes become bf16 less
 * their zero point, exactly, a group's products are summed by the matrix unit and then scaled onto
 * the output in f32, groups in order. The products of one step run while the next one's codes are
 * converted.
 *
 * full[i] counts the bytes of stage i; empty[i] the two warpgroups, which have read it.
 *
 * Shared memory, a stage: x 256 BN bytes, weights 8 MT tiles of 256 bits bytes; DEPTH stages, and
 * 128 for the barriers, 64 for the map:
 *   BN 128, MT 1:  4 bit 32768 + 8192, 4 deep 163840; 8 bit 32768 + 16384, 4 deep 196608; 16 bit
 *                  32768 + 32768, 3 deep 196608
 *   BN 64, MT 2:   4 bit 16384 + 16384, 6 deep 196608; 8 bit 16384 + 32768, 4 deep 196608; 16 bit
 *                  16384 + 65536, 2 deep 163840 */
#include "kernels/cuda/mm.cuh"

#include "kernels/cuda/cu_sm90.cuh"

inline namespace CU_NAME(mm_sm90_cu)
{

enum {
    USERS = 2, /* warpgroups that multiply */
    THREADS = (USERS + 1) * CU_GROUP,
    STEPS = 4,
    COLUMN = 64, /* inputs */
    JOIN = 256
};

template <mm_code CODE, int BN> struct stage_of {
    static constexpr int MT = BN == 64 ? 2 : 1;
    static constexpr int tiles = USERS * 4 * MT;
    static constexpr int step = 64 * mm_bits(CODE), row_bytes = STEPS * step;
    static constexpr int x_column = BN * COLUMN * 2, x_bytes = STEPS * TILE_K / COLUMN * x_column;
    static constexpr int bytes = x_bytes + tiles * row_bytes;
    static constexpr int depth = 196608 / bytes > 6 ? 6 : 196608 / bytes;
    static_assert(bytes % 1024 == 0, "where rows are turned from");
    static constexpr int shared = depth * bytes + 128 + 64;
};

struct sm90_args {
    mm_sink out;
    float *parts; /* [splits, M, ldp]; NULL: there is one split */
    int64_t M, ldp, tiles;
    int64_t x_rows;       /* of a column of x */
    int terms, per_split; /* stages */
};

/* Lane (g, c)'s words of a step for rows g and g + 8. */
template <mm_code CODE>
__device__ __forceinline__ void words_of(unsigned w[2][mm_words(CODE)], S<const uint8_t> ws, int g,
                                         int c)
{
    enum { N = mm_words(CODE), BOTH = CODE != C_U2 && CODE != C_U3 };
    /* the n-th that a lane reads is word n ^ turn, counted 2 i + h: chunks whose first words are
     * 128 bytes apart (or, of four bits, two chunks on) begin with different ones */
    const int turn = !BOTH ? 0 : N == 1 ? c / 2 : c % 4;
    unsigned r[2 * N];
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        const int at = n ^ turn;
        r[n] = cu_ld<unsigned>(ws + (64 * mm_word(CODE, c, at / 2) + 4 * (g + 8 * (at % 2))));
    }
    if (BOTH) {
#pragma unroll
        for (int n = 0; n < 2 * N; n += 2) { /* back to their places: by the turn's low bit */
            const unsigned even = turn & 1 ? r[n + 1] : r[n];
            r[n + 1] = turn & 1 ? r[n] : r[n + 1];
            r[n] = even;
        }
        if (N > 1) {
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
                if (n & 2) continue;
                const unsigned low = turn & 2 ? r[n + 2] : r[n];
                r[n + 2] = turn & 2 ? r[n] : r[n + 2];
                r[n] = low;
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 2 * N; n++)
        w[n % 2][n / 2] = r[n];
}

/* A warp's tile as it goes along K: rows g and g + 8. Scales are fetched a group ahead. */
struct tile_state {
    int64_t tile;
    bool there;
    mm_scale_of s[2], group[2], next[2]; /* of the products now; as they come */
};

__device__ __forceinline__ void fetch(tile_state *t, const mm_view &v, int step)
{
    const int lane = threadIdx.x % CU_WARP;
    if (t->there && step < v.steps)
        for (int h = 0; h < 2; h++)
            t->next[h] = mm_scales(v, t->tile, step, lane % 4, lane / 4 + 8 * h);
}

/* A of one step's products, and what they are to be scaled by. q: the numbers, where bf16 does not
 * hold them (mm_terms). */
template <mm_code CODE>
__device__ __forceinline__ void fragments_of(unsigned a[2][4], float q[2][8], tile_state *t,
                                             const mm_view &v, int step, bool first,
                                             S<const uint8_t> ws, S<const float> map)
{
    const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
    unsigned w[2][mm_words(CODE)] = {};
    if (t->there) words_of<CODE>(w, ws, g, c);
    if (first || step % v.group_steps == 0) {
        t->group[0] = t->next[0];
        t->group[1] = t->next[1];
        fetch(t, v, step - step % v.group_steps + v.group_steps);
    }
    t->s[0] = t->group[0];
    t->s[1] = t->group[1];
    if (CODE != C_U3 && mm_is_quick(CODE, v.zero)) { /* u3: registers do not last */
        mm_quick<CODE>(a, w, c, t->s);
        return;
    }
    for (int h = 0; h < 2; h++) {
        mm_numbers<CODE>(q[h], w[h], c, map);
        mm_center(q[h], &t->s[h], v.zero);
        if (CODE == C_MAP && v.subs == 2 && t->there)
            mm_sub_scale(q[h], &t->s[h], v, t->tile, step, c, g + 8 * h);
    }
    mm_fragments(a, q);
}

template <mm_code CODE, int BN>
__device__ void multiply(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const mm_view &v,
                         const mm_view &outliers, const mm_panel &panel, const sm90_args &o,
                         S<const float> map, int first, int last)
{
    typedef stage_of<CODE, BN> st;
    enum { MT = st::MT };
    const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
              c = lane % 4;
    float acc[MT][BN / 2] = {}, part[MT][BN / 2];
    tile_state t[MT];
    int in_block[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        in_block[m] = (warp / 4 * MT + m) * 4 + warp % 4;
        t[m].tile = (int64_t)blockIdx.x * st::tiles + in_block[m];
        t[m].there = t[m].tile < o.tiles;
        t[m].next[0] = t[m].next[1] = { 1.0f, 0.0f, 0 };
        fetch(&t[m], v, first * STEPS);
    }
    bool begun = false; /* part holds products that are not scaled yet */
    for (int i = first; i < last; i++) {
        const int slot = (i - first) % st::depth;
        const S<uint8_t> xs = at + slot * st::bytes, ws = xs + st::x_bytes;
        cu_bar_wait(full + slot, (unsigned)((i - first) / st::depth & 1));
#pragma unroll 2 /* so that the fragments of two steps have registers of their own */
        for (int j = 0; j < STEPS; j++) {
            const int step = i * STEPS + j;
            if (step >= v.steps) break;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                float q[2][8];
                unsigned a[2][4];
                fragments_of<CODE>(a, q, &t[m], v, step, i == first && j == 0,
                                   ws + (in_block[m] * st::row_bytes + j * st::step), map);
                const uint64_t x = cu_desc_k(xs + (j / 2 * st::x_column + j % 2 * (TILE_K * 2)));
                cu_keep(part[m]);
                cu_wgmma_begin();
                cu_wgmma<false, BN>(part[m], a[0], x, begun);
                cu_wgmma<false, BN>(part[m], a[1], x + (32 >> 4), true);
                if (o.terms == 2) {
                    unsigned low[2][4];
                    mm_rest(q);
                    mm_fragments(low, q);
                    cu_wgmma_begin(); /* again: registers were written */
                    cu_wgmma<false, BN>(part[m], low[0], x, true);
                    cu_wgmma<false, BN>(part[m], low[1], x + (32 >> 4), true);
                }
                cu_wgmma_commit();
                cu_keep(part[m]);
                cu_wgmma_wait<1>(); /* those before may be used, and their registers */
            }
            begun = true;
            if ((step + 1) % v.group_steps != 0 && (step + 1 < v.steps) &&
                (j + 1 < STEPS || i + 1 < last))
                continue;
            cu_wgmma_wait<0>();
#pragma unroll
            for (int m = 0; m < MT; m++) {
                cu_keep(part[m]);
#pragma unroll
                for (int k = 0; k < BN / 2; k++)
                    acc[m][k] = fmaf(t[m].s[k / 2 % 2].scale, part[m][k], acc[m][k]);
            }
            begun = false;
        }
        cu_wgmma_wait<0>(); /* of a group that goes on: the stage is read once they are done */
        __syncwarp();
        if (threadIdx.x % CU_WARP == 0) cu_bar_arrive(empty + slot);
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        if (!t[m].there) continue;
#pragma unroll
        for (int k = 0; k < BN / 2; k++) {
            const int row = k / 4 * 8 + 2 * c + k % 2, of = g + 8 * (k / 2 % 2);
            const int64_t r = panel.m0 + row, out = t[m].tile * TILE_N + of;
            if (row >= panel.rows || out >= o.out.N) continue;
            if (o.parts)
                G<float>(o.parts)[((int64_t)blockIdx.z * o.M + r) * o.ldp + out] = acc[m][k];
            else
                mm_finish(acc[m][k], o.out, outliers, t[m].tile, of, r, out);
        }
    }
}

/* By one warp: what the block's warpgroups need, stage by stage. */
template <mm_code CODE, int BN>
__device__ void bring(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const mm_view &v,
                      G<const uint16_t> x, int64_t row0, const sm90_args &o, int first, int last)
{
    typedef stage_of<CODE, BN> st;
    const int lane = threadIdx.x % CU_WARP;
    const int64_t tile0 = (int64_t)blockIdx.x * st::tiles;
    const int tiles = o.tiles - tile0 < st::tiles ? (int)(o.tiles - tile0) : st::tiles;
    for (int i = first; i < last; i++) {
        const int slot = (i - first) % st::depth, round = (i - first) / st::depth;
        const S<uint8_t> xs = at + slot * st::bytes, ws = xs + st::x_bytes;
        const int left = v.steps - i * STEPS, steps = left < STEPS ? left : STEPS;
        const int columns = (steps * TILE_K + COLUMN - 1) / COLUMN;
        if (round) cu_bar_wait(empty + slot, (unsigned)((round - 1) & 1));
        if (lane == 0)
            cu_bar_expect(full + slot,
                          (unsigned)(columns * st::x_column + tiles * steps * st::step));
        __syncwarp();
        if (lane < columns)
            cu_bulk(xs + lane * st::x_column,
                    x + (((int64_t)i * (STEPS * TILE_K / COLUMN) + lane) * o.x_rows + row0) *
                            COLUMN,
                    st::x_column, full + slot);
        if (lane < tiles)
            cu_bulk(ws + lane * st::row_bytes,
                    G<const uint8_t>(v.codes) +
                        ((tile0 + lane) * v.tile_bytes + (int64_t)i * st::row_bytes),
                    (unsigned)(steps * st::step), full + slot);
    }
}

template <mm_code CODE, int BN>
__global__ void __launch_bounds__(THREADS, 1)
    sm90_kernel(mm_view v, mm_view outliers, mm_rows group, G<const uint16_t> x, sm90_args o)
{
    typedef stage_of<CODE, BN> st;
    CU_DYNAMIC_1K(uint8_t, at);
    const S<uint64_t> full = cu_as<uint64_t>(at + st::depth * st::bytes), empty = full + 8;
    const S<float> map = cu_as<float>(at + (st::depth * st::bytes + 128));
    const mm_panel panel = mm_panel_of(group, blockIdx.y, BN);
    const int stages = (v.steps + STEPS - 1) / STEPS, first = (int)blockIdx.z * o.per_split,
              last = first + o.per_split < stages ? first + o.per_split : stages;
    if (panel.rows <= 0 || !mm_member(&v, &outliers, &o.out.bias, group, panel.part)) return;
    if (CODE == C_MAP) mm_load_map(map, v);
    if (threadIdx.x == 0) {
        for (int i = 0; i < st::depth; i++) {
            cu_bar_init(full + i, 1);
            cu_bar_init(empty + i, USERS * 4);
        }
        cu_bars_ready();
    }
    __syncthreads();
    if (threadIdx.x >= USERS * CU_GROUP) {
        cu_regs_less<40>();
        if (threadIdx.x < USERS * CU_GROUP + CU_WARP)
            bring<CODE, BN>(at, full, empty, v, x, mm_row8(group, panel.m0), o, first, last);
    } else {
        cu_regs_more<232>();
        multiply<CODE, BN>(at, full, empty, v, outliers, panel, o, map, first, last);
    }
}

/* The splits' sums in order; a thread an output. */
__global__ void __launch_bounds__(JOIN) sm90_join_kernel(sm90_args o, mm_view outliers, int splits)
{
    const int64_t out = (int64_t)blockIdx.x * JOIN + threadIdx.x, m = blockIdx.y;
    if (out >= o.out.N) return;
    float sum = 0;
    for (int i = 0; i < splits; i++)
        sum += G<float>(o.parts)[(i * o.M + m) * o.ldp + out];
    mm_finish(sum, o.out, outliers, out / TILE_N, (int)(out % TILE_N), m, out);
}

template <mm_code CODE, int BN>
void launch(dev *d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
{
    typedef stage_of<CODE, BN> st;
    const mm_view outliers = CU_NAME(mm_outliers_of)(a->w);
    const mm_sm90 how = mm_sm90_of(a->w, x->rows.M, x->rows.parts ? x->rows.n : 0);
    const sm90_args o = { mm_sink_of(a, x, v), how.splits > 1 ? x->parts : NULL,
                          x->rows.M,           a->w->s.tiles * TILE_N,
                          a->w->s.tiles,       how.rows,
                          mm_terms(a->w, v),   how.per_split };
    CU_TRY(d, cudaFuncSetAttribute((sm90_kernel<CODE, BN>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, st::shared));
    CU_LAUNCH(d, "sm90", (sm90_kernel<CODE, BN>),
              dim3((unsigned)lq_ceil_div(a->w->s.tiles, st::tiles), mm_panels(x->rows, BN),
                   (unsigned)how.splits),
              THREADS, st::shared, v, outliers, x->rows, x->b, o);
    if (how.splits > 1)
        CU_LAUNCH(d, "sm90_join", sm90_join_kernel,
                  dim3((unsigned)lq_ceil_div(v.N, JOIN), (unsigned)x->rows.M), JOIN, 0, o, outliers,
                  how.splits);
}

} // namespace

void CU_NAME(mm_sm90)(dev *d, const dev_mm_args *a, const mm_input *x)
{
    const mm_view v = CU_NAME(mm_view_of)(a->w);
    const bool narrow = mm_sm90_of(a->w, x->rows.M, x->rows.parts ? x->rows.n : 0).narrow;
    switch (CU_NAME(mm_code_of)(&a->w->t)) {
#define CASE(code)                         \
    case code:                             \
        if (narrow)                        \
            launch<code, 64>(d, a, x, v);  \
        else                               \
            launch<code, 128>(d, a, x, v); \
        return;
        MM_CODES(CASE)
#undef CASE
    case C_F32:
    case C_ROWS:
        return; /* mm.cu sends them elsewhere */
    }
}
