/* Stop strings: against the plain definition on the whole text, however it is cut. */
#include "runtime/engine/stop.h"
#include "tests/support/check.h"

#include <stdlib.h>

static uint64_t lcg = 1;
static size_t rnd(size_t n)
{
    lcg = lcg * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(lcg >> 33) % n;
}

/* The definition: earliest start of any string in the text, the shortest of those there. */
static int naive(const char *text, const char *const *stops, int n, size_t *start)
{
    for (*start = 0; text[*start]; ++*start) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!strncmp(text + *start, stops[i], strlen(stops[i])) &&
                (best < 0 || strlen(stops[i]) < strlen(stops[best])))
                best = i;
        if (best >= 0) return best;
    }
    return -1;
}

/* Longest end of text[0..n) that is a proper beginning of a stop string. */
static size_t naive_hold(const char *text, size_t n, const char *const *stops, int n_stops)
{
    size_t longest = 0;
    for (int i = 0; i < n_stops; i++)
        for (size_t k = 1; k < strlen(stops[i]) && k <= n; k++)
            if (k > longest && !memcmp(text + n - k, stops[i], k)) longest = k;
    return longest;
}

TEST(any_cut_gives_the_definition_and_nothing_leaks) /* T-26 */
{
    lq_err err;
    for (int round = 0; round < 40000; round++) {
        char text[65] = { 0 }, s[4][9] = { { 0 } }, out[65];
        const char *stops[4] = { s[0], s[1], s[2], s[3] };
        size_t n = 1 + rnd(64), letters = 1 + rnd(3), n_out = 0;
        int n_stops = 1 + (int)rnd(4);
        bool keep = rnd(2);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rnd(letters));
        for (int i = 0; i < n_stops; i++)
            for (size_t j = 0, len = 1 + rnd(8); j < len; j++)
                s[i][j] = (char)('a' + rnd(letters));
        size_t start;
        int want = naive(text, stops, n_stops, &start);
        size_t end = want < 0 ? n : start + (keep ? strlen(stops[want]) : 0);

        stop_matcher *m = NULL;
        CHECK(!stop_open(&m, stops, n_stops, keep, 4, &err), "open: %s", err.msg);
        for (size_t at = 0; at < n && stop_matched(m) < 0;) {
            size_t k = rnd(9) > 7 ? rnd(n - at + 1) : rnd(4), n_new;
            if (k > n - at) k = n - at;
            stop_push(m, text + at, k, true, &err);
            at += k;
            const char *t;
            stop_take(m, &t, &n_new);
            memcpy(out + n_out, t, n_new);
            n_out += n_new;
            if (stop_matched(m) < 0) {
                size_t hold = naive_hold(text, at, stops, n_stops);
                CHECK(n_out == at - hold, "round %d: %zu of %zu bytes out, %zu to be held", round,
                      n_out, at, hold);
            }
        }
        stop_end(m);
        const char *t;
        size_t n_new;
        stop_take(m, &t, &n_new);
        memcpy(out + n_out, t, n_new);
        n_out += n_new;
        int got = stop_matched(m);
        CHECK((got < 0) == (want < 0) && (got < 0 || !strcmp(stops[got], stops[want])),
              "round %d: '%s' matched %d, expected %d", round, text, got, want);
        CHECK(n_out == end && !memcmp(out, text, end), "round %d: '%s' gave '%.*s', expected %zu",
              round, text, (int)n_out, out, end);
        stop_close(m);
    }
}

TEST(cases_from_the_field) /* T-28 */
{
    static const struct {
        const char *why, *stops[4], *pieces[6];
        bool keep;
        const char *out;
        int matched;
    } cases[] = {
        { "split over three pieces", { "</s>" }, { "ab<", "/s", ">cd" }, false, "ab", 0 },
        { "inside one piece", { "own" }, { "unknown" }, false, "unkn", 0 },
        { "begun, then disproved", { "</s>" }, { "ab<", "/", "x" }, false, "ab</x", -1 },
        { "begun at the end", { "</s>" }, { "ab</s" }, false, "ab</s", -1 },
        { "first byte", { "ab" }, { "ab" }, false, "", 0 },
        { "kept", { "ab" }, { "xa", "by" }, true, "xab", 0 },
        { "earliest start", { "ab", "abc", "b" }, { "xa", "bc" }, false, "x", 0 },
        { "the earlier one is completed later", { "bc", "abcd" }, { "xabc", "d" }, false, "x", 1 },
        { "the earlier one fails after all", { "bc", "abcd" }, { "xabc", "e" }, false, "xa", 0 },
        { "undecided at the end", { "bc", "abcd" }, { "xabc" }, false, "xa", 0 },
        { "falls back on itself", { "aab" }, { "aa", "aa", "b" }, false, "aa", 0 },
        { "whole characters", { "\xc3\xa8" }, { "\xc3\xa9", "\xc3\xa8" }, false, "\xc3\xa9", 0 },
        { "none", { NULL }, { "abc" }, false, "abc", -1 },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err;
        stop_matcher *m = NULL;
        int n = 0;
        while (n < 4 && cases[i].stops[n])
            n++;
        CHECK(!stop_open(&m, cases[i].stops, n, cases[i].keep, 2, &err), "%s", cases[i].why);
        char out[64] = "";
        for (int k = 0; k <= 6; k++) {
            const char *t;
            size_t got;
            if (k < 6 && cases[i].pieces[k])
                stop_push(m, cases[i].pieces[k], strlen(cases[i].pieces[k]), true, &err);
            else
                stop_end(m);
            stop_take(m, &t, &got);
            strncat(out, t, got);
        }
        CHECK(!strcmp(out, cases[i].out) && stop_matched(m) == cases[i].matched,
              "%s: '%s', string %d", cases[i].why, out, stop_matched(m));
        stop_close(m);
    }
}

TEST(text_that_is_not_watched_passes)
{
    lq_err err;
    stop_matcher *m = NULL;
    const char *stops[] = { "ab" }, *t;
    size_t n;
    CHECK(!stop_open(&m, stops, 1, false, 8, &err), "open");
    stop_push(m, "xaba", 4, false, &err);
    stop_take(m, &t, &n);
    CHECK(n == 4 && stop_matched(m) < 0, "%zu bytes", n);
    stop_push(m, "bcab", 4, true, &err); /* the first b belongs to an a that passed */
    stop_take(m, &t, &n);
    CHECK(n == 2 && !memcmp(t, "bc", 2) && stop_matched(m) == 0, "%zu bytes", n);
    stop_close(m);
    const char *empty[] = { "a", "" };
    CHECK(stop_open(&m, empty, 2, false, 8, &err) == LQ_EVALUE && !m, "empty string");
}

int main(int argc, char **argv)
{
    RUN(any_cut_gives_the_definition_and_nothing_leaks);
    RUN(cases_from_the_field);
    RUN(text_that_is_not_watched_passes);
    return check_end();
}
