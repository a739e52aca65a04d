/* kernels/bench/attn_naive.h - attention as the formula has it, to set next to kernels/attn.h: all scores
 * of all heads, then the softmax of each row, then the sum over values. For `llmq bench attention`
 * and tests; models run kernels/attn.h.
 *
 *     S = scale * Q K^T  [H, rows, positions]     P = softmax(S)     out = P V
 *
 * The same kernels compute each tile, so the two differ in memory and order alone. */
#ifndef LLMQ_KERNELS_BENCH_ATTN_NAIVE_H
#define LLMQ_KERNELS_BENCH_ATTN_NAIVE_H

#include "kernels/attn.h"

/* Scratch bytes: 4 * H * rows * positions of the largest sequence, and a little a KV head. */
size_t attn_naive_scratch_bytes(const attn_args *a);
/* As attn_run, to rounding. `scratch` is left as it was found. */
void attn_naive_run(const attn_args *a, lq_arena *scratch, pool *p);

#endif
