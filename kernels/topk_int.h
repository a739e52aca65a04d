/* kernels/topk_int.h - choosing by scores, shared by topk.c and topk_blocks.c. */
#ifndef LLMQ_KERNELS_TOPK_INT_H
#define LLMQ_KERNELS_TOPK_INT_H

#include "kernels/attn_int.h"

/* What a thread scores keys with, of H heads of D. */
typedef struct {
    float *kt, *s;   /* [D][ATTN_TILE], [H][ATTN_TILE] */
    const float **q; /* [H] */
} topk_work;
/* Cut `w` out of base (NULL: only count); returns the bytes. */
size_t topk_cut(topk_work *w, uint8_t *base, int64_t H, int64_t D);
/* Row `row` of all sequences' rows: its sequence and place there. */
const attn_seq *topk_row(const attn_seq *s, int64_t row, int64_t *i);
/* A number that is greater where x is, greatest of a NaN; 0 and -0 are one. */
uint32_t topk_order(float x);
/* The k-th greatest of two lists, of which there are more; *equal: how many of those that are equal
 * to it are among the k. */
uint32_t topk_kth(const uint32_t *const x[2], const int64_t n[2], int64_t k, int64_t *equal);

#endif
