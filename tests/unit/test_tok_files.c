/* tests/unit/test_tok_files.c - tokenizers of other files than tokenizer.json, against SentencePiece's
 * and tiktoken's own output, and what must be refused. Golden data: tests/golden/make/tok_files.py.
 */
#include "base/file.h"
#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_files.h"
#include "tests/support/check.h"
#include "tests/support/jsonl.h"

#define DIR "tests/golden/tok_files/"

static src_blob read_blob(const char *name, const char *as)
{
    char path[128], *data = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, DIR "%s", name);
    CHECK(!lq_read_file(&data, &n, path, 1 << 24, NULL), "%s", path);
    return (src_blob){ as, (const uint8_t *)data, n };
}

static void free_blob(src_blob b) { free((void *)(uintptr_t)b.data); }

static tok_tokenizer *open_files(uint8_t **blob, const src_blob *files, size_t n)
{
    size_t n_blob = 0;
    tok_tokenizer *t = NULL;
    lq_err err = { "" };
    *blob = NULL;
    CHECK(!tok_compile_files(blob, &n_blob, files, n, &err), "%s: %s", files[0].name, err.msg);
    if (*blob) CHECK(!tok_open(&t, *blob, n_blob, &err), "%s: %s", files[0].name, err.msg);
    return t;
}

static bool is_model(const char *file) { return strstr(file, ".model") != NULL; }

static void check_case(const tok_tokenizer *t, const cJSON *c)
{
    size_t n_text, n_want = 0, n = 0, n_back = 0;
    const cJSON *decoded = cJSON_GetObjectItem(c, "decoded");
    char *text = jsonl_text(cJSON_GetObjectItem(c, "text"), &n_text), *back = NULL;
    char *want = cJSON_IsString(decoded) ? jsonl_text(decoded, &n_want) : NULL;
    const cJSON *ids = cJSON_GetObjectItem(c, "ids"), *e = ids->child;
    int32_t *got = NULL;
    lq_err err = { "" };
    CHECK(!tok_encode(t, text, n_text, 0, &got, &n, &err), "'%s': %s", text, err.msg);
    bool same = n == (size_t)cJSON_GetArraySize(ids);
    for (size_t i = 0; i < n && same; i++, e = e->next)
        same = e->valueint == got[i];
    CHECK(same, "'%s': other ids (%zu)", text, n);
    CHECK(!tok_decode(t, got, n, false, &back, &n_back, &err), "'%s': %s", text, err.msg);
    CHECK(!want || (n_back == n_want && !memcmp(back, want, n_want)), "'%s': '%s' is not '%s'",
          text, back, want);
    free(back);
    free(got);
    free(want);
    free(text);
}

TEST(every_file_gives_the_ids_of_its_own_library) /* T-33 */
{
    static const char *const files[] = { "bpe.model", "unigram.model", "cl100k_base.tiktoken" };
    int n_cases = 0;
    for (size_t k = 0; k < LQ_COUNT(files); k++) {
        jsonl j;
        cJSON *c;
        uint8_t *blob;
        src_blob file = read_blob(files[k], is_model(files[k]) ? "tokenizer.model" : files[k]);
        tok_tokenizer *t = open_files(&blob, &file, 1);
        if (!t || !jsonl_open(&j, DIR "cases.jsonl")) continue;
        for (; (c = jsonl_next(&j, 0)); cJSON_Delete(c)) {
            if (strcmp(cJSON_GetObjectItem(c, "file")->valuestring, files[k]) != 0) continue;
            check_case(t, c);
            n_cases++;
        }
        jsonl_close(&j);
        tok_close(t);
        free(blob);
        free_blob(file);
    }
    CHECK(n_cases > 150, "%d cases", n_cases);
}

TEST(the_configuration_says_what_surrounds_a_text_and_what_is_added)
{
    static const struct {
        const char *why, *config;
        int first, last; /* ids of "a", -1: no matter */
    } cases[] = {
        { "nothing said", NULL, 1, -1 },
        { "no BOS", "{\"add_bos_token\":false}", -2, -1 },
        { "EOS", "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_eos_token\":true}", 1, 2 },
        { "T5", "{\"tokenizer_class\":\"T5TokenizerFast\"}", -2, 2 },
        { "another BOS",
          "{\"bos_token\":{\"content\":\"<x>\"},\"added_tokens_decoder\":{\"7000\":{\"content\":"
          "\"<x>\",\"special\":true}}}",
          7000, -1 },
    };
    src_blob files[2] = { read_blob("bpe.model", "tokenizer.model") };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const char *config = cases[i].config;
        uint8_t *blob;
        int32_t *ids = NULL;
        size_t n = 0;
        files[1] = (src_blob){ "tokenizer_config.json", (const uint8_t *)config,
                               config ? strlen(config) : 0 };
        tok_tokenizer *t = open_files(&blob, files, config ? 2 : 1);
        CHECK(t && !tok_encode(t, "a", 1, TOK_ADD_SPECIAL, &ids, &n, NULL) && n, "%s",
              cases[i].why);
        if (cases[i].first >= 0)
            CHECK(ids[0] == cases[i].first, "%s: first %d", cases[i].why, ids[0]);
        if (cases[i].first == -2) CHECK(ids[0] > 2, "%s: first %d", cases[i].why, ids[0]);
        if (cases[i].last >= 0)
            CHECK(ids[n - 1] == cases[i].last, "%s: last %d", cases[i].why, ids[n - 1]);
        free(ids);
        tok_close(t);
        free(blob);
    }
    free_blob(files[0]);
}

