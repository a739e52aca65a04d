/* Speculative decoding alone: what is guessed, and how far. */
#include "runtime/engine/spec.h"
#include "tests/support/check.h"

TEST(what_followed_the_last_ids_before_is_guessed)
{
    static const struct {
        const char *why, *ids;
        int64_t max;
        const char *want;
    } t[] = {
        { "nothing came before", "abcdef", 5, "" },
        { "one id is too short", "abcdea", 5, "" },
        { "two are enough", "xabcdeab", 5, "cdeab" },
        { "and over the end of what there is", "abcab", 9, "cabcabcab" },
        { "as many as are asked for", "xabcdeab", 2, "cd" },
        { "the last of several", "ab1.ab2.ab", 3, "2.a" },
        { "the longest rather than the last", "xab1.yab2.xab", 2, "1." },
        { "a repeated id", "aaaa", 4, "aaaa" },
        { "long ends count up to five", "qabcde1.rabcde2.qabcde", 1, "2" },
        { "too few ids", "a", 5, "" },
        { "none", "", 5, "" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        int32_t ids[64], out[SPEC_MAX] = { 0 };
        int64_t n = (int64_t)strlen(t[i].ids);
        for (int64_t k = 0; k < n; k++)
            ids[k] = t[i].ids[k];
        int64_t got = spec_ngram(out, t[i].max, ids, n);
        bool same = got == (int64_t)strlen(t[i].want);
        for (int64_t k = 0; same && k < got; k++)
            same = out[k] == t[i].want[k];
        CHECK(same, "%s: %lld guesses, first %c", t[i].why, (long long)got, got ? out[0] : '-');
    }
}

TEST(guesses_that_are_right_grow_and_wrong_ones_pause)
{
    spec_state s = { 0 };
    CHECK(spec_length(&s, 5) == 5, "it begins with all");
    spec_learn(&s, 5, 2);
    CHECK(spec_length(&s, 5) == 3, "one more than were right");
    spec_learn(&s, 3, 3);
    CHECK(spec_length(&s, 15) == 6, "twice as many after a full hit");
    spec_learn(&s, 0, 0);
    CHECK(spec_length(&s, 15) == 6, "no guess teaches nothing");
    int64_t most = 0;
    for (int miss = 1; miss <= 9; miss++) {
        int64_t pause = 0;
        spec_learn(&s, 1, 0);
        while (spec_length(&s, 15) == 0 && pause < 100)
            pause++;
        CHECK(pause >= most && (miss == 1 ? pause == 1 : pause > 1), "miss %d: pause of %lld", miss,
              (long long)pause);
        most = pause;
    }
    CHECK(most == SPEC_PAUSE, "the longest pause is %lld", (long long)most);
    spec_learn(&s, 1, 1);
    CHECK(spec_length(&s, 15) == 2, "one hit ends it");
}

/* Steps of a machine on which `on[c]` and `off[c]` seconds are what an id costs. */
static int64_t guessed_steps(const double on[SPEC_CLASSES], const double off[SPEC_CLASSES],
                             int64_t decodes, int c, int64_t steps, spec_gain *g)
{
    int64_t n = 0;
    for (int64_t i = 0; i < steps; i++) {
        bool guess = spec_pays(g, decodes);
        int64_t ids = decodes * (guess ? 3 : 1);
        spec_timed(g, decodes, guess, (guess ? on : off)[c] * (double)ids, ids);
        n += guess;
    }
    return n;
}

TEST(guesses_are_made_where_they_pay_and_nowhere_else) /* T-48 */
{
    static const int64_t decodes[SPEC_CLASSES] = { 1, 2, 4, 7, 16 };
    double on[SPEC_CLASSES] = { 0.5, 0.9, 1.1, 2, 3 };
    static const double off[SPEC_CLASSES] = { 1, 1, 1, 1, 1 };
    spec_gain g = { 0 };
    for (int c = 0; c < SPEC_CLASSES; c++) {
        int64_t n = guessed_steps(on, off, decodes[c], c, 1280, &g);
        int64_t most = on[c] < 1 ? 1280 : 8 + 10 * SPEC_PROBE;
        CHECK(n <= most && n >= (on[c] < 1 ? 1280 - 8 - 10 * SPEC_PROBE : SPEC_TRIAL),
              "%lld decodes: %lld steps of 1280 had guesses", (long long)decodes[c], (long long)n);
    }
    on[0] = 3; /* the load changes: a term later it has been noticed */
    guessed_steps(on, off, 1, 0, 2 * SPEC_TERM, &g);
    int64_t n = guessed_steps(on, off, 1, 0, SPEC_TERM, &g);
    CHECK(n <= SPEC_PROBE, "%lld steps had guesses that no longer pay", (long long)n);
}

int main(int argc, char **argv)
{
    RUN(what_followed_the_last_ids_before_is_guessed);
    RUN(guesses_that_are_right_grow_and_wrong_ones_pause);
    RUN(guesses_are_made_where_they_pay_and_nowhere_else);
    return check_end();
}
