/* tests/unit/test_engine_ngrams.c - the engine on a model with embeddings of n-grams, which keep the last tokens and what a
 * convolution read of them: the same bytes at any load, from cached prefixes, with beams and guesses. */
#define FOLDER "tests/golden/arch/qwen4-exp-ngrams"
#include "tests/support/engine_jobs.h"

TEST(embeddings_of_ngrams_give_the_same_bytes_at_any_load) { run_at_usual_loads(18); }

TEST(beams_give_the_same_bytes_among_others) { run_beams_in_small_steps(); }

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(embeddings_of_ngrams_give_the_same_bytes_at_any_load);
    RUN(beams_give_the_same_bytes_among_others);
    golden_close();
    return check_end();
}
