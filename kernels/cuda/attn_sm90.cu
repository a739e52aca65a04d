/* kernels/cuda/attn_sm90.cu - attention of many rows over the paged cache on sm_90a, for keys and
 * values of f16 or bf16 and heads of up to 128: wgmma with f32 sums.
 *
 *   sm90_attn  grid: slots (one split of one chunk of rows) x kv heads x
 *              passes of DEV_ATTN_WIDE_PAIRS (row, head) pairs. Two warpgroups have 64 pairs each,
 * a third brings tiles of 128 keys:
 *
 *                q   [64 pairs, DK]   registers, as A       K  [128 keys, DK]  shared, as B
 *                scores [64, 128]     registers             V  [128 keys, DV]  shared, as B
 *                weights              the same ones, as A   sums [64, DV]      registers
 *
 *              The scores of a tile are made while the sums of the one before are, and one
 *              warpgroup's exponentials are taken while the other's products run. Maximum, sum and
 *              accumulator of the split go to scratch, where attn.cu's merge takes them.
 *
 * A tile lies as columns of 64 numbers, each 128 keys x 128 bytes, a row's 16-byte pieces turned by
 * its number: for K what wgmma takes as [n][k], for V as [k][n]. Rows come from anywhere in the
 * cache, 16 bytes a cp.async, eight lanes a row's 128 bytes, and arrive at the tile's barrier by
 * themselves (cu_copy_arrive); who multiplies waits for it and hands them to the matrix units
 * (cu_fence_async). DEPTH tiles of K and of V are under way; a warpgroup's four warps arrive at `empty`
 * when they are done with one.
 *
 * What is rounded where is as in attn_mma.cu; exponentials are the device's 2^x, whose relative
 * error is below 2^-22.
 *
 * Shared memory: K and V of DEPTH = 2 tiles, 256 DK + 256 DV bytes each: DK = DV = 64 65536, 128
 * 131072; and 64 for the barriers. */
#include "kernels/cuda/attn.cuh"

#include "kernels/cuda/cu_sm90.cuh"