TEST(added_tokens_of_another_form_are_refused_by_name)
{
    static const char *const configs[] = {
        "{\"added_tokens_decoder\":[{\"content\":\"x\"}]}",
        "{\"added_tokens_decoder\":{\"7\":\"x\"}}",
        "{\"added_tokens_decoder\":{\"x\":{\"content\":\"x\"}}}",
        "{\"added_tokens_decoder\":{\"nan\":{\"content\":\"x\"}}}",
        "{\"added_tokens_decoder\":{\"7.5\":{\"content\":\"x\"}}}",
        "{\"added_tokens_decoder\":{\"1e300\":{\"content\":\"<s>\"}},\"bos_token\":\"<s>\"}",
    };
    /* Keys of an entry that only sound like its id say nothing. */
    static const char odd[] =
        "{\"bos_token\":\"<x>\",\"added_tokens_decoder\":{\"7001\":{\"content\":\"<y>\",\"ID\":3},"
        "\"7000\":{\"content\":\"<x>\",\"Id\":3,\"id\":\"4\"}}}";
    src_blob files[2] = { read_blob("bpe.model", "tokenizer.model") };
    uint8_t *blob;
    size_t n_blob, n = 0;
    for (size_t i = 0; i < LQ_COUNT(configs); i++) {
        lq_err err = { 0 };
        files[1] =
            (src_blob){ "tokenizer_config.json", (const uint8_t *)configs[i], strlen(configs[i]) };
        CHECK(tok_compile_files(&blob, &n_blob, files, 2, &err) == LQ_EFORMAT, "%s", configs[i]);
        CHECK(strstr(err.msg, "added_tokens_decoder"), "%s: %s", configs[i], err.msg);
        free(blob);
    }
    files[1] = (src_blob){ "tokenizer_config.json", (const uint8_t *)odd, sizeof odd - 1 };
    tok_tokenizer *t = open_files(&blob, files, 2);
    int32_t *ids = NULL;
    CHECK(t && !tok_encode(t, "a", 1, TOK_ADD_SPECIAL, &ids, &n, NULL) && n && ids[0] == 7000, "%s",
          odd);
    free(ids);
    tok_close(t);
    free(blob);
    free_blob(files[0]);
}

TEST(vocab_and_merges_make_gpt2s_tokenizer)
{
    static const char vocab[] = "{\"a\":0,\"b\":1,\"\xC4\xA0\":2,\"ab\":3,\"\xC4\xA0"
                                "ab\":4,\"<e>\":5}";
    static const char merges[] = "#version: 0.2\na b\n\xC4\xA0 ab\r\n";
    static const char config[] = "{\"tokenizer_class\":\"GPT2Tokenizer\",\"eos_token\":\"<e>\"}";
    const src_blob files[] = {
        { "vocab.json", (const uint8_t *)vocab, sizeof vocab - 1 },
        { "merges.txt", (const uint8_t *)merges, sizeof merges - 1 },
        { "tokenizer_config.json", (const uint8_t *)config, sizeof config - 1 },
    };
    static const int32_t want[] = { 3, 4, 5, 0 };
    uint8_t *blob;
    int32_t *ids = NULL;
    size_t n = 0;
    tok_tokenizer *t = open_files(&blob, files, 3);
    CHECK(t && !tok_encode(t, "ab ab<e>a", 9, TOK_ADD_SPECIAL, &ids, &n, NULL), "encode");
    CHECK(n == 4 && !memcmp(ids, want, sizeof want), "%zu ids", n);
    CHECK(tok_is_special(t, 5), "the named token is special");
    free(ids);
    tok_close(t);
    free(blob);
}

