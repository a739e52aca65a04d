/* tests/unit/test_engine_heads.c - the engine on a model whose selective scan has heads with matrices of their own, beside
 * transformers that read the embedding too: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/zamba"
#include "tests/support/engine_jobs.h"

TEST(heads_of_a_scan_give_the_same_bytes_at_any_load) { run_at_usual_loads(18); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(heads_of_a_scan_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
