/* kernels/cuda/rows.cu - the operations on rows of f32: norms, rotation and the cache, activations,
 * embedding. All of them move bytes and little else.
 *
 *   norm    one block of 256 threads a row (norm.cuh), held in registers where it can be; shared: 2 x 8
 *           floats, 64 B
 *   squares its sum of squares alone, of a row's part on this device     shared: 32 B
 *   scale   one thread an element, by the sum over all devices
 *   rope    a warp a head of a row: those of q, then k, then v; 4 warps a block
 *   clip    one thread an element, before rope
 *   act     one thread an element, 256 a block; of gates and ups in turn, or cut by what their row is like, one
 *           block a row                                                  shared: 64 B
 *   post    one block of 256 threads a row                               shared: 64 B
 *   embed, spread   one block of 256 threads a row
 *   turn            one warp a head */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/arrange.cuh"
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ops.cuh"
#include "kernels/hadamard.h"

inline namespace CU_NAME(rows_cu)
{

    enum { THREADS = 256, ROPE_WARPS = 4, HELD = 8 /* fours of a row that a thread keeps */ };

    __device__ __forceinline__ float rounded(float v, bool bf16)
    {
        return bf16 ? cu_bf16_f32(cu_f32_bf16(v)) : v;
    }

    struct norm_shape {
        int K, rows, side;
        int64_t ld;
        float factor;
        norm_how how;
        bool bf16, quads, held;
        int64_t order; /* of arranged */
    };

    /* Elements k .. k + 3 of a row, normed, to where they go; i: of h. */
    __device__ __forceinline__ void put_four(const float4 &v, G<float> h, G<uint16_t> arranged,
                                             int64_t i, int k, const norm_shape &s)
    {
        const uint2 two = { cu_pair<false>(v.x, v.y), cu_pair<false>(v.z, v.w) };
        if (!arranged) {
            cu_st(h + i, s.bf16 ? float4{ cu_bf16_f32(two.x & 0xffffu), cu_bf16_f32(two.x >> 16),
                                          cu_bf16_f32(two.y & 0xffffu), cu_bf16_f32(two.y >> 16) }
                                : v);
            return;
        }
        /* pairs stay together in every order, fours in that of rows */
        const G<uint16_t> to = arranged + arrange_place(blockIdx.x, k, s.K, s.order);
        if (s.order == 0) {
            cu_st(to, two);
            return;
        }
        cu_st(to, two.x);
        cu_st(arranged + arrange_place(blockIdx.x, k + 2, s.K, s.order), two.y);
    }

    /* A row that its threads' registers hold, so that it is read once; norm_kernel's bits. */
    __device__ __forceinline__ void norm_held(
        S<float> part, G<float> row, G<float> h, G<uint16_t> arranged, G<const float> add,
        G<const float> w, G<const float> b, int64_t at, const norm_shape &s)
    {
        const int first = 4 * (int)threadIdx.x;
        float4 v[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int k = first + i * 4 * NORM_THREADS;
            v[i] = { 0, 0, 0, 0 };
            if (k < s.K) v[i] = cu_ld<float4>(row + k);
        }
#pragma unroll
        for (int i = 0; add && i < HELD; i++) {
            const int k = first + i * 4 * NORM_THREADS;
            if (k >= s.K) break;
            const float4 more = cu_ld<float4>(add + (at + k));
            v[i].x += more.x * s.factor;
            v[i].y += more.y * s.factor;
            v[i].z += more.z * s.factor;
            v[i].w += more.w * s.factor;
            cu_st(row + k, v[i]);
        }
        if (!h && !arranged) return;
        float mean = 0, sum = 0;
        if (s.how.layer) {
#pragma unroll
            for (int i = 0; i < HELD; i++)
                sum = norm_sum(sum, v[i], s.K - first - i * 4 * NORM_THREADS, false, 0);
            norm_put(part, sum);
            __syncthreads();
            mean = norm_all(part) / (float)s.K;
        }
        sum = 0;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            sum = norm_sum(sum, v[i], s.K - first - i * 4 * NORM_THREADS, true, mean);
        norm_put(part + NORM_WARPS, sum);
        __syncthreads();
        const float factor = norm_factor(norm_all(part + NORM_WARPS), s.K, s.how.eps);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int k = first + i * 4 * NORM_THREADS;
            if (k < s.K)
                put_four(norm_values(v[i], mean, factor, w ? w + k : w, b ? b + k : b, s.how), h,
                         arranged, at + k, k, s);
        }
    }

    __global__ void __launch_bounds__(NORM_THREADS)
        norm_kernel(G<float> x, G<float> h, G<uint16_t> arranged, G<const float> add,
                    G<const float> w, G<const float> b, norm_shape s)
    {
        CU_SHARED(float, part, 2 * NORM_WARPS);
        const int64_t at =
            (int64_t)(blockIdx.x / s.side) * s.ld + (int64_t)(blockIdx.x % s.side) * s.K;
        const int64_t own = (int64_t)(blockIdx.x % s.rows) * s.K;
        const G<float> row = x + at;
        cu_follow();
        if (s.held) {
            norm_held(part, row, h, arranged, add, w ? w + own : w, b ? b + own : b, at, s);
            return;
        }
        for (int k = threadIdx.x; add && k < s.K; k += NORM_THREADS)
            row[k] += add[at + k] * s.factor;
        if (!h && !arranged) return;
        if (add) __syncthreads(); /* threads read what others have added */
        float mean = 0;
        if (s.how.layer) {
            norm_put(part, norm_sum_row(row, s.K, s.quads, false, 0));
            __syncthreads();
            mean = norm_all(part) / (float)s.K;
        }
        norm_put(part + NORM_WARPS, norm_sum_row(row, s.K, s.quads, true, mean));
        __syncthreads();
        const float factor = norm_factor(norm_all(part + NORM_WARPS), s.K, s.how.eps);
        const bool has_w = (bool)w, has_b = (bool)b;
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            const float v =
                norm_value(row[k], mean, factor, has_w, has_w ? (float)w[own + k] : 0.0f, has_b,
                           has_b ? (float)b[own + k] : 0.0f, s.how);
            if (arranged)
                arranged[arrange_place(blockIdx.x, k, s.K, s.order)] = (uint16_t)cu_f32_bf16(v);
            else
                h[at + k] = rounded(v, s.bf16);
        }
    }

    __global__ void __launch_bounds__(NORM_THREADS)
        squares_kernel(G<float> sums, G<const float> x, int K, int64_t ld, bool quads)
    {
        CU_SHARED(float, part, NORM_WARPS);
        const int64_t row = (int64_t)blockIdx.x * ld;
        norm_put(part, norm_sum_row(x + row, K, quads, true, 0));
        __syncthreads();
        if (threadIdx.x == 0) sums[blockIdx.x] = norm_all(part);
    }

    __global__ void __launch_bounds__(THREADS)
        scale_kernel(G<float> x, G<const float> sums, G<const float> w, int64_t n, int K,
                     int64_t ld, float whole, float offset, float eps)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        if (i >= n) return;
        const float r = 1.0f / sqrtf(sums[i / K] / whole + eps);
        const G<float> at = x + (i / K * ld + i % K);
        *at = *at * r * (w[i % K] + offset);
    }

    /* In place. */
    __device__ void rotate_head(G<float> x, G<const float> cos, G<const float> sin, int R,
                                bool half)
    {
        const int n = R / 2, apart = half ? n : 1, step = half ? 1 : 2;
        for (int i = threadIdx.x % CU_WARP; i < n; i += CU_WARP) {
            const float u = x[i * step], v = x[i * step + apart], c = cos[i], s = sin[i];
            x[i * step] = u * c - v * s;
            x[i * step + apart] = v * c + u * s;
        }
        __syncwarp();
    }

    __global__ void __launch_bounds__(THREADS)
        clip_kernel(G<float> x, int64_t n, int64_t K, int64_t ld, float most)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        if (i >= n) return;
        const G<float> at = x + (i / K * ld + i % K);
        const float v = *at;
        *at = v > most ? most : v < -most ? -most : v;
    }

    struct rope_shape {
        int H, Hkv, D, Dv, R, block_size, row_k, row_v;
        int64_t ldq, ldk, ldv;
        size_t block_stride;
        kv_dtype dtype;
        bool half;
    };

    __global__ void __launch_bounds__(ROPE_WARPS * CU_WARP)
        rope_kernel(G<float> q, G<float> k, G<const float> v, G<const float> cos,
                    G<const float> sin, G<const int32_t> block, G<const int32_t> slot,
                    G<uint8_t> cache_k, G<uint8_t> cache_v, rope_shape s)
    {
        const int64_t t = blockIdx.x;
        const int i = (int)blockIdx.y * ROPE_WARPS + threadIdx.x / CU_WARP;
        cu_follow();
        if (i >= s.H + 2 * s.Hkv) return; /* all lanes of a warp alike, as below */
        cos = cos + t * (s.R / 2);
        sin = sin + t * (s.R / 2);
        if (i < s.H) {
            rotate_head(q + (t * s.ldq + (int64_t)i * s.D), cos, sin, s.R, s.half);
            return;
        }
        const bool key = i < s.H + s.Hkv;
        const int64_t h = key ? i - s.H : i - s.H - s.Hkv;
        const G<float> own = k + (t * s.ldk + h * s.D);
        if (key) rotate_head(own, cos, sin, s.R, s.half);
        if (!cache_k || (!key && !cache_v)) return;
        const int64_t at = (int64_t)block[t] * (int64_t)s.block_stride;
        const int64_t row = h * s.block_size + slot[t];
        if (slot[t] < 0) return;
        if (key)
            cache_head(cache_k + (at + row * s.row_k), own, s.D, s.dtype);
        else
            cache_head(cache_v + (at + row * s.row_v), v + (t * s.ldv + h * s.Dv), s.Dv, s.dtype);
    }

    __global__ void __launch_bounds__(THREADS)
        act_kernel(G<float> dst, G<uint16_t> arranged, G<const float> gate, G<const float> up,
                   G<const float> scale, int64_t n, int64_t ldd, int64_t ld, int64_t ldu,
                   k_act_fn f, float limit, bool bf16, int64_t order)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
        cu_follow();
        if (i >= n) return;
        const float v =
            act_mul(gate[t * ld + i], up ? (float)up[t * ldu + i] : 0.0f, !up, f, limit);
        const float y = scale ? v * scale[t] : v;
        if (arranged)
            arranged[arrange_place(t, i, n, order)] = (uint16_t)cu_f32_bf16(y);
        else
            dst[t * ldd + i] = rounded(y, bf16);
    }

    /* A block a row, so that dst may be gate: what a round writes lies in what it, or one before it,
 * has read. */
    __global__ void __launch_bounds__(THREADS)
        act_mixed_kernel(G<float> dst, G<const float> gate, G<const float> scale, int64_t n,
                         int64_t ldd, int64_t ld, k_act_fn f, float limit, bool bf16)
    {
        const int64_t t = blockIdx.x;
        for (int64_t from = 0; from < n; from += THREADS) {
            const int64_t i = from + threadIdx.x;
            float v = 0;
            if (i < n) v = act_mul(gate[t * ld + 2 * i], gate[t * ld + 2 * i + 1], false, f, limit);
            __syncthreads();
            if (i < n) dst[t * ldd + i] = rounded(scale ? v * scale[t] : v, bf16);
        }
    }

    /* A block a row of gates that are cut: what a thread writes it alone has read. */
    __global__ void __launch_bounds__(NORM_THREADS) act_cut_kernel(
        G<float> dst, G<const float> gate, G<const float> up, G<const float> scale, int n,
        int64_t ldd, int64_t ld, int64_t ldu, k_act_fn f, float limit, float z, bool bf16)
    {
        CU_SHARED(float, part, 2 * NORM_WARPS);
        const int64_t t = blockIdx.x;
        const G<const float> row = gate + t * ld;
        float sum = 0;
        cu_follow();
        for (int i = threadIdx.x; i < n; i += NORM_THREADS)
            sum += row[i];
        norm_put(part, sum);
        __syncthreads();
        const float mean = norm_all(part) / (float)n;
        sum = 0;
        for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
            const float v = row[i] - mean;
            sum = fmaf(v, v, sum);
        }
        norm_put(part + NORM_WARPS, sum);
        __syncthreads();
        const float least = mean + sqrtf(norm_all(part + NORM_WARPS) / (float)n) * z;
        for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
            const float g = row[i], v = act_mul(g > least ? g - least : 0.0f,
                                                up ? (float)up[t * ldu + i] : 0.0f, !up, f, limit);
            dst[t * ldd + i] = rounded(scale ? v * scale[t] : v, bf16);
        }
    }

    struct post_shape {
        int K, n;
        int64_t ldt;
        float by, factor;
        norm_how how;
        bool quads;
    };

    __global__ void __launch_bounds__(NORM_THREADS)
        post_kernel(G<float> to, G<const float> y, G<const float> w, G<const float> b,
                    G<const float> more, post_shape s)
    {
        CU_SHARED(float, part, 2 * NORM_WARPS);
        const int64_t at = (int64_t)blockIdx.x * s.K;
        const G<const float> row = y + at;
        const G<float> out = to + (int64_t)blockIdx.x * s.ldt;
        const bool has_b = (bool)b, has_more = (bool)more;
        float mean = 0;
        cu_follow();
        if (s.how.layer) {
            norm_put(part, norm_sum_row(row, s.K, s.quads, false, 0));
            __syncthreads();
            mean = norm_all(part) / (float)s.K;
        }
        norm_put(part + NORM_WARPS, norm_sum_row(row, s.K, s.quads, true, mean));
        __syncthreads();
        const float factor = norm_factor(norm_all(part + NORM_WARPS), s.K, s.how.eps);
        for (int k = threadIdx.x; k < s.K; k += NORM_THREADS) {
            float v = norm_value(row[k], mean, factor, true, w[k], has_b,
                                 has_b ? (float)b[k] : 0.0f, s.how) *
                      s.by;
            if (has_more) v += more[at + k];
#pragma unroll 1 /* four at a time do not fit the registers of sm_100 */
            for (int i = 0; i < s.n; i++)
                out[i * s.K + k] = (out[i * s.K + k] + v) * s.factor;
        }
    }

    __global__ void __launch_bounds__(THREADS)
        embed_kernel(G<float> x, G<const uint8_t> table, lq_dtype dtype, G<const int32_t> ids,
                     G<const float> by, int K, float scale)
    {
        const int64_t t = blockIdx.x, row = (int64_t)ids[t] * K;
        const float factor = by ? scale * by[ids[t]] : scale;
        for (int k = threadIdx.x; k < K; k += THREADS) {
            float v;
            if (dtype == LQ_F32)
                v = cu_ldg<float>(table + 4 * (row + k));
            else if (dtype == LQ_F16)
                v = cu_f16_f32(cu_ldg<uint16_t>(table + 2 * (row + k)));
            else
                v = cu_bf16_f32(cu_ldg<uint16_t>(table + 2 * (row + k)));
            x[t * K + k] = v * factor;
        }
    }

    __global__ void __launch_bounds__(THREADS) swap_kernel(
        G<float> dst, G<const float> src, int64_t A, int B, int n, int64_t ldd, int64_t lds)
    {
        const int64_t a = blockIdx.x;
        cu_follow();
        const int i = (int)blockIdx.y * THREADS + threadIdx.x;
        if (i < B * n) dst[(i / n * A + a) * ldd + i % n] = src[(a * B + i / n) * lds + i % n];
    }

    /* Stage h of k_hadamard: pairs h apart, in the order of their first, of n numbers. */
    __global__ void __launch_bounds__(ROPE_WARPS * CU_WARP)
        turn_kernel(G<float> x, int H, int D, int n, int64_t ld, bool bf16)
    {
        const int lane = threadIdx.x % CU_WARP,
                  h = (int)blockIdx.y * ROPE_WARPS + threadIdx.x / CU_WARP;
        cu_follow();
        if (h >= H) return; /* all lanes of a warp alike */
        const G<float> own = x + ((int64_t)blockIdx.x * ld + (int64_t)h * D);
        for (int apart = 1; apart < n; apart *= 2) {
            for (int i = lane; i < D / 2; i += CU_WARP) {
                const int at = i / apart * 2 * apart + i % apart;
                const float a = own[at], b = own[at + apart];
                own[at] = a + b;
                own[at + apart] = a - b;
            }
            __syncwarp();
        }
        const float scale = 1 / sqrtf((float)n);
        for (int i = lane; i < D; i += CU_WARP)
            own[i] = rounded(own[i] * scale, bf16);
    }

}

