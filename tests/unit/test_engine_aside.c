/* tests/unit/test_engine_aside.c - the engine on Zamba2, whose layers read the residual and what a transformer beside it makes
 * of it and the embedding: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/zamba2-blocks"
#include "tests/support/engine_jobs.h"

TEST(transformers_beside_the_residual_give_the_same_bytes_at_any_load) { run_at_usual_loads(18); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(transformers_beside_the_residual_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
