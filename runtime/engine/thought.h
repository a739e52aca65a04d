/* runtime/engine/thought.h - a budget for an answer's thought: when it has so many tokens, the ids that
 * close it are the next ones. Engine thread only. */
#ifndef LLMQ_RUNTIME_ENGINE_THOUGHT_H
#define LLMQ_RUNTIME_ENGINE_THOUGHT_H

#include "base/base.h"

enum { THOUGHT_MARK = 128, THOUGHT_IDS = 32 };

typedef struct {
    int64_t budget;          /* tokens of the thought, its marks not counted; -1: none */
    bool begun;              /* the prompt ends in the thought; else it begins with `open` */
    char open[THOUGHT_MARK]; /* texts of the marks, special tokens as they are spelled */
    char close[THOUGHT_MARK];
    int32_t ids[THOUGHT_IDS]; /* that write `close` */
    int n_ids;
} thought_limit;

typedef struct {
    thought_limit l;
    enum { THOUGHT_BEFORE, THOUGHT_IN, THOUGHT_OVER } state;
    int64_t from;                /* outputs before the thought's first */
    int at;                      /* of ids that are out */
    char text[2 * THOUGHT_MARK]; /* the end of what was written */
    size_t n;
} thought_watch;

void thought_begin(thought_watch *t, const thought_limit *l);
/* Output number `outputs` (from 1) is id, whose text is bytes[n]. */
void thought_add(thought_watch *t, int32_t id, const char *bytes, size_t n, int64_t outputs);
/* What the id after so many outputs is to be; -1: anything. */
int32_t thought_next(const thought_watch *t, int64_t outputs);
/* May a later id still be prescribed? */
static inline bool thought_watches(const thought_watch *t)
{
    return t->l.budget >= 0 && t->state != THOUGHT_OVER;
}

#endif
