/* kernels/cuda/draw.cu - a token out of each row of logits, as runtime/engine/sample.c draws it: the same
 * one, to the bit, from the same logits. One block of 512 threads a row.
 *
 *   An id and its logit are one number, its place: [ logit, order reversed : 32 ][ id : 4 n bits ].
 *   Places rise in the order of the sampler (larger logits first, of equals the lower id), so
 * top-k, top-p and the draw are one search: the first place at which a running sum (of ids, or of
 * their weights in units, kernels/sampling.h) exceeds a target. Sums are integers, so it goes by digits
 * of 16 and needs no sorted row:
 *
 *           digit   0 1 2 3 .. f
 *        thread 0   [ sums of those of its places that begin like the one looked for ]
 *               1   [                                                                ]
 *              ..                            all threads' in a column: the sum of a digit
 *
 *   Without top-k and top-p the order is that of ids, which are then the place.
 *
 *   Few ids matter: where the r-th best of the threads' best ids is, r ids are at least as good,
 * and mostly few more. Those go to a list, and searches to the list; where it has no room, or
 * weighs too little, they go over the row. What comes out is the same.
 *
 *   Bias and penalties are a list of ids (dev_edit): their logits are changed in the row, and come
 * back before logprobs, which are of what the model said. What a mask leaves out is read as -inf;
 * those places come last and weigh nothing.
 *
 * Shared memory: 512 columns of 16 sums 65536, the list 8192, a word of each thread twice 8192,
 * sums of 16 threads 256: 82176 B, dynamic. */
#include "kernels/cuda/ops.cuh"
#include "kernels/sampling.h"

#include <assert.h>

