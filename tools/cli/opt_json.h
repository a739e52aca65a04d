/* tools/cli/opt_json.h - a command's options as a JSON object, for calls that have no command line: the
 * same table, ranges, checks and messages. */
#ifndef LLMQ_TOOLS_CLI_OPT_JSON_H
#define LLMQ_TOOLS_CLI_OPT_JSON_H

#include "tools/cli/opt.h"

typedef struct {
    cmd_ctx c;  /* .json is set; the rest is the caller's */
    void *opts; /* cmd->opts_bytes of them */
    char **argv;
    int argc, cap;
} opt_json;

/* Names are those of the options without the dashes ('_' counts as '-'); values: true and false of
 * switches, numbers or text of all others ("512M" of sizes), an array where an option may be
 * repeated, null as if it were not there. json NULL: no options. arg: the positional argument. out:
 * the value of --out, which the object may not name then; or NULL. json, log-level and help are
 * refused. Errors: LQ_EUSAGE (malformed JSON too), LQ_ENOMEM. Free with opt_json_free, also after an
 * error; strings of the options live until then. */
lq_status opt_json_parse(opt_json *j, const cmd_row *cmd, const char *arg, const char *out,
                         const char *json, lq_err *err);
void opt_json_free(opt_json *j);

#endif
