/* runtime/engine/thought.c */
#include "runtime/engine/thought.h"

#include <string.h>

void thought_begin(thought_watch *t, const thought_limit *l)
{
    *t = (thought_watch){ .l = *l, .state = l->begun ? THOUGHT_IN : THOUGHT_BEFORE };
    if (l->budget < 0 || !l->n_ids) t->state = THOUGHT_OVER;
}

static void keep_text(thought_watch *t, const char *bytes, size_t n)
{
    if (n > THOUGHT_MARK) {
        bytes += n - THOUGHT_MARK;
        n = THOUGHT_MARK;
    }
    if (t->n + n > sizeof t->text) {
        const size_t drop = t->n + n - sizeof t->text;
        memmove(t->text, t->text + drop, t->n - drop);
        t->n -= drop;
    }
    memcpy(t->text + t->n, bytes, n);
    t->n += n;
}

/* An answer thinks if it begins with the mark, blanks apart. */
static void look_for_open(thought_watch *t, int64_t outputs)
{
    size_t i = 0;
    const size_t m = strlen(t->l.open);
    while (i < t->n && (t->text[i] == ' ' || t->text[i] == '\n'))
        i++;
    const size_t n = t->n - i < m ? t->n - i : m;
    if (memcmp(t->text + i, t->l.open, n) != 0 || t->n > THOUGHT_MARK + m)
        t->state = THOUGHT_OVER;
    else if (n == m) {
        t->state = THOUGHT_IN;
        t->from = outputs;
        t->n = 0;
    }
}

void thought_add(thought_watch *t, int32_t id, const char *bytes, size_t n, int64_t outputs)
{
    if (!thought_watches(t)) return;
    keep_text(t, bytes, n);
    if (t->state == THOUGHT_BEFORE) {
        look_for_open(t, outputs);
        return;
    }
    const bool ours = outputs > t->from + t->l.budget && id == t->l.ids[t->at];
    t->at = ours ? t->at + 1 : 0;
    if (t->at == t->l.n_ids || memmem(t->text, t->n, t->l.close, strlen(t->l.close)))
        t->state = THOUGHT_OVER;
}

int32_t thought_next(const thought_watch *t, int64_t outputs)
{
    if (!thought_watches(t) || t->state != THOUGHT_IN || outputs < t->from + t->l.budget) return -1;
    return t->l.ids[t->at];
}
