/* quantize/layer/method.h - the methods by name, what each needs, and the options of a quantization. */
#ifndef LLMQ_QUANTIZE_LAYER_METHOD_H
#define LLMQ_QUANTIZE_LAYER_METHOD_H

#include "formats/tensor/qtensor.h"
#include "kernels/device.h"

typedef enum {
    QZ_RTN,
    QZ_HQQ,
    QZ_ABSMAX,
    QZ_INT8,
    QZ_NF4,
    QZ_FP4,
    QZ_GPTQ,
    QZ_AWQ,
    QZ_AUTO,
    QZ_N_METHODS
} qz_method;

typedef struct {
    const char *name;
    bool calibrated; /* looks at activations */
    bool hessian;    /* ... and keeps H of every input */
} qz_method_row;
extern const qz_method_row qz_methods[QZ_N_METHODS];
lq_status qz_method_find(qz_method *m, const char *name, lq_err *err); /* names what there is */

/* Zero means the default given here. */
typedef struct {
    qz_method method;
    int bits;      /* rtn, hqq, gptq, awq, auto: 4 */
    int64_t group; /* rtn, gptq, awq, auto: 128; hqq, nf4, fp4: 64; negative: the whole row */
    bool sym;      /* symmetric grids; absmax: false gives the zero-point variant when `asym` */
    bool asym;     /* absmax only */
    bool narrow;   /* symmetric grids with positive scales only (UG_SYM) */
    bool no_clip;  /* gptq, awq, auto: do not draw the ends of grids in */
    bool clip;     /* rtn: draw them in (by the weights alone) */
    bool no_act_order, no_static_groups; /* gptq */
    double damp;                         /* gptq, auto: 0.01 */
    int tune;         /* gptq, awq, auto: steps of tuning, none by default (tune_default_steps) */
    bool no_fold;     /* gptq, awq, auto: no scales of inputs (quantize/methods/awq.h) */
    bool all_experts; /* calibrated: gate and up of every expert by the statistics of all tokens,
                         not of those that are sent to it */
    bool dbl;         /* nf4, fp4: double quantization */
    bool importance;  /* rtn: grids by the mean square of each input, which calibration finds */
    double outlier_threshold; /* int8: 6; negative: no decomposition */
    double outlier_share; /* int8: of the tokens, that must reach it: 0.06; negative: any token */
    const char *const *overrides; /* "REGEX=scheme", the first match counts */
    int n_overrides;
    const char *const *skips; /* regexes of weights to leave as they are; stronger than overrides */
    int n_skips;
    const char *lm_head, *embed; /* schemes, "auto" (with bpw), or NULL: as in the source */
    bool
        rotate; /* the source is seen rotated (quantize/transform/rotate.h), by rotate_seed: for the record */
    uint64_t rotate_seed;
    double
        bpw; /* gptq, awq, auto: bits per weight to share out (quantize/mixed/bpw.h) instead of `bits`
                    and `group`; 0: all alike */
    dev *on;     /* gptq, awq, auto: the pass's products and X^T X are made there, AWQ's losses
                     taken, gptq's rows rounded; NULL: here */
    bool untied; /* bpw: parts of fused linears (q, k, v; gate, up) may differ */
} qz_opts;

bool qz_folds(const qz_opts *o); /* do the options ask for AWQ's scales? */
bool qz_calibrated(const qz_opts *o);
/* Are ends drawn in and scales folded unasked? Not by gptq at 2 bits without tuning: both lower the
 * loss to nearest rounding, and raise that of the codes which make up for each other's errors. */
bool qz_shapes(qz_method m, int bits, double bpw, int tune);
/* Are a layer's linears rounded in stages, where it allows them (runtime/forward/forward.h)? Folding wants
 * the statistics of all of them first. */
bool qz_in_stages(const qz_opts *o);
double qz_outlier_share(const qz_opts *o);
double qz_outlier_threshold(const qz_opts *o); /* where there is a decomposition */
int qz_tune_steps(const qz_opts *o);           /* 0: no tuning */
bool qz_is_auto(const char *scheme);           /* "auto"; NULL is not */
bool qz_bpw_whole(const qz_opts *o); /* bpw: of the whole model, not of the linear layers alone */
/* The scheme of the linears of a layer, before it is fitted to a shape (group -1: the row). */
lq_status qz_default_scheme(qt_scheme *s, const qz_opts *o, lq_err *err);
/* The recipe: only what changes the weights, with defaults filled in. NULL: out of memory. */
typedef struct cJSON cJSON;
cJSON *qz_recipe(const qz_opts *o);

#endif
