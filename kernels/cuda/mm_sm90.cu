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
 * A lane's words of a step are read in an order that differs by lane (turn_of), so that the four
 * chunks lie in different banks though nothing is padded. Codes become bf16 less their zero points
 * without a float between (QUICK, mm_quick), or floats that go as one or two bf16 (mm_terms). A
 * group's products are summed by the matrix unit and then scaled onto the output in f32, groups in
 * order; what all of a row is scaled by comes last. Scales and zero points are asked for a group
 * ahead, by loads of the words around them, so that no dtype needs a branch.
 *
 * What bounds it: a warpgroup's product m64n128k16 keeps the matrix units for 64 cycles, m64n64k16
 * for 32, in which each of the two has that many instructions of a warp. So the next fragments are
 * made while products run, and those of a group's last while it is waited for:
 *
 *   BN 128   products 0 | make 1, products 1 | make 2, .. products 3 | make 0', wait, scale | ..
 *   BN 64    tile 0's | make tile 1's, tile 1's | (scale tile 0's) make tile 0's next, ..
 *
 * which are of u4 in groups of 128 42 instructions a product, 29 of BN 64, of 8 weights a lane.
 *
 * It may begin before the launch before has ended (CU_FOLLOW): barriers, the first stages' codes and
 * the first scales need nothing of it. The parts' sums are added likewise.
 *
 * full[i] counts the bytes of stage i; empty[i] the warps of the two warpgroups, whose first
 * products of the next stage tell that those of stage i are done.
 *
 * Shared memory, a stage: x 256 BN bytes, weights 8 MT tiles of 256 bits bytes; DEPTH stages, and
 * 128 for the barriers, 64 for the map:
 *   BN 128, MT 1:  4 bit 32768 + 8192, 4 deep 163840; 8 bit 32768 + 16384, 4 deep 196608; 16 bit
 *                  32768 + 32768, 3 deep 196608
 *   BN 64, MT 2:   4 bit 16384 + 16384, 6 deep 196608; 8 bit 16384 + 32768, 4 deep 196608; 16 bit
 *                  16384 + 65536, 2 deep 163840
 * In the end the sums of each tile, 80 BN bytes, 81920, in the stages' place. */
#include "kernels/cuda/mm.cuh"

#include "kernels/cuda/cu_sm90.cuh"

