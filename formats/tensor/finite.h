/* formats/tensor/finite.h - finds numbers that no quantizer writes: NaN and infinity, negative
 * scales where a scale is a magnitude. Fast enough to check everything that is read. */
#ifndef LLMQ_FORMATS_TENSOR_FINITE_H
#define LLMQ_FORMATS_TENSOR_FINITE_H

#include "formats/tensor/qtensor.h"

/* Of n numbers of f32, f16 or bf16 the largest magnitude as the bits of its type: NaN and infinity
 * are above all others; and those bits as a float. */
uint32_t val_largest_bits(const void *data, lq_dtype d, size_t n);
float val_of_bits(uint32_t bits, lq_dtype d);
/* Largest magnitude; infinity or NaN when one is not finite. */
float val_largest(const void *data, lq_dtype d, size_t n);

/* Has a quantized tensor, loaded, in any layout, only numbers that its scheme can have?
 *
 *   all       scales, zero points of a float type, outliers and tables are finite. They may be 0 (a
 *             group of zeros), and negative: GGUF's and AutoRound's are
 *   QT_I8*    scales that are absmax (div127) are not below 0
 *   QT_LUT4   nor is absmax, or what it is multiplied with when double
 *   QT_E2M1   no NaN among the scales; the tensor's scale is not below 0, and above it where it
 *             divides (recip)
 *   QT_E4M3   with `codes`: no NaN among the codes
 *
 * LQ_EVALUE names plane, number and what was found. QT_DENSE is LQ_OK: src_check_finite. */
lq_status val_check(const qt_tensor *t, bool codes, lq_err *err);

#endif
