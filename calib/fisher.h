/* calib/fisher.h - how much a model's answers depend on each linear's outputs.
 *
 *     G = mean over tokens of g g^T,    g = d log p(y) / d output
 *
 * For each token of some calibration windows an answer y is drawn from the model's own
 * distribution; the gradient of the sum of all answers' log-likelihoods goes back through the
 * model. The mean of g g^T over answers is the Fisher information: the curvature of the KL
 * divergence between the model and one whose output is moved.
 *
 * G is kept in blocks along the diagonal: outputs FISHER_BLOCK * b .. of block b. Beside it each token has a weight
 *
 *     c = |g|^2 over its mean, at most FISHER_WEIGHT_MOST
 *
 * in the statistics of what a site's linears read (calib/stats.h), the mean of theirs: tokens count by how much depends
 * on them, which the product of plain means does not know. Experts have one G together, of their last matrices, and no weights;
 * the MLP beside them has G alone.
 * Of their first matrices G would take as many times more memory as there are experts, from as many times fewer tokens.
 * Draws are seeded by window and position, so nothing depends on threads.
 * Source: arXiv:1503.05671, section 2. */
#ifndef LLMQ_CALIB_FISHER_H
#define LLMQ_CALIB_FISHER_H

#include "calib/backward.h"
#include "calib/samples.h"
#include "calib/stats.h"
#include "formats/source/source.h"

enum { FISHER_BLOCK = GRAD_BLOCK, FISHER_WEIGHT_MOST = 8 };

typedef struct {
    int64_t layers, windows, tokens; /* tokens of the windows that were looked at */
    /* [layers]: ceil(N / B) blocks [B,B]; the last one's upper left. NULL: the layer has no such linear */
    float *(*G)[GRAD_SUMS];
    /* [layers]: [tokens of all samples], CAL_TOKEN_UNKNOWN in windows that were not looked at; NULL: no such site, or
     * none whose linears have a G of their own */
    float *(*weight)[CAL_N_SHARED];
    lq_arena arena;
} fisher;

/* From at most `windows` of the samples, evenly spaced. The model is one that grad_covers. keep: what its layers
 * make of a chunk is kept, where grad_can_keep. on: where products are made; NULL: here. ranks: that share the work,
 * and all get the result (grad_share).
 * Memory: G, weights, one layer and the head in f32, the inputs of all layers for a chunk.
 * Errors: those of reading the source, of comm.h, of the device, LQ_ENOMEM, LQ_EINTR. */
lq_status fisher_run(fisher *f, src_source *src, const cal_samples *samples, int64_t windows,
                     bool keep, dev *on, comm *ranks, pool *p, const lq_job *job, lq_err *err);
void fisher_free(fisher *f);
/* Windows of a chunk: 2048 tokens of them, or as few as can be kept (grad_chunk). */
int64_t fisher_chunk(const arch_config *c, int64_t windows, int64_t len);
/* Does the G of such a model say how much all of its linears matter? */
static inline bool fisher_of_all(const arch_config *c) { return grad_covers(c) && !c->experts; }
size_t fisher_bytes(const arch_config *c, int64_t tokens); /* of G, and weights of so many tokens */
size_t fisher_scratch(const arch_config *c, int64_t tokens); /* ... while as many are looked at */

#endif
