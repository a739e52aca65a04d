/* An engine whose model's layers carry states that are in a device's memory: kept for the next turn, one for
 * each beam, and gone back to where guesses were wrong; with the bytes of each request alone. */
#define FOLDER "tests/golden/arch/qwen3-next"
#include "runtime/engine/sizing.h"
#include "tests/support/engine_states.h"

extern int emu_devices;

TEST(a_conversation_goes_on_from_a_state_that_was_kept_there) { conversation_goes_on(); }

TEST(beams_have_states_of_their_own_there) { beams_are_apart(); }

/* check_hard: the emulation takes a minute; test_forward_dev has a state that goes back. */
TEST(guesses_that_were_wrong_leave_no_mark_on_a_state_there)
{
    run_alone((eng_opts){ .script = &wavering });
    guesses_go_back(2, (eng_opts){ .guesses = 5, .max_seqs = 8, .script = &wavering }, 1, "five");
    guesses_go_back(1,
                    (eng_opts){ .guesses = 4,
                                .no_prefix_cache = true,
                                .max_batch_tokens = 24,
                                .block_size = 8,
                                .script = &wavering },
                    1, "no prefix cache, small steps");
}

/* Half of a memory that has little is for states, and what they leave for blocks. */
TEST(states_are_counted_in_the_devices_memory)
{
    const size_t one = kv_state_bytes_on(golden.cfg, 0, 1),
                 block = kv_block_bytes(golden.cfg, 16, KV_F32);
    eng_opts out;
    kv_opts kv;
    lq_err err = { "" };
    dev *d = model_dev(&golden);
    const size_t room = dev_room(d);
    CHECK(!eng_size(&out, &kv, golden.cfg, &(eng_opts){ .max_seqs = 3 }, d, 0, &err), "%s",
          err.msg);
    CHECK(kv.n_states == 6, "%lld states for 3 sequences", (long long)kv.n_states);
    const eng_opts many = { .max_seqs = 4096, .max_len = 16, .max_batch_tokens = 16 };
    if (eng_size(&out, &kv, golden.cfg, &many, d, 0, &err)) return;
    CHECK((size_t)kv.n_states * one + (size_t)kv.n_blocks * block <= room,
          "%lld states of %zu, %lld blocks of %zu, %zu free", (long long)kv.n_states, one,
          (long long)kv.n_blocks, block, room);
}

/* Each of two devices has the states of its heads. */
TEST(a_conversation_goes_on_from_what_two_devices_kept) { conversation_goes_on(); }

TEST(beams_have_states_of_their_own_on_both) { beams_are_apart(); }

/* The model on so many devices. */
static bool put_on(int ranks)
{
    lq_err err = { "" };
    if (!golden_open()) return false;
    const lq_status s = model_to_device(&golden, "cuda", &(model_share){ .ranks = ranks }, &err);
    CHECK(!s, "%s", err.msg);
    return !s;
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    if (put_on(1)) {
        RUN(a_conversation_goes_on_from_a_state_that_was_kept_there);
        RUN(beams_have_states_of_their_own_there);
        if (check_hard()) RUN(guesses_that_were_wrong_leave_no_mark_on_a_state_there);
        RUN(states_are_counted_in_the_devices_memory);
    }
    golden_close();
    if (emu_devices < 2) emu_devices = 2;
    if (dev_count(&err) > 1 && put_on(2)) {
        RUN(a_conversation_goes_on_from_what_two_devices_kept);
        RUN(beams_have_states_of_their_own_on_both);
        golden_close();
    }
    return check_end();
}
