/* kernels/cuda/attn_mma.cu - attention of many rows over the paged cache through the matrix units,
 * for keys and values of any type but f32: mma.m16n8k16 with f32 sums.
 *
 *   units   grid: slots (one split of one chunk of rows) x kv heads x passes
 * of PAIRS (row, head) pairs. A warp keeps 16 pairs, and takes from shared memory all of each tile
 * of 64 keys:
 *
 *               q   [16 pairs, D]  shared      scores [16, 64]  registers
 *               K   [64 keys, D]   shared      weights          the same ones, as A operand
 *               V   [64 keys, Dv]  shared      sums [16, Dv]    registers
 *
 *           While a tile's scores are made its V comes (cp.async), and during the sums the next
 *           tile's K: one buffer of each is enough. Codes of int8, int4 and fp8 are bf16 as they
 *           are, and are converted on the way; the keys' scales go onto the scores, the values'
 *           onto the weights. Maximum, sum and accumulator of the split go to scratch; attn.cu's
 *           merge takes the splits in order, then the sink.
 *
 * q times the scale, and the weights, are rounded to the cache's type (of codes: bf16); a weight is
 * in 0..1, and q beyond f16 becomes its largest number. The tiles' order is fixed and every row's
 * sums are its own: what shares a launch changes no result (but kernels/device.h: how many rows of a
 * sequence do).
 *
 * Shared memory, in 16-bit numbers: q, K and V each 64 x WIDTH, and (static) where the 64 rows of K
 * and V of two tiles begin, 2048 B, and their scales, 512 B. In all 27136 B at WIDTH = 64, 51712 at
 * 128, 100864 at 256 (sm_86 has 101376). A row's 16-byte pieces are turned by its number, so that
 * ldmatrix's eight rows lie in 32 banks. Heads are padded with zeros to 32 (of V to 16). */
#include "kernels/cuda/attn.cuh"

