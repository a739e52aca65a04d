/* tests/unit/test_engine_lightning_dev.c - an engine on MiniMax, whose states are in a device's memory and decay by what is
 * fixed: kept for the next turn, one for each beam. */
#define FOLDER "tests/golden/arch/minimax"
#include "tests/support/engine_states.h"

TEST(a_conversation_goes_on_from_a_state_with_fixed_decays) { conversation_goes_on(); }

TEST(beams_have_states_of_their_own_there) { beams_are_apart(); }

int main(int argc, char **argv)
{
    golden_open_on_device();
    RUN(a_conversation_goes_on_from_a_state_with_fixed_decays);
    RUN(beams_have_states_of_their_own_there);
    golden_close();
    return check_end();
}
