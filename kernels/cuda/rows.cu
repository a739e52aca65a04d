/* kernels/cuda/rows.cu - the operations on rows of f32: norms, rotation and the cache, activations,
 * embedding. All of them move bytes and little else.
 *
 *   norm    one block a row, of 256 threads, from 2,048 elements on 1,024: as many partial sums,
 *           each over every 256th or 1,024th element, then lanes by halves, then the warps in
 *           order.                               shared: 2 x 8 or 2 x 32 floats, 256 B at most
 *   squares the same sum of squares alone, of a row's part on this device     shared: 32 B
 *   scale   one thread an element, by the sum over all devices
 *   rope    a warp a head of a row: those of q, then k, then v; 4 warps a block
 *   clip    one thread an element, before rope
 *   act     one thread an element, 256 a block; of gates and ups in turn one block a row
 *   embed, spread   one block of 256 threads a row */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(rows_cu)
{

enum { THREADS = 256, WIDE = 1024, ROPE_WARPS = 4 };

/* The sum of v over the block's N threads, in every thread. `part` [N / CU_WARP] is shared memory
 * that nobody else reads before the next barrier. */
template <int N> __device__ float block_sum(float v, S<float> part)
{
    v = cu_warp_sum(v);
    if (threadIdx.x % CU_WARP == 0) part[threadIdx.x / CU_WARP] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < N / CU_WARP; w++)
        sum += part[w];
    return sum;
}

__device__ __forceinline__ float rounded(float v, bool bf16)
{
    return bf16 ? cu_bf16_f32(cu_f32_bf16(v)) : v;
}

struct norm_shape {
    int K, rows, side;
    int64_t ld;
    float factor, offset, eps;
    bool layer, bf16;
};

template <int N>
__global__ void __launch_bounds__(N) norm_kernel(G<float> x, G<float> h, G<const float> add,
                                                 G<const float> w, G<const float> b, norm_shape s)
{
    CU_SHARED(float, part, 2 * N / CU_WARP);
    const int64_t row =
        (int64_t)(blockIdx.x / s.side) * s.ld + (int64_t)(blockIdx.x % s.side) * s.K;
    const int64_t own = (int64_t)(blockIdx.x % s.rows) * s.K;
    cu_follow();
    float sum = 0;
    for (int k = threadIdx.x; k < s.K; k += N) {
        float v = x[row + k];
        if (add) {
            v += add[row + k] * s.factor;
            x[row + k] = v;
        }
        sum = s.layer ? sum + v : fmaf(v, v, sum);
    }
    if (!h) return;
    sum = block_sum<N>(sum, part);
    const float mean = s.layer ? sum / (float)s.K : 0.0f;
    if (s.layer) {
        sum = 0;
        for (int k = threadIdx.x; k < s.K; k += N) {
            const float v = x[row + k] - mean;
            sum = fmaf(v, v, sum);
        }
        sum = block_sum<N>(sum, part + N / CU_WARP);
    }
    const float r = 1.0f / sqrtf(sum / (float)s.K + s.eps);
    for (int k = threadIdx.x; k < s.K; k += N) {
        float v = (x[row + k] - mean) * r;
        if (w) v *= w[own + k] + s.offset;
        h[row + k] = rounded(b ? v + b[own + k] : v, s.bf16);
    }
}

__global__ void __launch_bounds__(THREADS)
    squares_kernel(G<float> sums, G<const float> x, int K, int64_t ld)
{
    CU_SHARED(float, part, THREADS / CU_WARP);
    const int64_t row = (int64_t)blockIdx.x * ld;
    float sum = 0;
    for (int k = threadIdx.x; k < K; k += THREADS)
        sum = fmaf(x[row + k], x[row + k], sum);
    sum = block_sum<THREADS>(sum, part);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS)
    scale_kernel(G<float> x, G<const float> sums, G<const float> w, int64_t n, int K, int64_t ld,
                 float whole, float offset, float eps)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const float r = 1.0f / sqrtf(sums[i / K] / whole + eps);
    const G<float> at = x + (i / K * ld + i % K);
    *at = *at * r * (w[i % K] + offset);
}

