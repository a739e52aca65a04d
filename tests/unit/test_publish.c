/* tests/unit/test_publish.c - digests, names of files, SHA256SUMS, front matter, addresses. */
#include "formats/hf/front_matter.h"
#include "publish/card.h"
#include "publish/files.h"
#include "publish/http_client.h"
#include "publish/oci.h"
#include "publish/target.h"
#include "tests/support/check.h"

#include <stdlib.h>

TEST(sha256_gives_the_standards_digests)
{
    static const struct {
        const char *why, *text;
        size_t times;
        const char *want;
    } t[] = {
        { "nothing", "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "one block", "abc", 1,
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "two blocks", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "a million", "a", 1000000,
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char got[SHA_HEX];
        sha_state s;
        sha_init(&s);
        for (size_t k = 0; k < t[i].times; k++)
            sha_add(&s, t[i].text, strlen(t[i].text));
        sha_end(got, &s);
        CHECK(strcmp(got, t[i].want) == 0, "%s: %s", t[i].why, got);
    }
}

TEST(sha256_does_not_depend_on_the_pieces)
{
    uint8_t data[300];
    char whole[SHA_HEX], parts[SHA_HEX];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n < sizeof data; n++) {
        sha_of(whole, data, n);
        for (size_t step = 1; step < 130; step += 9) {
            sha_state s;
            sha_init(&s);
            for (size_t at = 0; at < n; at += step)
                sha_add(&s, data + at, n - at < step ? n - at : step);
            sha_end(parts, &s);
            CHECK(strcmp(whole, parts) == 0, "%zu bytes by %zu", n, step);
        }
    }
}

