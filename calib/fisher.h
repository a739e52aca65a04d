/* calib/fisher.h - how much a model's answers depend on each linear's outputs.
 *
 *     G = mean over tokens of g g^T,    g = d log p(y) / d output
 *
 * For each token of some calibration windows an answer y is drawn from the model's own
 * distribution; the gradient of the sum of all answers' log-likelihoods goes back through the
 * model. The mean of g g^T over answers is the Fisher information: the curvature of the KL
 * divergence between the model and one whose output is moved.
 *
 * G is kept in blocks along the diagonal: outputs FISHER_BLOCK * b .. of block b. Beside it
 *
 *     H = mean over tokens of c x x^T,    c = |g|^2 over its mean, at most GRAD_WEIGHT_MOST
 *
 * of the linear's inputs: tokens count by how much depends on them, which the product of plain
 * means does not know. Experts have one G together, of their last matrices, and no H; the MLP beside them has G alone.
 * Of their first matrices G would take as many times more memory as there are experts, from as many times fewer tokens.
 * Draws are seeded by window and position, so nothing depends on threads.
 * Source: arXiv:1503.05671, section 2. */
#ifndef LLMQ_CALIB_FISHER_H
#define LLMQ_CALIB_FISHER_H

#include "calib/backward.h"
#include "calib/samples.h"
#include "formats/source/source.h"

enum { FISHER_BLOCK = GRAD_BLOCK };

/* H is kept where all of it takes at most this: whatever memory there is, since the result must not
 * depend on that. */
#define FISHER_H_MOST ((size_t)512 << 20)

typedef struct {
    int64_t layers, windows;
    /* [layers]: ceil(N / B) blocks [B,B]; the last one's upper left. NULL: the layer has no such linear */
    float *(*G)[GRAD_SUMS];
    float *(*H)[GRAD_LINEARS]; /* [layers]: [K,K]; NULL: they would be too large */
    lq_arena arena;
} fisher;

/* From at most `windows` of the samples, evenly spaced. The model is one that grad_covers. keep: what its layers
 * make of a chunk is kept, where grad_can_keep. ranks: that share the work, and all get the result (grad_share).
 * Memory: G, H, one layer and the head in f32, the inputs of all layers for a chunk.
 * Errors: those of reading the source, of comm.h, LQ_ENOMEM, LQ_EINTR. */
lq_status fisher_run(fisher *f, src_source *src, const cal_samples *samples, int64_t windows,
                     bool keep, comm *ranks, pool *p, const lq_job *job, lq_err *err);
void fisher_free(fisher *f);
/* Windows of a chunk: 2048 tokens of them, or as few as can be kept (grad_chunk). */
int64_t fisher_chunk(const arch_config *c, int64_t windows, int64_t len);
/* Does the G of such a model say how much all of its linears matter? */
static inline bool fisher_of_all(const arch_config *c) { return grad_covers(c) && !c->experts; }
size_t fisher_bytes(const arch_config *c); /* of G, and H where it is kept */
/* ... while a chunk of so many windows is added to them. */
size_t fisher_scratch(const arch_config *c, int64_t windows, int64_t len);

#endif
