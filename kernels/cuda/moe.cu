/* kernels/cuda/moe.cu - experts: which of them a row takes, rows in order of their experts, and the
 * sum of what they give (runtime/forward_moe.c has the picture).
 *
 *   route         one warp a row; scores and what is chosen by stay in device memory
 *   place         one block of 256 threads; thread e counts and places the rows of experts e, e +
 * 256,
 *                 ..., each in the order of the rows
 *   join_experts  one thread an element, 256 a block */
#include "kernels/cuda/ops.cuh"

namespace
{

enum { THREADS = 256 };

struct route_shape {
    int E, k, groups, groups_used;
    bool sigmoid, top2, normed;
    float scale;
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

/* Experts of other than the best groups count as 0. */
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
        if (!kept) choice[e] = 0;
    }
    __syncwarp();
}

/* Shares of the chosen, which come best first and go rising. */
__device__ void share_out(G<int32_t> chosen, G<float> share, G<const float> scores, route_shape s)
{
    float sum = 1e-20f;
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
    }
}

__global__ void __launch_bounds__(CU_WARP)
    route_kernel(G<float> scores, G<float> choice, G<float> group_score, G<int32_t> group_best,
                 G<const float> correction, G<float> shared, G<int32_t> chosen, G<float> share,
                 route_shape s)
{
    const int64_t t = blockIdx.x;
    const int lane = threadIdx.x;
    scores = scores + t * s.E;
    choice = choice + t * s.E;
    chosen = chosen + t * s.k;
    share = share + t * s.k;
    if (s.sigmoid)
        for (int e = lane; e < s.E; e += CU_WARP)
            scores[e] = logistic(scores[e]);
    else
        softmax(scores, s.E);
    for (int e = lane; e < s.E; e += CU_WARP)
        choice[e] = correction ? scores[e] + correction[e] : (float)scores[e];
    __syncwarp();
    if (s.groups_used < s.groups)
        keep_groups(choice, group_score + t * s.groups, group_best + t * s.groups_used, s);
    best_of(chosen, s.k, choice, s.E);
    if (lane) return;
    share_out(chosen, share, scores, s);
    if (shared) shared[t] = logistic(shared[t]);
}

__global__ void __launch_bounds__(THREADS)
    place_kernel(G<int32_t> first, G<int32_t> place, G<int32_t> sent, G<const int32_t> chosen,
                 int n, int E, int k)
{
    for (int e = threadIdx.x; e < E; e += THREADS) {
        int count = 0;
        for (int i = 0; i < n; i++)
            count += chosen[i] == e;
        first[e + 1] = count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        first[0] = 0;
        for (int e = 0; e < E; e++)
            first[e + 1] += first[e];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += THREADS) {
        int at = first[e];
        for (int i = 0; i < n; i++)
            if (chosen[i] == e) {
                place[i] = at;
                sent[at++] = i / k;
            }
    }
}

__global__ void __launch_bounds__(THREADS)
    join_kernel(G<float> out, G<const float> y, G<const float> share, G<const int32_t> place,
                int64_t H, int k)
{
    const int64_t h = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
    if (h >= H) return;
    float sum = 0;
    for (int i = 0; i < k; i++)
        sum += share[t * k + i] * y[place[t * k + i] * H + h];
    out[t * H + h] += sum;
}

} // namespace

void CU_NAME(route)(dev *d, const dev_route_args *a)
{
    const route_shape s = { (int)a->E,  (int)a->k, (int)a->groups, (int)a->groups_used,
                            a->sigmoid, a->top2,   a->normed,      a->scale };
    if (a->T == 0) return;
    CU_LAUNCH(d, "route", route_kernel, dim3((unsigned)a->T), CU_WARP, 0, a->scores, a->choice,
              a->group_score, a->group_best, a->correction, a->shared, a->chosen, a->share, s);
}

void CU_NAME(place)(dev *d, const dev_place_args *a)
{
    CU_LAUNCH(d, "place", place_kernel, dim3(1), THREADS, 0, a->first, a->place, a->sent, a->chosen,
              (int)(a->T * a->k), (int)a->E, (int)a->k);
}

/* Rows are the grid's second dimension, which holds 65,535. */
void CU_NAME(join_experts)(dev *d, const dev_join_args *a)
{
    enum { ROWS = 65535 };
    for (int64_t t = 0; t < a->T; t += ROWS) {
        const unsigned n = (unsigned)(a->T - t < ROWS ? a->T - t : ROWS);
        CU_LAUNCH(d, "join_experts", join_kernel, dim3((unsigned)lq_ceil_div(a->H, THREADS), n),
                  THREADS, 0, a->out + t * a->H, a->y, a->share + t * a->k, a->place + t * a->k,
                  a->H, (int)a->k);
    }
}
