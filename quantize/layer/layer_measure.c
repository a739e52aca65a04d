/* quantize/layer/layer_measure.c - what is measured of a matrix before it is rounded: its largest magnitude,
 * the scale of a tensor that has one, the loss of plain rounding. See layer_impl.h. */
#include "quantize/layer/layer_impl.h"

#include "quantize/methods/fp4.h"
#include "quantize/methods/fp8.h"

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

/* Linears that engines make one of, whose tensor scale is one then: those of a number but 0. */
static int fused_with(arch_role r)
{
    static const arch_role sets[][3] = { { R_Q, R_K, R_V },
                                         { R_GATE, R_UP, R_UP },
                                         { R_EXPERT_GATE, R_EXPERT_UP, R_EXPERT_UP },
                                         { R_SHARED_GATE, R_SHARED_UP, R_SHARED_UP },
                                         { R_Q_A, R_KV_A, R_KV_A } };
    for (size_t i = 0; i < LQ_COUNT(sets); i++)
        for (int k = 0; k < 3; k++)
            if (sets[i][k] == r) return (int)i + 1;
    return 0;
}

/* The largest weight of what is fused with e, in the source. */
static float fused_absmax(const work *w, const plan_entry *e)
{
    float most = 0;
    for (size_t i = 0; i < w->how.plan->n; i++) {
        const plan_entry *o = &w->how.plan->e[i];
        if (o->known == e->known && o->mtp == e->mtp && !o->is_bias && o->layer == e->layer &&
            o->expert == e->expert && o->src->scanned && fused_with(o->role) == fused_with(e->role))
            most = fmaxf(most, o->src->largest);
    }
    return most;
}

void layer_float_scale(qz_out *out, const work *w, const plan_entry *e)
{
    const float most = fused_with(e->role) ? fused_absmax(w, e) : 0;
    memcpy(out->w[QT_SCALES], &most, sizeof most);
}

lq_status layer_tensor_scale(qz_out *out, const work *w, const unit *u, lq_err *err)
{
    enum {
        ROOM = 8
    }; /* folding and matching make weights larger by far less, which scales in e4m3 have above and below */
    float absmax, scale;
    const lq_status s = layer_absmax(w, u, &absmax, err);
    if (!s && fused_with(u->t->e->role))
        absmax = fmaxf(absmax, (u->own ? ROOM : 1) * fused_absmax(w, u->t->e));
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
    const qz_fold fold = { .inputs = u->st_all ? w->expert_cols : NULL, .shrink = u->st->shrink };
    lq_status s = qz_out_alloc(&q, &scheme, u->N, u->K, &a, err);
    if (!s && scheme.recip) s = layer_tensor_scale(&q, w, u, err);
    if (!s && scheme.recip) spec = rtn_spec_of(&q, w->o->limits, false);
    if (!s && scheme.kind == QT_E4M3)
        s = fp8_run(&q, u->W, u->d, w->p, err);
    else if (!s)
        s = rtn_run(&q, u->W, u->d, NULL, &spec, w->p, err);
    if (!s) s = qz_loss_of(&loss, &q.t, u->W, u->d, u->st->H, fold, w->p, err);
    if (!s) u->loss_rtn = loss.loss;
    lq_arena_free(&a);
    return s;
}
