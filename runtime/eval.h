/* runtime/eval.h - perplexity of a model over windows of ids, and its KL divergence from another.
 *
 *     nll(t) = -log p(id[t] | ids before it in its window)      perplexity = exp(mean nll)
 *     KL(ref || model)(t) = sum over ids v of p_ref(v) (log p_ref(v) - log p(v))
 *
 * in nats, log-sums and means in double. Windows run in batches; the figures are added window after
 * window, so they depend neither on the batches nor on threads. */
#ifndef LLMQ_RUNTIME_EVAL_H
#define LLMQ_RUNTIME_EVAL_H

#include "runtime/forward/forward.h"

typedef struct {
    int64_t ctx;         /* positions of a window, >= 2 */
    int64_t first;       /* first scored position of a window, 1..ctx-1; 0: 1 */
    int64_t max_windows; /* 0: all */
    bool has_bos;        /* put `bos` first: */
    int32_t bos;
    bool bos_replaces; /* in place of the window's first id; else before ctx - 1 ids */
    mm_acts acts;      /* of the model; the reference always runs with f32 */
    kv_dtype kv;
} eval_opts;

typedef struct {
    int64_t windows, per_window, tokens; /* tokens = windows * per_window scored ones */
    double nll, perplexity;              /* mean; exp of it */
    double kl_mean, kl_p99, top1_agree;  /* with ref: mean, 99th percentile, equal first choices */
    double ref_perplexity;
    double *token_nll, *token_kl; /* [tokens], owned; token_kl only with ref */
} eval_result;

/* One position: what logits [V] and ref's (or NULL) say of the id that comes next. */
typedef struct {
    double nll, ref_nll, kl;
    bool agree; /* equal first choices */
} eval_score;
eval_score eval_position(const float *logits, const float *ref, int64_t V, int64_t target);

/* The cache (kv.on left open) and the steps of an evaluation of such a model. */
void eval_size(kv_opts *kv, fwd_opts *step, const arch_config *c, const eval_opts *o);
/* Whole windows that n ids fill. */
int64_t eval_windows(int64_t n, const eval_opts *o);
/* ref may be NULL; it must have the same vocabulary. Free r with eval_free, also after an error.
 * Errors: LQ_EVALUE - no whole window; an id outside the vocabulary; logits or a perplexity that
 *                     are not finite
 *         LQ_ESHAPE - ref's vocabulary differs
 *         LQ_EINTR, LQ_ENOMEM */
lq_status eval_run(eval_result *r, const model *m, const model *ref, const int32_t *ids, int64_t n,
                   const eval_opts *o, pool *p, const lq_job *job, lq_err *err);
void eval_free(eval_result *r);

#endif
