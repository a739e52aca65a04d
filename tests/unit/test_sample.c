/* Sampler: against an oracle that sorts everything in double, against chi-square bounds, by hand.
 */
#include "kernels/ops.h"
#include "kernels/sampling.h"
#include "runtime/engine/sample.h"
#include "tests/support/check.h"

#include <stdlib.h>

static uint64_t rng_state;
static double rnd(void) { return smp_uniform(12345, rng_state++); }
static int64_t rnd_int(int64_t n) { return (int64_t)(rnd() * (double)n); }

/* ---- oracle: probabilities of every id, by a full sort in double ---- */

typedef struct {
    double x;
    int32_t id;
} pair;

static int by_falling(const void *a, const void *b)
{
    const pair *p = a, *q = b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : 1;
}

static void oracle(double *prob, const double *x, int V, const smp_params *p)
{
    pair *s = malloc((size_t)V * sizeof *s);
    int n = 0;
    for (int i = 0; i < V; i++) {
        prob[i] = 0;
        if (!isinf(x[i])) s[n++] = (pair){ x[i], i };
    }
    qsort(s, (size_t)n, sizeof *s, by_falling);
    if (p->temperature == 0.0f) n = 1;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double T = p->temperature == 0.0f ? 1 : (double)p->temperature, total = 0, run = 0;
    for (int i = 0; i < n; i++)
        total += exp((s[i].x - s[0].x) / T);
    if (p->top_p > 0 && p->top_p < 1)
        for (int i = 0; i < n; i++) {
            run += exp((s[i].x - s[0].x) / T);
            if (run >= (double)p->top_p * total) n = i + 1;
        }
    while (n > 1 && exp((s[n - 1].x - s[0].x) / T) < (double)p->min_p)
        n--;
    total = 0;
    for (int i = 0; i < n; i++)
        total += exp((s[i].x - s[0].x) / T);
    for (int i = 0; i < n; i++)
        prob[s[i].id] = exp((s[i].x - s[0].x) / T) / total;
    free(s);
}

static smp_params params(float T, int32_t k, float top_p, float min_p)
{
    return (
        smp_params){ .temperature = T, .top_k = k, .top_p = top_p, .min_p = min_p, .logprobs = -1 };
}

TEST(only_ids_that_the_oracle_keeps_are_drawn)
{
    enum { V = 300 };
    float l[V];
    double x[V], prob[V];
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, V, &err), "open");
    const float Ts[] = { 0, 0.3f, 1, 3 }, ps[] = { 0, 1e-9f, 0.3f, 0.9f, 0.999f, 1 };
    const float ms[] = { 0, 0.05f, 0.5f, 1 };
    const int32_t ks[] = { -1, 0, 1, 2, 17, 299, 300, 1000 };
    for (int round = 0; round < 3000; round++) {
        smp_params p = params(Ts[rnd_int(4)], ks[rnd_int(8)], ps[rnd_int(6)], ms[rnd_int(4)]);
        p.seed = (uint64_t)round;
        bool ties = round % 3 == 0;
        for (int i = 0; i < V; i++) {
            l[i] = (float)(rnd() * 8 - 4);
            if (ties) l[i] = (float)(int)l[i];
            x[i] = (double)l[i];
        }
        oracle(prob, x, V, &p);
        smp_result r;
        lq_status st = smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err);
        CHECK(!st, "round %d: %s", round, err.msg);
        /* Ids whose kept-ness hangs on the last bit of a sum are one rank apart at most. */
        CHECK(prob[r.id] > 0, "round %d: T %g k %d p %g m %g drew %d", round, (double)p.temperature,
              p.top_k, (double)p.top_p, (double)p.min_p, r.id);
        if (p.temperature == 0.0f || p.top_k == 1)
            CHECK(prob[r.id] > 0.999, "round %d: greedy drew %d", round, r.id);
    }
    smp_close(s);
}

