/* kernels/cuda/attn.cuh - what the kernels of attention share. */
#ifndef LLMQ_KERNELS_CUDA_ATTN_CUH
#define LLMQ_KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/ops.cuh"

/* The caches that the matrix units read (dev_attn_units). */
#define ATTN_CACHES(X) X(KV_F16) X(KV_BF16) X(KV_I8) X(KV_I4) X(KV_F8)

/* What attention's kernels are told beside their pointers; by value. */
struct attn_view {
    int H, Hkv, D, Dv;
    int block_size, block_shift; /* 8, 16 or 32 keys: 2^block_shift */
    int chunk_rows, row_k, row_v;
    int64_t ldq, ldo, hq, ho, window; /* hq, ho: from head to head of q and out */
    size_t block_stride;
    kv_dtype dtype;
    float scale, softcap;
    bool alibi_scaled, alibi_bf16;
    bool bf16; /* out is rounded to it */
    bool both; /* rows see keys after them too */
    int split; /* keys */
};

/* Of kernels that read lists: in attn_view itself they cost the kernel of sm_90a registers that it does not have. */
struct attn_lists : attn_view {
    const int32_t *keys, *n_keys; /* dev_attn_args's */
    int64_t ld_keys;
    bool keys_by_head;
    const float *dist_bias;
    int n_dist;
};

__device__ constexpr bool attn_scaled(kv_dtype t) { return t != KV_F16 && t != KV_BF16; }

/* x in the cache's type; beyond f16 its largest number. */
template <bool F16> __device__ __forceinline__ uint16_t attn_narrow(float x)
{
    if (!F16) return (uint16_t)cu_f32_bf16(x);
    const float most = 65504.0f;
    return cu_f32_f16(x > most ? most : x < -most ? -most : x);
}

__device__ __forceinline__ float attn_bf16(float x) { return cu_bf16_f32(cu_f32_bf16(x)); }

/* Soft-cap and ALiBi (slope 0: none), as attn.c's adjust(). */
__device__ __forceinline__ float attn_adjust(float s, const attn_view &v, float slope, int64_t key,
                                             int64_t query)
{
    if (v.softcap > 0) s = v.softcap * km_tanh(s / v.softcap);
    if (slope == 0) return s;
    const float f = v.alibi_scaled ? v.scale : 1.0f;
    if (v.alibi_bf16) return s + f * attn_bf16(attn_bf16(slope) * attn_bf16((float)key));
    const int64_t apart = key - query;
    return s + slope * f * (float)(v.both && apart > 0 ? -apart : apart);
}

/* The key after the last one that a query sees; end: behind its sequence's last. */
__device__ __forceinline__ int64_t attn_seen(int64_t query, int64_t end, const attn_view &v)
{
    if (!v.both) return query + 1;
    const int64_t most = query + v.window;
    return v.window && most < end ? most : end;
}

/* Two codes as bf16, exactly, without a float between: 0x4300 | q is 128 + q for q below 128, and
 * 0x4380 is 256. Of int8: a code below 0x43 in each half. */
__device__ __forceinline__ unsigned attn_two_i8(unsigned w)
{
    return cu_sub_bf16(w & 0x437f437fu, w & 0x43804380u);
}
/* Of int4: bits 0 to 3 of the low half, 3 to 6 of the high one, which is 128 + 8 q. by: the block's
 * times t, and t / 8; less: -136 t, and -24 t, which bf16 holds for each t (attn_i4_times). */
__device__ __forceinline__ unsigned attn_two_i4(unsigned w, unsigned by, unsigned less)
{
    return cu_fma_bf16((w & 0x0078000fu) | 0x43004300u, by, less);
}
/* Of fp8 (e4m3): one in the high byte of each half. Its exponent and mantissa are a bf16's of 2^-120,
 * subnormals included. There are no codes of NaN: a row with one has a scale of NaN. */
