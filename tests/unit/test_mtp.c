/* tests/unit/test_mtp.c - the model's own MTP head: its logits against the reference, whatever the chunks; and
 * beside the engine: the same bytes, with guesses that are mostly right. */
#define FOLDER "tests/golden/mtp/glm4-moe"
#include "runtime/engine/mtp.h"
#include "tests/support/engine_jobs.h"
#include "tests/support/head_pair.h"

static src_source *head_src;
static model head;

static bool head_open(void)
{
    lq_err err = { "" };
    lq_status s = src_mtp(&head_src, src, &err);
    if (!s) s = model_load_mtp(&head, &golden, head_src, NULL, &err);
    CHECK(!s, "%s", err.msg);
    return !s;
}

TEST(logits_agree_with_the_reference_in_any_chunks)
{
    static const char *const names[] = { "glm4-moe", "deepseek-v3", "qwen3.5", "mimo" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/mtp/%s", names[i]);
        check_pair(path, NULL, NULL);
    }
}

TEST(the_same_bytes_with_the_head)
{
    const size_t one =
        MAX_LEN / 16 *
        (kv_block_bytes(golden.cfg, 16, KV_F32) + kv_block_bytes(head.cfg, 16, KV_F32));
    const struct {
        const char *why;
        int threads, copies;
        eng_opts o;
    } cases[] = {
        { "one at a time", 1, 1, { .guesses = 4, .max_seqs = 1 } },
        { "prefix cache", 2, 2, { .guesses = 3, .max_seqs = 8 } },
        { "no prefix cache", 1, 1, { .guesses = 1, .max_seqs = 5, .no_prefix_cache = true } },
        { "small steps and blocks",
          1,
          1,
          { .guesses = 7, .max_seqs = 2, .max_batch_tokens = 5, .block_size = 8 } },
        { "a pool for one", 2, 2, { .guesses = 5, .kv_bytes = one, .max_len = MAX_LEN } },
    };
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        eng_opts o = cases[i].o;
        o.draft = &head;
        if (!rig_open(&r, &golden, cases[i].threads, o)) return;
        run_together(&r, cases[i].copies, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(st.guesses >= st.drafts && 3 * st.right > st.guesses,
              "%s: %llu of %llu guesses were right", cases[i].why, (unsigned long long)st.right,
              (unsigned long long)st.guesses);
        if (getenv("SHOW"))
            printf("%-24s %llu of %llu\n", cases[i].why, (unsigned long long)st.right,
                   (unsigned long long)st.guesses);
        CHECK(!cases[i].o.kv_bytes || st.preemptions > 0, "%s: nobody was pre-empted",
              cases[i].why);
        rig_close(&r);
    }
}

TEST(a_model_without_a_head_is_refused)
{
    static const struct {
        const char *folder;
        lq_status s;
        const char *says;
    } t[] = {
        { "tests/golden/arch/llama-128", LQ_EUNSUPPORTED, "found a LlamaForCausalLM" },
        { "tests/golden/arch/deepseek-v3", LQ_ENOENT, "found no tensor 'model.layers." },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        src_source *of, *none = NULL;
        lq_err err = { "" };
        CHECK(!src_open(&of, t[i].folder, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
        const lq_status s = src_mtp(&none, of, &err);
        CHECK(s == t[i].s && !none && strstr(err.msg, t[i].says), "%s: %s", t[i].folder, err.msg);
        src_close(of);
    }
}

int main(int argc, char **argv)
{
    if (!golden_open() || !head_open()) return 1;
    RUN(logits_agree_with_the_reference_in_any_chunks);
    RUN(the_same_bytes_with_the_head);
    RUN(a_model_without_a_head_is_refused);
    model_free(&head);
    src_close(head_src);
    golden_close();
    return check_end();
}
