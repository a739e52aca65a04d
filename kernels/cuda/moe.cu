/* kernels/cuda/moe.cu - experts: which of them a row takes, rows in order of their experts, and the
 * sum of what they give (runtime/forward/forward_moe.c has the picture).
 *
 *   route         one warp a row; scores and what is chosen by stay in device memory
 *   place         one block of 8 warps, a counting sort: each warp takes an eighth of the choices,
 *                 32 at a time, whose lanes tell each other which have the same expert
 *
 *                        choices   0 .. n/8   ..   ..    n
 *                        expert 0  [ w 0 ][ w 1 ] .. [ w 7 ]    counts; then where the warp's
 *                               1  [     ][     ]    [     ]    next row of the expert goes
 *
 *   join_experts  one thread an element, 256 a block
 *
 * Shared memory: place 8 x E ints; 32768 B of DEV_EXPERTS. */
#include "kernels/cuda/ops.cuh"

inline namespace CU_NAME(moe_cu)
{

    enum { THREADS = 256, WARPS = THREADS / CU_WARP };

    struct route_shape {
        int E, k, groups, groups_used;
        bool sigmoid, top2, normed, on_logits, mixer;
        float scale, eps, jitter;
    };

    __device__ float logistic(float x) { return 1.0f / (1.0f + km_exp(-x)); }

    __device__ void softmax(G<float> x, int n)
    {
        const int lane = threadIdx.x;
        float max = -INFINITY, sum = 0;
        for (int i = lane; i < n; i += CU_WARP)
            max = x[i] > max ? (float)x[i] : max;
        max = cu_warp_max(max);
        for (int i = lane; i < n; i += CU_WARP) {
            const float e = km_exp(x[i] - max);
            x[i] = e;
            sum += e;
        }
        sum = cu_warp_sum(sum);
        for (int i = lane; i < n; i += CU_WARP)
            x[i] = x[i] / sum;
    }

    /* The k best of v[n] to best[k], best first, of equals the first; k distinct ones whatever v holds.
 */
    __device__ void best_of(G<int32_t> best, int k, G<const float> v, int n)
    {
        const int lane = threadIdx.x;
        for (int i = 0; i < k; i++) {
            float most = 0, at = -1;
            for (int e = lane; e < n; e += CU_WARP) {
                bool taken = false;
                for (int j = 0; j < i; j++)
                    taken |= best[j] == e;
                if (!taken && (at < 0 || v[e] > most)) {
                    most = v[e];
                    at = (float)e;
                }
            }
            for (int m = CU_WARP / 2; m; m /= 2) {
                const float other = cu_shfl_xor(most, m), place = cu_shfl_xor(at, m);
                if (place >= 0 && (at < 0 || other > most || (!(most > other) && place < at))) {
                    most = other;
                    at = place;
                }
            }
            at = cu_shfl(at, 0); /* of NaNs lanes may think differently */
            if (lane == 0) best[i] = (int32_t)at;
            __syncwarp();
        }
    }

    /* Experts of other than the best groups are not chosen. */
    __device__ void keep_groups(G<float> choice, G<float> score, G<int32_t> best, route_shape s)
    {
        const int lane = threadIdx.x, n = s.E / s.groups;
        for (int g = lane; g < s.groups; g += CU_WARP) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = 0; i < n; i++) {
                const float v = choice[g * n + i];
                if (v > first) {
                    second = first;
                    first = v;
                } else if (v > second) {
                    second = v;
                }
            }
            score[g] = s.top2 && n > 1 ? first + second : first;
        }
        __syncwarp();
        best_of(best, s.groups_used, score, s.groups);
        for (int e = lane; e < s.E; e += CU_WARP) {
            bool kept = false;
            for (int i = 0; i < s.groups_used; i++)
                kept |= best[i] == e / n;
            if (!kept) choice[e] = -INFINITY;
        }
        __syncwarp();
    }

    /* Shares of the chosen, which come best first and go rising. */
    __device__ void share_out(G<int32_t> chosen, G<float> share, G<const float> scores,
                              G<const float> each, route_shape s)
    {
        float sum = s.eps;
        for (int i = 0; i < s.k; i++)
            sum += scores[chosen[i]];
        for (int i = 1; i < s.k; i++) {
            const int32_t e = chosen[i];
            int j = i;
            for (; j > 0 && chosen[j - 1] > e; j--)
                chosen[j] = (int32_t)chosen[j - 1];
            chosen[j] = e;
        }
        for (int i = 0; i < s.k; i++) {
            const float v = scores[chosen[i]];
            share[i] = (s.normed ? v / sum : v) * s.scale;
            if (each) share[i] = share[i] * each[chosen[i]];
        }
    }

    /* As choose.c's near_share(), by one lane. */
    __device__ float near_share(G<const float> v, G<const float> size, int n, int best,
                                float jitter)
    {
        const float top = v[best];
        float sum = 0;
        for (int e = 0; e < n; e++) {
            const float by = fabsf(size[e]) > top ? fabsf(size[e]) : top;
            if (!((top - size[e]) / by > 2 * jitter)) sum += km_exp(v[e] - top);
        }
        return 1 / sum;
    }

    /* Two experts, rising, each with its share; others [E]: the logits without the best. */
    __device__ void sparse_mixer(G<int32_t> chosen, G<float> share, G<float> logits,
                                 G<float> others, route_shape s)
    {
        best_of(chosen, 1, logits, s.E);
        const int32_t best = chosen[0];
        for (int e = threadIdx.x; e < s.E; e += CU_WARP)
            others[e] = e == best ? -INFINITY : (float)logits[e];
        __syncwarp();
        best_of(chosen + 1, 1, others, s.E);
        if (threadIdx.x) return;
        const int32_t next = chosen[1];
        const float first = near_share(logits, logits, s.E, best, s.jitter),
                    second = near_share(others, logits, s.E, next, s.jitter);
        const bool turned = best > next;
        chosen[0] = turned ? next : best;
        chosen[1] = turned ? best : next;
        share[0] = turned ? second : first;
        share[1] = turned ? first : second;
    }

    __global__ void __launch_bounds__(CU_WARP)
        route_kernel(G<float> scores, G<float> choice, G<float> group_score, G<int32_t> group_best,
                     G<const float> correction, G<const float> each, G<float> shared,
                     G<int32_t> chosen, G<float> share, route_shape s)
    {
        const int64_t t = blockIdx.x;
        const int lane = threadIdx.x;
        cu_follow();
        scores = scores + t * s.E;
        choice = choice + t * s.E;
        chosen = chosen + t * s.k;
        share = share + t * s.k;
        if (s.mixer) {
            sparse_mixer(chosen, share, scores, choice, s);
            return;
        }
        for (int e = lane; s.on_logits && e < s.E; e += CU_WARP)
            choice[e] = correction ? scores[e] + correction[e] : (float)scores[e];
        if (s.sigmoid)
            for (int e = lane; e < s.E; e += CU_WARP)
                scores[e] = logistic(scores[e]);
        else
            softmax(scores, s.E);
        for (int e = lane; !s.on_logits && e < s.E; e += CU_WARP)
            choice[e] = correction ? scores[e] + correction[e] : (float)scores[e];
        __syncwarp();
        if (s.groups_used < s.groups)
            keep_groups(choice, group_score + t * s.groups, group_best + t * s.groups_used, s);
        best_of(chosen, s.k, choice, s.E);
        if (lane) return;
        share_out(chosen, share, scores, each, s);
        if (shared) shared[t] = logistic(shared[t]);
    }

    /* Lanes below this one among `lanes`. */
    __device__ __forceinline__ int before(unsigned lanes)
    {
        return __popc(lanes & ((1u << threadIdx.x % CU_WARP) - 1u));
    }

    /* The sum of v in the lanes below, and in all. */
    __device__ __forceinline__ int sum_before(int v, int *all)
    {
        const int lane = threadIdx.x % CU_WARP;
        float sum = (float)v; /* exact: there are less than 2^24 places */
        for (int d = 1; d < CU_WARP; d *= 2) {
            const float other = cu_shfl(sum, lane - d);
            if (lane >= d) sum += other;
        }
        *all = (int)cu_shfl(sum, CU_WARP - 1);
        return (int)sum - v;
    }

    /* Each warp's choices of each expert are counted; then, by one warp, where they go: what the counts
 * become. Of the E experts the first `run` are listed. */
    __device__ void find_places(G<int32_t> first, G<int32_t> busy, S<int> count, int E, int run)
    {
        const int lane = threadIdx.x, per = (E + CU_WARP - 1) / CU_WARP;
        const int e0 = lane * per < E ? lane * per : E, e1 = e0 + per < E ? e0 + per : E;
        int rows = 0, listed = 0, some = 0, all, end;
        for (int e = e0; e < e1; e++) {
            int of = 0;
            for (int w = 0; w < WARPS; w++)
                of += count[w * E + e];
            rows += of;
            listed += e < run ? of : 0;
            some += e < run && of > 0;
        }
        sum_before(listed, &end);
        int at = sum_before(rows, &all), i = sum_before(some, &all);
        for (int e = e0; e < e1; e++) {
            const int begin = at;
            for (int w = 0; w < WARPS; w++) {
                const int of = count[w * E + e];
                count[w * E + e] = at;
                at += of;
            }
            if (at == begin || e >= run) continue;
            first[i] = begin;
            busy[i++] = e;
        }
        for (int e = all + lane; e < run; e += CU_WARP) {
            first[e] = end;
            busy[e] = -1;
        }
        if (lane == 0) first[run] = end;
    }

    __global__ void __launch_bounds__(THREADS)
        place_kernel(G<int32_t> first, G<int32_t> busy, G<int32_t> place, G<int32_t> sent,
                     G<const int32_t> chosen, int n, int E, int run, int k)
    {
        CU_DYNAMIC(int, count);
        const int warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP;
        const int share = (n + THREADS - 1) / THREADS * CU_WARP, i0 = warp * share;
        const int i1 = i0 + share < n ? i0 + share : n;
        cu_follow();
        for (int i = threadIdx.x; i < WARPS * E; i += THREADS)
            count[i] = 0;
        __syncthreads();
        for (int i = i0; i < i1; i += CU_WARP) {
            const int e = i + lane < i1 ? (int)chosen[i + lane] : -1;
            const unsigned same = cu_same(e);
            if (e >= 0 && before(same) == 0) count[warp * E + e] += __popc(same);
            __syncwarp(); /* the next round's adds come from other lanes */
        }
        __syncthreads();
        if (warp == 0) find_places(first, busy, count, E, run);
        __syncthreads();
        for (int i = i0; i < i1; i += CU_WARP) {
            const int e = i + lane < i1 ? (int)chosen[i + lane] : -1;
            const unsigned same = cu_same(e);
            if (e >= 0) {
                const int at = count[warp * E + e] + before(same);
                place[i + lane] = at;
                sent[at] = (i + lane) / k;
            }
            __syncwarp(); /* all have read it */
            if (e >= 0 && before(same) == 0) count[warp * E + e] += __popc(same);
            __syncwarp();
        }
    }

    __global__ void __launch_bounds__(THREADS)
        join_kernel(G<float> out, G<const float> y, G<const float> share, G<const float> bias,
                    G<const int32_t> place, int64_t H, int k)
    {
        const int64_t h = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
        cu_follow();
        if (h >= H) return;
        float sum = 0;
        for (int i = 0; i < k; i++)
            sum += (share ? (float)share[t * k + i] : 1.0f) * y[place[t * k + i] * H + h];
        if (bias) sum += bias[h];
        out[t * H + h] += sum;
    }

}

