/* quantize/methods/effort.h - what `quantize --effort` buys: a row of settings for each word.
 *
 * How much text is looked at and how long is trained. A row says it in windows and steps, never in seconds, so
 * that the result depends on the word alone; what it takes on a machine is known beforehand
 * (quantize/job/progress.h). */
#ifndef LLMQ_QUANTIZE_METHODS_EFFORT_H
#define LLMQ_QUANTIZE_METHODS_EFFORT_H

#include "base/base.h"

#define QZ_EFFORT_DEFAULT "standard"

enum { QZ_STEPS_BY_SIZE = -1, QZ_STEPS_MANY = 400 };

typedef struct qz_effort {
    const char *name;
    int64_t windows;   /* of text, where nothing else is asked for */
    int64_t curvature; /* of them at most that the curvature is taken from */
    int steps;         /* of tuning; 0: none; QZ_STEPS_BY_SIZE: as tune_default_steps says */
    int steps_still;   /* as many, or fewer, train no codes */
    int batch;         /* windows of a step */
    int own;           /* windows that the model writes, for each of text */
    bool
        from_loss; /* codes start where the rounding's loss is least (kfac_opts.rest), in the middle of their step where
                       none is known; false: at the weight */
    double rate_scale, rate_norm, rate_code; /* of tuning (quantize/tune/tune.h) */
    int code_steps; /* rate_code is for as many steps and falls with the root of more; 0: it is for any number */
    const struct qz_effort *many; /* what it is with QZ_STEPS_MANY steps or more; NULL: the same */
    const struct qz_effort
        *large; /* what it is of models that are not tune_small; NULL: the same */
} qz_effort;

/* Errors: LQ_EUSAGE. */
lq_status qz_effort_find(const qz_effort **e, const char *name, lq_err *err);
/* The one that spends most: what single settings (--tune) are part of. */
const qz_effort *qz_effort_best(void);

/* Of a model that is tune_small or not. */
const qz_effort *qz_effort_for(const qz_effort *e, bool small);
const qz_effort *qz_effort_with(const qz_effort *e, int steps);
/* The first step of codes where so many steps are taken. */
double qz_effort_rate_code(const qz_effort *e, int steps);

#endif
