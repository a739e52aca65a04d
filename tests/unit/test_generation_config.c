/* Generation defaults: read, printed, and refused where they make no sense. */
#include "base/json.h"
#include "formats/arch/generation_config.h"
#include "tests/support/check.h"

TEST(what_the_file_says_is_read_and_nothing_else_is_set)
{
    static const struct {
        const char *why, *file, *json;
    } cases[] = {
        { "no member", "{}", "{}" },
        { "all of them",
          "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,\"min_p\":0.05,"
          "\"repetition_penalty\":1.1,\"max_new_tokens\":512,\"do_sample\":true}",
          "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,\"min_p\":0.05,"
          "\"repetition_penalty\":1.1,\"max_new_tokens\":512}" },
        { "null is absent", "{\"temperature\":null,\"top_k\":null,\"do_sample\":null}", "{}" },
        { "sampling without a temperature has 1", "{\"do_sample\":true,\"top_p\":0.5}",
          "{\"temperature\":1,\"top_p\":0.5}" },
        { "no sampling is greedy", "{\"do_sample\":false,\"temperature\":0.7}",
          "{\"temperature\":0}" },
        { "top_k off", "{\"top_k\":-1}", "{\"top_k\":0}" },
        { "what is not ours", "{\"max_length\":4096,\"eos_token_id\":[1,2],\"num_beams\":4}",
          "{}" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        gen_defaults g;
        lq_err err = { "" };
        lq_status s = gen_read(&g, (const uint8_t *)cases[i].file, strlen(cases[i].file), &err);
        CHECK(!s, "%s: %s", cases[i].why, err.msg);
        cJSON *o = gen_json(&g);
        char *text = cJSON_PrintUnformatted(o);
        CHECK(text && strcmp(text, cases[i].json) == 0, "%s: %s", cases[i].why, text);
        cJSON_free(text);
        cJSON_Delete(o);
    }
    gen_defaults none;
    CHECK(!gen_read(&none, NULL, 0, NULL) && !none.has_temperature, "no file");
}

TEST(values_that_make_no_sense_are_refused_by_name)
{
    static const struct {
        const char *file, *says;
    } cases[] = {
        { "{\"temperature\":-1}", "temperature: expected 0 to 100, found -1" },
        { "{\"temperature\":\"hot\"}", "temperature: expected 0 to 100, found \"hot\"" },
        { "{\"top_p\":0}", "top_p" },
        { "{\"top_p\":1.5}", "found 1.5" },
        { "{\"top_k\":2.5}", "top_k: expected a whole number" },
        { "{\"top_k\":true}", "found true" },
        { "{\"min_p\":2}", "min_p" },
        { "{\"repetition_penalty\":0}", "repetition_penalty" },
        { "{\"max_new_tokens\":0}", "max_new_tokens" },
        { "{\"do_sample\":1}", "do_sample" },
        { "[]", "expected an object" },
        { "{", "JSON" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        gen_defaults g;
        lq_err err = { "" };
        lq_status s = gen_read(&g, (const uint8_t *)cases[i].file, strlen(cases[i].file), &err);
        CHECK(s && strstr(err.msg, cases[i].says), "%s: %s", cases[i].file, err.msg);
    }
}

int main(int argc, char **argv)
{
    RUN(what_the_file_says_is_read_and_nothing_else_is_set);
    RUN(values_that_make_no_sense_are_refused_by_name);
    return check_end();
}
