/* tests/unit/test_calib.c - choice of samples, statistics of inputs. */
#include "calib/samples.h"
#include "calib/self_text.h"
#include "calib/stats.h"
#include "kernels/ops.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { N_IDS = 1000 };

static void make_ids(int32_t *ids)
{
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i;
}

TEST(samples_are_whole_windows_in_order_chosen_by_the_seed)
{
    int32_t ids[N_IDS];
    make_ids(ids);
    cal_samples a, b, c;
    lq_err err = { "" };
    CHECK(!cal_samples_from_ids(&a, ids, N_IDS, 7, 32, 1, N_IDS, &err), "%s", err.msg);
    CHECK(!cal_samples_from_ids(&b, ids, N_IDS, 7, 32, 1, N_IDS, &err), "%s", err.msg);
    CHECK(!cal_samples_from_ids(&c, ids, N_IDS, 7, 32, 2, N_IDS, &err), "%s", err.msg);
    CHECK(a.n == 7 && a.len == 32 && a.available == 31, "%lld of %lld", (long long)a.n,
          (long long)a.available);
    for (int64_t i = 0; i < a.n * 32; i++) {
        CHECK(a.ids[i] % 32 == i % 32, "sample %lld does not start at a window", (long long)i / 32);
        CHECK(i == 0 || a.ids[i] > a.ids[i - 1], "not in the order of the text");
    }
    CHECK(memcmp(&a.hash, &b.hash, sizeof a.hash) == 0, "one seed, two choices");
    CHECK(memcmp(&a.hash, &c.hash, sizeof a.hash) != 0, "two seeds, one choice");
    cal_samples_free(&a);
    cal_samples_free(&b);
    cal_samples_free(&c);
}

TEST(every_window_is_chosen_about_equally_often)
{
    int32_t ids[N_IDS], count[31] = { 0 };
    make_ids(ids);
    for (uint64_t seed = 0; seed < 3100; seed++) {
        cal_samples s;
        if (cal_samples_from_ids(&s, ids, N_IDS, 10, 32, seed, N_IDS, NULL)) continue;
        for (int64_t i = 0; i < s.n; i++)
            count[s.ids[i * 32] / 32]++;
        cal_samples_free(&s);
    }
    /* 3100 draws of probability 10/31: mean 1000, standard deviation 26; six of them. */
    for (int i = 0; i < 31; i++)
        CHECK(abs(count[i] - 1000) < 156, "window %d: %d", i, count[i]);
}