inline namespace CU_NAME(mm_sm90_cu)
{

    enum {
        USERS = 2, /* warpgroups that multiply */
        THREADS = (USERS + 1) * CU_GROUP,
        STEPS = 4,
        COLUMN = 64, /* inputs */
        JOIN = 256,
        WIDE = TILE_N + 4,          /* floats of a row of sums: so lanes' lie in different banks */
        AT_ONCE = CU_WARP / TILE_N, /* rows that a warp leaves */
        READS = 8
    };

    template <mm_code CODE, int BN> struct stage_of {
        static constexpr int MT = BN == 64 ? 2 : 1;
        static constexpr int tiles = USERS * 4 * MT;
        static constexpr int step = 64 * mm_bits(CODE), row_bytes = STEPS * step;
        static constexpr int x_column = BN * COLUMN * 2,
                             x_bytes = STEPS * TILE_K / COLUMN * x_column;
        static constexpr int bytes = x_bytes + tiles * row_bytes;
        static constexpr int depth = 196608 / bytes > 6 ? 6 : 196608 / bytes;
        static_assert(bytes % 1024 == 0, "where rows are turned from");
        static_assert(tiles * BN * WIDE * 4 <= depth * bytes, "where sums are in the end");
        static constexpr int shared = depth * bytes + 128 + 64;
    };

    struct sm90_args {
        mm_sink out;
        float *parts; /* [splits, M, ldp]; NULL: there is one split */
        int64_t M, ldp, tiles;
        int64_t x_rows;       /* of a column of x */
        int terms, per_split; /* stages */
    };

    /* The n-th word that lane (g, c) reads of a step's 2 N, counted 2 i + h of row g + 8 h, is word
 * n ^ turn: chunks whose first words are 128 bytes apart (or, of four bits, two chunks on) begin
 * with different ones. In bytes it stands at where(c, g) ^ 32 n. */
    template <mm_code CODE> __device__ __forceinline__ int turn_of(int c)
    {
        return mm_bits(CODE) < 4 ? 0 : mm_words(CODE) == 1 ? c / 2 : c % 4;
    }
    template <mm_code CODE> __device__ __forceinline__ int where(int g, int c)
    {
        return 64 * mm_word(CODE, c, 0) + 4 * (g + 8 * turn_of<CODE>(c));
    }
    /* Lane (g, c)'s words of a step for rows g and g + 8. ws: of the step, at: where() in it. */
    template <mm_code CODE>
    __device__ __forceinline__ void words_of(unsigned w[2][mm_words(CODE)], S<const uint8_t> ws,
                                             int at, int turn)
    {
        enum { N = mm_words(CODE) };
        const int third = at + 64 * (2 - (int)threadIdx.x % 4 / 2); /* of three bits */
        unsigned r[2 * N];
#pragma unroll
        for (int n = 0; n < 2 * N; n++)
            r[n] =
                cu_ld<unsigned>(ws + (CODE == C_U3 && n >= 2 ? third + 32 * (n - 2) : at ^ 32 * n));
        if (mm_bits(CODE) >= 4) {
#pragma unroll
            for (int n = 0; n < 2 * N; n += 2) { /* back to their places: by the turn's low bit */
                const unsigned even = turn & 1 ? r[n + 1] : r[n];
                r[n + 1] = turn & 1 ? r[n] : r[n + 1];
                r[n] = even;
            }
        }
        if (mm_bits(CODE) > 4) {
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
                if (n & 2) continue;
                const unsigned low = turn & 2 ? r[n + 2] : r[n];
                r[n + 2] = turn & 2 ? r[n] : r[n + 2];
                r[n] = low;
            }
        }
#pragma unroll
        for (int n = 0; n < 2 * N; n++)
            w[n % 2][n / 2] = r[n];
    }

    /* How scales and zero points lie. Each is picked out of the word around it, or out of `none`, which
 * holds what is taken where there is no plane: so there are no branches for dtypes. */
    struct side_how {
        unsigned pick, none; /* of __byte_perm(word, none, pick); by lane */
        int row8, group;     /* bytes from row g to row g + 8; from group to group */
    };
    struct sides_how {
        side_how scale, zero;
        lq_dtype scale_dtype, zero_dtype; /* as floats; F32 where there are none */
    };

    /* Bytes of a number: 1, 2 or 4. */
    __device__ __forceinline__ int size_of(lq_dtype d)
    {
        return d == LQ_F8_E4M3 || d == LQ_F8_E8M0 ? 1 : d == LQ_F16 || d == LQ_BF16 ? 2 : 4;
    }
    /* subs: of a group, 16 rows each; none: what is taken where they are not there. */
    __device__ __forceinline__ side_how side_of(bool there, lq_dtype d, int subs, unsigned none)
    {
        const int size = size_of(d), byte = threadIdx.x % CU_WARP / 4 * size % 4;
        if (!there) return { 0x7654u, none, 0, 0 };
        const int pick = size == 1 ? 0x4440 + byte : size == 2 ? 0x4410 + byte * 0x11 : 0x3210;
        return { (unsigned)pick, 0, 8 * size, subs * TILE_N * size };
    }
    template <bool QUICK> __device__ __forceinline__ sides_how sides_of(const mm_view &v)
    {
        const bool scaled = v.scale_dtype != LQ_BOOL, zeros = scaled && v.zero != QT_ZERO_NONE;
        sides_how how;
        how.scale_dtype = scaled ? v.scale_dtype : LQ_F32;
        how.zero_dtype = zeros ? v.zero_dtype : LQ_F32;
        how.scale = side_of(scaled, v.scale_dtype, v.subs, __float_as_uint(1.0f));
        how.zero = side_of(zeros, v.zero == QT_ZERO_INT ? LQ_F8_E4M3 : v.zero_dtype, 1,
                           QUICK ? (unsigned)v.zero_const : __float_as_uint(v.zero_const));
        return how;
    }

    template <bool QUICK> __device__ __forceinline__ float number_of(unsigned bits, lq_dtype d)
    {
        if (!QUICK) return mm_side_number(bits, d);
        /* opaque: so that there is no branch around it */
        const float half =
            __uint_as_float((unsigned)cu_opaque((int)__float_as_uint(cu_f16_f32(bits & 0xffffu))));
        const float wide = __uint_as_float(d == LQ_BF16 ? bits << 16 : bits);
        return d == LQ_F16 ? half : wide;
    }

    /* A warp's tile as it goes along K: rows g and g + 8 (h = 0, 1). */
    struct tile_state {
        int64_t tile;
        int words;                      /* where the lane's are, from the stage's first code on */
        G<const uint8_t> scales, zeros; /* of the group that was asked for last */
        unsigned scale_word[2], zero_word[2]; /* of it, as they come */
        mm_scale_of s[2];                     /* of the group before, whose codes are converted */
        float by[2];                          /* what its products are scaled by */
    };

    __device__ __forceinline__ void ask(tile_state * t, const sides_how &how)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            t->scale_word[h] = cu_ldg<unsigned>(t->scales + h * how.scale.row8);
            t->zero_word[h] = cu_ldg<unsigned>(t->zeros + h * how.zero.row8);
        }
    }
    /* Before group `at`, counted from the first tile's first. */
    __device__ __forceinline__ void begin_tile(tile_state * t, const mm_view &v,
                                               const sides_how &how, int64_t at)
    {
        const int g = threadIdx.x % CU_WARP / 4,
                  sub = v.subs == 2 ? threadIdx.x % 4 / 2 * TILE_N : 0;
        t->scales = t->zeros = G<const uint8_t>(v.codes); /* of no use, but may be read */
        if (how.scale.group)
            t->scales = G<const uint8_t>(v.scales) +
                        (at * how.scale.group + ((sub + g) * (how.scale.row8 / 8) & ~3));
        if (how.zero.group)
            t->zeros =
                G<const uint8_t>(v.zeros) + (at * how.zero.group + (g * (how.zero.row8 / 8) & ~3));
        t->s[0] = t->s[1] = { 1.0f, 0.0f, 0 };
        t->by[0] = t->by[1] = 1.0f;
        ask(t, how);
    }
    /* To the group that was asked for; asks for the next one. more: there is one. */
    template <mm_code CODE, bool QUICK>
    __device__ __forceinline__ void turn(tile_state * t, const mm_view &v, const sides_how &how,
                                         bool more)
    {
        if (CODE == C_BF16 || CODE == C_F16) return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const unsigned scale = __byte_perm(t->scale_word[h], how.scale.none, how.scale.pick),
                           zero = __byte_perm(t->zero_word[h], how.zero.none, how.zero.pick);
            t->s[h].scale = t->by[h] = number_of<QUICK>(scale, how.scale_dtype);
            if (QUICK && CODE != C_U8) {
                t->s[h].less = __byte_perm(zero, 0x43u, 0x4040u);
            } else if (QUICK) {
                t->s[h].zero = (float)zero;
                if (v.div127) t->by[h] = t->by[h] / 127.0f;
            } else {
                const float f = number_of<QUICK>(zero, how.zero_dtype);
                t->s[h].zero = v.zero == QT_ZERO_INT ? (float)zero : f;
                t->by[h] = v.zero == QT_ZERO_BIAS || v.subs == 2 ? 1.0f : t->by[h];
            }
        }
        t->scales += more ? how.scale.group : 0;
        t->zeros += more ? how.zero.group : 0;
        ask(t, how);
    }

    /* A of one step's products; low, where terms == 2: what bf16 leaves of the numbers. */
    template <mm_code CODE, bool QUICK>
    __device__ __forceinline__ void fragments_of(
        unsigned a[2][4], unsigned low[2][4], const tile_state &t, const mm_view &v,
        S<const uint8_t> ws, int turn, S<const float> map, int terms)
    {
        const int c = threadIdx.x % 4;
        unsigned w[2][mm_words(CODE)];
        words_of<CODE>(w, ws, t.words, turn);
        if constexpr (QUICK || CODE == C_E2M1) {
            mm_quick<CODE>(a, w, c, t.s);
            if (!QUICK && v.subs == 2) mm_times_scales(a, t.s);
        } else {
            float q[2][8];
            for (int h = 0; h < 2; h++) {
                mm_scale_of s = t.s[h];
                mm_numbers<CODE>(q[h], w[h], c, map);
                mm_center(q[h], &s, v.zero);
            }
            mm_fragments(a, q);
            if (terms == 2) {
                mm_rest(q);
                mm_fragments(low, q);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) /* now, and not where they are multiplied */
            a[i / 4][i % 4] = (unsigned)cu_opaque((int)a[i / 4][i % 4]);
    }

    template <int BN>
    __device__ __forceinline__ void scale_onto(float(&acc)[BN / 2], float(&part)[BN / 2],
                                               const float by[2])
    {
        cu_keep(part);
#pragma unroll
        for (int k = 0; k < BN / 2; k++)
            acc[k] = fmaf(by[k / 2 % 2], part[k], acc[k]);
    }

    /* A warpgroup's products as they go along K. */
    template <int BN, int MT> struct products {
        float acc[MT][BN / 2], part[MT][BN / 2]; /* part: of the group */
        tile_state t[MT];
        unsigned a[2][2][4], low[2][2][4]; /* of the products under way, and of the next */
        uint64_t x;                        /* of the stage */
        int turn;                          /* turn_of the lane */
        int steps, end;                    /* to come; then, when the group is over */
        bool begun;                        /* part holds products */
        int slot, before;                  /* stages: of the step; that which was left, or -1 */
        unsigned phase;
    };

    /* Multiplies by step j of a stage, whose fragments are there, and makes those of the next one while
 * the matrix units work. false: it was the last. */
    template <mm_code CODE, bool QUICK, int BN, int j, int MT>
    __device__ __forceinline__ bool multiply_step(
        products<BN, MT> & p, S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const mm_view &v,
        const sides_how &how, S<const float> map, int terms)
    {
        typedef stage_of<CODE, BN> st;
        const bool more = --p.steps > 0, ends = p.steps == p.end;
        const uint64_t x = p.x + (unsigned)((j / 2 * st::x_column + j % 2 * (TILE_K * 2)) >> 4);
        int ahead = p.slot;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const int now = (j * MT + m) % 2, next = (m + 1) % MT;
            const bool last = m + 1 == MT;
            cu_keep(p.part[m]);
            cu_wgmma_begin();
            cu_wgmma<false, BN>(p.part[m], p.a[now][0], x, p.begun);
            cu_wgmma<false, BN>(p.part[m], p.a[now][1], x + (32 >> 4), true);
            if (!QUICK && terms == 2) {
                cu_wgmma<false, BN>(p.part[m], p.low[now][0], x, true);
                cu_wgmma<false, BN>(p.part[m], p.low[now][1], x + (32 >> 4), true);
            }
            cu_wgmma_commit();
            cu_keep(p.part[m]);
            cu_wgmma_wait<1>(); /* those before are done, and do not need their stage any more */
            if (j == 0 && m == 0 && p.before >= 0) {
                __syncwarp();
                if (threadIdx.x % CU_WARP == 0) cu_bar_arrive(empty + p.before);
            }
            const float by[2] = { p.t[m].by[0], p.t[m].by[1] };
            if (last && ends) {
                p.end = p.end > v.group_steps ? p.end - v.group_steps : 0;
                if (MT > 1) scale_onto<BN>(p.acc[0], p.part[0], p.t[0].by);
#pragma unroll
                for (int k = 0; k < MT; k++)
                    turn<CODE, QUICK>(&p.t[k], v, how, p.end > 0);
            }
            if (last && j + 1 == STEPS) {
                ahead = p.slot + 1 < st::depth ? p.slot + 1 : 0;
                p.phase ^= ahead == 0;
                if (more) cu_bar_wait(full + ahead, p.phase);
            }
            if (!last || more)
                fragments_of<CODE, QUICK>(
                    p.a[1 - now], p.low[1 - now], p.t[next], v,
                    at + (ahead * st::bytes + st::x_bytes + (j + last) % STEPS * st::step), p.turn,
                    map, terms);
            if (last && ends) {
                cu_wgmma_wait<0>();
                scale_onto<BN>(p.acc[m], p.part[m], by);
            }
        }
        if (j + 1 == STEPS) {
            p.before = p.slot;
            p.slot = ahead;
            p.x += (uint64_t)(int64_t)((ahead ? st::bytes : -(st::depth - 1) * st::bytes) / 16);
        }
        p.begun = !ends;
        return more;
    }

    /* By every thread of the block: nobody reads a stage any more. */
    __device__ __forceinline__ void all_read() { __syncthreads(); }

    /* A tile's sums, [panel.rows][WIDE] in shared memory: what is made of them, by its warp. */
    __device__ __forceinline__ void leave(S<float> sums, mm_view v, const mm_view &outliers,
                                          const mm_panel &panel, const sm90_args &o, int64_t tile)
    {
        const int lane = threadIdx.x % CU_WARP, r = lane % TILE_N, rows = (int)panel.rows;
        const int64_t out = tile * TILE_N + r;
        const G<float> to =
            o.parts ? G<float>(o.parts) + (((int64_t)blockIdx.z * o.M + panel.m0) * o.ldp)
                    : G<float>(o.out.y) + panel.m0 * o.out.ldy;
        const int64_t ld = o.parts ? o.ldp : o.out.ldy;
        const bool bias = !o.parts && o.out.bias, add = !o.parts && o.out.add;
        if (out >= o.out.N) return;
        v.div127 = false; /* that is done */
        if (v.scales2 || outliers.steps) {
#pragma unroll 1
            for (int row = lane / TILE_N; row < rows; row += AT_ONCE) {
                float y = mm_row_scaled(sums[row * WIDE + r], v, tile, r);
                if (outliers.steps && !o.parts)
                    y += mm_outlier_sum(outliers, tile, r,
                                        G<const float>(o.out.x_out) + (panel.m0 + row) * o.out.ldo);
                sums[row * WIDE + r] = y;
            }
        }
        const float more = bias ? G<const float>(o.out.bias)[out] : 0.0f;
#pragma unroll 1
        for (int first = lane / TILE_N; first < rows; first += AT_ONCE * READS) {
            float old[READS] = {};
#pragma unroll
            for (int k = 0; k < READS; k++) /* all at once */
                if (add && first + k * AT_ONCE < rows)
                    old[k] = to[(first + k * AT_ONCE) * ld + out];
#pragma unroll
            for (int k = 0; k < READS; k++) {
                const int row = first + k * AT_ONCE;
                if (row >= rows) break;
                float y = sums[row * WIDE + r];
                if (bias) y += more;
                to[row * ld + out] = add ? y + old[k] : y;
            }
        }
    }

    template <mm_code CODE, bool QUICK, int BN>
    __device__ void multiply(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const mm_view &v,
                             const mm_view &outliers, const mm_panel &panel, const sm90_args &o,
                             S<const float> map, int first, int last)
    {
        typedef stage_of<CODE, BN> st;
        enum { MT = st::MT };
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const int from = first * STEPS, to = last * STEPS < v.steps ? last * STEPS : v.steps;
        const sides_how how = sides_of<QUICK>(v);
        products<BN, MT> p;
        const int group = from / v.group_steps, end = to - (group + 1) * v.group_steps;
        p.steps = to - from;
        p.end = end > 0 ? end : 0;
        p.x = cu_desc_k(at);
        p.turn = cu_opaque(turn_of<CODE>(c));
        p.begun = false;
        p.slot = 0;
        p.before = -1;
        p.phase = 0;
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int k = 0; k < BN / 2; k++)
                p.acc[m][k] = 0;
            const int64_t tile0 = (int64_t)blockIdx.x * st::tiles;
            p.t[m].tile = tile0 + (warp / 4 * MT + m) * 4 + warp % 4;
            /* behind the last tile it again, for nothing */
            const int64_t tile = p.t[m].tile < o.tiles ? p.t[m].tile : o.tiles - 1;
            p.t[m].words = cu_opaque((int)(tile - tile0) * st::row_bytes + where<CODE>(g, c));
            begin_tile(&p.t[m], v, how, tile * v.ng + group);
            turn<CODE, QUICK>(&p.t[m], v, how, p.end > 0);
        }
        cu_after();
        cu_bar_wait(full, 0);
        fragments_of<CODE, QUICK>(p.a[0], p.low[0], p.t[0], v, at + st::x_bytes, p.turn, map,
                                  o.terms);
        static_assert(STEPS == 4, "steps of a stage, one after the other");
