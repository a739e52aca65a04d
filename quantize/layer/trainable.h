/* quantize/layer/trainable.h - what tuning changes: a rounded weight's scales, a vector.
 * Used by quantize/tune alone.
 *
 * Of GGUF's blocks and of 4-bit floats the scales are few bits of their own and stay: codes alone are trained.
 *
 * Codes are trained through the rounding: the gradient at the value of a code moves the
 * underlying weight, which takes the next code when it is nearer to that (the straight-through
 * estimator, arXiv:1308.3432).
 * Adam (arXiv:1412.6980) with moments 0.9 and 0.99 and bias correction; `rate` is the step's.
 *
 * All that a weight's training changes is one piece of memory, its state, which may be elsewhere between two uses
 * (quantize/tune/states.h). */
#ifndef LLMQ_QUANTIZE_LAYER_TRAINABLE_H
#define LLMQ_QUANTIZE_LAYER_TRAINABLE_H

#include "base/comm.h"
#include "formats/tensor/qtensor.h"
#include "kernels/core/pool.h"
#include "quantize/methods/out.h"

typedef struct {
    qt_tensor base;      /* qz_residual_fits it; portable; borrowed */
    const int8_t *table; /* rising: what codes stand for, times the scale; NULL: code - zero */
    int bits;            /* of a code */
    bool stay;           /* scales do: no QT_UINT */
    bool codes;          /* are trained */
    /* Of the state, which begins with `scale`; NULL: it has no such part. */
    float *scale, *zero; /* [N,ng] */
    uint8_t *code; /* [N,K] where codes are trained or scales stay; else they are the base's */
    float *scale0; /* [N,ng]: at the start */
    float *m, *v;  /* [N,ng] moments of scale / scale0 */
    /* [N,K], where codes are trained: the weight is at code + off, |off| <= 1/2 (of the way to the next value of a
     * table), and counts as code; moments of off. */
    float *off, *m_off, *v_off;
} tune_weight;

/* Of a state: all, and its beginning, which is what the weight's value is made of. */
typedef struct {
    size_t all, value;
} tune_bytes;

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

/* A weight without a state, and what one will take; of base scheme, N and K count. */
tune_bytes tune_weight_plan(tune_weight *w, const qt_tensor *base, bool codes);
/* Its state is at `state`, 8-byte aligned. */
void tune_weight_at(tune_weight *w, void *state);
/* The state of before the first step. rest [N,K]: as quantize/layer/residual.h has it; NULL where codes are not
 * trained. Errors: LQ_ENOMEM. */
lq_status tune_weight_start(tune_weight *w, const int8_t *rest, lq_err *err);
/* All three, the state in `a`; codes are trained where there is a rest. */
lq_status tune_weight_init(tune_weight *w, const qt_tensor *base, const int8_t *rest, lq_arena *a,
                           lq_err *err);
/* The packed codes of a row of the base. */
static inline const uint8_t *tune_code_row(const tune_weight *w, int64_t n)
{
    const uint8_t *codes = w->base.plane[QT_CODES].data;
    return codes + (size_t)n * qt_row_bytes(w->base.K, w->base.scheme.bits);
}
/* Where an underlying weight starts at most, in steps of the grid from its code: not at the very border, where the least
 * noise would move it. And how far step 1, 2, ... moves it at most, in rates. */
#define TUNE_EDGE 0.45f
double tune_code_reach(int step);
/* W [N,K] := the values of codes and scales. */
void tune_weight_expand(float *W, const tune_weight *w, pool *p);
/* One step of rows first .. end against theirs of dW [N,K]; first is a multiple of QZ_ROWS. */
void tune_weight_step(tune_weight *w, const float *dW, int64_t first, int64_t end,
                      const tune_step *s, pool *p);
/* What the weight's value is made of: of the rows that each rank has stepped (grad_own_rows), to all. Errors: those of
 * grad_gather_rows. */
lq_status tune_weight_share(tune_weight *w, comm *ranks, lq_err *err);
/* The result in the base's scheme; scales are rounded to their type. Where codes stay it borrows
 * all else from the base. */
lq_status tune_weight_store(qt_tensor *out, const tune_weight *w, lq_arena *a, lq_err *err);
lq_status tune_vector_init(tune_vector *v, const float *w, int64_t n, lq_arena *a, lq_err *err);
/* One step against v->grad, which is zeroed. */
void tune_vector_step(tune_vector *v, const tune_step *s);

#endif
