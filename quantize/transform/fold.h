/* quantize/transform/fold.h - scale folding: which inputs can be scaled, and which weights take the
 * inverse.
 *
 *     y = W x = (W diag(s)) (diag(1/s) x),  s > 0
 *
 * diag(1/s) x costs nothing where x is linear in stored weights:
 *
 *   input of            what takes 1/s                       exact because        except
 *   readers of a norm   the norm's weights and bias          norm(x) w + b        norms after the
 *                                                                                 residual's sum
 *   o                   rows of v and its bias (MLA: kv_b)   attention is         q, k, v clamped
 *                                                            linear in v
 *   down, gated MLP     rows of up and its bias              act(gate) * up is    up clamped
 *                                                            linear in up         (GPT-OSS)
 *   down, plain MLP     rows of up and its bias              max(0, x / s) =      activations other
 *                                                            max(0, x) / s        than ReLU
 *
 * Every reader of a norm takes s, so all of them must be open to it, a MoE layer's router and
 * experts among them. All heads that read one kv head share its s.
 *
 * The other operations of a layer (q and k norms, rotation, soft-caps of scores, ALiBi, sinks) do
 * not touch v's path and act on q and k after their linears. How s is chosen:
 * quantize/methods/awq.h. */
#ifndef LLMQ_QUANTIZE_TRANSFORM_FOLD_H
#define LLMQ_QUANTIZE_TRANSFORM_FOLD_H

#include "calib/sites.h"
#include "quantize/methods/awq.h"

/* Stacked experts share the dtype of their scales, which is chosen before the last of them is
 * folded: its weights grow by at most FOLD_LIMIT by columns and by rows. */
#define FOLD_LIMIT 32.0f

/* One linear of the layer, [N,K] f32. */
typedef struct {
    bool present; /* the layer has it */
    bool open;    /* its values may change; only then the rest holds */
    float *W;
    int64_t N, K, group;
    grid_spec spec;
    bool kept;        /* it is not rounded: takes factors, and has no part in choosing them */
    bool rows_fixed;  /* its rows cannot be divided (a bias that is not at hand) */
    double stand_for; /* W is a sample of that many rows; 0: it is whole */
    bool limited;     /* nothing in it is multiplied by more than FOLD_LIMIT */
    const float *cols, *rows; /* what its columns were multiplied with [K] and its rows divided by
                                 [N]; NULL: nothing */
    double alpha;             /* that chose cols */
} fold_linear;

/* A norm's weights or a linear's bias, f32; w NULL: none, or not open. */
typedef struct {
    float *w;
    bool changed;
} fold_vector;

/* A layer's tensors by role: those that it has once (expert -1), or those of one expert. Among the
 * former R_EXPERT_GATE, R_EXPERT_UP and R_EXPERT_GATE_UP represent those of all experts: W may be a
 * sample of their rows, and the caller multiplies every expert's columns by the `cols` that it has
 * afterwards. */
typedef struct {
    const arch_config *c;
    comm *ranks; /* awq_site's */
    int64_t expert;
    fold_linear lin[ARCH_N_ROLES];
    fold_vector weight[ARCH_N_ROLES], bias[ARCH_N_ROLES];
} fold_layer;

typedef struct {
    cal_site site;
    arch_role readers[AWQ_MAX_LINEARS];
    int n;
    int64_t K;
    arch_role norm; /* makes the input, or ARCH_N_ROLES: */
    arch_role from; /* rows row[k] of this linear make input k */
    int32_t *row;   /* [K], in the arena */
    bool root;      /* ... by the square of their outputs: they are divided by the root of s */
    int32_t *tie; /* [K] inputs with one row: the lowest of them (awq_site.tie); NULL: all differ */
} fold_site;

/* First row of kv head g's v in R_V, R_QKV or (MLA) R_KV_B. */
int64_t fold_v_row(const arch_config *c, arch_role from, int64_t g);

enum { FOLD_MAX_SITES = CAL_N_SITES };
/* The sites where factors can go, in the order in which they should be chosen; returns how many,
 * -1: out of memory. */
int fold_find(fold_site out[FOLD_MAX_SITES], const fold_layer *l, lq_arena *a);
/* Multiply and divide by s [K] (kept, equal for tied inputs). The layer's function stays. Pointers
 * go into the arena. Errors: LQ_ENOMEM. */
lq_status fold_apply(fold_layer *l, const fold_site *f, const float *s, double alpha, lq_arena *a,
                     pool *p, lq_err *err);
/* Choose s by H [K,K], mean_abs [K] of the site's input, and apply it where it helps; H becomes
 * that of the new input. on: awq_site's. Errors: awq_search's. */
lq_status fold_choose(fold_layer *l, const fold_site *f, float *H, const float *mean_abs, dev *on,
                      lq_arena *a, pool *p, lq_err *err);

#endif
