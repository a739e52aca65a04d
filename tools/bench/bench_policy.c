/* tools/bench/bench_policy.c - see bench_policy.h. */
#include "tools/bench/bench_policy.h"

#include <stdio.h>

#include "base/clock.h"
#include "tools/cli/progress.h"

enum { PROMPT = 8, SHORT = 8, LONG = 128, OF = 8 };
static const char *const names[ENG_N_BATCHINGS] = {
    [ENG_CONTINUOUS] = "continuous", [ENG_STATIC] = "static", [ENG_DYNAMIC] = "dynamic"
};
static const eng_batching order[ENG_N_BATCHINGS] = { ENG_STATIC, ENG_DYNAMIC, ENG_CONTINUOUS };

/* Of answer i. One of each OF is LONG; which of them goes by multiples of the golden ratio, so that
 * no two policies meet them at a pace of their own. */
static int64_t length_of(int64_t i)
{
    const int64_t of = i / OF;
    const double u = (double)of * 0.6180339887498949;
    return i % OF == (int64_t)((u - floor(u)) * OF) ? LONG : SHORT;
}

static void ignore(void *user, const eng_event *e)
{
    (void)user;
    (void)e;
}

static lq_status bench_policy_submit(engine *e, const model *m, int64_t i, int64_t n, lq_err *err)
{
    int32_t ids[PROMPT];
    for (int k = 0; k < PROMPT; k++)
        ids[k] = (int32_t)((i * 131 + k * 31 + 7) % m->cfg->vocab);
    eng_request r = { .prompt = ids,
                      .n_prompt = PROMPT,
                      .max_tokens = n,
                      .params = { .logprobs = -1 },
                      .ignore_eos = true,
                      .prompt_logprobs = -1 };
    return eng_submit(e, &r, ignore, NULL, NULL, err);
}

static lq_status run_policy(bench_policy_row *r, const bench_policy *b, const model *m,
                            const bench_fwd *how, const lq_job *job, lq_err *err)
{
    engine *e = NULL;
    eng_stats st;
    eng_opts o = { .acts = how->acts,
                   .kv = how->kv,
                   .policy = { .batching = r->batching,
                               .batch_wait = r->batching == ENG_DYNAMIC ? 0.05 : 0 },
                   .max_len = PROMPT + LONG,
                   .max_seqs = b->places,
                   .queue = b->requests,
                   .no_prefix_cache = true };
    lq_status s = eng_open(&e, m, NULL, how->p, &o, err);
    /* The first keeps the engine busy while the others arrive, as they would wait for a batch. */
    double start = lq_now();
    if (!s) s = bench_policy_submit(e, m, b->requests, 1, err);
    for (int64_t i = 0; i < b->requests && !s; i++)
        s = bench_policy_submit(e, m, i, length_of(i), err);
    while (!s && !eng_drain(e, 0.1)) {
        if (lq_stopped(job)) s = LQ_EINTR;
        eng_stats_get(e, &st);
        lq_report(job, names[r->batching], (double)st.generation_tokens, (double)b->tokens);
    }
    r->seconds = lq_now() - start;
    if (!s) {
        eng_stats_get(e, &st);
        r->steps = st.steps;
        r->rows = (double)st.rows / (double)st.steps;
        r->tok_s = (double)b->tokens / r->seconds;
        r->overhead = 1 - st.model_seconds / st.step_seconds;
    }
    eng_close(e);
    return s;
}

lq_status bench_policy_run(bench_policy *b, const model *m, const bench_fwd *how, int64_t n,
                           int64_t places, const lq_job *job, lq_err *err)
{
    *b = (bench_policy){ .requests = n, .places = places };
    for (int64_t i = 0; i < n; i++) {
        b->tokens += length_of(i);
        b->n_long += length_of(i) == LONG;
    }
    if (m->cfg->max_pos > 0 && m->cfg->max_pos < PROMPT + LONG)
        return lq_fail(err, LQ_EVALUE,
                       "--mixed: expected a model of at least %d positions, found %lld",
                       PROMPT + LONG, (long long)m->cfg->max_pos);
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(order) && !s; i++) {
        b->rows[i].batching = order[i];
        s = run_policy(&b->rows[i], b, m, how, job, err);
        b->rows[i].speedup = b->rows[i].tok_s / b->rows[0].tok_s;
    }
    return s;
}

void bench_policy_json(cJSON *doc, const bench_policy *b)
{
    cJSON *o = cJSON_AddObjectToObject(doc, "batching");
    cJSON_AddNumberToObject(o, "requests", (double)b->requests);
    cJSON_AddNumberToObject(o, "places", (double)b->places);
    cJSON_AddNumberToObject(o, "tokens", (double)b->tokens);
    cJSON_AddNumberToObject(o, "long_answers", (double)b->n_long);
    cJSON *list = cJSON_AddArrayToObject(o, "rows");
    for (size_t i = 0; i < LQ_COUNT(b->rows); i++) {
        const bench_policy_row *r = &b->rows[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "batching", names[r->batching]);
        cJSON_AddNumberToObject(row, "seconds", r->seconds);
        cJSON_AddNumberToObject(row, "tok_s", r->tok_s);
        cJSON_AddNumberToObject(row, "speedup", r->speedup);
        cJSON_AddNumberToObject(row, "steps", (double)r->steps);
        cJSON_AddNumberToObject(row, "rows_per_step", r->rows);
        cJSON_AddNumberToObject(row, "overhead_percent", 100 * r->overhead);
        cJSON_AddItemToArray(list, row);
    }
}

void bench_policy_print(const bench_policy *b)
{
    printf("\n%lld requests at once for %lld places; answers of %d tokens: %lld, of %d: %lld\n",
           (long long)b->requests, (long long)b->places, LONG, (long long)b->n_long, SHORT,
           (long long)(b->requests - b->n_long));
    printf("%-12s %10s %8s %12s %12s %12s %18s\n", "batching", "tokens/s", "steps", "rows a step",
           "seconds", "x static", "engine, % of step");
    for (size_t i = 0; i < LQ_COUNT(b->rows); i++) {
        const bench_policy_row *r = &b->rows[i];
        printf("%-12s %10.1f %8llu %12.1f %12.2f %12.2f %18.2f\n", names[r->batching], r->tok_s,
               (unsigned long long)r->steps, r->rows, r->seconds, r->speedup, 100 * r->overhead);
    }
}