__device__ __forceinline__ unsigned attn_two_f8(unsigned w)
{
    return cu_fma_bf16((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
}

/* Eight neighbouring numbers of a row as they are in the cache. They are asked for together, long before
 * they are numbers: a load whose result is used at once makes the warp wait for it. */
template <kv_dtype T> struct attn_codes {
    unsigned w[T == KV_I4 ? 1 : T == KV_I8 || T == KV_F8 ? 2 : 4];
};
/* d .. d + 7. */
template <kv_dtype T>
__device__ __forceinline__ attn_codes<T> attn_bring(G<const uint8_t> row, int d)
{
    if constexpr (T == KV_I4) {
        return { cu_ld<unsigned>(row + (4 + d / 2)) };
    } else if constexpr (T == KV_I8 || T == KV_F8) {
        return { cu_ld<unsigned>(row + (4 + d)), cu_ld<unsigned>(row + (8 + d)) };
    } else {
        const uint4 x = cu_ld<uint4>(row + 2 * d);
        return { x.x, x.y, x.z, x.w };
    }
}
/* They as numbers, two a word: of int8, int4, fp8 over the row's scale. head: the first word of the row,
 * block: the one of it that they are in, of int4. */
template <kv_dtype T>
__device__ __forceinline__ uint4 attn_numbers(const attn_codes<T> &x, unsigned head, int block)
{
    unsigned out[4];
    const float times = T == KV_I4 ? (float)attn_i4_times(head >> 4 * block) : 0.0f;
    const unsigned by = T == KV_I4 ? cu_pair<false>(times, times * 0.125f) : 0,
                   less = T == KV_I4 ? cu_pair<false>(-136 * times, -24 * times) : 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if constexpr (T == KV_I4)
            out[j] = attn_two_i4(__byte_perm(x.w[0], x.w[0] >> 1, (4u + j) << 8 | j), by, less);
        else if constexpr (T == KV_I8)
            out[j] = attn_two_i8(__byte_perm(x.w[j / 2], 0x43u, j % 2 ? 0x4342u : 0x4140u));
        else if constexpr (T == KV_F8)
            out[j] = attn_two_f8(__byte_perm(x.w[j / 2], 0, j % 2 ? 0x3424u : 0x1404u));
        else
            out[j] = x.w[j];
    }
    return { out[0], out[1], out[2], out[3] };
}

/* What the numbers of a row of codes are to be multiplied by; head: its first word. */
template <kv_dtype T> __device__ __forceinline__ float attn_scale(unsigned head)
{
    return T == KV_I4 ? cu_bf16_f32(head >> 16) * 0.0625f : __uint_as_float(head);
}

/* Numbers 4 i .. 4 i + 3 of a row of D, a multiple of 4. */
__device__ __forceinline__ float4 attn_four(G<const uint8_t> row, int i, int D, kv_dtype d)
{
    if (d == KV_F32) return cu_ld<float4>(row + 16 * i);
    if (d == KV_I8 || d == KV_F8) {
        const float s = cu_ld<float>(row);
        const unsigned w = cu_ld<unsigned>(row + (4 + 4 * i));
        float f[4];
        for (int j = 0; j < 4; j++) {
            const unsigned c = w >> 8 * j & 255u;
            f[j] = s * (d == KV_F8 ? cu_e4m3_f32(c) : (float)(int8_t)c);
        }
        return { f[0], f[1], f[2], f[3] };
    }
    if (d == KV_I4) {
        const unsigned head = cu_ld<unsigned>(row);
        const float s =
            attn_i4_scale(cu_bf16_f32(head >> 16), head >> 4 * (4 * i / (int)attn_i4_block(D)));
        const unsigned w = cu_ld<uint16_t>(row + (4 + 2 * i));
        return { s * ((float)(w & 15u) - 8.0f), s * ((float)(w >> 4 & 15u) - 8.0f),
                 s * ((float)(w >> 8 & 15u) - 8.0f), s * ((float)(w >> 12) - 8.0f) };
    }
    const uint2 w = cu_ld<uint2>(row + 8 * i);
    if (d == KV_F16)
        return { cu_f16_f32(w.x & 0xffffu), cu_f16_f32(w.x >> 16), cu_f16_f32(w.y & 0xffffu),
                 cu_f16_f32(w.y >> 16) };
    return { cu_bf16_f32(w.x & 0xffffu), cu_bf16_f32(w.x >> 16), cu_bf16_f32(w.y & 0xffffu),
             cu_bf16_f32(w.y >> 16) };
}

/* exp(x): no branch, and of 0 it is 1. */
__device__ __forceinline__ float attn_exp(float x) { return cu_exp2(x * KM_LOG2E); }

/* The block of position p in a sequence's table, and its place there. */
__device__ __forceinline__ int attn_block(int64_t p, const attn_view &v)
{
    return (int)(p >> v.block_shift);
}
__device__ __forceinline__ int attn_place(int64_t p, const attn_view &v)
{
    return (int)p & (v.block_size - 1);
}

/* What a score has of its distance. */
__device__ __forceinline__ float attn_distance(const attn_lists &v, int head, int64_t apart)
{
    const int n = v.n_dist, d = (int)(apart < -n ? -n : apart > n ? n : apart);
    return G<const float>(v.dist_bias)[(int64_t)head * (2 * n + 1) + n + d];
}

/* The list of a chunk's row by a kv head, or none; the chunk's last key is then the last of it. */
__device__ __forceinline__ G<const int32_t> attn_list(dev_attn_chunk *c, const attn_lists &v,
                                                      int kvh)
{
    const int64_t own = v.keys_by_head ? (int64_t)c->row * v.Hkv + kvh : c->row;
    if (!v.keys) return G<const int32_t>(v.keys);
    if (v.n_keys) c->pos = G<const int32_t>(v.n_keys)[own] - 1;
    return G<const int32_t>(v.keys) + own * v.ld_keys;
}

/* A tile's largest scores, of this lane's columns of rows g and g + 8, become the rows' maxima; the
 * sums so far, and what is added up by them, are to be multiplied by keep. */
__device__ __forceinline__ void attn_rise(float m[2], float l[2], float keep[2],
                                          const float largest[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = largest[h];
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            const float other = cu_shfl_xor(top, lanes);
            top = other > top ? other : top;
        }
        if (m[h] > top) top = m[h];
        keep[h] = top > -INFINITY ? attn_exp(m[h] - top) : 1.0f; /* 1: nothing seen yet */
        m[h] = top;
        l[h] *= keep[h];
    }
}

