/* quantize/layer/layer_impl.h - a part while it is made: shared by part.c, which rounds, and part_fold.c,
 * which scales inputs before. Nobody else includes it. */
#ifndef LLMQ_QUANTIZE_LAYER_LAYER_IMPL_H
#define LLMQ_QUANTIZE_LAYER_LAYER_IMPL_H

#include "quantize/layer/layer.h"
#include "quantize/methods/gptq.h"
#include "quantize/methods/loss.h"
#include "quantize/methods/rtn.h"

/* A tensor of the result while it is made. */
typedef struct {
    const plan_entry *e;
    qt_tensor src; /* the source's, loaded while the part is made */
    qz_out out;    /* t.N = 0: not yet */
    int32_t *outliers;
    qz_report rep;
    double squares, loss, loss_rtn; /* sums over what is made; losses: of what has statistics */
    bool measured;                  /* any */
    int64_t most, starved;          /* tokens of the expert that has most; experts */
    bool rounded;                   /* those experts: to nearest, without statistics */
    int8_t *rest;                   /* kept for tuning; NULL: not */
    const float *dense;             /* not quantized, but changed by folding: all of it as f32 */
} target;

/* A matrix of it that is rounded at once: all of the tensor, or one of its stacked experts. */
typedef struct {
    target *t;
    int64_t expert;
    int64_t N, K, row0; /* rows row0 .. row0 + N of the result */
    const void *W;      /* [N,K] of d; folded */
    lq_dtype d;
    float *own;    /* W where it may be changed */
    cal_stats *st; /* NULL: none */
    bool st_all;   /* an expert's: those of all tokens, not its own */
    qz_fold fold;
    double loss;     /* that rounding found on its way, by st; NAN: to be measured */
    double loss_rtn; /* before folding; NAN: not measured */
    double alpha;
} unit;

typedef struct {
    qz_part *out;
    const qz_plan *plan;
    const arch_config *c;
    int64_t part;
    const qz_opts *o;
    const qz_eyes *eyes;
    bool fold;           /* the options ask for it, and there will be H */
    cal_layer_stats *st; /* of the last look */
    fwd_point at;        /* what is made now, in stages */
    gptq_basis basis;    /* of the last matrix of the group that took one */
    pool *p;
    const lq_job *job;
    target *targets; /* all entries of the part, in the plan's order */
    size_t n;
    int64_t n_units, n_made;  /* matrices that are rounded */
    const float *expert_cols; /* what the inputs of all experts were divided by; NULL: nothing */
    double expert_alpha;
} work;

/* What is made together: what the layer has once, or one expert. */
typedef struct {
    unit *u;
    size_t n;
    lq_arena a; /* f32 copies, factors */
} group;

static inline lq_status part_no_memory(size_t n, lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of a layer", n);
}

static inline bool part_is_uint(const target *t)
{
    return t->e->quantize && t->e->scheme.kind == QT_UINT;
}

static inline ug_spec part_spec(const work *w, const qt_scheme *s, bool search)
{
    return rtn_spec(s, !w->o->narrow, search);
}

/* u->W: a view of the source, or its transposed copy. */
lq_status part_read(unit *u, lq_arena *a, lq_err *err);

/* ---- part_fold.c ---- */
/* u->loss_rtn: what plain rounding of the weights as they are loses by u's statistics. Errors:
 * LQ_ENOMEM. */
lq_status part_measure_rtn(work *w, unit *u, lq_err *err);

/* Choose scales of inputs for the group's linears, which become f32 (u->own), and fold them;
 * vectors and routers that took factors are kept in their targets. Errors: LQ_ENOMEM, LQ_EINTR,
 * LQ_EVALUE. */
lq_status part_fold_group(work *w, group *g, int64_t expert, lq_err *err);

#endif
