/* Beam search: its answers against transformers', and what load must not change. */
#include "base/json.h"
#include "kernels/ops.h"
#include "runtime/engine/beam.h"
#include "runtime/engine/engine.h"
#include "runtime/load.h"
#include "tests/support/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MODEL "models/novels-1m"
enum { MAX_WIDTH = 8, MAX_IDS = 64 };

static load_model loaded; /* once */
static load_tok text;

typedef struct {
    pool *p;
    engine *e;
} rig;

static bool rig_open(rig *r, int threads, eng_opts o)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_status s = pool_open(&r->p, threads, &err);
    if (!s) s = eng_open(&r->e, &loaded.m, text.t, r->p, &o, &err);
    CHECK(!s, "open: %s", err.msg);
    return !s;
}

static void rig_close(rig *r)
{
    eng_close(r->e);
    pool_close(r->p);
}

/* A request and what came of it. */
typedef struct {
    eng_request r;
    int32_t prompt[MAX_IDS];
    uint64_t id;
    struct {
        int32_t ids[MAX_IDS];
        float logprobs[MAX_IDS];
        int n;
        char text[512];
        size_t n_text;
        eng_finish finish;
    } answers[MAX_WIDTH];
    int n_answers;
    char error[256];
    atomic_int ended, n_events;
} search;

static void take(void *user, const eng_event *e)
{
    search *s = user;
    CHECK(!atomic_load(&s->ended), "an event behind the last");
    CHECK(e->answer >= s->n_answers - 1 && e->answer <= s->n_answers, "answer %d behind %d",
          e->answer, s->n_answers);
    s->n_answers = e->answer + 1;
    for (int i = 0; i < e->n_ids; i++) {
        int k = s->answers[e->answer].n++;
        s->answers[e->answer].ids[k] = e->ids[i];
        if (e->logprobs) s->answers[e->answer].logprobs[k] = e->logprobs[i].logprob;
    }
    memcpy(s->answers[e->answer].text + s->answers[e->answer].n_text, e->text, e->n_text);
    s->answers[e->answer].n_text += e->n_text;
    s->answers[e->answer].finish = e->finish;
    if (e->error) snprintf(s->error, sizeof s->error, "%s", e->error);
    atomic_fetch_add(&s->n_events, 1);
    if (e->last) atomic_store(&s->ended, 1);
}

static void start(rig *r, search *s)
{
    lq_err err = { "" };
    lq_status st = eng_submit(r->e, &s->r, take, s, &s->id, &err);
    CHECK(!st, "submit: %s", err.msg);
    if (st) atomic_store(&s->ended, 1);
}

static void wait_for(search *s)
{
    struct timespec t = { 0, 200000 };
    for (int i = 0; i < 600000 && !atomic_load(&s->ended); i++)
        nanosleep(&t, NULL);
    CHECK(atomic_load(&s->ended), "it never ends");
}

/* ---- against transformers ---- */

static int read_ids(int32_t *out, const cJSON *list)
{
    int n = 0;
    for (const cJSON *c = list ? list->child : NULL; c && n < MAX_IDS; c = c->next)
        out[n++] = (int32_t)c->valuedouble;
    return n;
}

static double number(const cJSON *o, const char *key, double missing)
{
    const cJSON *v = js_get(o, key);
    return v ? v->valuedouble : missing;
}

static eng_early early_of(const cJSON *v)
{
    if (cJSON_IsString(v)) return ENG_EARLY_NEVER;
    return cJSON_IsTrue(v) ? ENG_EARLY_FULL : ENG_EARLY_NO_GAIN;
}

/* A case of tests/golden/beam as a request. */
static void read_case(search *s, const cJSON *c, int32_t ends[8], const char *stops[4])
{
    memset(s, 0, sizeof *s);
    int width = (int)number(c, "num_beams", 0), n_stop = 0;
    const cJSON *strings = js_get(c, "stop_strings");
    for (const cJSON *i = strings ? strings->child : NULL; i; i = i->next)
        stops[n_stop++] = i->valuestring;
    s->r = (eng_request){
        .prompt = s->prompt,
        .n_prompt = read_ids(s->prompt, js_get(c, "prompt")),
        .max_tokens = (int64_t)number(c, "max_new_tokens", 0),
        .min_tokens = (int64_t)number(c, "min_new_tokens", 0),
        .params = { .logprobs = 0,
                    .repetition_penalty = (float)number(c, "repetition_penalty", 1) },
        .stop = stops,
        .n_stop = n_stop,
        .stop_ids = ends,
        .n_stop_ids = read_ids(ends, js_get(c, "end")),
        .ignore_eos = true,
        .prompt_logprobs = -1,
        .beam = { .width = width,
                  .n = (int64_t)number(c, "num_return_sequences", width),
                  .length_penalty = number(c, "length_penalty", 1),
                  .early = early_of(js_get(c, "early_stopping")) },
    };
}

