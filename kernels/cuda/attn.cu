/* kernels/cuda/attn.cu - attention over the paged cache, for prefill and decode alike: the steps of
 * kernels/attn.c in the same order, so that the results are the CPU's bits. (attn_mma.cu and
 * attn_sm90.cu, of many rows, attn_decode.cu and attn_latent.cu have kernels in fold's place that add
 * in other orders.)
 *
 *   fold    grid: slots (one split of ATTN_SPLIT keys of one chunk of rows) x kv heads x passes of
 *           PAIRS (row, head) pairs. 4 warps share each tile of 32 keys once it is in f32:
 *
 *                 d 0 ..... D              a warp takes pairs w, w+4, ..; for each
 *           key 0 [  K tile  ]               scores   lane = key, over d in order
 *             ..  [          ]               softmax  across the lanes
 *              31 [          ]               P V      lane = d, d+32, ..., over keys in order
 *
 *           and leaves maximum, sum and accumulator of its split in scratch.
 *   merge   one warp a row, head and DEV_ATTN_WIDTH columns: the splits in order, then the sink; of
 *           the other kernels' splits in another order (attn_merge).
 *
 * A decode step of one sequence has (context / 512) x kv heads blocks; how many share a launch
 * changes no result.
 *
 * Shared memory, in floats: q PAIRS x D, K 32 x (D + 1) (the odd row length keeps lanes apart in
 * the banks), V 32 x Dv, weights PAIRS x 32. D = Dv = 64: 22656 B; 128: 43136 B; 256: 84096 B. Of
 * latents, whose rows are K and V, half as many pairs and no V: of 576 numbers 93312 B. Of heads wider
 * than DEV_ATTN_WIDTH as many, and V takes K's place once the scores are made: of 512 83072 B. */
#include "kernels/cuda/attn.cuh"

#include <assert.h>

