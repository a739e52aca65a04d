/* tests/unit/test_eagle.c - an EAGLE-3 draft: its logits against the reference, whatever the chunks; beside the
 * engine the same bytes, with guesses that are mostly right; and what does not fit the model. */
#define FOLDER "tests/golden/mtp/mimo"
#define DRAFT "tests/golden/eagle3"
#include "base/file.h"
#include "base/json.h"
#include "runtime/engine/mtp.h"
#include "tests/support/engine_jobs.h"
#include "tests/support/head_pair.h"

#include <cjson/cJSON.h>
#include <unistd.h>

enum { T = PAIR_T, V = 64, WORDS = 48 };
/* EAGLE-3, and with the norms of 3.1 and of Qwen3's drafts. */
static const char *const drafts[] = { DRAFT, "tests/golden/eagle31/qwen3",
                                      "tests/golden/eagle31/states" };
static src_source *draft_src;
static model draft;

static bool draft_open_it(void)
{
    lq_err err = { "" };
    lq_status s =
        src_open(&draft_src, DRAFT, &(src_opts){ .need_config = true, .draft = true }, &err);
    if (!s) s = model_load_eagle(&draft, &golden, draft_src, NULL, &err);
    CHECK(!s, "%s", err.msg);
    return !s;
}

TEST(logits_agree_with_the_reference_in_any_chunks)
{
    for (size_t i = 0; i < LQ_COUNT(drafts); i++)
        check_pair(FOLDER, drafts[i], NULL);
}

/* One more row, of the draft's own last state. */
TEST(a_row_of_its_own_state_agrees_with_the_reference)
{
    for (size_t i = 0; i < LQ_COUNT(drafts); i++)
        check_own_state(FOLDER, drafts[i], NULL);
}

/* dir: the draft as the library "speculators" has it: layers.0 for midlayer, a config in two parts. */
static bool write_speculator(const char *dir, lq_err *err)
{
    static const char config[] =
        "{\"architectures\":[\"Eagle3Speculator\"],\"speculators_model_type\":\"eagle3\","
        "\"draft_vocab_size\":48,\"norm_before_residual\":true,\"target_hidden_size\":null,"
        "\"eagle_aux_hidden_state_layer_ids\":[0,1,1],\"tie_word_embeddings\":false,"
        "\"speculators_config\":{\"algorithm\":\"eagle3\"},\"speculators_version\":\"0.1.0\","
        "\"transformer_layer_config\":{\"model_type\":\"llama\",\"hidden_size\":32,"
        "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_size\":64,\"rms_norm_eps\":1e-5,"
        "\"max_position_embeddings\":128,\"hidden_act\":\"silu\",\"rope_theta\":10000.0}}";
    char path[160];
    lq_map f;
    lq_status s = lq_map_open(&f, DRAFT "/model.safetensors", err);
    if (s) return false;
    char *copy = malloc(f.size);
    memcpy(copy, f.data, f.size);
    for (size_t i = 0; i + 9 < f.size; i++)
        if (memcmp(copy + i, "midlayer.", 9) == 0) memcpy(copy + i, "layers.0.", 9);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *out = fopen(path, "wb");
    bool ok = out && fwrite(copy, 1, f.size, out) == f.size;
    ok = out && fclose(out) == 0 && ok;
    snprintf(path, sizeof path, "%s/config.json", dir);
    out = ok ? fopen(path, "wb") : NULL;
    ok = out && fwrite(config, 1, sizeof config - 1, out) == sizeof config - 1;
    ok = out && fclose(out) == 0 && ok;
    free(copy);
    lq_map_close(&f);
    return ok;
}

/* Which also norms x before it is the residual. */
TEST(a_draft_of_speculators_agrees_with_the_reference)
{
    static float out[2][T * V];
    char dir[] = "/tmp/eagle-XXXXXX", path[160];
    pair r;
    st_file f;
    lq_err err = { "" };
    int32_t ids[T];
    CHECK(mkdtemp(dir) && write_speculator(dir, &err), "%s", err.msg);
    CHECK(!st_open(&f, DRAFT "/expected.safetensors", &err), "%s", err.msg);
    memcpy(ids, st_find(&f, "input_ids")->data, sizeof ids);
    if (pair_open(&r, FOLDER, dir, NULL)) {
        run_pair(&r, ids, T, (float *[]){ out[0], out[1] });
        const double d = worst(out[1], st_find(&f, "first"), (T - 1) * WORDS);
        CHECK(d <= 5e-6, "%.2g of the largest logit", d);
    }
    pair_close(&r);
    st_close(&f);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "config.json" : "model.safetensors");
        remove(path);
    }
    CHECK(rmdir(dir) == 0, "a file was left");
}

