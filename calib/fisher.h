/* calib/fisher.h - how much a model's answers depend on each linear's outputs.
 *
 *     G = mean over tokens of g g^T,    g = d log p(y) / d output
 *
 * For each token of some calibration windows an answer y is drawn from the model's own
 * distribution; the gradient of the sum of all answers' log-likelihoods goes back through the
 * model. The mean of g g^T over answers is the Fisher information: the curvature of the KL
 * divergence between the model and one whose output is moved.
 *
 * G is kept in blocks along the diagonal: outputs FISHER_BLOCK * b .. of block b. Draws are seeded
 * by window and position, so nothing depends on threads.
 * Source: arXiv:1503.05671, section 2. */
#ifndef LLMQ_CALIB_FISHER_H
#define LLMQ_CALIB_FISHER_H

#include "calib/grad.h"
#include "calib/samples.h"
#include "formats/source.h"

enum { FISHER_BLOCK = GRAD_BLOCK };

typedef struct {
    int64_t layers, windows;
    float *(*G)[GRAD_LINEARS]; /* [layers]: ceil(N / B) blocks [B,B]; the last one's upper left */
    lq_arena arena;
} fisher;

/* From at most `windows` of the samples, evenly spaced. The model is one that grad_covers.
 * Memory: G, one layer and the head in f32, the inputs of all layers for a chunk of 2048 tokens.
 * Errors: those of reading the source, LQ_ENOMEM, LQ_EINTR. */
lq_status fisher_run(fisher *f, src_source *src, const cal_samples *samples, int64_t windows,
                     pool *p, const lq_job *job, lq_err *err);
void fisher_free(fisher *f);

#endif