void CU_NAME(route)(dev *d, const dev_route_args *a)
{
    const route_shape s = { .E = (int)a->E,
                            .k = (int)a->k,
                            .groups = (int)a->groups,
                            .groups_used = (int)a->groups_used,
                            .sigmoid = a->sigmoid,
                            .top2 = a->top2,
                            .normed = a->normed,
                            .on_logits = a->on_logits,
                            .mixer = a->mixer,
                            .scale = a->scale,
                            .eps = a->eps,
                            .jitter = a->jitter };
    if (a->T == 0) return;
    CU_FOLLOW(d, "route", route_kernel, dim3((unsigned)a->T), CU_WARP, 0, a->scores, a->choice,
              a->group_score, a->group_best, a->correction, a->each, a->shared, a->chosen, a->share,
              s);
}

void CU_NAME(place)(dev *d, const dev_place_args *a)
{
    CU_ALLOW(d, place_kernel, 0);
    CU_FOLLOW(d, "place", place_kernel, dim3(1), THREADS, WARPS * (size_t)a->E * sizeof(int),
              a->first, a->busy, a->place, a->sent, a->chosen, (int)(a->T * a->k), (int)a->E,
              (int)(a->E - a->idle), (int)a->k);
}

void CU_NAME(join_experts)(dev *d, const dev_join_args *a)
{
    for (int64_t t = 0; t < a->T; t += CU_ROWS) {
        const unsigned n = (unsigned)(a->T - t < CU_ROWS ? a->T - t : CU_ROWS);
        CU_FOLLOW(d, "join_experts", join_kernel, dim3((unsigned)lq_ceil_div(a->H, THREADS), n),
                  THREADS, 0, a->out + t * a->H, a->y, a->share ? a->share + t * a->k : NULL,
                  a->bias, a->place + t * a->k, a->H, (int)a->k);
    }
}
