/* tools/cli/term_text.h - a model's text on a terminal, as it comes: coloured by its Markdown, and
 * without control characters, which could make the terminal do things.
 *
 * No character is hidden or moved: what is shown can be copied. Headings and **strong** are bold, code
 * is cyan. Where the stream is no terminal the bytes pass as they are. */
#ifndef LLMQ_TOOLS_CLI_TERM_TEXT_H
#define LLMQ_TOOLS_CLI_TERM_TEXT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *f;
    bool terminal, colour; /* colour: neither NO_COLOR nor TERM=dumb */
    /* where the text is */
    bool fence, fence_line, heading, strong, code, line_begun;
    char run_of; /* a run of this mark (`, *, #) may go on; 0: none */
    int run;
    int style; /* what is on, of the list in term_text.c */
} term_text;

void term_text_begin(term_text *t, FILE *f);        /* looks at f and at the environment */
void term_text_put(term_text *t, const char *text); /* the next piece of an answer */
/* A piece of a thought: dimmed, without Markdown. */
void term_text_thought(term_text *t, const char *text);
void term_text_end(term_text *t); /* what was held back is written, colours end */

#endif
