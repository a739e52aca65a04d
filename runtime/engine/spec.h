/* runtime/engine/spec.h - speculative decoding: guesses of the next ids, and how many pay off.
 *
 * A guess is checked by the model itself: the rows of the guessed ids run in the same step as the
 * row before them, an id is drawn from each in turn, exactly as it would have been in a step of its
 * own (same logits, same random number), and the first that differs from its guess is the last that
 * counts. So answers are the same bytes with and without speculation, drawn ones too. For a guess
 * that is one id and no distribution this is the rejection sampling of arXiv:2211.17192: id x is
 * accepted with the probability p(x) that the model gives it, and after a rejection the draw is
 * distributed as p without x.
 *
 * The guesses are n-grams: what followed the last ids when they, or most of them, came before
 * (prompt look-up decoding). They cost nothing to make and hit where an answer repeats its prompt
 * or itself. Or a small model makes them (runtime/engine/draft.h), which takes time: spec_gain keeps both
 * ways' seconds for an id and guesses only where that is the faster one. */
#ifndef LLMQ_RUNTIME_ENGINE_SPEC_H
#define LLMQ_RUNTIME_ENGINE_SPEC_H

#include "base/base.h"
#include "runtime/limits.h"

enum {
    SPEC_DEFAULT = 5, /* guesses of a sequence in a step, by default */
    SPEC_NGRAM = 5,   /* longest end of the ids that is looked for */
    SPEC_LEAST = 2,   /* shortest */
    SPEC_ROWS = 16,   /* rows of a step, decodes and guesses: beyond it rows are not nearly free */
    SPEC_PAUSE = 32,  /* longest pause after guesses that were all wrong, in steps */
    SPEC_CLASSES = 5,
    SPEC_TRIAL = 8, /* steps in which each way is tried at first */
    SPEC_PROBE = 4, /* and again, for the way that was slower, */
    SPEC_TERM = 128 /* of so many */
};

/* Guesses for ids[n], ids[n + 1], ... into out, `max` of them or none; returns how many. The
 * longest end of ids that came before is followed, of several the last. */
int64_t spec_ngram(int32_t *out, int64_t max, const int32_t *ids, int64_t n);

/* How far to guess, learnt from how it went. Zeroed: not yet begun. */
typedef struct {
    int64_t length; /* guesses of the next step; 0: as many as allowed */
    int64_t pause, misses;
} spec_state;
int64_t spec_length(spec_state *s, int64_t max);
void spec_learn(spec_state *s, int64_t guessed, int64_t right);

/* What steps cost and gave, without [0] and with [1] guesses, by the number of decodes: 1, 2, 3-4,
 * 5-8, more. Older steps count less. Zeroed: not yet begun. */
typedef struct {
    struct {
        double seconds[2], ids[2];
        int64_t steps;
    } of[SPEC_CLASSES];
} spec_gain;
/* Is a step of so many decodes to have guesses? */
bool spec_pays(const spec_gain *g, int64_t decodes);
/* Have guesses paid for so many, as far as is known? */
bool spec_paid(const spec_gain *g, int64_t decodes);
/* It had, or had not, took `seconds` and gave `ids`. */
void spec_timed(spec_gain *g, int64_t decodes, bool guessed, double seconds, int64_t ids);

#endif
