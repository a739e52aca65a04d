/* tests/unit/test_engine_compress.c - the engine on a model whose tokens attend to a window and to compressed
 * positions, made of a state that goes along: the same bytes at any load, from cached prefixes, with beams and
 * guesses that are taken back. */
#define FOLDER "tests/golden/arch/deepseek-v4"
#include "tests/support/engine_jobs.h"

TEST(compressed_positions_give_the_same_bytes_at_any_load)
{
    const size_t block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const engine_load loads[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "large blocks", 2, { .max_batch_tokens = 19, .block_size = 32 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one", 2, { .kv_bytes = 18 * block, .max_len = MAX_LEN }, true },
        { "guesses", 2, { .guesses = 4, .max_seqs = 3 }, false },
    };
    run_at_loads(loads, LQ_COUNT(loads));
}

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

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
