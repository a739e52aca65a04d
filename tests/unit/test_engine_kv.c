/* The engine with every type of KV cache: the same bytes at any load, as with f32. */
#include "tests/support/engine_jobs.h"

TEST(a_cache_of_any_type_gives_the_same_bytes_at_any_load)
{
    for (int d = KV_F16; d < KV_N_DTYPES; d++) {
        const kv_dtype kv = (kv_dtype)d;
        const size_t one = MAX_LEN / 16 * kv_block_bytes(golden.cfg, 16, kv);
        const struct {
            const char *why;
            int threads;
            eng_opts o;
        } cases[] = {
            { "cached, two threads", 2, { .kv = kv, .max_batch_tokens = 64 } },
            { "small steps and blocks", 1, { .kv = kv, .max_batch_tokens = 7, .block_size = 8 } },
            { "a pool for one", 2, { .kv = kv, .kv_bytes = one, .max_len = MAX_LEN } },
        };
        char why[64];
        job before = alone[1];
        run_alone((eng_opts){ .kv = kv });
        CHECK(memcmp(before.logprobs, alone[1].logprobs, sizeof before.logprobs),
              "%s: the same as the type before", kv_types_text(kv));
        for (size_t i = 0; i < LQ_COUNT(cases); i++) {
            rig r;
            eng_stats st;
            if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) return;
            snprintf(why, sizeof why, "%s, %s", kv_types_text(kv), cases[i].why);
            run_together(&r, 1, why);
            eng_stats_get(r.e, &st);
            CHECK(!cases[i].o.kv_bytes || st.preemptions > 0, "%s: nobody was pre-empted", why);
            rig_close(&r);
        }
    }
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(a_cache_of_any_type_gives_the_same_bytes_at_any_load);
    golden_close();
    return check_end();
}
