/* calib/dense_layer.h - parts of a source's model as f32, for the backward passes (calib/backward.h). */
#ifndef LLMQ_CALIB_DENSE_LAYER_H
#define LLMQ_CALIB_DENSE_LAYER_H

#include "calib/backward.h"
#include "calib/kl.h"
#include "formats/source/source.h"

/* W [N,K] := a portable tensor of any scheme. */
void dense_expand(float *W, const qt_tensor *t, pool *p);
/* Buffers of a layer's weights, cut from `a`. Errors: LQ_ENOMEM. */
lq_status dense_buffers(float *W[GRAD_LINEARS], const arch_config *c, lq_arena *a, lq_err *err);
/* The source's layer, its weights expanded into W, its vectors in `a`. Errors: as src_matrix. */
lq_status dense_layer(grad_layer *l, float *const W[GRAD_LINEARS], const src_source *src,
                      int64_t layer, lq_arena *a, pool *p, lq_err *err);
/* The head: `w` if it is given, else the source's; W is cut from `a`. */
lq_status dense_head(kl_head *h, const src_source *src, const qt_tensor *w, lq_arena *a, pool *p,
                     lq_err *err);

#endif
