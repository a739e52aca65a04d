/* kernels/cuda/topk.cu - the keys of the paged cache that an indexer scores best, and blocks of them: the choices of
 * kernels/topk.c and topk_blocks.c, to the bit.
 *
 *   score   grid: blocks that share a row's keys, KEYS at a time x rows of a wave. 128 threads make
 *           the products of HEADS heads of q and KEYS keys, a thread 8 x 4 of them, over d in order:
 *
 *                 keys 0 ..... 63
 *           head [ 8 x 4 | 8 x 4 | .. ]      q and K go by in steps of STEP dims, by d
 *             .. [ ..                 ]
 *             63 [                    ]      then a thread a key: over heads in order
 *
 *           and leaves each score as a whole number in the same order. K is read once for each row:
 *           of many rows from the L2 cache.
 *   pick    grid: parts of DEV_TOPK_PART scores x rows of a wave. A thread holds EACH of them, in their
 *           order. The topk-th greatest is found bit by bit, by counting those that are no less; it ends
 *           early where they are topk. What is greater, and as many of what is equal as there is room for,
 *           the first of them, goes out in order. What several parts leave is picked from again.
 *   score, pick of blocks   the same: a thread makes the products of FEW heads and two keys, and a
 *           warp finds the best of a block and head; a row and head has one block of threads
 *           that picks from all of its scores, and writes the positions of what it picked.
 *
 * Rows are taken in waves whose scores fit the scratch. A row of no more than topk keys is not
 * scored: all are chosen. How many launches there are, and their blocks, depends on the number of rows and the
 * longest sequence that may come, not on the lengths.
 *
 * Shared memory: two steps, or one number of each head and key, 17408 B, of blocks 34304 B; counts of warps, 128 B and
 * sums of warps, 128 B, and what was picked, 1024 B. */
#include "kernels/cuda/attn.cuh"

#include <assert.h>