TEST(frequencies_follow_the_filtered_distribution)
{
    /* Chi-square over the kept ids at 1e5 draws; the bound is the 1 - 1e-6 quantile (Wilson and
     * Hilferty's approximation, z = 4.75), and the seeds are fixed. */
    enum { V = 12, N = 100000 };
    const float l[V] = { 1, 0.5f, 2, -1, 0, 2, 1.5f, -3, 0.25f, 0.75f, -0.5f, 1.25f };
    static const struct {
        const char *why;
        float T;
        int32_t k;
        float top_p, min_p;
    } cases[] = {
        { "plain", 1, 0, 1, 0 },
        { "hot", 2.5f, 0, 1, 0 },
        { "cold", 0.4f, 0, 1, 0 },
        { "top-k", 1, 5, 1, 0 },
        { "top-p", 1, 0, 0.8f, 0 },
        { "min-p", 1, 0, 1, 0.2f },
        { "top-k, top-p", 1.5f, 8, 0.7f, 0 },
        { "all three", 1.5f, 9, 0.9f, 0.3f },
    };
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, V, &err), "open");
    for (size_t c = 0; c < LQ_COUNT(cases); c++) {
        smp_params p = params(cases[c].T, cases[c].k, cases[c].top_p, cases[c].min_p);
        p.seed = 7 + c;
        double x[V], prob[V], chi = 0;
        int count[V] = { 0 }, df = -1;
        for (int i = 0; i < V; i++)
            x[i] = (double)l[i];
        oracle(prob, x, V, &p);
        for (uint64_t i = 0; i < N; i++) {
            smp_result r;
            if (smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, i, &err)) break;
            count[r.id]++;
        }
        for (int i = 0; i < V; i++) {
            double e = prob[i] * N;
            if (prob[i] > 0) df++, chi += (count[i] - e) * (count[i] - e) / e;
            CHECK(prob[i] > 0 || count[i] == 0, "%s: id %d drawn %d times", cases[c].why, i,
                  count[i]);
        }
        double d = 2.0 / (9 * df), q = df * pow(1 - d + 4.75 * sqrt(d), 3);
        CHECK(chi < q, "%s: chi-square %g, bound %g at %d degrees", cases[c].why, chi, q, df);
    }
    smp_close(s);
}

TEST(a_draw_depends_on_seed_and_number_alone)
{
    enum { V = 100 };
    float l[V];
    for (int i = 0; i < V; i++)
        l[i] = (float)rnd();
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, V, &err), "open");
    int32_t a[50], other = 0;
    smp_params p = params(1, 0, 0.95f, 0);
    p.seed = 99;
    smp_result r;
    for (int i = 0; i < 50; i++)
        smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, (uint64_t)i, &err), a[i] = r.id;
    for (int i = 49; i >= 0; i--) {
        smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, (uint64_t)i, &err);
        CHECK(r.id == a[i], "draw %d backwards: %d, forwards %d", i, r.id, a[i]);
        p.seed = 100;
        smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, (uint64_t)i, &err);
        other += r.id != a[i];
        p.seed = 99;
    }
    CHECK(other > 30, "another seed differed in %d of 50 draws", other);
    /* The stream is pinned, computed by another program: "same seed, same answer" over releases. */
    static const struct {
        uint64_t seed, i;
        double u;
    } pinned[] = { { 0, 0, 0x1.4e0dba5e9a32fp-1 },
                   { 0, 1, 0x1.6705460be8829p-1 },
                   { 7, 1000, 0x1.b0c2c13652b7dp-1 },
                   { UINT64_MAX, 2, 0x1.056864ed57700p-1 } };
    for (size_t i = 0; i < LQ_COUNT(pinned); i++)
        CHECK(smp_uniform(pinned[i].seed, pinned[i].i) == pinned[i].u, "pinned %zu: %a", i,
              smp_uniform(pinned[i].seed, pinned[i].i));
    smp_close(s);
}

TEST(a_point_is_its_share_of_any_total)
{
    static const struct {
        uint64_t bits, total, want;
    } cases[] = {
        { 0, 12345, 0 },
        { UINT64_C(1) << 52, 12345, 6172 },
        { (UINT64_C(1) << 53) - 1, 1, 0 },
        { (UINT64_C(1) << 53) - 1, UINT64_C(1) << 62, (UINT64_C(1) << 62) - (1 << 9) },
        { UINT64_C(3) << 51, (UINT64_C(1) << 62) + 1, UINT64_C(3) << 60 },
        { 0x123456789abcd, UINT64_C(1) << 53, 0x123456789abcd },
        /* 0x1fedcba9876543 * 0x3123456789abcdef / 2^53, by an exact calculator */
        { 0x1fedcba9876543, 0x3123456789abcdef, 0x3107513266a9b717 },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const uint64_t got = draw_point(cases[i].bits, cases[i].total);
        CHECK(got == cases[i].want, "case %zu: %llx", i, (unsigned long long)got);
    }
    for (int64_t V = 1; V <= INT32_MAX; V = 2 * V + V / 3)
        CHECK((double)draw_unit(V) * (double)V < 0x1p62 &&
                  (double)draw_unit(V) * (double)V >= 0x1p61,
              "units of %lld ids", (long long)V);
}

