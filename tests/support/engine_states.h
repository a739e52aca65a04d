/* tests/support/engine_states.h - what an engine does with the states of its sequences, on the CPU and on a
 * device: a conversation that goes on from one that was kept, beams, guesses that were wrong. */
#ifndef LLMQ_TESTS_SUPPORT_ENGINE_STATES_H
#define LLMQ_TESTS_SUPPORT_ENGINE_STATES_H

#include "tests/support/engine_jobs.h"

/* Four letters over and over, and another now and then; either of two may be drawn. */
static float scripted_rows[4][64];
static const float *write_pattern(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                                  int64_t n_output, const float *row)
{
    (void)self, (void)ids, (void)n_prompt;
    float *out = scripted_rows[thread];
    memcpy(out, row, (size_t)golden.cfg->vocab * sizeof *out);
    const int64_t id = n_output % 29 == 28 ? 30 : 20 + n_output % 4;
    out[id] += 20;
    out[id + 8] += 19;
    return out;
}
static const eng_script wavering = { write_pattern, NULL };

static inline void ask(rig *r, job *j, const int32_t *ids, int64_t n, int64_t width)
{
    memset(j, 0, sizeof *j);
    memcpy(j->prompt, ids, (size_t)n * sizeof *ids);
    j->r = (eng_request){ .prompt = j->prompt,
                          .n_prompt = n,
                          .max_tokens = 20,
                          .ignore_eos = true,
                          .prompt_logprobs = -1,
                          .beam = { .width = width, .n = width, .length_penalty = 1 } };
    j->r.params = (smp_params){ .logprobs = 0 };
    submit(r, j);
    const int ends = width ? (int)width : 1; /* one of each answer */
    for (int i = 0; i < 600000 && atomic_load(&j->n_finals) < ends; i++)
        nap();
    CHECK(atomic_load(&j->n_finals) == ends, "%d ends", atomic_load(&j->n_finals));
}

static inline void conversation_goes_on(void)
{
    rig r, plain;
    job first, second, again, want;
    int32_t ids[MAX_LEN];
    if (!rig_open(&r, &golden, 2, (eng_opts){ .max_seqs = 4 })) return;
    if (!rig_open(&plain, &golden, 1, (eng_opts){ .max_seqs = 1, .no_prefix_cache = true })) return;
    for (int i = 0; i < 40; i++)
        ids[i] = 3 + i * i % 60;
    ask(&r, &first, ids, 40, 0);
    CHECK(first.n == 20 && first.n_cached == 0, "%d ids, %d cached", first.n, (int)first.n_cached);
    /* 60 ids, of which the last was never read: blocks of 16 end at 48. */
    memcpy(ids + 40, first.ids, 20 * sizeof *ids);
    for (int i = 60; i < 70; i++)
        ids[i] = 3 + i % 7;
    ask(&r, &second, ids, 70, 0);
    CHECK(second.n_cached == 48, "%d cached of the first turn", (int)second.n_cached);
    ask(&plain, &want, ids, 70, 0);
    CHECK(same_answer(&second, &want), "the second turn");
    /* Another end after 20 ids: no state is kept there, so one is made for the next. */
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 20; i < 40; i++)
            ids[i] = 5 + turn + i % 9;
        ask(&r, &again, ids, 40, 0);
        CHECK(again.n_cached == (turn ? 16 : 0), "branch %d: %d cached", turn, (int)again.n_cached);
        ask(&plain, &want, ids, 40, 0);
        CHECK(same_answer(&again, &want), "branch %d", turn);
    }
    rig_close(&r);
    rig_close(&plain);
}

static inline void beams_are_apart(void)
{
    rig r, small;
    job a, b;
    int32_t ids[MAX_LEN];
    for (int i = 0; i < 37; i++)
        ids[i] = 3 + i * 5 % 60;
    if (!rig_open(&r, &golden, 2, (eng_opts){ .max_seqs = 8 })) return;
    if (!rig_open(&small, &golden, 1,
                  (eng_opts){ .max_seqs = 4, .no_prefix_cache = true, .block_size = 8 }))
        return;
    ask(&r, &a, ids, 37, 4);
    ask(&small, &b, ids, 37, 4);
    CHECK(a.n == 80 && same_answer(&a, &b), "%d ids and %d", a.n, b.n);
    ask(&r, &b, ids, 37, 4);
    CHECK(b.n_cached == 32 && same_answer(&a, &b), "again, %d cached", (int)b.n_cached);
    rig_close(&r);
    rig_close(&small);
}

/* All jobs `copies` times with these options, that guess; the answers are run_alone's. */
static inline void guesses_go_back(int threads, eng_opts o, int copies, const char *why)
{
    rig r;
    eng_stats st;
    if (!rig_open(&r, &golden, threads, o)) return;
    run_together(&r, copies, why);
    eng_stats_get(r.e, &st);
    CHECK(st.right > 20 && st.right < st.guesses, "%s: %llu of %llu guesses were right", why,
          (unsigned long long)st.right, (unsigned long long)st.guesses);
    rig_close(&r);
}

/* golden, on a device. Ends the program where there is none, and with 1 where it failed. */
static inline void golden_open_on_device(void)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        exit(0);
    }
    if (!golden_open()) exit(1);
    if (!model_to_device(&golden, "cuda", &(model_share){ 0 }, &err)) return;
    printf("%s\n", err.msg);
    exit(1);
}

#endif
