/* convert/requant.h - values chosen again, where a layout cannot hold those that a weight has and
 * the user allows it: rounding to nearest of what the weight stands for. */
#ifndef LLMQ_CONVERT_REQUANT_H
#define LLMQ_CONVERT_REQUANT_H

#include "formats/tensor/qtensor.h"
#include "kernels/core/pool.h"

/* q (portable) in scheme s: QT_UINT with regular groups, QT_LUT4, QT_E4M3, or QT_I8 without zero points.
 * out's planes are in `a`. Takes N * K floats of memory besides. Errors: LQ_ENOMEM; LQ_EVALUE - a
 * weight is not finite. */
lq_status conv_requantize(qt_tensor *out, const qt_tensor *q, const qt_scheme *s, pool *p,
                          lq_arena *a, lq_err *err);

#endif
