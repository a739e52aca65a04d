/* The engine on a model whose layers carry a state: the same bytes at any load, with beams, and where a
 * conversation goes on from what is cached. */
#define FOLDER "tests/golden/arch/qwen3-next"
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

TEST(a_state_gives_the_same_bytes_at_any_load)
{
    const size_t one = kv_state_bytes(golden.cfg), block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const engine_load loads[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one", 2, { .kv_bytes = 18 * block, .max_len = MAX_LEN }, true },
        { "states for three",
          2,
          { .kv_bytes = 6 * one + MAX_LEN / 16 * block, .max_len = MAX_LEN },
          false },
    };
    run_at_loads(loads, LQ_COUNT(loads));
}

static void ask(rig *r, job *j, const int32_t *ids, int64_t n, int64_t width)
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

TEST(a_conversation_goes_on_from_a_state_that_was_kept)
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

TEST(beams_have_states_of_their_own)
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

TEST(guesses_that_were_wrong_leave_no_mark_on_a_state)
{
    const size_t one = kv_state_bytes(golden.cfg), block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const struct {
        const char *why;
        int threads;
        eng_opts o;
    } cases[] = {
        { "five", 2, { .guesses = 5, .max_seqs = 8, .script = &wavering } },
        { "as many as may be",
          1,
          { .guesses = SPEC_MAX, .max_seqs = 3, .block_size = 8, .script = &wavering } },
        { "no prefix cache",
          3,
          { .guesses = 4, .no_prefix_cache = true, .max_batch_tokens = 24, .script = &wavering } },
        { "states for four",
          2,
          { .guesses = 5,
            .kv_bytes = 8 * one + MAX_LEN / 16 * block,
            .max_len = MAX_LEN,
            .script = &wavering } },
    };
    run_alone((eng_opts){ .script = &wavering });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) return;
        run_together(&r, 2, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(st.right > 20 && st.right < st.guesses, "%s: %llu of %llu guesses were right",
              cases[i].why, (unsigned long long)st.right, (unsigned long long)st.guesses);
        rig_close(&r);
    }
}

/* A draft whose layers carry a state, for itself and for another. */
TEST(a_draft_with_a_state_goes_back_too)
{
    static const char *const drafts[] = { FOLDER, "tests/golden/arch/mamba2" };
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(drafts); i++) {
        rig r;
        model small;
        src_source *from = NULL;
        eng_stats st;
        lq_err err = { "" };
        lq_status s = src_open(&from, drafts[i], &(src_opts){ .need_config = true }, &err);
        if (!s) s = model_load(&small, from, NULL, NULL, &err);
        CHECK(!s, "%s", err.msg);
        if (s) return;
        if (!rig_open(&r, &golden, 2, (eng_opts){ .guesses = 4, .draft = &small, .max_seqs = 6 }))
            return;
        run_together(&r, 2, drafts[i]);
        eng_stats_get(r.e, &st);
        CHECK(st.right < st.guesses && st.right > (i ? 0 : 20),
              "%s: %llu of %llu guesses were right", drafts[i], (unsigned long long)st.right,
              (unsigned long long)st.guesses);
        rig_close(&r);
        model_free(&small);
        src_close(from);
    }
}

TEST(a_pool_too_small_for_a_state_says_so)
{
    engine *e;
    pool *p;
    lq_err err = { "" };
    CHECK(!pool_open(&p, 1, &err), "%s", err.msg);
    const lq_status s = eng_open(&e, &golden, NULL, p, &(eng_opts){ .kv_bytes = 1000 }, &err);
    CHECK(s == LQ_EVALUE && strstr(err.msg, "the state of a sequence needs"), "%s", err.msg);
    pool_close(p);
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(a_state_gives_the_same_bytes_at_any_load);
    RUN(a_conversation_goes_on_from_a_state_that_was_kept);
    RUN(beams_have_states_of_their_own);
    RUN(guesses_that_were_wrong_leave_no_mark_on_a_state);
    RUN(a_draft_with_a_state_goes_back_too);
    RUN(a_pool_too_small_for_a_state_says_so);
    golden_close();
    return check_end();
}
