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
 * repeated. json NULL: no options. args: positional arguments, and values of options that are not
 * the object's to say, all up to a NULL: "model", "--out=x". An object that names such an option,
 * or json, log-level or help, is refused. Errors: LQ_EUSAGE (malformed JSON too), LQ_ENOMEM. Free
 * with opt_json_free, also after an error; strings of the options live until then. */
lq_status opt_json_parse(opt_json *j, const cmd_row *cmd, const char *const *args, const char *json,
                         lq_err *err);
void opt_json_free(opt_json *j);

#endif