static void check_case(const search *s, const cJSON *c)
{
    const char *why = js_get(c, "why")->valuestring;
    bool penalized = js_get(c, "repetition_penalty") != NULL; /* the scores are, too */
    const cJSON *want = js_get(c, "answers")->child, *score = js_get(c, "scores")->child;
    CHECK(s->n_answers == s->r.beam.n && !s->error[0], "%s: %d answers, '%s'", why, s->n_answers,
          s->error);
    for (int a = 0; want && a < s->n_answers; a++, want = want->next, score = score->next) {
        int32_t ids[MAX_IDS];
        int n = read_ids(ids, want);
        double sum = 0;
        CHECK(s->answers[a].n == n && !memcmp(s->answers[a].ids, ids, (size_t)n * sizeof *ids),
              "%s: answer %d has %d ids, expected %d", why, a, s->answers[a].n, n);
        CHECK(s->answers[a].finish == (n < s->r.max_tokens ? ENG_STOP : s->answers[a].finish) &&
                  s->answers[a].finish,
              "%s: answer %d ends as %s", why, a, eng_finish_text(s->answers[a].finish));
        for (int i = 0; i < n; i++)
            sum += (double)s->answers[a].logprobs[i];
        sum /= pow(n, s->r.beam.length_penalty);
        /* both sum n rounded log-probabilities of the same model in f32 */
        CHECK(penalized || fabs(sum - score->valuedouble) < 1e-4 * fabs(score->valuedouble),
              "%s: answer %d scores %.6f, expected %.6f", why, a, sum, score->valuedouble);
    }
}

TEST(answers_and_scores_are_those_of_transformers)
{
    cJSON *doc = NULL;
    lq_err err = { "" };
    rig r;
    lq_status s = js_parse_file(&doc, "tests/golden/beam/novels-1m.json", 1 << 20, JS_UNIQUE, &err);
    CHECK(!s, "%s", err.msg);
    if (s || !rig_open(&r, 2, (eng_opts){ .max_seqs = MAX_WIDTH, .max_len = 256 })) return;
    search *one = calloc(1, sizeof *one);
    int n = 0;
    for (const cJSON *c = doc->child; c; c = c->next, n++) {
        int32_t ends[8];
        const char *stops[4];
        read_case(one, c, ends, stops);
        start(&r, one);
        wait_for(one);
        check_case(one, c);
    }
    CHECK(n >= 15, "%d cases", n);
    free(one);
    rig_close(&r);
    cJSON_Delete(doc);
}

/* ---- load ---- */

enum { TOGETHER = 12 };

/* Searches, and requests of one line between them, all different. */
static void make_search(search *s, int k)
{
    memset(s, 0, sizeof *s);
    int64_t n = 3 + (k * 13) % 41;
    for (int64_t i = 0; i < n; i++)
        s->prompt[i] = (int32_t)(5 + (k % 3 * 97 + i * i * 11) % 3000);
    s->r = (eng_request){ .prompt = s->prompt,
                          .n_prompt = n,
                          .max_tokens = 8 + k * 5 % 17,
                          .ignore_eos = true,
                          .prompt_logprobs = -1 };
    s->r.params = (smp_params){ .temperature = 0.7f, .logprobs = 2, .seed = (uint64_t)k };
    if (k % 4 == 3) return;
    s->r.beam = (eng_beam){ .width = 2 + k % 4,
                            .n = 1 + k % 2,
                            .length_penalty = 0.5 * (k % 3),
                            .early = (eng_early)(k % 3) };
}

static void run_all(rig *r, search *all, bool together)
{
    for (int k = 0; k < TOGETHER; k++) {
        make_search(&all[k], k);
        start(r, &all[k]);
        if (!together) wait_for(&all[k]);
    }
    for (int k = 0; k < TOGETHER; k++)
        wait_for(&all[k]);
}

