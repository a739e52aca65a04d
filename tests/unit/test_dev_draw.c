/* tests/unit/test_dev_draw.c - tokens drawn on a device against smp_sample from the same logits: the
 * same ones, with the same numbers, to the bit. */
#include "runtime/engine/sample.h"
#include "tests/support/devrig.h"

static_assert((int)DEV_TOPS == (int)SMP_MAX_LOGPROBS, "alternatives of a result");

/* What a sequence has so far; the same for all rows of a check. */
typedef struct {
    const int32_t *prompt, *output;
    int64_t n_prompt, n_output;
} past;

/* A draw whose mask and edits are there. */
static dev_draw how_of(rig *r, smp_ctx *smp, const smp_params *p, const past *h, int64_t V,
                       uint64_t draw, int64_t row)
{
    dev_draw d;
    dev_edit *edits = malloc((size_t)V * sizeof *edits);
    CHECK(edits && smp_on_device(smp, &d, edits, V, p, h->prompt, h->n_prompt, h->output,
                                 h->n_output, draw, row),
          "row %lld is the host's", (long long)row);
    if (d.mask) d.mask = put(r, d.mask, (size_t)lq_ceil_div(V, 32) * sizeof *d.mask);
    d.edits = d.n_edits ? put(r, edits, (size_t)d.n_edits * sizeof *edits) : NULL;
    free(edits);
    return d;
}

static bool same(const dev_drawn *got, const smp_result *want)
{
    const size_t n = (size_t)want->n_top * sizeof(float);
    return got->id == want->id && memcmp(&got->logprob, &want->logprob, sizeof(float)) == 0 &&
           got->n_top == want->n_top && memcmp(got->top_id, want->top_id, n) == 0 &&
           memcmp(got->top_logprob, want->top_logprob, n) == 0;
}

enum { ROWS = 40 };

/* The same rows by both: by a block each, and by several, which a device of many multiprocessors has of
 * them. */
static void check_past(const char *why, float *x, int64_t n, int64_t V, const smp_params *p,
                       const past *h, float scale, float cap)
{
    enum { DEVICES = 2 };
    static const int n_sm[DEVICES] = { 1, 512 };
    rig r;
    smp_ctx *smp;
    lq_err err = { "" };
    dev_draw how[ROWS];
    dev_drawn got[DEVICES][ROWS];
    bool ok = true;
    rig_open(&r);
    CHECK(!smp_open(&smp, V, &err), "%s", err.msg);
    for (int k = 0; k < DEVICES; k++) {
        for (int64_t i = 0; i < n; i++)
            how[i] = how_of(&r, smp, &p[i], h, V, (uint64_t)(3 * i), n - 1 - i);
        const dev_draw_args a = { .logits = put(&r, x, (size_t)(n * V) * sizeof *x),
                                  .how = put(&r, how, (size_t)n * sizeof *how),
                                  .out = put(&r, NULL, (size_t)n * sizeof *got[k]),
                                  .scratch = put(&r, NULL, dev_draw_scratch(n)),
                                  .n = n,
                                  .V = V,
                                  .scale = scale,
                                  .cap = cap };
        r.d.n_sm = n_sm[k];
        ops->draw(&r.d, &a);
        ok = get(&r, got[k], a.out, (size_t)n * sizeof *got[k], why) && ok;
    }
    if (scale != 1) k_scale(x, scale, n * V);
    if (cap > 0) k_softcap(x, cap, n * V);
    for (int64_t i = 0; i < n && ok; i++) {
        smp_result want;
        lq_status s = smp_sample(smp, &want, x + how[i].row * V, &p[i], h->prompt, h->n_prompt,
                                 h->output, h->n_output, how[i].draw, &err);
        if (s == LQ_ENOENT) want = (smp_result){ .id = -2 };
        CHECK(!s || s == LQ_ENOENT, "%s: %s", why, err.msg);
        for (int k = 0; k < DEVICES; k++)
            CHECK(s ? got[k][i].id == -2 : same(&got[k][i], &want),
                  "%s: V %lld, row %lld of %d multiprocessors (T %g, k %d, p %g, min %g, %d "
                  "logprobs): id %d %a, expected %d %a",
                  why, (long long)V, (long long)i, n_sm[k], (double)p[i].temperature, p[i].top_k,
                  (double)p[i].top_p, (double)p[i].min_p, p[i].logprobs, got[k][i].id,
                  (double)got[k][i].logprob, want.id, (double)want.logprob);
    }
    smp_close(smp);
    rig_close(&r);
}

static void check_rows(const char *why, float *x, int64_t n, int64_t V, const smp_params *p,
                       float scale, float cap)
{
    check_past(why, x, n, V, p, &(past){ 0 }, scale, cap);
}

