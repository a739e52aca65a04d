/* quantize/methods/rtn.h - rounding to nearest: every weight takes the nearest value of its group's grid.
 *
 * Needs no data; with importance (the mean square of each input) and spec.search the grids are
 * chosen for the layer's output rather than for the weights.
 * Shapes: W [N,K] row-major of f32, f16 or bf16, finite; imp [K] or NULL. */
#ifndef LLMQ_QUANTIZE_METHODS_RTN_H
#define LLMQ_QUANTIZE_METHODS_RTN_H

#include "kernels/core/pool.h"
#include "quantize/methods/grid.h"
#include "quantize/methods/method.h"
#include "quantize/methods/out.h"

/* The grid that a QT_UINT or QT_BLOCKS scheme stores; `full`: symmetric grids may take GRID_SYM_FULL. */
grid_spec rtn_spec(const qt_scheme *s, grid_limits limits, bool search);
/* ... of a tensor, with what it stores once: NVFP4's scale of the whole. */
grid_spec rtn_spec_of(const qz_out *out, grid_limits limits, bool search);

/* out->t.scheme: QT_UINT, regular groups that divide K, or QT_BLOCKS. Errors: LQ_ENOMEM. */
lq_status rtn_run(qz_out *out, const void *W, lq_dtype d, const float *imp, const grid_spec *spec,
                  pool *p, lq_err *err);

/* qz_method.round of this method, and of every other where it has nothing to go by: with m->mean_sq
 * grids are drawn in for the output, unless no_clip; without, if `clip`, for the weights. */
lq_status rtn_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err);

#endif
