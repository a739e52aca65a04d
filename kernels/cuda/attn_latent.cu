/* kernels/cuda/attn_latent.cu - attention over latents (MLA), of any number of rows: one row of the
 * cache is key and value of all heads, up to DEV_ATTN_LATENT_WIDTH numbers of which the values are
 * the first DEV_ATTN_LATENT_VALUES; and over the keys and values of heads wider than DEV_ATTN_WIDTH.
 * mma.m16n8k16 with f32 sums.
 *
 *   latent  grid: slots (one split of keys of one chunk of rows) x kv heads x passes of PAIRS (row,
 *           head) pairs, 64, 32 or 16. A tile of 32 keys is brought once for all of them and read as K
 *           and as V. Its pairs are taken by 16, and each 16 by PARTS warps, which have a part of
 *           the keys of the scores and a part of the columns of the sums:
 *
 *                 keys 0 .. 31                     d 0 ........ Dv
 *           pair [ 0 | 1 | 2 | 3 ]  scores   pair [ 0 | 1 | 2 | 3 ]  sums, registers: warp = part
 *             ..  their maxima meet in         ..
 *             15  shared memory                15
 *
 *           then the weights, of all keys, go through shared memory. There are two tiles: while one
 *           is multiplied the next is brought (cp.async; codes are converted on the way, and their
 *           scales go onto the scores and onto the weights). A split's maximum, sum and accumulator
 *           go to scratch for attn.cu's merge or, where every chunk has one, out.
 *
 * q times the scale, and the weights, are rounded to the cache's type (of codes: bf16), as by
 * DEV_ATTN_UNITS. The order of a row's sums is fixed by its position and the split's keys.
 *
 * Shared memory, in 16-bit numbers: q PAIRS x P, two tiles of 32 x P, weights PAIRS x 32, P the
 * row's width up to a multiple of 64: of 576 numbers 151552 B of 64 pairs, 112640 of 32, 93184 of
 * 16; of wide heads of 512 135168, 100352 and 82944. Static, where the rows of two tiles begin (of wide
 * heads of K and V each), their scales, maxima: 1280 B and 1792 B. A row's 16-byte
 * pieces are turned by its number, so that ldmatrix's eight rows lie in 32 banks. */
#include "kernels/cuda/attn.cuh"

