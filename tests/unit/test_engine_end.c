/* What of the engine's requests does not run to its length: refused, ended by an id or NaN, cancelled, closed. */
#include "tests/support/engine_jobs.h"

#include <pthread.h>
#include <stdlib.h>

TEST(requests_that_can_never_run_are_refused) /* T-03 */
{
    static int32_t ids[MAX_LEN + 1];
    static const int32_t bad_id[] = { 5, 320 }, neg[] = { -1 };
    static const char *const empty[] = { "" };
    static const struct {
        const char *why, *says;
        eng_request r;
    } cases[] = {
        { "no prompt", "prompt", { .prompt = ids, .n_prompt = 0, .max_tokens = 1 } },
        { "too long", "129 tokens", { .prompt = ids, .n_prompt = 129, .max_tokens = 1 } },
        { "no room", "no room", { .prompt = ids, .n_prompt = 128, .max_tokens = 1 } },
        { "an id beyond the vocabulary",
          "320",
          { .prompt = bad_id, .n_prompt = 2, .max_tokens = 1 } },
        { "a negative id", "-1", { .prompt = neg, .n_prompt = 1, .max_tokens = 1 } },
        { "max_tokens", "max_tokens", { .prompt = ids, .n_prompt = 1, .max_tokens = -1 } },
        { "min above max",
          "min_tokens",
          { .prompt = ids, .n_prompt = 1, .max_tokens = 1, .min_tokens = 2 } },
        { "a stop id",
          "stop ids",
          { .prompt = ids, .n_prompt = 1, .max_tokens = 1, .stop_ids = neg, .n_stop_ids = 1 } },
        { "an empty stop string",
          "stop",
          { .prompt = ids, .n_prompt = 1, .max_tokens = 1, .stop = empty, .n_stop = 1 } },
        { "prompt_logprobs",
          "prompt_logprobs",
          { .prompt = ids, .n_prompt = 1, .max_tokens = 1, .prompt_logprobs = 21 } },
        { "temperature",
          "temperature",
          { .prompt = ids, .n_prompt = 1, .max_tokens = 1, .params = { .temperature = -1 } } },
    };
    rig r;
    if (!rig_open(&r, &golden, 1, (eng_opts){ 0 })) return;
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err = { "" };
        lq_status s = eng_submit(r.e, &cases[i].r, take, NULL, NULL, &err);
        CHECK(s == LQ_EVALUE && strstr(err.msg, cases[i].says), "%s: %s", cases[i].why,
              s ? err.msg : "accepted");
    }
    job j; /* exactly full is right, and ends at the limit */
    make_job(&j, 0);
    j.r.n_prompt = MAX_LEN - 1, j.r.max_tokens = 50;
    submit(&r, &j);
    wait_for(&j);
    CHECK(j.n == 1 && j.finish == ENG_LENGTH, "%d ids", j.n);
    make_job(&j, 0);
    j.r.n_prompt = MAX_LEN, j.r.max_tokens = 0;
    submit(&r, &j);
    wait_for(&j);
    CHECK(j.n == 0 && j.finish == ENG_LENGTH, "%d ids", j.n);
    rig_close(&r);
    eng_opts small = { .kv_bytes = 1000, .max_len = 100 };
    lq_err err = { "" };
    engine *e = NULL;
    CHECK(eng_open(&e, &golden, tok, NULL, &small, &err) == LQ_EVALUE && !e, "a small pool");
    small = (eng_opts){ .kv_bytes = 3 * kv_block_bytes(golden.cfg, 16, KV_F32) };
    CHECK(!eng_open(&e, &golden, tok, NULL, &small, &err) && eng_options(e)->max_len == 48,
          "max_len follows the pool");
    eng_close(e);
}

