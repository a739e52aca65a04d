/* kernels/cuda/mm_mma.cu - some rows of bf16 times a weight in any scheme but f32: 9 to 32 on
 * sm_90a (more: mm_sm90.cu), more than 8 elsewhere, any with dev.batch_invariant. Through the matrix
 * units, mma.m16n8k16, with the weight as A and x as B, both by way of shared memory.
 *
 * One block computes W T tiles of 16 outputs for BM = 8 NT rows of x (of a group: rows of one of
 * its weights), all of K or a part. It has two teams of W warps; warp w of each has T tiles from
 * T w on, and the teams take stages of 4 steps of 32 inputs in turns:
 *
 *        x (bf16) by rows                        weight, packed
 *      0      128     256     384 -> K         0      128     256     384
 *   0  [ team 0 | team 1 ][ team 0 | ..    t+0 [ team 0 ][ team 1 ][ team 0 ]    warp 0
 *   .  [ turn 0          ][ turn 1         t+1 [        ][        ][        ]
 *   .  [                 ][                t+2 [        ][        ][        ]    warp 1
 *  BM  [                 ][                 .                                     .
 *
 * A turn is a stage of each team. Its x, codes, and the scales and zero points of its groups come
 * by cp.async, DEPTH turns deep: of u4, W = 8, two turns are 64 KB of codes under way.
 *
 * Of a step lane (g, c) = (lane / 4, lane % 4) has chunk c (mm.cuh) of rows 2g and 2g + 1, which
 * lie beside each other; they are rows g and g + 8 of the product, and its k are inputs 8c + 4h ..
 * + 3 for the two products h of a step, of x 16 neighbouring bytes. Codes become bf16 less their
 * zero points without a float between (mm_quick), those of nf4 by a table (mm_from_map); others go
 * as one or two bf16 (mm_terms).
 *
 * What bounds it: a multiprocessor of an H200 reads 37 weights of four bits a cycle, and 512 of
 * them, a step of a tile, want 4 NT / T cycles of shared memory for x (128 bytes a cycle) and 4 for
 * codes, 2 NT products and some 60 instructions of a warp. So T is 2 where a lane's codes of a step
 * are one word. Of x a block reads from L2 half the weight's bytes, for 32 rows of u4 at W = 8.
 *
 * Order of each output's sum: the matrix unit adds up a group's products of a stage, times the
 * group's scale onto the team's sum; then team 1's onto team 0's, times the row's scale; onto the
 * last part of K the outliers' sum; then the parts (shape_of), bias, the old y. It depends on where
 * K is cut, not on NT, W or T. Parts are added by the last of a tile's blocks to be done (last.cuh), or
 * by a second kernel where there are so many, of so many rows, that this takes less time.
 *
 * It may begin before the launch before has ended (CU_FOLLOW), and then waits with its first codes
 * under way.
 *
 * Shared memory, DEPTH times: x 512 BM bytes, its 16-byte pieces turned by 4 in odd rows, so that
 * the eight lanes of a phase read 128 different bytes; of each tile two stages of codes, 512 bits
 * bytes each, turned likewise (turned()), its groups' scales and zero points as they lie in memory.
 * In the end the sums of both teams. With u4 in groups of 128, f16 scales and integer zero points,
 * 2144 bytes a tile: NT 2, 3 x (8192 + 34304) = 127488; NT 4, 3 x (16384 + 34304) = 152064; NT 8,
 * W 4, 2 x (32768 + 17152) = 99840. Where there is less W is less. Besides two maps of 4-bit
 * floats, 128, and where the block reads, 48. */
#include "kernels/cuda/mm.cuh"

#include <assert.h>

