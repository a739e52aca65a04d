/* quantize/methods/method.h - what a quantization method is: one row of quantize/methods/methods.c.
 *
 * Everything that depends on the method reads its row: the schemes and options it takes, the statistics
 * it needs, memory, recipe, `quantize --help`, the tables of the docs, the bound that `verify --against`
 * tests. To add a method, see docs/first-change.md.
 *
 * A method decides how weights become codes of a grid (QT_UINT; some: QT_BLOCKS). Schemes of other kinds (i8*,
 * nf4, fp4, floats) say all of their rounding themselves and are made alike under every method. */
#ifndef LLMQ_QUANTIZE_METHODS_METHOD_H
#define LLMQ_QUANTIZE_METHODS_METHOD_H

#include "base/comm.h"
#include "kernels/core/pool.h"
#include "kernels/device.h"
#include "quantize/methods/out.h"

typedef struct cJSON cJSON;
struct imatrix;
struct src_source;
typedef struct qz_method qz_method;
typedef struct gptq_basis gptq_basis; /* quantize/methods/gptq.h */
typedef struct qz_effort qz_effort;   /* quantize/methods/effort.h */

/* Options of `llmq quantize` that only some methods take, by their names there. */
#define QZ_OPTIONS(X)                 \
    X(BITS, "bits")                   \
    X(GROUP, "group-size")            \
    X(SYM, "sym")                     \
    X(ASYM, "asym")                   \
    X(NARROW, "narrow")               \
    X(CLIP, "clip")                   \
    X(DOUBLE, "double-quant")         \
    X(THRESHOLD, "outlier-threshold") \
    X(SHARE, "outlier-share")         \
    X(ACT_ORDER, "act-order")         \
    X(STATIC, "static-groups")        \
    X(DAMP, "damp")                   \
    X(TUNE, "tune")                   \
    X(SELF, "self-samples")           \
    X(EFFORT, "effort")               \
    X(BPW, "bpw")                     \
    X(FUSED, "bpw-fused")             \
    X(FOLD, "fold")                   \
    X(MATCH, "match")                 \
    X(ALL_EXPERTS, "all-experts")     \
    X(DEVICE, "device")               \
    X(IMATRIX, "imatrix")

#define X(id, name) QZ_AT_##id,
enum { QZ_OPTIONS(X) QZ_N_OPTIONS };
#undef X
#define X(id, name) QZ_OPT_##id = 1 << QZ_AT_##id,
enum {
    QZ_OPTIONS(X)
    /* what the methods with a uniform grid share */
    QZ_OPTS_GRID =
        QZ_OPT_BITS | QZ_OPT_GROUP | QZ_OPT_SYM | QZ_OPT_ASYM | QZ_OPT_NARROW | QZ_OPT_CLIP,
    /* ... and those of them that use H */
    QZ_OPTS_H = QZ_OPTS_GRID | QZ_OPT_TUNE | QZ_OPT_SELF | QZ_OPT_BPW | QZ_OPT_FUSED | QZ_OPT_FOLD |
                QZ_OPT_ALL_EXPERTS | QZ_OPT_DEVICE,
};
#undef X

/* Statistics of a linear's inputs (calib/stats.h) that calibration is to find. */
enum {
    QZ_NEEDS_MEANS = 1,     /* the mean square of each input */
    QZ_NEEDS_OUTLIERS = 2,  /* how often each reaches the threshold */
    QZ_NEEDS_H = 4,         /* mean x x^T */
    QZ_NEEDS_CURVATURE = 8, /* calib/fisher.h, where there is a backward pass; else as without */
};

/* What `quantize` gives to embedding and head unasked: 8.5 bits a weight. */
#define QZ_OUTER "u8-g32"

