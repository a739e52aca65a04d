/* tests/unit/test_sentence.c - one vector of a text's rows, against sentence-transformers' arithmetic, and what
 * of its files is refused. */
#include "base/file.h"
#include "base/json.h"
#include "formats/hf/model_files.h"
#include "runtime/engine/sentence.h"
#include "tests/support/rig.h"

#include <stdio.h>
#include <sys/stat.h>

enum { B = 2, T = 16, H = 32, WIDTH = 24 };
#define GOLDEN "tests/golden/heads/embeddinggemma"

/* The mean of a prompt's rows. */
static void mean_of(rig *r, const int32_t *ids, double mean[H])
{
    kv_seq s;
    lq_err err = { "" };
    const float *logits;
    kv_seq_init(&s);
    CHECK(!kv_reserve(r->kv, &s, T, NULL), "reserve");
    const fwd_item it = { .seq = &s, .ids = ids, .n = T };
    CHECK(!fwd_step(r->f, &it, 1, &logits, &err), "%s", err.msg);
    for (int k = 0; k < H; k++) {
        mean[k] = 0;
        for (int t = 0; t < T; t++)
            mean[k] += (double)fwd_hidden(r->f)[t * H + k] / T;
    }
    kv_seq_free(r->kv, &s);
}

TEST(a_vector_is_that_of_sentence_transformers)
{
    rig r;
    st_file f;
    sentence *s = NULL;
    lq_err err = { "" };
    if (!rig_open(&r, GOLDEN, (rig_opts){ .threads = 1 })) return;
    CHECK(!st_open(&f, GOLDEN "/expected.safetensors", &err), "%s", err.msg);
    CHECK(!sentence_open(&s, r.src, H, &err), "%s", err.msg);
    if (s) {
        CHECK(sentence_pool(s) == ENG_POOL_MEAN && sentence_width(s) == WIDTH &&
                  sentence_normalizes(s),
              "the modules");
        for (int b = 0; b < B; b++) {
            double mean[H];
            float v[WIDTH];
            const float *want = (const float *)st_find(&f, "vector")->data + b * WIDTH;
            mean_of(&r, (const int32_t *)st_find(&f, "input_ids")->data + b * T, mean);
            CHECK(!sentence_run(s, v, mean, &err), "%s", err.msg);
            for (int k = 0; k < WIDTH; k++)
                CHECK(fabsf(v[k] - want[k]) <= 1e-5f, "text %d: %d: %g, expected %g", b, k,
                      (double)v[k], (double)want[k]);
        }
    }
    sentence_close(s);
    st_close(&f);
    rig_close(&r);
}

