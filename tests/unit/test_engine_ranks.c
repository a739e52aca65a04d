/* tests/unit/test_engine_ranks.c - the engine on a model whose layers have latents of different ranks, with a window or
 * an indexer: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/dots3-note"
#include "tests/support/engine_jobs.h"

TEST(latents_of_two_ranks_give_the_same_bytes_at_any_load) { run_at_usual_loads(9); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(latents_of_two_ranks_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
