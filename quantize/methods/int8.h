/* quantize/methods/int8.h - eight bits per weight, one scale per row.
 *
 *   absmax      scale = max |w| of the row, code = round(127 w / scale), w ~ scale * code / 127
 *   zero point  scale = (hi - lo) / 255, zero = round(-lo / scale) - 128, code = round(w / scale) +
 *               zero within -128..127, w ~ scale * (code - zero)
 *   outliers    as absmax, but the input columns given are kept in bf16 and are 0 among the codes:
 *               LLM.int8() keeps in 16 bit those inputs whose activations reach 6
 * Source: arXiv:2208.07339; rounding as bitsandbytes' (halves to even). */
#ifndef LLMQ_QUANTIZE_METHODS_INT8_H
#define LLMQ_QUANTIZE_METHODS_INT8_H

#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

/* W [N,K] of dtype d, finite. out->t.scheme: QT_I8 (zero: QT_ZERO_NONE with div127, or QT_ZERO_INT)
 * or QT_I8_OUTLIER with n_out columns `outliers`, rising. Errors: LQ_ENOMEM. */
lq_status int8_run(qz_out *out, const void *W, lq_dtype d, const int32_t *outliers, pool *p,
                   lq_err *err);

/* Input columns that reach the threshold in at least `least` of the tokens, and in one at all, into
 * idx [K]; share [K] is of how many they do. Returns how many columns. */
int64_t int8_find_outliers(int32_t *idx, const float *share, int64_t K, float least);

#endif