inline namespace CU_NAME(attn_sm90_cu)
{

    enum {
        USERS = 2, /* warpgroups that multiply */
        PAIRS = 64,
        THREADS = (USERS + 1) * CU_GROUP,
        KEYS = 128,
        PIECE = 8,           /* numbers */
        COLUMN = KEYS * 128, /* bytes */
        DEPTH = 2
    };
    static_assert((int)USERS * PAIRS == (int)DEV_ATTN_WIDE_PAIRS, "what a plan counts with");

    /* The tiles that a block goes over. */
    struct tiles_of {
        int32_t first; /* position */
        int32_t last;  /* behind the last key that any row sees */
        int n;
    };

    /* A lane of the third warpgroup knows where one row of a tile is; of its warp's copies i, lanes 8r
     * to 8r + 7 bring row 16i + 4 warp + r. */
    __device__ __forceinline__ int own_row()
    {
        const int warp = threadIdx.x / CU_WARP % 4, lane = threadIdx.x % CU_WARP;
        return 16 * (lane / 4) + 4 * warp + lane % 4;
    }
    /* The block of that row. */
    __device__ __forceinline__ int32_t look_up(G<const int32_t> table, const attn_view &v, int pos,
                                               int last)
    {
        const int p = pos + own_row();
        return p < last ? (int32_t)table[attn_block(p, v)] : 0;
    }
    /* One of a tile's K and V: rows of D numbers, in columns, zeros where there are none. */
    template <int WIDTH>
    __device__ __forceinline__ void bring(S<uint8_t> at, G<const uint8_t> cache, int32_t block,
                                          const attn_view &v, int kvh, int pos, int last, int D,
                                          int row_bytes)
    {
        const int warp = threadIdx.x / CU_WARP % 4, lane = threadIdx.x % CU_WARP, piece = lane % 8,
                  first = 4 * warp + lane / 8, p = pos + own_row();
        int64_t own = -1;
        if (p < last)
            own = (int64_t)block * (int64_t)v.block_stride +
                  ((kvh << v.block_shift) + attn_place(p, v)) * row_bytes;
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            const int64_t row = cu_shfl_long(own, 4 * i + lane / 8);
#pragma unroll
            for (int n = 0; n < WIDTH / 64; n++) {
                const bool there = row >= 0 && (8 * n + piece) * PIECE < D;
                cu_copy16(at + (n * COLUMN + (16 * i + first) * 128 + (piece ^ first % 8) * 16),
                          cache + (there ? row + (8 * n + piece) * 16 : 0), there);
            }
        }
    }

    /* By the third warpgroup. A tile's blocks are looked up while the one before is brought. */
    template <int DK, int DV>
    __device__ void bring_all(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty,
                              G<const uint8_t> k, G<const uint8_t> values, G<const int32_t> table,
                              const attn_view &v, int kvh, const tiles_of &t)
    {
        enum { STAGE = (DK / 64 + DV / 64) * COLUMN };
        int32_t next = look_up(table, v, t.first, t.last);
        for (int tile = 0; tile < t.n; tile++) {
            const int slot = tile % DEPTH * 2, pos = t.first + tile * KEYS;
            const unsigned before = (unsigned)((tile / DEPTH - 1) & 1);
            const S<uint8_t> to = at + tile % DEPTH * STAGE;
            const int32_t block = next;
            next = look_up(table, v, pos + KEYS, t.last);
            if (tile >= DEPTH) cu_bar_wait(empty + slot, before);
            bring<DK>(to, k, block, v, kvh, pos, t.last, v.D, v.row_k);
            cu_copy_arrive(full + slot);
            if (tile >= DEPTH) cu_bar_wait(empty + (slot + 1), before);
            bring<DV>(to + DK / 64 * COLUMN, values, block, v, kvh, pos, t.last, v.Dv, v.row_v);
            cu_copy_arrive(full + (slot + 1));
        }
    }

    /* Of one of a warpgroup's rows, g or g + 8 of a warp. */
    struct row_state {
        int32_t query;
        float slope, m, l;
    };

    /* Scores of a tile become weights; *keep: what the sums so far are to be multiplied by. */
    template <bool PLAIN>
    __device__ __forceinline__ void weigh(float(&s)[KEYS / 2], row_state(&r)[2], float keep[2],
                                          const attn_view &v, int32_t pos)
    {
        const float log2e = 1.44269504088896340736f;
        const int c = threadIdx.x % 4;
        float top[2] = { -INFINITY, -INFINITY }, base[2];
        if (!PLAIN) {
            int lo[2], hi[2]; /* the columns that a row sees */
            for (int h = 0; h < 2; h++) {
                const int64_t first = v.window ? r[h].query - v.window + 1 - pos : 0;
                const int64_t behind = r[h].query + 1 - pos;
                lo[h] = (int)(first < 0 ? 0 : first > KEYS ? KEYS : first);
                hi[h] = (int)(behind < 0 ? 0 : behind > KEYS ? KEYS : behind);
            }
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                const int h = i / 2 % 2, col = i / 4 * 8 + 2 * c + i % 2;
                const float x = attn_adjust(s[i], v, r[h].slope, pos + col, r[h].query);
                s[i] = col >= lo[h] && col < hi[h] ? x : -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[h] = fmaxf(top[h], cu_shfl_xor(top[h], 1));
            top[h] = fmaxf(top[h], cu_shfl_xor(top[h], 2));
            top[h] = fmaxf(top[h], r[h].m);
            base[h] = top[h] > -INFINITY ? top[h] * log2e : 0.0f; /* 0: nothing seen yet */
            keep[h] = cu_exp2(fmaf(r[h].m, log2e, -base[h]));
            r[h].m = top[h];
            r[h].l *= keep[h];
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int h = i / 2 % 2;
            s[i] = cu_exp2(fmaf(s[i], log2e, -base[h]));
            r[h].l += s[i];
        }
    }

    template <bool F16> __device__ __forceinline__ float within(float x)
    {
        const float most = 65504.0f;
        return !F16 ? x : x > most ? most : x < -most ? -most : x;
    }

    template <int DK, bool F16>
    __device__ __forceinline__ void issue_scores(
        float(&s)[KEYS / 2], const unsigned(&qa)[DK / 16][4], S<const uint8_t> ks)
    {
        cu_keep(s);
        cu_wgmma_begin();
#pragma unroll
        for (int i = 0; i < DK / 16; i++)
            cu_wgmma<F16, KEYS>(s, qa[i], cu_desc_k(ks + (i / 4 * COLUMN + i % 4 * 32)), i > 0);
        cu_wgmma_commit();
    }
    template <int DV, bool F16>
    __device__ __forceinline__ void issue_sums(
        float(&acc)[DV / 2], const unsigned(&p)[KEYS / 16][4], S<const uint8_t> vs)
    {
        cu_keep(acc);
        cu_wgmma_begin();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            cu_wgmma<F16, DV, 1>(acc, p[i], cu_desc_mn(vs + i * 16 * 128, COLUMN), true);
        cu_wgmma_commit();
    }
    /* Until a half of a tile is there, and the matrix units see it. */
    __device__ __forceinline__ void wait_for(S<uint64_t> full, unsigned parity)
    {
        cu_bar_wait(full, parity);
        cu_fence_async();
    }
    /* The warp has read the half of a tile. */
    __device__ __forceinline__ void done_with(S<uint64_t> empty)
    {
        __syncwarp();
        if (threadIdx.x % CU_WARP == 0) cu_bar_arrive(empty);
    }
    __device__ __forceinline__ void weigh_tile(float(&s)[KEYS / 2], row_state(&r)[2], float keep[2],
                                               const attn_view &v, const dev_attn_chunk &ch,
                                               int32_t pos, bool adjusted)
    {
        /* the same in all lanes: what the chunk's first and last rows see */
        if (adjusted || pos + KEYS > ch.pos + 1 ||
            (v.window && pos <= ch.pos + ch.n_rows - 1 - v.window))
            weigh<false>(s, r, keep, v, pos);
        else
            weigh<true>(s, r, keep, v, pos);
    }
    /* The weights as A. */
    template <bool F16>
    __device__ __forceinline__ void pack(unsigned(&p)[KEYS / 16][4], const float(&s)[KEYS / 2])
    {
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
            for (int w = 0; w < 4; w++)
                p[i][w] = cu_pair<F16>(s[8 * i + 2 * w], s[8 * i + 2 * w + 1]);
    }

    /* By each of the others: 64 pairs from pair0 on. */
    template <int DK, int DV, bool F16>
    __device__ void attend(S<uint8_t> at, S<uint64_t> full, S<uint64_t> empty, const attn_end &e,
                           int slot, G<const float> q, G<const float> alibi, const attn_view &v,
                           const dev_attn_chunk &ch, int kvh, int pair0, int n_pairs,
                           const tiles_of &t)
    {
        enum { STAGE = (DK / 64 + DV / 64) * COLUMN };
        const int warp = threadIdx.x / CU_WARP % 4, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4, group = v.H / v.Hkv;
        const bool adjusted = v.softcap > 0 || alibi;
        unsigned qa[DK / 16][4], p[KEYS / 16][4];
        row_state r[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int of = 16 * warp + g + 8 * h, pair = pair0 + of;
            const bool there = of < n_pairs;
            r[h] = { ch.pos + pair / group, 0, -INFINITY, 0 };
            if (alibi) r[h].slope = alibi[kvh * group + pair % group];
            const G<const float> row = q + ((ch.row + (there ? pair / group : 0)) * v.ldq +
                                            (int64_t)(kvh * group + pair % group) * v.D);
#pragma unroll
            for (int i = 0; i < DK / 16; i++)
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    const int d = 16 * i + 2 * c + 8 * u;
                    float2 x = { 0, 0 };
                    if (there && d < v.D) x = cu_ld<float2>(row + d);
                    qa[i][2 * u + h] =
                        cu_pair<F16>(within<F16>(v.scale * x.x), within<F16>(v.scale * x.y));
                }
        }
        float s[KEYS / 2], acc[DV / 2], keep[2];
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            acc[i] = 0;
        /* DEPTH is 2: K of tile j and V of the one before are in different slots */
        wait_for(full, 0);
        issue_scores<DK, F16>(s, qa, at);
        cu_wgmma_wait<0>();
        cu_keep(s);
        done_with(empty);
        weigh_tile(s, r, keep, v, ch, t.first, adjusted);
        pack<F16>(p, s);
        for (int j = 1; j < t.n; j++) {
            const int now = j % DEPTH, before = (j - 1) % DEPTH;
            wait_for(full + 2 * now, (unsigned)(j / DEPTH & 1));
            issue_scores<DK, F16>(s, qa, at + now * STAGE);
            wait_for(full + (2 * before + 1), (unsigned)((j - 1) / DEPTH & 1));
            issue_sums<DV, F16>(acc, p, at + (before * STAGE + DK / 64 * COLUMN));
            cu_wgmma_wait<1>();
            cu_keep(s);
            done_with(empty + 2 * now);
            weigh_tile(s, r, keep, v, ch, t.first + j * KEYS, adjusted);
            cu_wgmma_wait<0>();
            cu_keep(acc);
            done_with(empty + (2 * before + 1));
#pragma unroll
            for (int i = 0; i < DV / 2; i++)
                acc[i] *= keep[i / 2 % 2];
            pack<F16>(p, s);
        }
        const int end = (t.n - 1) % DEPTH;
        wait_for(full + (2 * end + 1), (unsigned)((t.n - 1) / DEPTH & 1));
        issue_sums<DV, F16>(acc, p, at + (end * STAGE + DK / 64 * COLUMN));
        cu_wgmma_wait<0>();
        cu_keep(acc);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float l = r[h].l;
            l += cu_shfl_xor(l, 1);
            l += cu_shfl_xor(l, 2);
            const int of = 16 * warp + g + 8 * h, pair = pair0 + of;
            if (of >= n_pairs) continue;
            float sums[DV / 8][2];
