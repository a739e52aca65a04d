/* quantize/job/progress.h - how far a quantization is, as a whole and in the current phase.
 *
 * The work is known beforehand: phases by layer, each with a cost from its shapes and tokens. The
 * time left is the remaining cost, each kind of phase at its measured speed, or, before it has run,
 * at its usual speed relative to the kinds that have; before any has, by how fast this machine multiplies
 * (quantize/job/probe.h), which is also what the time of the whole is foretold by. The result does not
 * depend on it. */
#ifndef LLMQ_QUANTIZE_JOB_PROGRESS_H
#define LLMQ_QUANTIZE_JOB_PROGRESS_H

#include "quantize/layer/plan.h"

typedef enum {
    PROGRESS_CURVATURE,  /* gradients of the whole model */
    PROGRESS_STATISTICS, /* a layer's inputs */
    PROGRESS_ROUNDING,   /* a layer's weights */
    PROGRESS_ADVANCING,  /* calibration text through the rounded layer */
    PROGRESS_SELF_TEXT,  /* the model writes some for tuning */
    PROGRESS_TUNING,
    PROGRESS_CHECK,
    PROGRESS_WRITING,
    PROGRESS_N
} progress_kind;

typedef struct {
    const char *phase;       /* "rounding" */
    int64_t layer, n_layers; /* from 0; layer -1: of no layer, n_layers: what is outside them */
    const char *detail;      /* "down_proj  loss 0.41 x rtn", or "" */
    double part;             /* 0..1 of this phase */
    double all;              /* 0..1 of the work; never falls */
    double secs, secs_left;
} progress_state;

extern const char *const progress_phases[PROGRESS_N];

/* Whoever shows it. */
typedef struct {
    void (*show)(void *user, const progress_state *s);
    void *user;
} progress_view;

/* What is to be done. */
typedef struct {
    const qz_plan *plan;
    bool calibrated, hessian;
    bool staged; /* layers that allow it go through one pass, in stages */
    bool matched,
        folds; /* ... beside the original's; scales of inputs are chosen, for which some of the text goes through
                            these once more */
    bool keep_rows;                                 /* qz_memory */
    int64_t len;                                    /* tokens of a window of text */
    int64_t tokens, curvature_tokens, check_tokens; /* 0: no such phase */
    int64_t tuned_tokens;                           /* of all steps of tuning */
    int steps;                                      /* that train codes */
    bool states;                                    /* what is trained is on disk */
    int64_t self_tokens;                            /* that the model writes */
    bool curvature_kept, tuning_kept;               /* layers run forward once (grad_open's keep) */
    bool curved;  /* rounding by the curvature of outputs, where a linear has it */
    double speed; /* of this machine, as probe_speed has it; 0: not known */
} progress_work;

typedef struct {
    lq_job job; /* for the modules that do the work: their reports are the phase's */
    const lq_job *outer;
    progress_view view;
    int64_t n_layers, layer;
    double *cost; /* [n_layers + 1][PROGRESS_N], usual seconds on one machine */
    double total[PROGRESS_N], done[PROGRESS_N], secs[PROGRESS_N];
    double first[PROGRESS_N];   /* of total: what a phase does before it is at work */
    double usual;               /* seconds here of a usual second, before anything has run */
    int kind;                   /* -1: none yet */
    double reached[PROGRESS_N]; /* 0..1 of a phase of the layer at work; -1: not begun */
    double began, started, all;
    char detail[64];
} qz_progress;

/* Errors: LQ_ENOMEM. Free with progress_close. view->show may be NULL. */
lq_status progress_open(qz_progress *m, const progress_work *w, const progress_view *view,
                        const lq_job *outer, lq_err *err);
void progress_close(qz_progress *m);
/* What w takes, in seconds of each kind; w->speed is known. Errors: LQ_ENOMEM. */
lq_status progress_predict(double secs[PROGRESS_N], const progress_work *w, lq_err *err);
/* What is still to be done likewise, of an opened one; the sum. */
double progress_left(double secs[PROGRESS_N], const qz_progress *m);
/* "time: about 1 min 10 s on this machine as busy as it is (tuning 40 s, curvature 12 s, ...)" */
enum { PROGRESS_LINE = 256 };
const char *progress_line(char line[PROGRESS_LINE], const double secs[PROGRESS_N]);
/* This layer was finished by an earlier run; text still goes through the layer when `advance`. */
void progress_skip(qz_progress *m, int64_t layer, bool advance);
/* What follows is of this kind; layer -1: of no single one. A layer's kinds may come in turns: each
 * goes on where it was, and all have ended when another layer is named, or none. */
void progress_phase(qz_progress *m, progress_kind kind, int64_t layer);

/* Ends the last phase; seconds of each kind (none, where m is zero: not opened). */
void progress_end(qz_progress *m, double secs[PROGRESS_N]);

#endif
