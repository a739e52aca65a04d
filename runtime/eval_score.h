/* runtime/eval_score.h - what logits say of one token, and the figures of many tokens.
 *
 *     nll = log sum exp(x) - x[target]
 *     KL(ref || model) = sum over ids v of p_ref(v) (log p_ref(v) - log p(v))
 *
 * in nats, sums and means in double. */
#ifndef LLMQ_RUNTIME_EVAL_SCORE_H
#define LLMQ_RUNTIME_EVAL_SCORE_H

#include "base/base.h"

/* One position: what logits [V] and ref's (or NULL) say of the id that comes next. */
typedef struct {
    double nll, ref_nll, kl;
    bool agree; /* equal first choices */
} eval_score;
eval_score eval_position(const float *logits, const float *ref, int64_t V, int64_t target);

/* log of the sum of exp(x), and the first of the largest. */
double eval_log_sum(const float *x, int64_t n, int64_t *argmax);

/* A mean and its standard error, sqrt(variance / (n - 1)); of one value 0. */
typedef struct {
    double mean, error;
} eval_mean;
eval_mean eval_mean_of(const double *x, int64_t n);
/* The covariance of two means. */
double eval_mean_cov(const double *x, const double *y, int64_t n);

/* Of rising x: the smallest value that a fraction p of them does not exceed; or, `between`, at place
 * p (n - 1), between two values the nearer the more of it. */
double eval_percentile(const double *x, int64_t n, double p, bool between);
void eval_sort(double *x, int64_t n);

#endif
