/* kernels/topk.h - the keys of a paged cache that a lightning indexer's query scores best
 * (arXiv:2512.02556, equation 1).
 *
 *     score(t, s) = sum_h weight[t][h] max(0, scale q[t][h] . k[s]),  s <= t
 *
 * A row's result is the topk positions of the greatest scores, rising: all of them where there are no
 * more than that. Of equal scores the lower position counts as the greater, as torch.topk takes them
 * on CUDA; NaN counts as greater than any number. Scores are f32, summed over dims and then heads in
 * order, on keys as the cache holds them (kernels/attn.h): they depend on the row alone. */
#ifndef LLMQ_KERNELS_TOPK_H
#define LLMQ_KERNELS_TOPK_H

#include "kernels/attn.h"

typedef struct {
    const float *q;      /* [T, H * D], rotated */
    const float *weight; /* [T, H] */
    const uint8_t *k;    /* one head for all; laid out as attn_args's */
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
    int64_t H, D;
    float scale;
    int64_t topk;
    int64_t
        every; /* 0: a position has a key; else so many positions have one together, which those from
                      the last of them on see: the score and the choice are of these keys */
    const attn_seq *seqs;
    int n_seqs;
    int32_t
        *chosen; /* [T, topk], by the rows of q: the first min(topk, keys that it sees) of each */
} topk_args;

/* Scratch bytes for topk_run. `scratch` is a fixed arena, left as it was found. */
size_t topk_scratch_bytes(int64_t H, int64_t D, int64_t topk, int threads);
void topk_run(const topk_args *a, lq_arena *scratch, pool *p);

#endif
