/* quantize/methods/fp4.h - grids of 4-bit floats (QT_E2M1): w ~ s * (0, .5, 1, 1.5, 2, 3, 4, 6, or below 0).
 *
 *   mxfp4  groups of 32, s = 2^e;  plain: e = floor(log2(absmax)) - 2, as OCP's MX v1.0 has it
 *   nvfp4  groups of 16, s = e4m3 / tensor scale;  plain: the e4m3 nearest to absmax / 6 * tensor scale
 *
 * With `search` every scale near the plain one is tried (half of it to its double for mxfp4, all e4m3 between half and
 * 1.25 times it), and the least sum imp (w - q)^2 counts. The tensor scale is 448 * 6 / absmax of the tensor, as
 * llm-compressor has it.
 * A grid_param's scale is s / 2: the table is twice the values above. */
#ifndef LLMQ_QUANTIZE_METHODS_FP4_H
#define LLMQ_QUANTIZE_METHODS_FP4_H

#include "quantize/methods/out.h"

grid_spec fp4_spec(const qt_scheme *s, bool search); /* without the tensor scale */
float fp4_tensor_scale(float absmax);
/* One group; imp may be NULL. */
grid_param fp4_fit(const grid_spec *s, const float *w, const float *imp, int64_t n);
/* Scales about p's, all but p itself: half and double for mxfp4, FP4_NEAR steps of e4m3 both ways for nvfp4. Returns
 * how many. */
enum { FP4_NEAR = 6, FP4_GROUP = 32 /* the longest */ };
int fp4_near(grid_param near[2 * FP4_NEAR], const grid_spec *s, grid_param p);
/* Row n: its scales, and codes [K] of the spec's table. */
void fp4_store(qz_out *out, int64_t n, const grid_param *params, const uint8_t *codes);
/* The inverse: params [K / group]. */
void fp4_load(grid_param *params, uint8_t *codes, const qt_tensor *t, int64_t n);

#endif
