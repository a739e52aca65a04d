/* tests/unit/test_engine_latents.c - the engine on a model whose layers read the latents of others, and have indexers of
 * their own all the same or share a choice: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/mistral-large4"
#include "tests/support/engine_jobs.h"

TEST(shared_latents_give_the_same_bytes_at_any_load)
{
    const size_t block = kv_block_bytes(golden.cfg, 16, KV_F32);
    const engine_load loads[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
        { "blocks for one", 2, { .kv_bytes = 9 * block, .max_len = MAX_LEN }, true },
        { "guesses", 2, { .guesses = 4, .max_seqs = 3 }, false },
    };
    run_at_loads(loads, LQ_COUNT(loads));
}

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(shared_latents_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
