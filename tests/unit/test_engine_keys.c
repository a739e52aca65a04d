/* tests/unit/test_engine_keys.c - the engine on Doge, whose keys have an addend to scores: the same bytes at any load, from
 * cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/doge"
#include "tests/support/engine_jobs.h"

TEST(keys_with_an_addend_give_the_same_bytes_at_any_load) { run_at_usual_loads(9); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(keys_with_an_addend_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
