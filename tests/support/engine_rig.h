/* tests/support/engine_rig.h - an engine on a tiny golden model, and requests that keep what came of them.
 */
#ifndef LLMQ_TESTS_SUPPORT_ENGINE_RIG_H
#define LLMQ_TESTS_SUPPORT_ENGINE_RIG_H

#include "formats/hf/safetensors.h"
#include "kernels/ops.h"
#include "runtime/engine/engine.h"
#include "tests/support/check.h"

#include <stdatomic.h>
#include <time.h>

#ifndef FOLDER
#define FOLDER "tests/golden/arch/llama-128"
#endif
enum { MAX_LEN = 128, MAX_OUT = 128 };

static src_source *src;
static model golden; /* loaded once */
static tok_tokenizer *tok;

static bool golden_open(void)
{
    lq_err err = { "" };
    lq_status s = k_init(NULL, &err);
    if (!s) s = src_open(&src, FOLDER, &(src_opts){ .need_config = true }, &err);
    if (!s) s = model_load(&golden, src, NULL, NULL, &err);
    CHECK(!s, "%s", err.msg);
    return !s;
}

static void golden_close(void)
{
    model_free(&golden);
    src_close(src);
}

typedef struct {
    pool *p;
    engine *e;
} rig;

static bool rig_open(rig *r, const model *m, int threads, eng_opts o)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_status s = pool_open(&r->p, threads, &err);
    if (!s) s = eng_open(&r->e, m, tok, r->p, &o, &err);
    CHECK(!s, "open: %s", err.msg);
    return !s;
}

static void rig_close(rig *r)
{
    eng_close(r->e);
    pool_close(r->p);
}

typedef struct {
    eng_request r;
    int32_t prompt[MAX_LEN];
    uint64_t id;
    int32_t ids[MAX_OUT];
    float logprobs[MAX_OUT];
    int n;
    char text[2048];
    size_t n_text;
    smp_result scores[MAX_LEN];
    int n_score_events;
    int64_t n_cached;
    eng_finish finish;
    char stop_string[16], error[256];
    int32_t stop_id;
    int after; /* events after the last */
    atomic_int n_finals, n_events;
} job;

static void take(void *user, const eng_event *e)
{
    job *j = user;
    if (atomic_load(&j->n_finals)) j->after++;
    for (int i = 0; i < e->n_ids && j->n < MAX_OUT; i++) {
        if (e->logprobs) j->logprobs[j->n] = e->logprobs[i].logprob;
        j->ids[j->n++] = e->ids[i];
    }
    if (e->n_text && j->n_text + e->n_text < sizeof j->text) {
        memcpy(j->text + j->n_text, e->text, e->n_text);
        j->n_text += e->n_text;
    }
    if (e->prompt_logprobs) {
        j->n_score_events++;
        memcpy(j->scores, e->prompt_logprobs, (size_t)e->n_prompt * sizeof *j->scores);
    }
    atomic_fetch_add(&j->n_events, 1);
    if (!e->finish) return;
    j->n_cached = e->n_cached;
    j->finish = e->finish;
    j->stop_id = e->stop_id;
    if (e->stop_string) snprintf(j->stop_string, sizeof j->stop_string, "%s", e->stop_string);
    if (e->error) snprintf(j->error, sizeof j->error, "%s", e->error);
    atomic_fetch_add(&j->n_finals, 1);
}

static void nap(void)
{
    struct timespec t = { 0, 200000 };
    nanosleep(&t, NULL);
}

/* Waits at most two minutes (sanitizers on a busy machine), then says so. */
static void wait_for(job *j)
{
    for (int i = 0; i < 600000 && !atomic_load(&j->n_finals); i++)
        nap();
    CHECK(atomic_load(&j->n_finals) == 1, "%d ends", atomic_load(&j->n_finals));
}

static void submit(rig *r, job *j)
{
    lq_err err = { "" };
    lq_status s = eng_submit(r->e, &j->r, take, j, &j->id, &err);
    CHECK(!s, "submit: %s", err.msg);
    if (s) atomic_store(&j->n_finals, 1);
}

/* A request of its own kind for every number: prompts of 1..60 ids, greedy and drawn. */
static void make_job(job *j, int k)
{
    memset(j, 0, sizeof *j);
    int64_t n = 1 + (k * 37) % 60;
    for (int64_t i = 0; i < n; i++)
        j->prompt[i] =
            (int32_t)(3 + (k * 101 + i * i * 7 + i * (k % 5)) % (golden.cfg->vocab - 20));
    if (k % 4 == 0) /* some share a beginning */
        for (int64_t i = 0; i < n && i < 40; i++)
            j->prompt[i] = (int32_t)(10 + i);
    j->r = (eng_request){ .prompt = j->prompt,
                          .n_prompt = n,
                          .max_tokens = k % 4 == 1 ? 40 : 4 + k % 13,
                          .ignore_eos = true,
                          .prompt_logprobs = -1 };
    j->r.params = (smp_params){ .logprobs = 0, .seed = (uint64_t)k };
    if (k % 3 == 1) j->r.params.temperature = 0.8f, j->r.params.top_p = 0.9f;
    if (k % 3 == 2) j->r.params.temperature = 1.2f, j->r.params.top_k = 40;
    if (k % 5 == 0) j->r.params.repetition_penalty = 1.2f, j->r.params.presence_penalty = 0.3f;
    if (k % 5 == 1) j->r.params.frequency_penalty = 0.7f;
}

static bool same_answer(const job *a, const job *b)
{
    return a->n == b->n && a->finish == b->finish && a->n_text == b->n_text &&
           !memcmp(a->ids, b->ids, sizeof a->ids) &&
           !memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) &&
           !memcmp(a->text, b->text, a->n_text);
}

#endif
