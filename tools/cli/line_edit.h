/* tools/cli/line_edit.h - a message typed on a terminal, edited by libedit: history, arrows, several
 * lines, and pasted text as one piece (bracketed paste).
 *
 * Bytes come from the caller, who can look for signals between them; what is shown goes to stderr.
 * The terminal is in libedit's mode only while a message is read.
 *
 * In a build without libedit, on a terminal that cannot move its cursor and where no locale has UTF-8
 * there is no editor: the terminal's own line editing is what remains. */
#ifndef LLMQ_TOOLS_CLI_LINE_EDIT_H
#define LLMQ_TOOLS_CLI_LINE_EDIT_H

#include "base/buf.h"

typedef struct line_edit line_edit;

/* The next byte of the terminal. 1: it is in *b; 0: none came within a fraction of a second, or a
 * signal did; -1: there are no more. */
typedef int (*line_edit_byte)(void *user, uint8_t *b);

/* NULL in *e: there is no editor here. */
lq_status line_edit_open(line_edit **e, line_edit_byte byte, void *user, lq_err *err);
/* A message, UTF-8 without the line end that closed it, appended to text. False: no more. */
bool line_edit_read(line_edit *e, const char *prompt, lq_buf *text);
/* The arrow up finds it from now on. */
void line_edit_remember(line_edit *e, const char *text);
void line_edit_close(line_edit *e); /* NULL allowed */

#endif
