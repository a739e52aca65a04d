/* kernels/cuda/attn_decode.cu - attention of few rows over the paged cache through the matrix
 * units, for any cache but f32: mma.m16n8k16 with f32 sums, keys and values straight out of device
 * memory into fragments.
 *
 *   decode  grid: slots (one split of ATTN_SPLIT keys of one chunk of rows) x kv heads x passes of
 *           PAIRS (row, head) pairs, which are the 16 rows of each product. A warp takes every
 *           fourth tile of 16 keys, counted from the beginning of the sequence:
 *
 *             keys   0    16   32   48   64   80  ..
 *             warp  [ 0 ][ 1 ][ 2 ][ 3 ][ 0 ][ 1 ] ..
 *
 *             scores [16 pairs, 16 keys] = q K^T   B: lane (g, c) has d = 8c + 32i .. + 7 of key g
 *             sums   [16 pairs, Dv]     += p V     B: lane (g, c) has d = 8g + 64j .. + 7 of keys
 *                                                  2c, 2c + 1, 2c + 8, 2c + 9
 *
 *           so that each is eight neighbouring numbers of a row: 16 bytes of f16 or bf16, a whole
 *           row's 128 for four keys an instruction. Which d of the products is which place is free
 *           as long as q and the sums agree; a lane's columns are d = 16c + 64j .. + 15. While a
 *           tile's scores are made its V comes, and during the sums the next tile's K. In the end
 *           the warps' maxima, sums and accumulators are joined in order, and the split goes to
 *           scratch, where attn.cu's merge takes it.
 *
 * A decode step may leave to it what else has launches of its own (decode_more): q is rotated as it
 * is laid out, the step's own keys and values are rotated and written by the blocks that read them,
 * and the last block of a chunk merges its splits; with the bits of those launches.
 *
 * Codes of int8, int4 and fp8 are bf16 as they are; a key's scale is multiplied onto its score, a
 * value's onto its weight. q times the scale, and the weights, go as two numbers of 16 bits, high
 * and low: twice the products, which wait for memory anyway. The order of a row's sums is fixed by
 * its position; what shares a launch, or a chunk, changes no result.
 *
 * Shared memory: q's fragments, high and low, 64 WIDTH bytes; for the end 16 x (Dv + 2) floats a
 * warp, two of which part neighbouring rows' banks. WIDTH 64: 4096 + 512 + 16384; 128: 8192 + 512 +
 * 32768; 256: 16384 + 512 + 65536; static, four heads of WIDTH (4096 B at 256). */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/last.cuh"