inline namespace CU_NAME(topk_cu)
{

    enum {
        KEYS = 64,
        HEADS = 64,
        STEP = 32,
        PITCH = KEYS + 4,
        SCORERS = 128,
        TILE = 2 * SCORERS, /* keys of blocks at a time, and their pitch */
        TILE_PITCH = TILE + 4,
        FEW = 8,  /* heads of them */
        FILL = 8, /* blocks for each multiprocessor: more than there are at a time */
        PICKERS = 512,
        WARPS = PICKERS / CU_WARP,
        EACH = DEV_TOPK_PART / PICKERS
    };
    static_assert((int)KEYS == (int)HEADS && (int)HEADS <= 2 * (int)STEP, "one place for both");
    static_assert((int)FEW <= (int)STEP && (int)DEV_TOPK_BLOCK <= (int)TILE, "one place for both");

    /* Numbers 4 i .. 4 i + 3 of a row of D, zeros behind its end. */
    __device__ __forceinline__ float4 four_of(G<const uint8_t> row, int i, int D, kv_dtype d)
    {
        float x[4] = { 0, 0, 0, 0 };
        if (4 * i >= D) return { 0, 0, 0, 0 };
        if (D % 4 == 0) return attn_four(row, i, D, d);
        for (int e = 0; e < 4 && 4 * i + e < D; e++)
            x[e] = d == KV_F32   ? cu_ld<float>(row + 4 * (4 * i + e))
                   : d == KV_F16 ? cu_f16_f32(cu_ld<uint16_t>(row + 2 * (4 * i + e)))
                                 : cu_bf16_f32(cu_ld<uint16_t>(row + 2 * (4 * i + e)));
        return { x[0], x[1], x[2], x[3] };
    }
    __device__ __forceinline__ float4 four_of(G<const float> row, int i, int D)
    {
        float x[4] = { 0, 0, 0, 0 };
        if (D % 4 == 0 && 4 * i < D) return cu_ld<float4>(row + 4 * i);
        for (int e = 0; e < 4 && 4 * i + e < D; e++)
            x[e] = row[4 * i + e];
        return { x[0], x[1], x[2], x[3] };
    }

    /* Four numbers of a step to column `at`. */
    __device__ __forceinline__ void put_four(S<float> to, int pitch, const float4 &x, int i, int at)
    {
        to[4 * i * pitch + at] = x.x;
        to[(4 * i + 1) * pitch + at] = x.y;
        to[(4 * i + 2) * pitch + at] = x.z;
        to[(4 * i + 3) * pitch + at] = x.w;
    }

    /* As topk.c's. */
    __device__ __forceinline__ uint32_t order_of(float x)
    {
        const uint32_t u = __float_as_uint(x + 0.0f);
        if (x != x) return 0xffffffffu;
        return u >> 31 ? ~u : u | 0x80000000u;
    }

    /* Keys that a row sees: positions, or groups that are whole. */
    __device__ __forceinline__ int64_t seen_of(const dev_topk_args &a, const dev_key_row &r)
    {
        const int64_t n = (int64_t)r.pos + 1;
        return a.every ? n / a.every : n;
    }

    /* What a row is scored by: its q [H, D], and the keys of its sequence up to `last`. */
    struct scored {
        G<const float> q;
        G<const uint8_t> k;
        G<const int32_t> table;
        int64_t last; /* key */
        size_t block_stride;
        kv_dtype dtype;
        int block_size, H, D, row_bytes;
    };

    template <class A>
    __device__ __forceinline__ scored scored_by(const A &a, const dev_key_row &r, int64_t last,
                                                int row_bytes)
    {
        return { G<const float>(a.q) + r.row * a.H * a.D,
                 G<const uint8_t>(a.k),
                 G<const int32_t>(a.tables) + r.table,
                 last,
                 a.block_stride,
                 a.dtype,
                 a.block_size,
                 (int)a.H,
                 (int)a.D,
                 row_bytes };
    }

    /* Dims d0 .. of N keys from pos on, or of M heads from h0 on, by d; zeros where there are none. */
    template <int N>
    __device__ __forceinline__ void load_keys(S<float> to, int pitch, const scored &r, int64_t pos,
                                              int d0)
    {
        for (int i = threadIdx.x; i < N * STEP / 4; i += SCORERS) {
            const int at = i / (STEP / 4), f = i % (STEP / 4);
            const int64_t p = pos + at;
            float4 x = { 0, 0, 0, 0 };
            if (p <= r.last) {
                const int64_t block = r.table[p / r.block_size];
                x = four_of(r.k +
                                (block * (int64_t)r.block_stride + p % r.block_size * r.row_bytes),
                            d0 / 4 + f, r.D, r.dtype);
            }
            put_four(to, pitch, x, f, at);
        }
    }
    template <int M>
    __device__ __forceinline__ void load_heads(S<float> to, int pitch, const scored &r, int h0,
                                               int d0)
    {
        for (int i = threadIdx.x; i < M * STEP / 4; i += SCORERS) {
            const int at = i / (STEP / 4), f = i % (STEP / 4), h = h0 + at;
            float4 x = { 0, 0, 0, 0 };
            if (h < r.H) x = four_of(r.q + h * r.D, d0 / 4 + f, r.D);
            put_four(to, pitch, x, f, at);
        }
    }

    __global__ void __launch_bounds__(SCORERS) score_kernel(
        G<uint32_t> order, dev_topk_args a, int row_bytes, int64_t first, int64_t stride)
    {
        CU_SHARED(float, tile, 2 * STEP * PITCH);
        const S<float> ks = tile, qs = tile + STEP * PITCH;
        const int t = threadIdx.x, ty = t / 16, tx = t % 16;
        cu_follow();
        const dev_key_row own = G<const dev_key_row>(a.rows)[first + blockIdx.y];
        const scored r = scored_by(a, own, seen_of(a, own) - 1, row_bytes);
        const G<const float> weight = G<const float>(a.weight) + own.row * a.H;
        if (r.last < a.topk) return;
        for (int64_t pos = (int64_t)blockIdx.x * KEYS; pos <= r.last;
             pos += (int64_t)gridDim.x * KEYS) {
            float total = 0; /* of the first KEYS threads: their key's */
            for (int h0 = 0; h0 < a.H; h0 += HEADS) {
                float sum[8][4] = {};
                for (int d0 = 0; d0 < a.D; d0 += STEP) {
                    __syncthreads(); /* the step before was read, or what was added up */
                    load_keys<KEYS>(ks, PITCH, r, pos, d0);
                    load_heads<HEADS>(qs, PITCH, r, h0, d0);
                    __syncthreads();
#pragma unroll 4
                    for (int d = 0; d < STEP; d++) {
                        const float4 k = cu_ld<float4>(ks + (d * PITCH + 4 * tx)),
                                     q0 = cu_ld<float4>(qs + (d * PITCH + 8 * ty)),
                                     q1 = cu_ld<float4>(qs + (d * PITCH + 8 * ty + 4));
                        const float x[8] = { q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w },
                                    y[4] = { k.x, k.y, k.z, k.w };
#pragma unroll
                        for (int i = 0; i < 8; i++)
#pragma unroll
                            for (int j = 0; j < 4; j++)
                                sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
                    }
                }
                __syncthreads(); /* q and K are done with */
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int h = h0 + 8 * ty + i;
                    float w = 0;
                    if (h < a.H) w = a.weight_scale * weight[h];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const float s = a.scale * sum[i][j];
                        tile[(8 * ty + i) * PITCH + 4 * tx + j] = w * (s > 0 || s != s ? s : 0.0f);
                    }
                }
                __syncthreads();
                for (int h = 0; h < HEADS && h0 + h < a.H && t < KEYS; h++)
                    total += tile[h * PITCH + t];
            }
            if (t < KEYS && pos + t <= r.last)
                order[(int64_t)blockIdx.y * stride + pos + t] = order_of(total);
        }
    }

    /* Scores of a wave's rows, `ld` apart, and whose they are; pos NULL: of key 0 and on. */
    struct scores {
        uint32_t *order;
        int32_t *pos;
        int64_t ld;
    };

    /* The sum over the block of a count of each thread. half: 0 and 1 in turns. */
    __device__ __forceinline__ int count(S<int> counts, int own, int half)
    {
        const float sum = cu_warp_sum((float)own); /* exact: below 2^24 */
        int all = 0;
        if (threadIdx.x % CU_WARP == 0) counts[half * WARPS + threadIdx.x / CU_WARP] = (int)sum;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            all += counts[half * WARPS + w];
        return all;
    }

    /* The sum of v over the threads before this one; *all: over the block. */
    __device__ __forceinline__ int64_t before(S<int64_t> sums, int64_t v, int64_t * all)
    {
        const int lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
        int64_t upto = v, sum = 0;
        for (int by = 1; by < CU_WARP; by *= 2) {
            const int64_t from = cu_shfl_long(upto, lane < by ? lane : lane - by);
            if (lane >= by) upto += from;
        }
        if (lane == CU_WARP - 1) sums[warp] = upto;
        __syncthreads();
        *all = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w == warp) sum = *all;
            *all += sums[w];
        }
        return sum + upto - v;
    }

    /* The greatest number that no fewer than k of the block's are no less than; or, where exactly k are, one
     * that leaves as many. own(x): of this thread's those that are no less than x. */
    template <class F> __device__ __forceinline__ uint32_t least_of(int64_t k, S<int> counts, F own)
    {
        uint32_t least = 0;
        for (int bit = 31, half = 0; bit >= 0; bit--, half = 1 - half) {
            const uint32_t next = least | 1u << bit;
            const int n = count(counts, own(next), half);
            if (n >= k) least = next;
            if (n == k) break;
        }
        return least;
    }

    __global__ void __launch_bounds__(PICKERS)
        pick_kernel(scores from, scores to, dev_topk_args a, int64_t first, int turn)
    {
        CU_SHARED(int, counts, 2 * WARPS);
        CU_SHARED(int64_t, sums, WARPS);
        cu_follow();
        const dev_key_row r = G<const dev_key_row>(a.rows)[first + blockIdx.y];
        const G<int32_t> chosen = G<int32_t>(a.chosen) + r.row * a.topk;
        int64_t n = seen_of(a, r);
        if (n <= a.topk) { /* all threads of the block alike, as below */
            if (turn == 0 && blockIdx.x == 0)
                for (int i = threadIdx.x; i < n; i += PICKERS)
                    chosen[i] = i;
            return;
        }
        for (int i = 0; i < turn; i++) {
            if (n <= DEV_TOPK_PART) return; /* it is chosen */
            n = dev_topk_left(n, a.topk);
        }
        const int64_t part = (int64_t)blockIdx.x * DEV_TOPK_PART,
                      here = n - part < DEV_TOPK_PART ? n - part : DEV_TOPK_PART;
        if (here <= 0) return;
        const G<const uint32_t> order =
            G<const uint32_t>(from.order) + (blockIdx.y * from.ld + part);
        const int own = (int)threadIdx.x * EACH;
        uint32_t x[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            uint4 four = { 0, 0, 0, 0 };
            if (own + i < here) four = cu_ld<uint4>(order + (own + i)); /* rows are padded */
            x[i] = four.x;
            x[i + 1] = own + i + 1 < here ? four.y : 0; /* less than any score */
            x[i + 2] = own + i + 2 < here ? four.z : 0;
            x[i + 3] = own + i + 3 < here ? four.w : 0;
        }
        const bool all = here <= a.topk, last = n <= DEV_TOPK_PART;
        uint32_t least = 0;
        if (!all)
            least = least_of(a.topk, counts, [&](uint32_t next) {
                int no_less = 0;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    no_less += x[i] >= next;
                return no_less;
            });
        int64_t greater = 0, equal = 0, sum;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            greater += x[i] > least;
            equal += x[i] == least;
        }
        const int64_t ahead = before(sums, greater << 32 | equal, &sum),
                      room = all ? 0 : a.topk - (sum >> 32);
        equal = ahead & 0xffffffff;
        int64_t at = (ahead >> 32) + (equal < room ? equal : room);
        const int64_t out = blockIdx.y * to.ld + (int64_t)blockIdx.x * a.topk;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (x[i] < least || (x[i] == least && equal++ >= room)) continue;
            int32_t pos = (int32_t)part + own + i;
            if (from.pos) pos = G<const int32_t>(from.pos)[blockIdx.y * from.ld + pos];
            if (last) {
                chosen[at++] = pos;
            } else {
                G<uint32_t>(to.order)[out + at] = x[i];
                G<int32_t>(to.pos)[out + at++] = pos;
            }
        }
    }

    /* ---- blocks ---- */

    /* order [., H, stride], by the rows of the wave: the best score of each block that the row sees. */
    __global__ void __launch_bounds__(SCORERS) block_score_kernel(
        G<uint32_t> order, dev_topk_blocks_args a, int row_bytes, int64_t first, int64_t stride)
    {
        CU_SHARED(float, ks, STEP *TILE_PITCH);
        CU_SHARED(float, qs, STEP *FEW);
        const S<uint32_t> tile = cu_as<uint32_t>(ks); /* [FEW][TILE] */
        const int t = threadIdx.x, lane = t % CU_WARP, each = (int)a.block, per = TILE / each;
        cu_follow();
        const dev_key_row own = G<const dev_key_row>(a.rows)[first + blockIdx.y];
        const scored r = scored_by(a, own, own.pos, row_bytes);
        const int blocks = (int)(r.last / each) + 1;
        if (blocks <= a.topk) return;
        for (int b0 = (int)blockIdx.x * per; b0 < blocks; b0 += (int)gridDim.x * per) {
            const int64_t pos = (int64_t)b0 * each;
            for (int h0 = 0; h0 < r.H; h0 += FEW) {
                float sum[FEW][2] = {};
                for (int d0 = 0; d0 < r.D; d0 += STEP) {
                    __syncthreads(); /* the step before was read, or the tile */
                    load_keys<TILE>(ks, TILE_PITCH, r, pos, d0);
                    load_heads<FEW>(qs, FEW, r, h0, d0);
                    __syncthreads();
#pragma unroll 4
                    for (int d = 0; d < STEP; d++) {
                        const float2 k = cu_ld<float2>(ks + (d * TILE_PITCH + 2 * t));
                        const float4 q0 = cu_ld<float4>(qs + d * FEW),
                                     q1 = cu_ld<float4>(qs + (d * FEW + 4));
                        const float x[FEW] = { q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w };
#pragma unroll
                        for (int h = 0; h < FEW; h++) {
                            sum[h][0] = fmaf(x[h], k.x, sum[h][0]);
                            sum[h][1] = fmaf(x[h], k.y, sum[h][1]);
                        }
                    }
                }
                __syncthreads(); /* keys are done with */
#pragma unroll
                for (int h = 0; h < FEW; h++) {
                    tile[h * TILE + 2 * t] = order_of(sum[h][0]);
                    tile[h * TILE + 2 * t + 1] = order_of(sum[h][1]);
                }
                __syncthreads();
                for (int i = t / CU_WARP; i < FEW * per; i += SCORERS / CU_WARP) {
                    const int h = i / per, b = i % per;
                    uint32_t best = 0;
                    if (h0 + h >= r.H || b0 + b >= blocks) continue; /* all lanes alike */
                    for (int j = b * each + lane; j < (b + 1) * each && pos + j <= r.last;
                         j += CU_WARP) {
                        const uint32_t o = tile[h * TILE + j];
                        best = o > best ? o : best;
                    }
                    for (int m = CU_WARP / 2; m; m /= 2) {
                        const uint32_t o = (uint32_t)cu_shfl_long(best, lane ^ m);
                        best = o > best ? o : best;
                    }
                    if (lane == 0)
                        order[((int64_t)blockIdx.y * r.H + h0 + h) * stride + b0 + b] = best;
                }
            }
        }
    }

    __global__ void __launch_bounds__(PICKERS) block_pick_kernel(
        G<const uint32_t> order, dev_topk_blocks_args a, int64_t first, int64_t stride)
    {
        CU_SHARED(int, counts, 2 * WARPS);
        CU_SHARED(int64_t, sums, WARPS);
        CU_SHARED(int, picked, DEV_TOPK_BLOCKS);
        const int t = threadIdx.x, each = (int)a.block, most = (int)a.topk;
        cu_follow();
        const dev_key_row r = G<const dev_key_row>(a.rows)[first + blockIdx.y];
        const int64_t list = r.row * a.H + blockIdx.x;
        const int blocks = r.pos / each + 1;
        const bool all = blocks <= most; /* all threads alike */
        int n = r.pos + 1;
        if (!all) {
            const G<const uint32_t> from = order + (blockIdx.y * a.H + blockIdx.x) * stride;
            const int share = (blocks + PICKERS - 1) / PICKERS, near = blocks - (int)a.local,
                      begin = t * share < blocks ? t * share : blocks,
                      end = begin + share < blocks ? begin + share : blocks;
            const uint32_t least = least_of(most, counts, [&](uint32_t next) {
                int no_less = 0;
                for (int b = begin; b < end; b++)
                    no_less += b >= near || from[b] >= next;
                return no_less;
            });
            int64_t greater = 0, equal = 0, sum;
            for (int b = begin; b < end; b++) {
                const uint32_t o = b >= near ? 0xffffffffu : (uint32_t)from[b];
                greater += o > least;
                equal += o == least;
            }
            const int64_t ahead = before(sums, greater << 32 | equal, &sum),
                          room = most - (sum >> 32);
            equal = ahead & 0xffffffff;
            int at = (int)(ahead >> 32) + (int)(equal < room ? equal : room);
            for (int b = begin; b < end; b++) {
                const uint32_t o = b >= near ? 0xffffffffu : (uint32_t)from[b];
                if (o < least || (o == least && equal++ >= room)) continue;
                picked[at++] = b;
            }
            __syncthreads();
            n = most * each;
            if (picked[most - 1] == blocks - 1) n -= blocks * each - (r.pos + 1);
        }
        const G<int32_t> chosen = G<int32_t>(a.chosen) + list * a.topk * a.block;
        for (int i = t; i < n; i += PICKERS)
            chosen[i] = all ? i : (int)picked[i / each] * each + i % each;
        if (t == 0) G<int32_t>(a.n_chosen)[list] = n;
    }

    /* Blocks that share a row's scores, of as many pieces. */
    int64_t sharers(const dev *d, int64_t pieces, int64_t rows)
    {
        const int64_t share = lq_ceil_div(FILL * (int64_t)d->n_sm, rows);
        return share < pieces ? share : pieces;
    }

    /* A wave's scores, then what is left of them in turns. */
    void wave(dev * d, const dev_topk_args *a, int64_t first, int64_t rows)
    {
        int64_t left[2], most = a->longest;
        const int64_t stride = lq_ceil_div(most, 4) * 4, tiles = lq_ceil_div(most, KEYS);
        uint32_t *const order = (uint32_t *)a->scratch, *rest = order + rows * stride;
        dev_topk_row(left, most, a->topk);
        scores from = { order, NULL, stride };
        if (most > a->topk)
            CU_FOLLOW(d, "topk score", score_kernel,
                      dim3((unsigned)sharers(d, tiles, rows), (unsigned)rows), SCORERS, 0, order,
                      *a, (int)attn_kv_row_bytes(a->dtype, a->D), first, stride);
        for (int turn = 0;; turn++) {
            const scores to = {
                rest + turn % 2 * 2 * rows * left[0],
                (int32_t *)(rest + (turn % 2 * 2 * left[0] + left[turn % 2]) * rows), left[turn % 2]
            };
            CU_FOLLOW(d, "topk pick", pick_kernel,
                      dim3((unsigned)lq_ceil_div(most, DEV_TOPK_PART), (unsigned)rows), PICKERS, 0,
                      from, to, *a, first, turn);
            if (most <= DEV_TOPK_PART) return;
            most = dev_topk_left(most, a->topk);
            from = to;
        }
    }

}

