/* The engine on a model whose layers carry a state: the same bytes at any load, with beams, and where a
 * conversation goes on from what is cached. */
#define FOLDER "tests/golden/arch/qwen3-next"
#include "tests/support/engine_states.h"

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

TEST(a_conversation_goes_on_from_a_state_that_was_kept) { conversation_goes_on(); }

TEST(beams_have_states_of_their_own) { beams_are_apart(); }

TEST(more_beams_than_states_are_refused)
{
    const size_t one = kv_state_bytes(golden.cfg), block = kv_block_bytes(golden.cfg, 16, KV_F32);
    rig r, plain;
    job a, b;
    int32_t ids[MAX_LEN];
    lq_err err = { "" };
    for (int i = 0; i < 37; i++)
        ids[i] = 3 + i * 5 % 60;
    if (!rig_open(&r, &golden, 2,
                  (eng_opts){ .max_seqs = 8,
                              .kv_bytes = 8 * one + MAX_LEN / 16 * block,
                              .max_len = MAX_LEN }))
        return;
    if (!rig_open(&plain, &golden, 1, (eng_opts){ .max_seqs = 4 })) return;
    ask(&r, &a, ids, 37, 4);
    ask(&plain, &b, ids, 37, 4);
    CHECK(a.n == 80 && same_answer(&a, &b), "%d ids and %d", a.n, b.n);
    a.r.beam.width = a.r.beam.n = 8, a.r.max_tokens = 8;
    CHECK(eng_submit(r.e, &a.r, take, &a, &a.id, &err) == LQ_EVALUE &&
              strstr(err.msg, "8 states of sequences, the cache has"),
          "'%s'", err.msg);
    rig_close(&r);
    rig_close(&plain);
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
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        guesses_go_back(cases[i].threads, cases[i].o, 2, cases[i].why);
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
    RUN(more_beams_than_states_are_refused);
    RUN(guesses_that_were_wrong_leave_no_mark_on_a_state);
    RUN(a_draft_with_a_state_goes_back_too);
    RUN(a_pool_too_small_for_a_state_says_so);
    golden_close();
    return check_end();
}