inline namespace CU_NAME(draw_cu)
{

    enum {
        THREADS = 512,
        DIGITS = 16,
        PART = 16, /* threads whose sums are added first */
        PARTS = THREADS / PART,
        LIST = 1024,  /* places that the list has room for */
        LISTED = 384, /* best of threads that let some 700 into it */
        AHEAD = 8,    /* logits that a thread asks for at once */
        LANES = 16,   /* partial sums of k_logsumexp */
        WORDS = (DIGITS + 2) * THREADS + LIST + PARTS,
        /* of a dev_drawn, in 32-bit words */
        ID = 0,
        BAD,
        VALUE,
        LOGPROB,
        N_TOP,
        TOP_ID,
        TOP_LOGPROB = TOP_ID + DEV_TOPS
    };
    static_assert(sizeof(dev_drawn) == 4 * (TOP_LOGPROB + DEV_TOPS), "what the kernel writes");

    struct row_of {
        G<float> x;
        G<const uint32_t> mask; /* or none */
        S<uint64_t> bins, list, best, word, part;
        int V, id_bits, n_list; /* n_list: places in the list; -1: searches go over the row */
        uint64_t cut;           /* places behind it count no more */
        float max, temperature, min_p, unit;
    };
    enum measure { EACH, WEIGHT, WEIGHT_DRAWN }; /* the last: 0 below min_p */

    __device__ __forceinline__ uint64_t place_of(float x, int id, int id_bits)
    {
        const unsigned u = __float_as_uint(x + 0.0f); /* -0 is 0 */
        return (uint64_t)(u & 0x80000000u ? u : ~u & 0x7fffffffu) << id_bits | (unsigned)id;
    }
    __device__ __forceinline__ float logit_at(uint64_t place, int id_bits)
    {
        const unsigned u = (unsigned)(place >> id_bits);
        return __uint_as_float(u & 0x80000000u ? u : ~u & 0x7fffffffu);
    }

    /* f(id, logit) of a row's ids, each by one thread. */
    template <class F> __device__ __forceinline__ void each_logit(G<float> x, int V, F f)
    {
        for (int i = threadIdx.x; i < V; i += AHEAD * THREADS) {
            float v[AHEAD];
            for (int j = 0; j < AHEAD; j++)
                v[j] = i + j * THREADS < V ? (float)x[i + j * THREADS] : 0.0f;
            for (int j = 0; j < AHEAD; j++)
                if (i + j * THREADS < V) f(i + j * THREADS, v[j]);
        }
    }

    /* The same of what may be drawn: -inf where the mask says no. */
    template <class F> __device__ __forceinline__ void each_choice(const row_of &r, F f)
    {
        each_logit(r.x, r.V, [&](int id, float v) {
            f(id,
              r.mask && !(cu_ldg<uint32_t>(r.mask + (id >> 5)) >> (id & 31) & 1) ? -INFINITY : v);
        });
    }

    /* f(place) of the places that count, each by one thread. */
    template <class F> __device__ __forceinline__ void each_place(const row_of &r, F f)
    {
        if (r.n_list >= 0) {
            for (int i = threadIdx.x; i < r.n_list; i += THREADS) {
                const uint64_t c = r.list[i];
                if (c <= r.cut) f(c);
            }
            return;
        }
        each_choice(r, [&](int id, float v) {
            const uint64_t c = place_of(v, id, r.id_bits);
            if (c <= r.cut) f(c);
        });
    }

    /* The least v of the block. */
    __device__ uint64_t least(const row_of &r, uint64_t v)
    {
        const int t = threadIdx.x;
        r.word[t] = v;
        __syncthreads();
        if (t < PARTS) {
            for (int i = 0; i < PART; i++) {
                const uint64_t o = r.word[t * PART + i];
                v = i == 0 || o < v ? o : v;
            }
            r.part[t] = v;
        }
        __syncthreads();
        for (int i = 0; i < PARTS; i++) {
            const uint64_t o = r.part[i];
            v = o < v ? o : v;
        }
        __syncthreads();
        return v;
    }

    /* The sum of v of all threads, and of those before this one. */
    __device__ uint64_t sum_of(const row_of &r, uint64_t v, uint64_t *before)
    {
        const int t = threadIdx.x;
        uint64_t sum = 0;
        r.word[t] = v;
        __syncthreads();
        if (t < PARTS) {
            for (int i = 0; i < PART; i++)
                sum += r.word[t * PART + i];
            r.part[t] = sum;
        }
        __syncthreads();
        sum = *before = 0;
        for (int i = 0; i < PARTS; i++) {
            if (i == t / PART) *before = sum;
            sum += r.part[i];
        }
        for (int i = t / PART * PART; i < t; i++)
            *before += r.word[i];
        __syncthreads();
        return sum;
    }

    __device__ uint64_t measure_of(const row_of &r, uint64_t place, measure by)
    {
        if (by == EACH) return 1;
        const float w = draw_weight(logit_at(place, r.id_bits), r.max, r.temperature);
        return by == WEIGHT_DRAWN && w < r.min_p ? 0 : draw_units(w, r.unit);
    }

    __device__ uint64_t total_of(const row_of &r, measure by)
    {
        uint64_t sum = 0, before;
        each_place(r, [&](uint64_t c) { sum += measure_of(r, c, by); });
        return sum_of(r, sum, &before);
    }

    /* The first place, or with by_id the first id, at which the running sum exceeds target, which is
 * less than the sum of all. */
    __device__ uint64_t find(const row_of &r, measure by, uint64_t target, bool by_id)
    {
        const int t = threadIdx.x;
        const uint64_t mask = by_id ? ((uint64_t)1 << r.id_bits) - 1 : ~(uint64_t)0;
        uint64_t prefix = 0;
        for (int shift = r.id_bits + (by_id ? 0 : 32) - 4; shift >= 0; shift -= 4) {
            for (int d = 0; d < DIGITS; d++)
                r.bins[d * THREADS + t] = 0;
            each_place(r, [&](uint64_t c) {
                const uint64_t at = (c & mask) >> shift;
                if (at >> 4 == prefix) r.bins[(int)(at & 15) * THREADS + t] += measure_of(r, c, by);
            });
            __syncthreads();
            uint64_t sum = 0; /* a digit's, of every PARTS-th thread */
            for (int i = t % PARTS; i < THREADS; i += PARTS)
                sum += r.bins[t / PARTS * THREADS + i];
            r.word[t] = sum;
            __syncthreads();
            if (t < DIGITS) {
                sum = 0;
                for (int i = 0; i < PARTS; i++)
                    sum += r.word[t * PARTS + i];
                r.part[t] = sum;
            }
            __syncthreads();
            int d = 0;
            for (uint64_t n; d < DIGITS - 1 && target >= (n = r.part[d]); d++)
                target -= n;
            prefix = prefix << 4 | (unsigned)d;
        }
        __syncthreads(); /* part is read, before others write it */
        return prefix;
    }

    /* All places up to a bound into the list; how many there are, or -1 where they have no room. */
    __device__ int gather(const row_of &r, uint64_t bound)
    {
        uint64_t n = 0, at;
        each_choice(r, [&](int id, float v) { n += place_of(v, id, r.id_bits) <= bound; });
        const uint64_t all = sum_of(r, n, &at);
        if (all > LIST) return -1;
        each_choice(r, [&](int id, float v) {
            const uint64_t c = place_of(v, id, r.id_bits);
            if (c <= bound) r.list[(int)at++] = c;
        });
        __syncthreads();
        return (int)all;
    }

    /* The best place, and each thread's; r.max is its logit. */
    __device__ uint64_t find_best(row_of & r)
    {
        uint64_t best = ~(uint64_t)0;
        each_choice(r, [&](int id, float v) {
            const uint64_t c = place_of(v, id, r.id_bits);
            best = c < best ? c : best;
        });
        r.best[(int)threadIdx.x] = best;
        best = least(r, best);
        r.max = logit_at(best, r.id_bits);
        return best;
    }

    /* Bias and penalties into the row, what was there into the list; or back. Barriers before and
 * after. */
    __device__ void edit_row(const row_of &r, const dev_draw &how, bool back)
    {
        const G<dev_edit> edits = how.edits;
        __syncthreads();
        for (int i = threadIdx.x; i < how.n_edits; i += THREADS) {
            dev_edit e = edits[i];
            float x = r.x[e.id];
            if (back) {
                x = e.value;
            } else {
                const float bias = e.value;
                e.value = x;
                x += bias;
                if (e.n) x = draw_penalize(x, e.n, how.repetition, how.presence, how.frequency);
                edits[i] = e;
            }
            r.x[e.id] = x;
        }
        __syncthreads();
    }

    /* The list has the best k places, and others perhaps; or it is left out. */
    __device__ void list_best(row_of & r, int k)
    {
        const int t = threadIdx.x, n = r.V < THREADS ? r.V : THREADS;
        r.n_list = -1;
        if (k > n) k = n > LISTED ? LISTED : n;
        int rank = 0;
        for (int i = 0; i < n; i++)
            rank += r.best[i] < r.best[t];
        const uint64_t bound =
            least(r, t < n && rank == k - 1 ? (uint64_t)r.best[t] : ~(uint64_t)0);
        r.n_list = gather(r, bound);
    }

    __device__ void cut_to_best(row_of & r, int k)
    {
        list_best(r, k);
        if (r.n_list < k) r.n_list = -1;
        r.cut = find(r, EACH, (uint64_t)k - 1, false);
    }

    __device__ void cut_to_share(row_of & r, float p, bool listed)
    {
        const uint64_t share = draw_share(p, total_of(r, WEIGHT));
        if (!listed) {
            list_best(r, LISTED);
            if (r.n_list >= 0 && total_of(r, WEIGHT) < share) r.n_list = -1;
        }
        r.cut = find(r, WEIGHT, share - 1, false);
    }

    __device__ int draw_id(row_of & r, const dev_draw &how, uint64_t best)
    {
        const int mask = (int)(((uint64_t)1 << r.id_bits) - 1);
        const bool top_k = how.top_k > 0 && how.top_k<r.V, top_p = how.top_p> 0 && how.top_p < 1;
        r.n_list = -1;
        r.cut = ~(uint64_t)0;
        if (how.temperature == 0 || how.top_k == 1) return (int)best & mask;
        if (top_k) cut_to_best(r, how.top_k);
        if (top_p) cut_to_share(r, how.top_p, top_k);
        const uint64_t point = draw_point(draw_bits(how.seed, how.draw), total_of(r, WEIGHT_DRAWN));
        return (int)find(r, WEIGHT_DRAWN, point, !top_k && !top_p) & mask;
    }

    /* k_logsumexp, in its order; the bins are its scratch. */
    __device__ float log_sum_exp(const row_of &r)
    {
        const int t = threadIdx.x;
        const S<float> e = cu_as<float>(r.bins), lanes = e + DIGITS * THREADS;
        float sum = 0;
        for (int i0 = 0; i0 < r.V; i0 += DIGITS * THREADS) {
            const int n = r.V - i0 < DIGITS * THREADS ? r.V - i0 : DIGITS * THREADS;
            each_logit(r.x + i0, n, [&](int i, float v) { e[i] = km_exp(v - r.max); });
            __syncthreads();
            for (int i = t; t < LANES && i < n; i += LANES)
                sum += e[i];
            __syncthreads();
        }
        if (t < LANES) lanes[t] = sum;
        __syncthreads();
        float all[LANES];
        for (int i = 0; i < LANES; i++)
            all[i] = lanes[i];
        __syncthreads();
        return (float)(km_log(km_sum16(all)) + (double)r.max);
    }

    __device__ __forceinline__ float logprob_of(float x, float lse)
    {
        return x - lse < 0 ? x - lse : 0.0f;
    }

    /* The k likeliest. */
    __device__ void put_tops(row_of & r, G<int32_t> out, int k, float lse)
    {
        const int t = threadIdx.x;
        r.cut = ~(uint64_t)0;
        k = k < r.V ? k : r.V;
        if (t == 0) out[N_TOP] = k;
        if (k <= 0) return;
        cut_to_best(r, k);
        const int n = gather(r, r.cut);
        if (t >= n) return;
        const uint64_t own = r.list[t];
        int rank = 0;
        for (int i = 0; i < n; i++)
            rank += r.list[i] < own;
        out[TOP_ID + rank] = (int)(own & (((uint64_t)1 << r.id_bits) - 1));
        cu_st<float>(cu_as<float>(out + TOP_LOGPROB + rank),
                     logprob_of(logit_at(own, r.id_bits), lse));
    }

    __global__ void __launch_bounds__(THREADS)
        draw_kernel(G<float> logits, G<const dev_draw> hows, G<int32_t> out, int V, int id_bits,
                    float unit, float scale, float cap)
    {
        CU_DYNAMIC(uint64_t, words);
        const dev_draw how = hows[blockIdx.x];
        const int t = threadIdx.x;
        row_of r = { logits + (int64_t)how.row * V,
                     NULL,
                     words,
                     words + DIGITS * THREADS,
                     words + DIGITS * THREADS + LIST,
                     words + (DIGITS + 1) * THREADS + LIST,
                     words + (DIGITS + 2) * THREADS + LIST,
                     V,
                     id_bits,
                     -1,
                     ~(uint64_t)0,
                     0,
                     how.temperature,
                     how.min_p,
                     unit };
        uint64_t best = ~(uint64_t)0, bad = ~(uint64_t)0;
        out = out + (int64_t)blockIdx.x * (TOP_LOGPROB + DEV_TOPS);
        each_logit(r.x, V, [&](int id, float v) {
            if (scale != 1) v *= scale;
            if (cap > 0) v = cap * km_tanh(v / cap);
            if (scale != 1 || cap > 0) r.x[id] = v;
            const uint64_t c = place_of(v, id, id_bits);
            best = c < best ? c : best;
            if ((__float_as_uint(v) & 0x7f800000u) == 0x7f800000u && (uint64_t)id < bad)
                bad = (uint64_t)id;
        });
        r.best[t] = best;
        bad = least(r, bad); /* its barriers are best's too */
        if (bad < (uint64_t)V) {
            if (t == 0) {
                out[ID] = -1;
                out[BAD] = (int)bad;
                cu_st<float>(cu_as<float>(out + VALUE), (float)r.x[(int)bad]);
            }
            return;
        }
        const bool edited = how.mask || how.n_edits > 0;
        if (edited) {
            edit_row(r, how, false);
            r.mask = how.mask;
            best = find_best(r);
        } else {
            best = least(r, best);
            r.max = logit_at(best, id_bits);
        }
        const int id = r.max == -INFINITY ? -2 : draw_id(r, how, best);
        if (t == 0) {
            out[ID] = id;
            out[N_TOP] = 0;
            cu_st<float>(cu_as<float>(out + LOGPROB), 0.0f);
        }
        if (how.logprobs < 0 || id < 0) return;
        if (edited) {
            edit_row(r, how, true);
            r.mask = NULL;
            find_best(r);
        }
        const float lse = log_sum_exp(r);
        if (t == 0) cu_st<float>(cu_as<float>(out + LOGPROB), logprob_of(r.x[id], lse));
        put_tops(r, out, how.logprobs, lse);
    }

}

void CU_NAME(draw)(dev *d, const dev_draw_args *a)
{
    assert(a->V >= 1 && a->V <= DEV_DRAW_IDS && a->n <= INT32_MAX);
    int id_bits = 4;
    while (a->V > (int64_t)1 << id_bits)
        id_bits += 4;
    if (a->n == 0) return;
    CU_ALLOW(d, draw_kernel, 0);
    CU_LAUNCH(d, "draw", draw_kernel, dim3((unsigned)a->n), THREADS, WORDS * sizeof(uint64_t),
              a->logits, a->how, (int32_t *)a->out, (int)a->V, id_bits, draw_unit(a->V), a->scale,
              a->cap);
}
