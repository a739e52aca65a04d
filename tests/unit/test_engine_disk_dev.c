/* tests/unit/test_engine_disk_dev.c - the KV cache on disk of a model that is on devices: blocks that leave
 * them and come back, from one engine to the next, with the answers of an engine that has none. The device
 * is tests/support/emulated.c's. */
#define FOLDER "tests/golden/arch/llama3-gqa"
#include "tests/support/engine_rig.h"
#include "tests/support/temp_dir.h"

extern int emu_devices;

enum { N = 2, PROMPT = 18, BLOCK = 8, LEN = 24 };

static char dir[TEMP_DIR];

static void make(job *j, int k)
{
    make_job(j, 7 * k + 1);
    j->r.n_prompt = PROMPT;
    j->r.max_tokens = 2;
    for (int i = 0; i < PROMPT; i++)
        j->prompt[i] = (int32_t)(3 + (i * i + 31 * k) % 100);
}

/* The jobs, one after the other or all at once; what the engine counted. blocks: of its cache. */
static eng_stats run(job *jobs, bool disk, bool together, size_t blocks)
{
    rig r;
    eng_stats st = { 0 };
    eng_opts o = { .block_size = BLOCK,
                   .max_len = LEN,
                   .max_seqs = 2,
                   .no_prefix_cache = !disk,
                   .kv_bytes = blocks * kv_token_bytes(golden.cfg, KV_F32) * BLOCK };
    if (disk) o.disk = (eng_disk){ .dir = dir, .bytes = 1 << 24 };
    if (!rig_open(&r, &golden, 1, o)) return st;
    for (int k = 0; k < N; k++) {
        make(&jobs[k], k);
        submit(&r, &jobs[k]);
        if (!together) wait_for(&jobs[k]);
    }
    for (int k = 0; k < N; k++)
        wait_for(&jobs[k]);
    eng_stats_get(r.e, &st);
    rig_close(&r);
    return st;
}

static const struct {
    const char *why;
    model_share share;
} places[] = { { "all on a device", { 0 } },
               { "a layer on the CPU", { .layers = 1 } },
               { "two devices", { .ranks = 2 } } };

/* All in one folder: what one wrote is nothing for the others. */
TEST(blocks_go_to_disk_and_come_back_to_the_device)
{
    lq_err err = { "" };
    temp_dir_make(dir);
    for (size_t i = 0; i < LQ_COUNT(places); i++) {
        static job want[N], got[N];
        const char *why = places[i].why;
        if (places[i].share.ranks > dev_count(NULL))
            continue; /* a real machine has as many as it has */
        if (!golden_open()) break;
        const lq_status s = model_to_device(&golden, "cuda", &places[i].share, &err);
        CHECK(!s, "%s: %s", why, err.msg);
        if (!s) {
            run(want, false, false, LEN / BLOCK);
            run(got, true, false, LEN / BLOCK); /* the second takes the first one's */
            for (int k = 0; k < N; k++)
                CHECK(same_answer(&got[k], &want[k]) && got[k].n_cached == 0,
                      "%s: prompt %d, %d of another's tokens", why, k, (int)got[k].n_cached);
            const eng_stats st = run(got, true, true, 2 * N * LEN / BLOCK);
            CHECK(st.disk.files.hits > 0 && !st.disk.files.failed && !st.disk.files.damaged,
                  "%s: %d hits, %d damaged", why, (int)st.disk.files.hits,
                  (int)st.disk.files.damaged);
            for (int k = 0; k < N; k++)
                CHECK(same_answer(&got[k], &want[k]) && got[k].n_cached == PROMPT / BLOCK * BLOCK,
                      "%s: prompt %d, %d tokens read", why, k, (int)got[k].n_cached);
        }
        golden_close();
    }
    temp_dir_remove(dir);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    emu_devices = 2;
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(blocks_go_to_disk_and_come_back_to_the_device);
    return check_end();
}
