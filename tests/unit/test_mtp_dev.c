/* tests/unit/test_mtp_dev.c - a model with its MTP head or an EAGLE-3 draft on a device: their logits against the
 * reference, whatever the chunks; and in an engine the answers of the model alone, with guesses that are mostly right. */
#define FOLDER "tests/golden/mtp/mimo"
#include "kernels/device.h"
#include "runtime/engine/mtp.h"
#include "tests/support/engine_rig.h"
#include "tests/support/head_pair.h"

TEST(a_heads_logits_agree_with_the_reference_in_any_chunks)
{
    static const char *const names[] = { "glm4-moe", "deepseek-v3", "qwen3.5", "mimo" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/mtp/%s", names[i]);
        check_pair(path, NULL, "cuda");
    }
}

TEST(a_drafts_logits_agree_with_the_reference_in_any_chunks)
{
    static const char *const drafts[] = { "tests/golden/eagle3", "tests/golden/eagle31/qwen3",
                                          "tests/golden/eagle31/states" };
    for (size_t i = 0; i < LQ_COUNT(drafts); i++) {
        check_pair("tests/golden/mtp/mimo", drafts[i], "cuda");
        check_own_state("tests/golden/mtp/mimo", drafts[i], "cuda");
    }
}

/* One after the other: the same steps with and without. */
enum { JOBS = 4, IDS = 12 };
static void run_jobs(job *jobs, eng_opts o, eng_stats *st)
{
    rig r;
    memset(st, 0, sizeof *st);
    o.max_len = MAX_LEN;
    if (!rig_open(&r, &golden, 1, o)) return;
    for (int k = 0; k < JOBS; k++) {
        make_job(&jobs[k], k);
        jobs[k].r.max_tokens = IDS;
        jobs[k].r.ignore_eos = true;
        submit(&r, &jobs[k]);
        if (o.max_seqs == 1 || k == JOBS - 1) wait_for(&jobs[k]);
    }
    for (int k = 0; k < JOBS && o.max_seqs > 1; k++)
        wait_for(&jobs[k]);
    eng_stats_get(r.e, st);
    rig_close(&r);
}

static void same_answers(const char *draft)
{
    static job alone[JOBS], with[JOBS];
    src_source *head_src = NULL;
    model head = { 0 };
    eng_stats st;
    uint64_t guesses = 0, right = 0;
    lq_err err = { "" };
    const src_opts of_draft = { .need_config = true, .draft = true };
    lq_status s =
        draft ? src_open(&head_src, draft, &of_draft, &err) : src_mtp(&head_src, src, &err);
    if (!s)
        s = draft ? model_load_eagle(&head, &golden, head_src, NULL, &err)
                  : model_load_mtp(&head, &golden, head_src, NULL, &err);
    if (!s) s = model_join_device(&head, &golden, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return;
    run_jobs(alone, (eng_opts){ .max_seqs = 1 }, &st);
    CHECK(st.guesses == 0, "guesses without a head");
    for (int64_t seqs = 1; seqs <= 3; seqs += 2) {
        run_jobs(with,
                 (eng_opts){ .max_seqs = seqs,
                             .guesses = 3,
                             .draft = &head,
                             .max_batch_tokens = seqs > 1 ? 9 : 0 },
                 &st);
        for (int k = 0; k < JOBS; k++)
            CHECK(same_answer(&with[k], &alone[k]), "%d at a time, job %d: %d ids", (int)seqs, k,
                  with[k].n);
        guesses += st.guesses;
        right += st.right;
    }
    /* The draft's weights are random, and it can guess 48 of the 64 ids. */
    CHECK(guesses > 0 && (draft || 3 * right > guesses), "%llu of %llu guesses",
          (unsigned long long)right, (unsigned long long)guesses);
    model_free(&head);
    src_close(head_src);
}

TEST(the_same_answers_with_the_head) { same_answers(NULL); }
TEST(the_same_answers_with_a_draft) { same_answers("tests/golden/eagle3"); }

static bool put_there(void)
{
    lq_err err = { "" };
    if (!golden_open()) return false;
    const lq_status s = model_to_device(&golden, "cuda", &(model_share){ 0 }, &err);
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
    RUN(a_heads_logits_agree_with_the_reference_in_any_chunks);
    RUN(a_drafts_logits_agree_with_the_reference_in_any_chunks);
    if (put_there()) {
        RUN(the_same_answers_with_the_head);
        RUN(the_same_answers_with_a_draft);
    }
    golden_close();
    return check_end();
}