TEST(only_names_of_a_models_files_are_taken)
{
    static const struct {
        const char *name;
        bool ok;
    } t[] = {
        { "model.safetensors", true },
        { "model-00001-of-00002.safetensors", true },
        { "q.llmq", true },
        { "Q4_K_M (new).gguf", true },
        { "tokenizer.json", true },
        { "LICENSE", true },
        { "licence.txt", true },
        { "merges.txt", true },
        { "SHA256SUMS", true },
        { ".gitattributes", true },
        { "additional_chat_templates/tool_use.jinja", true },
        { "1_Pooling/config.json", true },
        { "2_Dense/model.safetensors", true },
        { "", false },
        { ".", false },
        { "..", false },
        { "../config.json", false },
        { "/config.json", false },
        { "a/config.json", false },
        { "additional_chat_templates/../config.json", false },
        { "additional_chat_templates/config.json", false },
        { "additional_chat_templates/", false },
        { "additional_chat_templates//x.jinja", false },
        { "1_Pooling/../config.json", false },
        { "1_Pooling/tokenizer.json", false },
        { "1_Pooling/2_Dense/config.json", false },
        { "config.json/", false },
        { "a\\config.json", false },
        { "C:config.json", false },
        { "-config.json", false },
        { " config.json", false },
        { ".config.json", false },
        { ".git", false },
        { "config.json\n", false },
        { "\xe2\x80\xae.json", false },
        { "run.sh", false },
        { "pytorch_model.bin", false },
        { "SHA256SUMS2", false },
        { "a$b.json", false },
        { "a;b.json", false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_err err = { "" };
        const lq_status s = pub_check_name(t[i].name, &err);
        CHECK((s == LQ_OK) == t[i].ok, "'%s': %s", t[i].name, err.msg);
    }
}

TEST(sums_are_read_as_they_are_written)
{
    pub_files fs = { NULL, 0 }, back = { NULL, 0 };
    lq_err err = { "" };
    lq_status s = pub_add_data(&fs, "b.json", "{}", 2, &err);
    if (!s) s = pub_add_data(&fs, "a.json", "", 0, &err);
    if (!s) s = pub_hash(&fs, NULL, &err);
    if (!s) s = pub_add_sums(&fs, &err);
    CHECK(!s, "%s", err.msg);
    const pub_file *sums = pub_find(&fs, PUB_SUMS);
    s = pub_read_sums(&back, (const char *)sums->data, (size_t)sums->bytes, &err);
    CHECK(!s && back.n == 2 && strcmp(back.f[0].name, "a.json") == 0, "%s", err.msg);
    CHECK(!pub_check_sum(&back, "b.json", pub_find(&fs, "b.json")->sha256, &err), "%s", err.msg);
    CHECK(pub_check_sum(&back, "b.json", fs.f[0].sha256, &err) == LQ_ECHECK, "another sum");
    CHECK(pub_check_sum(&back, "c.json", fs.f[0].sha256, &err) == LQ_ECHECK, "another name");
    pub_files_free(&back);
    pub_files_free(&fs);
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
TEST(broken_sums_are_refused)
{
    static const struct {
        const char *why, *text;
    } t[] = {
        { "nothing", "" },
        { "a blank line", ZEROS "  a.json\n\n" },
        { "no name", ZEROS "  \n" },
        { "one blank", ZEROS " a.json\n" },
        { "short", "00  a.json\n" },
        { "capitals", "A" ZEROS "  a.json\n" },
        { "a path", ZEROS "  ../a.json\n" },
        { "twice", ZEROS "  a.json\n" ZEROS "  a.json\n" },
        { "itself", ZEROS "  SHA256SUMS\n" },
        { "coreutils' escape", "\\" ZEROS "  a.json\n" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        pub_files fs = { NULL, 0 };
        lq_err err = { "" };
        const lq_status s = pub_read_sums(&fs, t[i].text, strlen(t[i].text), &err);
        CHECK(s == LQ_EFORMAT && !fs.n && strstr(err.msg, "SHA256SUMS"), "%s: %s", t[i].why,
              err.msg);
    }
    pub_files fs = { NULL, 0 };
    lq_err err;
    static const char nul[] = ZEROS "  a\0.json\n";
    CHECK(pub_read_sums(&fs, nul, sizeof nul - 1, &err) == LQ_EFORMAT, "a NUL in a name");
}

TEST(front_matter_is_carried_line_by_line)
{
    static const char card[] = "---\nlicense: apache-2.0\nlanguage:\n- en\n- ko\nevil: {a: &b}\n"
                               "license_link: &anchor x\n---\nlicense: none\n";
    static const struct {
        const char *key, *want;
    } t[] = { { "license", "license: apache-2.0\n" },
              { "language", "language:\n- en\n- ko\n" },
              { "license_link", NULL },
              { "evil", NULL },
              { "lang", NULL } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char *got;
        const lq_status s = fm_lines(&got, card, sizeof card - 1, t[i].key, NULL);
        CHECK(!s && t[i].want ? got && strcmp(got, t[i].want) == 0 : !got, "%s: %s", t[i].key,
              got ? got : "(none)");
        free(got);
    }
    char *got;
    CHECK(!fm_lines(&got, "license: mit\n", 13, "license", NULL) && !got, "no front matter");
    CHECK(!fm_lines(&got, "---\nlicense", 11, "license", NULL) && !got, "it ends in the middle");
    CHECK(!fm_lines(&got, "---\nlicense: m\0t\n", 18, "license", NULL) && !got, "a NUL in it");
}

TEST(what_a_file_says_of_itself_is_text_on_the_card)
{
    static const char json[] =
        "{\"name\":\"m\",\"recipe\":{\"method\":\"rtn\\n---\\nlicense: mit\",\"a|b\\n# c\":\"` | "
        "<b>\"},"
        "\"provenance\":{\"llmq\":\"[x](http://y)\",\"calibration\":{\"files\":[{\"name\":\"t\\n# "
        "h\"}]}},"
        "\"evaluations\":[{\"name\":\"<img src=x>\"}],\"llmq_cannot_run\":\"`x`\"}";
    static const char *const wanted[] = {
        "`rtn --- license: mit`",   "| a\\|b \\# c | `\"' \\| <b>\"` |",
        "(llmq \\[x\\](http://y))", "| t \\# h |",
        "| \\<img src=x\\> |",      "(\\`x\\`)"
    };
    static const char *const nowhere[] = { "\nlicense: mit", "\n- rtn", "\n# h", "\n# c" };
    pub_files none = { NULL, 0 };
    cJSON *info = cJSON_Parse(json), *handovers = cJSON_CreateArray();
    lq_buf b = { 0 };
    card_write(&b, info, &none, handovers, "");
    lq_buf_add(&b, "", 1);
    CHECK(info && !b.oom, "no card");
    for (size_t i = 0; i < LQ_COUNT(wanted); i++)
        CHECK(strstr(b.p, wanted[i]), "%s is not in %s", wanted[i], b.p);
    for (size_t i = 0; i < LQ_COUNT(nowhere); i++)
        CHECK(!strstr(b.p, nowhere[i]), "%s is in %s", nowhere[i], b.p);
    free(b.p);
    cJSON_Delete(info);
    cJSON_Delete(handovers);
}

TEST(only_this_machine_is_spoken_to_in_the_clear)
{
    static const struct {
        const char *where, *base;
    } t[] = { { "localhost/a", "http://localhost" },
              { "localhost:5000/a", "http://localhost:5000" },
              { "127.0.0.1:5000/a", "http://127.0.0.1:5000" },
              { "[::1]:5000/a", "http://[::1]:5000" },
              { "localhost.example.com/a", "https://localhost.example.com" },
              { "localhosts:5000/a", "https://localhosts:5000" },
              { "127.0.0.1.example.com/a", "https://127.0.0.1.example.com" },
              { "127.example.com/a", "https://127.example.com" },
              { "ghcr.io/a", "https://ghcr.io" } };
    const pub_opts o = { .state = NULL };
    setenv("DOCKER_CONFIG", "/none", 1);
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        oci_conn c;
        lq_err err;
        const lq_status s = oci_open(&c, t[i].where, &o, &err);
        CHECK(!s && strcmp(c.base, t[i].base) == 0, "%s: %s", t[i].where, s ? err.msg : c.base);
        oci_close(&c);
    }
}

TEST(addresses_keep_their_scheme_and_their_host)
{
    char out[HC_VALUE];
    lq_err err;
    CHECK(!hc_resolve(out, sizeof out, "https://a:5000/v2/x", "/v2/y?z=1", &err) &&
              strcmp(out, "https://a:5000/v2/y?z=1") == 0,
          "%s", out);
    CHECK(!hc_resolve(out, sizeof out, "http://a/x", "https://b/y", &err), "to https");
    CHECK(hc_resolve(out, sizeof out, "https://a/x", "http://a/y", &err) == LQ_EFORMAT,
          "from https");
    CHECK(hc_resolve(out, sizeof out, "http://a/x", "file:///etc/passwd", &err) == LQ_EFORMAT,
          "to a file");
    CHECK(hc_same_origin("https://a/x", "https://A:443/y"), "the same");
    CHECK(!hc_same_origin("https://a/x", "https://a:444/x"), "another port");
    CHECK(!hc_same_origin("https://a/x", "https://a.b/x"), "another host");
    CHECK(!hc_same_origin("https://a/x", "http://a:443/x"), "another scheme");
}

int main(int argc, char **argv)
{
    RUN(sha256_gives_the_standards_digests);
    RUN(sha256_does_not_depend_on_the_pieces);
    RUN(only_names_of_a_models_files_are_taken);
    RUN(sums_are_read_as_they_are_written);
    RUN(broken_sums_are_refused);
    RUN(front_matter_is_carried_line_by_line);
    RUN(what_a_file_says_of_itself_is_text_on_the_card);
    RUN(only_this_machine_is_spoken_to_in_the_clear);
    RUN(addresses_keep_their_scheme_and_their_host);
    return check_end();
}
