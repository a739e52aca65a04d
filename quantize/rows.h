/* quantize/rows.h - the inner loops of rounding, on runs of weights.
 *
 * One text of plain C (rows_tmpl.h), compiled once per instruction family and chosen as the kernels
 * are (k_name: also by --kernels). No step is fused or reordered, so all of them give the same
 * bits. Weights are finite f32. */
#ifndef LLMQ_QUANTIZE_ROWS_H
#define LLMQ_QUANTIZE_ROWS_H

#include "quantize/ugrid.h"

typedef struct {
    const char *name; /* of the family, as in k_list */
    /* ug_find_range */
    ug_range (*range)(const float *w, int64_t n);
    float (*absmax)(const float *w, int64_t n);
    /* codes[i] = ug_code(w[i], p, max_code) */
    void (*codes)(uint8_t *codes, const float *w, int64_t n, ug_param p, float max_code);
    /* codes[i] = round(w[i] * 127 / absmax) in f64, absmax > 0 */
    void (*codes_i8)(int8_t *codes, const float *w, int64_t n, float absmax);
    /* as qt_pack_row with 4 bits: first code low */
    void (*pack4)(uint8_t *dst, const uint8_t *codes, int64_t n);
    /* codes[i] = how many of mid[15], rising, are below w[i] * inv */
    void (*cells)(uint8_t *codes, const float *w, int64_t n, float inv, const float *mid);
    /* y[i] -= a * x[i], rounded twice; y and x do not overlap */
    void (*subtract)(float *y, float a, const float *x, int64_t n);
    /* sum (a - b)^2: f32 sums of up to 256, added in f64 */
    double (*square_error)(const float *a, const float *b, int64_t n);
} qz_rows_ops;

const qz_rows_ops *qz_rows_get(void); /* of the kernels in use */

extern const qz_rows_ops qz_rows_ref;
#if defined(__x86_64__)
extern const qz_rows_ops qz_rows_avx2; /* for later families too: memory is the limit */
#endif

#endif