inline namespace CU_NAME(attn_mma_cu)
{

    enum { WARPS = 4, THREADS = WARPS * CU_WARP, PAIRS = 16 * WARPS, KEYS = 64, PIECE = 8 };
    static_assert((int)PAIRS == (int)DEV_ATTN_PAIRS, "what a plan counts with");

    /* Where piece p of a row stands in a tile of rows of WIDTH. */
    template <int WIDTH> __device__ __forceinline__ int spot(int row, int p)
    {
        return row * WIDTH + (p ^ (row & 7)) * PIECE;
    }

    /* Where K and V of the keys pos .. pos + 63 begin, each [KEYS]; -1: before the first that any row
     * sees, or behind the last. */
    __device__ __forceinline__ void find_rows(S<int64_t> rows, G<const int32_t> table,
                                              const attn_view &v, int kvh, int64_t pos,
                                              int64_t first, int64_t last)
    {
        const int j = threadIdx.x;
        if (j >= KEYS) return;
        const int64_t p = pos + j;
        int64_t k = -1, val = -1;
        if (p >= first && p < last) {
            const int64_t block = (int64_t)table[attn_block(p, v)] * (int64_t)v.block_stride;
            const int64_t row = (int64_t)kvh * v.block_size + attn_place(p, v);
            k = block + row * v.row_k;
            val = block + row * v.row_v;
        }
        rows[j] = k;
        rows[KEYS + j] = val;
    }

    /* The rows of a tile: `pieces` of each, zeros up to `padded` and in rows that are not there; and
 * their scales [KEYS], of codes. Eight threads a row, a piece each; codes are asked for together. */
    template <int WIDTH, kv_dtype T>
    __device__ __forceinline__ void bring(S<uint16_t> tile, S<float> scales, G<const uint8_t> cache,
                                          S<int64_t> rows, int pieces, int padded)
    {
        enum { TURNS = KEYS / (THREADS / 8), PER = WIDTH / PIECE / 8 };
        const int j0 = threadIdx.x / 8, p0 = threadIdx.x % 8;
        if constexpr (attn_scaled(T)) {
            attn_codes<T> codes[TURNS][PER];
            unsigned head[TURNS];
            const int block = T == KV_I4 ? (int)attn_i4_block(PIECE * pieces) : 1;
#pragma unroll
            for (int i = 0; i < TURNS; i++) { /* row 0 is there */
                const int64_t row = rows[j0 + i * (THREADS / 8)], from = row < 0 ? rows[0] : row;
                head[i] = cu_ld<unsigned>(cache + from);
#pragma unroll
                for (int m = 0; m < PER; m++)
                    codes[i][m] =
                        attn_bring<T>(cache + from, p0 + 8 * m < pieces ? PIECE * (p0 + 8 * m) : 0);
            }
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                const int j = j0 + i * (THREADS / 8);
                const bool there = rows[j] >= 0;
                if (p0 == 0) scales[j] = there ? attn_scale<T>(head[i]) : 0.0f;
#pragma unroll
                for (int m = 0; m < PER; m++) {
                    const int p = p0 + 8 * m;
                    const uint4 x = attn_numbers<T>(codes[i][m], head[i], PIECE * p / block);
                    if (p < padded)
                        cu_st(tile + spot<WIDTH>(j, p),
                              there && p < pieces ? x : uint4{ 0, 0, 0, 0 });
                }
            }
        } else {
            for (int j = j0; j < KEYS; j += THREADS / 8) {
                const int64_t row = rows[j];
                for (int p = p0; p < padded; p += 8) {
                    const bool there = row >= 0 && p < pieces;
                    cu_copy16(tile + spot<WIDTH>(j, p), cache + (there ? row + 16 * p : 0), there);
                }
            }
        }
    }

    template <int WIDTH, kv_dtype T>
    __global__ void __launch_bounds__(THREADS, WIDTH == 256 ? 1 : 2)
        units_kernel(attn_end e, G<const float> q, G<const uint8_t> k, G<const uint8_t> values,
                     G<const int32_t> chunk_of, G<const dev_attn_chunk> chunks,
                     G<const int32_t> tables, G<const float> alibi, attn_view v)
    {
        constexpr bool F16 = T == KV_F16;
        CU_DYNAMIC(uint16_t, qs);
        CU_SHARED(int64_t, where, 4 * KEYS);
        CU_SHARED(float, scales, 2 * KEYS); /* of keys, of values */
        const S<uint16_t> ks = qs + PAIRS * WIDTH, vs = ks + KEYS * WIDTH;
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const int kvh = blockIdx.y, group = v.H / v.Hkv, pair0 = blockIdx.z * PAIRS,
                  slot = attn_slot();
        const dev_attn_chunk ch = cu_ld<dev_attn_chunk>(chunks + chunk_of[slot]);
        const int n_pairs = ch.n_rows * group - pair0;
        if (n_pairs <= 0) return; /* all threads of the block alike */
        const int k_pieces = v.D / PIECE, v_pieces = v.Dv / PIECE;
        const int k_padded = (k_pieces + 3) / 4 * 4, v_padded = (v_pieces + 1) / 2 * 2;
        const int64_t split = (int64_t)(ch.split0 + slot - ch.slot) * v.split;
        const int64_t last = attn_seen(ch.pos + ch.n_rows - 1, ch.fresh,
                                       v); /* behind the last key that any row sees */
        const int64_t end = last < split + v.split ? last : split + v.split;
        const int64_t seen = v.window ? ch.pos - v.window + 1 : 0;
        const int64_t oldest = attn_scaled(T) ? 0 : seen; /* of codes the weights are looked at */
        int64_t pos = (seen > split ? seen : split) / KEYS * KEYS;
        const G<const int32_t> table = tables + ch.table;
        S<int64_t> rows = where, next = where + 2 * KEYS;
        find_rows(rows, table, v, kvh, pos, oldest, last);
        for (int i = threadIdx.x; i < PAIRS * k_padded * PIECE; i += THREADS) {
            const int p = i / (k_padded * PIECE), d = i % (k_padded * PIECE), pair = pair0 + p;
            float x = 0;
            if (p < n_pairs && d < v.D)
                x = v.scale * q[(ch.row + pair / group) * v.ldq +
                                (int64_t)(kvh * group + pair % group) * v.D + d];
            qs[spot<WIDTH>(p, d / PIECE) + d % PIECE] = attn_narrow<F16>(x);
        }
        int64_t query[2];
        float slope[2] = { 0, 0 }, m[2] = { -INFINITY, -INFINITY }, l[2] = { 0, 0 };
        for (int h = 0; h < 2; h++) { /* of the accumulators' rows g and g + 8 */
            const int pair = pair0 + 16 * warp + g + 8 * h;
            query[h] = ch.pos + pair / group;
            if (alibi) slope[h] = alibi[kvh * group + pair % group];
        }
        float acc[WIDTH / 8][4] = {};
        __syncthreads(); /* rows */
        bring<WIDTH, T>(ks, scales, k, rows, k_pieces, k_padded);
        cu_copy_commit();
        for (; pos < end; pos += KEYS) {
            cu_copy_wait<0>();
            __syncthreads(); /* K is there, and q; V of the tile before is done with */
            bring<WIDTH, T>(vs, scales + KEYS, values, rows + KEYS, v_pieces, v_padded);
            cu_copy_commit();
            find_rows(next, table, v, kvh, pos + KEYS, oldest, last);
            float s[KEYS / 8][4] = {};
#pragma unroll(WIDTH == 256 ? 1 : 2) /* of sm_120 the registers hold no more */
            for (int d = 0; d < k_padded; d += 4) {
                unsigned a[2][4];
                cu_ldmatrix<false>(a[0], qs + spot<WIDTH>(16 * warp + lane % 16, d + lane / 16));
                cu_ldmatrix<false>(a[1],
                                   qs + spot<WIDTH>(16 * warp + lane % 16, d + 2 + lane / 16));
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) {
                    unsigned b[4];
                    cu_ldmatrix<false>(b, ks + spot<WIDTH>(8 * n + lane % 8, d + lane / 8));
                    cu_mma<F16>(s[n], a[0], b);
                    cu_mma<F16>(s[n], a[1], b + 2);
                }
            }
            float top[2] = { -INFINITY, -INFINITY }, keep[2];
            int lo[2], hi[2]; /* the columns that a row sees */
            for (int h = 0; h < 2; h++) {
                const int64_t first = v.window ? query[h] - v.window + 1 - pos : 0;
                const int64_t behind = attn_seen(query[h], ch.fresh, v) - pos;
                lo[h] = (int)(first < 0 ? 0 : first > KEYS ? KEYS : first);
                hi[h] = (int)(behind < 0 ? 0 : behind > KEYS ? KEYS : behind);
            }
            if (v.softcap > 0 || alibi) /* all threads alike */
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int col = 8 * n + 2 * c + i % 2;
                        const float score = attn_scaled(T) ? s[n][i] * scales[col] : s[n][i];
                        s[n][i] = attn_adjust(score, v, slope[i / 2], pos + col, query[i / 2]);
                    }
            else if (attn_scaled(T))
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[n][i] *= scales[8 * n + 2 * c + i % 2];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int h = i / 2, col = 8 * n + 2 * c + i % 2;
                    s[n][i] = col >= lo[h] && col < hi[h] ? s[n][i] : -INFINITY;
                    top[h] = s[n][i] > top[h] ? s[n][i] : top[h];
                }
            attn_rise(m, l, keep, top);
            const float most[2] = { m[0] > -INFINITY ? m[0] : 0.0f,
                                    m[1] > -INFINITY ? m[1] : 0.0f };
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = attn_exp(s[n][i] - most[i / 2]);
                    l[i / 2] += s[n][i];
                }
            cu_copy_wait<0>();
            __syncthreads(); /* V is there, and `next`; K is done with */
            if (pos + KEYS < end) bring<WIDTH, T>(ks, scales, k, next, k_pieces, k_padded);
            cu_copy_commit();
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[n][i] *= keep[i / 2];
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                if (attn_scaled(
                        T)) /* of keys that a row sees: 0 times another's NaN is none of its */
                    for (int i = 0; i < 8; i++) {
                        const int col = 16 * j + 8 * (i / 4) + 2 * c + i % 2, h = i % 4 / 2;
                        float *w = &s[2 * j + i / 4][i % 4];
                        *w = col >= lo[h] && col < hi[h] ? *w * scales[KEYS + col] : 0.0f;
                    }
                const unsigned a[4] = { cu_pair<F16>(s[2 * j][0], s[2 * j][1]),
                                        cu_pair<F16>(s[2 * j][2], s[2 * j][3]),
                                        cu_pair<F16>(s[2 * j + 1][0], s[2 * j + 1][1]),
                                        cu_pair<F16>(s[2 * j + 1][2], s[2 * j + 1][3]) };
