/* tests/unit/test_engine_shortcut.c - the engine on LongCat-Flash, where what experts give goes beside x to the next layer: the
 * same bytes at any load, with beams and guesses. */
#define FOLDER "tests/golden/arch/longcat-flash"
#include "tests/support/engine_jobs.h"

TEST(experts_that_join_later_give_the_same_bytes_at_any_load) { run_at_usual_loads(9); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(experts_that_join_later_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
