/* tests/unit/test_engine_tapped.c - the engine on a model whose keys, values and branches are convolved along the positions, and whose
 * queries add to scores by distance: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/inkling"
#include "tests/support/engine_jobs.h"

TEST(convolved_branches_give_the_same_bytes_at_any_load) { run_at_usual_loads(18); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(convolved_branches_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