/* As attn.c's code_of(). */
__device__ __forceinline__ unsigned code_of(float x, float inv, kv_dtype d)
{
    if (d == KV_F8) return cu_f32_e4m3(x * inv);
    const float q = rintf(x * inv);
    if (d == KV_I8) return (uint8_t)(int8_t)(fabsf(q) <= 127.0f ? q : 0.0f);
    return (unsigned)(q >= -8.0f ? (q < 7.0f ? q : 7.0f) + 8.0f : 0.0f);
}

/* D values at x to a row of codes behind their scale (attn.h), by one warp. */
__device__ void store_scaled(G<uint8_t> row, G<const float> x, int D, kv_dtype d)
{
    const int lane = threadIdx.x % CU_WARP;
    float max = 0, nan = 0, first = -1e9f; /* the least place of the largest magnitude, negative */
    for (int i = lane; i < D; i += CU_WARP) {
        const float v = fabsf(x[i]);
        max = v > max ? v : max;
        if (v != v) nan = 1;
    }
    max = cu_warp_max(max);
    nan = cu_warp_max(nan);
    for (int i = lane; i < D; i += CU_WARP)
        if (fabsf(x[i]) == max && (float)-i > first) first = (float)-i;
    first = cu_warp_max(first);
    const bool finite = max < INFINITY && nan == 0, ok = max >= MM_I8_TINY && finite;
    const float m = d == KV_I4 && ok ? (float)x[(int)-first] : max;
    const float most = d == KV_I8 ? 127.0f : d == KV_I4 ? -8.0f : 448.0f;
    const float inv = ok ? most / m : 0.0f;
    if (lane == 0) cu_st<float>(row, ok ? m / most : finite ? 0.0f : NAN);
    if (d != KV_I4) {
        for (int i = lane; i < D; i += CU_WARP)
            cu_st<uint8_t>(row + 4 + i, (uint8_t)code_of(x[i], inv, d));
        return;
    }
    for (int i = 2 * lane; i < D; i += 2 * CU_WARP) {
        const unsigned high = i + 1 < D ? code_of(x[i + 1], inv, d) : 0u;
        cu_st<uint8_t>(row + 4 + i / 2, (uint8_t)(code_of(x[i], inv, d) | high << 4));
    }
}

/* One head's D values at x into one row of the cache, by one warp. */
__device__ void store_head(G<uint8_t> row, G<const float> x, int D, kv_dtype dtype)
{
    if (dtype != KV_F32 && dtype != KV_F16 && dtype != KV_BF16) {
        store_scaled(row, x, D, dtype);
        return;
    }
    for (int i = threadIdx.x % CU_WARP; i < D; i += CU_WARP) {
        const float v = x[i];
        if (dtype == KV_F32)
            cu_st<float>(row + 4 * i, v);
        else
            cu_st<uint16_t>(row + 2 * i,
                            dtype == KV_F16 ? cu_f32_f16(v) : (uint16_t)cu_f32_bf16(v));
    }
}

__device__ void rotate_head(G<float> x, G<const float> cos, G<const float> sin, int R, bool half)
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

__global__ void __launch_bounds__(ROPE_WARPS *CU_WARP)
    rope_kernel(G<float> q, G<float> k, G<const float> v, G<const float> cos, G<const float> sin,
                G<const int32_t> block, G<const int32_t> slot, G<uint8_t> cache_k,
                G<uint8_t> cache_v, rope_shape s)
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
    if (!cache_k) return;
    const int64_t at = (int64_t)block[t] * (int64_t)s.block_stride;
    const int64_t row = h * s.block_size + slot[t];
    if (key)
        store_head(cache_k + (at + row * s.row_k), own, s.D, s.dtype);
    else
        store_head(cache_v + (at + row * s.row_v), v + (t * s.ldv + h * s.Dv), s.Dv, s.dtype);
}

__global__ void __launch_bounds__(THREADS)
    act_kernel(G<float> dst, G<const float> gate, G<const float> up, G<const float> scale,
               int64_t n, int64_t ldd, int64_t ld, k_act_fn f, float limit, bool bf16)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
    cu_follow();
    if (i >= n) return;
    const float v = act_mul(gate[t * ld + i], up ? (float)up[t * ld + i] : 0.0f, !up, f, limit);
    dst[t * ldd + i] = rounded(scale ? v * scale[t] : v, bf16);
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