inline namespace CU_NAME(attn_latent_cu)
{

    enum { KEYS = 32, PIECE = 8, STATIC = 1280, STATIC_WIDE = 1792 };
    static_assert((int)DEV_ATTN_HEAD <= (int)DEV_ATTN_LATENT_VALUES, "columns of the sums");

    template <int PAIRS> struct team {
        enum {
            PARTS = PAIRS == 64 ? 2 : 4,
            THREADS = PAIRS / 16 * PARTS * CU_WARP,
            NK = KEYS / 8 / PARTS,                  /* eights of keys of a warp's scores */
            NV = DEV_ATTN_LATENT_VALUES / 8 / PARTS /* of columns of its sums, at most */
        };
    };

    /* Where piece p of a row is in q, and in a tile; and in the weights. */
    __device__ __forceinline__ int spot(int row, int p, int pitch)
    {
        return row * pitch + (p ^ (row & 7)) * PIECE;
    }
    __device__ __forceinline__ int weight_spot(int row, int p)
    {
        return row * KEYS + (p ^ (row / 2 & 3)) * PIECE;
    }

    /* Where the keys pos .. pos + 31, or those places of a list, begin, and behind them, of wide heads, their values;
     * -1: before the first that any row sees, or behind the last. */
    template <bool LATENT>
    __device__ __forceinline__ void find_rows(S<int64_t> rows, G<const int32_t> table,
                                              G<const int32_t> list, const attn_view &v, int kvh,
                                              int64_t pos, int64_t first, int64_t last)
    {
        const int j = threadIdx.x;
        int64_t p = pos + j;
        int64_t k = -1, val = -1;
        if (j >= KEYS) return;
        if (p >= first && p < last) {
            if (list) p = list[p];
            const int64_t block = (int64_t)table[attn_block(p, v)] * (int64_t)v.block_stride,
                          row = (int64_t)kvh * v.block_size + attn_place(p, v);
            k = block + row * v.row_k;
            val = block + row * v.row_v;
        }
        rows[j] = k;
        if (!LATENT) rows[KEYS + j] = val;
    }

    /* The rows of a tile, zeros up to `padded` pieces and in rows that are not there; of codes their
     * scales too. */
    template <kv_dtype T, int THREADS>
    __device__ __forceinline__ void bring(S<uint16_t> tile, S<float> scales, G<const uint8_t> cache,
                                          S<int64_t> rows, int pieces, int padded, int pitch)
    {
        const int block = T == KV_I4 ? (int)attn_i4_block(PIECE * pieces) : 1;
        for (int j = threadIdx.x / 8; j < KEYS; j += THREADS / 8) {
            const int64_t row = rows[j];
            unsigned head = 0;
            if (attn_scaled(T) && row >= 0) head = cu_ld<unsigned>(cache + row);
            if (attn_scaled(T) && threadIdx.x % 8 == 0)
                scales[j] = row < 0 ? 0.0f : attn_scale<T>(head);
            for (int p = threadIdx.x % 8; p < padded; p += 8) {
                const bool there = row >= 0 && p < pieces;
                if constexpr (attn_scaled(T)) {
                    uint4 x = { 0, 0, 0, 0 };
                    if (there)
                        x = attn_numbers<T>(attn_bring<T>(cache + row, PIECE * p), head,
                                            PIECE * p / block);
                    cu_st(tile + spot(j, p, pitch), x);
                } else {
                    cu_copy16(tile + spot(j, p, pitch), cache + (there ? row + 16 * p : 0), there);
                }
            }
        }
    }

    __host__ __device__ __forceinline__ int pitch_of(const attn_view &v)
    {
        return ((v.Dv > v.D ? v.Dv : v.D) + 63) / 64 * 64;
    }

    template <bool LATENT, int PAIRS, kv_dtype T>
    __global__ void __launch_bounds__(team<PAIRS>::THREADS, 1)
        latent_kernel(attn_end e, G<const float> q, G<const uint8_t> cache, G<const uint8_t> values,
                      G<const int32_t> chunk_of, G<const dev_attn_chunk> chunks,
                      G<const int32_t> tables, attn_lists v)
    {
        typedef team<PAIRS> t;
        enum { ROWS = LATENT ? KEYS : 2 * KEYS }; /* of the cache in a step */
        constexpr bool F16 = T == KV_F16;
        CU_DYNAMIC(uint16_t, qs);
        CU_SHARED(int64_t, where, 2 * ROWS);
        CU_SHARED(float, scales, 2 * KEYS);
        CU_SHARED(float, ends, t::PARTS *PAIRS); /* the parts' maxima, in the end their sums */
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4, part = warp % t::PARTS, row0 = warp / t::PARTS * 16;
        const int pieces = v.D / PIECE, padded = (pieces + 3) / 4 * 4, pitch = pitch_of(v),
                  pair0 = blockIdx.z * PAIRS, slot = attn_slot(), kvh = blockIdx.y,
                  group = v.H / v.Hkv;
        const int v_pieces = v.Dv / PIECE, v_padded = (v_pieces + 1) / 2 * 2;
        const S<uint16_t> tiles = qs + PAIRS * pitch, ps = tiles + 2 * KEYS * pitch;
        cu_follow();
        const int own = chunk_of[slot];
        if (own < 0) return; /* all threads of the block alike, as below */
        dev_attn_chunk ch = cu_ld<dev_attn_chunk>(chunks + own);
        const G<const int32_t> list = attn_list(&ch, v, kvh);
        const int n_pairs = ch.n_rows * group - pair0; /* may be more than PAIRS, or none */
        if (n_pairs <= 0) return;
        const int64_t split = (int64_t)(ch.split0 + slot - ch.slot) * v.split;
        const int64_t last = ch.pos + ch.n_rows; /* behind the last key that any row sees */
        const int64_t end = last < split + v.split ? last : split + v.split;
        const int64_t seen = v.window ? ch.pos - v.window + 1 : 0;
        int64_t pos = (seen > split ? seen : split) / KEYS * KEYS;
        const G<const int32_t> table = tables + ch.table;
        find_rows<LATENT>(where, table, list, v, kvh, pos, seen, last);
        for (int i = threadIdx.x; i < PAIRS * padded * PIECE; i += t::THREADS) {
            const int p = i / (padded * PIECE), d = i % (padded * PIECE), pair = pair0 + p;
            float x = 0;
            if (p < n_pairs && d < v.D)
                x = v.scale *
                    q[(ch.row + pair / group) * v.ldq + (kvh * group + pair % group) * v.hq + d];
            qs[spot(p, d / PIECE, pitch) + d % PIECE] = attn_narrow<F16>(x);
        }
        /* columns of the sums: as many for each part */
        const int wide = ((v.Dv + t::PARTS - 1) / t::PARTS + 15) / 16 * 16, col0 = part * wide;
        const int upto = col0 + wide < v.Dv ? col0 + wide : v.Dv;
        int64_t query[2];
        float m[2] = { -INFINITY, -INFINITY }, l[2] = { 0, 0 };
        for (int h = 0; h < 2; h++) /* of the accumulators' rows g and g + 8 */
            query[h] = ch.pos + (pair0 + row0 + g + 8 * h) / group;
        float acc[t::NV][4] = {};
        int now = 0;
        __syncthreads(); /* where */
        if (pos < end) bring<T, t::THREADS>(tiles, scales, cache, where, pieces, padded, pitch);
        cu_copy_commit();
        for (; pos < end; pos += KEYS, now = 1 - now) {
            const int other = 1 - now, of_keys = LATENT ? now : 0, of_values = LATENT ? now : 1;
            const S<uint16_t> tile = tiles + of_keys * KEYS * pitch,
                              value_tile = tiles + of_values * KEYS * pitch;
            find_rows<LATENT>(where + other * ROWS, table, list, v, kvh, pos + KEYS, seen, last);
            cu_copy_wait<0>();
            __syncthreads(); /* the tile is there, and q; the other one, and the weights, are done with */
            if (!LATENT)
                bring<T, t::THREADS>(value_tile, scales + KEYS, values, where + now * ROWS + KEYS,
                                     v_pieces, v_padded, pitch);
            else if (pos + KEYS < end)
                bring<T, t::THREADS>(tiles + other * KEYS * pitch, scales + other * KEYS, cache,
                                     where + other * ROWS, pieces, padded, pitch);
            cu_copy_commit();
            const int key0 = part * t::NK * 8; /* of this warp's scores */
            float s[t::NK][4] = {};
#pragma unroll 2
            for (int d = 0; d < padded; d += 4) {
                unsigned a[2][4];
                cu_ldmatrix<false>(a[0], qs + spot(row0 + lane % 16, d + lane / 16, pitch));
                cu_ldmatrix<false>(a[1], qs + spot(row0 + lane % 16, d + 2 + lane / 16, pitch));
#pragma unroll
                for (int n = 0; n < t::NK; n++) {
                    unsigned b[4];
                    cu_ldmatrix<false>(b,
                                       tile + spot(key0 + 8 * n + lane % 8, d + lane / 8, pitch));
                    cu_mma<F16>(s[n], a[0], b);
                    cu_mma<F16>(s[n], a[1], b + 2);
                }
            }
            float top[2] = { -INFINITY, -INFINITY }, keep[2];
#pragma unroll
            for (int n = 0; n < t::NK; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int h = i / 2, col = key0 + 8 * n + 2 * c + i % 2;
                    const int64_t key = pos + col;
                    const bool sees = key <= query[h] && !(v.window && key <= query[h] - v.window);
                    if (attn_scaled(T)) s[n][i] *= scales[of_keys * KEYS + col];
                    if (v.softcap > 0) s[n][i] = attn_adjust(s[n][i], v, 0, key, query[h]);
                    s[n][i] = sees ? s[n][i] : -INFINITY;
                    top[h] = s[n][i] > top[h] ? s[n][i] : top[h];
                }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                for (int lanes = 1; lanes < 4; lanes *= 2) {
                    const float from = cu_shfl_xor(top[h], lanes);
                    top[h] = from > top[h] ? from : top[h];
                }
                if (c == 0) ends[part * PAIRS + row0 + g + 8 * h] = top[h];
            }
            __syncthreads(); /* all parts' maxima */
#pragma unroll
            for (int h = 0; h < 2; h++)
                for (int i = 0; i < t::PARTS; i++) {
                    const float from = ends[i * PAIRS + row0 + g + 8 * h];
                    top[h] = from > top[h] ? from : top[h];
                }
            attn_rise(m, l, keep, top);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float most = m[h] > -INFINITY ? m[h] : 0.0f;
                const int row = row0 + g + 8 * h;
#pragma unroll
                for (int n = 0; n < t::NK; n++) {
                    const int col = key0 + 8 * n + 2 * c;
                    float p[2];
                    for (int i = 0; i < 2; i++) {
                        const float x = s[n][2 * h + i];
                        p[i] = attn_exp(x - most);
                        l[h] += p[i];
                        if (attn_scaled(
                                T)) /* 0 times the NaN of a key that it does not see is none of its */
                            p[i] =
                                x == -INFINITY ? 0.0f : p[i] * scales[of_values * KEYS + col + i];
                    }
                    cu_st(ps + weight_spot(row, col / PIECE) + col % PIECE,
                          cu_pair<F16>(p[0], p[1]));
                }
            }
            if (!LATENT) cu_copy_wait<0>();
            __syncthreads(); /* all weights; of wide heads V, and K is done with */
            if (!LATENT && pos + KEYS < end)
                bring<T, t::THREADS>(tile, scales, cache, where + other * ROWS, pieces, padded,
                                     pitch);
            if (!LATENT) cu_copy_commit();
#pragma unroll
            for (int n = 0; n < t::NV; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[n][i] *= keep[i / 2];
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                unsigned a[4];
                cu_ldmatrix<false>(a, ps + weight_spot(row0 + lane % 16, 2 * j + lane / 16));
#pragma unroll
                for (int n = 0; n < t::NV; n += 2) {
                    if (col0 + 8 * n >= upto) continue; /* all lanes alike */
                    unsigned b[4];
                    cu_ldmatrix<true>(b, value_tile + spot(16 * j + lane % 16,
                                                           col0 / PIECE + n + lane / 16, pitch));
                    cu_mma<F16>(acc[n], a, b);
                    cu_mma<F16>(acc[n + 1], a, b + 2);
                }
            }
        }
        __syncthreads(); /* the maxima are done with */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[h] += cu_shfl_xor(l[h], 1);
            l[h] += cu_shfl_xor(l[h], 2);
            if (c == 0) ends[part * PAIRS + row0 + g + 8 * h] = l[h];
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int p = row0 + g + 8 * h, pair = pair0 + p;
            float all = 0, sums[t::NV][2];
            if (p >= n_pairs) continue;
            for (int i = 0; i < t::PARTS; i++)
                all += ends[i * PAIRS + p];
