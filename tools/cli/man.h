/* tools/cli/man.h - man pages out of the option tables: `llmq help --man [COMMAND]`, which make install
 * calls. Source: man-pages(7), groff_man(7). */
#ifndef LLMQ_TOOLS_CLI_MAN_H
#define LLMQ_TOOLS_CLI_MAN_H

#include "tools/cli/opt.h"

/* llmq.1 for cmds, which ends with NULL; llmq-NAME.1. */
void man_print_program(FILE *f, const cmd_row *const *cmds);
void man_print_command(FILE *f, const cmd_row *cmd);

#endif