static bool at16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* Whether elements of rows that begin so far apart can be read four at a time. */
static bool quads(const float *x, int64_t K, int64_t ld)
{
    return K % 4 == 0 && ld % 4 == 0 && at16(x);
}

void CU_NAME(norm)(dev *d, const dev_norm_args *a)
{
    const int64_t ld = a->ld ? a->ld : a->K;
    const bool four = quads(a->x, a->K, ld);
    const norm_shape s = { (int)a->K,
                           a->rows ? (int)a->rows : 1,
                           a->side ? (int)a->side : 1,
                           ld,
                           a->factor != 0 ? a->factor : 1.0f,
                           { a->offset, a->eps, a->layer },
                           a->bf16,
                           four,
                           four && a->K <= 4 * HELD * NORM_THREADS && at16(a->h) && at16(a->add) &&
                               at16(a->w) && at16(a->b) && at16(a->order.to),
                           a->order.how };
    if (a->T == 0) return;
    CU_FOLLOW(d, "norm", norm_kernel, dim3((unsigned)a->T), NORM_THREADS, 0, a->x, a->h,
              (uint16_t *)a->order.to, a->add, a->w, a->b, s);
}

void CU_NAME(squares)(dev *d, const dev_share_args *a)
{
    const int64_t ld = a->ld ? a->ld : a->K;
    if (a->T == 0) return;
    CU_LAUNCH(d, "squares", squares_kernel, dim3((unsigned)a->T), NORM_THREADS, 0, a->sums, a->x,
              (int)a->K, ld, quads(a->x, a->K, ld));
}