#define PIECE(len, text, type) "\x0A" len "\x0A" text "\x18" type
TEST(broken_files_are_refused)
{
    static const struct {
        const char *why, *name, *data;
        size_t n;
        lq_status want;
    } cases[] = {
#define CASE(why, name, data, want) { why, name, data, sizeof(data) - 1, want }
        CASE("nothing", "README.md", "", LQ_ENOENT),
        CASE("empty", "tokenizer.model", "", LQ_EFORMAT),
        CASE("a cut length", "tokenizer.model", "\x0A", LQ_EFORMAT),
        CASE("a field beyond the end", "tokenizer.model", "\x0A\x7F", LQ_EFORMAT),
        CASE("an unknown wire type", "tokenizer.model", "\x0B", LQ_EFORMAT),
        CASE("no unknown piece", "tokenizer.model",
             PIECE("\x05",
                   "\x01"
                   "a",
                   "\x01"),
             LQ_EFORMAT),
        CASE("a piece twice", "tokenizer.model",
             PIECE("\x05",
                   "\x01"
                   "a",
                   "\x02") PIECE("\x05",
                                 "\x01"
                                 "a",
                                 "\x01"),
             LQ_EFORMAT),
        CASE("invalid UTF-8", "tokenizer.model", PIECE("\x05", "\x01\xFF", "\x01"), LQ_EFORMAT),
        CASE("an empty piece", "tokenizer.model", PIECE("\x04", "\x00", "\x01"), LQ_EFORMAT),
        CASE("an unknown type", "tokenizer.model",
             PIECE("\x05",
                   "\x01"
                   "a",
                   "\x09"),
             LQ_EFORMAT),
        CASE("a word model", "tokenizer.model",
             PIECE("\x05",
                   "\x01"
                   "a",
                   "\x02") "\x12\x02\x18\x03",
             LQ_EUNSUPPORTED),
        CASE("an unknown name", "mine.tiktoken", "YQ== 0\n", LQ_EUNSUPPORTED),
        CASE("ranks of an unknown size", "tokenizer.model", "YQ== 0\n", LQ_EUNSUPPORTED),
        CASE("no base64", "cl100k_base.tiktoken", "a 0\n", LQ_EFORMAT),
        CASE("no rank", "cl100k_base.tiktoken", "YQ==\n", LQ_EFORMAT),
        CASE("a rank twice", "cl100k_base.tiktoken", "YQ== 0\nYg== 0\n", LQ_EFORMAT),
        CASE("a token twice", "cl100k_base.tiktoken", "YQ== 0\nYQ== 1\n", LQ_EFORMAT),
        CASE("a huge rank", "cl100k_base.tiktoken", "YQ== 99999999\n", LQ_EFORMAT),
        CASE("a gap", "cl100k_base.tiktoken", "YQ== 9999999\n", LQ_EFORMAT),
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const src_blob file = { cases[i].name, (const uint8_t *)cases[i].data, cases[i].n };
        uint8_t *blob = NULL;
        size_t n = 0;
        lq_err err = { "" };
        lq_status s = tok_compile_files(&blob, &n, &file, 1, &err);
        CHECK(s == cases[i].want && err.msg[0], "%s: %s: %s", cases[i].why, lq_status_text(s),
              err.msg);
        free(blob);
    }
}

TEST(an_unknown_class_is_refused_by_name)
{
    static const char config[] = "{\"tokenizer_class\":\"XGLMTokenizer\"}";
    const src_blob files[] = { read_blob("bpe.model", "tokenizer.model"),
                               { "tokenizer_config.json", (const uint8_t *)config,
                                 sizeof config - 1 } };
    uint8_t *blob = NULL;
    size_t n = 0;
    lq_err err = { "" };
    CHECK(tok_compile_files(&blob, &n, files, 2, &err) == LQ_EUNSUPPORTED, "%s", err.msg);
    CHECK(strstr(err.msg, "XGLMTokenizer") != NULL, "%s", err.msg);
    free_blob(files[0]);
}

TEST(a_damaged_model_file_is_refused_or_harmless)
{
    uint32_t rnd = 5;
    src_blob whole = read_blob("unigram.model", "tokenizer.model");
    for (int round = 0; round < 300; round++) {
        uint8_t *copy = malloc(whole.bytes + 1), *blob = NULL;
        size_t cut = whole.bytes, n = 0;
        memcpy(copy, whole.data, whole.bytes);
        for (int hits = round % 4; hits > 0; hits--) {
            rnd = rnd * 1664525u + 1013904223u;
            copy[(rnd >> 8) % whole.bytes] ^= (uint8_t)(1u << (rnd & 7));
        }
        rnd = rnd * 1664525u + 1013904223u;
        if (round % 3 == 0) cut = (rnd >> 8) % whole.bytes;
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact, copy, cut);
        const src_blob file = { "tokenizer.model", exact, cut };
        tok_tokenizer *t = NULL;
        int32_t *ids = NULL;
        if (!tok_compile_files(&blob, &n, &file, 1, NULL) && !tok_open(&t, blob, n, NULL) &&
            !tok_encode(t, "Hello <sep>  \xC3\xA9 \xE3\x80\x80x", 17, 0, &ids, &n, NULL))
            free(ids);
        tok_close(t);
        free(blob);
        free(exact);
        free(copy);
    }
    free_blob(whole);
}

int main(int argc, char **argv)
{
    RUN(every_file_gives_the_ids_of_its_own_library);
    RUN(the_configuration_says_what_surrounds_a_text_and_what_is_added);
    RUN(added_tokens_of_another_form_are_refused_by_name);
    RUN(vocab_and_merges_make_gpt2s_tokenizer);
    RUN(broken_files_are_refused);
    RUN(an_unknown_class_is_refused_by_name);
    RUN(a_damaged_model_file_is_refused_or_harmless);
    return check_end();
}
