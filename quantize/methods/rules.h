/* quantize/methods/rules.h - --override and --skip: which scheme a weight's name asks for. */
#ifndef LLMQ_QUANTIZE_METHODS_RULES_H
#define LLMQ_QUANTIZE_METHODS_RULES_H

#include "quantize/methods/method.h"

/* Messages to the user, one line each. */
typedef struct {
    void (*say)(void *user, const char *line);
    void *user;
} plan_voice;

/* Patterns of one option, in the dialect of Perl; a name matches where a part of it does. */
typedef struct {
    const char *option; /* "--skip", for messages */
    const char *const *text;
    struct rule *rule; /* [n] */
    int n;
} qz_patterns;

/* text[i]: all of it, or with `schemes` "REGEX=scheme". `m`: the method that is to make the schemes.
 * Errors: LQ_EUSAGE (a pattern or scheme, which is named), LQ_ENOMEM. After an error to be freed, too. */
lq_status qz_patterns_make(qz_patterns *p, const char *option, const char *const *text, int n,
                           bool schemes, const qz_method *m, lq_err *err);
void qz_patterns_free(qz_patterns *p);
/* The first pattern that matches `name`, which counts as used; *s, if not NULL, is its scheme. */
bool qz_patterns_match(qz_patterns *p, const char *name, qt_scheme *s);
/* A pattern with a slip in it would leave the model other than its owner believes. */
void qz_patterns_say_unused(const qz_patterns *p, const plan_voice *v);

/* A scheme as the user wrote it in `option`. LQ_EUSAGE: none, or none that m makes. */
lq_status qz_scheme_asked(qt_scheme *s, const char *text, const char *option, const qz_method *m,
                          lq_err *err);

#endif
