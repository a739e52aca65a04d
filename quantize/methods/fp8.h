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
#include "quantize/methods/grid.h"
#include "quantize/methods/out.h"

/* e4m3 of a finite x: the nearest, halves to even, at most 448. */
static inline uint8_t fp8_code(float x)
{
    const uint32_t u = lq_f32_bits(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 */
    if (a < 0x3c800000u)                                  /* 2^-6: multiples of 2^-9 */
        return (uint8_t)(sign | (uint32_t)grid_round(fabsf(x) * 512.0f));
    return (uint8_t)(sign | (((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3)));
}
/* The value of a code that is not NaN. */
static inline float fp8_value(uint8_t code)
{
    const uint32_t sign = (code & 0x80u) << 24, a = code & 0x7fu;
    const float low = (float)a * 0x1p-9f;
    return a < 8 ? (sign ? -low : low) : lq_bits_f32(sign | (a + (120u << 3)) << 20);
}

/* W [N,K] of dtype d, finite. out->t.scheme: QT_E4M3. Errors: LQ_ENOMEM. */
lq_status fp8_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);
/* The scales alone: out->w[QT_SCALES]. */
lq_status fp8_scales(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);

#endif
