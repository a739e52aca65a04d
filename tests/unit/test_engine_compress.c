/* tests/unit/test_engine_compress.c - the engine on a model whose tokens attend to a window and to compressed
 * positions, made of a state that goes along: the same bytes at any load, from cached prefixes, with beams and
 * guesses that are taken back. */
#define FOLDER "tests/golden/arch/deepseek-v4"
#include "tests/support/engine_jobs.h"

TEST(compressed_positions_give_the_same_bytes_at_any_load)
{
    const size_t block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const struct {
        const char *why;
        int threads;
        eng_opts o;
        bool preempts;
    } cases[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "large blocks", 2, { .max_batch_tokens = 19, .block_size = 32 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one", 2, { .kv_bytes = 18 * block, .max_len = MAX_LEN }, true },
        { "guesses", 2, { .guesses = 4, .max_seqs = 3 }, false },
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

/* Lines that go on from one prompt copy its last block, compressed positions with it, and its state. */
TEST(beams_give_the_same_bytes_among_others)
{
    job a, b;
    for (int k = 0; k < 6; k++) {
        job *const js[] = { &a, &b };
        for (int i = 0; i < 2; i++) {
            rig r;
            if (!rig_open(&r, &golden, 1 + i,
                          (eng_opts){ .max_seqs = 8, .max_batch_tokens = i ? 9 : 0 }))
                return;
            make_job(js[i], 3 * k);
            js[i]->r.max_tokens = 20;
            js[i]->r.params = (smp_params){ .logprobs = -1 };
            js[i]->r.beam.width = 3;
            js[i]->r.beam.n = 1;
            js[i]->r.beam.length_penalty = 1;
            submit(&r, js[i]);
            wait_for(js[i]);
            rig_close(&r);
        }
        CHECK(a.n == b.n && a.n == 20 && !memcmp(a.ids, b.ids, sizeof a.ids),
              "job %d: %d and %d ids", k, a.n, b.n);
    }
}

/* The lists of what a row sees have room for them. */
TEST(positions_end_with_those_of_the_model)
{
    lq_err err = { "" };
    CHECK(!model_check_positions(&golden, golden.cfg->max_pos, &err), "%s", err.msg);
    CHECK(model_check_positions(&golden, golden.cfg->max_pos + 1, &err) == LQ_EVALUE &&
              strstr(err.msg, "max_position_embeddings, 128"),
          "%s", err.msg);
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(compressed_positions_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    RUN(positions_end_with_those_of_the_model);
    golden_close();
    return check_end();
}
