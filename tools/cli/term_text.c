/* tools/cli/term_text.c - see term_text.h. */
#include "tools/cli/term_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLAIN, STRONG, CODE, DIM };
static const char *const styles[] = { "\033[0m", "\033[0;1m", "\033[0;36m", "\033[0;2m" };

void term_text_begin(term_text *t, FILE *f)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    *t = (term_text){ .f = f, .terminal = isatty(fileno(f)) };
    t->colour = t->terminal && !(no && no[0]) && term && strcmp(term, "dumb") != 0;
}

static void set_style(term_text *t, int style)
{
    if (t->style == style || !t->colour) return;
    fputs(styles[style], t->f);
    t->style = style;
}

static int style_of(const term_text *t)
{
    return t->fence || t->fence_line || t->code ? CODE : t->heading || t->strong ? STRONG : PLAIN;
}

/* One character of n bytes; control characters as U+FFFD, among them those of C2 80 to C2 9F. */
static void put_char(const term_text *t, const char *s, size_t n)
{
    const unsigned char b = (unsigned char)s[0];
    const bool control = (b < 0x20 && b != '\n' && b != '\t') || b == 0x7f ||
                         (n == 2 && b == 0xc2 && (unsigned char)s[1] < 0xa0);
    if (control)
        fputs("\xef\xbf\xbd", t->f);
    else
        fwrite(s, 1, n, t->f);
}

static size_t char_bytes(const char *s)
{
    size_t n = 1;
    while (((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* The run of marks has ended, `next` follows it (0: nothing): what does it mean? */
static void end_run(term_text *t, char next)
{
    const bool begins_line = !t->line_begun, blank = !next || strchr(" \t\n", next);
    const int n = t->run;
    const char mark = t->run_of;
    bool fence = false, code = false, strong = false;
    t->run_of = 0;
    t->run = 0;
    if (!n) return;
    if (mark == '`') {
        fence = begins_line && n >= 3;
        code = !fence && !t->fence;
    } else if (mark == '*') {
        strong = n >= 2 && !t->fence && !t->code && (t->strong || !blank);
    } else if (begins_line && n <= 6 && blank && !t->fence) {
        t->heading = true;
    }
    if (fence) t->fence_line = true;
    /* the marks themselves look like what they are around */
    const bool was_code = t->code, was_strong = t->strong;
    if (code) t->code = true;
    if (strong) t->strong = true;
    set_style(t, style_of(t));
    for (int i = 0; i < n; i++)
        fputc(mark, t->f);
    if (code) t->code = !was_code;
    if (strong) t->strong = !was_strong;
    if (fence) t->fence = !t->fence;
    t->line_begun = true;
}

static void end_line(term_text *t)
{
    set_style(t, PLAIN); /* so that a background would not be drawn to the edge */
    t->heading = t->strong = t->code = t->fence_line = t->line_begun = false;
    fputc('\n', t->f);
}

void term_text_put(term_text *t, const char *text)
{
    if (!t->terminal) {
        fputs(text, t->f);
        return;
    }
    for (size_t n; *text; text += n) {
        n = char_bytes(text);
        if (t->run && *text != t->run_of) end_run(t, *text);
        if (strchr("`*#", *text) && (*text != '#' || t->run || !t->line_begun)) {
            t->run_of = *text;
            t->run++;
        } else if (*text == '\n') {
            end_line(t);
        } else {
            set_style(t, style_of(t));
            put_char(t, text, n);
            t->line_begun |= *text != ' ';
        }
    }
}

void term_text_thought(term_text *t, const char *text)
{
    set_style(t, DIM);
    for (size_t n; *text; text += n) {
        n = t->terminal ? char_bytes(text) : strlen(text);
        if (t->terminal)
            put_char(t, text, n);
        else
            fwrite(text, 1, n, t->f);
    }
}

void term_text_end(term_text *t)
{
    end_run(t, 0);
    set_style(t, PLAIN);
    t->fence = t->fence_line = t->heading = t->strong = t->code = t->line_begun = false;
    fflush(t->f);
}