inline namespace CU_NAME(attn_cu)
{

    enum {
        WARPS = 4,
        THREADS = WARPS * CU_WARP,
    };
    enum fold_what { HEADS, WIDE_HEADS, LATENTS };
    template <fold_what WHAT> struct fold_of {
        enum {
            PAIRS = WHAT == HEADS ? 16 : 8,
            PER_WARP = PAIRS / WARPS,
            ACC = (WHAT == LATENTS      ? (int)DEV_ATTN_LATENT_WIDTH
                   : WHAT == WIDE_HEADS ? (int)DEV_ATTN_HEAD
                                        : (int)DEV_ATTN_WIDTH) /
                  CU_WARP /* of a lane */
        };
    };
    static_assert((int)ATTN_TILE == (int)CU_WARP, "a lane is a key");

    /* The keys or values of positions pos .. pos+31, or of those places of a list, into dst [32][ld]; zeros from `end` on. */
    __device__ void load_tile(S<float> dst, int ld, G<const uint8_t> cache, G<const int32_t> table,
                              G<const int32_t> list, const attn_view &v, int kvh, int64_t pos,
                              int64_t end, int row_bytes, int D)
    {
        const int quads = D / 4;
        for (int i = threadIdx.x; i < ATTN_TILE * quads; i += THREADS) {
            const int j = i / quads, q = i % quads;
            int64_t p = pos + j;
            float4 x = { 0, 0, 0, 0 };
            if (p < end) {
                if (list) p = list[p];
                const int64_t block = table[attn_block(p, v)];
                const int64_t row = (int64_t)kvh * v.block_size + attn_place(p, v);
                x = attn_four(cache + (block * (int64_t)v.block_stride + row * row_bytes), q, D,
                              v.dtype);
            }
            dst[j * ld + 4 * q] = x.x;
            dst[j * ld + 4 * q + 1] = x.y;
            dst[j * ld + 4 * q + 2] = x.z;
            dst[j * ld + 4 * q + 3] = x.w;
        }
    }

    template <fold_what WHAT>
    __global__ void __launch_bounds__(THREADS, 4)
        fold_kernel(G<float> parts, G<const float> q, G<const uint8_t> k, G<const uint8_t> values,
                    G<const int32_t> chunk_of, G<const dev_attn_chunk> chunks,
                    G<const int32_t> tables, G<const float> alibi, attn_lists v)
    {
        enum {
            PAIRS = fold_of<WHAT>::PAIRS,
            PER_WARP = fold_of<WHAT>::PER_WARP,
            ACC = fold_of<WHAT>::ACC
        };
        CU_DYNAMIC(float, qs);
        const int most = WHAT == WIDE_HEADS && v.Dv > v.D ? v.Dv : v.D; /* of a row of K's tile */
        const S<float> ks = qs + PAIRS * v.D, after = ks + ATTN_TILE * (most + 1),
                       vs = WHAT == HEADS ? after : ks,
                       ps = WHAT == HEADS ? vs + ATTN_TILE * v.Dv : after;
        const int ldv = WHAT == HEADS ? v.Dv : most + 1;
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, kvh = blockIdx.y;
        const int group = v.H / v.Hkv, pair0 = blockIdx.z * PAIRS, slot = blockIdx.x;
        const int own = chunk_of[slot];
        if (own < 0) return; /* all threads of the block alike, as below */
        dev_attn_chunk c = chunks[own];
        const G<const int32_t> list = attn_list(&c, v, kvh);
        const int n_pairs =
            c.n_rows * group - pair0; /* of this pass; may be more than PAIRS, or none */
        if (n_pairs <= 0) return;     /* all threads of the block alike */
        for (int i = threadIdx.x; i < PAIRS * v.D; i += THREADS) {
            const int p = i / v.D, pair = pair0 + p;
            if (p >= n_pairs) continue;
            qs[i] =
                q[(c.row + pair / group) * v.ldq + (kvh * group + pair % group) * v.hq + i % v.D];
        }
        float m[PER_WARP], l[PER_WARP], acc[PER_WARP][ACC];
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            m[i] = -INFINITY;
            l[i] = 0;
#pragma unroll
            for (int a = 0; a < ACC; a++)
                acc[i][a] = 0;
        }
        const int64_t split = (int64_t)(c.split0 + slot - c.slot) * ATTN_SPLIT;
        const int64_t last =
            attn_seen(c.pos + c.n_rows - 1, c.fresh, v); /* behind the last key that any row sees */
        const int64_t end = last < split + ATTN_SPLIT ? last : split + ATTN_SPLIT;
        int64_t pos = v.window ? c.pos - v.window + 1 : 0;
        pos = (pos > split ? pos : split) / ATTN_TILE * ATTN_TILE;
        for (; pos < end; pos += ATTN_TILE) {
            __syncthreads(); /* the tile before is done with; q is there */
            load_tile(ks, most + 1, k, tables + c.table, list, v, kvh, pos, last, v.row_k, v.D);
            if (WHAT == HEADS)
                load_tile(vs, ldv, values, tables + c.table, list, v, kvh, pos, last, v.row_v,
                          v.Dv);
            __syncthreads();
            float keep[PER_WARP];
            int lo[PER_WARP], hi[PER_WARP]; /* the keys that a pair sees */
#pragma unroll
            for (int i = 0; i < PER_WARP; i++) {
                const int p = i * WARPS + warp, pair = pair0 + p;
                const int64_t query = c.pos + pair / group;
                const int64_t first = v.window ? query - v.window + 1 - pos : 0;
                lo[i] = (int)(first < 0 ? 0 : first > ATTN_TILE ? ATTN_TILE : first);
                const int64_t behind = attn_seen(query, c.fresh, v) - pos;
                hi[i] = (int)(behind < 0 ? 0 : behind > ATTN_TILE ? ATTN_TILE : behind);
                if (p >= n_pairs) hi[i] = 0;
                if (lo[i] >= hi[i]) continue; /* all lanes alike */
                const float slope = alibi ? (float)alibi[kvh * group + pair % group] : 0.0f;
                const bool seen = lane >= lo[i] && lane < hi[i];
                float s = 0;
                for (int d = 0; d < v.D; d++)
                    s = fmaf(qs[p * v.D + d], ks[lane * (most + 1) + d], s);
                s = attn_adjust(v.scale * s, v, slope, pos + lane, query);
                if (v.dist_bias)
                    s += attn_distance(v, kvh * group + pair % group, pos + lane - query);
                const float top = cu_warp_max(seen ? s : -INFINITY), max = top > m[i] ? top : m[i];
                const float e = seen ? km_exp(s - max) : 0.0f;
                keep[i] = km_exp(m[i] - max);
                l[i] = fmaf(l[i], keep[i], cu_warp_sum(e));
                m[i] = max;
                ps[p * ATTN_TILE + lane] = e;
            }
            if (WHAT == WIDE_HEADS) {
                __syncthreads(); /* K is done with */
                load_tile(vs, ldv, values, tables + c.table, list, v, kvh, pos, last, v.row_v,
                          v.Dv);
                __syncthreads();
            }
            __syncwarp(); /* the warp's own weights */
#pragma unroll
            for (int i = 0; i < PER_WARP; i++) {
                if (lo[i] >= hi[i]) continue;
                const S<const float> own_ps = ps + (i * WARPS + warp) * ATTN_TILE;
#pragma unroll
                for (int x = 0; x < ACC; x++) {
                    const int d = x * CU_WARP + lane;
                    if (d >= v.Dv) continue;
                    float sum = acc[i][x] * keep[i];
                    for (int j = lo[i]; j < hi[i]; j++)
                        sum = fmaf(own_ps[j], vs[j * ldv + d], sum);
                    acc[i][x] = sum;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            const int p = i * WARPS + warp, pair = pair0 + p;
            if (p >= n_pairs) continue;
            const int64_t row = (int64_t)slot * v.chunk_rows + pair / group;
            const G<float> to =
                parts + (row * v.H + kvh * group + pair % group) * (int64_t)(v.Dv + 2);
            if (lane == 0) {
                to[0] = m[i];
                to[1] = l[i];
            }
#pragma unroll
            for (int x = 0; x < ACC; x++)
                if (x * CU_WARP + lane < v.Dv) to[2 + x * CU_WARP + lane] = acc[i][x];
        }
    }

    template <bool EXACT>
    __global__ void __launch_bounds__(THREADS, 6)
        merge_kernel(G<float> out, G<const float> parts, G<const dev_attn_chunk> chunks,
                     G<const float> sinks, attn_view v)
    {
        const int h = blockIdx.y * WARPS + threadIdx.x / CU_WARP, i = blockIdx.x % v.chunk_rows;
        cu_follow();
        const dev_attn_chunk c = chunks[blockIdx.x / v.chunk_rows];
        if (i >= c.n_rows || h >= v.H) return; /* all lanes of a warp alike */
        const int first = (int)blockIdx.z * DEV_ATTN_WIDTH;
        if (EXACT)
            attn_merge_exact(out, parts, c, i, h, sinks, v, first);
        else
            attn_merge(out, parts, c, i, h, sinks, v, first);
    }
    template <bool EXACT> void merge(dev * d, const dev_attn_args *a, const attn_view &v)
    {
        CU_FOLLOW(d, "attn merge", merge_kernel<EXACT>,
                  dim3((unsigned)(a->n_chunks * v.chunk_rows), (unsigned)lq_ceil_div(a->H, WARPS),
                       (unsigned)lq_ceil_div(a->Dv, DEV_ATTN_WIDTH)),
                  THREADS, 0, a->out, (const float *)a->scratch, a->chunks, a->sinks, v);
    }

    int chunk_rows(const dev_attn_args *a)
    {
        return a->keys ? 1 : (int)dev_attn_rows(a->how, a->H, a->Hkv);
    }

    template <fold_what WHAT> void fold(dev * d, const dev_attn_args *a, const attn_lists &v)
    {
        enum { PAIRS = fold_of<WHAT>::PAIRS };
        const int values = WHAT == HEADS ? ATTN_TILE * v.Dv : 0,
                  most = WHAT == WIDE_HEADS && v.Dv > v.D ? v.Dv : v.D;
        const size_t shared = sizeof(float) * (size_t)(PAIRS * v.D + ATTN_TILE * (most + 1) +
                                                       values + PAIRS * ATTN_TILE);
        const unsigned passes = (unsigned)lq_ceil_div(v.chunk_rows * (a->H / a->Hkv), PAIRS);
        CU_ALLOW(d, fold_kernel<WHAT>, 0);
        CU_LAUNCH(d, "attn fold", fold_kernel<WHAT>,
                  dim3((unsigned)a->n_slots, (unsigned)a->Hkv, passes), THREADS, shared,
                  (float *)a->scratch, a->q, a->k, a->v, a->chunk_of, a->chunks, a->tables,
                  a->alibi, v);
    }

}

size_t CU_NAME(attn_scratch)(const dev_attn_args *a)
{
    return dev_attn_scratch(a->how, a->n_slots, a->H, a->Hkv, a->Dv);
}

void CU_NAME(attn)(dev *d, const dev_attn_args *a)
{
    const attn_lists v = { { (int)a->H,
                             (int)a->Hkv,
                             (int)a->D,
                             (int)a->Dv,
                             a->block_size,
                             __builtin_ctz((unsigned)a->block_size),
                             chunk_rows(a),
                             (int)attn_kv_row_bytes(a->dtype, a->D),
                             (int)attn_kv_row_bytes(a->dtype, a->Dv),
                             a->ldq,
                             a->ldo,
                             a->hq ? a->hq : a->D,
                             a->ho ? a->ho : a->Dv,
                             a->window,
                             a->block_stride,
                             a->dtype,
                             a->scale,
                             a->softcap,
                             a->alibi_scaled,
                             a->alibi_bf16,
                             a->bf16,
                             a->both,
                             (int)a->split },
                           a->keys,
                           a->n_keys,
                           a->ld_keys,
                           a->keys_by_head,
                           a->dist_bias,
                           (int)a->n_dist };
    /* without splits nothing is left to merge */
    const bool ends =
                   a->how == DEV_ATTN_UNITS || a->how == DEV_ATTN_WIDE || a->how == DEV_ATTN_LATENT,
               direct = ends && a->n_slots == a->n_chunks;
    const attn_end end = { direct ? NULL : (float *)a->scratch, direct ? a->out : NULL, a->sinks };
    assert(a->how == DEV_ATTN_DECODE || (!a->rope && !a->done));
    assert(!a->keys || a->how == DEV_ATTN_EXACT || a->how == DEV_ATTN_LATENT);
    assert(!a->keys || (!a->window && !a->alibi));
    assert(!a->dist_bias || (a->how == DEV_ATTN_EXACT && !a->alibi));
    assert(!a->both || ((a->how == DEV_ATTN_EXACT || a->how == DEV_ATTN_UNITS) && !a->keys));
    const bool wide = a->D > DEV_ATTN_WIDTH || a->Dv > DEV_ATTN_WIDTH;
    assert(!a->latent || a->Hkv == 1);
    assert(a->how == DEV_ATTN_EXACT ||
           (a->latent || wide || a->keys ? a->how == DEV_ATTN_LATENT : a->how != DEV_ATTN_LATENT));
    assert(!(a->alibi && a->how == DEV_ATTN_LATENT));
    assert(a->block_size >= 8 && (a->block_size & (a->block_size - 1)) == 0);
    if (a->n_chunks == 0) return;
    if (a->how == DEV_ATTN_UNITS)
        CU_NAME(attn_units)(d, a, &v, &end);
    else if (a->how == DEV_ATTN_WIDE)
        CU_NAME(attn_sm90)(d, a, &v, &end);
    else if (a->how == DEV_ATTN_LATENT)
        CU_NAME(attn_latent)(d, a, &v, &end);
    else if (a->how == DEV_ATTN_DECODE)
        CU_NAME(attn_decode)(d, a, &v);
    else if (a->latent)
        fold<LATENTS>(d, a, v);
    else if (wide)
        fold<WIDE_HEADS>(d, a, v);
    else
        fold<HEADS>(d, a, v);
    if (a->done || direct) return;
    if (a->how == DEV_ATTN_EXACT)
        merge<true>(d, a, v);
    else
        merge<false>(d, a, v);
}
