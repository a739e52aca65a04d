/* How an answer's pieces are coloured. The whole is in tests/e2e/test_chat_terminal.py. */
#include "tools/cli/term_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/support/check.h"

#define B "\033[0;1m"
#define C "\033[0;36m"
#define D "\033[0;2m"
#define P "\033[0m"

static const struct {
    const char *why, *text, *want;
} cases[] = {
    { "plain text", "a b\nc\td", "a b\nc\td" },
    { "a heading ends with its line", "# A b\nc", B "# A b" P "\nc" },
    { "seven marks are no heading", "####### a", "####### a" },
    { "a mark without a blank is no heading", "#a #b", "#a #b" },
    { "a mark inside a line is text", "a # b", "a # b" },
    { "strong", "a **b** c", "a " B "**b**" P " c" },
    { "strong with emphasis", "***b*** c", B "***b***" P " c" },
    { "a power is not strong", "2 ** 3 ** 4", "2 ** 3 ** 4" },
    { "one mark is a list's, or emphasis", "* a *b* c", "* a *b* c" },
    { "strong ends with its line", "**a\nb", B "**a" P "\nb" },
    { "code", "a `b **c**` d", "a " C "`b **c**`" P " d" },
    { "a fence", "```c\n# x `y` **z**\n```\n**s**",
      C "```c" P "\n" C "# x `y` **z**" P "\n" C "```" P "\n" B "**s**" P },
    { "a fence in a list", "  ```\nx\n  ```\ny",
      "  " C "```" P "\n" C "x" P "\n" C "  ```" P "\ny" },
    { "control characters", "a\033[31mb\rc\x7f\xc2\x9b",
      "a\xef\xbf\xbd[31mb\xef\xbf\xbd"
      "c\xef\xbf\xbd\xef\xbf\xbd" },
    { "other scripts", "# 한\n`글` é", B "# 한" P "\n" C "`글`" P " é" },
    { "marks at the end", "a **", "a **" },
};

/* What is written for the text in pieces of n characters (0: whole); malloc'd. */
static char *shown(const char *text, size_t n, bool colour)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    term_text t = { .f = f, .terminal = true, .colour = colour };
    for (size_t at = 0, len = strlen(text); at < len;) {
        size_t end = n ? at + n : len;
        while (end < len && ((unsigned char)text[end] & 0xc0) == 0x80)
            end++;
        if (end > len) end = len;
        char *piece = strndup(text + at, end - at);
        term_text_put(&t, piece);
        free(piece);
        at = end;
    }
    term_text_end(&t);
    fclose(f);
    return out;
}

TEST(markdown_is_coloured_however_it_is_cut)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        for (size_t n = 0; n < 4; n++) {
            char *got = shown(cases[i].text, n, true);
            CHECK(strcmp(got, cases[i].want) == 0, "%s, pieces of %zu: found \"%s\"", cases[i].why,
                  n, got);
            free(got);
        }
}

TEST(without_colour_the_text_is_all_there_is)
{
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        if (strcmp(cases[i].why, "control characters") == 0) continue;
        char *got = shown(cases[i].text, 1, false);
        CHECK(strcmp(got, cases[i].text) == 0, "%s: found \"%s\"", cases[i].why, got);
        free(got);
    }
}

TEST(a_thought_is_dimmed)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    term_text t = { .f = f, .terminal = true, .colour = true };
    term_text_thought(&t, "a **b**");
    term_text_thought(&t, " c\033");
    term_text_end(&t);
    fclose(f);
    CHECK(strcmp(out, D "a **b** c\xef\xbf\xbd" P) == 0, "found \"%s\"", out);
    free(out);
}

int main(int argc, char **argv)
{
    RUN(markdown_is_coloured_however_it_is_cut);
    RUN(without_colour_the_text_is_all_there_is);
    RUN(a_thought_is_dimmed);
    return check_end();
}
