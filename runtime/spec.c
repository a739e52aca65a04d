/* runtime/spec.c - see spec.h. */
#include "runtime/spec.h"

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
