/* quantize/methods/lut4.h - NF4 and FP4: four bits per weight through a table of 16 values.
 *
 * The matrix is flattened and cut into blocks that ignore rows; each block is divided by its
 * largest magnitude and every element takes the nearest table value (a tie goes to the lower one):
 *
 *     code = argmin |map[c] - w / absmax|        w ~ map[code] * absmax
 *
 * Double quantization stores the absmax of 256 blocks as bytes: offset = their mean, the rest
 * through a 256-entry "dynamic" table with one f32 scale.
 *
 * The bytes are those of bitsandbytes' CPU quantizer, down to the order of its sums.
 * Source: arXiv:2305.14314 (QLoRA), section 3; bitsandbytes 0.50 behaviour. */
#ifndef LLMQ_QUANTIZE_METHODS_LUT4_H
#define LLMQ_QUANTIZE_METHODS_LUT4_H

#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

/* W [N,K] of dtype d (f32, f16, bf16), finite. out->t.scheme: kind QT_LUT4, group, fp4, dbl; its
 * offset is set here when dbl.
 * Errors: LQ_ENOMEM. */
lq_status lut4_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);

/* The table: 16 values by code. */
const float *lut4_map(bool fp4);

#endif