inline namespace CU_NAME(attn_decode_cu)
{

    enum { WARPS = 4, THREADS = WARPS * CU_WARP, PAIRS = 16, KEYS = 16 };
    static_assert(ATTN_SPLIT % (WARPS * KEYS) == 0, "a split begins with warp 0");

    /* What a decode step does besides, in place of launches before and behind it; by value. */
    struct decode_more {
        /* q and k are not rotated, nor the cache written (dev_rope_args); cache_k NULL: they are */
        const float *k, *v, *cos, *sin;
        uint8_t *cache_k, *cache_v;
        int64_t ldk, ldv;
        int R;
        bool half;
        /* the last block of a chunk merges its splits; done NULL: a kernel of its own does */
        int32_t *done;
        float *out;
        const float *sinks;
    };

    /* x and y as two words, high and low. */
    template <bool F16> __device__ __forceinline__ void two_terms(unsigned w[2], float x, float y)
    {
        if (F16) { /* beyond f16: its largest number */
            const float most = 65504.0f;
            x = x > most ? most : x < -most ? -most : x;
            y = y > most ? most : y < -most ? -most : y;
        }
        w[0] = cu_pair<F16>(x, y);
        const unsigned lo = w[0] & 0xffffu, hi = w[0] >> 16;
        w[1] = F16 ? cu_pair<F16>(x - cu_f16_f32(lo), y - cu_f16_f32(hi))
                   : cu_pair<F16>(x - cu_bf16_f32(lo), y - cu_bf16_f32(hi));
    }

    /* Where the 16 keys from pos on are. Blocks hold 8, 16 or 32: each half of a tile is in one of them. */
    struct tile_at {
        G<const uint8_t> k[2], v[2]; /* the rows of the halves' first keys */
        int most[2]; /* the last of a half's keys that is there; keys behind are read as it */
    };
    __device__ __forceinline__ tile_at find(G<const uint8_t> k, G<const uint8_t> values,
                                            G<const int32_t> table, const attn_view &v, int kvh,
                                            int pos, int end)
    {
        tile_at at;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int first = pos + 8 * h < end ? pos + 8 * h : end - 1;
            const int64_t block = (int64_t)table[attn_block(first, v)] * (int64_t)v.block_stride;
            const int line = (kvh << v.block_shift) + attn_place(first, v);
            at.k[h] = k + (block + line * v.row_k);
            at.v[h] = values + (block + line * v.row_v);
            at.most[h] = end - 1 - first < 7 ? end - 1 - first : 7;
        }
        return at;
    }
    __device__ __forceinline__ int upto(int key, int most) { return key < most ? key : most; }

    /* The words that scales are in, of the keys of a lane's scores: 2c, 2c + 1, 2c + 8, 2c + 9. */
    template <bool SCALED>
    __device__ __forceinline__ void bring_heads(unsigned head[4], const G<const uint8_t> rows[2],
                                                const int most[2], int row_bytes)
    {
        const int c = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; SCALED && i < 4; i++)
            head[i] = cu_ld<unsigned>(rows[i / 2] + upto(2 * c + i % 2, most[i / 2]) * row_bytes);
    }

    /* Keys are brought PIECES times 32 numbers at a time: all, but of wide heads' codes, for which
     * registers do not last. */
    template <kv_dtype T, int WIDTH>
    constexpr int PIECES = WIDTH == 256 && sizeof(attn_codes<T>) < 16 ? 4 : WIDTH / 32;
    template <kv_dtype T, int WIDTH> struct key_tile {
        attn_codes<T> k[2][PIECES<T, WIDTH>]; /* of keys g and g + 8 */
        unsigned own[2], head[4];             /* of those keys, of int4; as bring_heads says */
    };
    template <kv_dtype T, int WIDTH, bool WHOLE>
    __device__ __forceinline__ void bring_keys(key_tile<T, WIDTH> * t, const tile_at &at, int first,
                                               const attn_view &v)
    {
        const int lane = threadIdx.x % CU_WARP, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const G<const uint8_t> row = at.k[n] + upto(g, at.most[n]) * v.row_k;
            if (T == KV_I4) t->own[n] = cu_ld<unsigned>(row);
#pragma unroll
            for (int i = 0; i < PIECES<T, WIDTH>; i++) { /* behind D q is 0: the first ones do */
                const int d = 8 * c + 32 * (first + i);
                t->k[n][i] = attn_bring<T>(row, WHOLE || d < v.D ? d : 8 * (c < v.D / 8 ? c : 0));
            }
        }
    }

    /* d .. d + 7 of the values of keys 2c, 2c + 1, 2c + 8, 2c + 9. */
    template <kv_dtype T>
    __device__ __forceinline__ void bring_values(attn_codes<T> val[4], const tile_at &at, int d,
                                                 const attn_view &v)
    {
        const int c = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) /* sums behind Dv are not looked at */
            val[i] = attn_bring<T>(at.v[i / 2] + upto(2 * c + i % 2, at.most[i / 2]) * v.row_v,
                                   d < v.Dv ? d : 0);
    }

    /* Each lane's q as A of the two products of 32 d: [piece][product][term][lane]. */
    template <bool F16>
    __device__ void lay_out_q(S<unsigned> qs, G<const float> q, const dev_attn_chunk &ch,
                              const attn_view &v, const decode_more &more, int kvh, int pair0,
                              int n_pairs, int pieces)
    {
        const int group = v.H / v.Hkv;
        for (int i = threadIdx.x; i < pieces * 2 * CU_WARP; i += THREADS) {
            const int lane = i % CU_WARP, product = i / CU_WARP % 2, piece = i / CU_WARP / 2;
            unsigned a[2][4];
            for (int h = 0; h < 2; h++) {
                const int p = lane / 4 + 8 * h, pair = pair0 + p;
                const int d0 = 8 * (lane % 4) + 32 * piece + 4 * product;
                float x[4] = { 0, 0, 0, 0 };
                if (p < n_pairs && d0 < v.D) {
                    const int64_t row = ch.row + pair / group;
                    const G<const float> own =
                        q + (row * v.ldq + (int64_t)(kvh * group + pair % group) * v.D);
                    const G<const float> cos = G<const float>(more.cos) + row * (more.R / 2),
                                         sin = G<const float>(more.sin) + row * (more.R / 2);
                    for (int e = 0; e < 4; e++)
                        x[e] = v.scale * cache_turned(own, d0 + e, cos, sin, more.R, more.half);
                }
                for (int u = 0; u < 2; u++) {
                    unsigned w[2];
                    two_terms<F16>(w, x[2 * u], x[2 * u + 1]);
                    a[0][2 * u + h] = w[0];
                    a[1][2 * u + h] = w[1];
                }
            }
            for (int term = 0; term < 2; term++)
                cu_st(qs + (((piece * 2 + product) * 2 + term) * CU_WARP + lane) * 4,
                      uint4{ a[term][0], a[term][1], a[term][2], a[term][3] });
        }
    }

    /* Of the split's keys from .. end - 1 those of this step's rows, rotated, and their values, into
 * the cache: a warp a head. Every chunk of a sequence whose split they are in writes them, the same
 * bytes, so that none waits for another. turned: a head of shared memory for each warp. */
    template <kv_dtype T>
    __device__ void store_fresh(S<float> turned, const decode_more &more, const dev_attn_chunk &ch,
                                const attn_view &v, G<const int32_t> table, int kvh, int64_t from,
                                int64_t end)
    {
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
        const int64_t n = end - from;
        for (int64_t i = warp; i < 2 * n; i += WARPS) {
            const int64_t p = from + i / 2, row = ch.row + (p - ch.pos);
            const int64_t at = (int64_t)table[attn_block(p, v)] * (int64_t)v.block_stride,
                          line = (int64_t)kvh * v.block_size + attn_place(p, v);
            if (i % 2) {
                cache_head(G<uint8_t>(more.cache_v) + (at + line * v.row_v),
                           G<const float>(more.v) + (row * more.ldv + (int64_t)kvh * v.Dv), v.Dv,
                           T);
                continue;
            }
            const G<const float> own =
                                     G<const float>(more.k) + (row * more.ldk + (int64_t)kvh * v.D),
                                 cos = G<const float>(more.cos) + row * (more.R / 2),
                                 sin = G<const float>(more.sin) + row * (more.R / 2);
            for (int d = lane; d < v.D; d += CU_WARP)
                turned[d] = cache_turned(own, d, cos, sin, more.R, more.half);
            __syncwarp();
            cache_head(G<uint8_t>(more.cache_k) + (at + line * v.row_k), S<const float>(turned),
                       v.D, T);
            __syncwarp();
        }
        __syncthreads(); /* the block reads them as it reads all others */
    }

    /* The block that is the last of its chunk's to be done merges their splits, in order: which it is
     * changes nothing. One that is alone was not written (join_warps). */
    __device__ void merge_last(G<const float> parts, S<int> last, const decode_more &more,
                               const dev_attn_chunk &ch, const attn_view &v, int own, int kvh,
                               int pair0, int n_pairs)
    {
        const int group = v.H / v.Hkv;
        const G<int32_t> done = G<int32_t>(more.done) +
                                ((int64_t)(own * v.Hkv + kvh) * (int)gridDim.z + (int)blockIdx.z);
        if (ch.n_splits == 1 || !cu_last(done, ch.n_splits, last)) return;
        for (int p = threadIdx.x / CU_WARP; p < PAIRS && p < n_pairs; p += WARPS)
            attn_merge(more.out, parts, ch, (pair0 + p) / group, kvh * group + (pair0 + p) % group,
                       more.sinks, v, 0);
    }

    /* The warps' maxima, sums and accumulators: joined, and into the split's place, or, of one that is alone where no
     * kernel merges, to out, with attn_merge's bits. A pair has Dv + 2 floats of each warp, its maximum and sum last; of pairs that are not there nobody looks. */
    template <int WIDTH>
    __device__ void join_warps(G<float> parts, S<float> sums, const float m[2], const float l[2],
                               const float(&acc)[WIDTH / 8][4], const attn_view &v,
                               const dev_attn_chunk &ch, const decode_more &more, int kvh,
                               int pair0, int n_pairs)
    {
        const bool alone = more.done && ch.n_splits == 1;
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4, group = v.H / v.Hkv, slot = blockIdx.x, pitch = v.Dv + 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const S<float> own = sums + (warp * PAIRS + g + 8 * h) * pitch;
            if (g + 8 * h >= n_pairs) continue;
            if (c == 0) {
                own[v.Dv] = m[h];
                own[v.Dv + 1] = l[h];
            }
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int d = 64 * (n / 8) + 16 * c + 8 * i + n % 8;
                    if (d < v.Dv) own[d] = acc[n][2 * h + i];
                }
        }
        __syncthreads();
        for (int p = warp; p < PAIRS && p < n_pairs; p += WARPS) {
            const S<float> own = sums + p * pitch;
            float top = -INFINITY, all = 0, by[WARPS];
            for (int w = 0; w < WARPS; w++)
                top = fmaxf(top, own[w * PAIRS * pitch + v.Dv]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float seen = own[w * PAIRS * pitch + v.Dv + 1];
                by[w] = seen == 0 ? -1.0f : km_exp(own[w * PAIRS * pitch + v.Dv] - top);
                if (seen != 0) all = fmaf(seen, by[w], all);
            }
            const int i = (pair0 + p) / group, h = kvh * group + (pair0 + p) % group;
            const int64_t row = (int64_t)slot * v.chunk_rows + i;
            const G<float> part = parts + (row * v.H + h) * (int64_t)(v.Dv + 2),
                           out = G<float>(more.out) + ((ch.row + i) * v.ldo + h * v.ho);
            const float f = alone ? attn_last(top, all, h, more.sinks) : 1.0f;
            if (!alone && lane == 0) {
                part[0] = top;
                part[1] = all;
            }
            for (int d = lane; d < v.Dv; d += CU_WARP) {
                float sum = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++)
                    if (by[w] >= 0) sum = fmaf(own[w * PAIRS * pitch + d], by[w], sum);
                if (alone)
                    out[d] = attn_out((all == 0 ? 0.0f : sum + 0.0f) * f, v);
                else
                    part[2 + d] = sum;
            }
        }
    }

    template <int WIDTH, kv_dtype T>
    __global__ void __launch_bounds__(THREADS, WIDTH == 256 ? 1 : 2)
        decode_kernel(G<float> parts, G<const float> q, G<const uint8_t> k, G<const uint8_t> values,
                      G<const int32_t> chunk_of, G<const dev_attn_chunk> chunks,
                      G<const int32_t> tables, G<const float> alibi, attn_view v, decode_more more)
    {
        enum {
            F16 = T == KV_F16,
            SCALED = T != KV_F16 && T != KV_BF16,
            EARLY = WIDTH < 256 /* what is needed next comes meanwhile: registers last for that */
        };
        CU_DYNAMIC(unsigned, qs);
        CU_SHARED(float, turned, WARPS *WIDTH);
        CU_SHARED(int, last_of, 1);
        const S<float> sums = cu_as<float>(qs + 16 * WIDTH);
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, g = lane / 4,
                  c = lane % 4;
        const int kvh = blockIdx.y, group = v.H / v.Hkv, pair0 = blockIdx.z * PAIRS,
                  slot = blockIdx.x;
        cu_follow();
        const int own = chunk_of[slot];
        if (own < 0) return; /* all threads of the block alike, as below */
        const dev_attn_chunk ch = cu_ld<dev_attn_chunk>(chunks + own);
        const int n_pairs = ch.n_rows * group - pair0; /* may be more than PAIRS, or none */
        if (n_pairs <= 0) return;
        const int split = (int)(ch.split0 + slot - ch.slot) * ATTN_SPLIT;
        const int last = (int)ch.pos + ch.n_rows; /* behind the last key that any row sees */
        const int end = last < split + ATTN_SPLIT ? last : split + ATTN_SPLIT;
        const int oldest = v.window && ch.pos >= v.window ? (int)(ch.pos - v.window) + 1 : 0;
        int pos = (oldest > split ? oldest : split) / (WARPS * KEYS) * (WARPS * KEYS) + warp * KEYS;
        const G<const int32_t> table = tables + ch.table;
        const bool adjusted = v.softcap > 0 || alibi, whole = v.D == WIDTH;
        const int block_k = T == KV_I4 ? (int)attn_i4_block(v.D) : 1,
                  block_v = T == KV_I4 ? (int)attn_i4_block(v.Dv) : 1;
        int query[2],
            from[2]; /* of rows g and g + 8 of the sums: the last key, that before the first */
        float m[2] = { -INFINITY, -INFINITY }, l[2] = { 0, 0 };
        for (int h = 0; h < 2; h++) {
            query[h] = (int)ch.pos + (pair0 + g + 8 * h) / group;
            from[h] = v.window && query[h] >= v.window ? (int)(query[h] - v.window) : -1;
        }
        float acc[WIDTH / 8][4] = {};
        key_tile<T, WIDTH> tile;
        tile_at at;
        auto bring_pieces = [&](int first) {
            if (whole)
                bring_keys<T, WIDTH, true>(&tile, at, first, v);
            else
                bring_keys<T, WIDTH, false>(&tile, at, first, v);
        };
        /* The rows of the tile at next, and its keys. */
        auto bring_tile = [&](int next) {
            at = find(k, values, table, v, kvh, next, end);
            bring_heads<SCALED>(tile.head, at.k, at.most, v.row_k);
            bring_pieces(0);
        };
        /* keys of steps before come while q is laid out */
        const bool old = pos + KEYS <= end && pos + KEYS <= ch.fresh;
        if (EARLY && old) bring_tile(pos);
        lay_out_q<F16>(qs, q, ch, v, more, kvh, pair0, n_pairs, WIDTH / 32);
        const int64_t fresh = ch.fresh > split ? ch.fresh : split;
        if (more.cache_k && fresh < end)
            store_fresh<T>(turned + warp * WIDTH, more, ch, v, table, kvh, fresh, end);
        if (EARLY && !old && pos < end) bring_tile(pos);
        __syncthreads(); /* q */
        for (; pos < end; pos += WARPS * KEYS) {
            if (!EARLY) bring_tile(pos);
            float s[2][4] = {};
            unsigned head[4];
            attn_codes<T> val[EARLY ? WIDTH / 64 : 1][4];
            const tile_at now = at;
            if (EARLY) bring_heads<SCALED>(head, now.v, now.most, v.row_v);
            if (EARLY)
#pragma unroll
                for (int j = 0; j < WIDTH / 64; j++)
                    bring_values<T>(val[EARLY ? j : 0], now, 8 * g + 64 * j, v);
#pragma unroll 1
            for (int first = 0; first < WIDTH / 32; first += PIECES<T, WIDTH>) {
                if (first > 0) bring_pieces(first);
#pragma unroll
                for (int i = 0; i < PIECES<T, WIDTH>; i++) {
                    uint4 kk[2];
#pragma unroll
                    for (int n = 0; n < 2; n++)
                        kk[n] = attn_numbers<T>(tile.k[n][i], tile.own[n],
                                                (8 * c + 32 * (first + i)) / block_k);
#pragma unroll
                    for (int product = 0; product < 2; product++)
#pragma unroll
                        for (int term = 1; term >= 0; term--) {
                            const uint4 w = cu_ld<uint4>(
                                qs +
                                ((((first + i) * 2 + product) * 2 + term) * CU_WARP + lane) * 4);
                            const unsigned a[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
                            for (int n = 0; n < 2; n++) {
                                const unsigned b[2] = { product ? kk[n].z : kk[n].x,
                                                        product ? kk[n].w : kk[n].y };
                                cu_mma<F16>(s[n], a, b);
                            }
                        }
                }
            }
            if (SCALED)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    s[i / 4][i % 4] *= attn_scale<T>(tile.head[i / 4 * 2 + i % 2]);
            if (!EARLY) bring_heads<SCALED>(head, now.v, now.most, v.row_v);
            if (EARLY && pos + WARPS * KEYS < end) bring_tile(pos + WARPS * KEYS);
            if (adjusted)
                for (int h = 0; h < 2; h++) {
                    const int head_of = kvh * group + (pair0 + g + 8 * h) % group;
                    const float slope = alibi ? (float)alibi[head_of] : 0.0f;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float &x = s[i / 2][2 * h + i % 2];
                        x = attn_adjust(x, v, slope, pos + 8 * (i / 2) + 2 * c + i % 2, query[h]);
                    }
                }
            float top[2] = { -INFINITY, -INFINITY }, keep[2];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int h = i / 2, key = pos + 8 * n + 2 * c + i % 2;
                    if (key > query[h] || key <= from[h]) s[n][i] = -INFINITY;
                    top[h] = s[n][i] > top[h] ? s[n][i] : top[h];
                }
            attn_rise(m, l, keep, top);
            unsigned a[2][4]; /* the weights, high and low */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float most = m[h] > -INFINITY ? m[h] : 0.0f;
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    float p[2];
                    for (int e = 0; e < 2; e++) {
                        p[e] = attn_exp(s[n][2 * h + e] - most);
                        l[h] += p[e];
                        if (SCALED) /* 0 times the NaN of a key that it does not see is none of its */
                            p[e] = s[n][2 * h + e] == -INFINITY
                                       ? 0.0f
                                       : p[e] * attn_scale<T>(head[2 * n + e]);
                    }
                    unsigned w[2];
                    two_terms<F16>(w, p[0], p[1]);
                    a[0][2 * n + h] = w[0];
                    a[1][2 * n + h] = w[1];
                }
            }