void CU_NAME(scale)(dev *d, const dev_share_args *a)
{
    const int64_t n = a->T * a->K;
    if (n == 0) return;
    CU_LAUNCH(d, "scale", scale_kernel, dim3((unsigned)lq_ceil_div(n, THREADS)), THREADS, 0, a->x,
              a->sums, a->w, n, (int)a->K, a->ld ? a->ld : a->K, (float)a->whole, a->offset,
              a->eps);
}

static void clip(dev *d, float *x, int64_t T, int64_t K, int64_t ld, float most)
{
    if (T > 0 && K > 0)
        CU_LAUNCH(d, "clip", clip_kernel, dim3((unsigned)lq_ceil_div(T * K, THREADS)), THREADS, 0,
                  x, T * K, K, ld, most);
}

void CU_NAME(rope)(dev *d, const dev_rope_args *a)
{
    const rope_shape s = { (int)a->H,
                           (int)a->Hkv,
                           (int)a->D,
                           (int)a->Dv,
                           (int)a->R,
                           a->block_size,
                           (int)attn_kv_row_bytes(a->dtype, a->D),
                           (int)attn_kv_row_bytes(a->dtype, a->Dv),
                           a->ld ? a->ld : a->H * a->D,
                           a->ld ? a->ld : a->Hkv * a->D,
                           a->ld ? a->ld : a->Hkv * a->Dv,
                           a->block_stride,
                           a->dtype,
                           a->half };
    if (a->T == 0) return;
    if (a->clip > 0) {
        clip(d, a->q, a->T, a->H * a->D, s.ldq, a->clip);
        clip(d, a->k, a->T, a->Hkv * a->D, s.ldk, a->clip);
        clip(d, a->v, a->T, a->Hkv * a->Dv, s.ldv, a->clip);
    }
    CU_FOLLOW(d, "rope", rope_kernel,
              dim3((unsigned)a->T, (unsigned)lq_ceil_div(a->H + 2 * a->Hkv, ROPE_WARPS)),
              ROPE_WARPS * CU_WARP, 0, a->q, a->k, a->v, a->cos, a->sin, a->block, a->slot,
              a->cache_k, a->cache_v, s);
}