TEST(penalties_and_bias_by_hand)
{
    enum { V = 6 };
    const float l[V] = { 2, 1.9f, -1, 0.5f, 1.8f, 1.7f };
    const int32_t prompt[] = { 0, 0, 2 }, output[] = { 1, 1, 4 };
    static const smp_bias ban0[] = { { 0, -INFINITY } };
    static const smp_bias up3[] = { { 3, 100 } };
    static const smp_bias ban_most[] = {
        { 0, -INFINITY }, { 1, -INFINITY }, { 3, -INFINITY }, { 4, -INFINITY }, { 5, -INFINITY }
    };
    static const int32_t only[] = { 2, 3 };
    static const struct {
        const char *why;
        smp_params p;
        int32_t id;
    } cases[] = {
        { "nothing", { .logprobs = -1 }, 0 },
        { "2 / 1.3 = 1.54, 1.9 / 1.3 = 1.46, 1.8 / 1.3 = 1.38 < 1.7",
          { .repetition_penalty = 1.3f, .logprobs = -1 },
          5 },
        { "presence is over the output alone", { .presence_penalty = 1, .logprobs = -1 }, 0 },
        { "a negative one raises: 1.9 + 0.5", { .presence_penalty = -0.5f, .logprobs = -1 }, 1 },
        { "frequency counts: 1.9 + 2 * 0.3 = 2.5, 1.8 + 0.3 = 2.1",
          { .frequency_penalty = -0.3f, .logprobs = -1 },
          1 },
        { "0 banned, 1 twice punished: 1.9 - 0.4, 1.8 - 0.2",
          { .frequency_penalty = 0.2f, .bias = ban0, .n_bias = 1, .logprobs = -1 },
          5 },
        { "bias forces", { .bias = up3, .n_bias = 1, .logprobs = -1 }, 3 },
        { "what is not banned is left", { .bias = ban_most, .n_bias = 5, .logprobs = -1 }, 2 },
        { "allowed", { .allowed = only, .n_allowed = 2, .logprobs = -1 }, 3 },
        { "allowed, and the bias of another id does nothing",
          { .allowed = only, .n_allowed = 2, .bias = ban0, .n_bias = 1, .logprobs = -1 },
          3 },
    };
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, V, &err), "open");
    for (int twice = 0; twice < 2; twice++) /* scratch is clean afterwards */
        for (size_t i = 0; i < LQ_COUNT(cases); i++) {
            smp_result r;
            lq_status st = smp_sample(s, &r, l, &cases[i].p, prompt, 3, output, 3, 0, &err);
            CHECK(!st && r.id == cases[i].id, "%s: %d, expected %d", cases[i].why, r.id,
                  cases[i].id);
            smp_params hot = cases[i].p; /* the same through the drawing path, very cold */
            hot.temperature = 1e-4f;
            st = smp_sample(s, &r, l, &hot, prompt, 3, output, 3, 5, &err);
            CHECK(!st && r.id == cases[i].id, "cold %s: %d", cases[i].why, r.id);
        }
    smp_close(s);
}

TEST(equal_logits_take_the_lowest_ids)
{
    enum { V = 50 };
    float l[V];
    smp_ctx *s = NULL;
    lq_err err;
    smp_result r;
    for (int i = 0; i < V; i++)
        l[i] = i % 5 == 3 ? 1.0f : 0.0f; /* 3, 8, 13, ... lead */
    CHECK(!smp_open(&s, V, &err), "open");
    smp_params p = params(0, 0, 0, 0);
    p.logprobs = 12;
    CHECK(!smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err) && r.id == 3, "greedy: %d", r.id);
    static const int32_t want[12] = { 3, 8, 13, 18, 23, 28, 33, 38, 43, 48, 0, 1 };
    CHECK(r.n_top == 12 && memcmp(r.top_id, want, sizeof want) == 0, "top: %d %d %d ... %d",
          r.top_id[0], r.top_id[1], r.top_id[2], r.top_id[11]);
    bool seen[V] = { 0 };
    p = params(1, 4, 1, 0);
    for (uint64_t i = 0; i < 400; i++)
        if (!smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, i, &err)) seen[r.id] = true;
    for (int i = 0; i < V; i++)
        CHECK(seen[i] == (i == 3 || i == 8 || i == 13 || i == 18), "top-k of ties: id %d", i);
    smp_close(s);
}

