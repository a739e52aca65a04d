/* calib/kl.h - how far a model's next-token distributions are from its teacher's, with gradient.
 *
 *     KL = sum over rows of sum_v p_v (log p_v - log q_v),   p, q = softmax(f(h W^T))
 *     dKL/dh = (q - p) f' W,   f: the head's scale and soft cap
 *
 * Rows are taken in blocks, so that only a block's logits exist at a time; sums are in a fixed
 * order.
 * Shapes: h [R,K] (after the final norm), W [V,K] f32 row-major, bias [V] or NULL. */
#ifndef LLMQ_CALIB_KL_H
#define LLMQ_CALIB_KL_H

#include "calib/gemm_dev.h"

typedef struct {
    const float *W, *bias;
    int64_t V, K;
    float scale, cap; /* logits l become cap tanh(scale l / cap); 0: as they are */
    gemm_dev *on;     /* where its products are made; NULL: here. Borrowed; errors are told there */
} kl_head;

enum { KL_ROWS = 256 };
/* Floats of scratch for kl_run. */
size_t kl_scratch(int64_t V);

/* The sum in nats; grad [R,K] (NULL: not wanted) is set to `scale` times the gradient. teacher,
 * student [R,K]; the heads may be the same. */
double kl_run(float *grad, const float *student, const kl_head *hs, const float *teacher,
              const kl_head *ht, int64_t R, float scale, float *scratch, pool *p);

/* For each row an answer y drawn from softmax(f(h W^T)), by `seed` and the row's number alone; grad
 * [R,K] := the gradient of -log p_y. */
void kl_draw(float *grad, const float *h, const kl_head *head, int64_t R, uint64_t seed,
             float *scratch, pool *p);

#endif
