/* quantize/layer/layer_impl.h - a layer while it is quantized: shared by layer.c, which goes
 * through its matrices, layer_fold.c, which scales inputs first, layer_round.c, which rounds
 * one, and layer_share.c, which shares them out over ranks. */
#ifndef LLMQ_QUANTIZE_LAYER_LAYER_IMPL_H
#define LLMQ_QUANTIZE_LAYER_LAYER_IMPL_H

#include "quantize/layer/layer.h"
#include "quantize/layer/layer_share.h"
#include "quantize/methods/gptq.h"
#include "quantize/methods/loss.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

/* A tensor of the result while it is made. */
typedef struct {
    const plan_entry *e;
    qt_tensor src; /* the source's, loaded while the layer is made */
    qz_out out;    /* t.N = 0: not yet */
    int32_t *outliers;
    qz_report rep;
    double squares, loss, loss_rtn; /* sums over what is made; losses: of what has statistics */
    bool measured;                  /* any */
    int64_t most, few;              /* tokens of the expert that has most; experts with too few */
    bool rounded;                   /* the latter: to nearest, without statistics */
    int8_t *residual;               /* kept for tuning; NULL: not */
    float *dense;                   /* not quantized, but changed by folding: all of it as f32 */
} target;

/* What rounding adds to them. */
typedef struct {
    double squares, loss, loss_rtn;
    int32_t measured;
} unit_sums;

/* A matrix of it that is rounded at once: all of the tensor, or one of its stacked experts. */
typedef struct {
    target *t;
    int64_t expert;
    int64_t N, K, row0; /* rows row0 .. row0 + N of the result */
    int64_t skipped;    /* rows of the matrix before these, where they are a piece of it */
    const void *W;      /* [N,K] of d; folded */
    lq_dtype d;
    float *own;    /* W where it may be changed */
    cal_stats *st; /* NULL: none */
    bool st_all;   /* an expert's: those of all tokens, not its own */
    qz_fold fold;
    double loss;     /* that rounding found on its way, by st; NAN: to be measured */
    double loss_rtn; /* before folding; NAN: not measured */
    double alpha;
    gptq_basis *basis; /* made by all ranks together; NULL: the work's */
    bool rested;       /* its method said what it left */
    unit_sums sums;    /* of the result */
} unit;

/* Rows of a matrix that one rank rounds. */
typedef struct {
    size_t unit; /* of the group */
    int64_t first, rows;
    int owner;
} piece;

/* What is made together: what the layer has once, or one expert. */
typedef struct {
    unit *u;
    size_t n;
    lq_arena a; /* f32 copies, factors */
} group;

typedef struct qz_layer_work {
    qz_rounding how;
    const arch_config *c; /* the plan's */
    const qz_opts *o;     /* how's */
    pool *p;
    const lq_job *job;
    int64_t layer;
    qz_layer out;
    cal_layer_stats *st; /* of what is rounded now; NULL: none */
    bool fold;           /* the options ask for it, and there is H */
    bool staged;         /* only what reads at `at` is rounded now */
    bool changing; /* weights of what reads at any point but FWD_AT_END are, none is rounded */
    fwd_point at;
    group
        kept; /* in stages where weights change first: all linears of the layer's points, as they are then */
    gptq_basis basis; /* of the last matrix of the group that took one */
    target *targets;  /* all entries of the layer, in the plan's order */
    size_t n;
    int64_t n_units, n_made; /* matrices that are rounded */
    unit_sums *expert_sums;  /* several ranks: of our experts' units, in their order */
    size_t n_sums;
    const float *expert_cols; /* what the inputs of all experts were divided by; NULL: nothing */
    double expert_alpha;
} work;

static inline lq_status layer_no_memory(size_t n, lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of a layer", n);
}

/* Are its matrices rounded one by one? Where blocks may run from one into the next they are not. */
static inline bool layer_by_matrix(const target *t)
{
    const qt_kind k = t->e->scheme.kind;
    const int64_t rows = t->e->scheme.rows;
    return t->e->count > 1 && ((k == QT_E4M3 && rows && t->e->N % rows == 0) || k == QT_UINT ||
                               k == QT_BLOCKS || k == QT_E2M1 || k == QT_I8 || k == QT_I8_OUTLIER);
}

