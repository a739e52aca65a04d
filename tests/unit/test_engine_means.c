/* tests/unit/test_engine_means.c - the engine on a model that carries a state and attends to groups of positions, each by
 * the mean of its keys, with gates on several residual streams: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/qwen4-exp"
#include "tests/support/engine_jobs.h"

TEST(groups_chosen_by_means_give_the_same_bytes_at_any_load) { run_at_usual_loads(18); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(groups_chosen_by_means_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
