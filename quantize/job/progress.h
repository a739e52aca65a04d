/* quantize/job/progress.h - how far a quantization is, in all and in the phase at work.
 *
 * The work is known beforehand: phases by layer, each with a cost from its shapes and tokens. Time
 * left is the cost that is left, each kind of phase at the speed that it has shown, or, before it
 * ran, at its usual speed relative to the kinds that have. Nothing of the result depends on it. */
#ifndef LLMQ_QUANTIZE_JOB_PROGRESS_H
#define LLMQ_QUANTIZE_JOB_PROGRESS_H

#include "quantize/layer/plan.h"

typedef enum {
    METER_CURVATURE,  /* gradients of the whole model */
    METER_STATISTICS, /* a layer's inputs */
    METER_ROUNDING,   /* a layer's weights */
    METER_ADVANCING,  /* calibration text through the rounded layer */
    METER_OWN_TEXT,   /* the model writes some for tuning */
    METER_TUNING,
    METER_CHECK,
    METER_WRITING,
    METER_N
} meter_kind;

typedef struct {
    const char *phase;       /* "rounding" */
    int64_t layer, n_layers; /* from 0; layer -1: of no layer, n_layers: what is outside them */
    const char *detail;      /* "down_proj  loss 0.41 x rtn", or "" */
    double part;             /* 0..1 of this phase */
    double all;              /* 0..1 of the work; never falls */
    double secs, secs_left;
} meter_state;

extern const char *const meter_phases[METER_N];

/* Whoever shows it. */
typedef struct {
    void (*show)(void *user, const meter_state *s);
    void *user;
} meter_view;

/* What is to be done. */
typedef struct {
    const qz_plan *plan;
    bool calibrated, hessian;
    bool staged; /* layers that allow it go through one pass, in stages */
    int tune_steps;
    int64_t tokens, curvature_tokens, check_tokens; /* 0: no such phase */
    int64_t tuned_tokens;                           /* of one step */
    int64_t own_tokens;                             /* that the model writes */
} meter_work;

typedef struct {
    lq_job job; /* for the modules that do the work: their reports are the phase's */
    const lq_job *outer;
    meter_view view;
    int64_t n_layers, layer;
    double *cost; /* [n_layers + 1][METER_N], usual seconds on one machine */
    double total[METER_N], done[METER_N], secs[METER_N];
    int kind;                /* -1: none yet */
    double reached[METER_N]; /* 0..1 of a phase of the layer at work; -1: not begun */
    double began, started, all;
    char detail[64];
} qz_meter;

/* Errors: LQ_ENOMEM. Free with meter_close. view->show may be NULL. */
lq_status meter_open(qz_meter *m, const meter_work *w, const meter_view *view, const lq_job *outer,
                     lq_err *err);
void meter_close(qz_meter *m);
/* This part was finished by an earlier run; text still goes through the layer when `advance`. */
void meter_skip(qz_meter *m, int64_t part, bool advance);
/* What follows is of this kind; layer -1: of no single one. A layer's kinds may come in turns: each
 * goes on where it was, and all have ended when another layer is named, or none. */
void meter_phase(qz_meter *m, meter_kind kind, int64_t layer);

/* Ends the last phase; seconds of each kind (none, where m is zero: not opened). */
void meter_end(qz_meter *m, double secs[METER_N]);

#endif