/* Every way to keep ids, in turn; row i of a set, and of the next one another. */
static smp_params way(int64_t i)
{
    static const float temperatures[] = { 0.7f, 1, 0, 1.6f, 0.05f },
                       top_ps[] = { 1, 0.9f, 0.3f, 1 };
    static const int32_t top_ks[] = { 0, 5, 40, 1, 0, 2000, 450 };
    static const float min_ps[] = { 0, 0, 0.05f };
    return (smp_params){ .temperature = temperatures[i % 5],
                         .top_p = top_ps[i % 4],
                         .top_k = top_ks[i % 7],
                         .min_p = min_ps[i % 3],
                         .seed = (uint64_t)i * 77,
                         .logprobs = i % 4 == 3 ? SMP_MAX_LOGPROBS : (int)(i % 3) - 1 };
}

/* spread: how far logits lie apart; grid: they are multiples of it, so that many are equal. */
static void check_ways(const char *why, int64_t V, float spread, float grid, int64_t first)
{
    enum { N = 14 };
    smp_params p[N];
    float *x = malloc((size_t)(N * V) * sizeof *x);
    uint64_t seed = (uint64_t)V;
    if (!x) return;
    fill_row(x, N * V, &seed);
    for (int64_t i = 0; i < N * V; i++)
        x[i] = grid > 0 ? rintf(x[i] * spread / grid) * grid : x[i] * spread;
    for (int64_t i = 0; i < N; i++)
        p[i] = way(first + i);
    check_rows(why, x, N, V, p, 1, 0);
    free(x);
}

TEST(tokens_and_logprobs_are_the_cpus)
{
    static const int64_t sizes[] = { 1, 2, 17, 511, 1030, 9001 };
    for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
        check_ways("logits apart", sizes[i], 8, 0, (int64_t)(14 * i));
        check_ways("many equal ones", sizes[i], 4, 0.5f, (int64_t)(14 * i + 5));
    }
    check_ways("all equal", 5000, 0, 0, 0);
    check_ways("beyond all weights", 1030, 400, 0, 0);
}

TEST(the_best_ids_in_one_threads_share_are_no_less_found)
{
    enum { V = 1 << 15, N = 3 };
    float *x = malloc((size_t)(N * V) * sizeof *x);
    const smp_params p[N] = { { .temperature = 1, .top_k = 50, .seed = 5, .logprobs = 20 },
                              { .temperature = 1, .top_p = 0.95f, .seed = 6, .logprobs = -1 },
                              { .temperature = 1, .top_k = 300, .top_p = 0.99f, .seed = 7 } };
    if (!x) return;
    for (int64_t i = 0; i < N * V; i++)
        x[i] = (float)(i % V % 512 == 7) * 9 + (float)(i * 37 % 1001) * 1e-3f;
    check_rows("one share", x, N, V, p, 1, 0);
    for (int64_t i = 0; i < N * V; i++) /* more are equal than the list has room for */
        x[i] = i % V % 13 == 0 ? 3.0f : -1.0f;
    check_rows("2,521 best ones", x, N, V, p, 1, 0);
    free(x);
}

TEST(scaled_and_capped_logits_are_drawn_from)
{
    enum { V = 700, N = 6 };
    smp_params p[N];
    float x[N * V];
    uint64_t seed = 1;
    fill_row(x, N * V, &seed);
    for (int64_t i = 0; i < N; i++)
        p[i] = way(i + 1);
    check_rows("scaled", x, N, V, p, 0.0625f, 0);
    fill_row(x, N * V, &seed);
    k_scale(x, 60, N * V);
    check_rows("capped", x, N, V, p, 1, 30);
    check_rows("both", x, N, V, p, 0.9f, 20);
}

/* Bias, penalties and masks: each by itself, and together; with every way to keep ids. */
static void set_changes(smp_params *p, int64_t i, const smp_bias *bias, int n_bias,
                        const uint32_t *mask)
{
    static const float repetitions[] = { 1.3f, 0.5f, 1e-30f, 1e6f },
                       presences[] = { 0.7f, -1.5f, 0 }, frequencies[] = { 0, 0.4f, -0.25f };
    if (i % 7 == 0 || i % 7 > 3) {
        p->bias = bias;
        p->n_bias = n_bias;
    }
    if (i % 7 == 1 || i % 7 > 4) p->repetition_penalty = repetitions[i / 7 % 4];
    if (i % 7 == 2 || i % 7 > 4) {
        p->presence_penalty = presences[i / 7 % 3];
        p->frequency_penalty = frequencies[i / 7 % 3];
    }
    if (i % 7 == 3 || i % 7 == 6) p->mask = mask;
}