#pragma unroll
            for (int j = 0; j < WIDTH / 64; j++) {
                if (!EARLY) bring_values<T>(val[0], now, 8 * g + 64 * j, v);
                unsigned x[4][4]; /* of a key its eight numbers */
#pragma unroll
                for (int key = 0; key < 4; key++) {
                    const uint4 y = attn_numbers<T>(val[EARLY ? j : 0][key], head[key],
                                                    (8 * g + 64 * j) / block_v);
                    x[key][0] = y.x, x[key][1] = y.y, x[key][2] = y.z, x[key][3] = y.w;
                }
                if (!SCALED && pos < oldest) /* values before any row's window, which may be NaN */
#pragma unroll
                    for (int key = 0; key < 4; key++)
                        if (pos + 8 * (key / 2) + 2 * c + key % 2 < oldest)
                            x[key][0] = x[key][1] = x[key][2] = x[key][3] = 0;
#pragma unroll
                for (int t = 0; t < 8; t++) {
                    const unsigned which = t % 2 ? 0x7632u : 0x5410u;
                    const unsigned b[2] = { __byte_perm(x[0][t / 2], x[1][t / 2], which),
                                            __byte_perm(x[2][t / 2], x[3][t / 2], which) };
                    float(&sum)[4] = acc[8 * j + t];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[i] *= keep[i / 2];
                    cu_mma<F16>(sum, a[1], b);
                    cu_mma<F16>(sum, a[0], b);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[h] += cu_shfl_xor(l[h], 1);
            l[h] += cu_shfl_xor(l[h], 2);
        }
        join_warps<WIDTH>(parts, sums, m, l, acc, v, ch, more, kvh, pair0, n_pairs);
        if (more.done) merge_last(parts, last_of, more, ch, v, own, kvh, pair0, n_pairs);
    }

    template <int WIDTH, kv_dtype T>
    void launch(dev * d, const dev_attn_args *a, const attn_view &v)
    {
        const int shared = 64 * WIDTH + WARPS * PAIRS * (2 + (int)a->Dv) * (int)sizeof(float);
        const dim3 grid((unsigned)a->n_slots, (unsigned)a->Hkv,
                        (unsigned)lq_ceil_div(v.chunk_rows * (a->H / a->Hkv), PAIRS));
        const dev_rope_args *r = a->rope;
        decode_more more = {};
        if (r)
            more = { r->k,
                     r->v,
                     r->cos,
                     r->sin,
                     r->cache_k,
                     r->cache_v,
                     r->ld ? r->ld : a->Hkv * a->D,
                     r->ld ? r->ld : a->Hkv * a->Dv,
                     (int)r->R,
                     r->half };
        more.done = a->done;
        more.out = a->out;
        more.sinks = a->sinks;
        CU_ALLOW(d, (decode_kernel<WIDTH, T>), WARPS * WIDTH * sizeof(float) + 16);
        CU_FOLLOW(d, "attn decode", (decode_kernel<WIDTH, T>), grid, THREADS, (size_t)shared,
                  (float *)a->scratch, a->q, a->k, a->v, a->chunk_of, a->chunks, a->tables,
                  a->alibi, v, more);
    }

    template <kv_dtype T> void launch_width(dev * d, const dev_attn_args *a, const attn_view &v)
    {
        const int64_t width = a->D > a->Dv ? a->D : a->Dv;
        if (width <= 64)
            launch<64, T>(d, a, v);
        else if (width <= 128)
            launch<128, T>(d, a, v);
        else
            launch<256, T>(d, a, v);
    }

}

void CU_NAME(attn_decode)(dev *d, const dev_attn_args *a, const attn_view *v)
{
    switch (a->dtype) {
#define CASE(dtype)                    \
    case dtype:                        \
        launch_width<dtype>(d, a, *v); \
        return;
        ATTN_CACHES(CASE)
#undef CASE
    default:
        return; /* dev_attn_units says that there is none */
    }
}
