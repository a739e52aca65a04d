/* tests/support/grammar_takes.h - whether a text is a sentence of a grammar. */
#ifndef LLMQ_TESTS_SUPPORT_GRAMMAR_TAKES_H
#define LLMQ_TESTS_SUPPORT_GRAMMAR_TAKES_H

#include "runtime/grammar/grammar.h"
#include "tests/support/check.h"

#include <string.h>

static inline bool grammar_takes(grammar *g, const char *text)
{
    lq_err err;
    gr_matcher *m;
    bool ok = true;
    CHECK(!gr_matcher_new(&m, g, &err), "matcher");
    if (*text) CHECK(!gr_accept(m, (const uint8_t *)text, strlen(text), &ok, &err), "%s", err.msg);
    ok = ok && gr_may_end(m);
    gr_matcher_free(m);
    return ok;
}

#endif
