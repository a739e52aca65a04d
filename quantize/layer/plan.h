/* quantize/layer/plan.h - the scheme of every tensor of a source, decided before any work.
 *
 * Layers are 0..L-1; L means the tensors outside of them. Order, also in the file: embedding,
 * layers, the rest; by name inside each. */
#ifndef LLMQ_QUANTIZE_LAYER_PLAN_H
#define LLMQ_QUANTIZE_LAYER_PLAN_H

#include "formats/source/source.h"
#include "quantize/methods/rules.h"

typedef struct {
    const src_tensor *src;
    const char *name; /* as the source's, save the head that is split from a tied embedding */
    bool known;       /* has a role in this architecture */
    bool mtp;         /* has one in the model's MTP head; then not known */
    arch_role role;
    int64_t expert; /* -1: none, or all of them */
    int64_t part;   /* of a role that has several tensors: which, experts too; else -1 */
    bool is_bias;
    int64_t layer;    /* cfg.layers: outside the layers, as is the MTP head's */
    bool quantize;    /* to `scheme` (which may be a dense one); else copied byte for byte */
    qt_scheme scheme; /* fitted to the shape; i8-outlier: n_out is not known yet */
    bool open;        /* --bpw: quantize/mixed/bpw.h decides; until then scheme is provisional */
    /* Of the result, where quantize: */
    bool turned;   /* the source's matrices are [inputs, outputs], the result's are not */
    int64_t count; /* matrices stacked in the tensor (experts), else 1 */
    int64_t N, K;  /* of one matrix; the tensor is [count * N, K] */
    int64_t shape[LQ_MAX_DIMS]; /* as many dims as the source's */
} plan_entry;

/* Is it rounded by the method, on grids? */
static inline bool qz_on_grids(const plan_entry *e)
{
    return e->quantize &&
           (e->scheme.kind == QT_UINT || e->scheme.kind == QT_BLOCKS || e->scheme.kind == QT_E2M1);
}
/* Are its codes chosen by the method? Those of 8-bit floats too, where it goes by statistics. */
static inline bool qz_by_method(const plan_entry *e, const qz_opts *o)
{
    const qt_scheme *s = &e->scheme;
    const bool floats = e->quantize && s->kind == QT_E4M3 && (!s->group || e->K % s->group == 0) &&
                        (e->count == 1 || (s->rows && e->N % s->rows == 0));
    return qz_on_grids(e) || (floats && o->method->floats && qz_needs_h(o));
}
static inline const int64_t *qz_plan_shape(const plan_entry *e)
{
    return e->quantize ? e->shape : e->src->shape;
}

typedef struct {
    const src_source *src;
    plan_entry *e;
    size_t n;
    arch_config cfg; /* of the result: the source's, untied when the head gets its own scheme;
                        shares its layers */
    lq_arena arena;
} qz_plan;

/* Errors: LQ_EUSAGE (a regex or scheme), LQ_EUNSUPPORTED (a weight that is quantized already, or
 * tiled), LQ_ENOENT (a missing tensor), LQ_ESHAPE. Weights are not looked at. */
lq_status qz_plan_make(qz_plan *p, const src_source *src, const qz_opts *o, const plan_voice *v,
                       lq_err *err);
/* Does a method that makes blocks make this one too? */
bool qz_makes(const qt_scheme *s);
/* LQ_EVALUE: NaN or infinity in a weight, by name. Quick after src_scan, else reads them all. */
lq_status qz_plan_check_finite(const qz_plan *p, lq_err *err);
void qz_plan_free(qz_plan *p);
/* expert: -1 where the tensor is none's. NULL: the layer has none. */
const plan_entry *qz_plan_find(const qz_plan *p, arch_role r, int64_t layer, int64_t expert,
                               bool bias);

/* Planned size of an entry, before anything is known of outliers and scales. */
size_t qz_planned_bytes(const plan_entry *e);
/* What an open entry may become: bits and group, or a type of GGUF's blocks; all 0: as in the source. */
typedef struct {
    int bits;
    int64_t group;
    int type;
} plan_candidate;
/* Its scheme, fitted to the entry's shape. And the choice. */
lq_status qz_plan_scheme(qt_scheme *s, const plan_entry *e, const qz_plan *p, const qz_opts *o,
                         const plan_candidate *c, lq_err *err);
void qz_plan_take(plan_entry *e, const qt_scheme *s);

#endif