/* What the sums of a row of head h, by the largest score m, are multiplied by in the end: 1 / l,
 * with the sink's share of l. */
__device__ __forceinline__ float attn_last(float m, float l, int h, G<const float> sinks)
{
    float f = 1.0f;
    if (sinks) {
        const float sink = sinks[h], max = sink > m ? sink : m;
        f = km_exp(m - max);
        l = fmaf(l, f, km_exp(sink - max));
    }
    return f / l;
}
__device__ __forceinline__ float attn_out(float y, const attn_view &v)
{
    return v.bf16 ? cu_bf16_f32(cu_f32_bf16(y)) : y;
}

/* What a block of many rows ends with: to its split's place for the merge or, where every chunk has
 * one split, as that would leave it. */
struct attn_end {
    float *parts, *out; /* one of them is NULL */
    const float *sinks;
};
/* The later slots of a launch, which have more keys, begin first. */
__device__ __forceinline__ int attn_slot() { return (int)(gridDim.x - 1 - blockIdx.x); }

/* A lane's sums of columns from + 8n + 2c and the next, before upto, of head h of row i of a chunk. */
template <int N>
__device__ __forceinline__ void attn_put(const attn_end &e, const attn_view &v,
                                         const dev_attn_chunk &ch, int slot, int i, int h, float m,
                                         float l, const float (&sums)[N][2], int from, int upto)
{
    const int c = threadIdx.x % 4;
    const int64_t row = (int64_t)slot * v.chunk_rows + i;
    const float f = e.out ? attn_last(m, l, h, e.sinks) : 1.0f;
    const G<float> out = G<float>(e.out) + ((ch.row + i) * v.ldo + h * v.ho);
    const G<float> part = G<float>(e.parts) + (row * v.H + h) * (int64_t)(v.Dv + 2);
    if (!e.out && c == 0 && from == 0) {
        part[0] = m;
        part[1] = l;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int d = from + 8 * n;
        if (d >= upto) continue;
        if (e.out)
            cu_st(out + (d + 2 * c),
                  float2{ attn_out(sums[n][0] * f, v), attn_out(sums[n][1] * f, v) });
        else
            cu_st(part + (2 + d + 2 * c), float2{ sums[n][0], sums[n][1] });
    }
}

/* By one warp: row i of a chunk, of head h: its splits in order, then the sink, to out, of
 * DEV_ATTN_WIDTH columns from `first` on; with the CPU's bits. */
