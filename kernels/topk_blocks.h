/* kernels/topk_blocks.h - the blocks of keys of a paged cache that each head of an indexer scores best
 * (MiniMax M3's block-sparse attention).
 *
 *     score(t, h, b) = max over keys s of block b, s <= t, of q[t][h] . k[s]
 *
 * Positions are cut into blocks from 0 on. Of each row and head are chosen the `local` last blocks up to
 * its own and those of the greatest scores, `topk` in all; of equal scores the lower block. Scores are
 * f32, summed over dims in order, on keys as the cache holds them: they depend on the row alone. */
#ifndef LLMQ_KERNELS_TOPK_BLOCKS_H
#define LLMQ_KERNELS_TOPK_BLOCKS_H

#include "kernels/attn.h"

typedef struct {
    const float *q;   /* [T, H * D], rotated */
    const uint8_t *k; /* one head for all; laid out as attn_args's */
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
    int64_t H, D;
    int64_t block;       /* positions of a block that is chosen */
    int64_t topk, local; /* blocks; local <= topk */
    const attn_seq *seqs;
    int n_seqs;
    int32_t
        *chosen; /* [T, H, topk * block] positions of the chosen blocks up to the row's, rising */
    int32_t *n_chosen; /* [T, H] how many */
} topk_blocks_args;

/* Scratch bytes for topk_blocks_run on at most `positions`. `scratch` is a fixed arena, left as it was found. */
size_t topk_blocks_scratch_bytes(int64_t H, int64_t D, int64_t block, int64_t positions,
                                 int threads);
void topk_blocks_run(const topk_blocks_args *a, lq_arena *scratch, pool *p);

#endif