inline namespace CU_NAME(mm_mma_cu)
{

    enum {
        TEAMS = 2,
        STEPS = 4, /* of a stage */
        TURN = TEAMS * STEPS,
        X_ROW = TURN * TILE_K * 2,
        JOIN = 256, /* threads of mma_join */
    };

    /* Tiles of a warp. */
    __host__ __device__ constexpr int tiles_of(mm_code code, bool quick, int NT)
    {
        return quick && (code == C_U2 || code == C_U4 ||
                         ((code == C_MAP || code == C_E2M1) && NT == 2))
                   ? 2
                   : 1;
    }
    /* Warps of a team at most: a multiprocessor has registers for 16 of 128 a thread or, where sums or
 * words take more, 8 of 255. */
    __host__ __device__ constexpr int warps_of(mm_code code, int NT)
    {
        return NT == 8 || mm_bits(code) == 16 ? 4 : 8;
    }
    /* Turns that a block holds. */
    __host__ __device__ constexpr int depth_of(int NT) { return NT == 8 ? 2 : 3; }
    /* Bytes of a tile's stage. */
    __host__ __device__ constexpr int stage_of(mm_code code) { return STEPS * 64 * mm_bits(code); }

    /* Scales or zero points: bytes of a tile's group, 0: none; a tile's of a turn are 16 << shift. */
    struct mma_side {
        int bytes, shift;
    };
    struct mma_args {
        mm_sink to;
        float *parts;  /* [splits][M][N]; NULL: a block has all of K */
        int32_t *done; /* counters of what blocks have the same outputs; NULL: mma_join */
        int ldb, tiles, per_split; /* steps */
        int terms;
        unsigned groups; /* 2^32 / group_steps, rounded up; 0: 1 step is a group */
        mma_side scale, zero;
        int warps, stage_bytes; /* of a team; of a turn in shared memory */
    };

    __device__ __forceinline__ int group_of(const mma_args &o, int step)
    {
        return o.groups ? (int)((uint64_t)(unsigned)step * o.groups >> 32) : step;
    }

    /* Where a thread is in its block, and the first of its warp's tiles. */
    struct place {
        int warp, lane, team, in_team, tile;
    };
    template <int T> __device__ __forceinline__ place place_of(int thread, const mma_args &o)
    {
        place p = { thread / CU_WARP, thread % CU_WARP, thread >= o.warps * CU_WARP, 0, 0 };
        p.in_team = p.warp - p.team * o.warps;
        p.tile = ((int)blockIdx.y * o.warps + p.in_team) * T;
        return p;
    }
    /* Where its warp's codes are in a turn, the block's scales, and its zero points. */
    template <mm_code CODE, int NT, int T> __device__ __forceinline__ int codes_at(const place &p)
    {
        return 8 * NT * X_ROW + p.warp * T * stage_of(CODE);
    }
    template <mm_code CODE, int NT, int T>
    __device__ __forceinline__ int scales_at(const mma_args &o)
    {
        return 8 * NT * X_ROW + T * TEAMS * o.warps * stage_of(CODE);
    }
    template <mm_code CODE, int NT, int T>
    __device__ __forceinline__ int zeros_at(const mma_args &o)
    {
        return scales_at<CODE, NT, T>(o) + (o.scale.bytes ? T * o.warps * 16 << o.scale.shift : 0);
    }

    /* ---- what comes ahead ---- */

    /* Where byte `off` of a stage of codes stands: the four rows of a chunk that are read together are
 * 32 bytes, and those of all chunks are to lie in different banks. */
    template <mm_code CODE> __device__ __forceinline__ int turned(int off)
    {
        return mm_bits(CODE) == 4    ? off ^ (off >> 7 & 1) << 5
               : mm_bits(CODE) == 8  ? off ^ (off >> 7 & 3) << 5
               : mm_bits(CODE) == 16 ? off ^ (off >> 8 & 3) << 5
                                     : off;
    }

    /* A stage of the warp's tiles, from `step` on: lanes have 16 bytes each. */
    template <mm_code CODE, int T>
    __device__ __forceinline__ void bring_codes(S<uint8_t> ws, const place &p,
                                                G<const uint8_t> codes, const mma_args &o,
                                                int64_t tile_bytes, int step, int to)
    {
        enum { STEP = 64 * mm_bits(CODE), ALL = stage_of(CODE), ONCE = CU_WARP * 16 };
        const G<const uint8_t> from = codes + (p.tile * tile_bytes + step * STEP + p.lane * 16);
        const int bytes = (to - step) * STEP - p.lane * 16, turn = turned<CODE>(p.lane * 16),
                  next = p.tile + 1 < o.tiles ? (int)tile_bytes
                                              : 0; /* behind the last tile it again */
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int off = 0; off < ALL; off += ONCE)
                if (off < bytes && (off + ONCE <= ALL || off + p.lane * 16 < ALL))
                    cu_copy16_ldg(ws + (t * ALL + off + (turn ^ turned<CODE>(off) ^ off)),
                                  from + (t * next + off), true);
    }

    /* A turn of x, whose first row is `x`. */
    template <int NT>
    __device__ __forceinline__ void bring_x(S<uint8_t> xs, const place &p, G<const uint16_t> x,
                                            const mma_args &o, int rows, int step, int to)
    {
        const bool in = step + p.lane / 4 < to;
        const int column = step * TILE_K + p.lane * 8;
#pragma unroll 1
        for (int row = p.warp; row < 8 * NT; row += TEAMS * o.warps)
            cu_copy16(xs + (row * X_ROW + ((p.lane ^ (row & 1) << 2) << 4)),
                      x + (row * o.ldb + column), in && row < rows);
    }

    /* A turn's scales or zero points of the block's tiles, by one team, from `plane`. */
    template <int T>
    __device__ __forceinline__ void bring_side(S<uint8_t> to, const place &p,
                                               G<const uint8_t> plane, mma_side side,
                                               const mma_args &o, int ng, int group)
    {
        const int all = ng * side.bytes, tiles = o.warps * T, from = group * side.bytes;
        if (side.bytes == 0) return;
#pragma unroll 1
        for (int i = p.in_team * CU_WARP + p.lane; i < tiles << side.shift;
             i += o.warps * CU_WARP) {
            const int tile = (int)blockIdx.y * tiles + (i >> side.shift),
                      at = from + (i & ((1 << side.shift) - 1)) * 16;
            cu_copy16_ldg(to + i * 16, plane + ((int64_t)tile * all + at),
                          tile < o.tiles && at < all);
        }
    }

    /* ---- scales ---- */

    /* Numbers of `d` of rows 2g and 2g + 1, of which p is the first's. Those of a byte are scales of
 * E2M1. */
    template <mm_code CODE>
    __device__ __forceinline__ void pair_of(float x[2], S<const uint8_t> p, lq_dtype d)
    {
        if (d == LQ_F32) {
            const float2 both = cu_ld<float2>(p);
            x[0] = both.x;
            x[1] = both.y;
        } else if (CODE == C_E2M1) {
            const unsigned both = cu_ld<uint16_t>(p);
            x[0] = mm_side_of(both & 0xffu, d == LQ_F8_E4M3 ? LQ_F8_E4M3 : LQ_F8_E8M0);
            x[1] = mm_side_of(both >> 8, d == LQ_F8_E4M3 ? LQ_F8_E4M3 : LQ_F8_E8M0);
        } else {
            const unsigned both = cu_ld<unsigned>(p);
            x[0] = d == LQ_BF16 ? cu_bf16_f32(both & 0xffffu) : cu_f16_f32(both & 0xffffu);
            x[1] = d == LQ_BF16 ? cu_bf16_f32(both >> 16) : cu_f16_f32(both >> 16);
        }
    }

    /* Of the group in `slot`, without the row's second scale. scales, zeros: of the warp's first tile.
 */
    template <mm_code CODE, bool QUICK, int T>
    __device__ __forceinline__ void sides_of(mm_scale_of s[T][2], S<const uint8_t> scales,
                                             S<const uint8_t> zeros, const mm_view &v,
                                             const mma_args &o, int slot)
    {
        const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int t = 0; t < T; t++) {
            float scale[2] = { 1.0f, 1.0f }, zero[2] = { v.zero_const, v.zero_const };
            unsigned ints[2] = { (unsigned)v.zero_const, (unsigned)v.zero_const };
            const S<const uint8_t> of = scales + ((t * 16 << o.scale.shift) + slot * o.scale.bytes),
                                   less = zeros + ((t * 16 << o.zero.shift) + slot * o.zero.bytes);
            if (CODE == C_E2M1 && !QUICK) /* nvfp4: two of a step */
                pair_of<CODE>(scale, of + (c / 2 * TILE_N + 2 * g), LQ_F8_E4M3);
            else if (CODE != C_F16 && CODE != C_BF16)
                pair_of<CODE>(scale, of + o.scale.bytes / 8 * g, v.scale_dtype);
            if (mm_can_quick(CODE) && CODE != C_BF16 && v.zero != QT_ZERO_NONE) {
                if (QUICK || v.zero == QT_ZERO_INT) {
                    const unsigned both = cu_ld<uint16_t>(less + 2 * g);
                    ints[0] = both & 0xffu;
                    ints[1] = both >> 8;
                    zero[0] = (float)ints[0];
                    zero[1] = (float)ints[1];
                } else
                    pair_of<CODE>(zero, less + o.zero.bytes / 8 * g, v.zero_dtype);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (CODE == C_U8 && v.div127) scale[h] = scale[h] / 127.0f;
                s[t][h] = { scale[h], zero[h], 0x43004300u | ints[h] * 0x10001u };
            }
        }
    }

    /* ---- products ---- */

    /* A of one step of a tile, whose scales are s; low: what a leaves of the numbers, where terms
 * == 2. */
    template <mm_code CODE, bool QUICK>
    __device__ __forceinline__ void fragments_of(
        unsigned a[2][4], unsigned low[2][4], mm_scale_of s[2], const unsigned w[2][mm_words(CODE)],
        const mm_maps &map, qt_zero zero, int terms)
    {
        if constexpr (QUICK && CODE == C_MAP)
            mm_from_map(a, low, w, map);
        else if constexpr (QUICK || CODE == C_E2M1) {
            mm_quick<CODE>(a, w, threadIdx.x % 4, s);
            if (QUICK) return;
            mm_times_scales(a, s);
            s[0].scale = s[1].scale = 1.0f;
        } else {
            float q[2][8];
            for (int h = 0; h < 2; h++) {
                mm_numbers<CODE>(q[h], w[h], threadIdx.x % 4, map.number);
                mm_center(q[h], &s[h], zero);
            }
            mm_fragments(a, q);
            if (terms == 1) return;
            mm_rest(q);
            mm_fragments(low, q);
        }
    }

    /* part += one step of the warp's tiles. xs: the team's half of row g of x; i: of its stage. */
    template <mm_code CODE, bool QUICK, int NT, int T>
    __device__ __forceinline__ void add_step(float part[T][NT][4], mm_scale_of s[T][2],
                                             S<const uint8_t> xs, S<const uint8_t> ws, int i,
                                             const mm_maps &map, qt_zero zero, int terms)
    {
        const int g = threadIdx.x % CU_WARP / 4, c = threadIdx.x % 4;
        unsigned a[T][2][4], low[T][2][4];
#pragma unroll
        for (int t = 0; t < T; t++) {
            unsigned w[2][mm_words(CODE)];
#pragma unroll
            for (int k = 0; k < mm_words(CODE); k++) {
                const uint2 both =
                    cu_ld<uint2>(ws + (t * stage_of(CODE) + i * 64 * mm_bits(CODE) +
                                       turned<CODE>(64 * mm_word(CODE, c, k) + 8 * g)));
                w[0][k] = both.x;
                w[1][k] = both.y;
            }
            fragments_of<CODE, QUICK>(a[t], low[t], s[t], w, map, zero, terms);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const uint4 x = cu_ld<uint4>(
                xs + (8 * nt * X_ROW + i / 2 * 128 + ((i % 2) ^ (g & 1)) * 64 + 16 * c));
            const unsigned b[2][2] = { { x.x, x.y }, { x.z, x.w } };
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < T; t++)
                    cu_mma_bf16(part[t][nt], a[t][h], b[h]);
            if (terms == 1 || (QUICK && CODE != C_MAP)) continue;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < T; t++)
                    cu_mma_bf16(part[t][nt], low[t][h], b[h]);
        }
    }

    template <int NT, int T>
    __device__ __forceinline__ void scale_onto(float acc[T][NT][4], const float part[T][NT][4],
                                               const mm_scale_of s[T][2])
    {
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[t][nt][k] = fmaf(s[t][k / 2].scale, part[t][nt][k], acc[t][nt][k]);
    }

    /* acc += a stage of n steps, the first `left` of one group, which is in `slot`. */
    template <mm_code CODE, bool QUICK, int NT, int T>
    __device__ __forceinline__ void add_stage(
        float acc[T][NT][4], const mm_view &v, const mma_args &o, S<const uint8_t> xs,
        S<const uint8_t> ws, S<const uint8_t> scales, S<const uint8_t> zeros, int slot, int left,
        const mm_maps &map, int n)
    {
        mm_scale_of s[T][2], now[T][2];
        if (n == STEPS && left >= STEPS) { /* the rule */
            float part[T][NT][4] = {};
            sides_of<CODE, QUICK, T>(s, scales, zeros, v, o, slot);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
#pragma unroll
                for (int t = 0; t < T; t++) {
                    now[t][0] = s[t][0];
                    now[t][1] = s[t][1];
                }
                add_step<CODE, QUICK, NT, T>(part, now, xs, ws, i, map, v.zero, o.terms);
            }
            if (QUICK)
                sides_of<CODE, QUICK, T>(now, scales, zeros, v, o, slot); /* until here of no use */
            scale_onto<NT, T>(acc, part, now);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < n; slot++, left = v.group_steps) {
            float part[T][NT][4] = {};
            const int end = i + left < n ? i + left : n;
#pragma unroll 1
            for (; i < end; i++) {
                sides_of<CODE, QUICK, T>(s, scales, zeros, v, o, slot);
                add_step<CODE, QUICK, NT, T>(part, s, xs, ws, i, map, v.zero, o.terms);
            }
            if (QUICK) sides_of<CODE, QUICK, T>(s, scales, zeros, v, o, slot);
            scale_onto<NT, T>(acc, part, s);
        }
    }

    /* The block's sums into shared memory, [TEAMS][BM][outputs, and 4]: so 16 lanes' pairs lie in
 * different banks. */
    template <int NT, int T>
    __device__ __forceinline__ void spread(S<float> sums, const float acc[T][NT][4], const place &p,
                                           const mma_args &o)
    {
        const int g = p.lane / 4, c = p.lane % 4, wide = o.warps * T * TILE_N + 4;
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int row = (p.team * NT + nt) * 8 + 2 * c + k;
                    const float2 two = { acc[t][nt][k], acc[t][nt][k + 2] };
                    cu_st(sums + (row * wide + (p.in_team * T + t) * TILE_N + 2 * g), two);
                }
    }

    /* What is made of them. z: of which part of K; last: it is the last. */
    template <int NT, int T>
    __device__ __forceinline__ void finish(S<const float> sums, const place &p, const mma_args &o,
                                           const mm_view &v, const mm_view &outliers,
                                           const mm_panel &panel, int64_t M, int z, bool last)
    {
        const int outputs = o.warps * T * TILE_N, wide = outputs + 4;
        const int64_t n0 = (int64_t)blockIdx.y * outputs;
#pragma unroll 1
        for (int row = p.warp; row < (int)panel.rows; row += TEAMS * o.warps)
#pragma unroll 1
            for (int i = p.lane; i < outputs && n0 + i < o.to.N; i += CU_WARP) {
                const int64_t m = panel.m0 + row, n = n0 + i;
                const int tile = (int)(n / TILE_N), r = i % TILE_N;
                float y = sums[row * wide + i] + sums[(8 * NT + row) * wide + i];
                y = mm_row_scaled(y, v, tile, r);
                if (outliers.steps && last)
                    y += mm_outlier_sum(outliers, tile, r,
                                        G<const float>(o.to.x_out) + m * o.to.ldo);
                if (o.parts)
                    G<float>(o.parts)[(z * M + m) * o.to.N + n] = y;
                else
                    mm_put(y, o.to, m, n);
            }
    }

    /* The parts' sums of this block's outputs: a warp a row. */
    template <int T>
    __device__ __forceinline__ void join_parts(const place &p, const mma_args &o,
                                               const mm_panel &panel, int64_t M)
    {
        const int outputs = o.warps * T * TILE_N;
        const int64_t n0 = (int64_t)blockIdx.y * outputs;
        for (int row = p.warp; row < (int)panel.rows; row += TEAMS * o.warps) {
            const int64_t m = panel.m0 + row;
#pragma unroll 2
            for (int i = p.lane; i < outputs && n0 + i < o.to.N; i += CU_WARP)
                mm_put(mm_joined(o.parts, o.to, (int)gridDim.z, M, m, n0 + i), o.to, m, n0 + i);
        }
    }
    /* A thread an output. */
    __global__ void __launch_bounds__(JOIN)
        mma_join_kernel(mm_sink o, G<const float> parts, int n_parts, int64_t M)
    {
        const int64_t n = (int64_t)blockIdx.x * JOIN + threadIdx.x, m = blockIdx.y;
        cu_follow();
        if (n < o.N) mm_put(mm_joined(parts, o, n_parts, M, m, n), o, m, n);
    }

    /* What a block reads; in shared memory, as registers do not last. */
    struct mma_source {
        const uint8_t *codes, *scales, *zeros;
        int64_t m0;
        int rows;
    };

    /* Of a group's weight only behind cu_after is it known where its codes are. */
    template <mm_code CODE, bool QUICK, int NT, int T>
    __global__ void __launch_bounds__(TEAMS * warps_of(CODE, NT) * CU_WARP, 1)
        mma_kernel(mm_view v, mm_view outliers, mm_rows group, G<const uint16_t> x, mma_args o)
    {
        enum { BM = 8 * NT, DEPTH = depth_of(NT) };
        CU_BOUND(TEAMS * warps_of(CODE, NT) * CU_WARP);
        CU_DYNAMIC(uint8_t, shared);
        CU_SHARED(float, numbers, 16);
        CU_SHARED(unsigned, two, 16);
        CU_SHARED(mma_source, source, 1);
        const mm_maps map = { numbers, two };
        const int z = (int)blockIdx.z, from = z * o.per_split, end = from + o.per_split,
                  to = end < v.steps ? end : v.steps;
        const place p = place_of<T>((int)threadIdx.x, o);
        mm_panel panel;
        mm_view own = v, none = outliers;
        const float *bias = NULL;
        cu_next();
#pragma unroll
        for (int known = 0; known < 2; known++) {
            if (known) {
                cu_after();
                panel = mm_panel_of(group, blockIdx.x, BM);
                if (panel.rows <= 0 || !mm_member(&own, &none, &bias, group, panel.part))
                    return; /* as a block */
            }
            if ((bool)group.parts != (bool)known || p.tile >= o.tiles) continue;
            for (int i = 0; i < DEPTH - 1; i++)
                bring_codes<CODE, T>(shared + (i * o.stage_bytes + codes_at<CODE, NT, T>(p)), p,
                                     own.codes, o, v.tile_bytes, from + i * TURN + STEPS * p.team,
                                     to);
        }
        if (threadIdx.x == 0) {
            const mma_source all = { own.codes, own.scales, own.zeros, panel.m0, (int)panel.rows };
            source[0] = all;
        }
        __syncthreads();
        if (CODE == C_MAP) mm_load_maps(map, own);
        float acc[T][NT][4] = {};
        int slot =
            0; /* of the turn to be brought; the one after it in the ring is the turn at hand */
#pragma unroll 1
        for (int step = from - (DEPTH - 1) * TURN; step < to; step += TURN) {
            const place me = place_of<T>(cu_opaque((int)threadIdx.x), o);
            const int ahead = step + (DEPTH - 1) * TURN, first = step + STEPS * me.team;
            if (step >= from) {
                cu_copy_wait<DEPTH - 2>();
                __syncthreads(); /* everybody's copies of this turn; nobody reads the one before */
            }
            if (ahead < to) {
                const S<uint8_t> at = shared + slot * o.stage_bytes;
                const mma_source of = source[0];
                if (step >= from && me.tile < o.tiles)
                    bring_codes<CODE, T>(at + codes_at<CODE, NT, T>(me), me, of.codes, o,
                                         v.tile_bytes, ahead + STEPS * me.team, to);
                bring_x<NT>(at, me, x + of.m0 * o.ldb, o, of.rows, ahead, to);
                if (me.team)
                    bring_side<T>(at + zeros_at<CODE, NT, T>(o), me, of.zeros, o.zero, o, v.ng,
                                  group_of(o, ahead));
                else
                    bring_side<T>(at + scales_at<CODE, NT, T>(o), me, of.scales, o.scale, o, v.ng,
                                  group_of(o, ahead));
            }
            cu_copy_commit();
            slot = slot + 1 < DEPTH ? slot + 1 : 0;
            if (step < from) continue;
            if (first < to && me.tile < o.tiles) {
                const S<const uint8_t> at = shared + slot * o.stage_bytes;
                const int now = group_of(o, first), t = me.in_team * T * 16;
                add_stage<CODE, QUICK, NT, T>(
                    acc, v, o, at + (me.lane / 4 * X_ROW + STEPS * TILE_K * 2 * me.team),
                    at + codes_at<CODE, NT, T>(me),
                    at + (scales_at<CODE, NT, T>(o) + (t << o.scale.shift)),
                    at + (zeros_at<CODE, NT, T>(o) + (t << o.zero.shift)), now - group_of(o, step),
                    (now + 1) * v.group_steps - first, map,
                    to - first < STEPS ? to - first : STEPS);
            }
        }
        __syncthreads(); /* nobody reads a turn */
        spread<NT, T>(cu_as<float>(shared), acc, p, o);
        __syncthreads();
        panel = mm_panel_of(group, blockIdx.x, BM);
        mm_member(&v, &outliers, &o.to.bias, group, panel.part);
        v.div127 = false; /* that is done */
        finish<NT, T>(cu_as<float>(shared), p, o, v, outliers, panel, group.M, z, to == v.steps);
        if (o.done && cu_last(G<int32_t>(o.done) + (int)(blockIdx.y * gridDim.x + blockIdx.x),
                              (int)gridDim.z, cu_as<int>(source)))
            join_parts<T>(p, o, panel, group.M);
    }

    /* ---- host ---- */

    /* How a product is shared out: warps of a team, and parts of K. */
    struct mma_shape {
        int warps, splits, per_split; /* turns */
        bool by_last;                 /* of the blocks parts are joined, not by a kernel */
    };
    struct mma_size {
        int64_t tiles, panels, turns, T, most; /* most: warps of a team */
        int64_t turn_bytes, x_bytes;           /* of a tile; of a panel's turn */
        int64_t part_bytes;                    /* of one of several parts of K */
        bool whole;                            /* K is not to be cut */
    };

    /* The one whose busiest multiprocessor has the fewest bytes to bring, of the weight and (from
 * L2, which is faster) of x, all the longer where it has too few under way at once; of parts of
 * K, which are no more than leave each multiprocessor a block, also their sums, there and back,
 * and the launch that adds them; or, of the last blocks, which add them, the counter and what each of
 * these reads. The figures are those of an H200: 33 KB a microsecond. */
    mma_shape shape_of(const mma_size *s, int n_sm)
    {
        enum { FLYING = 24 << 10, LAUNCH = 48 << 10, COUNTER = 24 << 10 };
        mma_shape best = { 1, 1, (int)s->turns, false };
        int64_t least = INT64_MAX;
        n_sm = n_sm < MM_CUT_BLOCKS ? n_sm : MM_CUT_BLOCKS;
        for (int64_t warps = s->most; warps >= 1; warps--) {
            const int64_t blocks = lq_ceil_div(s->tiles, warps * s->T) * s->panels,
                          block = warps * s->T * s->turn_bytes; /* of a turn */
            int64_t most = s->whole ? 1 : n_sm / blocks;
            if (most > DEV_MM_SPLITS) most = DEV_MM_SPLITS;
            for (int64_t splits = 1; splits == 1 || splits <= most; splits++) {
                const int64_t per = lq_ceil_div(s->turns, splits);
                if (lq_ceil_div(s->turns, per) != splits ||
                    (splits > 1 && per * TURN * TILE_K < DEV_MM_SPLIT_LEAST))
                    continue;
                const int64_t each = lq_ceil_div(blocks * splits, n_sm), room = s->most / warps,
                              flying = block * (each < room ? each : room);
                int64_t cost = flying < FLYING ? block * FLYING / flying : block;
                const int64_t sums = splits * s->part_bytes, kernel = LAUNCH + 2 * sums / n_sm,
                              last = COUNTER + sums / n_sm + sums / blocks / 2;
                cost = each * per * (cost + s->x_bytes / 2);
                if (splits > 1) cost += last <= kernel ? last : kernel;
                if (cost >= least) continue;
                least = cost;
                best = { (int)warps, (int)splits, (int)per, last <= kernel };
            }
        }
        return best;
    }

    /* Of `rows` rows of a tile in each of a turn's `slots` groups; slots: a power of two. */
    mma_side side_of(bool there, lq_dtype d, int rows, int slots)
    {
        const int each = d == LQ_F8_E4M3 || d == LQ_F8_E8M0 ? 1
                         : d == LQ_F16 || d == LQ_BF16      ? 2
                                                            : 4;
        mma_side s = { there ? rows * each : 0, 0 };
        while (16 << s.shift < slots * s.bytes)
            s.shift++;
        return s;
    }

    /* Groups that a turn has a part of, up to a power of two. */
    int slots_of(int group_steps)
    {
        const int most = TURN % group_steps == 0   ? TURN / group_steps
                         : group_steps % TURN == 0 ? 1
                                                   : (TURN + group_steps - 2) / group_steps + 1;
        int slots = 1;
        while (slots < most)
            slots *= 2;
        return slots;
    }

    template <mm_code CODE, bool QUICK, int NT>
    void run(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        enum {
            T = tiles_of(CODE, QUICK, NT),
            MOST = warps_of(CODE, NT),
            BM = 8 * NT,
            DEPTH = depth_of(NT),
            ARRAYS = 256 /* at most, bytes of the kernel's own */
        };
        static_assert(TEAMS * BM * (MOST * T * TILE_N + 4) * (int)sizeof(float) + ARRAYS <=
                          99 << 10,
                      "the teams' sums fit on every part");
        const mm_view outliers = CU_NAME(mm_outliers_of)(a->w);
        const unsigned panels = mm_panels(x->rows, BM);
        const int slots = slots_of(v.group_steps);
        const bool scaled = v.scale_dtype != LQ_BOOL, ints = v.zero == QT_ZERO_INT;
        const mma_side scale = side_of(scaled, v.scale_dtype, v.subs * TILE_N, slots),
                       zero = side_of(scaled && v.zero != QT_ZERO_NONE,
                                      ints ? LQ_F8_E4M3 : v.zero_dtype, TILE_N, slots);
        const int tile_bytes = TEAMS * stage_of(CODE) + (scale.bytes ? 16 << scale.shift : 0) +
                               (zero.bytes ? 16 << zero.shift : 0); /* of a turn */
        int most = MOST;
        while (most > 1 &&
               DEPTH * (BM * X_ROW + most * T * tile_bytes) + ARRAYS > (int)d->shared_per_block)
            most--;
        const mma_size size = { a->w->s.tiles,
                                panels,
                                lq_ceil_div(v.steps, TURN),
                                T,
                                most,
                                TEAMS * stage_of(CODE),
                                BM * X_ROW,
                                x->rows.M * v.N * 4,
                                x->rows.parts || d->batch_invariant };
        const mma_shape shape = shape_of(&size, d->n_sm);
        const mma_args o = { mm_sink_of(a, x, v),
                             shape.splits > 1 ? x->parts : NULL,
                             shape.splits > 1 && shape.by_last ? d->done : NULL,
                             (int)x->ldb,
                             (int)a->w->s.tiles,
                             shape.per_split * TURN,
                             mm_terms(a->w, v),
                             v.group_steps > 1
                                 ? (unsigned)(UINT32_MAX / (unsigned)v.group_steps + 1)
                                 : 0,
                             scale,
                             zero,
                             shape.warps,
                             BM * X_ROW + shape.warps * T * tile_bytes };
        const int turns = DEPTH * o.stage_bytes,
                  sums = TEAMS * BM * (shape.warps * T * TILE_N + 4) * (int)sizeof(float);
        const size_t shared = (size_t)(turns > sums ? turns : sums);
        assert(!o.parts ||
               (size_t)(shape.splits * size.part_bytes) <= dev_mm_parts(x->rows.M, v.N, v.Kp));
        CU_ALLOW(d, (mma_kernel<CODE, QUICK, NT, T>), ARRAYS);
        CU_FOLLOW(d, "mma", (mma_kernel<CODE, QUICK, NT, T>),
                  dim3(panels, (unsigned)lq_ceil_div(a->w->s.tiles, shape.warps * T),
                       (unsigned)shape.splits),
                  (unsigned)(TEAMS * shape.warps * CU_WARP), shared, v, outliers, x->rows, x->b, o);
        if (o.parts && !o.done)
            CU_FOLLOW(d, "mma_join", mma_join_kernel,
                      dim3((unsigned)lq_ceil_div(v.N, JOIN), (unsigned)x->rows.M), JOIN, 0, o.to,
                      o.parts, shape.splits, x->rows.M);
    }

    template <mm_code CODE, bool QUICK>
    void run_rows(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        /* of a group, by the rows of a weight on the average */
        const int64_t weights = x->rows.parts ? x->rows.n : 1;
        if (x->rows.M <= 16 * weights)
            run<CODE, QUICK, 2>(d, a, x, v);
        else if (x->rows.M <= 32 * weights)
            run<CODE, QUICK, 4>(d, a, x, v);
        else
            run<CODE, QUICK, 8>(d, a, x, v);
    }

    template <mm_code CODE>
    void launch(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        /* the other is not for F16, or for any but integers and nvfp4 */
        constexpr bool can = mm_can_quick(CODE) || CODE == C_MAP,
                       always = can && !mm_is_uint(CODE) && CODE != C_E2M1;
        if ((mm_is_quick(CODE, v.zero) || CODE == C_MAP) && v.subs != 2)
            run_rows<CODE, can>(d, a, x, v);
        else
            run_rows<CODE, always>(d, a, x, v);
    }

}

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