/* Zero means the default given here. */
typedef struct {
    const qz_method *method;
    int bits;      /* the method's row */
    int64_t group; /* the method's row; negative: the whole row of the matrix */
    bool sym;      /* symmetric grids; without a grid: `asym` gives the variant with zero points */
    bool asym;
    grid_limits limits;
    bool no_clip;                        /* with statistics: do not draw the ends of grids in */
    bool clip;                           /* without: draw them in (by the weights alone) */
    bool no_act_order, no_static_groups; /* quantize/methods/gptq.h */
    double damp;                         /* of H: 0.01 */
    const qz_effort *effort; /* how much text and training; NULL: as the best, by single settings */
    int tune;                /* steps of tuning, none by default (tune_default_steps) */
    bool no_fold;            /* no scales of inputs (quantize/methods/awq.h) */
    bool no_match; /* layers do not make up for what earlier ones changed (calib/forward_pass.h) */
    bool all_experts; /* calibrated: gate and up of every expert by the statistics of all tokens,
                         not of those that are sent to it */
    bool dbl;         /* block scales are quantized too */
    bool importance;  /* the method's text is optional, and there is some */
    const struct imatrix
        *imatrix; /* mean squares of inputs from a file (formats/gguf/imatrix.h); NULL: none */
    char imatrix_hash[33];        /* ... for the record */
    double outlier_threshold;     /* 6; negative: no decomposition */
    double outlier_share;         /* of the tokens, that must reach it: 0.06; negative: any token */
    const char *const *overrides; /* "REGEX=scheme", the first match counts */
    int n_overrides;
    const char *const *skips; /* regexes of weights to leave as they are; stronger than overrides */
    int n_skips;
    const char *
        mix; /* schemes of all matrices (the name of one of quantize/layer/mix.h) instead of `bits` and
                                    `group`; NULL: all alike */
    struct src_source *
        like; /* every matrix takes the scheme that it has there; what the methods do not make stays
                 as in the source. NULL: not so */
    char like_hash[33]; /* ... for the record */
    const char *scheme; /* of all linears instead of `bits` and `group`; NULL: the method says it */
    const char *lm_head,
        *embed;        /* schemes, "auto" (with bpw), "keep": as in the source, or NULL: */
    const char *outer; /* the scheme of both where they are floats; NULL: as in the source */
    const char *mtp; /* the scheme of the linears of an MTP head; "keep", NULL: as in the source */
    bool rotate;     /* the source is seen rotated (quantize/transform/rotate.h): for the record */
    uint64_t rotate_seed;
    double bpw; /* bits per weight to share out (quantize/mixed/bpw.h) instead of `bits` and
                    `group`; 0: all alike */
    dev *on;    /* the pass's products and X^T X are made there, the losses of input scales taken,
                    rows rounded with feedback; NULL: here */
    const char *bpw_for;  /* bpw: the format that is to hold the result, "gguf" or a layout of
                            convert/convert.h, whose candidates these are; NULL: ours */
    unsigned bpw_without; /* ... of these the ones (1 << index) that it does not hold */
    bool untied;          /* bpw: parts of fused linears (q, k, v; gate, up) may differ */
} qz_opts;

/* One matrix to be rounded, and what is known of its inputs. */
typedef struct {
    const qz_opts *o;
    const void *W; /* [N,K] of dtype d, finite, as folding left it; with H: f32 */
    lq_dtype d;
    int64_t N, K;
    const float *H;       /* [K,K]; NULL: none */
    const float *mean_sq; /* [K]; NULL: none */
    const float *G;    /* curvature of outputs, in blocks (quantize/methods/kfac.h); NULL: none */
    bool stacked;      /* others are in the same tensor: groups stay regular */
    int8_t *rest;      /* [N,K]: for what rounding leaves (quantize/layer/residual.h), of a method
                             that says it itself; NULL: not wanted */
    gptq_basis *basis; /* H's factor, kept for the next matrix that reads the same input */
} qz_matrix;

/* What rounding says of it. Losses: quantize/methods/loss.h, by the matrix's H. */
typedef struct {
    double loss, loss_rtn; /* of the result, of rounding to nearest; NAN: not found on the way */
    bool measure_rtn;      /* loss_rtn is to be measured */
    double damp;           /* that made H usable */
    int64_t dead;          /* inputs that are always 0 */
    int64_t nearest;       /* blocks of outputs that were rounded to nearest */
    bool fallback;         /* statistics were not usable: all was rounded to nearest */
    bool rested;           /* m->rest is set */
} qz_rounded;

/* What rounding one matrix takes. */
typedef struct {
    int64_t N, K;
    int threads;
    bool curvature;
    size_t loss; /* bytes of qz_loss_of */
} qz_room;

