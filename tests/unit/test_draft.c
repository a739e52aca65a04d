/* A draft model beside the engine: the same bytes whoever guesses, what is drawn has the model's
 * distribution, and a draft that does not fit is refused. */
#include "runtime/engine/draft.h"
#include "runtime/engine/engine.h"
#include "tests/support/engine_jobs.h"

/* A draft that is often right: the golden model without its last layer. */
static arch_config short_cfg;
static model cut_model(void)
{
    model m = golden;
    short_cfg = *golden.cfg;
    short_cfg.layers--;
    m.cfg = &short_cfg;
    return m;
}

TEST(the_same_bytes_whoever_guesses)
{
    const model cut = cut_model();
    const size_t one =
        MAX_LEN / 16 *
        (kv_block_bytes(golden.cfg, 16, KV_F32) + kv_block_bytes(cut.cfg, 16, KV_F32));
    const struct {
        const char *why;
        int threads, copies;
        eng_opts o;
    } cases[] = {
        { "itself", 1, 1, { .guesses = 5, .draft = &golden, .max_seqs = 3 } },
        { "cut, prefix cache", 2, 2, { .guesses = 3, .draft = &cut, .max_seqs = 8 } },
        { "cut, no prefix cache",
          1,
          1,
          { .guesses = 4, .draft = &cut, .max_seqs = 5, .no_prefix_cache = true } },
        { "cut, small steps and blocks",
          1,
          1,
          { .guesses = 7, .draft = &cut, .max_seqs = 2, .max_batch_tokens = 5, .block_size = 8 } },
        { "cut, a pool for one",
          2,
          2,
          { .guesses = 5, .draft = &cut, .kv_bytes = one, .max_len = MAX_LEN } },
    };
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) return;
        run_together(&r, cases[i].copies, cases[i].why);
        eng_stats_get(r.e, &st);
        uint64_t at = 0;
        for (size_t k = 0; k < LQ_COUNT(st.right_at); k++)
            at += st.right_at[k];
        CHECK(st.guesses >= st.drafts && st.right > 0 && st.right < st.guesses && at == st.right,
              "%s: %llu of %llu guesses were right", cases[i].why, (unsigned long long)st.right,
              (unsigned long long)st.guesses);
        CHECK(!cases[i].o.kv_bytes || st.preemptions > 0, "%s: nobody was pre-empted",
              cases[i].why);
        rig_close(&r);
    }
}

/* Logits that do not depend on the model: ln of weights over eight ids. */
enum { IDS = 8, DRAWS = 4 };
static const double weights[IDS] = { 0.30, 0.02, 0.17, 0.05, 0.01, 0.25, 0.08, 0.12 };
static const int32_t allowed[IDS] = { 20, 21, 22, 23, 24, 25, 26, 27 };
static float fixed_row[2][512];
static const float *write_fixed(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                                int64_t n_output, const float *row)
{
    (void)self, (void)ids, (void)n_prompt, (void)n_output, (void)row;
    memset(fixed_row[thread], 0, sizeof fixed_row[thread]);
    for (int i = 0; i < IDS; i++)
        fixed_row[thread][allowed[i]] = (float)log(weights[i]);
    return fixed_row[thread];
}

/* Chi-square of what many seeds drew at each place, with 7 degrees of freedom: above 24.3 one time
 * in a thousand. The seeds are fixed, so the figures are too. */
TEST(what_is_drawn_has_the_models_distribution) /* T-46 */
{
    enum { SEEDS = 1500, AT_ONCE = 30 };
    static const eng_script fixed = { write_fixed, NULL };
    double seen[DRAWS][IDS] = { { 0 } };
    rig r;
    eng_stats st;
    eng_opts o = { .guesses = 3, .draft = &golden, .max_seqs = 2, .script = &fixed };
    if (!rig_open(&r, &golden, 2, o)) return;
    job *j = malloc(AT_ONCE * sizeof *j);
    for (int seed = 0; seed < SEEDS; seed += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            make_job(&j[i], 0);
            j[i].r.n_prompt = 1 + i % 5;
            j[i].r.max_tokens = DRAWS;
            j[i].r.params = (smp_params){ .temperature = 1,
                                          .seed = (uint64_t)(seed + i),
                                          .allowed = allowed,
                                          .n_allowed = IDS,
                                          .logprobs = -1 };
            submit(&r, &j[i]);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            wait_for(&j[i]);
            for (int d = 0; d < DRAWS && d < j[i].n; d++)
                seen[d][j[i].ids[d] - allowed[0]]++;
        }
    }
    eng_stats_get(r.e, &st);
    CHECK(st.right > 0 && st.right < st.guesses, "%llu of %llu", (unsigned long long)st.right,
          (unsigned long long)st.guesses);
    for (int d = 0; d < DRAWS; d++) {
        double chi = 0;
        for (int i = 0; i < IDS; i++) {
            double want = weights[i] * SEEDS, off = seen[d][i] - want;
            chi += off * off / want;
        }
        CHECK(chi < 24.3, "draw %d: chi-square %.1f", d, chi);
    }
    free(j);
    rig_close(&r);
}

TEST(a_draft_that_does_not_fit_is_refused)
{
    model other = golden;
    arch_config cfg = *golden.cfg;
    lq_err err = { "" };
    engine *e = NULL;
    cfg.vocab--;
    other.cfg = &cfg;
    eng_opts o = { .guesses = 3, .draft = &other };
    lq_status s = eng_open(&e, &golden, NULL, NULL, &o, &err);
    CHECK(s == LQ_EVALUE && !e && strstr(err.msg, "vocabulary of 320 ids, found one of 319"), "%s",
          err.msg);
    size_t both = kv_block_bytes(golden.cfg, 16, KV_F32) * 2;
    o = (eng_opts){ .guesses = 3, .draft = &golden, .kv_bytes = 5 * both - 1 };
    CHECK(!eng_open(&e, &golden, NULL, NULL, &o, &err) && eng_options(e)->max_len == 64 &&
              eng_options(e)->kv_bytes == 4 * both,
          "the pool is for both: %lld", e ? (long long)eng_options(e)->max_len : 0);
    eng_close(e);
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    RUN(the_same_bytes_whoever_guesses);
    RUN(what_is_drawn_has_the_models_distribution);
    RUN(a_draft_that_does_not_fit_is_refused);
    golden_close();
    return check_end();
}
