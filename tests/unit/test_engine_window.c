/* The engine on a model most of whose layers see a window: they keep no more than that, and answers are the
 * same bytes at any load, with beams, guesses and cached prefixes. */
#define FOLDER "tests/golden/arch/gemma3"
#include "runtime/engine/sizing.h"
#include "runtime/model/kv_window.h"
#include "tests/support/engine_jobs.h"

/* Four letters over and over, and another now and then. */
static float scripted_rows[4][320];
static const float *write_pattern(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                                  int64_t n_output, const float *row)
{
    (void)self, (void)ids, (void)n_prompt;
    float *out = scripted_rows[thread];
    memcpy(out, row, (size_t)golden.cfg->vocab * sizeof *out);
    out[n_output % 29 == 28 ? 30 : 20 + n_output % 4] += 20;
    return out;
}
static const eng_script pattern = { write_pattern, NULL };

static size_t slot_bytes(void) { return kv_window_bytes(golden.cfg, 8, KV_F32); }
static size_t block_bytes(void) { return kv_block_bytes(golden.cfg, 8, KV_F32); }

TEST(windows_give_the_same_bytes_at_any_load)
{
    const size_t far = block_bytes() - slot_bytes();
    const int64_t each = kv_window_slots(golden.cfg, 8, 16);
    const size_t one = MAX_LEN / 8 * far + (size_t)each * slot_bytes();
    const struct {
        const char *why;
        int threads;
        eng_opts o;
        bool preempts;
    } cases[] = {
        { "cached", 2, { .max_batch_tokens = 16 }, false },
        { "three at once", 1, { .max_batch_tokens = 16, .max_seqs = 3 }, false },
        { "no prefix cache", 3, { .max_batch_tokens = 16, .no_prefix_cache = true }, false },
        { "memory for little more than one",
          2,
          { .max_batch_tokens = 16, .kv_bytes = 2 * one },
          true },
        { "guesses",
          2,
          { .max_batch_tokens = 16, .max_seqs = 8, .guesses = 5, .script = &pattern },
          false },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        eng_opts o = cases[i].o, sized;
        kv_opts kv;
        o.block_size = 8;
        o.max_len = MAX_LEN;
        if (i == 0 || o.script) run_alone((eng_opts){ .script = o.script });
        CHECK(!eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, NULL) && kv.n_windows,
              "%s: no windows", cases[i].why);
        if (!rig_open(&r, &golden, cases[i].threads, o)) return;
        run_together(&r, 2, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(!cases[i].preempts || st.preemptions > 0, "%s: nobody was pre-empted", cases[i].why);
        CHECK(!o.guesses || st.right > 20, "%s: %llu right", cases[i].why,
              (unsigned long long)st.right);
        rig_close(&r);
    }
}

static void ask(rig *r, job *j, const int32_t *ids, int64_t n, int64_t width)
{
    memset(j, 0, sizeof *j);
    memcpy(j->prompt, ids, (size_t)n * sizeof *ids);
    j->r = (eng_request){ .prompt = j->prompt,
                          .n_prompt = n,
                          .max_tokens = 20,
                          .ignore_eos = true,
                          .prompt_logprobs = -1,
                          .beam = { .width = width, .n = width, .length_penalty = 1 } };
    submit(r, j);
    const int ends = width ? (int)width : 1; /* one of each answer */
    for (int i = 0; i < 600000 && atomic_load(&j->n_finals) < ends; i++)
        nap();
    CHECK(atomic_load(&j->n_finals) == ends, "%d ends", atomic_load(&j->n_finals));
}

