/* convert/requant.c */
#include "convert/requant.h"
#include "quantize/methods/kinds.h"
#include "quantize/methods/rtn.h"

#include <stdlib.h>

lq_status conv_requantize(qt_tensor *out, const qt_tensor *q, const qt_scheme *s, pool *p,
                          lq_arena *a, lq_err *err)
{
    const size_t n = (size_t)q->N * (size_t)q->K;
    qz_out o;
    float *w = malloc(n * sizeof *w);
    lq_status st = w ? qz_out_alloc(&o, s, q->N, q->K, a, err)
                     : lq_fail(err, LQ_ENOMEM, "no memory for %zu weights", n);
    if (!st) qt_dequant(w, q, 0, q->N);
    for (size_t i = 0; i < n && !st; i++)
        if (!isfinite(w[i])) st = lq_fail(err, LQ_EVALUE, "weight %zu is not finite", i);
    if (!st && s->kind == QT_UINT) {
        const grid_spec spec = rtn_spec(s, GRID_FREE, false);
        st = rtn_run(&o, w, LQ_F32, NULL, &spec, p, err);
    } else if (!st) {
        st = qz_round_kind(&o, w, LQ_F32, NULL, p, err);
    }
    free(w);
    if (!st) *out = o.t;
    return st;
}