TEST(the_same_bytes_alone_and_among_others)
{
    size_t block = kv_block_bytes(loaded.m.cfg, 16, KV_F32);
    const struct {
        const char *why;
        int threads;
        eng_opts o;
    } cases[] = {
        { "together", 2, { .max_len = 256 } },
        { "few places, small steps", 1, { .max_seqs = 6, .max_batch_tokens = 16, .max_len = 128 } },
        { "no prefix cache, small blocks",
          3,
          { .no_prefix_cache = true, .block_size = 8, .max_len = 128 } },
        { "beside guesses", 2, { .guesses = 4, .max_len = 128 } },
        { "a pool for little more than one", 2, { .kv_bytes = 16 * block, .max_len = 128 } },
    };
    search *alone = calloc(TOGETHER, sizeof *alone), *among = calloc(TOGETHER, sizeof *among);
    rig r;
    if (!rig_open(&r, 1, (eng_opts){ .max_len = 256 })) return;
    run_all(&r, alone, false);
    rig_close(&r);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        eng_stats st;
        if (!rig_open(&r, cases[i].threads, cases[i].o)) return;
        run_all(&r, among, true);
        eng_stats_get(r.e, &st);
        for (int k = 0; k < TOGETHER; k++)
            CHECK(among[k].n_answers == alone[k].n_answers &&
                      !memcmp(among[k].answers, alone[k].answers, sizeof alone[k].answers),
                  "%s: request %d answers otherwise than alone", cases[i].why, k);
        CHECK(st.kv_blocks_used == 0, "%s: %lld blocks are still held", cases[i].why,
              (long long)st.kv_blocks_used);
        CHECK(i < 4 || st.preemptions > 0, "%s: none was pre-empted", cases[i].why);
        rig_close(&r);
    }
    free(alone);
    free(among);
}

TEST(a_cancelled_search_ends_once_and_gives_its_blocks_back)
{
    rig r;
    if (!rig_open(&r, 1, (eng_opts){ .max_len = 1024 })) return;
    search *s = calloc(1, sizeof *s);
    make_search(s, 5);
    s->r.max_tokens = 900;
    s->r.beam.length_penalty = 2, s->r.beam.early = ENG_EARLY_NEVER;
    start(&r, s);
    eng_stats st = { 0 };
    while (st.steps < 8)
        eng_stats_get(r.e, &st);
    CHECK(!atomic_load(&s->ended) && st.kv_blocks_used > 0, "it runs");
    eng_cancel(r.e, s->id);
    wait_for(s);
    CHECK(s->answers[0].finish == ENG_CANCELLED && atomic_load(&s->n_events) == 1, "%d events",
          atomic_load(&s->n_events));
    eng_stats_get(r.e, &st);
    CHECK(st.kv_blocks_used == 0, "%lld blocks are still held", (long long)st.kv_blocks_used);
    free(s);
    rig_close(&r);
}

TEST(searches_that_can_never_run_are_refused)
{
    static const struct {
        const char *why;
        eng_beam beam;
        int64_t max_tokens;
        const char *says;
    } cases[] = {
        { "more answers than lines", { 2, 3, 1, 0 }, 5, "1..width" },
        { "no answer", { 2, 0, 1, 0 }, 5, "1..width" },
        { "wider than a step", { 9, 1, 1, 0 }, 5, "--max-num-seqs" },
        { "more blocks than there are", { 8, 1, 1, 0 }, 200, "KV blocks" },
        { "a penalty that is none", { 2, 1, 1e9, 0 }, 5, "length_penalty" },
        { "nothing to say", { 2, 1, 1, 0 }, 0, "max_tokens" },
        { "lists beyond measure", { 1 << 20, 1, 1, 0 }, 200, "256 MiB" },
    };
    size_t block = kv_block_bytes(loaded.m.cfg, 16, KV_F32);
    rig r;
    if (!rig_open(&r, 1, (eng_opts){ .max_seqs = 8, .kv_bytes = 32 * block, .max_len = 256 }))
        return;
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        search s;
        lq_err err = { "" };
        make_search(&s, 3);
        s.r.beam = cases[i].beam;
        s.r.max_tokens = cases[i].max_tokens;
        lq_status st = eng_submit(r.e, &s.r, take, &s, NULL, &err);
        CHECK(st == LQ_EVALUE && strstr(err.msg, cases[i].says), "%s: '%s'", cases[i].why, err.msg);
    }
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    pool *p = NULL;
    lq_status s = pool_open(&p, 1, &err);
    if (!s) s = k_init(NULL, &err);
    if (!s) s = load_weights(&loaded, MODEL, &(load_opts){ 0 }, p, NULL, &err);
    if (!s) s = load_tok_open(&text, loaded.src, MODEL, &err);
    CHECK(!s, "%s", err.msg);
    if (!s) {
        RUN(answers_and_scores_are_those_of_transformers);
        RUN(the_same_bytes_alone_and_among_others);
        RUN(a_cancelled_search_ends_once_and_gives_its_blocks_back);
        RUN(searches_that_can_never_run_are_refused);
    }
    load_tok_close(&text);
    load_model_close(&loaded);
    pool_close(p);
    return check_end();
}
