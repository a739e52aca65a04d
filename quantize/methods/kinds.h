/* quantize/methods/kinds.h - one matrix rounded by its weights alone, whatever its scheme. */
#ifndef LLMQ_QUANTIZE_METHODS_KINDS_H
#define LLMQ_QUANTIZE_METHODS_KINDS_H

#include "quantize/methods/method.h"

/* Of a scheme that says all of its rounding itself: every kind but QT_UINT and QT_BLOCKS. W [N,K] of dtype d, finite;
 * outliers: of QT_I8_OUTLIER (quantize/methods/int8.h). LQ_ENOMEM. */
lq_status qz_round_kind(qz_out *out, const void *W, lq_dtype d, const int32_t *outliers, pool *p,
                        lq_err *err);
/* Of any scheme, those two by the method, which needs no statistics. LQ_ENOMEM. */
lq_status qz_round_weights(qz_out *out, const qz_opts *o, const void *W, lq_dtype d, pool *p,
                           lq_err *err);

#endif