__global__ void __launch_bounds__(THREADS)
    embed_kernel(G<float> x, G<const uint8_t> table, lq_dtype dtype, G<const int32_t> ids, int K,
                 float scale)
{
    const int64_t t = blockIdx.x, row = (int64_t)ids[t] * K;
    for (int k = threadIdx.x; k < K; k += THREADS) {
        float v;
        if (dtype == LQ_F32)
            v = cu_ldg<float>(table + 4 * (row + k));
        else if (dtype == LQ_F16)
            v = cu_f16_f32(cu_ldg<uint16_t>(table + 2 * (row + k)));
        else
            v = cu_bf16_f32(cu_ldg<uint16_t>(table + 2 * (row + k)));
        x[t * K + k] = v * scale;
    }
}

__global__ void __launch_bounds__(THREADS)
    spread_kernel(G<float> dst, G<const float> src, int n, int H, int64_t ldd, int64_t lds)
{
    const int64_t t = blockIdx.x;
    for (int i = threadIdx.x; i < H * n; i += THREADS)
        dst[(t * H + i / n) * ldd + i % n] = src[t * lds + i % n];
}

} // namespace

void CU_NAME(norm)(dev *d, const dev_norm_args *a)
{
    const norm_shape s = { (int)a->K,
                           a->rows ? (int)a->rows : 1,
                           a->side ? (int)a->side : 1,
                           a->ld ? a->ld : a->K,
                           a->factor != 0 ? a->factor : 1.0f,
                           a->offset,
                           a->eps,
                           a->layer,
                           a->bf16 };
    if (a->T == 0) return;
    if (a->K >= 2 * WIDE)
        CU_FOLLOW(d, "norm", norm_kernel<WIDE>, dim3((unsigned)a->T), WIDE, 0, a->x, a->h, a->add,
                  a->w, a->b, s);
    else
        CU_FOLLOW(d, "norm", norm_kernel<THREADS>, dim3((unsigned)a->T), THREADS, 0, a->x, a->h,
                  a->add, a->w, a->b, s);
}

void CU_NAME(squares)(dev *d, const dev_share_args *a)
{
    if (a->T == 0) return;
    CU_LAUNCH(d, "squares", squares_kernel, dim3((unsigned)a->T), THREADS, 0, a->sums, a->x,
              (int)a->K, a->ld ? a->ld : a->K);
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
    if (a->mixed && a->T)
        CU_LAUNCH(d, "act", act_mixed_kernel, dim3((unsigned)a->T), THREADS, 0, a->dst, a->gate,
                  a->scale, a->n, a->ldd, a->ld, a->f, a->limit, a->bf16);
    for (int64_t t = 0; t < a->T && !a->mixed; t += CU_ROWS) {
        const unsigned n = (unsigned)(a->T - t < CU_ROWS ? a->T - t : CU_ROWS);
        CU_FOLLOW(d, "act", act_kernel, dim3((unsigned)lq_ceil_div(a->n, THREADS), n), THREADS, 0,
                  a->dst + t * a->ldd, a->gate + t * a->ld, a->up ? a->up + t * a->ld : NULL,
                  a->scale ? a->scale + t : NULL, a->n, a->ldd, a->ld, a->f, a->limit, a->bf16);
    }
}

void CU_NAME(embed)(dev *d, const dev_embed_args *a)
{
    if (a->T == 0) return;
    CU_LAUNCH(d, "embed", embed_kernel, dim3((unsigned)a->T), THREADS, 0, a->x,
              (const uint8_t *)a->table, a->dtype, a->ids, (int)a->K, a->scale);
}

void CU_NAME(spread)(dev *d, const dev_spread_args *a)
{
    if (a->T == 0) return;
    CU_LAUNCH(d, "spread", spread_kernel, dim3((unsigned)a->T), THREADS, 0, a->dst, a->src,
              (int)a->n, (int)a->H, a->ldd, a->lds);
}