struct qz_method {
    const char *name;
    const char *help;                /* what it does, in a line */
    const char *schemes;             /* that it makes, for people */
    unsigned options;                /* QZ_OPT_...: that it takes */
    unsigned on;                     /* ... and that are on unless switched off, */
    const char *on_when;             /* ... within this condition, for people; NULL: always */
    bool (*is_on)(const qz_opts *o); /* ... and for the program; NULL: always */
    unsigned always;                 /* on unless switched off, within no condition */
    int bits;                        /* default of --bits */
    int64_t group;                   /* default of --group-size */
    unsigned needs;                  /* QZ_NEEDS_... at most */
    unsigned (*needs_of)(const qz_opts *o); /* under these options; NULL: all of `needs` */
    bool text_optional;                     /* without --calib there is no calibration */
    bool bounded;         /* every weight stays within half a step of its scheme, or is clamped */
    bool alone;           /* weights are rounded one by one, without feedback between them */
    bool fractional;      /* chooses fractional zero points (QT_ZERO_F16) */
    bool blocks;          /* makes GGUF's blocks (QT_BLOCKS) too */
    bool floats;          /* and codes of QT_E4M3 */
    const char *layout;   /* of convert/convert.h, that is its own; NULL: none */
    int64_t layout_group; /* ... and the group that it asks for; 0: any */
    const char *without_curvature; /* what happens then, for people */
    int plan;                      /* place among what `llmq plan` shows, from 1; 0: not shown */
    /* The scheme of linears, before it is fitted to a shape (group -1: the row). */
    lq_status (*scheme)(qt_scheme *s, const qz_opts *o, lq_err *err);
    /* Fields of the recipe that no other method has; NULL: none. */
    void (*recipe)(cJSON *r, const qz_opts *o);
    /* Bytes for rounding by H, beside H and W; where it needs H. */
    size_t (*scratch)(const qz_room *r);
    /* Several ranks round rows of m: what each needs of all of it (m->basis), made by all together before; m->W is not
     * there yet. NULL: nothing. Errors: LQ_ENOMEM, those of comm.h. */
    lq_status (*share)(const qz_out *out, const qz_matrix *m, comm *ranks, pool *p, lq_err *err);
    /* out->t.scheme: QT_UINT, or QT_BLOCKS where .blocks, fitted to K. Where the method needs H, m->H is there. *r starts
     * as "nothing found". NULL: to nearest. Errors: LQ_ENOMEM, LQ_EDEVICE. */
    lq_status (*round)(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err);
};

/* ---- of options, by their method's row ---- */
unsigned qz_needs(const qz_opts *o); /* QZ_NEEDS_... */
static inline bool qz_calibrated(const qz_opts *o) { return qz_needs(o) != 0; }
static inline bool qz_needs_h(const qz_opts *o) { return qz_needs(o) & QZ_NEEDS_H; }
/* Is one of QZ_OPT_... on where nobody asked? */
bool qz_on_by_default(const qz_opts *o, unsigned option);
bool qz_folds(const qz_opts *o);   /* do the options ask for AWQ's scales? */
bool qz_matches(const qz_opts *o); /* ... for layers that make up for earlier ones? */
/* Are a layer's linears rounded in stages, where it allows them (runtime/forward/forward.h)? Folding
 * wants the statistics of all of them first, and those of each stage only where they are matched. */
bool qz_in_stages(const qz_opts *o);
int qz_bits(const qz_opts *o);
int64_t qz_group(const qz_opts *o); /* -1: the row */
double qz_damp(const qz_opts *o);
double qz_outlier_share(const qz_opts *o);
double qz_outlier_threshold(const qz_opts *o); /* where there is a decomposition */
int qz_tune_steps(const qz_opts *o);           /* 0: no tuning */
const qz_effort *qz_effort_of(const qz_opts *o);
bool qz_is_auto(const char *scheme);    /* "auto"; NULL is not */
bool qz_is_keep(const char *scheme);    /* "keep"; NULL is not */
bool qz_rounds_outer(const qz_opts *o); /* embedding or head, where they are floats */
bool qz_bpw_whole(const qz_opts *o); /* bpw: of the whole model, not of the linear layers alone */

/* ---- for rows ---- */
/* Groups that carry an order of their inputs, as asked for? */
bool qz_keeps_order(const qz_opts *o);
/* A scheme as it is written; what is wrong with it is the user's: LQ_EUSAGE. */
lq_status qz_scheme_of(qt_scheme *s, const char *text, lq_err *err);
/* u4-g128-asym; `zeros`: how zero points are written where grids are not symmetric. */
lq_status qz_scheme_uint(qt_scheme *s, const qz_opts *o, const char *zeros, lq_err *err);
lq_status qz_scheme_grid(qt_scheme *s, const qz_opts *o, lq_err *err); /* "-asym" */

enum { QZ_SMALLEST_GROUP = 16 };
/* The largest divisor of K that is not above `group` and at least QZ_SMALLEST_GROUP (or `group` itself); else K.
 */
int64_t qz_fit_group(int64_t K, int64_t group);

/* The recipe: only what changes the weights, with defaults filled in. NULL: out of memory. */
cJSON *qz_recipe(const qz_opts *o);

#endif