TEST(logprobs_are_of_the_raw_distribution) /* T-36 */
{
    enum { V = 40 };
    float l[V];
    double lse = 0;
    for (int i = 0; i < V; i++)
        l[i] = (float)(rnd() * 10 - 5);
    for (int i = 0; i < V; i++)
        lse += exp((double)l[i]);
    lse = log(lse);
    smp_ctx *s = NULL;
    lq_err err;
    smp_result r;
    CHECK(!smp_open(&s, V, &err), "open");
    static const smp_bias force[] = { { 17, 100 } };
    smp_params p = { .temperature = 0.7f, .bias = force, .n_bias = 1, .logprobs = 20 };
    CHECK(!smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err) && r.id == 17, "forced");
    /* One f32 sum of 40 terms and one subtraction at magnitude < 16: 1e-5 is ample, not tuned. */
    CHECK(fabs((double)r.logprob - ((double)l[17] - lse)) < 1e-5, "%g", (double)r.logprob);
    for (int i = 0; i < 20; i++) {
        CHECK(fabs((double)r.top_logprob[i] - ((double)l[r.top_id[i]] - lse)) < 1e-5, "top %d", i);
        CHECK(i == 0 || r.top_logprob[i] <= r.top_logprob[i - 1], "order at %d", i);
    }
    static const int32_t two_ids[] = { 30, 4 };
    smp_params asks = p;
    asks.asked = two_ids;
    asks.n_asked = 2;
    smp_result q;
    CHECK(!smp_sample(s, &q, l, &asks, NULL, 0, NULL, 0, 0, &err) && q.id == 17, "asked");
    CHECK(q.n_top == 2 && q.logprob == r.logprob, "asked: %d", q.n_top);
    for (int i = 0; i < 2; i++)
        CHECK(q.top_id[i] == two_ids[i] &&
                  fabs((double)q.top_logprob[i] - ((double)l[two_ids[i]] - lse)) < 1e-5,
              "asked %d", i);
    CHECK(!smp_score(s, &q, l, 17, 20, &err), "score");
    CHECK(q.logprob == r.logprob && !memcmp(q.top_id, r.top_id, sizeof q.top_id), "score differs");
    float sure[2] = { 100, -100 };
    smp_ctx *two = NULL;
    CHECK(!smp_open(&two, 2, &err) && !smp_score(two, &q, sure, 0, 0, &err), "sure");
    CHECK(q.logprob == 0 && q.n_top == 0, "sure: %g", (double)q.logprob);
    smp_close(two);
    smp_close(s);
}

TEST(what_is_no_number_is_refused)
{
    enum { V = 33 };
    smp_ctx *s = NULL;
    lq_err err;
    smp_result r;
    CHECK(!smp_open(&s, V, &err), "open");
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t b = 0; b < LQ_COUNT(bad); b++)
        for (int at = 0; at < V; at++) {
            float l[V] = { 0 };
            l[at] = bad[b];
            smp_params p = params((float)(at % 2), 0, 1, 0);
            CHECK(smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err) == LQ_EVALUE, "%g at %d",
                  (double)bad[b], at);
            CHECK(smp_score(s, &r, l, 0, 0, &err) == LQ_EVALUE, "score %g at %d", (double)bad[b],
                  at);
        }
    float l[V] = { 0 };
    smp_bias all[V];
    for (int i = 0; i < V; i++)
        all[i] = (smp_bias){ i, -INFINITY };
    for (int T = 0; T < 2; T++)
        for (int k = 0; k < 3; k++) {
            smp_params p = params((float)T, k * 4, k ? 0.5f : 1, 0);
            p.bias = all, p.n_bias = V;
            CHECK(smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err) == LQ_ENOENT, "all banned");
        }
    smp_close(s);
}

