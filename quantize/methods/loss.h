/* quantize/methods/loss.h - how far a rounded weight is from the original.
 *
 *     rmse = sqrt(mean (w - q)^2)         loss = sum over rows n of (w_n - q_n) H (w_n - q_n)^T
 *
 * Rows are summed in a fixed order, so the figures do not depend on the number of threads. */
#ifndef LLMQ_QUANTIZE_METHODS_LOSS_H
#define LLMQ_QUANTIZE_METHODS_LOSS_H

#include "formats/tensor/qtensor.h"
#include "kernels/core/pool.h"

typedef struct {
    double rmse;
    double loss; /* NAN without H */
} qz_loss;

/* What folding did to W [N,K] (quantize/methods/awq.h): columns were multiplied by cols [K], rows divided
 * by rows [N]; NULL where it did nothing. */
typedef struct {
    const float *cols, *rows;
    const float *inputs; /* H is of inputs divided by these [K], and W was not multiplied by them;
                            NULL: of W's own inputs */
    double shrink; /* what H's diagonal has of cal_stats_shrink, which is left out of the loss */
} qz_fold;

enum { LOSS_ROWS = 512 }; /* at once with H, as f32 differences and times H */

/* Bytes that qz_loss_of takes while it runs; h: with H. */
size_t qz_loss_bytes(int64_t N, int64_t K, bool h, int threads);

/* q: portable. W [N,K] of dtype d, its original; H [K,K] f32 or NULL. The rmse is that of the
 * weights before `fold`. Errors: LQ_ENOMEM. */
lq_status qz_loss_of(qz_loss *out, const qt_tensor *q, const void *W, lq_dtype d, const float *H,
                     qz_fold fold, pool *p, lq_err *err);

/* Largest magnitude of a dense float tensor; false when it holds NaN or Inf, whose flat index is
 * then *bad. */
bool qz_absmax(float *absmax, int64_t *bad, const void *W, lq_dtype d, int64_t n, pool *p);

#endif