void CU_NAME(topk)(dev *d, const dev_topk_args *a)
{
    int64_t rows = dev_topk_rows(a->longest, a->topk, a->n_rows);
    if (rows > CU_ROWS) rows = CU_ROWS;
    assert(a->topk <= DEV_TOPK_MOST && (a->D % 4 == 0 || attn_kv_head(a->dtype) == 0));
    for (int64_t first = 0; first < a->n_rows; first += rows)
        wave(d, a, first, a->n_rows - first < rows ? a->n_rows - first : rows);
}

void CU_NAME(topk_blocks)(dev *d, const dev_topk_blocks_args *a)
{
    const int64_t stride = lq_ceil_div(a->longest, a->block),
                  units = lq_ceil_div(stride, TILE / a->block);
    int64_t rows = dev_topk_blocks_rows(a->longest, a->block, a->H, a->n_rows);
    if (rows > CU_ROWS) rows = CU_ROWS;
    assert(a->block <= DEV_TOPK_BLOCK && a->topk <= DEV_TOPK_BLOCKS && a->local <= a->topk);
    assert(a->D % 4 == 0 || attn_kv_head(a->dtype) == 0);
    for (int64_t first = 0; first < a->n_rows; first += rows) {
        const int64_t n = a->n_rows - first < rows ? a->n_rows - first : rows;
        uint32_t *const order = (uint32_t *)a->scratch;
        if (stride > a->topk)
            CU_FOLLOW(d, "topk block score", block_score_kernel,
                      dim3((unsigned)sharers(d, units, n), (unsigned)n), SCORERS, 0, order, *a,
                      (int)attn_kv_row_bytes(a->dtype, a->D), first, stride);
        CU_FOLLOW(d, "topk block pick", block_pick_kernel, dim3((unsigned)a->H, (unsigned)n),
                  PICKERS, 0, order, *a, first, stride);
    }
}
