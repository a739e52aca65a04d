/* quantize/layer/layer_measure.c - what is measured of a matrix before it is rounded: its largest magnitude,
 * the scale of a tensor that has one, the loss of plain rounding. See layer_impl.h. */
#include "quantize/layer/layer_impl.h"

#include "quantize/methods/fp4.h"

#include <math.h>
#include <string.h>

lq_status layer_absmax(const work *w, const unit *u, float *absmax, lq_err *err)
{
    const plan_entry *e = u->t->e;
    const qt_tensor *t = &u->t->src;
    const bool all = u->N == e->count * e->N;
    int64_t bad;
    if (e->src->scanned && !(all && u->own)) {
        *absmax = e->src->largest;
        return LQ_OK;
    }
    if (qz_absmax(absmax, &bad, all ? u->W : t->plane[QT_CODES].data, all ? u->d : t->scheme.dtype,
                  e->count * e->N * e->K, w->p))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: weight %lld became NaN or Inf", e->name, (long long)bad);
}

lq_status layer_tensor_scale(qz_out *out, const work *w, const unit *u, lq_err *err)
{
    float absmax, scale;
    const lq_status s = layer_absmax(w, u, &absmax, err);
    scale = s ? 1 : fp4_tensor_scale(absmax);
    memcpy(out->w[QT_SCALES2], &scale, sizeof scale);
    return s;
}

/* What plain rounding of the unfolded weights would lose. */
lq_status layer_measure_rtn(work *w, unit *u, lq_err *err)
{
    qt_scheme scheme = u->t->e->scheme;
    grid_spec spec = layer_spec(w, &scheme, false);
    lq_arena a = { 0 };
    qz_out q;
    qz_loss loss;
    scheme.act_order = false;
    const qz_fold fold = { .inputs = u->st_all ? w->expert_cols : NULL };
    lq_status s = qz_out_alloc(&q, &scheme, u->N, u->K, &a, err);
    if (!s && scheme.recip) s = layer_tensor_scale(&q, w, u, err);
    if (!s && scheme.recip) spec = rtn_spec_of(&q, !w->o->narrow, false);
    if (!s) s = rtn_run(&q, u->W, u->d, NULL, &spec, w->p, err);
    if (!s) s = qz_loss_of(&loss, &q.t, u->W, u->d, u->st->H, fold, w->p, err);
    if (!s) u->loss_rtn = loss.loss;
    lq_arena_free(&a);
    return s;
}