TEST(ends_by_id)
{
    arch_config cfg = *golden.cfg;
    model m = golden;
    m.cfg = &cfg;
    job plain = alone[3]; /* greedy */
    int32_t third = plain.ids[2], at = 0;
    while (plain.ids[at] != third)
        at++; /* where it comes first */
    cfg.eos[0] = third;
    cfg.n_eos = 1;
    static const struct {
        const char *why;
        bool ignore, stop;
        int64_t min;
        eng_finish finish;
        int32_t stop_id;
    } cases[] = {
        { "EOS", false, false, 0, ENG_STOP, 0 },
        { "EOS ignored", true, false, 0, ENG_LENGTH, 0 },
        { "a stop id", true, true, 0, ENG_STOP, 1 },
        { "EOS banned until min_tokens", false, false, 7, ENG_N_FINISH, 0 },
        { "a stop id banned until min_tokens", true, true, 7, ENG_N_FINISH, 0 },
    };
    rig r;
    if (!rig_open(&r, &m, 1, (eng_opts){ 0 })) return;
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        job j;
        make_job(&j, 3);
        j.r.ignore_eos = cases[i].ignore;
        j.r.min_tokens = cases[i].min;
        if (cases[i].stop) j.r.stop_ids = &third, j.r.n_stop_ids = 1;
        submit(&r, &j);
        wait_for(&j);
        if (cases[i].min) {
            CHECK(j.n >= 7, "%s: %d ids", cases[i].why, j.n);
            for (int k = 0; k < 7 && k < j.n; k++)
                CHECK(j.ids[k] != third || k == 6, "%s: at %d", cases[i].why, k);
            continue;
        }
        int want = cases[i].finish == ENG_STOP ? at + 1 : (int)j.r.max_tokens;
        CHECK(j.finish == cases[i].finish && j.n == want, "%s: %s after %d", cases[i].why,
              eng_finish_text(j.finish), j.n);
        CHECK(j.stop_id == (cases[i].stop_id ? third : -1), "%s: stop id %d", cases[i].why,
              j.stop_id);
    }
    rig_close(&r);
}

/* An id that no request holds or answers. */
static int32_t unused_id(void)
{
    bool used[320] = { false };
    for (int k = 0; k < N_JOBS; k++) {
        for (int64_t i = 0; i < alone[k].r.n_prompt; i++)
            used[alone[k].prompt[i]] = true;
        for (int i = 0; i < alone[k].n; i++)
            used[alone[k].ids[i]] = true;
    }
    int32_t id = 319;
    while (id > 0 && used[id])
        id--;
    return id;
}

TEST(nan_ends_only_its_own_request)
{
    model m = golden;
    size_t row = (size_t)m.embed.K * lq_dtype_bytes(m.embed.scheme.dtype);
    size_t bytes = row * (size_t)m.embed.N;
    uint8_t *copy = malloc(bytes);
    memcpy(copy, m.embed.plane[QT_CODES].data, bytes);
    int32_t nan_id = unused_id();
    memset(copy + (size_t)nan_id * row, 0xff, row); /* NaN in bf16 and f32 */
    m.embed.plane[QT_CODES].data = copy;
    rig r;
    if (!rig_open(&r, &m, 2, (eng_opts){ .max_batch_tokens = 32 })) return;
    job *j = malloc(N_JOBS * sizeof *j);
    for (int i = 0; i < N_JOBS; i++) {
        make_job(&j[i], i);
        if (i % 8 == 5) j[i].prompt[j[i].r.n_prompt / 2] = nan_id;
        submit(&r, &j[i]);
    }
    for (int i = 0; i < N_JOBS; i++) {
        wait_for(&j[i]);
        bool ill = i % 8 == 5;
        CHECK(ill ? j[i].finish == ENG_ERROR && strstr(j[i].error, "NaN") && j[i].n == 0
                  : same_answer(&j[i], &alone[i]),
              "%d: %s %s", i, eng_finish_text(j[i].finish), j[i].error);
    }
    eng_stats st;
    eng_stats_get(r.e, &st);
    CHECK(st.finished[ENG_ERROR] == 4 && st.kv_blocks_used == 0, "%llu errors",
          (unsigned long long)st.finished[ENG_ERROR]);
    rig_close(&r);
    free(j);
    free(copy);
}

/* ---- cancelling, queueing, closing ---- */

typedef struct {
    rig *r;
    job *j;
    int n;
} canceller;

static void *cancel_some(void *arg)
{
    canceller *c = arg;
    for (int i = 0; i < c->n; i++) {
        nap();
        if (i % 3) eng_cancel(c->r->e, c->j[i].id);
        eng_cancel(c->r->e, 1000000); /* unknown: nothing happens */
    }
    return NULL;
}

