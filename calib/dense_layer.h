/* calib/dense_layer.h - parts of a source's model as f32, for the backward passes (calib/backward.h). */
#ifndef LLMQ_CALIB_DENSE_LAYER_H
#define LLMQ_CALIB_DENSE_LAYER_H

#include "calib/backward.h"
#include "calib/kl.h"
#include "formats/source/source.h"

/* W [N,K] := a portable tensor of any scheme. */
void dense_expand(float *W, const qt_tensor *t, pool *p);
/* Which roles the matrices of expert `e` have (c->experts: the shared MLP), k: GRAD_X_GATE, GRAD_X_UP or GRAD_X_DOWN.
 * ARCH_N_ROLES: up follows gate, or is between its rows. */
arch_role dense_expert_role(const arch_config *c, int64_t e, int k);
/* Buffers of a layer's weights, and of one expert at a time, cut from `a`. NULL: no layer has such. Errors: LQ_ENOMEM. */
lq_status dense_buffers(float *W[GRAD_BUFFERS], const arch_config *c, lq_arena *a, lq_err *err);
size_t dense_bytes(const arch_config *c); /* of them */
/* Expert e, its matrices in W as their roles have them, with those roles' biases; dW: gradients alike, of roles
 * that have none NULL. */
void dense_expert(grad_expert *x, const arch_config *c, int64_t e, float *const W[GRAD_BUFFERS],
                  const float *const bias[GRAD_BUFFERS], float *const dW[GRAD_BUFFERS]);
/* The source's layer for windows of `len` tokens, its weights expanded into W, its vectors in `a`; its experts are read
 * from the source into W when they are asked for. Errors: as src_matrix. */
lq_status dense_layer(grad_layer *l, float *const W[GRAD_BUFFERS], const src_source *src,
                      int64_t layer, int64_t len, lq_arena *a, pool *p, lq_err *err);
/* The vectors of its indexer; its matrices are the caller's. Errors: as src_vector. */
lq_status dense_index_vectors(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a,
                              lq_err *err);
/* Of a layer with a state the vectors that no quantizer changes. Errors: as src_vector. */
lq_status dense_mix_vectors(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a,
                            lq_err *err);
/* What a layer has of several residual streams and of Laurel. Errors: as src_matrix. */
lq_status dense_streams(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a, pool *p,
                        lq_err *err);
/* The head: `w` if it is given, else the source's; W is cut from `a`. */
lq_status dense_head(kl_head *h, const src_source *src, const qt_tensor *w, lq_arena *a, pool *p,
                     lq_err *err);

#endif
