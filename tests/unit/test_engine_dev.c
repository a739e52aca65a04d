/* tests/unit/test_engine_dev.c - an engine whose model is on a device: what is drawn there is what the
 * host draws from the same logits, under bias, penalties, bans and guesses too, and costs no copy
 * of logits. The device is tests/support/emulated.c's. */
#include "tests/support/emucounts.h"
#include "tests/support/engine_rig.h"

#include <stdlib.h>

/* The model's own logits; but that somebody asks for them keeps every draw on the host. */
static const float *own_row(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                            int64_t n_output, const float *row)
{
    (void)self, (void)thread, (void)ids, (void)n_prompt, (void)n_output;
    return row;
}
static const eng_script on_host = { own_row, NULL };

enum { JOBS = 10 };
static size_t replayed; /* steps of all runs */

/* make_job's penalties, and of each further kind one; few ids, as the emulation is slow. */
static void make_kind(job *j, int k)
{
    static const smp_bias bias[] = { { 3, 2 }, { 40, -INFINITY }, { 90, 5.5f }, { 200, 30 } };
    static const int32_t stops[] = { 17, 90 }, bad[] = { 1, 60, 2, 90, 90, 1, 200 };
    static const int32_t allowed[] = { 5, 80, 90, 91, 92, 93, 200, 300 };
    make_job(j, k);
    j->r.n_prompt = 7;
    j->prompt[5] = j->prompt[6] = 200; /* and once more, where the bias has it: guesses */
    j->r.max_tokens = 4;
    if (k % 3 == 0) {
        j->r.params.bias = bias;
        j->r.params.n_bias = LQ_COUNT(bias);
    }
    if (k % 4 == 1) {
        j->r.bad = bad;
        j->r.n_bad = LQ_COUNT(bad);
    }
    if (k % 5 == 2) {
        j->r.stop_ids = stops;
        j->r.n_stop_ids = 2;
        j->r.min_tokens = 3;
    }
    if (k == 8) {
        j->r.params.allowed = allowed;
        j->r.params.n_allowed = LQ_COUNT(allowed);
    }
    if (k % 2) j->r.params.logprobs = 3;
}

/* All jobs but the one whose ids are listed, or that one alone; copies and steps that it took. */
static void run_jobs(job *jobs, bool listed, const eng_script *script, int64_t guesses,
                     size_t *copies, size_t *steps)
{
    rig r;
    eng_stats st;
    *copies = *steps = 0;
    if (!rig_open(&r, &golden, 2,
                  (eng_opts){ .max_len = MAX_LEN,
                              .max_seqs = guesses ? 3 : JOBS, /* many leave guesses no rows */
                              .script = script,
                              .guesses = guesses }))
        return;
    const emu_counts before = emu_counted;
    for (int k = 0; k < JOBS; k++) {
        make_kind(&jobs[k], k);
        if (listed == (k == 8)) submit(&r, &jobs[k]);
    }
    for (int k = 0; k < JOBS; k++)
        if (listed == (k == 8)) wait_for(&jobs[k]);
    eng_stats_get(r.e, &st);
    *copies = emu_counted.copies - before.copies;
    replayed += emu_counted.graphs - before.graphs;
    /* One wait each; the engine counts a step after its last event. */
    *steps = emu_counted.waits - before.waits;
    CHECK(!guesses || st.guesses > 0, "nothing was guessed");
    rig_close(&r);
}

/* Of guesses under a mask the next one needs the draw before it: those rows come to the host. */
TEST(what_is_drawn_there_is_what_the_host_draws)
{
    static job there[JOBS], here[JOBS];
    static const struct {
        const char *why;
        int64_t guesses;
        bool listed;
    } cases[] = { { "one by one", 0, false },
                  { "a list of ids", 0, true },
                  { "guesses", 4, false } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t guesses = cases[i].guesses;
        size_t copies, copies_here, steps, steps_here;
        run_jobs(there, cases[i].listed, NULL, guesses, &copies, &steps);
        run_jobs(here, cases[i].listed, &on_host, guesses, &copies_here, &steps_here);
        for (int k = 0; k < JOBS; k++)
            CHECK(same_answer(&there[k], &here[k]), "%s, job %d: id %d, expected %d", cases[i].why,
                  k, there[k].ids[0], here[k].ids[0]);
        if (getenv("LLMQ_TEST_DEVICE")) continue; /* nobody counts there */
        CHECK(cases[i].listed ? copies > 2 * steps : guesses || copies == 2 * steps,
              "%s: %zu copies in %zu steps", cases[i].why, copies, steps);
        CHECK(copies_here > 2 * steps_here, "%s: %zu copies in %zu steps of the host's draws",
              cases[i].why, copies_here, steps_here);
    }
    CHECK(getenv("LLMQ_TEST_DEVICE") || replayed > 0, "no step was replayed");
}

/* What the emulation had counted when each event came. */
enum { TOKENS = 6 };
typedef struct {
    job j;
    emu_counts at[TOKENS + 1];
} watched;

static void watch(void *user, const eng_event *e)
{
    watched *w = user;
    if (w->j.n <= TOKENS) w->at[w->j.n] = emu_counted;
    take(&w->j, e);
}

/* Each launch of a step is there when the event of the one before comes, and its wait is not. The first
 * event does not wait for that, and the last cannot. */
TEST(events_are_handed_on_while_the_device_works_on_the_next_step)
{
    static watched w;
    lq_err err = { "" };
    rig r;
    if (check_real_gpu("nobody counts launches")) return;
    if (!rig_open(&r, &golden, 1, (eng_opts){ .max_len = MAX_LEN })) return;
    make_job(&w.j, 2);
    w.j.r.max_tokens = TOKENS;
    w.j.r.ignore_eos = true;
    lq_status s = eng_submit(r.e, &w.j.r, watch, &w, &w.j.id, &err);
    CHECK(!s, "%s", err.msg);
    if (!s) wait_for(&w.j);
    CHECK(w.j.n == TOKENS, "%d ids", w.j.n);
    for (int i = 1; i + 2 < TOKENS && !s; i++) {
        const emu_counts *a = &w.at[i], *b = &w.at[i + 1];
        CHECK(b->waits == a->waits + 1, "event %d: %zu waits, then %zu", i, a->waits, b->waits);
    }
    const emu_counts *first = &w.at[0], *second = &w.at[1], *before = &w.at[TOKENS - 2],
                     *last = &w.at[TOKENS - 1];
    CHECK(second->waits == first->waits + 1 && second->copies > first->copies + 2,
          "the second event: %zu waits, %zu copies, after %zu, %zu", second->waits, second->copies,
          first->waits, first->copies);
    CHECK(last->waits == before->waits + 1 && last->copies == before->copies,
          "the last event: %zu waits, %zu copies, after %zu, %zu", last->waits, last->copies,
          before->waits, before->copies);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    if (!golden_open()) return check_end();
    const lq_status s = model_to_device(&golden, "cuda", &(model_share){ 0 }, &err);
    CHECK(!s, "%s", err.msg);
    if (!s) {
        RUN(what_is_drawn_there_is_what_the_host_draws);
        RUN(events_are_handed_on_while_the_device_works_on_the_next_step);
    }
    golden_close();
    return check_end();
}