TEST(samples_that_cannot_be_are_refused)
{
    int32_t ids[N_IDS];
    make_ids(ids);
    static const struct {
        const char *why;
        int64_t n_ids, n, len, vocab;
        lq_status want;
        int64_t got;
    } t[] = {
        { "an empty text", 0, 1, 8, N_IDS, LQ_EVALUE, 0 },
        { "less than a window", 31, 1, 32, N_IDS, LQ_EVALUE, 0 },
        { "an id above the vocabulary", N_IDS, 4, 32, N_IDS - 1, LQ_EVALUE, 0 },
        { "fewer windows than asked for", 100, 9, 32, N_IDS, LQ_OK, 3 },
        { "all windows", 96, 3, 32, N_IDS, LQ_OK, 3 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cal_samples s;
        lq_err err = { "" };
        lq_status st =
            cal_samples_from_ids(&s, ids, t[i].n_ids, t[i].n, t[i].len, 0, t[i].vocab, &err);
        CHECK(st == t[i].want && s.n == t[i].got * !st, "%s: %s %lld", t[i].why, err.msg,
              (long long)s.n);
        cal_samples_free(&s);
    }
}

TEST(statistics_are_the_definition_and_the_same_for_any_number_of_threads)
{
    enum { K = 515, T = 70, LDX = 520, CHUNKS = 3 }; /* K: two tiles and a tail */
    float *x = malloc((size_t)(CHUNKS * T * LDX) * sizeof *x);
    cal_stats s[3];
    memset(s, 0, sizeof s);
    lq_err err = { "" };
    for (int i = 0; x && i < CHUNKS * T * LDX; i++)
        x[i] = (float)((i * 7919 + i / 13 * 31) % 2001 - 1000) / 500;
    for (int i = 0; x && i < 3; i++) {
        pool *p = NULL;
        static const int threads[] = { 1, 2, 7 };
        CHECK(!pool_open(&p, threads[i], &err), "%s", err.msg);
        CHECK(!cal_stats_init(&s[i], K, true, NULL, &err), "%s", err.msg);
        s[i].limit = 1.5f;
        for (int c = 0; c < CHUNKS; c++)
            CHECK(!cal_stats_add(&s[i], x + c * T * LDX, LDX, T, p, &err), "%s", err.msg);
        CHECK(!cal_stats_finish(&s[i], &err), "%s", err.msg);
        pool_close(p);
        CHECK(s[i].tokens == CHUNKS * T, "tokens");
        CHECK(!memcmp(s[i].H, s[0].H, sizeof(float) * K * K), "%d threads: H", threads[i]);
        CHECK(!memcmp(s[i].mean_abs, s[0].mean_abs, sizeof(float) * 3 * K), "%d threads",
              threads[i]);
        CHECK(!memcmp(s[i].reached, s[0].reached, sizeof *s[i].reached * K), "reached");
    }
    for (int i = 0; x && i < K; i += 57)
        for (int j = 0; j < K; j += 43) {
            double h = 0, size = 0, mean = 0, max = 0, square = 0;
            int64_t reached = 0;
            for (int t = 0; t < CHUNKS * T; t++) {
                double a = (double)x[t * LDX + i], b = (double)x[t * LDX + j];
                h += a * b;
                size += fabs(a * b);
                mean += fabs(a);
                square += a * a;
                reached += fabs(a) >= 1.5;
                max = fabs(a) > max ? fabs(a) : max;
            }
            double n = CHUNKS * T, e = fabs((double)s[0].H[i * K + j] - h / n);
            CHECK(e <= 0x1p-24 * (T + CHUNKS + 2) * size / n, "H[%d][%d] is off by %g", i, j, e);
            CHECK(fabs((double)s[0].mean_abs[i] - mean / n) <= 1e-6 * mean / n, "mean %d", i);
            CHECK((double)s[0].max_abs[i] == max, "max %d", i);
            CHECK(fabs((double)s[0].mean_sq[i] - square / n) <= 1e-6 * square / n, "square %d", i);
            CHECK(s[0].reached[i] == reached, "input %d: %lld tokens reach 1.5", i,
                  (long long)s[0].reached[i]);
        }
    for (int i = 0; i < 3; i++)
        cal_stats_free(&s[i]);
    free(x);
}

TEST(rows_that_come_along_are_summed_with_the_inputs_by_any_threads_and_parts)
{
    enum { K = 300, D = 270, T = 50, LDX = 304, LDD = 272, CHUNKS = 2, PARTS = 3 };
    static float x[CHUNKS * T * LDX], d[CHUNKS * T * LDD];
    cal_stats s[2] = { 0 }, part[PARTS] = { 0 };
    lq_err err = { "" };
    for (size_t i = 0; i < LQ_COUNT(x); i++)
        x[i] = (float)((i * 7919 + i / 13 * 31) % 2001) / 500 - 2;
    for (size_t i = 0; i < LQ_COUNT(d); i++)
        d[i] = (float)((i * 5077 + i / 11 * 17) % 1999) / 400 - 2;
    for (int i = 0; i < 2 + PARTS; i++) {
        cal_stats *to = i < 2 ? &s[i] : &part[i - 2];
        pool *p = NULL;
        CHECK(!pool_open(&p, i < 2 ? 1 + 4 * i : 2, &err), "%s", err.msg);
        CHECK(!cal_stats_init(to, K, true, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_match(to, D, &err), "%s", err.msg);
        to->parts = i < 2 ? 0 : PARTS;
        to->part = i < 2 ? 0 : i - 2;
        for (int c = 0; c < CHUNKS; c++)
            CHECK(!cal_stats_add_with(to, x + c * T * LDX, LDX, d + c * T * LDD, LDD, T, p, &err),
                  "%s", err.msg);
        pool_close(p);
    }
    /* every part's tiles to the first, as ranks send them */
    float *box = malloc((D + K) * K * sizeof *box);
    for (int i = 1; i < PARTS && box; i++) {
        cal_stats_tiles(&part[i], i, box, false);
        cal_stats_tiles(&part[0], i, box, true);
    }
    free(box);
    for (int i = 0; i < 2; i++)
        CHECK(!cal_stats_finish(&s[i], &err), "%s", err.msg);
    CHECK(!cal_stats_finish(&part[0], &err), "%s", err.msg);
    CHECK(!memcmp(s[0].M, s[1].M, sizeof(float) * D * K), "threads change M");
    CHECK(!memcmp(s[0].M, part[0].M, sizeof(float) * D * K), "parts change M");
    CHECK(!memcmp(s[0].H, part[0].H, sizeof(float) * K * K), "parts change H");
    for (int i = 0; i < D; i += 19)
        for (int j = 0; j < K; j += 23) {
            double sum = 0, size = 0;
            for (int t = 0; t < CHUNKS * T; t++) {
                const double a = (double)d[t * LDD + i] * (double)x[t * LDX + j];
                sum += a;
                size += fabs(a);
            }
            const double e = fabs((double)s[0].M[i * K + j] - sum / (CHUNKS * T));
            CHECK(e <= 0x1p-24 * (T + CHUNKS + 2) * size / (CHUNKS * T), "M[%d][%d] is off by %g",
                  i, j, e);
        }
    for (int i = 0; i < PARTS; i++)
        cal_stats_free(&part[i]);
    cal_stats_free(&s[0]);
    cal_stats_free(&s[1]);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Every fifth token's weight is not known, and every tenth is large. */
static double weight_of(int t) { return t % 5 ? (double)(t % 7) / 4 : (double)CAL_TOKEN_UNKNOWN; }

TEST(tokens_count_by_their_weights_and_large_ones_that_are_not_known_by_the_median)
{
    enum { K = 300, T = 70, LDX = 304, CHUNKS = 2, N = CHUNKS * T, AT = 7, D = 290 };
    float *x = calloc((size_t)N * LDX, sizeof *x), weight[N] = { 0 };
    double square[N] = { 0 }, sorted[N];
    cal_stats s[2];
    memset(s, 0, sizeof s);
    lq_err err = { "" };
    for (int t = 0; x && t < N; t++) {
        weight[t] = (float)weight_of(t);
        square[t] = 0;
        for (int k = 0; k < K; k++) {
            x[t * LDX + k] = (float)((t * 7919 + k * 31) % 2001 - 1000) / (t % 10 ? 500 : 20);
            square[t] += (double)x[t * LDX + k] * (double)x[t * LDX + k];
        }
    }
    for (int i = 0; x && i < 2; i++) {
        pool *p = NULL;
        CHECK(!pool_open(&p, 1 + 2 * i, &err), "%s", err.msg);
        CHECK(!cal_stats_init(&s[i], K, true, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_match(&s[i], D, &err), "%s", err.msg);
        s[i].weight = weight;
        for (int c = 0; c < CHUNKS; c++) { /* d: the inputs from AT on */
            const float *chunk = x + c * T * LDX;
            CHECK(!cal_stats_add_with(&s[i], chunk, LDX, chunk + AT, LDX, T, p, &err), "%s",
                  err.msg);
        }
        CHECK(!cal_stats_finish(&s[i], &err), "%s", err.msg);
        pool_close(p);
        CHECK(!memcmp(s[i].H, s[0].H, sizeof(float) * K * K), "H by the number of threads");
        CHECK(!memcmp(s[i].M, s[0].M, sizeof(float) * D * K), "M by the number of threads");
    }
    memcpy(sorted, square, sizeof sorted);
    for (int c = 0; c < CHUNKS; c++)
        qsort(sorted + c * T, T, sizeof *sorted, by_size);
    int cut = 0;
    for (int t = 0; x && t < N; t++) {
        const double most = CAL_LARGE * sorted[t / T * T + T / 2];
        if (weight[t] < 0) {
            cut += square[t] > most;
            square[t] = square[t] > most ? most / square[t] : 1;
        } else {
            square[t] = (double)weight[t];
        }
    }
    CHECK(cut > 5 && cut < N / 5, "%d tokens are large and not known", cut);
    for (int i = 0; x && i < K; i += 31)
        for (int j = 0; j < K; j += 17) {
            double h = 0, size = 0, mean = 0;
            for (int t = 0; t < N; t++) {
                const double a = (double)x[t * LDX + i], b = (double)x[t * LDX + j];
                h += square[t] * a * b;
                size += square[t] * fabs(a * b);
                mean += fabs(a);
            }
            const double most = 0x1p-24 * (T + CHUNKS + 8) * size / N;
            const double e = fabs((double)s[0].H[i * K + j] - h / N);
            CHECK(e <= most, "H[%d][%d] is off by %g", i, j, e);
            if (i >= AT && i < AT + D) {
                const double m = fabs((double)s[0].M[(i - AT) * K + j] - h / N);
                CHECK(m <= most, "M[%d][%d] is off by %g", i - AT, j, m);
            }
            CHECK(fabs((double)s[0].mean_abs[i] - mean / N) <= 1e-6 * mean / N, "mean %d", i);
        }
    for (int i = 0; i < 2; i++)
        cal_stats_free(&s[i]);
    free(x);
}

TEST(few_tokens_for_each_input_leave_less_of_what_two_have_in_common)
{
    enum { K = 3, T = 6 };
    static const float x[T * K] = { 1, 2, 0, 3, -1, 0, 0, 2, 0, 1, 1, 0, 2, 0, 0, -1, 4, 0 };
    cal_stats s = { 0 };
    lq_err err = { "" };
    CHECK(!cal_stats_init(&s, K, true, NULL, &err), "%s", err.msg);
    CHECK(!cal_stats_add(&s, x, K, T, NULL, &err), "%s", err.msg);
    CHECK(!cal_stats_finish(&s, &err), "%s", err.msg);
    float H[K * K];
    memcpy(H, s.H, sizeof H);
    for (int again = 0; again < 2; again++)
        cal_stats_shrink(&s);
    const float mean = (H[0] + H[4] + H[8]) / K, add = 4.0F * K / T * mean;
    for (int i = 0; i < K * K; i++)
        CHECK(fabsf(s.H[i] - H[i] - (i % (K + 1) ? 0 : add)) <= 1e-6F * add, "H[%d]: %g, was %g", i,
              (double)s.H[i], (double)H[i]);
    cal_stats_free(&s);
}

TEST(an_input_that_was_not_finite_once_stays_known)
{
    static const struct {
        const char *why;
        float x[6]; /* three tokens of two inputs */
        int64_t bad;
    } t[] = {
        { "finite", { 1, 2, 3, 4, 5, 6 }, -1 },
        { "a NaN, then larger ones", { 1, NAN, 3, 4, 5, 6 }, 1 },
        { "an Inf", { 1, 2, -INFINITY, 4, 5, 6 }, 0 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cal_stats s = { 0 };
        lq_err err;
        CHECK(!cal_stats_init(&s, 2, true, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_add(&s, t[i].x, 2, 3, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_finish(&s, &err), "%s", err.msg);
        CHECK(cal_stats_bad(&s) == t[i].bad, "%s: %lld", t[i].why, (long long)cal_stats_bad(&s));
        cal_stats_free(&s);
    }
}

enum { OWN_LEN = 24 };

static bool self_write(int32_t ids[][OWN_LEN], int64_t first, int64_t n, int threads, uint64_t seed)
{
    src_source *src = NULL;
    pool *p = NULL;
    lq_err err = { "" };
    lq_status st = k_init(NULL, &err);
    if (!st)
        st = src_open(&src, "tests/golden/arch/llama3-gqa", &(src_opts){ .need_config = true },
                      &err);
    if (!st) st = pool_open(&p, threads, &err);
    if (!st) st = cal_self_write(ids[0], first, n, OWN_LEN, src, seed, p, NULL, &err);
    CHECK(!st, "%s", err.msg);
    pool_close(p);
    src_close(src);
    return !st;
}

TEST(windows_that_the_model_writes_depend_on_the_seed_and_their_number_alone)
{
    int32_t a[6][OWN_LEN], b[6][OWN_LEN], c[4][OWN_LEN], d[6][OWN_LEN], e[2][OWN_LEN];
    if (!self_write(a, 0, 6, 1, 5) || !self_write(b, 0, 6, 3, 5) || !self_write(c, 0, 4, 1, 5) ||
        !self_write(d, 0, 6, 1, 6) || !self_write(e, 3, 2, 1, 5))
        return;
    CHECK(memcmp(a, b, sizeof a) == 0, "other text with three threads");
    CHECK(memcmp(a[3], e, sizeof e) == 0, "windows 3 and 4 alone are others");
    int same = 0;
    for (int i = 0; i < 6; i++) {
        CHECK(a[i][0] == a[0][0], "window %d does not start as the others do", i);
        for (int k = 0; k < i; k++)
            same += memcmp(a[i], a[k], sizeof a[i]) == 0;
        same += memcmp(a[i], d[i], sizeof a[i]) == 0;
        if (i < 4)
            CHECK(memcmp(a[i], c[i], sizeof a[i]) == 0, "window %d depends on the number", i);
    }
    CHECK(same == 0, "%d pairs of windows are the same", same);
}

int main(int argc, char **argv)
{
    RUN(samples_are_whole_windows_in_order_chosen_by_the_seed);
    RUN(every_window_is_chosen_about_equally_often);
    RUN(samples_that_cannot_be_are_refused);
    RUN(statistics_are_the_definition_and_the_same_for_any_number_of_threads);
    RUN(rows_that_come_along_are_summed_with_the_inputs_by_any_threads_and_parts);
    RUN(tokens_count_by_their_weights_and_large_ones_that_are_not_known_by_the_median);
    RUN(few_tokens_for_each_input_leave_less_of_what_two_have_in_common);
    RUN(an_input_that_was_not_finite_once_stays_known);
    RUN(windows_that_the_model_writes_depend_on_the_seed_and_their_number_alone);
    return check_end();
}
