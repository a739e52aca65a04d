/* Samplers: what each leaves of a row of logits, against another program's doubles
 * (tests/golden/make/samplers.py), and together in a draw. */
#include "runtime/engine/stage.h"

#include "base/json.h"
#include "kernels/sampling.h"
#include "runtime/engine/stages/dry.h"
#include "runtime/engine/stages/stages.h"
#include "runtime/tokenizer/tok.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { V = 24, MOST = 256 };

static cJSON *golden(void)
{
    cJSON *doc = NULL;
    lq_err err;
    lq_status s = js_parse_file(&doc, "tests/golden/samplers.json", 1 << 20, JS_UNIQUE, &err);
    CHECK(!s, "%s", err.msg);
    return doc;
}

static float number(const cJSON *o, const char *name)
{
    const cJSON *v = js_get(o, name);
    return v ? (float)v->valuedouble : 0;
}

static void read_row(float *x, const cJSON *row)
{
    const cJSON *c = row->child;
    for (int i = 0; i < V; i++, c = c->next)
        x[i] = cJSON_IsNumber(c) ? (float)c->valuedouble : -INFINITY;
}

static smp_params params_of(const cJSON *o)
{
    smp_params p = { .temperature = 1, .logprobs = -1, .seed = 3 };
    if (js_get(o, "temperature")) p.temperature = number(o, "temperature");
    p.dynatemp_range = number(o, "dynatemp_range");
    p.dynatemp_exponent = number(o, "dynatemp_exponent");
    p.top_k = (int32_t)number(o, "top_k");
    p.top_p = number(o, "top_p");
    p.min_p = number(o, "min_p");
    p.typical_p = number(o, "typical_p");
    p.top_n_sigma = number(o, "top_n_sigma");
    p.xtc_probability = number(o, "xtc_probability");
    p.xtc_threshold = number(o, "xtc_threshold");
    p.mirostat = (int)number(o, "mirostat");
    p.mu = number(o, "mu");
    return p;
}

TEST(each_stage_leaves_what_its_formula_says)
{
    cJSON *doc = golden();
    bool met[SMP_STAGES] = { 0 };
    for (const cJSON *c = js_get(doc, "stages")->child; c; c = c->next) {
        float x[V], w[V];
        int32_t ids[V];
        stage_ctx ctx = { .w = w, .ids = ids, .unit = draw_unit(V), .V = V };
        const char *name = js_get(c, "stage")->valuestring;
        const smp_params p = params_of(js_get(c, "params"));
        read_row(x, js_get(js_get(doc, "rows"), js_get(c, "row")->valuestring));
        for (int i = 0; i < SMP_STAGES; i++) {
            if (strcmp(smp_stages[i].name, name) != 0) continue;
            CHECK(smp_stages[i].on(&p), "%s is on", name);
            smp_stages[i].run(&ctx, x, &p);
            met[i] = true;
        }
        const double sum = stage_weights(&ctx, x);
        const cJSON *want = js_get(c, "p")->child;
        for (int i = 0; i < V; i++, want = want->next) {
            const double got = x[i] == -INFINITY ? -1 : (double)w[i] / sum;
            /* a few roundings of f32 at |x| < 20, and six digits in the file */
            CHECK(fabs(got - want->valuedouble) < 1e-5, "%s, row %s, id %d: %g, expected %g", name,
                  js_get(c, "row")->valuestring, i, got, want->valuedouble);
        }
    }
    for (int i = 0; i < SMP_STAGES; i++) /* infill: below */
        CHECK(met[i] || strcmp(smp_stages[i].name, "infill") == 0, "%s has no case",
              smp_stages[i].name);
    cJSON_Delete(doc);
}

/* The ids of an array behind its length, one array after the other. */
static int pack(int32_t *out, const cJSON *lists)
{
    int n = 0;
    for (const cJSON *l = lists->child; l; l = l->next) {
        out[n++] = cJSON_GetArraySize(l);
        for (const cJSON *c = l->child; c; c = c->next)
            out[n++] = c->valueint;
    }
    return n;
}

TEST(dry_punishes_what_goes_on_with_a_run)
{
    cJSON *doc = golden();
    for (const cJSON *c = js_get(doc, "dry")->child; c; c = c->next) {
        int32_t ids[MOST], runs[16], count[V] = { 0 };
        float x[V] = { 0 };
        int64_t n = 0;
        const cJSON *text = cJSON_GetArrayItem(js_get(doc, "texts"), js_get(c, "text")->valueint);
        for (const cJSON *i = text->child; i; i = i->next)
            ids[n++] = i->valueint;
        const smp_dry d = { .multiplier = number(c, "multiplier"),
                            .base = number(c, "base"),
                            .allowed = (int32_t)number(c, "allowed"),
                            .last_n = (int64_t)number(c, "last_n"),
                            .runs = runs,
                            .n_runs = pack(runs, js_get(c, "breakers")) };
        const int64_t prompt = n / 3; /* where the prompt ends is the same to it */
        dry_apply(x, count, &d, ids, prompt, ids + prompt, n - prompt);
        double want[V] = { 0 };
        for (const cJSON *l = js_get(c, "less")->child; l; l = l->next)
            want[l->child->valueint] = l->child->next->valuedouble;
        for (int i = 0; i < V; i++)
            CHECK(fabs(-(double)x[i] - want[i]) <= 1e-6 + 1e-5 * want[i] && count[i] == 0,
                  "text %d, id %d: %g, expected %g", js_get(c, "text")->valueint, i, -(double)x[i],
                  want[i]);
    }
    cJSON_Delete(doc);
}

