/* tests/support/engine_jobs.h - 33 requests of different kinds: alone, and all together with the same
 * answers. */
#ifndef LLMQ_TESTS_SUPPORT_ENGINE_JOBS_H
#define LLMQ_TESTS_SUPPORT_ENGINE_JOBS_H

#include "tests/support/engine_rig.h"

#include <stdlib.h>

enum { N_JOBS = 33 };
static job alone[N_JOBS]; /* what run_alone had answered */

/* Each with nobody else, one thread, no prefix cache. */
static void run_alone(eng_opts o)
{
    rig r;
    o.max_seqs = 1;
    o.no_prefix_cache = true;
    if (!rig_open(&r, &golden, 1, o)) return;
    for (int k = 0; k < N_JOBS; k++) {
        make_job(&alone[k], k);
        submit(&r, &alone[k]);
        wait_for(&alone[k]);
        CHECK(alone[k].n == alone[k].r.max_tokens && alone[k].finish == ENG_LENGTH, "%d: %d ids", k,
              alone[k].n);
    }
    rig_close(&r);
}

/* All jobs at once, `copies` of each; every answer must be the one given alone. */
static inline void run_together(rig *r, int copies, const char *why)
{
    int n = copies * N_JOBS, wrong = 0, first = -1;
    job *j = malloc((size_t)n * sizeof *j);
    for (int i = 0; i < n; i++)
        make_job(&j[i], (i * 5 + i / N_JOBS) % N_JOBS);
    for (int i = 0; i < n; i++)
        submit(r, &j[i]);
    for (int i = 0; i < n; i++) {
        int k = (i * 5 + i / N_JOBS) % N_JOBS;
        wait_for(&j[i]);
        if (same_answer(&j[i], &alone[k])) continue;
        if (!wrong++) first = k;
    }
    CHECK(wrong == 0, "%s: %d of %d answers differ, request %d first", why, wrong, n, first);
    for (int i = 0; i < n; i++)
        CHECK(j[i].after == 0 && atomic_load(&j[i].n_finals) == 1, "%s: %d ends", why,
              atomic_load(&j[i].n_finals));
    eng_stats st;
    eng_stats_get(r->e, &st);
    CHECK(st.running == 0 && st.waiting == 0 && st.kv_blocks_used == 0,
          "%s: %lld running, %lld waiting, %lld blocks used", why, (long long)st.running,
          (long long)st.waiting, (long long)st.kv_blocks_used);
    free(j);
}

/* What the engine is given, and whether it then has to take memory back from some. */
typedef struct engine_load {
    const char *why;
    int threads;
    eng_opts o;
    bool preempts;
} engine_load;

/* All jobs twice at each of n loads, with the answers of each alone. */
static inline void run_at_loads(const engine_load *loads, size_t n)
{
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < n; i++) {
        rig r;
        eng_stats st;
        if (!rig_open(&r, &golden, loads[i].threads, loads[i].o)) return;
        run_together(&r, 2, loads[i].why);
        eng_stats_get(r.e, &st);
        CHECK(!loads[i].preempts || st.preemptions > 0, "%s: nobody was pre-empted", loads[i].why);
        rig_close(&r);
    }
}

/* Steps and blocks of several sizes, with and without prefixes, memory of so many blocks, which is that of one sequence,
 * guesses. */
static inline void run_at_usual_loads(size_t blocks)
{
    const engine_load loads[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one",
          2,
          { .kv_bytes = blocks * kv_block_bytes(golden.cfg, 16, KV_F32), .max_len = MAX_LEN },
          true },
        { "guesses", 2, { .guesses = 4, .max_seqs = 3 }, false },
    };
    run_at_loads(loads, LQ_COUNT(loads));
}

/* Lines that go on from one prompt copy its last block with all that a layer keeps in it: three beams of six jobs,
 * in steps as they come and of nine tokens. */
static inline void run_beams_in_small_steps(void)
{
    for (int k = 0; k < 6; k++) {
        job js[2];
        for (int i = 0; i < 2; i++) {
            rig r;
            if (!rig_open(&r, &golden, 1 + i,
                          (eng_opts){ .max_seqs = 8, .max_batch_tokens = i ? 9 : 0 }))
                return;
            make_job(&js[i], 3 * k);
            js[i].r.max_tokens = 20;
            js[i].r.params = (smp_params){ .logprobs = -1 };
            js[i].r.beam.width = 3;
            js[i].r.beam.n = 1;
            js[i].r.beam.length_penalty = 1;
            submit(&r, &js[i]);
            wait_for(&js[i]);
            rig_close(&r);
        }
        CHECK(js[0].n == 20 && js[1].n == 20 && !memcmp(js[0].ids, js[1].ids, sizeof js[0].ids),
              "job %d: %d and %d ids", k, js[0].n, js[1].n);
    }
}

#endif