TEST(cancelled_requests_end_once_and_give_their_blocks_back)
{
    rig r;
    size_t bytes = 20 * kv_block_bytes(golden.cfg, 16, KV_F32);
    if (!rig_open(&r, &golden, 2, (eng_opts){ .kv_bytes = bytes, .max_batch_tokens = 32 })) return;
    enum { N = 120 };
    job *j = malloc(N * sizeof *j);
    for (int i = 0; i < N; i++) {
        make_job(&j[i], i % N_JOBS);
        submit(&r, &j[i]);
    }
    canceller c[2] = { { &r, j, N / 2 }, { &r, j + N / 2, N / 2 } };
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, cancel_some, &c[i]);
    int n[ENG_N_FINISH] = { 0 };
    for (int i = 0; i < N; i++) {
        wait_for(&j[i]);
        n[j[i].finish]++;
        const job *want = &alone[i % N_JOBS];
        CHECK(j[i].after == 0 && j[i].n <= want->n &&
                  !memcmp(j[i].ids, want->ids, (size_t)j[i].n * sizeof *j[i].ids),
              "%d: not a beginning of its answer", i);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    CHECK(n[ENG_LENGTH] + n[ENG_CANCELLED] == N && n[ENG_LENGTH] >= N / 3, "%d whole, %d cut",
          n[ENG_LENGTH], n[ENG_CANCELLED]);
    eng_stats st;
    eng_stats_get(r.e, &st);
    CHECK(st.kv_blocks_used == 0 && st.running == 0 && st.waiting == 0, "%lld blocks still held",
          (long long)st.kv_blocks_used);
    CHECK(st.finished[ENG_LENGTH] + st.finished[ENG_CANCELLED] == N, "figures");
    rig_close(&r);
    free(j);
}

/* Holds the engine thread inside the first event until opened. */
static atomic_int gate;
static void take_at_gate(void *user, const eng_event *e)
{
    take(user, e);
    while (!atomic_load(&gate))
        nap();
}

TEST(a_full_queue_refuses_and_a_drained_engine_too)
{
    rig r;
    if (!rig_open(&r, &golden, 1, (eng_opts){ .max_seqs = 2, .queue = 3 })) return;
    job j[8];
    lq_err err;
    int refused = 0;
    atomic_store(&gate, 0);
    for (int i = 0; i < 8; i++) {
        make_job(&j[i], i);
        lq_status s = eng_submit(r.e, &j[i].r, take_at_gate, &j[i], &j[i].id, &err);
        CHECK(s == (i < 5 ? LQ_OK : LQ_EBUSY), "request %d: %s", i, lq_status_text(s));
        refused += s == LQ_EBUSY;
    }
    CHECK(refused == 3, "%d refused", refused);
    CHECK(!eng_drain(r.e, 0.01), "drained while five run");
    make_job(&j[5], 5);
    CHECK(eng_submit(r.e, &j[5].r, take, &j[5], NULL, &err) == LQ_EBUSY, "accepted in a drain");
    atomic_store(&gate, 1);
    CHECK(eng_drain(r.e, 60), "not drained");
    for (int i = 0; i < 5; i++)
        CHECK(j[i].finish == ENG_LENGTH && same_answer(&j[i], &alone[i]), "request %d", i);
    rig_close(&r);
}

TEST(closing_ends_what_runs)
{
    rig r;
    if (!rig_open(&r, &golden, 1, (eng_opts){ .max_seqs = 2 })) return;
    job j[10];
    for (int i = 0; i < 10; i++) {
        make_job(&j[i], i);
        submit(&r, &j[i]);
    }
    while (!atomic_load(&j[0].n_events))
        nap();
    rig_close(&r);
    for (int i = 0; i < 10; i++)
        CHECK(atomic_load(&j[i].n_finals) == 1, "request %d: %d ends", i,
              atomic_load(&j[i].n_finals));
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    run_alone((eng_opts){ 0 });
    RUN(requests_that_can_never_run_are_refused);
    RUN(ends_by_id);
    RUN(nan_ends_only_its_own_request);
    RUN(cancelled_requests_end_once_and_give_their_blocks_back);
    RUN(a_full_queue_refuses_and_a_drained_engine_too);
    RUN(closing_ends_what_runs);
    golden_close();
    return check_end();
}