#pragma unroll
            for (int n = 0; n < t::NV; n++)
                for (int two = 0; two < 2; two++)
                    sums[n][two] = acc[n][2 * h + two];
            attn_put(e, v, ch, slot, pair / group, kvh * group + pair % group, m[h], all, sums,
                     col0, upto);
        }
    }

    size_t shared_bytes(const attn_view &v, int pairs)
    {
        const size_t pitch = (size_t)pitch_of(v);
        return ((size_t)(pairs + 2 * KEYS) * pitch + (size_t)(pairs * KEYS)) * sizeof(uint16_t);
    }

    template <bool LATENT, int PAIRS, kv_dtype T>
    void launch(dev * d, const dev_attn_args *a, const attn_lists &v, const attn_end &e)
    {
        const dim3 grid((unsigned)a->n_slots, (unsigned)v.Hkv,
                        (unsigned)lq_ceil_div((int64_t)v.chunk_rows * (v.H / v.Hkv), PAIRS));
        CU_ALLOW(d, (latent_kernel<LATENT, PAIRS, T>), LATENT ? STATIC : STATIC_WIDE);
        CU_FOLLOW(d, "attn latent", (latent_kernel<LATENT, PAIRS, T>), grid, team<PAIRS>::THREADS,
                  shared_bytes(v, PAIRS), e, a->q, a->k, a->v, a->chunk_of, a->chunks, a->tables,
                  v);
    }

    /* As many pairs as there are, and as the part has shared memory for. */
    template <bool LATENT, kv_dtype T>
    void launch_pairs(dev * d, const dev_attn_args *a, const attn_lists &v, const attn_end &e)
    {
        const int64_t need = (int64_t)v.chunk_rows * (v.H / v.Hkv);
        const size_t room = d->shared_per_block - (LATENT ? STATIC : STATIC_WIDE);
        if (need > 32 && shared_bytes(v, 64) <= room)
            launch<LATENT, 64, T>(d, a, v, e);
        else if (need > 16 && shared_bytes(v, 32) <= room)
            launch<LATENT, 32, T>(d, a, v, e);
        else
            launch<LATENT, 16, T>(d, a, v, e);
    }

}

void CU_NAME(attn_latent)(dev *d, const dev_attn_args *a, const attn_lists *v, const attn_end *e)
{
    switch (a->dtype) {
#define CASE(type)                                   \
    case type:                                       \
        if (a->latent)                               \
            launch_pairs<true, type>(d, a, *v, *e);  \
        else                                         \
            launch_pairs<false, type>(d, a, *v, *e); \
        return;
        ATTN_CACHES(CASE)
#undef CASE
    default:
        return; /* f32: the exact kernel's */
    }
}