TEST(prompts_are_found_by_name)
{
    src_source *src = NULL;
    sentence *s = NULL;
    lq_err err = { "" };
    char names[64] = "";
    CHECK(!src_open(&src, GOLDEN, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
    if (!src) return;
    CHECK(!sentence_open(&s, src, H, &err), "%s", err.msg);
    const char *query = sentence_prompt(s, "query", names, sizeof names);
    CHECK(query && strcmp(query, "task: search result | query: ") == 0, "%s", query ? query : "-");
    CHECK(strcmp(sentence_prompt(s, NULL, names, sizeof names), "") == 0, "the default one");
    CHECK(!sentence_prompt(s, "poem", names, sizeof names) && strcmp(names, "query, document") == 0,
          "%s", names);
    sentence_close(s);
    src_close(src);
}

/* The folder with one file written over; what then is said. */
static void check_refused(const char *why, const char *file, const char *text, const char *says)
{
    static const char *const all[] = { "config.json",
                                       "model.safetensors",
                                       "modules.json",
                                       "1_Pooling/config.json",
                                       "2_Dense/config.json",
                                       "2_Dense/model.safetensors",
                                       "3_Dense/config.json",
                                       "3_Dense/model.safetensors",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json" };
    char dir[] = "/tmp/llmq-sentence-XXXXXX", command[900], path[256];
    lq_err err = { "" };
    src_source *src = NULL;
    sentence *s = NULL;
    CHECK(mkdtemp(dir), "a folder");
    snprintf(command, sizeof command, "cp -r " GOLDEN "/. %s", dir);
    CHECK(system(command) == 0, "copies");
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = *text ? fopen(path, "w") : NULL;
    if (f) fputs(text, f), fclose(f);
    if (!*text) remove(path);
    lq_status st = src_open(&src, dir, &(src_opts){ .need_config = true }, &err);
    if (!st) st = sentence_open(&s, src, H, &err);
    CHECK(st == LQ_OK ? !*says && !s : *says && strstr(err.msg, says), "%s: %s", why, err.msg);
    sentence_close(s);
    src_close(src);
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, all[i]);
        remove(path);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0, "away");
}

#define MODULE(type, path) \
    "{\"type\":\"sentence_transformers.models." type "\",\"path\":\"" path "\"}"
TEST(what_is_not_here_is_refused_by_file)
{
    static const struct {
        const char *why, *file, *text, *says; /* text "": the file is not there */
    } t[] = {
        { "no modules: no vectors of its own", "modules.json", "", "" },
        { "a reranker's", "modules.json",
          "[" MODULE("Transformer", "") "," MODULE("LogitScore", "1_LogitScore") "]", "" },
        { "no JSON", "modules.json", "[", "modules.json" },
        { "an object", "modules.json", "{}", "modules.json: expected an array" },
        { "nothing pooled", "modules.json", "[" MODULE("Transformer", "") "]",
          "expected a Transformer and a Pooling" },
        { "another module", "modules.json",
          "[" MODULE("Transformer", "") "," MODULE("Pooling", "1_Pooling") "," MODULE("CNN",
                                                                                      "2_CNN") "]",
          "module 2: expected" },
        { "two modes", "1_Pooling/config.json",
          "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_max_tokens\":true}",
          "1_Pooling/config.json: pooling_mode: expected one of" },
        { "no mode", "1_Pooling/config.json", "{}", "found none" },
        { "a word of no mode", "1_Pooling/config.json", "{\"pooling_mode\":\"best\"}", "best" },
        { "prompts do not count", "1_Pooling/config.json",
          "{\"pooling_mode\":\"mean\",\"include_prompt\":false}", "include_prompt" },
        { "no weights", "2_Dense/model.safetensors", "", "2_Dense/model.safetensors: not found" },
        { "no safetensors", "2_Dense/model.safetensors", "abc", "2_Dense/model.safetensors" },
        { "another width", "2_Dense/config.json", "{\"in_features\":31,\"out_features\":48}",
          "in_features: expected 32" },
        { "another shape", "3_Dense/config.json",
          "{\"in_features\":48,\"out_features\":25,\"bias\":true}", "linear.weight: expected" },
        { "another activation", "2_Dense/config.json",
          "{\"in_features\":32,\"out_features\":48,\"activation_function\":\"torch.nn.Mish\"}",
          "activation_function" },
        { "small letters or not", "sentence_bert_config.json", "{\"do_lower_case\":1}",
          "do_lower_case" },
        { "no such default", "config_sentence_transformers.json",
          "{\"prompts\":{},\"default_prompt_name\":\"query\"}", "default_prompt_name" },
        { "a prompt that is a number", "config_sentence_transformers.json",
          "{\"prompts\":{\"query\":1}}", "prompts: query" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        check_refused(t[i].why, t[i].file, t[i].text, t[i].says);
}

TEST(files_of_modules_are_known_by_name)
{
    static const struct {
        const char *name;
        bool path, blob;
    } t[] = {
        { "1_Pooling/config.json", true, false },
        { "1_Pooling.config.json", false, true },
        { "2_Dense/model.safetensors", true, false },
        { "12_A_b.model.safetensors", false, true },
        { "_Pooling/config.json", false, false },
        { "1_/config.json", false, false },
        { "1_Pooling/../config.json", false, false },
        { "1_Pooling/pytorch_model.bin", false, false },
        { "1-Pooling/config.json", false, false },
        { "1_Pooling", false, false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        CHECK(model_module_path(t[i].name) == t[i].path, "%s", t[i].name);
        CHECK(model_module_blob(t[i].name, NULL) == t[i].blob, "%s", t[i].name);
    }
}

int main(int argc, char **argv)
{
    RUN(a_vector_is_that_of_sentence_transformers);
    RUN(prompts_are_found_by_name);
    RUN(what_is_not_here_is_refused_by_file);
    RUN(files_of_modules_are_known_by_name);
    return check_end();
}
