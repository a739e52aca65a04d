/* tests/unit/test_lark.c - grammars in Lark's notation: which texts they take, and what is refused. */
#include "tests/support/grammar_takes.h"

#include <stdlib.h>
#include <string.h>

static lq_status compile(grammar **g, const char *lark, lq_err *err)
{
    return gr_compile(g, &(gr_spec){ .kind = GR_LARK, .text = lark, .n = strlen(lark) }, NULL, err);
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
    { "a calculator as lark's own examples have it",
      "?start: sum\n?sum: product | sum \"+\" product -> add | sum \"-\" product -> sub\n"
      "?product: atom | product \"*\" atom -> mul | product \"/\" atom -> div\n"
      "?atom: NUMBER -> number | \"-\" atom -> neg | NAME -> var | \"(\" sum \")\"\n"
      "%import common.CNAME -> NAME\n%import common.NUMBER\n%import common.WS_INLINE\n%ignore "
      "WS_INLINE\n",
      { "1", "(a + 2)* -3 - ( (x) )/4", "1+2+3*4*5" },
      { "1 +", "(1", "1)" } },
    { "JSON",
      "?value: object | array | string | SIGNED_NUMBER | \"true\" | \"false\" | \"null\"\n"
      "array: \"[\" [value (\",\" value)*] \"]\"\nobject: \"{\" [pair (\",\" pair)*] \"}\"\n"
      "pair: string \":\" value\nstring: ESCAPED_STRING\nstart: value\n"
      "%import common (ESCAPED_STRING, SIGNED_NUMBER, WS)\n%ignore WS\n",
      { "{\"a\": [1, {}, -2.5e3 , \"x\\\"y\"]}", "[[[]]]", " null " },
      { "{\"a\": }", "[[]", "{a: 1}" } },
    { "calls and members, which begin with each other",
      "start: expr\nexpr: call | member | NAME\ncall: expr \"(\" [expr (\",\" expr)*] \")\"\n"
      "member: [expr \".\"] NAME \"!\"\nNAME: /[a-z]+/\n",
      { "f(x,g(y))(z)", "a.b!(c).d!", "b!" },
      { "f(", "a.b", ".b!" } },
    { "a list that begins with itself, some times",
      "start: a\na: (a \",\")~1..2 \"x\" | \"y\"\n",
      { "y", "y,x", "y,y,x,x" },
      { "y,y", "x", "y,y,y,x" } },
};

TEST(a_grammar_takes_what_lark_would)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err = { "" };
        grammar *g = NULL;
        CHECK(!compile(&g, cases[i].lark, &err), "%s: %s", cases[i].why, err.msg);
        for (int k = 0; g && k < 3; k++) {
            const char *yes = cases[i].yes[k], *no = cases[i].no[k];
            CHECK(!yes || grammar_takes(g, yes), "%s: '%s' is one of them", cases[i].why, yes);
            CHECK(!no || !grammar_takes(g, no), "%s: '%s' is none of them", cases[i].why, no);
        }
        gr_unref(g);
    }
}

TEST(what_is_refused_says_where)
{
    static const struct {
        const char *lark, *part;
    } bad[] = { { "a: \"x\"", "no rule called start" },
                { "start: a\n", "line 1: a name that is not defined" },
                { "start: A\nA: \"x\" B?\nB: A", "line 3: a terminal that uses itself" },
                { "start: A\nA: \"x\" b\nb: \"y\"", "line 2: a rule inside a terminal" },
                { "start: \"x\" start", "matches no text" },
                { "start: A? start \"x\" | \"y\"\nA: \"a\"", "recurses on the left" },
                { "start: \"c\"..\"a\"", "line 1: a range from a higher" },
                { "start: \"\\x4\"", "2 hexadecimal digits" },
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
                { "start: /[/ \"x\" /]/", "line 1: a regular expression" },
                { "start: /a)|(b/", "a ) without (" },
                { "start: \"a\"\n | /(/ \"x\" /)/", "line 2: a regular expression" },
                { "start: /[\\]/ \"x\" /]/", "line 1: a regular expression" },
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
        grammar *g = NULL;
        lq_status s = compile(&g, bad[i].lark, &err);
        CHECK((s == LQ_EVALUE || s == LQ_EUNSUPPORTED) && strstr(err.msg, bad[i].part), "%s: %d %s",
              bad[i].lark, (int)s, err.msg);
        gr_unref(g);
    }
}

TEST(the_notation_is_told_by_the_first_rule)
{
    static const struct {
        const char *text;
        bool lark;
    } all[] = { { "start: \"a\"", true },
                { "# a ::= b\n%import common.INT\n?start.2 : INT | \"a\"", true },
                { "// one\n!start: \"a\"", true },
                { "root ::= \"a: b\"", false },
                { "# root: x\nroot ::= item", false },
                { "root = x", false },
                { "", false } };
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        grammar *g = NULL;
        lq_err err = { "" };
        const gr_spec spec = { .kind = GR_GRAMMAR, .text = all[i].text, .n = strlen(all[i].text) };
        if (gr_compile(&g, &spec, NULL, &err))
            CHECK(!strncmp(err.msg, "lark: ", 6) == all[i].lark, "%s: %s", all[i].text, err.msg);
        else
            CHECK(grammar_takes(g, "a") == all[i].lark, "%s", all[i].text);
        gr_unref(g);
    }
}

int main(int argc, char **argv)
{
    RUN(a_grammar_takes_what_lark_would);
    RUN(what_is_refused_says_where);
    RUN(the_notation_is_told_by_the_first_rule);
    return check_end();
}
