/* formats/tensor/error_bound.h - how far a stored weight may be from the original.
 *
 * A scheme can represent the values lo..hi of its grid. Rounding to nearest puts a weight w within
 * tol of clamp(w, lo, hi):
 *
 *     scheme      tol
 *     dense       half a unit of its last place; 0 when the source has the same type
 *     uniform     half a step, step = |scale|
 *     int8        half a step; outlier columns: half a unit of bf16's last place
 *     fp8, e2m1   half the gap between the format's numbers at the code, times the scale
 *     blocks      half a step, or half of the table's widest gap, times the scale
 *     nf4, fp4    half the gap between the neighbouring entries of the table, times the block's
 *                 absmax; where absmax is itself quantized, also half of the widest gap of its
 *                 table, times its own scale
 *
 * Each has room for the rounding of the arithmetic that chose the code (1/64 of a step).
 *
 * Methods that move a rounding error onto other weights (GPTQ, AWQ's clipping) keep no such bound
 * per weight; for them step = 2 tol is the measure. */
#ifndef LLMQ_FORMATS_TENSOR_ERROR_BOUND_H
#define LLMQ_FORMATS_TENSOR_ERROR_BOUND_H

#include "formats/tensor/qtensor.h"

/* Row n of a portable tensor; lo, hi, tol have K elements. `source`: the float type that the
 * weights had before. */
void bound_row(float *lo, float *hi, float *tol, const qt_tensor *t, int64_t n, lq_dtype source);

typedef struct {
    double max_excess; /* largest (|clamp(w) - q| - tol) / step; 0: every weight within its bound */
    int64_t row, col;  /* where */
    double rmse;       /* sqrt(mean (w - q)^2) */
    double worst_rms;  /* largest over rows of rms(w - q) / rms(step); 0 where nothing has a step */
} bound_report;

/* Compare rows of w [N,K] f32 with the tensor's, row by row: start from a zeroed state. */
typedef struct {
    bound_report r;
    double sum;   /* of squares */
    int64_t rows; /* compared */
} bound_state;
void bound_add_row(bound_state *s, const float *w, const float *q, const float *lo, const float *hi,
                   const float *tol, int64_t row, int64_t K);
bound_report bound_end(const bound_state *s, int64_t K);

#endif