TEST(a_conversation_goes_on_where_its_window_is_left)
{
    rig r, plain;
    job first, again, want;
    int32_t ids[MAX_LEN];
    const eng_opts o = {
        .max_seqs = 1, .max_batch_tokens = 16, .block_size = 8, .max_len = MAX_LEN
    };
    if (!rig_open(&r, &golden, 2, o)) return;
    if (!rig_open(&plain, &golden, 1, (eng_opts){ .max_seqs = 1, .no_prefix_cache = true })) return;
    for (int i = 0; i < MAX_LEN; i++)
        ids[i] = 3 + i * i % 60;
    ask(&r, &first, ids, 80, 0);
    ask(&plain, &want, ids, 80, 0);
    CHECK(same_answer(&first, &want), "the first turn");
    memcpy(ids + 80, first.ids, 20 * sizeof *ids);
    ask(&r, &again, ids, 105, 0); /* 99 were read */
    CHECK(again.n_cached == 96, "%d cached", (int)again.n_cached);
    ask(&plain, &want, ids, 105, 0);
    CHECK(same_answer(&again, &want), "the second turn");
    ids[40] ^= 1; /* one sequence's slots do not hold what it saw so long ago */
    ask(&r, &again, ids, 105, 0);
    CHECK(again.n_cached == 0, "%d cached", (int)again.n_cached);
    ask(&plain, &want, ids, 105, 0);
    CHECK(same_answer(&again, &want), "another text");
    rig_close(&r);
    rig_close(&plain);
}

TEST(beams_share_windows)
{
    rig r, plain;
    job a, b;
    int32_t ids[MAX_LEN];
    lq_err err;
    const eng_opts o = {
        .max_seqs = 4, .max_batch_tokens = 16, .block_size = 8, .max_len = MAX_LEN
    };
    for (int i = 0; i < 77; i++)
        ids[i] = 3 + i * 5 % 60;
    if (!rig_open(&r, &golden, 2, o)) return;
    if (!rig_open(&plain, &golden, 1, (eng_opts){ .max_seqs = 4, .no_prefix_cache = true })) return;
    ask(&r, &a, ids, 77, 4);
    ask(&plain, &b, ids, 77, 4);
    CHECK(a.n == 80 && same_answer(&a, &b), "%d ids and %d", a.n, b.n);
    ask(&r, &b, ids, 77, 4);
    CHECK(b.n_cached == 72 && same_answer(&a, &b), "again, %d cached", (int)b.n_cached);
    a.r.beam.width = 5;
    CHECK(eng_submit(r.e, &a.r, take, &a, &a.id, &err) == LQ_EVALUE, "more lines than sequences");
    rig_close(&r);
    rig_close(&plain);
}

TEST(a_long_context_takes_the_layers_that_see_it_all)
{
    eng_opts o = { .max_seqs = 1, .max_batch_tokens = 16, .block_size = 8, .max_len = MAX_LEN },
             sized;
    kv_opts kv;
    lq_err err;
    const size_t slot = slot_bytes(), far = block_bytes() - slot;
    const int64_t each = kv_window_slots(golden.cfg, 8, 16); /* (15 + 31 + 16) / 8 + 1 */
    CHECK(each == 9 && far > 0 && far < slot, "%lld slots", (long long)each);
    CHECK(!eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, NULL) && kv.n_windows == each &&
              sized.kv_bytes == 16 * far + 9 * slot,
          "%zu bytes", sized.kv_bytes);
    o.kv_bytes = sized.kv_bytes;
    CHECK(!eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, NULL) && kv.n_blocks == 16,
          "just enough");
    o.kv_bytes--;
    CHECK(eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, &err) == LQ_EVALUE &&
              strstr(err.msg, "a sequence of 128 tokens needs"),
          "%s", err.msg);
    /* As many tokens as without windows: 64 sequences do not all get theirs. */
    o = (eng_opts){ .max_batch_tokens = 16, .block_size = 8, .kv_bytes = 40 * (far + slot) };
    CHECK(!eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, NULL) && kv.n_windows == 40 &&
              kv.n_blocks == 40,
          "%lld slots, %lld blocks", (long long)kv.n_windows, (long long)kv.n_blocks);
    o.max_batch_tokens = 128; /* a run is as long as the context */
    CHECK(!eng_size(&sized, &kv, golden.cfg, &o, NULL, 0, NULL) && !kv.n_windows,
          "nothing to gain");
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(windows_give_the_same_bytes_at_any_load);
    RUN(a_conversation_goes_on_where_its_window_is_left);
    RUN(beams_share_windows);
    RUN(a_long_context_takes_the_layers_that_see_it_all);
    golden_close();
    return check_end();
}
