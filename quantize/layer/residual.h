/* quantize/layer/residual.h - the rounding residual: how far each weight was from the value of its
 * code.
 *
 *     rest = w / scale + zero - code,   in steps of the grid; of a table in parts of the way to the next value
 *
 * Tuning (quantize/tune/tune.h) trains codes from there: one in the middle between two codes moves to the
 * other long before one that equals its code. Kept as int8 in 1/64 of a step (ROW_REST_UNIT,
 * quantize/methods/row_grid.h), at most 127/64 away. Rounding by curvature says it itself, with what is best beside
 * the codes that it chose in place of w (quantize/methods/kfac.h). */
#ifndef LLMQ_QUANTIZE_LAYER_RESIDUAL_H
#define LLMQ_QUANTIZE_LAYER_RESIDUAL_H

#include "formats/tensor/qtensor.h"
#include "kernels/core/pool.h"

/* Regular QT_UINT with whole zero points; GGUF's blocks that quantizers make, but points of a lattice; QT_E2M1. */
bool qz_residual_fits(const qt_scheme *s);
/* rest [N,K] of q [N,K], whose scheme fits, in the portable layout, made from W [N,K] of
 * dtype d. Errors: LQ_ENOMEM. */
lq_status qz_residual_of(int8_t *rest, const qt_tensor *q, const void *W, lq_dtype d, pool *p,
                         lq_err *err);

#endif
