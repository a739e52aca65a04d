/* kernels/cuda/gate.cu - rows of layers with a state before their scan and after it, and gates of attention.
 *
 *   rates   a block of 256 threads a row: a warp each q and k, a thread each decay
 *   gate    a block of 128 threads a segment of a row                    shared: 16 B
 *   times, xielu   one thread an element
 *   unmix   one thread an element */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(gate_cu)
{

    enum { THREADS = 256, WARPS = THREADS / CU_WARP, GATE_THREADS = 128 };
    enum { GATE_WARPS = GATE_THREADS / CU_WARP };

    struct rates_shape {
        dev_scan_kind kind;
        int64_t ld, ldq;
        int H, G, K, decays, each, step;
        float scale, span, min, max, eps;
    };

    /* A row of K, as k_rmsnorm makes it with eps / K, times 1 / sqrt(K), of a query twice. */
    __device__ __forceinline__ void to_unit(G<float> x, int K, float eps, bool query)
    {
        const int lane = threadIdx.x % CU_WARP;
        const float root = 1 / sqrtf((float)K);
        float sum = 0;
        for (int i = lane; i < K; i += CU_WARP) {
            const float v = cu_ld<float>(x + i);
            sum = fmaf(v, v, sum);
        }
        const float r = 1 / sqrtf(cu_warp_sum(sum) / (float)K + eps / (float)K);
        for (int i = lane; i < K; i += CU_WARP)
            cu_st(x + i, cu_ld<float>(x + i) * r * (query ? root * root : root));
    }

    __device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + km_exp(-x)); }

    __global__ void __launch_bounds__(THREADS)
        rates_kernel(G<float> q, G<float> k, G<const float> b, G<const float> a, G<const float> dt,
                     G<const float> rate, G<float> beta, G<float> decay, rates_shape s)
    {
        const int64_t t = blockIdx.x;
        cu_follow();
        for (int g = (int)threadIdx.x / CU_WARP; q && g < 2 * s.G; g += WARPS) {
            const bool query = g < s.G;
            const int64_t at = t * s.ldq + (int64_t)(query ? g : g - s.G) * s.K;
            to_unit(query ? q + at : k + at, s.K, s.eps, query);
        }
        for (int h = threadIdx.x; b && h < s.H; h += THREADS)
            cu_st(beta + (t * s.H + h),
                  s.scale *
                      sigmoid(cu_ld<float>(b + (t * s.ld + h / s.each * s.step + h % s.each))));
        for (int i = threadIdx.x; i < s.decays; i += THREADS) {
            const int64_t to = t * s.decays + i;
            if (s.kind == DEV_SCAN_SELECT) {
                cu_st(decay + to, km_softplus(cu_ld<float>(decay + to) + cu_ld<float>(dt + i)));
                continue;
            }
            const int h = s.kind == DEV_SCAN_KEYS_DELTA ? i / s.K : i;
            const int64_t from =
                t * s.ld + (s.kind == DEV_SCAN_KEYS_DELTA ? i : i / s.each * s.step + i % s.each);
            const float x = cu_ld<float>(a + from) + cu_ld<float>(dt + i),
                        by = cu_ld<float>(rate + h);
            float step = s.span > 0 ? 0.0f : km_softplus(x);
            if (s.kind == DEV_SCAN_MAMBA) {
                step = step < s.min ? s.min : s.max > 0 && step > s.max ? s.max : step;
                cu_st(beta + to, step);
            }
            cu_st(decay + to, km_exp(s.span > 0 ? -s.span * sigmoid(-by * x) : by * step));
        }
    }

    struct gate_shape {
        int64_t ldx, ldg;
        int n, each, step, width, skip_each;
        dev_gate_fn f;
        float eps, factor;
        bool first, w_rows, bf16;
    };

    __device__ __forceinline__ float by_gate(float v, float g, dev_gate_fn f)
    {
        return f == DEV_GATE_SILU      ? km_silu(g) * v
               : f == DEV_GATE_SIGMOID ? v / (1 + km_exp(-g))
                                       : v * km_softplus(g);
    }

    __global__ void __launch_bounds__(GATE_THREADS)
        gate_kernel(G<float> x, G<const float> y, G<const float> skip, G<const float> gate,
                    G<const float> w, G<const float> bias, gate_shape s)
    {
        CU_SHARED(float, part, GATE_WARPS);
        const int64_t t = blockIdx.x;
        const int seg = (int)blockIdx.y, per = s.n / s.width;
        const G<float> own = x + (t * s.ldx + (int64_t)seg * s.n);
        const G<const float> more = y + (t * s.ldg + (int64_t)seg * s.n);
        const G<const float> of =
            gate + (t * s.ldg + seg / s.each * s.step + seg % s.each * s.width);
        const bool normed = (bool)w, skips = (bool)skip;
        const bool biased = (bool)bias;
        float sum = 0, r = 1;
        cu_follow();
        const float more_gate = biased ? cu_ld<float>(bias + seg) : 0.0f;
        for (int i = threadIdx.x; i < s.n; i += GATE_THREADS) {
            float v = cu_ld<float>(own + i);
            if (skips)
                v += cu_ld<float>(skip + (seg * s.n + i) / s.skip_each) * cu_ld<float>(more + i);
            if (!s.first) v = by_gate(v, cu_ld<float>(of + i / per) + more_gate, s.f);
            cu_st(own + i, v);
            sum = fmaf(v, v, sum);
        }
        if (normed) {
            sum = cu_warp_sum(sum);
            if (threadIdx.x % CU_WARP == 0) part[threadIdx.x / CU_WARP] = sum;
            __syncthreads();
            sum = 0;
            for (int i = 0; i < GATE_WARPS; i++)
                sum += part[i];
            r = 1 / sqrtf(sum / (float)s.n + s.eps);
        }
        for (int i = threadIdx.x; i < s.n; i += GATE_THREADS) {
            float v = cu_ld<float>(own + i);
            if (normed) v = v * r * cu_ld<float>(w + (s.w_rows ? seg * s.n + i : i));
            if (s.first) v = by_gate(v, cu_ld<float>(of + i / per) + more_gate, s.f);
            v *= s.factor;
            cu_st(own + i, s.bf16 ? cu_bf16_f32(cu_f32_bf16(v)) : v);
        }
    }

    __global__ void __launch_bounds__(THREADS)
        times_kernel(G<float> x, int64_t all, int64_t n, int64_t ld, float factor,
                     G<const float> slope, G<const float> base, G<const float> turns, int D)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        cu_follow();
        if (i >= all) return;
        const int64_t t = i / n, k = i % n;
        if (slope) {
            const int64_t h = k / D;
            factor = cu_ld<float>(slope + h) * cu_ld<float>(turns + t) + cu_ld<float>(base + h);
        }
        const G<float> at = x + (t * ld + k);
        cu_st(at, cu_ld<float>(at) * factor);
    }

    __global__ void __launch_bounds__(THREADS) xielu_kernel(
        G<float> x, int64_t all, int64_t n, int64_t ld, float p, float m, float b, float eps)
    {
        const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        cu_follow();
        if (i >= all) return;
        const G<float> at = x + (i / n * ld + i % n);
        const float v = cu_ld<float>(at), e = km_exp(v < eps ? v : eps);
        cu_st(at, (v > 0 ? p * v * v : (e - 1 - v) * m) + b * v);
    }

    __global__ void __launch_bounds__(THREADS)
        unmix_kernel(G<float> dst, G<const float> src, int groups, int K, int V, int row,
                     int64_t ldd, int64_t lds)
    {
        const int64_t t = blockIdx.x;
        const int i = (int)blockIdx.y * THREADS + threadIdx.x, keys = groups * K;
        cu_follow();
        if (i >= 2 * keys + groups * V) return;
        const int64_t from = i < keys ? (int64_t)(i / K) * row + i % K
                             : i < 2 * keys
                                 ? (int64_t)((i - keys) / K) * row + K + (i - keys) % K
                                 : (int64_t)((i - 2 * keys) / V) * row + 2 * K + (i - 2 * keys) % V;
        cu_st(dst + (t * ldd + i), cu_ld<float>(src + (t * lds + from)));
    }

}

