/* tests/unit/test_chat_out.c - the parts of a chat's answer, however its text is cut. */
#include "base/json.h"
#include "runtime/chat/chat_out.h"
#include "tests/support/check.h"

#include <stdlib.h>

static lq_buf got;
static int last;

static void sink(void *user, chat_part part, const char *p, size_t n)
{
    (void)user;
    static const char *const names[] = { "C:", "R:", "F:", "A:" };
    if (last != (int)part || part == CHAT_CALL) {
        if (got.n) lq_buf_puts(&got, "|");
        lq_buf_puts(&got, names[part]);
    }
    last = (int)part;
    lq_buf_add(&got, p, n);
}

static bool known(void *user, const char *name, size_t n)
{
    (void)user;
    return (n == 1 && name[0] == 'f') || (n == 3 && memcmp(name, "now", 3) == 0);
}

/* The parts of `text` pushed in pieces of `first` and then `piece` bytes. */
static const char *parts(chat_out_opts o, const char *text, size_t first, size_t piece)
{
    lq_err err;
    chat_out *c;
    o.known = known;
    o.sink = sink;
    lq_buf_clear(&got);
    last = -1;
    CHECK(!chat_out_open(&c, &o, &err), "open");
    size_t n = strlen(text);
    for (size_t at = 0, m = first; at < n; at += m, m = piece) {
        if (m > n - at) m = n - at;
        CHECK(!chat_out_push(c, text + at, m, &err), "push");
    }
    CHECK(!chat_out_end(c, &err), "end");
    chat_out_close(c);
    lq_buf_add(&got, "", 1);
    return got.p;
}

static chat_form hermes, llama3;

static void make_forms(void)
{
    lq_err err;
    chat_form *const all[] = { &hermes, &llama3 };
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        CHECK(!form_named(all[i], i ? "llama3_json" : "hermes", &err), "%s", err.msg);
        strcpy(all[i]->think_open, "<think>");
        strcpy(all[i]->think_close, "</think>");
    }
}

#define T .form = &hermes, .thinks = true
#define H .form = &hermes, .calls = true
#define L .form = &llama3, .calls = true
#define CALL(x) "<tool_call>\n" x "\n</tool_call>"

static const struct {
    const char *why;
    chat_out_opts o;
    const char *text, *want;
} cases[] = {
    { "plain text", { 0 }, "a <think>b</think> <tool_call>", "C:a <think>b</think> <tool_call>" },
    { "thoughts", { T }, "<think>\n\na\nb\n</think>\n\nc\n", "R:a\nb|C:c\n" },
    { "thoughts that the prompt began", { T, .thinking = true }, "\na</think>b", "R:a|C:b" },
    { "thoughts without an end", { T }, "<think>a\n</thin", "R:a\n</thin" },
    { "no thoughts", { T }, " <thin>a", "C: <thin>a" },
    { "thoughts later are text", { T }, "a<think>b", "C:a<think>b" },
    { "nothing", { H, .thinks = true }, "", "" },
    { "a call",
      { H },
      CALL("{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}"),
      "F:f|A:{\"a\": [1, \"}\\\"\"]}" },
    { "text and two calls",
      { H },
      "hi\n" CALL("{\"name\":\"f\",\"arguments\":{}}") "\n" CALL(
          "{\"name\":\"now\",\"arguments\":{\"b\":2}}") "\n",
      "C:hi|F:f|A:{}|F:now|A:{\"b\":2}|C:\n" },
    { "one call is enough",
      { H, .one_call = true },
      CALL("{\"name\":\"f\",\"arguments\":{}}") CALL("{\"name\":\"now\",\"arguments\":{}}") "x",
      "F:f|A:{}" },
    { "the name comes last",
      { H },
      CALL("{\"arguments\": {\"a\":1}, \"name\": \"f\"}"),
      "F:f|A:{\"a\":1}" },
    { "arguments as a string",
      { H },
      CALL("{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}"),
      "F:f|A:{\"a\":1}" },
    { "no arguments", { H }, CALL("{\"name\":\"f\"}"), "F:f|A:{}" },
    { "other members",
      { H },
      CALL("{\"id\": 5, \"name\":\"f\",\"arguments\":{},\"x\":[{}]}") "y",
      "F:f|A:{}|C:y" },
    { "an unknown function",
      { H },
      "a\n" CALL("{\"name\":\"g\",\"arguments\":{}}"),
      "C:a\n" CALL("{\"name\":\"g\",\"arguments\":{}}") },
    { "no JSON", { H }, CALL("f(x)"), "C:" CALL("f(x)") },
    { "no name", { H }, CALL("{\"arguments\":{}}"), "C:" CALL("{\"arguments\":{}}") },
    { "almost a mark", { H }, "a <tool_cal l>\n\n<tool", "C:a <tool_cal l>\n\n<tool" },
    { "a mark twice begun",
      { H },
      "<<tool_<tool_call>{\"name\":\"f\"}</tool_call>",
      "C:<<tool_|F:f|A:{}" },
    { "cut in the arguments",
      { H },
      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a",
      "F:f|A:{\"a" },
    { "cut before them", { H }, "<tool_call>{\"name\":\"f\"", "C:<tool_call>{\"name\":\"f\"" },
    { "cut in the closing mark",
      { H },
      "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n</too",
      "F:f|A:{}" },
    { "thoughts, then a call",
      { H, .thinks = true },
      "<think>t</think>\n" CALL("{\"name\":\"f\"}"),
      "R:t|F:f|A:{}" },
    { "a call without marks",
      { H },
      "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n",
      "F:f|A:{\"a\": 1}" },
    { "two of them, and text",
      { H },
      "{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"now\",\"arguments\":{\"b\":2}} so",
      "F:f|A:{}|F:now|A:{\"b\":2}|C: so" },
    { "and the closing mark alone",
      { H },
      "{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n" CALL(
          "{\"name\":\"now\",\"arguments\":{}}") "so",
      "F:f|A:{}|F:now|A:{}|C:so" },
    { "one and no more",
      { H, .one_call = true },
      "{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"now\",\"arguments\":{}}",
      "F:f|A:{}" },
    { "one as a block of code",
      { H },
      "```json\n{\n  \"name\": \"f\",\n  \"arguments\": {\"a\": 1}\n}\n```\n",
      "F:f|A:{\"a\": 1}" },
    { "a block of code, then a marked one",
      { H },
      "```json\n{\"name\":\"f\",\"arguments\":{}}\n```\n" CALL(
          "{\"name\":\"now\",\"arguments\":{}}"),
      "F:f|A:{}|F:now|A:{}" },
    { "one behind a thought",
      { H, .thinks = true },
      "<think>t</think>\n{\"name\":\"f\",\"arguments\":{}}",
      "R:t|F:f|A:{}" },
    { "without marks arguments are needed", { H }, "{\"name\": \"f\"} x", "C:{\"name\": \"f\"} x" },
    { "and the name comes first",
      { H },
      "{\"a\": 1, \"name\": \"f\", \"arguments\": {}}",
      "C:{\"a\": 1, \"name\": \"f\", \"arguments\": {}}" },
    { "and is a function's",
      { H },
      "{\"name\": \"g\", \"arguments\": {}}",
      "C:{\"name\": \"g\", \"arguments\": {}}" },
    { "code of something else",
      { H },
      "```json\n{\"a\": 1}\n```\n",
      "C:```json\n{\"a\": 1}\n```\n" },
    { "code of another language", { H }, "```js\n{}\n```", "C:```js\n{}\n```" },
    { "an object inside text is text",
      { H },
      "x {\"name\":\"f\",\"arguments\":{}}",
      "C:x {\"name\":\"f\",\"arguments\":{}}" },
    { "without tools it is text",
      { T },
      "{\"name\":\"f\",\"arguments\":{}}",
      "C:{\"name\":\"f\",\"arguments\":{}}" },
    { "Llama's call", { L }, " {\"name\": \"f\", \"parameters\": {\"a\": 1}}", "F:f|A:{\"a\": 1}" },
    { "Llama's two",
      { L },
      "{\"name\":\"f\",\"parameters\":{}}; {\"type\":\"function\",\"name\":\"now\",\"parameters\":"
      "{\"a\":{}}}",
      "F:f|A:{}|F:now|A:{\"a\":{}}" },
    { "an object that is none", { L }, "{\"a\": 1} b", "C:{\"a\": 1} b" },
    { "a call inside text is text",
      { L },
      "x {\"name\":\"f\",\"parameters\":{}}",
      "C:x {\"name\":\"f\",\"parameters\":{}}" },
};

