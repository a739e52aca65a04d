/* The engine on a model whose layers carry a state: the same bytes at any load, with beams, and where a
 * conversation goes on from what is cached. */
#define FOLDER "tests/golden/arch/qwen3-next"
#include "tests/support/engine_jobs.h"

TEST(a_state_gives_the_same_bytes_at_any_load)
{
    const size_t one = kv_state_bytes(golden.cfg), block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const struct {
        const char *why;
        int threads;
        eng_opts o;
        bool preempts;
    } cases[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one", 2, { .kv_bytes = 18 * block, .max_len = MAX_LEN }, true },
        { "states for three",
          2,
          { .kv_bytes = 6 * one + MAX_LEN / 16 * block, .max_len = MAX_LEN },
          false },
    };
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) return;
        run_together(&r, 2, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(!cases[i].preempts || st.preemptions > 0, "%s: nobody was pre-empted", cases[i].why);
        rig_close(&r);
    }
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

TEST(guesses_are_refused_where_a_state_cannot_go_back)
{
    engine *e;
    pool *p;
    lq_err err = { "" };
    CHECK(!pool_open(&p, 1, &err), "%s", err.msg);
    const lq_status s =
        eng_open(&e, &golden, NULL, p, &(eng_opts){ .guesses = 4, .max_seqs = 2 }, &err);
    CHECK(s == LQ_EUNSUPPORTED && strstr(err.msg, "speculative") &&
              strstr(err.msg, "Qwen3NextForCausalLM"),
          "%s", err.msg);
    pool_close(p);
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
    RUN(guesses_are_refused_where_a_state_cannot_go_back);
    RUN(a_pool_too_small_for_a_state_says_so);
    golden_close();
    return check_end();
}