void CU_NAME(rates)(dev *d, const dev_rates_args *a)
{
    const rates_shape s = { a->kind,   a->ld,          a->ldq,       (int)a->H,    (int)a->G,
                            (int)a->K, (int)a->decays, (int)a->each, (int)a->step, a->scale,
                            a->span,   a->min,         a->max,       a->eps };
    if (a->T == 0) return;
    CU_FOLLOW(d, "rates", rates_kernel, dim3((unsigned)a->T), THREADS, 0, a->q, a->k, a->b, a->a,
              a->dt, a->rate, a->beta, a->decay, s);
}

void CU_NAME(gate)(dev *d, const dev_gate_args *a)
{
    const gate_shape s = { a->ldx,
                           a->ldg,
                           (int)a->n,
                           (int)a->each,
                           (int)a->step,
                           (int)a->width,
                           a->skip ? (int)a->skip_each : 1,
                           a->f,
                           a->eps,
                           a->factor != 0 ? a->factor : 1.0f,
                           a->first,
                           a->w_rows,
                           a->bf16 };
    if (a->T == 0) return;
    CU_FOLLOW(d, "gate", gate_kernel, dim3((unsigned)a->T, (unsigned)a->S), GATE_THREADS, 0, a->x,
              a->y, a->skip, a->gate, a->w, a->bias, s);
}

void CU_NAME(times)(dev *d, const dev_times_args *a)
{
    const int64_t all = a->T * a->n;
    if (all == 0) return;
    CU_FOLLOW(d, "times", times_kernel, dim3((unsigned)lq_ceil_div(all, THREADS)), THREADS, 0, a->x,
              all, a->n, a->ld, a->factor, a->slope, a->base, a->turns, (int)a->D);
}

void CU_NAME(xielu)(dev *d, const dev_xielu_args *a)
{
    const int64_t all = a->T * a->n;
    if (all == 0) return;
    CU_FOLLOW(d, "xielu", xielu_kernel, dim3((unsigned)lq_ceil_div(all, THREADS)), THREADS, 0, a->x,
              all, a->n, a->ld, a->p, a->m, a->b, a->eps);
}

void CU_NAME(unmix)(dev *d, const dev_unmix_args *a)
{
    const int64_t n = a->G * (2 * a->K + a->V);
    if (a->T == 0) return;
    CU_FOLLOW(d, "unmix", unmix_kernel, dim3((unsigned)a->T, (unsigned)lq_ceil_div(n, THREADS)),
              THREADS, 0, a->dst, a->src, (int)a->G, (int)a->K, (int)a->V,
              (int)(2 * a->K + (a->bare ? 1 : 2) * a->V), a->ldd, a->lds);
}
