/* quantize/layer/trainable.h - what tuning changes: a rounded weight's scales, a vector.
 * Used by quantize/tune/tune.c alone.
 *
 * Of GGUF's blocks and of 4-bit floats the scales are few bits of their own and stay: codes alone are trained.
 *
 * Codes are trained through the rounding: the gradient at the value of a code moves the
 * underlying weight, which takes the next code when it is nearer to that (the straight-through
 * estimator, arXiv:1308.3432).
 * Adam (arXiv:1412.6980) with moments 0.9 and 0.99 and bias correction; `rate` is the step's. */
#ifndef LLMQ_QUANTIZE_LAYER_TRAINABLE_H
#define LLMQ_QUANTIZE_LAYER_TRAINABLE_H

#include "formats/tensor/qtensor.h"
#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

enum {
    QZ_RESIDUAL_UNIT = 64
}; /* of what rounding left: int8 in such parts of a step of the grid */

typedef struct {
    qt_tensor base;      /* qz_residual_fits it; portable; borrowed */
    const int8_t *table; /* rising: what codes stand for, times the scale; NULL: code - zero */
    int bits;            /* of a code */
    bool stay;           /* scales do: no QT_UINT */
    uint8_t
        *code; /* [N,K] where codes are trained or scales stay, else NULL: they are the base's */
    float *scale, *scale0; /* [N,ng]: now; at the start */
    float *zero;           /* [N,ng] */
    float *m, *v;          /* [N,ng] moments of scale / scale0 */
    /* [N,K], where codes are trained, else NULL: the weight is at code + off, |off| <= 1/2 (of the way to the next
     * value of a table), and counts as code; moments of off. */
    float *off, *m_off, *v_off;
} tune_weight;

typedef struct {
    float *w, *m, *v, *grad;
    int64_t n;
} tune_vector;

typedef struct {
    float scale; /* rate relative to the scale at 4 bits, half of it per further bit */
    float vector;
    float code; /* in steps of the grid */
    int step;   /* 1, 2, ... */
} tune_step;

/* rest [N,K]: as quantize/layer/residual.h has it; NULL: codes stay. */
lq_status tune_weight_init(tune_weight *w, const qt_tensor *base, const int8_t *rest, lq_arena *a,
                           lq_err *err);
/* The packed codes of a row of the base. */
static inline const uint8_t *tune_code_row(const tune_weight *w, int64_t n)
{
    const uint8_t *codes = w->base.plane[QT_CODES].data;
    return codes + (size_t)n * qt_row_bytes(w->base.K, w->base.scheme.bits);
}
/* From a code's value to that of its neighbour, on the side of off. */
static inline float tune_gap(const int8_t *table, int bits, uint8_t code, float off)
{
    const int top = (1 << bits) - 1, to = off < 0 ? code - 1 : code + 1;
    const int a = to < 0 || to > top ? code - (to - code) : to;
    return fabsf((float)(table[a] - table[code]));
}
/* W [N,K] := the values of codes and scales. */
void tune_weight_expand(float *W, const tune_weight *w, pool *p);
/* One step against dW [N,K]. */
void tune_weight_step(tune_weight *w, const float *dW, const tune_step *s, pool *p);
/* The result in the base's scheme; scales are rounded to their type. Where codes stay it borrows
 * all else from the base. */
lq_status tune_weight_store(qt_tensor *out, const tune_weight *w, lq_arena *a, lq_err *err);
lq_status tune_vector_init(tune_vector *v, const float *w, int64_t n, lq_arena *a, lq_err *err);
/* One step against v->grad, which is zeroed. */
void tune_vector_step(tune_vector *v, const tune_step *s);

#endif
