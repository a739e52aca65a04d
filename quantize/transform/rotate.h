/* quantize/transform/rotate.h - the same model in rotated coordinates, where activations have no
 * outliers.
 *
 *     R1  x R instead of x on the whole residual stream: embedding and positions R, o and down R^T
 *         from the left, and what reads the stream R from the right, after the norm's weights
 *         moved into it. RMS(x R) = RMS(x); with LayerNorm R also leaves the mean alone.
 *     R2  v R2 instead of v in each head, undone in o
 *
 * The result is an ordinary model of the same architecture with the same outputs: norms whose
 * weights are 1 (their biases b become (b / w) R), a head of its own where it was tied. Nothing is
 * left to do at run time. R1, R2: quantize/transform/hadamard.h, of the seed.
 *
 * Refused by name, since they do not commute with R: norms after the residual's sum, norms with
 * weights on a branch's output, a norm after the embedding, computed (sinusoidal) positions. R2 is
 * left out where q, k and v are clamped.
 *
 * Types: matrices of layers become f32 (they are rounded next); embedding, positions and head f16
 * where they had 16 bits: a rotated row has no outliers, so 11 bits of f16 beat the 8 of bf16.
 * Memory: f32 copies of what is in use; embedding and head stay while the model is looked at.
 *
 * Source: arXiv:2404.00456 (QuaRot), arXiv:2405.16406 (SpinQuant). Ones kept for LayerNorm: ours.
 */
#ifndef LLMQ_QUANTIZE_TRANSFORM_ROTATE_H
#define LLMQ_QUANTIZE_TRANSFORM_ROTATE_H

#include "kernels/core/pool.h"
#include "quantize/layer/plan.h" /* plan_voice */

typedef struct rot_model rot_model;
typedef struct {
    uint64_t seed;
    bool wide; /* embedding, positions and head as f32, whatever they were: they are rounded next */
} rot_opts;

/* `src` (which stays open, as does the pool) seen rotated. Errors: LQ_EUNSUPPORTED (architecture,
 * quantized or tiled weights), LQ_EVALUE (NaN or Inf in a weight, by name; a norm's weight of 0
 * under a bias), LQ_ENOENT, LQ_ESHAPE (tensors), LQ_ENOMEM. */
lq_status rot_open(rot_model **r, const src_source *src, const rot_opts *o, pool *p,
                   const plan_voice *v, lq_err *err);
src_source *rot_source(const rot_model *r); /* owned by r */
void rot_close(rot_model *r);

#endif
