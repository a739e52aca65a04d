/* tests/unit/test_lark.c - grammars in Lark's notation: which texts they take, and what is refused. */
#include "runtime/grammar/grammar.h"
#include "runtime/grammar/grammar_lark.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

/* Whether the whole of `text` is a sentence. */
static bool takes(grammar *g, const char *text)
{
    lq_err err;
    gr_matcher *m;
    bool ok = true;
    CHECK(!gr_matcher_new(&m, g, &err), "matcher");
    if (*text) CHECK(!gr_accept(m, (const uint8_t *)text, strlen(text), &ok, &err), "%s", err.msg);
    ok = ok && gr_may_end(m);
    gr_matcher_free(m);
    return ok;
}

#define PATCH                                                                                    \
    "start: begin hunk+ end\nbegin: \"*** Begin\" LF\nend: \"*** End\" LF?\n\n"                  \
    "hunk: add_hunk | del_hunk\nadd_hunk: \"*** Add: \" filename LF add_line+\n"                 \
    "del_hunk: \"*** Del: \" filename LF\nfilename: /(.+)/\nadd_line: \"+\" /(.*)/ LF -> line\n" \
    "%import common.LF\n"

static const struct {
    const char *why, *lark, *yes[3], *no[3];
} cases[] = {
    { "strings", "start: \"a.b\" \"\\n\"", { "a.b\n" }, { "axb\n", "a.b" } },
    { "any case", "start: \"aB1\"i", { "Ab1", "aB1" }, { "ab" } },
    { "alternatives over lines",
      "start: \"a\" // one\n     | b\n  | \"c\"\nb: \"b\"",
      { "a", "b", "c" },
      { "", "ab" } },
    { "repetitions",
      "start: \"a\"* (\"b\" | \"c\")+ [\"d\"] \"e\"?",
      { "b", "aacbde" },
      { "a", "dd" } },
    { "counts", "start: \"a\"~2 \"b\" ~ 1 .. 2", { "aab", "aabb" }, { "ab", "aabbb" } },
    { "ranges", "start: \"a\"..\"c\" \"0\"..\"9\"+", { "b12" }, { "d1", "b" } },
    { "regular expressions", "start: /[a-z]+\\/x/ N\nN.2: /\\d{2}/", { "ab/x12" }, { "ab/x1" } },
    { "a sum",
      "start: expr\nexpr: term (SP \"+\" SP term)* -> add\n?term: INT\nSP: \" \"\n%import "
      "common.INT",
      { "1", "1 + 22 + 3" },
      { "1 +", "+ 1" } },
    { "imports",
      "%import common (INT, WORD)\n%import common.WS_INLINE -> W\nstart: INT W WORD",
      { "1 a" },
      { "1a" } },
    { "a patch",
      PATCH,
      { "*** Begin\n*** Add: a\n+x\n+\n*** End", "*** Begin\n*** Del: a\n*** End\n" },
      { "*** Begin\n*** End", "*** Begin\n*** Add: a\n*** End" } },
    { "a blank last line", "start: \"a\"\n  ", { "a" }, { "" } },
    { "comments of both kinds",
      "# one\nstart: \"a\" # two\n  | \"#\" // three\n",
      { "a", "#" },
      { "b" } },
    { "an import called start", "%import common.INT -> start", { "12" }, { "a" } },
    { "ends of ranges",
      "start: \"]\"..\"^\" \"\\n\"..\"\\r\" \"\\x41\"..\"\\u0043\" \"\u00e0\"..\"\u00e9\"",
      { "]\nB\u00e8" },
      { "a\nB\u00e8", "]\nD\u00e8" } },
    { "brackets in classes",
      "start: /[(]/ /[^)]/ /[])[]/ /\\\\[(]/? /\\[\\(/",
      { "(a)[(", "(x][(" },
      { "()][(" } },
    { "what is ignored",
      "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: \"0\"..\"9\"+ (\".\" \"0\"..\"9\"+)?\n"
      "%ignore \" \"\n%ignore COMMENT\nCOMMENT: /#[a-z]*;/",
      { "12+3", "  1.5 + 2 #a; ", "#;1" },
      { "1 2", "1. 5", "+" } },
    { "code points beyond 16 bits",
      "start: \"\\U0001F600\" \"\\U0001F601\"..\"\\U0001F603\"",
      { "\xf0\x9f\x98\x80\xf0\x9f\x98\x82" },
      { "\xf0\x9f\x98\x80\xf0\x9f\x98\x84" } },
    { "nothing", "start:\n", { "" }, { "a" } },
};

