/* The engine with its KV cache on disk: the same bytes at any load, however requests begin and end, and
 * after the engine was opened again. */
#include "tests/support/engine_jobs.h"
#include "tests/support/temp_dir.h"

static char dir[TEMP_DIR];

TEST(a_cache_on_disk_gives_the_same_bytes_at_any_load)
{
    const size_t one = MAX_LEN / 8 * kv_block_bytes(golden.cfg, 8, KV_F32);
    const struct {
        const char *why;
        int threads;
        eng_opts o;
    } cases[] = {
        { "a pool for little more than one", 2, { .kv_bytes = 3 * one / 2, .max_len = MAX_LEN } },
        { "again, and small steps",
          1,
          { .kv_bytes = 3 * one / 2, .max_len = MAX_LEN, .max_batch_tokens = 7 } },
        { "a large pool", 2, { .max_len = MAX_LEN } },
        { "static batches",
          2,
          { .kv_bytes = 2 * one, .max_len = MAX_LEN, .policy = { .batching = ENG_STATIC } } },
        { "batches that wait",
          2,
          { .kv_bytes = 2 * one,
            .max_len = MAX_LEN,
            .policy = { .batching = ENG_DYNAMIC, .batch_wait = 0.002 } } },
        { "guesses", 2, { .kv_bytes = 2 * one, .max_len = MAX_LEN, .guesses = 5 } },
        { "a folder for a few blocks", 2, { .kv_bytes = 2 * one, .disk = { .bytes = 1 << 16 } } },
    };
    temp_dir_make(dir);
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        eng_opts o = cases[i].o;
        o.block_size = 8;
        o.max_len = MAX_LEN;
        o.disk.dir = dir;
        if (!o.disk.bytes) o.disk.bytes = 1 << 24;
        if (!rig_open(&r, &golden, cases[i].threads, o)) break;
        run_together(&r, 2, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(st.disk.files.failed == 0 && st.disk.files.damaged == 0, "%s: files", cases[i].why);
        /* Of few blocks what is read depends on when they are removed: on the machine's speed. */
        if (cases[i].o.disk.bytes)
            CHECK(st.disk.files.removed > 0, "%s: none made room", cases[i].why);
        else
            CHECK(i == 0 || st.disk.files.hits > 0, "%s: nothing was read", cases[i].why);
        CHECK(st.kv_blocks_used == 0, "%s: %d blocks in use", cases[i].why, (int)st.kv_blocks_used);
        rig_close(&r);
    }
    temp_dir_remove(dir);
}

TEST(requests_that_are_cancelled_while_their_beginning_is_read_end_once)
{
    rig r;
    job jobs[12];
    eng_opts o = { .block_size = 8, .max_len = MAX_LEN, .disk = { .bytes = 1 << 24 } };
    temp_dir_make(dir);
    o.disk.dir = dir;
    for (int round = 0; round < 10; round++) {
        if (!rig_open(&r, &golden, 2, o)) break;
        for (int k = 0; k < 12; k++) {
            make_job(&jobs[k], k);
            submit(&r, &jobs[k]);
            if (round && k % 2) eng_cancel(r.e, jobs[k].id);
        }
        for (int k = 0; k < 12 && round % 3 != 2; k++)
            wait_for(&jobs[k]);
        rig_close(&r); /* round % 3 == 2: which cancels them */
        for (int k = 0; k < 12; k++)
            CHECK(atomic_load(&jobs[k].n_finals) == 1 && jobs[k].after == 0, "round %d: job %d",
                  round, k);
    }
    temp_dir_remove(dir);
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(a_cache_on_disk_gives_the_same_bytes_at_any_load);
    RUN(requests_that_are_cancelled_while_their_beginning_is_read_end_once);
    golden_close();
    return check_end();
}