void CU_NAME(act)(dev *d, const dev_act_args *a)
{
    const int64_t ldu = a->ld_up ? a->ld_up : a->ld;
    if (a->mixed && a->T)
        CU_LAUNCH(d, "act", act_mixed_kernel, dim3((unsigned)a->T), THREADS, 0, a->dst, a->gate,
                  a->scale, a->n, a->ldd, a->ld, a->f, a->limit, a->bf16);
    if (a->cut && a->T)
        CU_FOLLOW(d, "act", act_cut_kernel, dim3((unsigned)a->T), NORM_THREADS, 0, a->dst, a->gate,
                  a->up, a->scale, (int)a->n, a->ldd, a->ld, ldu, a->f, a->limit, a->z, a->bf16);
    for (int64_t t = 0; t < a->T && !a->mixed && !a->cut; t += CU_ROWS) {
        const unsigned n = (unsigned)(a->T - t < CU_ROWS ? a->T - t : CU_ROWS);
        CU_FOLLOW(d, "act", act_kernel, dim3((unsigned)lq_ceil_div(a->n, THREADS), n), THREADS, 0,
                  a->dst + t * a->ldd, (uint16_t *)a->order.to, a->gate + t * a->ld,
                  a->up ? a->up + t * ldu : NULL, a->scale ? a->scale + t : NULL, a->n, a->ldd,
                  a->ld, ldu, a->f, a->limit, a->bf16, a->order.how);
    }
}

