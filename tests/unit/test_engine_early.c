/* tests/unit/test_engine_early.c - the engine on SmallThinker, whose router reads what a layer was given: the same bytes at
 * any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/smallthinker"
#include "tests/support/engine_jobs.h"

TEST(a_router_that_reads_early_gives_the_same_bytes_at_any_load) { run_at_usual_loads(9); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(a_router_that_reads_early_gives_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
