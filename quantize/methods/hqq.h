/* quantize/methods/hqq.h - half-quadratic quantization: rounding without data whose zero points follow the
 * errors.
 *
 * A group's scale is (max - min) / M, M = 2^bits - 1, at least 1/20000. Its zero point, a fraction,
 * is the mean of the codes less the scaled weights, without the largest errors:
 *
 *     c = clamp(round(w/s + z), 0, M)      q = s (c - z)
 *     e = shrink(w - q) = sign(r) max(|r| - |r|^(p-1) / beta, 0),  p = 0.7
 *     z = mean(c - (w - e)/s)              beta = 10, 10.1, ... (* 1.01), 20 rounds at most,
 *                                          until mean |w - q| grows
 *
 * That approaches the least sum |w - q|^p, which forgives outliers. A group whose sum is less with
 * rtn's own grid (quantize/methods/grid.h) keeps that one. QT_ZERO_F16 stores z as it is; with QT_ZERO_INT
 * it is rounded, and the scale then fitted to the codes by least squares. Without zero points: rtn.
 *
 * The same bytes on every machine: no function of the C library is called that may differ.
 * Source: Badri, Shaji: Half-Quadratic Quantization of large language models, 2023. Where theirs
 * stops all groups of a matrix at once, ours stops each by itself. */
#ifndef LLMQ_QUANTIZE_METHODS_HQQ_H
#define LLMQ_QUANTIZE_METHODS_HQQ_H

#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

/* W [N,K] of dtype d, finite. out->t.scheme: QT_UINT, regular groups that divide K, zeros
 * QT_ZERO_F16 or QT_ZERO_INT. Errors: LQ_ENOMEM. */
lq_status hqq_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err);

#endif
