/* kernels/cuda/draw.cu - a token out of each row of logits, as runtime/engine/sample.c draws it: the same
 * one, to the bit, from the same logits. Blocks of 512 threads.
 *
 *   Of few rows a row's ids are shared out to up to 16 blocks: each scales and caps its own, changes
 * those that have a bias or penalty, and leaves its best ones in the scratch; the last of them to be
 * done (last.cuh) draws. Of many rows each has one block.
 *
 *   An id and its logit are one number, its place: [ logit, order reversed : 32 ][ id : 4 n bits ].
 *   Places rise in the order of the sampler (larger logits first, of equals the lower id), so
 * top-k and top-p are one search: the first place at which a running sum (of ids, or of their weights
 * in units, kernels/sampling.h) exceeds a target, and so is the draw among what they leave. Sums are
 * integers, so it goes by digits of 16 and needs no sorted row:
 *
 *           digit   0 1 2 3 .. f
 *        thread 0   [ sums of those of its places that begin like the one looked for ]
 *               1   [                                                                ]
 *              ..                            all threads' in a column: the sum of a digit
 *
 *   Without top-k and top-p the draw is in the order of ids: weights are added up in chunks of 256 ids
 * (of more, of a vocabulary that has more than 8,192 of those) once, and then only the chunk that it
 * falls into is looked at.
 *
 *   Few ids matter: where the r-th best of the threads' best ids is, r ids are at least as good,
 * and mostly few more. Those go to a list, and searches to the list; where it has no room, or
 * weighs too little, they go over the row. What comes out is the same.
 *
 *   Bias and penalties are a list of ids (dev_edit): their logits are changed in the row, and come
 * back before logprobs, which are of what the model said. What a mask leaves out is read as -inf;
 * those places come last and weigh nothing.
 *
 * Shared memory: 512 columns of 16 sums, or sums of 8,192 chunks, 65536, the list 8192, a word of each thread twice 8192,
 * sums of 16 threads 256: 82176 B, dynamic. */
