/* quantize/methods/out.h - where a method writes: a tensor in the portable layout with writable planes. */
#ifndef LLMQ_QUANTIZE_METHODS_OUT_H
#define LLMQ_QUANTIZE_METHODS_OUT_H

#include "formats/tensor/qtensor.h"
#include "quantize/methods/rows.h"

enum { QZ_ROWS = 16 }; /* rows of a tile of work; fixed, so that results do not depend on threads */

typedef struct {
    qt_tensor t;
    void *w[QT_N_PLANES]; /* the same planes, writable */
} qz_out;

static inline lq_status qz_out_alloc(qz_out *o, const qt_scheme *s, int64_t N, int64_t K,
                                     lq_arena *a, lq_err *err)
{
    memset(o, 0, sizeof *o);
    return qt_alloc(&o->t, o->w, s, N, K, a, err);
}

/* Rows n0..n1 as an output of their own; false where qt_rows says so. */
static inline bool qz_out_rows(qz_out *rows, const qz_out *o, int64_t n0, int64_t n1)
{
    if (!qt_rows(&rows->t, &o->t, n0, n1)) return false;
    for (int p = 0; p < QT_N_PLANES; p++) {
        const uint8_t *from = o->t.plane[p].data, *to = rows->t.plane[p].data;
        rows->w[p] = to ? (uint8_t *)o->w[p] + (to - from) : NULL;
    }
    return true;
}

/* Rows r..r+n of a dense [*,K] matrix of dtype d as f32; W itself when it is f32 already. */
static inline const float *qz_rows(float *scratch, const void *W, lq_dtype d, int64_t K, int64_t r,
                                   int64_t n)
{
    size_t off = (size_t)r * (size_t)K, len = (size_t)n * (size_t)K;
    if (d == LQ_F32 && (uintptr_t)W % sizeof(float) == 0) return (const float *)W + off;
    qz_rows_get()->to_f32(scratch, (const uint8_t *)W + off * lq_dtype_bytes(d), d, len);
    return scratch;
}

#endif
