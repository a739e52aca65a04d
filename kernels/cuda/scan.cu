/* kernels/cuda/scan.cu - what layers with a state do along their sequences, with the bits of kernels/scan.h.
 *
 *   conv   a thread a channel of a sequence, from row to row
 *   scan   a block of 4 warps has 32 values of a head of a sequence, and goes from row to row: its part of the
 *          state stays in registers all the while. A warp has 8 values, and of each 4 lanes have every
 *          fourth of the K rows, so that the lanes' sums are k_scan's four:
 *
 *              lane     0 .. 7    8 .. 15   16 .. 23   24 .. 31
 *              value    0 .. 7    0 .. 7    0 .. 7     0 .. 7
 *              rows     0 4 8 ..  1 5 9 ..  2 6 10 ..  3 7 11 ..
 *
 *          q, k and what else all values share are copied to shared memory, so many positions at a time,
 *          while the positions before them are gone through.
 *          Shared, twice: 2 x [positions, 4 ROWS] floats, of decays by key 3 x, and 2 x [positions, 32]:
 *          26 KiB at most.
 *
 * The copies that a run makes of its state are written as it passes their rows. */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(scan_cu)
{

    enum { THREADS = 128, WARPS = THREADS / CU_WARP, PARTS = 4, WARP_VALUES = CU_WARP / PARTS };
    enum { VALUES = WARPS * WARP_VALUES, TAPS = CONV_MAX_TAPS, AHEAD = 4 };
    enum { RUN_WORDS = sizeof(dev_run) / sizeof(int32_t), RUN_HEAD = 4 };
    static_assert(RUN_WORDS == RUN_HEAD + 2 * DEV_MARKS, "dev_run is words");

    /* A dev_run, and its next copy. */
    struct run_view {
        G<const int32_t> words;
        int row, n_rows, slot, n_marks, mark, after;
    };

    __device__ __forceinline__ void next_mark(run_view & r, int mark)
    {
        r.mark = mark;
        r.after = mark < r.n_marks ? cu_ld<int32_t>(r.words + (RUN_HEAD + 2 * mark)) : -1;
    }

    __device__ __forceinline__ run_view view_run(G<const int32_t> runs, unsigned i)
    {
        const G<const int32_t> w = runs + (int64_t)i * RUN_WORDS;
        run_view r = { w,
                       cu_ld<int32_t>(w),
                       cu_ld<int32_t>(w + 1),
                       cu_ld<int32_t>(w + 2),
                       cu_ld<int32_t>(w + 3),
                       0,
                       0 };
        next_mark(r, 0);
        return r;
    }

    __device__ __forceinline__ int64_t mark_slot(const run_view &r)
    {
        return cu_ld<int32_t>(r.words + (RUN_HEAD + 2 * r.mark + 1));
    }

    struct conv_shape {
        int64_t stride, ldx, ldo;
        int channels, taps;
        bool silu;
    };

    /* The newest is last, so `missing` of in come before the oldest. */
    __device__ __forceinline__ void put_history(G<float> state, const float *in, int missing,
                                                int channels)
    {
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) {
            if (j < missing) continue;
            cu_st(state, in[j]);
            state += channels;
        }
    }

    __global__ void __launch_bounds__(THREADS)
        conv_kernel(G<float> states, G<const int32_t> runs, G<float> out, G<const float> x,
                    G<const float> before, G<const float> after, G<const float> w,
                    G<const float> bias, conv_shape s)
    {
        const int c = (int)blockIdx.x * THREADS + threadIdx.x, missing = TAPS - s.taps;
        cu_follow();
        if (c >= s.channels) return;
        run_view r = view_run(runs, blockIdx.y);
        const bool times_before = (bool)before, times_after = (bool)after;
        states += c;
        w += c;
        G<float> state = states + r.slot * s.stride;
        float in[TAPS] = {}, weight[TAPS] = {}, b = bias ? cu_ld<float>(bias + c) : 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            if (j < missing) continue;
            weight[j] = cu_ld<float>(w);
            if (j < TAPS - 1) in[j] = cu_ld<float>(state);
            w += s.channels;
            state += s.channels;
        }
        for (int from = 0; from < r.n_rows; from += AHEAD) {
            float next[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int64_t at = (r.row + from + i) * s.ldx + c;
                if (from + i >= r.n_rows) break;
                next[i] = cu_ld<float>(x + at);
                if (times_before) next[i] *= cu_ld<float>(before + at);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int64_t t = r.row + from + i;
                if (from + i >= r.n_rows) break;
                float y = b;
                in[TAPS - 1] = next[i];
#pragma unroll
                for (int j = 0; j < TAPS; j++)
                    y = fmaf(weight[j], in[j], y);
                if (s.silu) y = km_silu(y);
                if (times_after) y = cu_ld<float>(after + (t * s.ldx + c)) * y;
                cu_st(out + (t * s.ldo + c), y);
#pragma unroll
                for (int j = 0; j < TAPS - 1; j++)
                    in[j] = in[j + 1];
                for (; r.after == from + i + 1; next_mark(r, r.mark + 1))
                    put_history(states + mark_slot(r) * s.stride, in, missing, s.channels);
            }
        }
        put_history(states + r.slot * s.stride, in, missing, s.channels);
    }

    struct scan_shape {
        int64_t stride, ld, ldb; /* ldb: from row to row of beta, and of a head's decays */
        int H, G, K, V, blocks;  /* blocks: of a head's values */
        bool tiled;
    };

    /* The four sums of k_scan. */
    __device__ __forceinline__ float join_parts(float v)
    {
        v += cu_shfl_xor(v, WARP_VALUES);
        return v + cu_shfl_xor(v, 2 * WARP_VALUES);
    }

    /* K numbers of a row are on their way. */
    __device__ __forceinline__ void copy_row(S<float> to, G<const float> from, int K)
    {
        for (int i = threadIdx.x; i < K; i += THREADS)
            cu_copy4(to + i, from + i);
    }

    /* What of n rows of `wide` numbers no copy reaches, which have K. */
    __device__ __forceinline__ void clear_ends(S<float> to, int n, int K, int wide)
    {
        for (int i = threadIdx.x; i < n * wide; i += THREADS)
            if (i % wide >= K) to[i] = 0.0f;
    }

    template <int ROWS>
    __device__ __forceinline__ void put_state(G<float> state, const float *own, int part, int K)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (part + PARTS * i < K) cu_st(state + (part + PARTS * i) * SCAN_LANES, own[i]);
    }

    template <int ROWS, int KIND>
    __global__ void __launch_bounds__(THREADS, 2)
        scan_kernel(G<float> states, G<const int32_t> runs, G<float> out, G<const float> q,
                    G<const float> k, G<const float> v, G<const float> beta, G<const float> decay,
                    G<const float> rate, scan_shape s)
    {
        constexpr bool each = KIND == DEV_SCAN_KEYS_DELTA, correct = each || KIND == DEV_SCAN_DELTA,
                       select = KIND == DEV_SCAN_SELECT;
        enum { WIDE = PARTS * ROWS, POSITIONS = ROWS > 32 ? 4 : 8, BOTH = 2 * POSITIONS };
        CU_SHARED(float, qs, BOTH *WIDE);
        CU_SHARED(float, ks, BOTH *WIDE);
        CU_SHARED(float, ds, each ? BOTH *WIDE : BOTH);
        CU_SHARED(float, bs, BOTH);
        CU_SHARED(float, vs, BOTH *VALUES);
        CU_SHARED(float, ts, select ? BOTH *VALUES : 1);
        const int lane = threadIdx.x % CU_WARP, part = lane / WARP_VALUES,
                  own = (int)threadIdx.x / CU_WARP * WARP_VALUES + lane % WARP_VALUES,
                  h = (int)blockIdx.x / s.blocks, v0 = (int)blockIdx.x % s.blocks * VALUES,
                  value = v0 + own, padded = (s.V + SCAN_LANES - 1) / SCAN_LANES * SCAN_LANES,
                  g = s.tiled ? h % s.G : h / (s.H / s.G);
        const int64_t at =
            ((int64_t)h * padded + value / SCAN_LANES * SCAN_LANES) * s.K + value % SCAN_LANES;
        const bool there = value < padded;
        const int left = s.V - v0 < VALUES ? s.V - v0 : VALUES; /* of the block's values */
        float state[ROWS], rates[select ? ROWS : 1] = {};
        cu_follow();
        run_view r = view_run(runs, blockIdx.y);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = part + PARTS * i;
            state[i] = there && row < s.K
                           ? cu_ld<float>(states + (r.slot * s.stride + at + row * SCAN_LANES))
                           : 0.0f;
            if (select && value < s.V && row < s.K)
                rates[select ? i : 0] = cu_ld<float>(rate + ((int64_t)row * s.V + value));
        }
        clear_ends(qs, BOTH, s.K, WIDE);
        clear_ends(ks, BOTH, s.K, WIDE);
        if (each) clear_ends(ds, BOTH, s.K, WIDE);
        clear_ends(vs, BOTH, left, VALUES);
        if (select) clear_ends(ts, BOTH, left, VALUES);
        /* Rows from .. to positions half ..; none where no more are there. */
        auto bring = [&](int from, int half) {
            const int n = r.n_rows - from < POSITIONS ? r.n_rows - from : POSITIONS;
#pragma unroll 1
            for (int p = half; p < half + n; p++) {
                const int64_t t = r.row + from + p - half;
                copy_row(qs + p * WIDE, q + (t * s.ld + (int64_t)g * s.K), s.K);
                copy_row(ks + p * WIDE, k + (t * s.ld + (int64_t)g * s.K), s.K);
                if (each) copy_row(ds + p * WIDE, decay + (t * s.H + h) * s.K, s.K);
                copy_row(vs + p * VALUES, v + (t * s.ld + (int64_t)h * s.V + v0), left);
                if (select) copy_row(ts + p * VALUES, decay + (t * s.V + v0), left);
            }
            if ((int)threadIdx.x < n && !select) {
                const int64_t t = r.row + from + threadIdx.x;
                const int p = half + (int)threadIdx.x;
                cu_copy4(bs + p, beta + (t * s.ldb + h));
                if (!each) cu_copy4(ds + p, decay + (t * s.ldb + h));
            }
            cu_copy_commit();
        };
        bring(0, 0);
        for (int from = 0, half = 0; from < r.n_rows; from += POSITIONS, half = POSITIONS - half) {
            const int n = r.n_rows - from < POSITIONS ? r.n_rows - from : POSITIONS;
            if (from) __syncthreads(); /* the last positions' readers are done */
            bring(from + POSITIONS, POSITIONS - half);
            cu_copy_wait<1>();
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                const int p = half + i;
                const S<const float> qp = qs + (p * WIDE + part), kp = ks + (p * WIDE + part);
                const float d = each || select ? 0.0f : (float)ds[p],
                            step = select ? (float)ts[p * VALUES + own] : 0.0f,
                            by = select ? step : (float)bs[p];
                float gives = vs[p * VALUES + own], sum = 0;
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    if (select)
                        state[j] *= km_exp(step * rates[select ? j : 0]);
                    else
                        state[j] *= each ? (float)ds[p * WIDE + part + PARTS * j] : d;
                    if (correct) sum = fmaf(state[j], kp[PARTS * j], sum);
                }
                if (correct) gives -= join_parts(sum);
                gives *= by;
                sum = 0;
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    state[j] = fmaf(kp[PARTS * j], gives, state[j]);
                    sum = fmaf(state[j], qp[PARTS * j], sum);
                }
                sum = join_parts(sum);
                if (part == 0 && value < s.V)
                    cu_st(out + (((int64_t)(r.row + from + i) * s.H + h) * s.V + value), sum);
                for (; r.after == from + i + 1; next_mark(r, r.mark + 1))
                    if (there)
                        put_state<ROWS>(states + (mark_slot(r) * s.stride + at), state, part, s.K);
            }
        }
        if (there) put_state<ROWS>(states + (r.slot * s.stride + at), state, part, s.K);
    }

}