#include "kernels/cuda/last.cuh"
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
        LIST = 1024,             /* places that the list has room for */
        LISTED = 384,            /* best of threads that let some 700 into it */
        AHEAD = 8,               /* logits that a thread asks for at once */
        CHUNK = AHEAD * CU_WARP, /* ids that a warp adds up at once */
        LANES = 16,              /* partial sums of k_logsumexp */
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
    static_assert(offsetof(dev_edit, id) == 0 && offsetof(dev_edit, n) == 4 &&
                      offsetof(dev_edit, value) == 8,
                  "what edit_row reads");
    static_assert(sizeof(dev_drawn) == 4 * (TOP_LOGPROB + DEV_TOPS), "what the kernel writes");
    static_assert((int)CU_CHUNKS <= DIGITS * (int)THREADS, "a number of the columns each");
    static_assert((int)DEV_DRAW_SHARED <= (int)DEV_DONE, "a counter each");
    static_assert((int)DEV_DRAW_WORDS == (int)THREADS + (int)DEV_DRAW_BLOCKS,
                  "best places, and bad ids of blocks");

    struct row_of {
        G<float> x;
        int first, end;         /* of its ids that this block has at the time */
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

    /* f(id, logit) of ids first .. end - 1 of a row, each by one thread. */
    template <class F>
    __device__ __forceinline__ void each_logit(G<float> x, int first, int end, F f)
    {
        for (int i = first + (int)threadIdx.x; i < end; i += AHEAD * THREADS) {
            float v[AHEAD];
            for (int j = 0; j < AHEAD; j++)
                v[j] = i + j * THREADS < end ? (float)x[i + j * THREADS] : 0.0f;
            for (int j = 0; j < AHEAD; j++)
                if (i + j * THREADS < end) f(i + j * THREADS, v[j]);
        }
    }

    /* v, the logit of an id, where it may be drawn; -inf where the mask says no. */
    __device__ __forceinline__ float choice_of(const row_of &r, int id, float v)
    {
        return r.mask && !(cu_ldg<uint32_t>(r.mask + (id >> 5)) >> (id & 31) & 1) ? -INFINITY : v;
    }
    template <class F> __device__ __forceinline__ void each_choice(const row_of &r, F f)
    {
        each_logit(r.x, r.first, r.end, [&](int id, float v) { f(id, choice_of(r, id, v)); });
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

    /* The first place at which the running sum exceeds target, which is less than the sum of all. */
    __device__ uint64_t find(const row_of &r, measure by, uint64_t target)
    {
        const int t = threadIdx.x;
        uint64_t prefix = 0;
        for (int shift = r.id_bits + 32 - 4; shift >= 0; shift -= 4) {
            for (int d = 0; d < DIGITS; d++)
                r.bins[d * THREADS + t] = 0;
            each_place(r, [&](uint64_t c) {
                const uint64_t at = c >> shift;
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

    __device__ __forceinline__ uint64_t weight_drawn(const row_of &r, int id)
    {
        const float v = choice_of(r, id, r.x[id]);
        return measure_of(r, place_of(v, id, r.id_bits), WEIGHT_DRAWN);
    }

    /* Of the n sums that this thread adds up, i -> of(i): where the running sum of all threads' exceeds
 * target. Into found[0] the i, into found[1] what of the target is left there; by the one thread
 * whose share it falls into. */
    template <class F>
    __device__ __forceinline__ void find_in_shares(const row_of &r, int from, int to,
                                                   uint64_t target, S<uint64_t> found, F of)
    {
        uint64_t own = 0, before;
        for (int i = from; i < to; i++)
            own += of(i);
        sum_of(r, own, &before);
        if (target < before || target - before >= own) return;
        target -= before;
        for (uint64_t n; target >= (n = of(from)); from++)
            target -= n;
        found[0] = (uint64_t)from;
        found[1] = target;
    }

    /* The id that is drawn where all count, in their order. */
    __device__ int draw_by_id(const row_of &r, uint64_t bits)
    {
        const int t = threadIdx.x, lane = t % CU_WARP;
        const S<uint64_t> found = r.list;
        int chunk = CHUNK;
        while ((r.V - 1) / chunk >= CU_CHUNKS)
            chunk *= 2;
        const int n = (r.V + chunk - 1) / chunk, share = (n + THREADS - 1) / THREADS,
                  ids = (chunk + THREADS - 1) / THREADS;
        for (int c = t / CU_WARP; c < n; c += THREADS / CU_WARP) {
            uint64_t sum = 0;
            for (int i0 = c * chunk; i0 < (c + 1) * chunk && i0 < r.V; i0 += CHUNK) {
                float v[AHEAD];
                for (int j = 0; j < AHEAD; j++) {
                    const int id = i0 + j * CU_WARP + lane;
                    v[j] = id < r.V ? (float)r.x[id] : 0.0f;
                }
                for (int j = 0; j < AHEAD; j++) {
                    const int id = i0 + j * CU_WARP + lane;
                    if (id < r.V)
                        sum += measure_of(r, place_of(choice_of(r, id, v[j]), id, r.id_bits),
                                          WEIGHT_DRAWN);
                }
            }
            for (int m = CU_WARP / 2; m; m /= 2)
                sum += (uint64_t)cu_shfl_long((int64_t)sum, lane ^ m);
            if (lane == 0) r.bins[c] = sum;
        }
        __syncthreads();
        const int from = t * share < n ? t * share : n, to = from + share < n ? from + share : n;
        uint64_t own = 0, before;
        for (int i = from; i < to; i++)
            own += r.bins[i];
        const uint64_t point = draw_point(bits, sum_of(r, own, &before));
        find_in_shares(r, from, to, point, found, [&](int i) { return (uint64_t)r.bins[i]; });
        __syncthreads();
        const int id0 = (int)found[0] * chunk, most = id0 + chunk < r.V ? id0 + chunk : r.V;
        const uint64_t left = found[1];
        __syncthreads();
        const int id = id0 + t * ids < most ? id0 + t * ids : most;
        find_in_shares(r, id, id + ids < most ? id + ids : most, left, found,
                       [&](int i) { return weight_drawn(r, i); });
        __syncthreads();
        return (int)found[0];
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

    /* Each thread's best place. */
    __device__ uint64_t own_best(const row_of &r)
    {
        uint64_t best = ~(uint64_t)0;
        each_choice(r, [&](int id, float v) {
            const uint64_t c = place_of(v, id, r.id_bits);
            best = c < best ? c : best;
        });
        return best;
    }
    /* The best place of all threads; r.max is its logit. */
    __device__ uint64_t take_best(row_of & r, uint64_t own)
    {
        r.best[(int)threadIdx.x] = own;
        own = least(r, own);
        r.max = logit_at(own, r.id_bits);
        return own;
    }

    /* Bias and penalties into the row, of the block's ids, what was there into the list; or back. Barriers
 * before and after. */
    __device__ void edit_row(const row_of &r, const dev_draw &how, bool back)
    {
        const G<dev_edit> edits = how.edits;
        __syncthreads();
        for (int i = threadIdx.x; i < how.n_edits; i += THREADS) {
            const G<int32_t> e = cu_as<int32_t>(edits + i);
            const int id = e[0];
            if (id < r.first || id >= r.end) continue; /* another block may write its value */
            const int n = e[1];
            const G<float> value = cu_as<float>(e + 2);
            float x = r.x[id];
            if (back) {
                x = *value;
            } else {
                const float bias = *value;
                *value = x;
                x += bias;
                if (n) x = draw_penalize(x, n, how.repetition, how.presence, how.frequency);
            }
            r.x[id] = x;
        }
        __syncthreads();
    }

    /* The list has the best k places, and others perhaps; or it is left out. */
    __device__ void list_best(row_of & r, int k)
    {
        const int t = threadIdx.x;
        r.n_list = -1;
        if (k > THREADS) k = LISTED;
        int rank = 0;
        for (int i = 0; i < THREADS; i++)
            rank += r.best[i] < r.best[t];
        const uint64_t bound = least(r, rank == k - 1 ? (uint64_t)r.best[t] : ~(uint64_t)0);
        r.n_list = gather(r, bound);
    }

    __device__ void cut_to_best(row_of & r, int k)
    {
        list_best(r, k);
        if (r.n_list < k) r.n_list = -1;
        r.cut = find(r, EACH, (uint64_t)k - 1);
    }

    __device__ void cut_to_share(row_of & r, float p, bool listed)
    {
        const uint64_t share = draw_share(p, total_of(r, WEIGHT));
        if (!listed) {
            list_best(r, LISTED);
            if (r.n_list >= 0 && total_of(r, WEIGHT) < share) r.n_list = -1;
        }
        r.cut = find(r, WEIGHT, share - 1);
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
        const uint64_t bits = draw_bits(how.seed, how.draw);
        if (!top_k && !top_p) return draw_by_id(r, bits);
        return (int)find(r, WEIGHT_DRAWN, draw_point(bits, total_of(r, WEIGHT_DRAWN))) & mask;
    }

    /* k_logsumexp, in its order; the bins are its scratch. */
    __device__ float log_sum_exp(const row_of &r)
    {
        const int t = threadIdx.x;
        const S<float> e = cu_as<float>(r.bins), lanes = e + DIGITS * THREADS;
        float sum = 0;
        for (int i0 = 0; i0 < r.V; i0 += DIGITS * THREADS) {
            const int n = r.V - i0 < DIGITS * THREADS ? r.V - i0 : DIGITS * THREADS;
            each_logit(r.x + i0, 0, n, [&](int i, float v) { e[i] = km_exp(v - r.max); });
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

    /* What each block of the row has found, `best` of each thread and the first bad id, becomes the last's;
 * false: this one is not it. room [DEV_DRAW_WORDS]. */
    __device__ __forceinline__ bool gather_blocks(const row_of &r, G<uint64_t> room,
                                                  G<int32_t> done, uint64_t *best, uint64_t *bad)
    {
        const int t = threadIdx.x, n = (int)gridDim.y, b = (int)blockIdx.y, each = THREADS / n;
        r.word[t] = *best;
        __syncthreads();
        if (t < each) {
            uint64_t v = ~(uint64_t)0;
            for (int i = 0; i < n; i++) {
                const uint64_t o = r.word[t * n + i];
                v = o < v ? o : v;
            }
            room[b * each + t] = v;
        }
        if (t == 0) room[THREADS + b] = *bad;
        if (!cu_last(done, n, cu_as<int>(r.part))) return false;
        *best = room[t];
        for (int i = 0; i < n; i++) {
            const uint64_t o = room[THREADS + i];
            *bad = o < *bad ? o : *bad;
        }
        return true;
    }

    __global__ void __launch_bounds__(THREADS, 1) draw_kernel(
        G<float> logits, G<const dev_draw> hows, G<int32_t> out, G<uint64_t> room, G<int32_t> done,
        int V, int slice, int id_bits, float unit, float scale, float cap)
    {
        CU_DYNAMIC(uint64_t, words);
        const dev_draw how = hows[blockIdx.x];
        const int t = threadIdx.x, first = (int)blockIdx.y * slice;
        row_of r = { logits + (int64_t)how.row * V,
                     first < V ? first : V,
                     V - first > slice ? first + slice : V,
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
        each_logit(r.x, r.first, r.end, [&](int id, float v) {
            if (scale != 1) v *= scale;
            if (cap > 0) v = cap * km_tanh(v / cap);
            if (scale != 1 || cap > 0) r.x[id] = v;
            const uint64_t c = place_of(v, id, id_bits);
            best = c < best ? c : best;
            if ((__float_as_uint(v) & 0x7f800000u) == 0x7f800000u && (uint64_t)id < bad)
                bad = (uint64_t)id;
        });
        bad = least(r, bad);
        const bool edited = how.mask || how.n_edits > 0;
        if (edited && bad >= (uint64_t)V) {
            edit_row(r, how, false);
            r.mask = how.mask;
            best = own_best(r);
        }
        if (gridDim.y > 1 && !gather_blocks(r, room + (int64_t)blockIdx.x * DEV_DRAW_WORDS,
                                            done + (int)blockIdx.x, &best, &bad))
            return;
        r.first = 0;
        r.end = V;
        r.mask = how.mask;
        if (bad < (uint64_t)V) {
            if (t == 0) {
                out[ID] = -1;
                out[BAD] = (int)bad;
                cu_st<float>(cu_as<float>(out + VALUE), (float)r.x[(int)bad]);
            }
            return;
        }
        best = take_best(r, best);
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
            take_best(r, own_best(r));
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
    int blocks = a->n <= DEV_DRAW_SHARED ? DEV_DRAW_BLOCKS : 1;
    while (blocks > 1 && (blocks * a->n > 2 * d->n_sm || blocks * (int64_t)CU_DRAW > a->V))
        blocks /= 2;
    CU_LAUNCH(d, "draw", draw_kernel, dim3((unsigned)a->n, (unsigned)blocks), THREADS,
              WORDS * sizeof(uint64_t), a->logits, a->how, (int32_t *)a->out,
              (uint64_t *)a->scratch, d->done, (int)a->V, (int)lq_ceil_div(a->V, blocks), id_bits,
              draw_unit(a->V), a->scale, a->cap);
}