TEST(only_ids_of_the_mask_are_drawn)
{
    enum { V = 70 };
    float l[V];
    lq_err err;
    smp_ctx *s;
    smp_result r;
    uint32_t mask[3] = { 1u << 3, 1u << 31, 1u << 5 }; /* 3, 63, 69 */
    int64_t seen[V] = { 0 };
    for (int i = 0; i < V; i++)
        l[i] = 0.3f * (float)(i % 7);
    CHECK(!smp_open(&s, V, &err), "%s", err.msg);
    for (uint64_t k = 0; k < 600; k++) {
        smp_params p = params(k % 3 ? 1.0f : 0.0f, k % 5 == 1 ? 10 : 0, k % 5 == 2 ? 0.9f : 1, 0);
        p.mask = mask;
        p.logprobs = 0;
        CHECK(!smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, k, &err), "%s", err.msg);
        seen[r.id]++;
        CHECK(fabsf(r.logprob - (l[r.id] - k_logsumexp(l, V))) < 1e-6f, "raw logprob %g",
              (double)r.logprob);
        if (p.temperature == 0.0f) CHECK(r.id == 69, "greedy: %d", r.id); /* 69 % 7 is most */
    }
    CHECK(seen[3] > 0 && seen[63] > 0 && seen[69] > 0 && seen[3] + seen[63] + seen[69] == 600,
          "%lld %lld %lld", (long long)seen[3], (long long)seen[63], (long long)seen[69]);
    smp_params p = { .mask = (uint32_t[3]){ 0 } };
    CHECK(smp_sample(s, &r, l, &p, NULL, 0, NULL, 0, 0, &err) == LQ_ENOENT, "an empty mask");
    smp_close(s);
}

TEST(parameters_out_of_range_are_refused)
{
    static const smp_bias high[] = { { 10, 0 } }, fall[] = { { 3, 0 }, { 2, 0 } };
    static const smp_bias nan_bias[] = { { 3, NAN } };
    static const int32_t neg[] = { -1 }, twice[] = { 1, 1 };
    static const struct {
        const char *why, *names;
        smp_params p;
    } cases[] = {
        { "negative", "temperature", { .temperature = -1 } },
        { "NaN", "temperature", { .temperature = NAN } },
        { "infinite", "temperature", { .temperature = INFINITY } },
        { "above 1", "top_p", { .top_p = 1.1f } },
        { "negative", "min_p", { .min_p = -0.1f } },
        { "below -1", "top_k", { .top_k = -2 } },
        { "negative", "repetition_penalty", { .repetition_penalty = -1 } },
        { "NaN", "presence_penalty", { .presence_penalty = NAN } },
        { "NaN", "frequency_penalty", { .frequency_penalty = NAN } },
        { "too many", "logprobs", { .logprobs = 21 } },
        { "beyond the vocabulary", "logit_bias", { .bias = high, .n_bias = 1 } },
        { "not sorted", "logit_bias", { .bias = fall, .n_bias = 2 } },
        { "NaN", "logit_bias", { .bias = nan_bias, .n_bias = 1 } },
        { "negative", "allowed", { .allowed = neg, .n_allowed = 1 } },
        { "twice", "allowed", { .allowed = twice, .n_allowed = 2 } },
        { "empty", "allowed", { .allowed = twice, .n_allowed = 0 } },
        { "negative", "asked", { .asked = neg, .n_asked = 1 } },
        { "too many", "asked", { .asked = twice, .n_asked = 21 } },
    };
    lq_err err;
    smp_params ok = { 0 };
    CHECK(!smp_check(&ok, 10, &err), "a zeroed struct: %s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_status s = smp_check(&cases[i].p, 10, &err);
        CHECK(s == LQ_EVALUE && strstr(err.msg, cases[i].names), "%s %s: %s", cases[i].why,
              cases[i].names, s ? err.msg : "accepted");
    }
}

int main(int argc, char **argv)
{
    RUN(only_ids_that_the_oracle_keeps_are_drawn);
    RUN(frequencies_follow_the_filtered_distribution);
    RUN(a_draw_depends_on_seed_and_number_alone);
    RUN(a_point_is_its_share_of_any_total);
    RUN(penalties_and_bias_by_hand);
    RUN(equal_logits_take_the_lowest_ids);
    RUN(logprobs_are_of_the_raw_distribution);
    RUN(what_is_no_number_is_refused);
    RUN(only_ids_of_the_mask_are_drawn);
    RUN(parameters_out_of_range_are_refused);
    return check_end();
}