TEST(a_grammar_takes_what_lark_would)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err = { "" };
        lq_buf b = { 0 };
        grammar *g = NULL;
        CHECK(!gr_lark_regex(&b, cases[i].lark, &err), "%s: %s", cases[i].why, err.msg);
        const gr_spec spec = { .kind = GR_REGEX, .text = b.p, .n = strlen(b.p) };
        CHECK(!gr_compile(&g, &spec, NULL, &err), "%s: %s: %s", cases[i].why, b.p, err.msg);
        for (int k = 0; g && k < 3; k++) {
            const char *yes = cases[i].yes[k], *no = cases[i].no[k];
            CHECK(!yes || takes(g, yes), "%s: '%s' is one of %s", cases[i].why, yes, b.p);
            CHECK(!no || !takes(g, no), "%s: '%s' is none of %s", cases[i].why, no, b.p);
        }
        gr_unref(g);
        lq_buf_free(&b);
    }
}

TEST(what_is_refused_says_where)
{
    static const struct {
        const char *lark, *part;
    } bad[] = { { "a: \"x\"", "no rule called start" },
                { "start: a\n", "line 1: a name that is not defined" },
                { "start: a\na: \"x\" a?\n", "line 2: a rule that uses itself" },
                { "start: \"x\" start", "uses itself" },
                { "start: \"x\"\nstart: \"y\"", "line 2: a name that is defined twice" },
                { "start: \"x", "a string without its end" },
                { "start: /x", "a regular expression without its end" },
                { "start: (\"x\"", "expected )" },
                { "start: [\"x\")", "expected ]" },
                { "start: \"x\")", "expected the end" },
                { "start: \"x\"~", "expected a number" },
                { "start: \"x\"~-1", "expected a number" },
                { "start: \"x\"~1..", "line 1: expected a number behind .." },
                { "start: \"x\"~3..2", "line 1: a repetition ~n..m with m below n" },
                { "start: \"ab\"..\"z\"", "line 1: expected one character on each side" },
                { "start: \"a\"..\"\"", "expected one character on each side" },
                { "start: /[/ \"x\" /]/", "line 1: a regular expression whose brackets" },
                { "start: /a)|(b/", "whose brackets do not match" },
                { "start: /(/ \"x\" /)/", "whose brackets do not match" },
                { "start: /[\\]/ \"x\" /]/", "whose brackets do not match" },
                { "%import common.INT ->\nstart: \"x\"", "line 1: expected a name behind ->" },
                { "start: *", "expected a name" },
                { "start = \"x\"", "expected a definition" },
                { "start: /x/i", "flags" },
                { "start: a{\"x\"}\na{t}: t", "a template" },
                { "start: \"x\"\n%declare X", "line 2: a directive" },
                { "start: \"x\"\n%ignore Y", "line 2: a name that is not defined" },
                { "start: \"x\"\n%ignore \"a\")", "line 2: expected the end of %ignore" },
                { "start: \"\\U0001F60\"", "8 hexadecimal digits" },
                { "start: \"\\U00110000\"", "8 hexadecimal digits" },
                { "start: X\n%import other.X", "another module" },
                { "start: X\n%import common.X", "none of common's" } };
    for (size_t i = 0; i < LQ_COUNT(bad); i++) {
        lq_err err = { "" };
        lq_buf b = { 0 };
        lq_status s = gr_lark_regex(&b, bad[i].lark, &err);
        CHECK((s == LQ_EVALUE || s == LQ_EUNSUPPORTED) && strstr(err.msg, bad[i].part), "%s: %d %s",
              bad[i].lark, (int)s, err.msg);
        lq_buf_free(&b);
    }
}

TEST(the_notation_is_told_by_the_first_rule)
{
    static const struct {
        const char *text;
        bool lark;
    } all[] = { { "start: \"a\"", true },
                { "# a ::= b\n%import common.INT\n?start.2 : INT", true },
                { "// one\n!start:", true },
                { "root ::= \"a: b\"", false },
                { "# root: x\nroot ::= item", false },
                { "root = x", false },
                { "", false } };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        CHECK(gr_is_lark(all[i].text) == all[i].lark, "%s", all[i].text);
}

/* Rules that double each other's text are stopped by its length. */
TEST(a_grammar_that_grows_is_too_large)
{
    lq_buf text = { 0 }, out = { 0 };
    lq_err err = { "" };
    lq_buf_puts(&text, "start: r0\n");
    for (int i = 0; i < 30; i++)
        lq_buf_printf(&text, "r%d: r%d r%d\n", i, i + 1, i + 1);
    lq_buf_puts(&text, "r30: \"x\"\n");
    lq_buf_add(&text, "", 1);
    CHECK(gr_lark_regex(&out, text.p, &err) == LQ_EVALUE && strstr(err.msg, "too large"), "%s",
          err.msg);
    lq_buf_free(&text);
    lq_buf_free(&out);
}

int main(int argc, char **argv)
{
    RUN(a_grammar_takes_what_lark_would);
    RUN(what_is_refused_says_where);
    RUN(the_notation_is_told_by_the_first_rule);
    RUN(a_grammar_that_grows_is_too_large);
    return check_end();
}