#pragma unroll
            for (int n = 0; n < DV / 8; n++)
                for (int two = 0; two < 2; two++)
                    sums[n][two] = acc[4 * n + 2 * h + two];
            attn_put(e, v, ch, slot, pair / group, kvh * group + pair % group, r[h].m, l, sums, 0,
                     v.Dv);
        }
    }

    template <int DK, int DV, bool F16>
    __global__ void __launch_bounds__(THREADS, 1)
        sm90_attn_kernel(attn_end e, G<const float> q, G<const uint8_t> k, G<const uint8_t> values,
                         G<const int32_t> chunk_of, G<const dev_attn_chunk> chunks,
                         G<const int32_t> tables, G<const float> alibi, attn_view v)
    {
        CU_DYNAMIC_1K(uint8_t, at);
        const S<uint64_t> full = cu_as<uint64_t>(at + DEPTH * (DK / 64 + DV / 64) * COLUMN),
                          empty = full + 2 * DEPTH;
        const int kvh = blockIdx.y, group = v.H / v.Hkv, slot = attn_slot();
        const int pair0 = blockIdx.z * (USERS * PAIRS);
        const dev_attn_chunk ch = cu_ld<dev_attn_chunk>(chunks + chunk_of[slot]);
        const int n_pairs = ch.n_rows * group - pair0;
        if (n_pairs <= 0) return; /* all threads of the block alike */
        const int64_t split = (int64_t)(ch.split0 + slot - ch.slot) * v.split;
        tiles_of t;
        t.last = ch.pos + ch.n_rows;
        const int64_t end = t.last < split + v.split ? t.last : split + v.split;
        const int64_t from = v.window ? ch.pos - v.window + 1 : 0;
        t.first = (int32_t)((from > split ? from : split) / KEYS * KEYS);
        t.n = (int)((end - t.first + KEYS - 1) / KEYS);
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2 * DEPTH; i++) {
                cu_bar_init(full + i, CU_GROUP);
                cu_bar_init(empty + i, USERS * 4);
            }
            cu_bars_ready();
        }
        __syncthreads();
        const int user = threadIdx.x / CU_GROUP;
        if (user == USERS) {
            cu_regs_less<24>();
            bring_all<DK, DV>(at, full, empty, k, values, tables + ch.table, v, kvh, t);
        } else {
            cu_regs_more<240>();
            attend<DK, DV, F16>(at, full, empty, e, slot, q, alibi, v, ch, kvh,
                                pair0 + user * PAIRS, n_pairs - user * PAIRS, t);
        }
    }

    template <int DK, int DV, bool F16>
    void launch(dev * d, const dev_attn_args *a, const attn_view &v, const attn_end &e, dim3 grid)
    {
        const int shared = DEPTH * (DK / 64 + DV / 64) * COLUMN + 4 * DEPTH * 8;
        CU_ALLOW(d, (sm90_attn_kernel<DK, DV, F16>), 0);
        CU_LAUNCH(d, "attn sm90", (sm90_attn_kernel<DK, DV, F16>), grid, THREADS, (size_t)shared, e,
                  a->q, a->k, a->v, a->chunk_of, a->chunks, a->tables, a->alibi, v);
    }

    template <bool F16>
    void launch_width(dev * d, const dev_attn_args *a, const attn_view &v, const attn_end &e,
                      dim3 grid)
    {
        if (a->D <= 64 && a->Dv <= 64)
            launch<64, 64, F16>(d, a, v, e, grid);
        else
            launch<128, 128, F16>(d, a, v, e, grid);
    }

}

void CU_NAME(attn_sm90)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e)
{
    const dim3 grid((unsigned)a->n_slots, (unsigned)a->Hkv,
                    (unsigned)lq_ceil_div(v->chunk_rows * (a->H / a->Hkv), USERS * PAIRS));
    if (a->dtype == KV_F16)
        launch_width<true>(d, a, *v, *e, grid);
    else
        launch_width<false>(d, a, *v, *e, grid);
}