#pragma unroll
                for (int n = 0; n < WIDTH / 16; n++) {
                    if (2 * n >= v_padded) continue; /* all lanes alike */
                    unsigned b[4];
                    cu_ldmatrix<true>(b, vs + spot<WIDTH>(16 * j + lane % 16, 2 * n + lane / 16));
                    cu_mma<F16>(acc[2 * n], a, b);
                    cu_mma<F16>(acc[2 * n + 1], a, b + 2);
                }
            }
            const S<int64_t> used = rows;
            rows = next;
            next = used;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[h] += cu_shfl_xor(l[h], 1);
            l[h] += cu_shfl_xor(l[h], 2);
            const int p = 16 * warp + g + 8 * h, pair = pair0 + p;
            if (p >= n_pairs) continue;
            float sums[WIDTH / 8][2];
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
                for (int two = 0; two < 2; two++)
                    sums[n][two] = acc[n][2 * h + two];
            attn_put(e, v, ch, slot, pair / group, kvh * group + pair % group, m[h], l[h], sums, 0,
                     v.Dv);
        }
    }

    template <int WIDTH, kv_dtype T>
    void launch(dev * d, const dev_attn_args *a, const attn_view &v, const attn_end &e, dim3 grid)
    {
        const int shared = 3 * PAIRS * WIDTH * (int)sizeof(uint16_t);
        static_assert((int)PAIRS == (int)KEYS, "q, K and V are as large");
        CU_ALLOW(d, (units_kernel<WIDTH, T>), KEYS * (4 * sizeof(int64_t) + 2 * sizeof(float)));
        CU_LAUNCH(d, "attn units", (units_kernel<WIDTH, T>), grid, THREADS, (size_t)shared, e, a->q,
                  a->k, a->v, a->chunk_of, a->chunks, a->tables, a->alibi, v);
    }

    template <kv_dtype T>
    void launch_width(dev * d, const dev_attn_args *a, const attn_view &v, const attn_end &e,
                      dim3 grid)
    {
        const int64_t width = a->D > a->Dv ? a->D : a->Dv;
        if (width <= 64)
            launch<64, T>(d, a, v, e, grid);
        else if (width <= 128)
            launch<128, T>(d, a, v, e, grid);
        else
            launch<256, T>(d, a, v, e, grid);
    }

}

void CU_NAME(attn_units)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e)
{
    const dim3 grid((unsigned)a->n_slots, (unsigned)a->Hkv,
                    (unsigned)lq_ceil_div(v->chunk_rows * (a->H / a->Hkv), PAIRS));
    switch (a->dtype) {
#define CASE(type)                              \
    case type:                                  \
        launch_width<type>(d, a, *v, *e, grid); \
        return;
        ATTN_CACHES(CASE)
#undef CASE
    default:
        return; /* f32: the exact kernel's */
    }
}
