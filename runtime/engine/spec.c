/* runtime/engine/spec.c - see spec.h. */
#include "runtime/engine/spec.h"

int64_t spec_ngram(int32_t *out, int64_t max, const int32_t *ids, int64_t n)
{
    int64_t best = 0, from = 0;
    for (int64_t end = n - 1; end > 0 && best < SPEC_NGRAM; end--) { /* ids[end] came after */
        int64_t len = 0;
        while (len < SPEC_NGRAM && len < end && ids[end - 1 - len] == ids[n - 1 - len])
            len++;
        if (len > best) best = len, from = end;
    }
    if (best < SPEC_LEAST) return 0;
    for (int64_t i = 0; i < max; i++) /* what repeats right behind itself goes on repeating */
        out[i] = from + i < n ? ids[from + i] : out[from + i - n];
    return max;
}

int64_t spec_length(spec_state *s, int64_t max)
{
    if (s->pause > 0) {
        s->pause--;
        return 0;
    }
    return s->length && s->length < max ? s->length : max;
}

void spec_learn(spec_state *s, int64_t guessed, int64_t right)
{
    if (guessed == 0) return;
    s->length = right == guessed ? 2 * guessed : right + 1;
    s->misses = right > 0 ? 0 : s->misses + 1;
    s->pause = s->misses > 5 ? SPEC_PAUSE : s->misses > 0 ? ((int64_t)1 << s->misses) - 1 : 0;
}

static int class_of(int64_t decodes)
{
    int c = 0;
    while (c < SPEC_CLASSES - 1 && decodes > (int64_t)1 << c)
        c++;
    return c;
}

bool spec_paid(const spec_gain *g, int64_t decodes)
{
    int c = class_of(decodes);
    const double *seconds = g->of[c].seconds, *ids = g->of[c].ids;
    return g->of[c].steps < 2 * SPEC_TRIAL || seconds[1] * ids[0] < seconds[0] * ids[1];
}

bool spec_pays(const spec_gain *g, int64_t decodes)
{
    const int64_t steps = g->of[class_of(decodes)].steps;
    if (steps < 2 * SPEC_TRIAL) return steps < SPEC_TRIAL;
    bool pays = spec_paid(g, decodes);
    return steps % SPEC_TERM < SPEC_PROBE ? !pays : pays;
}

void spec_timed(spec_gain *g, int64_t decodes, bool guessed, double seconds, int64_t ids)
{
    const double keep = 0.9;
    int c = class_of(decodes);
    g->of[c].seconds[guessed] = keep * g->of[c].seconds[guessed] + seconds;
    g->of[c].ids[guessed] = keep * g->of[c].ids[guessed] + (double)ids;
    g->of[c].steps++;
}