#define STEP(j) multiply_step<CODE, QUICK, BN, j, MT>(p, at, full, empty, v, how, map, o.terms)
#pragma unroll 1
        while (STEP(0) && STEP(1) && STEP(2) && STEP(3)) {
        }
#undef STEP
        cu_wgmma_wait<0>(); /* there are none, but the compiler does not know */
        all_read();
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const S<float> sums = cu_as<float>(at) + (warp * MT + m) * BN * WIDE;
#pragma unroll
            for (int k = 0; k < BN / 2; k++)
                sums[(k / 4 * 8 + 2 * c + k % 2) * WIDE + g + 8 * (k / 2 % 2)] = p.acc[m][k];
            __syncwarp();
            if (p.t[m].tile < o.tiles) leave(sums, v, outliers, panel, o, p.t[m].tile);
        }
    }

    /* What one warp brings: of stage i its codes, and how many bytes there will be; its x. */
    template <mm_code CODE, int BN> struct carrier {
        typedef stage_of<CODE, BN> st;
        S<uint8_t> at;
        S<uint64_t> full;
        G<const uint8_t> codes;
        G<const uint16_t> x;
        int64_t tile_bytes, x_rows;
        int tiles, all; /* of the block; steps of K */

        __device__ __forceinline__ int steps(int i) const
        {
            return all - i * STEPS < STEPS ? all - i * STEPS : STEPS;
        }
        __device__ __forceinline__ int columns(int i) const
        {
            return (steps(i) * TILE_K + COLUMN - 1) / COLUMN;
        }
        __device__ __forceinline__ void bring_codes(int i, int slot) const
        {
            const int lane = threadIdx.x % CU_WARP, n = steps(i) * st::step;
            if (lane == 0)
                cu_bar_expect(full + slot, (unsigned)(columns(i) * st::x_column + tiles * n));
            __syncwarp();
            if (lane < tiles)
                cu_bulk_ldg(at + (slot * st::bytes + st::x_bytes + lane * st::row_bytes),
                            codes + (lane * tile_bytes + (int64_t)i * st::row_bytes), (unsigned)n,
                            full + slot);
        }
        __device__ __forceinline__ void bring_x(int i, int slot) const
        {
            const int lane = threadIdx.x % CU_WARP;
            if (lane < columns(i))
                cu_bulk(at + (slot * st::bytes + lane * st::x_column),
                        x + ((int64_t)i * (STEPS * TILE_K / COLUMN) + lane) * x_rows * COLUMN,
                        st::x_column, full + slot);
        }
    };

    /* By one warp: what the block's warpgroups need, stage by stage. The first codes are under way while the launch
     * before is not done. */
    template <mm_code CODE, int BN>
    __device__ void bring(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const mm_view &v,
                          G<const uint16_t> x, int64_t row0, const sm90_args &o, int first,
                          int last)
    {
        typedef stage_of<CODE, BN> st;
        const int64_t tile0 = (int64_t)blockIdx.x * st::tiles;
        const int tiles = o.tiles - tile0 < st::tiles ? (int)(o.tiles - tile0) : st::tiles,
                  ahead = last - first < st::depth ? last - first : st::depth;
        const carrier<CODE, BN> c = { at,
                                      full,
                                      G<const uint8_t>(v.codes) + tile0 * v.tile_bytes,
                                      x + row0 * COLUMN,
                                      v.tile_bytes,
                                      o.x_rows,
                                      tiles,
                                      v.steps };
        for (int i = 0; i < ahead; i++)
            c.bring_codes(first + i, i);
        cu_after();
        for (int i = 0; i < ahead; i++)
            c.bring_x(first + i, i);
        for (int i = ahead; i < last - first; i++) {
            const int slot = i % st::depth, round = i / st::depth;
            cu_bar_wait(empty + slot, (unsigned)((round - 1) & 1));
            c.bring_codes(first + i, slot);
            c.bring_x(first + i, slot);
        }
    }

    template <mm_code CODE, bool QUICK, int BN>
    __global__ void __launch_bounds__(THREADS, 1)
        sm90_kernel(mm_view v, mm_view outliers, mm_rows group, G<const uint16_t> x, sm90_args o)
    {
        typedef stage_of<CODE, BN> st;
        CU_DYNAMIC_1K(uint8_t, at);
        const S<uint64_t> full = cu_as<uint64_t>(at + st::depth * st::bytes), empty = full + 8;
        const S<float> map = cu_as<float>(at + (st::depth * st::bytes + 128));
        cu_next();
        if (group.parts) cu_after(); /* only then it is known what the block has */
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
            else
                cu_after();
            all_read();
        } else {
            cu_regs_more<232>();
            multiply<CODE, QUICK, BN>(at, full, empty, v, outliers, panel, o, map, first, last);
        }
    }

    /* The splits' sums in order; a thread an output. */
    __global__ void __launch_bounds__(JOIN)
        sm90_join_kernel(sm90_args o, mm_view outliers, int splits)
    {
        const int64_t out = (int64_t)blockIdx.x * JOIN + threadIdx.x, m = blockIdx.y;
        cu_follow();
        if (out >= o.out.N) return;
        float sum = 0;
        for (int i = 0; i < splits; i++)
            sum += G<float>(o.parts)[(i * o.M + m) * o.ldp + out];
        mm_finish(sum, o.out, outliers, out / TILE_N, (int)(out % TILE_N), m, out);
    }

    template <mm_code CODE, bool QUICK, int BN>
    void run(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        typedef stage_of<CODE, BN> st;
        const mm_view outliers = CU_NAME(mm_outliers_of)(a->w);
        const mm_sm90 how = mm_sm90_of(a->w, x->rows.M, x->rows.parts ? x->rows.n : 0);
        const sm90_args o = { mm_sink_of(a, x, v), how.splits > 1 ? x->parts : NULL,
                              x->rows.M,           a->w->s.tiles * TILE_N,
                              a->w->s.tiles,       how.rows,
                              mm_terms(a->w, v),   how.per_split };
        CU_ALLOW(d, (sm90_kernel<CODE, QUICK, BN>), 0);
        CU_FOLLOW(d, "sm90", (sm90_kernel<CODE, QUICK, BN>),
                  dim3((unsigned)lq_ceil_div(a->w->s.tiles, st::tiles), mm_panels(x->rows, BN),
                       (unsigned)how.splits),
                  THREADS, st::shared, v, outliers, x->rows, x->b, o);
        if (how.splits > 1)
            CU_FOLLOW(d, "sm90_join", sm90_join_kernel,
                      dim3((unsigned)lq_ceil_div(v.N, JOIN), (unsigned)x->rows.M), JOIN, 0, o,
                      outliers, how.splits);
    }

    template <mm_code CODE, int BN>
    void launch(dev * d, const dev_mm_args *a, const mm_input *x, const mm_view &v)
    {
        /* scales of a byte are those of E2M1 as a rule; of others what has floats takes them */
        constexpr bool can = mm_can_quick(CODE) && CODE != C_E2M1,
                       always = CODE == C_BF16 || CODE == C_E4M3, floats = CODE != C_U3 || BN != 64;
        const bool rare = v.scale_dtype == LQ_F8_E4M3 || v.scale_dtype == LQ_F8_E8M0;
        if (can && mm_is_quick(CODE, v.zero) && (always || !rare))
            run<CODE, can, BN>(d, a, x, v);
        else if constexpr (floats) /* mm_sm90_of has no narrow blocks of the others */
            run<CODE, always, BN>(d, a, x, v);
    }

}

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
