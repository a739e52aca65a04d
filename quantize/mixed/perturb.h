/* quantize/mixed/perturb.h - how far a model's answers move when a part of it is replaced: forward passes
 * of a few tokens, with as many replaced models as there are branches, layer by layer.
 *
 * The base is the source's hidden state before the next layer. A branch leaves it at the embedding
 * or at a layer, by a forward pass with something replaced, and then runs through the same layers
 * of the source. At the end the answers of a branch are compared with the base's:
 *
 *     kl = mean over rows of sum_v p_v (log p_v - log q_v),    p: of the base, q: of the branch
 *
 * Memory: PERTURB_STATE_BYTES for the states of all branches, which bounds the number of tokens (at
 * most PERTURB_TOKENS, at least one window of 32), and the logits of PERTURB_ROWS rows, twice. Cost: a
 * branch at layer i runs L - i layers, of the tokens alone. */
#ifndef LLMQ_QUANTIZE_MIXED_PERTURB_H
#define LLMQ_QUANTIZE_MIXED_PERTURB_H

#include "calib/samples.h"
#include "runtime/model/model.h"

enum {
    PERTURB_STATE_BYTES = 512 << 20,
    PERTURB_TOKENS = 1024,
    PERTURB_WINDOW = 256,
    PERTURB_ROWS = 64
};

typedef struct perturb perturb;

/* Most that it holds: of n windows of len tokens. */
size_t perturb_bytes(const arch_config *c, int64_t n, int64_t len, int64_t branches, int threads);
/* frame: embedding, norm and head of the source; stays open as long as the perturb. branches: how
 * many there will be at most. Errors: LQ_ENOMEM, fwd_embed's. */
lq_status perturb_open(perturb **q, const model *frame, const cal_samples *samples,
                       int64_t branches, pool *p, lq_err *err);
void perturb_close(perturb *q);

/* A branch from another embedding; *id counts from 0. */
lq_status perturb_embed(perturb *q, int64_t *id, const qt_tensor *embed, lq_err *err);
/* A branch that leaves through `l` instead of the source's layer: before perturb_advance. */
lq_status perturb_layer(perturb *q, int64_t *id, int64_t layer, const model_layer *l, lq_err *err);
/* The base, and the branches that left before this layer, through the source's layer. */
lq_status perturb_advance(perturb *q, int64_t layer, const model_layer *l, const lq_job *job,
                          lq_err *err);
/* After the last layer: the KL divergence from the base's answers to a branch's (-1: the base's
 * own), by another head where one is given. Errors: LQ_ENOMEM, LQ_EINTR. */
lq_status perturb_kl(perturb *q, double *kl, int64_t id, const model_linear *head,
                     const lq_job *job, lq_err *err);

#endif
