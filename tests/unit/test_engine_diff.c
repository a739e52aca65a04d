/* tests/unit/test_engine_diff.c - the engine on a model of differential attention, whose values are in the cache twice: the
 * same bytes at any load, with beams and guesses. */
#define FOLDER "tests/golden/arch/diffllama"
#include "tests/support/engine_jobs.h"

TEST(pairs_of_heads_give_the_same_bytes_at_any_load) { run_at_usual_loads(9); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(pairs_of_heads_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