__device__ __forceinline__ void attn_merge_exact(G<float> out, G<const float> parts,
                                                 const dev_attn_chunk &c, int i, int h,
                                                 G<const float> sinks, const attn_view &v,
                                                 int first)
{
    enum { ACC = DEV_ATTN_WIDTH / CU_WARP };
    const int lane = threadIdx.x % CU_WARP;
    float m = -INFINITY, l = 0, acc[ACC];
#pragma unroll
    for (int x = 0; x < ACC; x++)
        acc[x] = 0;
#pragma unroll 1
    for (int s = 0; s < c.n_splits; s++) {
        const int64_t row = (int64_t)(c.slot + s) * v.chunk_rows + i;
        const G<const float> from = parts + (row * v.H + h) * (int64_t)(v.Dv + 2);
        const float pm = from[0], pl = from[1];
        if (pl == 0) continue;
        const bool begins = l == 0;
        const float max = pm > m ? pm : m;
        const float a = begins ? 0.0f : km_exp(m - max), b = begins ? 1.0f : km_exp(pm - max);
        l = begins ? pl : l * a + pl * b;
#pragma unroll
        for (int x = 0; x < ACC; x++) {
            const int d = first + x * CU_WARP + lane;
            if (d < v.Dv) acc[x] = begins ? (float)from[2 + d] : acc[x] * a + from[2 + d] * b;
        }
        m = max;
    }
    const float f = attn_last(m, l, h, sinks);
#pragma unroll
    for (int x = 0; x < ACC; x++) {
        const int d = first + x * CU_WARP + lane;
        const float y = acc[x] * f;
        if (d < v.Dv) out[(c.row + i) * v.ldo + h * v.ho + d] = attn_out(y, v);
    }
}

/* The same in another order, for many splits: by the largest score of 32 at a time, whose sums are
 * added across the lanes, and their accumulators in order. A split that has seen nothing may hold
 * anything. */
__device__ __forceinline__ void attn_merge(G<float> out, G<const float> parts,
                                           const dev_attn_chunk &c, int i, int h,
                                           G<const float> sinks, const attn_view &v, int first)
{
    enum { ACC = 4, AHEAD = 8 /* splits that are asked for together */ };
    const int lane = threadIdx.x % CU_WARP;
    const int64_t step = (int64_t)v.chunk_rows * v.H * (v.Dv + 2); /* from split to split */
    const G<const float> own =
        parts + (((int64_t)c.slot * v.chunk_rows + i) * v.H + h) * (int64_t)(v.Dv + 2);
    const int upto = v.Dv < first + DEV_ATTN_WIDTH ? v.Dv : first + DEV_ATTN_WIDTH;
#pragma unroll 1
    for (int from = first; from < upto; from += ACC * CU_WARP) {
        float m = -INFINITY, l = 0, acc[ACC] = { 0, 0, 0, 0 };
#pragma unroll 1
        for (int s0 = 0; s0 < c.n_splits; s0 += CU_WARP) {
            const int n = c.n_splits - s0 < CU_WARP ? c.n_splits - s0 : CU_WARP;
            float pm = -INFINITY, pl = 0;
            if (lane < n) {
                pm = own[(s0 + lane) * step];
                pl = own[(s0 + lane) * step + 1];
            }
            if (pl == 0) pm = -INFINITY;
            const float most = cu_warp_max(pm), top = most > m ? most : m;
            const float keep = m > -INFINITY ? km_exp(m - top) : 0.0f;
            const float w = pl == 0 ? -1.0f : km_exp(pm - top); /* below 0: not looked at */
            l = fmaf(l, keep, cu_warp_sum(pl == 0 ? 0.0f : pl * w));
            m = top;
#pragma unroll
            for (int x = 0; x < ACC; x++)
                acc[x] *= keep;
#pragma unroll 1
            for (int s = 0; s < n; s += AHEAD) {
                float y[AHEAD][ACC];
#pragma unroll
                for (int a = 0; a < AHEAD; a++)
#pragma unroll
                    for (int x = 0; x < ACC; x++) {
                        const int d = from + x * CU_WARP + lane;
                        y[a][x] = s + a < n && d < upto ? (float)own[(s0 + s + a) * step + (2 + d)]
                                                        : 0.0f;
                    }
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
                    const float by = cu_shfl(w, (s + a) % CU_WARP);
                    if (s + a >= n || by < 0) continue; /* all lanes alike */
#pragma unroll
                    for (int x = 0; x < ACC; x++)
                        acc[x] = fmaf(y[a][x], by, acc[x]);
                }
            }
        }
        const float f = attn_last(m, l, h, sinks);
#pragma unroll
        for (int x = 0; x < ACC; x++) {
            const int d = from + x * CU_WARP + lane;
            if (d < upto) out[(c.row + i) * v.ldo + h * v.ho + d] = attn_out(acc[x] * f, v);
        }
    }
}

/* Host: each split of DEV_ATTN_UNITS, _WIDE, _DECODE, _LATENT. */
void CU_NAME(attn_units)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e);
void CU_NAME(attn_sm90)(dev *d, const dev_attn_args *a, const attn_view *v, const attn_end *e);
void CU_NAME(attn_latent)(dev *d, const dev_attn_args *a, const attn_lists *v, const attn_end *e);
void CU_NAME(attn_decode)(dev *d, const dev_attn_args *a, const attn_view *v);

#endif
