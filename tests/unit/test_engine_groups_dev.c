/* tests/unit/test_engine_groups_dev.c - an engine on GLM-5-Next on a device: states, keys of groups of positions and the
 * streams around both are kept for the next turn, and there for each beam. */
#define FOLDER "tests/golden/arch/glm5-next"
#include "tests/support/engine_states.h"

TEST(a_conversation_goes_on_from_groups_that_are_there) { conversation_goes_on(); }

TEST(beams_have_groups_of_their_own_there) { beams_are_apart(); }

int main(int argc, char **argv)
{
    golden_open_on_device();
    RUN(a_conversation_goes_on_from_groups_that_are_there);
    RUN(beams_have_groups_of_their_own_there);
    golden_close();
    return check_end();
}