void CU_NAME(conv)(dev *d, const dev_conv_args *a)
{
    const conv_shape s = { a->states.stride, a->ldx, a->ldo, (int)a->channels, a->taps, a->silu };
    if (a->states.n == 0) return;
    CU_FOLLOW(d, "conv", conv_kernel,
              dim3((unsigned)lq_ceil_div(a->channels, THREADS), (unsigned)a->states.n), THREADS, 0,
              a->states.of, (const int32_t *)a->states.runs, a->out, a->x, a->before, a->after,
              a->w, a->bias, s);
}

template <int ROWS, int KIND> static void run_scan(dev *d, const dev_scan_args *a)
{
    const int64_t blocks = lq_ceil_div(a->V, VALUES);
    const scan_shape s = { a->states.stride, a->ld,     a->fixed ? 0 : a->H, (int)a->H, (int)a->G,
                           (int)a->K,        (int)a->V, (int)blocks,         a->tiled };
    CU_FOLLOW(d, "scan", (scan_kernel<ROWS, KIND>),
              dim3((unsigned)(a->H * blocks), (unsigned)a->states.n), THREADS, 0, a->states.of,
              (const int32_t *)a->states.runs, a->out, a->q, a->k, a->v, a->beta, a->decay, a->rate,
              s);
}

template <int KIND> static void scan_of(dev *d, const dev_scan_args *a)
{
    constexpr int least = KIND == DEV_SCAN_SELECT ? 4 : 16;
    if (a->K <= least * PARTS)
        run_scan<least, KIND>(d, a);
    else if (a->K <= 16 * PARTS)
        run_scan<16, KIND>(d, a);
    else if (a->K <= 32 * PARTS)
        run_scan<32, KIND>(d, a);
    else
        run_scan<64, KIND>(d, a);
}

void CU_NAME(scan)(dev *d, const dev_scan_args *a)
{
    if (a->states.n == 0) return;
    switch (a->kind) {
    case DEV_SCAN_DELTA:
        scan_of<DEV_SCAN_DELTA>(d, a);
        break;
    case DEV_SCAN_KEYS_DELTA:
        scan_of<DEV_SCAN_KEYS_DELTA>(d, a);
        break;
    case DEV_SCAN_MAMBA:
        scan_of<DEV_SCAN_MAMBA>(d, a);
        break;
    default:
        scan_of<DEV_SCAN_SELECT>(d, a);
    }
}
