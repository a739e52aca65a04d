/* tools/cli/lines.h - commands that read JSON objects, one a line, and answer each with one line. */
#ifndef LLMQ_TOOLS_CLI_LINES_H
#define LLMQ_TOOLS_CLI_LINES_H

#include "base/json_write.h"

#include "base/json_text.h"

/* Write the answer to one object. An error ends the run, with the line's number before it. */
typedef lq_status (*lines_answer)(void *user, const cJSON *line, jw *out, lq_err *err);

/* stdin to stdout until its end; empty lines are passed over. Strings as jt_parse gives them. */
lq_status lines_run(lines_answer answer, void *user, lq_err *err);

/* A member that is a text, with U+0000 undone; free it. LQ_EVALUE when it is none. */
lq_status lines_text(const cJSON *line, const char *key, char **text, size_t *n, lq_err *err);

#endif