TEST(a_breaker_of_one_token_is_a_bit)
{
    const int32_t ids[] = { 1, 2, 9, 4, 1, 2, 9 };
    const uint32_t nine = 1u << 9;
    float x[V] = { 0 };
    int32_t count[V] = { 0 };
    smp_dry d = { .multiplier = 1, .base = 2, .allowed = 1, .last_n = -1 };
    dry_apply(x, count, &d, ids, 7, NULL, 0);
    CHECK(x[4] == -4, "1 2 9 before: %g", (double)x[4]);
    d.breaks = &nine;
    x[4] = 0;
    dry_apply(x, count, &d, ids, 7, NULL, 0);
    CHECK(x[4] == 0, "nothing behind the breaker: %g", (double)x[4]);
}

static int32_t draw(smp_ctx *s, const float *x, const smp_params *p, uint64_t i)
{
    smp_result r = { .id = -1 };
    lq_err err = { "" };
    lq_status st = smp_sample(s, &r, x, p, NULL, 0, NULL, 0, i, &err);
    CHECK(!st, "%s", err.msg);
    return r.id;
}

TEST(the_usual_order_is_that_of_the_table)
{
    /* min-p behind a temperature of 2 keeps what it drops before it: e^-1 and e^-2 */
    const float x[] = { 0, -2, -9, -9 };
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, 4, &err), "open");
    smp_params p = {
        .temperature = 2, .min_p = 0.3f, .top_n_sigma = 100, .seed = 5, .logprobs = -1
    };
    int seen[2][4] = { { 0 } };
    for (int last = 0; last < 2; last++) {
        for (uint64_t i = 0; i < 200; i++)
            seen[last][draw(s, x, &p, i)]++;
        p.order[0] = 6; /* min_p */
        p.order[1] = 2; /* temperature */
    }
    CHECK(seen[0][1] > 20 && seen[0][2] + seen[0][3] == 0, "%d times", seen[0][1]);
    CHECK(seen[1][0] == 200, "%d times", seen[1][0]);
    smp_close(s);
}

TEST(xtc_has_its_own_chance)
{
    /* Of 10,000 draws with probability 0.3: 3,000, standard deviation 46; the seed is fixed. */
    const float x[] = { 0, 0.1f, -20, -20 };
    smp_ctx *s = NULL;
    lq_err err;
    CHECK(!smp_open(&s, 4, &err), "open");
    smp_params p = { .temperature = 1, .seed = 9, .logprobs = -1, .xtc_threshold = 0.1f };
    p.xtc_probability = 0.3f;
    const double upper = 1 / (1 + exp(-0.1));
    int first = 0;
    for (uint64_t i = 0; i < 10000; i++)
        first += draw(s, x, &p, i) == 0;
    const double want = 10000 * (0.3 + 0.7 * (1 - upper));
    CHECK(fabs(first - want) < 5 * 50, "%d, expected about %g", first, want);
    smp_close(s);
}

TEST(mirostat_holds_its_surprise)
{
    /* The mean surprise of many draws comes to tau, which a plain draw of these has not. */
    enum { N = 400, DRAWS = 20000 };
    float x[N];
    smp_ctx *s = NULL;
    lq_err err;
    for (int i = 0; i < N; i++)
        x[i] = -1.1f * (float)log(i + 1);
    CHECK(!smp_open(&s, N, &err), "open");
    for (float tau = 2; tau <= 4; tau++) {
        smp_params p = { .temperature = 1, .seed = 1, .logprobs = -1, .mirostat = 2 };
        p.mirostat_tau = tau;
        p.mirostat_eta = 0.1f;
        p.mu = 2 * tau;
        double sum = 0;
        for (uint64_t i = 0; i < DRAWS; i++) {
            draw(s, x, &p, i);
            sum += (double)smp_surprise(s);
            p.mu = smp_mirostat(&p, smp_surprise(s));
        }
        /* mu stays within 2 tau of 0: its drift is what the mean is off by, over eta and draws */
        CHECK(fabs(sum / DRAWS - (double)tau) < 0.01, "tau %g: %g", (double)tau, sum / DRAWS);
    }
    smp_close(s);
}

