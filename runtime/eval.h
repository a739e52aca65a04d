/* runtime/eval.h - perplexity of a model over windows of ids, and its KL divergence from another, or
 * from what a file says of another (kl_base.h).
 *
 *     nll(t) = -log p(id[t] | ids before it in its window)      perplexity = exp(mean nll)
 *     dp(t) = p(id[t] | ...) - p_ref(id[t] | ...)
 *
 * and the divergence of eval_score.h. Windows run in batches; the figures are added window after
 * window, so they depend neither on the batches nor on threads. */
#ifndef LLMQ_RUNTIME_EVAL_H
#define LLMQ_RUNTIME_EVAL_H

#include "runtime/eval_score.h"
#include "runtime/forward/forward.h"
#include "runtime/kl_base.h"
#include "runtime/tokenizer/tok.h"

typedef struct {
    int64_t ctx;              /* positions of a window, >= 2 */
    int64_t first;            /* first scored position of a window, 1..ctx-1; 0: 1 */
    int64_t max_windows;      /* 0: all */
    int64_t shard, n_shards;  /* of these the share `shard` (from 0) of so many; 0: all */
    int32_t begin[TOK_BEGIN]; /* [n_begin] what each window begins with (BOS): */
    int n_begin;              /* below ctx */
    bool begin_replaces;      /* in place of the window's first ids; else before ctx - n_begin */
    const lora_adapter *lora; /* an adapter to the model, not to the reference; NULL: none */
    mm_acts acts;             /* of the model; the reference always runs with f32 */
    kv_types kv;
    bool between; /* percentiles are between two values (eval_percentile) */
    const kl_base
        *base; /* in place of a reference model, or NULL: its windows, the first of them */
    const char *save_base; /* such a file is written of this model, or NULL */
} eval_opts;

typedef struct {
    int64_t windows, per_window, tokens; /* tokens = windows * per_window scored ones */
    int64_t from, all_windows;           /* of a share: its first window, those of all shares */
    double nll, perplexity;              /* mean; exp of it */
    double perplexity_error;             /* standard errors of what they follow */
    /* with ref or base */
    double ref_perplexity;
    double perplexity_diff, perplexity_diff_error;   /* perplexity - ref_perplexity */
    double perplexity_ratio, perplexity_ratio_error; /* perplexity / ref_perplexity */
    double kl_mean, kl_error;
    double kl_median, kl_p90, kl_p95, kl_p99, kl_p999, kl_max;
    double dp_mean, dp_error, dp_rms, dp_rms_error; /* sqrt(mean dp^2) */
    double top1_agree, top1_error;                  /* equal first choices */
    /* [tokens], owned; all but the first only with ref or base */
    double *token_nll, *token_kl, *token_ref_nll;
    uint8_t *token_agree;
} eval_result;

/* The cache (kv.on left open) and the steps of an evaluation of such a model. */
void eval_size(kv_opts *kv, fwd_opts *step, const arch_config *c, const eval_opts *o);
/* Whole windows that n ids fill, of all shares. */
int64_t eval_windows(int64_t n, const eval_opts *o);
/* ref may be NULL, and is with o->base; it must have the same vocabulary. Free r with eval_free, also
 * after an error, which leaves no file.
 * Errors: LQ_EVALUE - no whole window, or fewer than shares; an id outside the vocabulary; logits or a perplexity that
 *                     are not finite; windows that are not those of o->base, or not of such files
 *         LQ_ESHAPE - ref's vocabulary differs, or o->base's
 *         lq_out_open's of o->save_base
 *         LQ_EINTR, LQ_ENOMEM */
lq_status eval_run(eval_result *r, const model *m, const model *ref, const int32_t *ids, int64_t n,
                   const eval_opts *o, pool *p, const lq_job *job, lq_err *err);
void eval_free(eval_result *r);
/* All figures of r, from windows, per_window, tokens and the scores of the tokens; between: eval_opts'. Errors:
 * LQ_EVALUE (no finite ones), LQ_ENOMEM. */
lq_status eval_summarize(eval_result *r, bool between, lq_err *err);

#endif
