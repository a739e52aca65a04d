/* quantize/methods/fp8.h - eight-bit floats (E4M3), a scale per row, block or matrix.
 *
 *     scale = max |w| / 448 of what shares it, code = e4m3(w / scale), w ~ scale * code
 *
 * Codes are the nearest, halves to even. Scales of a bf16 matrix are rounded to bf16 before any code is
 * chosen, since readers keep them in the model's type; others are f32. What is all zeros has scale 1.
 *
 * By gptq and auto the scales are the same and the codes theirs: a grid_spec with `floats` (row_grid.h).
 * Source: OCP 8-bit Floating Point Specification; blocks of 128x128: DeepSeek-V3, arXiv:2412.19437, 3.3. */
#ifndef LLMQ_QUANTIZE_METHODS_FP8_H
#define LLMQ_QUANTIZE_METHODS_FP8_H

#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

/* W [N,K] of dtype d, finite. out->t.scheme: QT_E4M3. Its scales' places hold the largest magnitude of what shares
 * them besides W, or 0. Errors: LQ_ENOMEM. */
lq_status fp8_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);
/* The scales alone: out->w[QT_SCALES]. */
lq_status fp8_scales(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);

#endif