void CU_NAME(post)(dev *d, const dev_post_args *a)
{
    const post_shape s = { (int)a->K,
                           (int)a->n,
                           a->ldt ? a->ldt : a->n * a->K,
                           a->by != 0 ? a->by : 1.0f,
                           a->factor != 0 ? a->factor : 1.0f,
                           { a->offset, a->eps, a->layer },
                           quads(a->y, a->K, a->K) };
    if (a->T == 0) return;
    CU_FOLLOW(d, "post", post_kernel, dim3((unsigned)a->T), NORM_THREADS, 0, a->to, a->y, a->w,
              a->b, a->more, s);
}

void CU_NAME(embed)(dev *d, const dev_embed_args *a)
{
    if (a->T == 0) return;
    CU_LAUNCH(d, "embed", embed_kernel, dim3((unsigned)a->T), THREADS, 0, a->x,
              (const uint8_t *)a->table, a->dtype, a->ids, a->by, (int)a->K, a->scale);
}

void CU_NAME(turn)(dev *d, const dev_turn_args *a)
{
    const int64_t n = k_hadamard_order(a->D);
    if (a->T == 0) return;
    CU_FOLLOW(d, "turn", turn_kernel, dim3((unsigned)a->T, (unsigned)lq_ceil_div(a->H, ROPE_WARPS)),
              ROPE_WARPS * CU_WARP, 0, a->x, (int)a->H, (int)a->D, (int)n, a->ld, a->bf16);
}

void CU_NAME(swap)(dev *d, const dev_swap_args *a)
{
    if (a->A == 0) return;
    CU_FOLLOW(d, "swap", swap_kernel,
              dim3((unsigned)a->A, (unsigned)lq_ceil_div(a->B * a->n, THREADS)), THREADS, 0, a->dst,
              a->src, a->A, (int)a->B, (int)a->n, a->ldd, a->lds);
}