TEST(wrong_values_are_refused)
{
    const struct {
        const char *name;
        smp_params p;
    } cases[] = {
        { "mirostat", { .mirostat = 1 } },
        { "dry_base", { .dry = { .multiplier = 1, .base = 0.5f, .allowed = 2 } } },
        { "dry", { .dry = { .multiplier = 1, .base = 2 } } },
        { "xtc_probability", { .xtc_probability = 1.5f } },
        { "typical_p", { .typical_p = -1 } },
        { "samplers", { .order = { SMP_STAGES + 1 } } },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err = { "" };
        CHECK(smp_check(&cases[i].p, V, &err) == LQ_EVALUE &&
                  strncmp(err.msg, cases[i].name, strlen(cases[i].name)) == 0,
              "%s: %s", cases[i].name, err.msg);
    }
}

/* Tokens "a", "ab", "abc", "b", "c", "d", the end (6), another end (7), "g" and "h". */
static tok_tokenizer *open_words(uint8_t **blob)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":6,\"content\":\"<e>\",\"single_word\":"
        "false,"
        "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true},{\"id\":7,"
        "\"content\":"
        "\"<f>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
        "\"special\":"
        "true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false,"
        "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
        "\"model\":{"
        "\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"ab\":1,\"abc\":2,\"b\":3,\"c\":4,"
        "\"d\":5,\"g\":8,\"h\":9}}}";
    tok_tokenizer *t = NULL;
    lq_err err = { "" };
    size_t bytes;
    lq_status s = tok_compile(blob, &bytes, json, sizeof json - 1, &err);
    if (!s) s = tok_open(&t, *blob, bytes, &err);
    CHECK(!s, "%s", err.msg);
    return t;
}

/* By hand after llama.cpp's rule, of probabilities. */
TEST(infill_keeps_sure_ids_or_the_end)
{
    static const int32_t ends[] = { 6, 7 };
    static const smp_bias ban[] = { { 6, -INFINITY } },
                          both[] = { { 6, -INFINITY }, { 7, -INFINITY } };
    static const struct {
        const char *why;
        double p[10]; /* 0: dropped before */
        const smp_bias *bias;
        int n_bias;
        const char *kept;
    } cases[] = {
        { "one sure id", { .9, 0, 0, .05, .05 }, NULL, 0, "0" },
        { "two that are alike", { .4, 0, 0, .4, .1, .1 }, NULL, 0, "03" },
        { "the second threshold: 1/3 of what stayed", { .6, 0, 0, .21, .1, .09 }, NULL, 0, "0" },
        { "an end that is likely enough ends", { .5, 0, 0, .3, 0, 0, .2 }, NULL, 0, "6" },
        { "an unlikely end stays beside a sure id", { .94, 0, 0, .05, 0, 0, .01 }, NULL, 0, "06" },
        { "both ends", { .3, 0, 0, .3, 0, 0, .2, .2 }, NULL, 0, "67" },
        { "prefixes are merged into the likelier", { .15, .18, .12, .19, .18, .18 }, NULL, 0, "1" },
        { "nothing is sure: the end, though it was dropped",
          { 1, 0, 0, 1, 1, 1, 0, 0, 1, 1 },
          NULL,
          0,
          "6" },
        { "or the other, where that is banned", { 1, 0, 0, 1, 1, 1, 0, 0, 1, 1 }, ban, 1, "7" },
        { "or nothing changes", { 1, 0, 0, 1, 1, 1, 0, 0, 1, 1 }, both, 2, "034589" },
        { "nothing is sure, and an end is there",
          { 1, 0, 0, 1, 1, 1, 0, .001, 1, 1 },
          NULL,
          0,
          "7" },
    };
    uint8_t *blob = NULL;
    tok_tokenizer *t = open_words(&blob);
    for (size_t i = 0; i < LQ_COUNT(cases) && t; i++) {
        float x[10], w[10];
        int32_t ids[10];
        char kept[11] = "";
        stage_ctx c = { .w = w, .ids = ids, .unit = draw_unit(10), .V = 10 };
        const smp_params p = { .bias = cases[i].bias,
                               .n_bias = cases[i].n_bias,
                               .infill = { t, ends, 2 } };
        for (int k = 0; k < 10; k++)
            x[k] = cases[i].p[k] > 0 ? (float)log(cases[i].p[k]) : -INFINITY;
        stage_infill(&c, x, &p);
        for (int k = 0, n = 0; k < 10; k++)
            if (x[k] != -INFINITY) kept[n++] = (char)('0' + k);
        CHECK(strcmp(kept, cases[i].kept) == 0, "%s: expected %s, found %s", cases[i].why,
              cases[i].kept, kept);
    }
    tok_close(t);
    free(blob);
}

int main(int argc, char **argv)
{
    RUN(each_stage_leaves_what_its_formula_says);
    RUN(dry_punishes_what_goes_on_with_a_run);
    RUN(a_breaker_of_one_token_is_a_bit);
    RUN(the_usual_order_is_that_of_the_table);
    RUN(xtc_has_its_own_chance);
    RUN(mirostat_holds_its_surprise);
    RUN(wrong_values_are_refused);
    RUN(infill_keeps_sure_ids_or_the_end);
    return check_end();
}