static inline grid_spec layer_spec(const work *w, const qt_scheme *s, bool search)
{
    return rtn_spec(s, w->o->limits, search);
}

/* ---- layer_measure.c ---- */
/* Largest magnitude of all of a tensor: of its one unit as folded, else of the source. LQ_EVALUE. */
lq_status layer_absmax(const work *w, const unit *u, float *absmax, lq_err *err);
/* NVFP4's scale of the whole tensor, of u as it is now. LQ_EVALUE. */
lq_status layer_tensor_scale(qz_out *out, const work *w, const unit *u, lq_err *err);
/* Of 8-bit floats with one scale a tensor: q, k and v have one, and gate and up, as engines make one of them. Writes the
 * largest weight of these where fp8.h looks for it. */
void layer_float_scale(qz_out *out, const work *w, const plan_entry *e);
/* u->loss_rtn: what plain rounding of the weights as they are loses by u's statistics. Errors:
 * LQ_ENOMEM. */
lq_status layer_measure_rtn(work *w, unit *u, lq_err *err);

/* ---- layer_match.c ---- */
/* u->own: an f32 copy of u->W, which it becomes; once. Errors: LQ_ENOMEM. */
lq_status layer_own(unit *u, lq_arena *a, lq_err *err);
/* Is u matched where statistics have M? */
static inline bool layer_matches(const unit *u) { return u->own && qz_on_grids(u->t->e); }
/* Linears of a point, of one input, take the weights that its statistics' M asks for. Errors: LQ_ENOMEM, those of
 * cholesky_upper but LQ_ECHECK. */
lq_status layer_match_group(work *w, group *g, lq_err *err);

/* ---- layer_fold.c ---- */
/* u->W: a view of the source, or its transposed copy. */
lq_status layer_read(unit *u, lq_arena *a, lq_err *err);
/* Choose scales of inputs for the group's linears, which become f32 (u->own), and fold them;
 * vectors and routers that took factors are kept in their targets. Errors: LQ_ENOMEM, LQ_EINTR,
 * LQ_EVALUE. */
lq_status layer_fold_group(work *w, group *g, int64_t expert, lq_err *err);

/* ---- layer_round.c ---- */
/* A matrix of t, not read yet, and the statistics of its inputs. */
unit layer_unit(const work *w, target *t, int64_t expert);
/* u->W has been read; is none of its tensor rounded yet, its scheme is settled, by all of u, and it is cut. Errors:
 * those of qz_layer_round. */
lq_status layer_start_unit(work *w, const unit *u, lq_err *err);
/* That was done: its rows are rounded, and u->sums set. The same errors. */
lq_status layer_round_unit(work *w, unit *u, lq_err *err);
/* u was started: b is made by all ranks together. The same errors. */
lq_status layer_share_basis(work *w, const unit *u, gptq_basis *b, lq_err *err);
void layer_add_sums(target *t, const unit_sums *sums);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void layer_note(qz_report *r, const char *fmt, ...);

/* ---- layer_share.c ---- */
int layer_expert_owner(const work *w, int64_t expert);
/* About how long rounding so many rows takes (layer_dealt). */
double layer_cost(const unit *u, int64_t rows);
/* Who rounds what of n matrices that were started; p [layer_most_pieces]. Returns how many pieces. One rank: whole
 * matrices. */
size_t layer_cut(piece *p, const work *w, const unit *u, size_t n);
size_t layer_most_pieces(const work *w, size_t n_units);
unit layer_part(const unit *whole, const piece *p);
/* Factors of large H, by all ranks together before rows are rounded; a rank keeps those that its pieces go by. b [g->n]
 * are zero, and to be freed. Errors: LQ_ENOMEM, those of comm.h. */
lq_status layer_share_factors(work *w, group *g, const piece *p, size_t n, gptq_basis *b,
                              lq_err *err);
/* Rows first .. first + rows of u, which `owner` has rounded, to all; *sums: its, then everybody's. Errors: those of
 * comm.h, LQ_ENOMEM. */
lq_status layer_share_piece(work *w, const unit *u, int64_t first, int64_t rows, int owner,
                            unit_sums *sums, lq_err *err);
lq_status layer_share_beside(work *w, int64_t expert, lq_err *err);

#endif
