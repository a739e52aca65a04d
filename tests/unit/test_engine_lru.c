/* tests/unit/test_engine_lru.c - the engine on a model of linear recurrent units and layers that attend in a window: the
 * same bytes at any load, from states that were kept, with beams and guesses. */
#define FOLDER "tests/golden/arch/recurrent-gemma"
#include "tests/support/engine_states.h"

TEST(a_unit_gives_the_same_bytes_at_any_load)
{
    const engine_load loads[] = {
        { "cached, two threads", 2, { .max_batch_tokens = 64 }, false },
        { "small steps and blocks", 1, { .max_batch_tokens = 7, .block_size = 8 }, false },
        { "no prefix cache", 3, { .no_prefix_cache = true, .max_batch_tokens = 33 }, false },
    };
    run_at_loads(loads, LQ_COUNT(loads));
}

TEST(a_conversation_goes_on_from_a_state_that_was_kept) { conversation_goes_on(); }

TEST(beams_have_states_of_their_own) { beams_are_apart(); }

TEST(guesses_that_were_wrong_leave_no_mark_on_a_state)
{
    run_alone((eng_opts){ .script = &wavering });
    guesses_go_back(2, (eng_opts){ .guesses = 5, .max_seqs = 8, .script = &wavering }, 2, "five");
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(a_unit_gives_the_same_bytes_at_any_load);
    RUN(a_conversation_goes_on_from_a_state_that_was_kept);
    RUN(beams_have_states_of_their_own);
    RUN(guesses_that_were_wrong_leave_no_mark_on_a_state);
    golden_close();
    return check_end();
}