TEST(parts_are_what_the_marks_say_however_the_text_is_cut)
{
    make_forms();
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        size_t n = strlen(cases[i].text);
        for (size_t piece = 1; piece <= n + 1; piece++)
            for (size_t first = 0; first <= (piece == n + 1 ? n : 0); first++) {
                const char *p = parts(cases[i].o, cases[i].text, first ? first : piece, piece);
                CHECK(strcmp(p, cases[i].want) == 0, "%s, pieces of %zu and %zu: %s, expected %s",
                      cases[i].why, first, piece, p, cases[i].want);
            }
    }
}

/* Text that cannot become a mark any more is not held back. */
TEST(only_what_may_be_a_mark_is_withheld)
{
    static const struct {
        const char *text, *out;
    } steps[] = { { "a b", "C:a b" }, { "<", "" },      { "b", "<b" },
                  { "\n", "" },       { "<tool_", "" }, { "x", "\n<tool_x" } };
    lq_err err;
    chat_out *c;
    chat_out_opts o = { H, .known = known, .sink = sink };
    last = -1;
    CHECK(!chat_out_open(&c, &o, &err), "open");
    for (size_t i = 0; i < LQ_COUNT(steps); i++) {
        lq_buf_clear(&got);
        CHECK(!chat_out_push(c, steps[i].text, strlen(steps[i].text), &err), "push");
        CHECK(got.n == strlen(steps[i].out) && (!got.n || !memcmp(got.p, steps[i].out, got.n)),
              "after %s: %.*s", steps[i].text, (int)got.n, got.n ? got.p : "");
    }
    chat_out_close(c);
}

TEST(a_long_answer_takes_linear_time)
{
    size_t n = 1 << 20;
    char *text = malloc(n + 1);
    for (int kind = 0; kind < 3; kind++) {
        memset(text, "\n<{"[kind], n);
        text[n] = 0;
        const char *p = parts((chat_out_opts){ H, .thinks = true }, text, n, n);
        CHECK(strlen(p) == n + 2, "%d: %zu bytes came out", kind, strlen(p));
    }
    free(text);
}

int main(int argc, char **argv)
{
    RUN(parts_are_what_the_marks_say_however_the_text_is_cut);
    RUN(only_what_may_be_a_mark_is_withheld);
    RUN(a_long_answer_takes_linear_time);
    lq_buf_free(&got);
    return check_end();
}