TEST(the_same_bytes_with_the_draft)
{
    const size_t one =
        MAX_LEN / 16 *
        (kv_block_bytes(golden.cfg, 16, KV_F32) + kv_block_bytes(draft.cfg, 16, KV_F32));
    const struct {
        const char *why;
        int threads, copies;
        eng_opts o;
    } cases[] = {
        { "one at a time", 1, 1, { .guesses = 4, .max_seqs = 1 } },
        { "prefix cache", 2, 2, { .guesses = 3, .max_seqs = 8 } },
        { "small steps and blocks",
          1,
          1,
          { .guesses = 7, .max_seqs = 2, .max_batch_tokens = 5, .block_size = 8 } },
        { "a pool for one", 2, 2, { .guesses = 5, .kv_bytes = one, .max_len = MAX_LEN } },
    };
    uint64_t right = 0, guesses = 0;
    run_alone((eng_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        eng_opts o = cases[i].o;
        o.draft = &draft;
        if (!rig_open(&r, &golden, cases[i].threads, o)) return;
        run_together(&r, cases[i].copies, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(st.guesses >= st.drafts && st.right, "%s: %llu of %llu guesses were right",
              cases[i].why, (unsigned long long)st.right, (unsigned long long)st.guesses);
        right += st.right;
        guesses += st.guesses;
        if (getenv("SHOW"))
            printf("%-24s %llu of %llu\n", cases[i].why, (unsigned long long)st.right,
                   (unsigned long long)st.guesses);
        rig_close(&r);
    }
    /* Of all: how long one load goes on guessing depends on how long its steps take. 48 of the 64 ids can be guessed;
     * answers of this model are drawn, too. */
    CHECK(4 * right > guesses, "%llu of %llu guesses were right", (unsigned long long)right,
          (unsigned long long)guesses);
}

TEST(what_does_not_fit_is_said)
{
    static const struct {
        const char *key;
        const char *value, *says;
    } t[] = {
        { "num_hidden_layers", "2", "num_hidden_layers: expected 1 in an EAGLE-3 draft, found 2" },
        { "draft_vocab_size", "65", "draft_vocab_size: expected 1..64, found 65" },
        { "eagle_aux_hidden_state_layer_ids", "[1, 2]", "expected three layers" },
        { "eagle_aux_hidden_state_layer_ids", "[0, 1, 2]", "expected a model that has a layer 2" },
        { "eagle_config", "{\"eagle_aux_hidden_state_layer_ids\":[0,0,1]}", "has a layer 2" },
        { "eagle_config", "{\"use_aux_hidden_state\":false}",
          "use_aux_hidden_state: expected true" },
        { "eagle_config", "{\"use_mtp_layernorm\":true}", "use_mtp_layernorm: expected false" },
        { "eagle_config", "{\"norm_before_fc\":1}", "norm_before_fc: expected true or false" },
        { "architectures", "[\"Qwen3MoEForCausalLMEagle3\"]", "Qwen3MoEForCausalLMEagle3" },
        { "architectures", "[\"Eagle3DeepseekV2ForCausalLM\"]", "Eagle3DeepseekV2ForCausalLM" },
        { "target_hidden_size", "16", "hidden size of 32, found one for 16" },
        { "vocab_size", "128", "vocabulary of 64 ids, found one for 128" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        cJSON *j = NULL;
        lq_err err = { "" };
        CHECK(!js_parse_file(&j, DRAFT "/config.json", 1 << 20, JS_UNIQUE, &err), "%s", err.msg);
        cJSON_DeleteItemFromObject(j, t[i].key);
        cJSON_AddItemToObject(j, t[i].key, cJSON_Parse(t[i].value));
        lq_status s = arch_config_parse(&c, j, NULL, &err);
        if (!s) s = model_eagle_fits(&c, golden.cfg, &err);
        CHECK(s && strstr(err.msg, t[i].says), "%s: %s", t[i].key, err.msg);
        arch_config_free(&c);
        cJSON_Delete(j);
    }
}

int main(int argc, char **argv)
{
    if (!golden_open() || !draft_open_it()) return 1;
    RUN(logits_agree_with_the_reference_in_any_chunks);
    RUN(a_row_of_its_own_state_agrees_with_the_reference);
    RUN(a_draft_of_speculators_agrees_with_the_reference);
    RUN(the_same_bytes_with_the_draft);
    RUN(what_does_not_fit_is_said);
    model_free(&draft);
    src_close(draft_src);
    golden_close();
    return check_end();
}