/* every: of how many ids the mask leaves one; 0: none. */
static void check_changes(int64_t V, int64_t every, float scale, float cap)
{
    enum { N = 28, PROMPT = 60, OUTPUT = 35 };
    smp_params p[N];
    smp_bias bias[40];
    int32_t prompt[PROMPT], output[OUTPUT];
    const past h = { prompt, output, PROMPT, OUTPUT };
    float *x = malloc((size_t)(N * V) * sizeof *x);
    uint32_t *mask = calloc((size_t)lq_ceil_div(V, 32), sizeof *mask);
    uint64_t seed = (uint64_t)(V + every);
    int n_bias = 0;
    if (!x || !mask) {
        free(x);
        free(mask);
        return;
    }
    fill_row(x, N * V, &seed);
    k_scale(x, 6, N * V);
    for (int64_t i = 0; every && i < V; i++)
        mask[i / 32] |= (uint32_t)(i * 7919 % every == 0) << i % 32;
    for (int64_t id = 0; id < V && n_bias < 40; id += 1 + V / 40) {
        static const float values[] = { 3, -INFINITY, -2.5f, 12, 0 };
        bias[n_bias] = (smp_bias){ (int32_t)id, values[n_bias % 5] };
        n_bias++;
    }
    for (int64_t i = 0; i < PROMPT; i++) /* some ids often, some that have a bias */
        prompt[i] = (int32_t)(i * i * 31 % V);
    for (int64_t i = 0; i < OUTPUT; i++)
        output[i] = (int32_t)((i % 5 ? i * 17 : i * (1 + V / 40)) % V);
    for (int64_t i = 0; i < N; i++) {
        p[i] = way(i + 3 * every);
        set_changes(&p[i], i, bias, n_bias, mask);
    }
    check_past("changed", x, N, V, p, &h, scale, cap);
    free(x);
    free(mask);
}

TEST(bias_penalties_and_masks_are_the_cpus)
{
    static const int64_t sizes[] = { 1, 2, 17, 511, 1030 };
    for (size_t i = 0; i < LQ_COUNT(sizes); i++)
        for (int64_t every = 0; every < 4; every++)
            if ((i + (size_t)every) % 2 == 0 || check_hard()) check_changes(sizes[i], every, 1, 0);
    check_changes(9001, 2000, 1, 0); /* a few ids of many */
    check_changes(700, 2, 0.5f, 20);
}

TEST(what_is_no_number_is_said)
{
    enum { V = 600 };
    static const struct {
        float value;
        int at, then;
    } cases[] = { { NAN, 0, 599 }, { INFINITY, 599, 599 }, { -INFINITY, 77, 78 } };
    for (size_t k = 0; k < 2 * LQ_COUNT(cases); k++) {
        const size_t i = k / 2;
        rig r;
        float x[2 * V] = { 0 };
        dev_drawn got[2];
        dev_edit edits[2] = { { .id = cases[i].at, .value = -INFINITY },
                              { .id = 300, .value = 4 } };
        dev_draw how[2] = { { .temperature = 1, .top_k = 3, .logprobs = 2, .row = 0 },
                            { .row = 1 } };
        x[cases[i].then] = NAN;
        x[cases[i].at] = cases[i].value;
        x[V + 9] = 1;
        rig_open(&r);
        if (k % 2) { /* several blocks, and edits, also of what is no number */
            r.d.n_sm = 512;
            how[0].edits = put(&r, edits, sizeof edits);
            how[0].n_edits = 2;
        }
        const dev_draw_args a = { .logits = put(&r, x, sizeof x),
                                  .how = put(&r, how, sizeof how),
                                  .out = put(&r, NULL, sizeof got),
                                  .scratch = put(&r, NULL, dev_draw_scratch(2)),
                                  .n = 2,
                                  .V = V,
                                  .scale = 1 };
        ops->draw(&r.d, &a);
        if (get(&r, got, a.out, sizeof got, "draw")) {
            CHECK(got[0].id == -1 && got[0].bad == cases[i].at &&
                      memcmp(&got[0].value, &cases[i].value, sizeof(float)) == 0,
                  "case %zu: id %d, bad %d, %g", i, got[0].id, got[0].bad, (double)got[0].value);
            CHECK(got[1].id == 9, "the row beside it: %d", got[1].id);
        }
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(tokens_and_logprobs_are_the_cpus);
    RUN(the_best_ids_in_one_threads_share_are_no_less_found);
    RUN(scaled_and_capped_logits_are_drawn_from);
    RUN(bias_penalties_and_masks_are_the_cpus);
    RUN(what_is_no_number_is_said);
    return check_end();
}
