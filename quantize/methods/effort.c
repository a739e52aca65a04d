/* quantize/methods/effort.c - see effort.h. */
#include "quantize/methods/effort.h"

#include <math.h>

/* What each reaches and takes: docs/methods/auto.md. A step on one window has noisier gradients than one on four: where
 * codes start at the weight, most of them at the edge, it moves the wrong ones. */
#define QUICKLY .from_loss = true, .rate_scale = 3e-4, .rate_norm = 3e-4, .rate_code = 5e-3

enum { STILL = 16 };
static const qz_effort standard_large = { "standard",     .windows = 64,        .curvature = 32,
                                          .steps = STILL, .steps_still = STILL, .batch = 1,
                                          QUICKLY };

/* Steps on half as many windows, twice as many of them: from the loss codes then get further than from the weight, which is
 * ahead up to some 200 steps. */
static const qz_effort best_many = { "best",
                                     .windows = 128,
                                     .curvature = 128,
                                     .steps = QZ_STEPS_BY_SIZE,
                                     .batch = 2,
                                     .own = 7,
                                     .from_loss = true,
                                     .rate_scale = 3.5e-4,
                                     .rate_norm = 3.5e-4,
                                     .rate_code = 0.02,
                                     .code_steps = 256 };

static const qz_effort efforts[] = {
    { "fast", .windows = 32, .curvature = 16, .batch = 1, QUICKLY },
    { "standard", .windows = 64, .curvature = 64, .steps = 48, .steps_still = STILL, .batch = 1,
      QUICKLY, .large = &standard_large },
    { "best", .windows = 128, .curvature = 128, .steps = QZ_STEPS_BY_SIZE, .batch = 4, .own = 3,
      .rate_scale = 5e-4, .rate_norm = 5e-4, .rate_code = 5e-3, .many = &best_many },
};

const qz_effort *qz_effort_best(void) { return &efforts[LQ_COUNT(efforts) - 1]; }

const qz_effort *qz_effort_for(const qz_effort *e, bool small)
{
    return e->large && !small ? e->large : e;
}

const qz_effort *qz_effort_with(const qz_effort *e, int steps)
{
    return e->many && steps >= QZ_STEPS_MANY ? e->many : e;
}

double qz_effort_rate_code(const qz_effort *e, int steps)
{
    if (!e->code_steps || steps <= e->code_steps) return e->rate_code;
    return e->rate_code * sqrt((double)e->code_steps / steps);
}

lq_status qz_effort_find(const qz_effort **e, const char *name, lq_err *err)
{
    for (size_t i = 0; i < LQ_COUNT(efforts); i++)
        if (strcmp(efforts[i].name, name) == 0) return *e = &efforts[i], LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "--effort: expected fast, standard or best, found '%s'", name);
}
