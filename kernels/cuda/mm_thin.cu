/* kernels/cuda/mm_thin.cu - up to 8 rows of bf16 times a weight in any scheme but f32: bound by
 * reading the weight, so what counts is that enough of it is under way at any time, and how few
 * instructions a weight costs. Through the matrix units, mma.m16n8k16, with the weight as A and the
 * rows of x as B's eight columns.
 *
 * A multiprocessor has as many blocks as it holds, and those go over the weight's tiles of 16
 * outputs in turns, each with all of K, or with one part of it (below). A block of 8 warps has its
 * rows of x in shared memory, as bf16, once for all of its tiles; the warps share each tile's K in
 * units of steps of 32 inputs:
 *
 *          inputs 0     256   512   768        2048
 *          u4     [ w0 ][ w1 ][ w2 ][ w3 ] .. [ w0 ]        8 steps: two runs of 4; of 8 bits one
 *                                                           run of 4, of 16 bits one of 2
 *
 * and each warp brings its units, with the scales that go with them, by cp.async into DEPTH places
 * of its own, across the ends of tiles: while one is multiplied, DEPTH - 1 are on their way, of u4
 * 4 KB a warp and 96 KB a multiprocessor of three blocks (an H200 at its bandwidth has some 25 KB
 * under way in each). No warp waits for another but at the end of a tile, where one barrier parts
 * the writing of sums from their reading; there are two places for them.
 *
 * Of a step lane (g, c) = (lane / 4, lane % 4) has chunk c (mm.cuh) of rows 2g and 2g + 1, which
 * lie beside each other. They are rows g and g + 8 of the product; its k are inputs 8c + 4h .. + 3
 * of each chunk, for the two products h of a step, so the lane's B are 16 neighbouring bytes of x's
 * row g. Codes become bf16 less their zero points without a float between (mm_quick), floats of 4 and
 * 8 bits too, those of nf4 by a table; others go as one or two bf16 (mm_terms).
 *
 * In its place a step's 16-byte pieces are exchanged in pairs (turned), so that the 16 lanes of a
 * half-warp, which read 32 bytes of each of four chunks, find them in different banks: u4, where a
 * chunk is pieces 4c .. 4c + 3 (two pairs),
 *
 *          in memory   0 0 1 1   2 2 3 3   4 4 5 5   6 6 7 7      pairs, chunk by chunk
 *          here        0 0 1 1   3 3 2 2   6 6 7 7   5 5 4 4      mod 4: the quarter of the banks
 *
 * x may be normed first (dev_mm_norm): then every block does it, by the functions of the norm's own
 * kernel, while its first codes come. Where a block has no room for x it
 * has one part of K at a time, or fewer rows.
 *
 * Order of each output's sum: the matrix unit adds up a group's products of a run, times the
 * group's scale onto the warp's sum; then the warps in order, times the row's scale; onto the last
 * part of K the outliers' sum; then the parts (mm_thin_cut), bias, the old y. It depends on the
 * weight's shape and the device's multiprocessors, not on M: parts are done one after the other, or
 * by blocks of their own (where tiles are few, or where x does not fit), of which the last to be done
 * (last.cuh) adds the sums of all that have its tiles, in the same order.
 *
 * The kernel may end with what an MLP does (dev_mm_act): a block then does a tile of gate's and the
 * tile of up's that goes with it, one after the other; where parts are blocks, these are too.
 *
 * It may begin before the launch before has ended (CU_FOLLOW), and then waits with its first codes
 * under way.
 *
 * Shared memory: static 8 warps' sums twice, 2 x 8 x 16 x 8 floats (8192 B), a norm's sums, 2 x 8 x
 * 8 floats (512 B), and two maps of 4-bit floats (128 B); dynamic, x, 64 B a row and step (at most
 * MM_THIN_STAGED, 64 KiB), and the places, 8 x DEPTH x (a unit + SIDE for each group that its runs
 * may have): u4 of groups of 128 8 x 3 x (2048 + 2 x 128) = 55,296 B, of 32 8 x 3 x (2048 + 8 x
 * 128) = 73,728 B. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/mm.cuh"
#include "kernels/cuda/norm.cuh"

inline namespace CU_NAME(mm_thin_cu)
{

    enum {
        WARPS = 8,
        THREADS = WARPS * CU_WARP,
        ROWS = DEV_MM_SMALL,
        PIECE = 16, /* bytes that a lane copies at once */
        SIDE = 128, /* scales of a group's 16 rows, and behind them zero points: 64 bytes each */
        ZEROS = 64,
        X_STEP = TILE_K * 2 /* bytes of a row's step of x */
    };
    static_assert((int)THREADS == (int)NORM_THREADS, "a block does a norm");

    /* A unit is one or two runs of steps, whose products are scaled together. */
    template <mm_code CODE> struct unit {
        static constexpr int run = mm_words(CODE) <= 2 ? 4 : 2;
        static constexpr int runs = mm_bits(CODE) <= 4 ? 2 : 1;
        static constexpr int steps = runs * run;
        static constexpr int step = 64 * mm_bits(CODE); /* bytes */
        static constexpr int bytes = steps * step;
        static constexpr int depth = bytes > 1024 ? 3 : 4;
        static constexpr int asks =
            CODE == C_U2 ? 2 : 4; /* fours of x that a thread has under way */
    };

    /* Blocks that registers are to leave room for on a multiprocessor of sm_`cc`; code for those before
 * sm_90 takes a few more. */
    __host__ __device__ constexpr int blocks_of(mm_code code, bool quick, int cc)
    {
        return quick && (code == C_U2 || code == C_U4) && cc >= 90 ? 3 : 2;
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    enum { COMPILED_FOR = 80 };
#else
    enum { COMPILED_FOR = 90 };
#endif

    struct thin_out {
        mm_sink to;
        float *parts;          /* [splits][M][N]; NULL: a block has all of K */
        int32_t *done;         /* counters of what blocks have the same tiles */
        int items;             /* tiles, or pairs of them */
        int apart;             /* of a pair: tiles from its first to its second; 0: no pairs */
        int splits, per_split; /* steps */
        int terms;
        int sides;                     /* groups of a run at most; 0: no scales */
        int scale_pieces, zero_pieces; /* of a group */
        int scale_size, zero_size;     /* log2 of bytes */
        dev_mm_act act;
        unsigned groups;     /* 2^32 / group_steps, rounded up; 0: 1 step is a group */
        bool pairs;          /* scales are of 16 bits, one a row; zero points, if any, integers */
        unsigned zero_const; /* where there are none */
        bool by_part;        /* x of all parts does not fit: of one at a time */
        int rows;            /* that a block has at most */
    };

    /* Where x comes from: in the weight's places, its rows at multiples of 16 bytes. */
    struct thin_in {
        const float *x;
        int64_t ldx;
        int K;
        bool normed;
        const float *w, *b; /* of the norm; or NULL */
        norm_how how;
    };

    /* How zero points lie: integers as other bytes. */
    lq_dtype zero_of(const mm_view &v) { return v.zero == QT_ZERO_INT ? LQ_F8_E4M3 : v.zero_dtype; }

    /* Where piece p of a step stands (top of the file). */
    template <mm_code CODE> __device__ __forceinline__ int turned(int p)
    {
        if (CODE == C_U2 || CODE == C_U3) return p;
        return p ^ (p / (4 * mm_words(CODE))) << 1;
    }
    /* Of C_ROWS: piece p, of 8, of a row. */
    __device__ __forceinline__ int turned_row(int row, int p) { return p ^ (row / 2 & 1) << 2; }

    /* A warp's way through its block's work: units of a part of K of a tile, parts, tiles of a
 * pair, pairs. */
    struct walk {
        int item, second, part; /* second: of a pair; item >= items: it is over */
        int first, to;          /* steps */
    };
    __device__ __forceinline__ int tile_of(const walk &w, const thin_out &o)
    {
        return w.item + w.second * o.apart;
    }
    template <mm_code CODE>
    __device__ __forceinline__ void begin_part(walk * w, const thin_out &o, int steps)
    {
        const int end = (w->part + 1) * o.per_split;
        w->first = w->part * o.per_split + unit<CODE>::steps * (int)(threadIdx.x / CU_WARP);
        w->to = end < steps ? end : steps;
    }
    /* To the next part, from z0 on, before z1. */
    template <mm_code CODE>
    __device__ __forceinline__ void next_part(walk * w, const thin_out &o, int steps, int z0,
                                              int z1)
    {
        if (++w->part == z1) {
            w->part = z0;
            if (o.parts) {
                w->item += (int)gridDim.x;
            } else if (!o.apart || ++w->second == 2) {
                w->second = 0;
                w->item += (int)gridDim.x;
            }
        }
        begin_part<CODE>(w, o, steps);
    }

    __device__ __forceinline__ int group_of(int step, const thin_out &o)
    {
        return o.groups ? (int)((uint64_t)(unsigned)step * o.groups >> 32) : step;
    }

    /* Where a lane finds its pieces of units: the codes of a unit's first, which lies in steps
 * `first` on, and of group 0, or one of those behind it, a piece of scales or zero points. */
    struct source {
        walk at;
        int place; /* that the next unit comes into: bytes from the warp's first */
        G<const uint8_t> codes, side;
        int to;     /* where the lane's first piece of codes comes into a place */
        int stride; /* bytes from group to group; 0: there is no such piece */
        int end;    /* of groups */
    };
    /* a b, of neither below 0, in one instruction. */
    __device__ __forceinline__ uint64_t product_of(int a, int b)
    {
        return (uint64_t)(unsigned)a * (unsigned)b;
    }
    /* at: of this warp's first part. */
    template <mm_code CODE>
    __device__ __forceinline__ void find_codes(source * s, const mm_view &v, const thin_out &o)
    {
        enum { STEP = unit<CODE>::step };
        const int lane = threadIdx.x % CU_WARP, tile = tile_of(s->at, o);
        const int side = lane / (SIDE / PIECE), p = lane % (SIDE / PIECE), zero = p - ZEROS / PIECE;
        s->codes = G<const uint8_t>(v.codes) + (product_of(tile, (int)v.tile_bytes) +
                                                s->at.first * unit<CODE>::step + lane * PIECE);
        s->to =
            cu_opaque(lane / (STEP / PIECE) * STEP + turned<CODE>(lane % (STEP / PIECE)) * PIECE);
        s->end = v.ng - side;
        s->stride = 0;
        if (side < o.sides && p < o.scale_pieces) {
            s->stride = o.scale_pieces * PIECE;
            s->side = G<const uint8_t>(v.scales) +
                      (product_of(tile * v.ng + side, s->stride) + p * PIECE);
        } else if (side < o.sides && zero >= 0 && zero < o.zero_pieces) {
            s->stride = o.zero_pieces * PIECE;
            s->side = G<const uint8_t>(v.zeros) +
                      (product_of(tile * v.ng + side, s->stride) + zero * PIECE);
        }
    }

    template <mm_code CODE> __device__ __forceinline__ int next_place(int at, int bytes)
    {
        return at + bytes == unit<CODE>::depth * bytes ? 0 : at + bytes;
    }

    /* The next unit of this warp into the next of its places, which begin at `own`; steps behind
 * the part become 0. Without units, only a group of copies that has none. */
    template <mm_code CODE>
    __device__ __forceinline__ void bring(source * s, S<uint8_t> own, int place_bytes,
                                          const mm_view &v, const thin_out &o, int z0, int z1)
    {
        enum {
            STEP = unit<CODE>::step,
            PIECES = unit<CODE>::bytes / PIECE,
            ROW = PIECES / TILE_N,
            STRIDE = unit<CODE>::steps * WARPS
        };
        const int lane = threadIdx.x % CU_WARP;
        if (s->at.first >= s->at.to) {
#pragma unroll 1
            while (s->at.first >= s->at.to && s->at.item < o.items)
                next_part<CODE>(&s->at, o, v.steps, z0, z1);
            find_codes<CODE>(s, v, o);
        }
        if (s->at.item < o.items) {
            const S<uint8_t> place = own + s->place;
            const int there = (s->at.to - s->at.first) * STEP - lane * PIECE;
#pragma unroll
            for (int i = 0; i < (PIECES + CU_WARP - 1) / CU_WARP; i++) {
                const int p = i * CU_WARP + lane;
                if (CODE == C_ROWS) { /* behind the last row it again */
                    const int row = p / ROW, in = p % ROW;
                    const int64_t n = (int64_t)tile_of(s->at, o) * TILE_N + row;
                    cu_copy16_ldg(
                        place + (row * ROW + turned_row(row, in)) * PIECE,
                        G<const uint8_t>(v.codes) +
                            (((n < v.N ? n : v.N - 1) * v.Kp + (int64_t)s->at.first * TILE_K) * 2 +
                             in * PIECE),
                        s->at.first + in / 4 < s->at.to);
                } else if (PIECES % CU_WARP == 0 || p < PIECES) {
                    /* whole steps a load: the lane's own place, and so far on */
                    const bool along = i * CU_WARP % (STEP / PIECE) == 0;
                    const int step = p / (STEP / PIECE), in = p % (STEP / PIECE);
                    cu_copy16_ldg(place + (along ? s->to + i * CU_WARP * PIECE
                                                 : step * STEP + turned<CODE>(in) * PIECE),
                                  s->codes + i * CU_WARP * PIECE, i * CU_WARP * PIECE < there);
                }
            }
#pragma unroll
            for (int i = 0; i < unit<CODE>::runs && s->stride; i++) {
                const int group = group_of(s->at.first + i * unit<CODE>::run, o);
                cu_copy16_ldg(place + (unit<CODE>::bytes + i * o.sides * SIDE + lane * PIECE),
                              s->side + product_of(group, s->stride), group < s->end);
            }
        }
        s->at.first += STRIDE;
        s->codes += STRIDE * STEP;
        s->place = next_place<CODE>(s->place, place_bytes);
        cu_copy_commit();
    }

    /* One of 16 numbers of 1, 2 or 4 bytes (1 << size) that lie side by side: its bits,
 * without branches (mm_side_number). */
    __device__ __forceinline__ unsigned side_bits(S<const uint8_t> p, int size, int i)
    {
        const int at = i << size;
        return cu_ld<unsigned>(p + (at & ~3)) >> 8 * (at & 3) & 0xffffffffu >> (32 - (8 << size));
    }
    /* Of rows 2g and 2g + 1, without what all of a row is scaled by. */
    template <mm_code CODE, bool QUICK>
    __device__ __forceinline__ void sides_of(mm_scale_of s[2], S<const uint8_t> side,
                                             const mm_view &v, const thin_out &o)
    {
        const int lane = threadIdx.x % CU_WARP, r = lane / 4 * 2, c = lane % 4;
        const int sub = v.subs == 2 ? c / 2 * TILE_N : 0;
        if (CODE == C_E4M3) { /* scales of f32, no zero points */
            const float2 two = cu_ld<float2>(side + 4 * (sub + r));
            s[0] = { two.x, 0, 0 };
            s[1] = { two.y, 0, 0 };
            return;
        }
        if (CODE == C_E2M1) { /* scales of a byte, or any; of nvfp4 two of a step */
            if (o.scale_size == 0) {
                const unsigned two = cu_ld<uint16_t>(side + (sub + r));
                const lq_dtype d = QUICK && v.scale_dtype != LQ_F8_E4M3 ? LQ_F8_E8M0 : LQ_F8_E4M3;
                s[0] = { mm_side_number(two & 0xffu, d), 0, 0 };
                s[1] = { mm_side_number(two >> 8, d), 0, 0 };
                return;
            }
        }
        if (QUICK && o.pairs) { /* the rule: two of 16 bits, two bytes or none */
            const unsigned two = cu_ld<unsigned>(side + 2 * r);
            const bool f16 = v.scale_dtype == LQ_F16;
            s[0].scale = f16 ? cu_f16_f32(two & 0xffffu) : __uint_as_float(two << 16);
            s[1].scale = f16 ? cu_f16_f32(two >> 16) : __uint_as_float(two & 0xffff0000u);
            const unsigned zeros =
                o.zero_pieces ? cu_ld<uint16_t>(side + (ZEROS + r)) : o.zero_const * 0x101u;
            s[0].less = __byte_perm(zeros, 0x43u, 0x4040u);
            s[1].less = __byte_perm(zeros, 0x43u, 0x4141u);
            if (CODE == C_U8) {
                s[0].zero = (float)(zeros & 255u);
                s[1].zero = (float)(zeros >> 8);
            }
            return;
        }
        if (o.sides == 0) {
            s[0] = s[1] = { 1.0f, 0.0f, 0 };
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            unsigned zero = o.zero_const;
            if (o.zero_pieces) zero = side_bits(side + ZEROS, o.zero_size, r + h);
            s[h].scale = mm_side_number(side_bits(side, o.scale_size, sub + r + h), v.scale_dtype);
            s[h].less = 0x43004300u | zero * 0x10001u;
            s[h].zero = (float)zero;
            if (!QUICK && v.zero != QT_ZERO_INT && v.zero != QT_ZERO_NONE)
                s[h].zero = mm_side_number(zero, v.zero_dtype);
        }
    }

    /* Where a lane's words of a step stand in it. */
    template <mm_code CODE> struct lane_words {
        int at[mm_words(CODE)];
    };
    template <mm_code CODE> __device__ __forceinline__ lane_words<CODE> find_words()
    {
        const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
        lane_words<CODE> l;
#pragma unroll
        for (int k = 0; k < mm_words(CODE); k++) {
            const int off = 64 * mm_word(CODE, c, k) + 8 * g;
            l.at[k] = cu_opaque(turned<CODE>(off / PIECE) * PIECE + off % PIECE);
        }
        return l;
    }

    /* Step i of a unit: the words of rows 2g and 2g + 1. */
    template <mm_code CODE>
    __device__ __forceinline__ void words_of(unsigned w[2][mm_words(CODE)], S<const uint8_t> place,
                                             const lane_words<CODE> &l, int i)
    {
        enum { ROW = unit<CODE>::bytes / TILE_N };
        const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
        if (CODE == C_ROWS) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 x = cu_ld<uint4>(
                    place + ((2 * g + h) * ROW + turned_row(2 * g + h, 4 * i + c) * PIECE));
                const unsigned four[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
                for (int k = 0; k < mm_words(CODE); k++)
                    w[h][k] = four[k];
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < mm_words(CODE); k++) {
            const uint2 two = cu_ld<uint2>(place + l.at[k] + i * unit<CODE>::step);
            w[0][k] = two.x;
            w[1][k] = two.y;
        }
    }

    /* part += one step of a tile by x's, whose scales are s; of nvfp4, s are a step's two, which
 * are multiplied into the numbers, exactly. */
    template <mm_code CODE, bool QUICK>
    __device__ __forceinline__ void one_step(
        float part[4], mm_scale_of s[2], const unsigned w[2][mm_words(CODE)],
        const unsigned b[2][2], const mm_view &v, const mm_maps &map, int terms)
    {
        const int c = threadIdx.x % 4;
        unsigned a[2][4], low[2][4];
        float q[2][8];
        if constexpr (CODE == C_MAP)
            mm_from_map(a, low, w, map);
        else if constexpr (QUICK || CODE == C_E2M1) {
            mm_quick<CODE>(a, w, c, s);
            if (!QUICK) {
                mm_times_scales(a, s);
                s[0].scale = s[1].scale = 1.0f;
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mm_numbers<CODE>(q[h], w[h], c, map.number);
                mm_center(q[h], &s[h], v.zero);
            }
            mm_fragments(a, q);
        }
        cu_mma_bf16(part, a[0], b[0]);
        cu_mma_bf16(part, a[1], b[1]);
        if (CODE != C_MAP && (QUICK || CODE == C_E2M1 || terms == 1)) return;
        if constexpr (CODE != C_MAP) {
            mm_rest(q);
            mm_fragments(low, q);
        }
        cu_mma_bf16(part, low[0], b[0]);
        cu_mma_bf16(part, low[1], b[1]);
    }

    /* acc += a run from step `first` on, step `at` of its unit, by x, whose row g and chunk c begin at
 * `x`. EACH: steps of a group where a run is of whole ones, or of a part of one (RUN); 0: it is not. */
    template <mm_code CODE, bool QUICK, int EACH>
    __device__ __forceinline__ void add_run(
        float acc[4], S<const uint8_t> place, S<const uint8_t> side, const mm_view &v,
        const thin_out &o, int first, int at, S<const uint8_t> x, int x_step,
        const lane_words<CODE> &l, const mm_maps &map)
    {
        enum { RUN = unit<CODE>::run };
        float part[4] = {};
        mm_scale_of s[2];
        int left = EACH ? EACH : (group_of(first, o) + 1) * v.group_steps - first;
        sides_of<CODE, QUICK>(s, side, v, o);
#pragma unroll(EACH ? RUN : 1)
        for (int i = 0; i < RUN; i++) {
            unsigned w[2][mm_words(CODE)];
            const uint4 four = cu_ld<uint4>(x + (at + i) * x_step);
            const unsigned b[2][2] = { { four.x, four.y }, { four.z, four.w } };
            words_of<CODE>(w, place, l, at + i);
            mm_scale_of now[2] = { s[0], s[1] };
            one_step<CODE, QUICK>(part, now, w, b, v, map, o.terms);
            if (EACH ? (i + 1) % (EACH ? EACH : 1) != 0 : i + 1 < RUN && --left) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[k] = fmaf(now[k / 2].scale, part[k], acc[k]);
                part[k] = 0;
            }
            if (i + 1 == RUN) continue;
            left = v.group_steps;
            side = side + SIDE;
            sides_of<CODE, QUICK>(s, side, v, o);
        }
    }
    /* acc += a unit from step `first` on. */
    template <mm_code CODE, bool QUICK, int EACH>
    __device__ __forceinline__ void add_unit(
        float acc[4], S<const uint8_t> place, const mm_view &v, const thin_out &o, int first,
        S<const uint8_t> x, int x_step, const lane_words<CODE> &l, const mm_maps &map)
    {
        enum { RUN = unit<CODE>::run };
        const S<const uint8_t> side = place + unit<CODE>::bytes;
#pragma unroll 1 /* so that the loop's instructions stay in a multiprocessor's nearest cache */
        for (int i = 0; i < unit<CODE>::runs; i++)
            add_run<CODE, QUICK, EACH>(acc, place, side + i * o.sides * SIDE, v, o, first + i * RUN,
                                       i * RUN, x, x_step, l, map);
    }

    /* Mean, and what to multiply by, of each row into stat [ROWS][2]. part [2][ROWS][NORM_WARPS].
 */
    __device__ __forceinline__ void measure_rows(S<float> stat, S<float> part, const thin_in &in,
                                                 G<const float> x, int rows)
    {
        const S<float> squares = part + ROWS * NORM_WARPS;
#pragma unroll 1
        for (int m = 0; m < rows && in.how.layer; m++)
            norm_put(part + m * NORM_WARPS, norm_sum_row(x + m * in.ldx, in.K, true, false, 0));
        if (in.how.layer) __syncthreads();
#pragma unroll 1
        for (int m = 0; m < rows; m++) {
            const float mean = in.how.layer ? norm_all(part + m * NORM_WARPS) / (float)in.K : 0.0f;
            norm_put(squares + m * NORM_WARPS,
                     norm_sum_row(x + m * in.ldx, in.K, true, true, mean));
        }
        __syncthreads();
        const int m = threadIdx.x;
        if (m < rows) {
            stat[2 * m] = in.how.layer ? norm_all(part + m * NORM_WARPS) / (float)in.K : 0.0f;
            stat[2 * m + 1] = norm_factor(norm_all(squares + m * NORM_WARPS), in.K, in.how.eps);
        }
        __syncthreads();
    }

    /* Steps from .. to - 1 of the rows into xs, as bf16, [step][row][32]; beyond the weight's 0. A
 * thread asks for several fours of x before it waits: for one after the other would take as many times
 * as long. */
    template <mm_code CODE>
    __device__ __forceinline__ void stage_rows(S<uint8_t> xs, S<const float> stat,
                                               const thin_in &in, G<const float> x, int rows,
                                               int from, int to)
    {
        enum { ASKS = unit<CODE>::asks };
        const G<const float> w = in.w, b = in.b;
        const int all = (to - from) * TILE_K;
        int m = 0, p = 4 * (int)threadIdx.x;
        auto settle = [&] {
            while (p >= all && m < rows) {
                p -= all;
                m++;
            }
        };
        settle();
#pragma unroll 1
        while (m < rows) {
            const int m0 = m, p0 = p;
            float4 v[ASKS];
#pragma unroll
            for (int i = 0; i < ASKS; i++) {
                const int k = from * TILE_K + p;
                v[i] = { 0, 0, 0, 0 };
                if (m < rows && k < in.K) v[i] = norm_four(x + m * in.ldx, k, in.K, true);
                p += 4 * THREADS;
                settle();
            }
            m = m0;
            p = p0;
#pragma unroll
            for (int i = 0; i < ASKS; i++) {
                const int k = from * TILE_K + p;
                if (m >= rows) break;
                if (in.normed && k < in.K)
                    v[i] = norm_values(v[i], stat[2 * m], stat[2 * m + 1], w ? w + k : w,
                                       b ? b + k : b, in.how);
                cu_st(xs + ((p / TILE_K * rows + m) * X_STEP + p % TILE_K * 2),
                      uint2{ cu_pair<false>(v[i].x, v[i].y), cu_pair<false>(v[i].z, v[i].w) });
                p += 4 * THREADS;
                settle();
            }
        }
        __syncthreads();
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

    /* What comes of the sums of this block's tiles, half of its threads an item. */
    __device__ __forceinline__ void join_parts(const thin_out &o, const mm_panel &panel, int64_t M)
    {
        enum { EACH = ROWS * TILE_N };
        const int m = threadIdx.x % EACH / TILE_N, r = threadIdx.x % TILE_N;
        const int64_t row = panel.m0 + m, half = o.apart * TILE_N;
        if (m >= panel.rows) return;
        for (int item = (int)(blockIdx.x + threadIdx.x / EACH * gridDim.x); item < o.items;
             item += THREADS / EACH * (int)gridDim.x) {
            const int64_t n = (int64_t)item * TILE_N + r;
            if (n >= o.to.N) continue;
            const float gate = mm_joined(o.parts, o.to, o.splits, M, row, n),
                        up = half ? mm_joined(o.parts, o.to, o.splits, M, row, half + n) : 0.0f;
            put(gate, up, o.to, o.act, row, n);
        }
    }

    /* EACH: as of add_run. */
    template <mm_code CODE, bool QUICK, int EACH>
    __global__ void __launch_bounds__(THREADS, blocks_of(CODE, QUICK, COMPILED_FOR))
        thin_kernel(mm_view v, mm_view outliers, mm_rows group, thin_in in, thin_out o)
    {
        enum { DEPTH = unit<CODE>::depth, UNIT = unit<CODE>::steps, SUMS = WARPS * TILE_N * ROWS };
        CU_SHARED(float, sums, 2 * SUMS);
        CU_SHARED(float, norms, 2 * ROWS * NORM_WARPS);
        CU_SHARED(float, stat, 2 * ROWS);
        CU_SHARED(float, numbers, 16);
        CU_SHARED(unsigned, two, 16);
        CU_DYNAMIC(uint8_t, room);
        const mm_maps map = { numbers, two };
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const int half_of = o.parts ? (int)blockIdx.z / o.splits : 0; /* of a pair */
        const int z0 = o.parts ? (int)blockIdx.z - half_of * o.splits : 0,
                  z1 = o.parts ? z0 + 1 : o.splits;
        const int place = unit<CODE>::bytes + unit<CODE>::runs * o.sides * SIDE;
        const S<uint8_t> own = room + warp * DEPTH * place, xs = room + WARPS * DEPTH * place;
        source from;
        walk now = { (int)blockIdx.x, half_of, z0, 0, 0 };
        begin_part<CODE>(&now, o, v.steps);
        from.at = now;
        from.place = 0;
        cu_next();
        if (!group.parts) {
            find_codes<CODE>(&from, v, o);
#pragma unroll 1
            for (int i = 0; i < DEPTH - 1; i++)
                bring<CODE>(&from, own, place, v, o, z0, z1);
        }
        cu_after();
        const mm_panel panel = mm_panel_of(group, blockIdx.y, o.rows);
        const int rows = (int)panel.rows, x_step = rows * X_STEP;
        const lane_words<CODE> words = find_words<CODE>();
        if (rows <= 0 || !mm_member(&v, &outliers, &o.to.bias, group, panel.part)) {
            cu_copy_wait<0>();
            return; /* as a block */
        }
        if (group.parts) {
            find_codes<CODE>(&from, v, o);
#pragma unroll 1
            for (int i = 0; i < DEPTH - 1; i++)
                bring<CODE>(&from, own, place, v, o, z0, z1);
        }
        if (CODE == C_MAP) mm_load_maps(map, v);
        const G<const float> x = G<const float>(in.x) + panel.m0 * in.ldx;
        if (in.normed) measure_rows(stat, norms, in, x, rows);
        const S<const uint8_t> x_own = xs + ((g < rows ? g : rows - 1) * X_STEP + c * PIECE);
        /* of the sums' readers */
        const int m = threadIdx.x / TILE_N, r = threadIdx.x % TILE_N;
        float gate = 0, up = 0;
        int used = 0, half = 0; /* the place of the next unit; of the sums */
        int x0 = -1;            /* the first step of x that is there */
#pragma unroll 1
        while (now.item < o.items) {
            const int x1 = (o.by_part ? now.part : z0) * o.per_split;
            float acc[4] = {};
            if (x1 != x0) { /* all threads alike */
                const int end = (o.by_part ? now.part + 1 : z1) * o.per_split,
                          to = (end < v.steps ? end : v.steps) + UNIT - 1;
                if (x0 >= 0) __syncthreads(); /* what was there is done with */
                stage_rows<CODE>(xs, stat, in, x, rows, x1, to / UNIT * UNIT);
                x0 = x1;
            }
            S<const uint8_t> at = x_own + (now.first - x0) * x_step;
#pragma unroll 1
            for (; now.first < now.to; now.first += UNIT * WARPS) {
                cu_copy_wait<DEPTH - 2>();
                __syncwarp(); /* all lanes' copies are there, and all have read the unit before */
                bring<CODE>(&from, own, place, v, o, z0, z1);
                const S<const uint8_t> codes = own + used;
                add_unit<CODE, QUICK, EACH>(acc, codes, v, o, now.first, at, x_step, words, map);
                at += UNIT * WARPS * x_step;
                used = next_place<CODE>(used, place);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[half * SUMS + ((warp * ROWS + 2 * c + k % 2) * TILE_N + 2 * g + k / 2)] =
                    acc[k];
            __syncthreads();
            const int tile = tile_of(now, o), z = now.part;
            const int64_t n = (int64_t)(o.parts ? tile : now.item) * TILE_N + r, row = panel.m0 + m;
            const bool second = now.second, last = now.to == v.steps, mine = m < rows && n < o.to.N;
            if (mine) {
                float part = 0;
                for (int w = 0; w < WARPS; w++)
                    part += sums[half * SUMS + w * TILE_N * ROWS + threadIdx.x];
                part = mm_row_scaled(part, v, tile, r);
                if (outliers.steps && last)
                    part += mm_outlier_sum(outliers, tile, r,
                                           G<const float>(o.to.x_out) + row * o.to.ldo);
                const float sum = (z == z0 ? 0.0f : second ? up : gate) + part;
                if (second)
                    up = sum;
                else
                    gate = sum;
                if (o.parts)
                    G<float>(o.parts)[(z0 * group.M + row) * o.to.N + n] = sum;
                else if (z + 1 == z1 && (second || !o.apart))
                    put(gate, up, o.to, o.act, row, n);
            }
            half ^= 1;
            next_part<CODE>(&now, o, v.steps, z0, z1);
        }
        cu_copy_wait<0>();
        if (o.parts && cu_last(G<int32_t>(o.done) + (int)(blockIdx.y * gridDim.x + blockIdx.x),
                               (int)gridDim.z, cu_as<int>(stat)))
            join_parts(o, panel, group.M);
    }

    template <mm_code CODE, bool QUICK, int EACH>
    void run(dev * d, const mm_input *x, const mm_view &v, const mm_view &out, const thin_in &in,
             thin_out o)
    {
        enum {
            RESERVED = 1024,
            STATIC = 9216
        }; /* shared memory of any block; of this one's arrays */
        const unsigned parts = o.parts ? (unsigned)(o.splits * (o.apart ? 2 : 1)) : 1;
        const size_t places = WARPS * unit<CODE>::depth *
                              (unit<CODE>::bytes + (size_t)(unit<CODE>::runs * o.sides * SIDE));
        o.rows = (int)(x->rows.M < ROWS ? x->rows.M : ROWS);
        size_t shared = 0;
        for (;;) { /* sm_86 and sm_89 have no room for much of x */
            const int64_t steps = o.parts || o.by_part ? o.per_split : v.steps;
            shared = places + (size_t)(o.rows * (steps + unit<CODE>::steps) * X_STEP);
            if (shared + STATIC <= d->shared_per_block) break;
            if (!o.parts && !o.by_part && o.splits > 1)
                o.by_part = true;
            else if (o.rows > 1)
                o.rows /= 2;
            else
                break;
        }
        const unsigned panels = mm_panels(x->rows, o.rows);
        const int64_t fit = (int64_t)((d->shared_per_block + RESERVED) /
                                      (shared + STATIC + RESERVED)),
                      most = blocks_of(CODE, QUICK, d->cc), each = fit < most ? fit : most;
        int64_t blocks = (each > 1 ? each : 1) * d->n_sm / (int64_t)(panels * parts);
        if (blocks > o.items) blocks = o.items;
        if (o.parts && blocks > DEV_DONE / (int64_t)panels) blocks = DEV_DONE / (int64_t)panels;
        if (blocks < 1) blocks = 1;
        CU_ALLOW(d, (thin_kernel<CODE, QUICK, EACH>), STATIC);
        CU_FOLLOW(d, "thin", (thin_kernel<CODE, QUICK, EACH>),
                  dim3((unsigned)blocks, panels, parts), THREADS, shared, v, out, x->rows, in, o);
    }

    /* each: as EACH of add_run. */
    template <mm_code CODE, bool QUICK>
    void run_each(dev * d, const mm_input *x, const mm_view &v, const mm_view &out,
                  const thin_in &in, const thin_out &o, int each)
    {
        constexpr bool SCALED = CODE != C_F16 && CODE != C_BF16 && CODE != C_ROWS,
                       SMALL = /* where groups of less than a run are usual */
                       CODE == C_MAP || CODE == C_E2M1 || (QUICK && (CODE == C_U2 || CODE == C_U4));
        if (!SCALED || each == unit<CODE>::run)
            run<CODE, QUICK, unit<CODE>::run>(d, x, v, out, in, o);
        else if (SMALL && each == 2)
            run<CODE, QUICK, SMALL ? 2 : 0>(d, x, v, out, in, o);
        else if (SMALL && each == 1)
            run<CODE, QUICK, SMALL ? 1 : 0>(d, x, v, out, in, o);
        else
            run<CODE, QUICK, SCALED ? 0 : unit<CODE>::run>(d, x, v, out, in, o);
    }

    int size_of(lq_dtype d) { return lq_dtype_bits(d) == 8 ? 0 : lq_dtype_bits(d) == 16 ? 1 : 2; }

    /* Groups that a run may have a part of. */
    int groups_of(int run, int group_steps)
    {
        return run % group_steps == 0 ? run / group_steps
                                      : (run + group_steps - 2) / group_steps + 1;
    }

    template <mm_code CODE>
    void launch(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        enum { RUN = unit<CODE>::run };
        const mm_view out = CU_NAME(mm_outliers_of)(a->w);
        const dev_mm_act act = a->act;
        const mm_thin_cut cut = mm_thin_cut_of(a->w, d->n_sm, x->rows.M, x->rows.parts != NULL);
        const bool pair = act.kind == DEV_ACT_PAIR, scaled = v.scale_dtype != LQ_BOOL,
                   whole = !scaled || v.group_steps % RUN == 0 || v.ng == 1;
        const int tiles = (int)(pair ? a->w->s.tiles / 2 : a->w->s.tiles);
        const thin_out o = { mm_sink_of(a, x, v),
                             cut.apart ? x->parts : NULL,
                             d->done,
                             tiles,
                             pair ? tiles : 0,
                             cut.splits,
                             cut.per_split,
                             mm_terms(a->w, v),
                             scaled ? whole ? 1 : groups_of(RUN, v.group_steps) : 0,
                             scaled ? v.subs << size_of(v.scale_dtype) : 0,
                             scaled && v.zero != QT_ZERO_NONE ? 1 << size_of(zero_of(v)) : 0,
                             size_of(v.scale_dtype),
                             size_of(zero_of(v)),
                             act,
                             v.group_steps > 1
                                 ? (unsigned)(UINT32_MAX / (unsigned)v.group_steps + 1)
                                 : 0,
                             (v.scale_dtype == LQ_F16 || v.scale_dtype == LQ_BF16) && v.subs == 1 &&
                                 (v.zero == QT_ZERO_NONE || v.zero == QT_ZERO_INT),
                             (unsigned)v.zero_const,
                             cut.by_part,
                             ROWS };
        const int each = whole ? (int)RUN : RUN % v.group_steps == 0 ? v.group_steps : 0;
        const dev_mm_norm *norm = a->norm;
        const thin_in in = { x->f,
                             x->ldf,
                             (int)v.Kp,
                             norm != NULL,
                             norm ? norm->w : NULL,
                             norm ? norm->b : NULL,
                             { norm ? norm->offset : 0, norm ? norm->eps : 0,
                               norm && norm->layer } };
        /* the other is not for F16, or for any but integers and nvfp4 */
        constexpr bool always = mm_can_quick(CODE) && !mm_is_uint(CODE) && CODE != C_E2M1;
        if (mm_is_quick(CODE, v.zero) && v.subs != 2)
            run_each<CODE, mm_can_quick(CODE)>(d, x, v, out, in, o, each);
        else
            run_each<CODE, always>(d, x, v, out, in, o, each);
    }

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
