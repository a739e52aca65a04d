/* tools/cli/opt_common.h - the options of every command; shared by tools/cli/opt.c and tools/cli/help.c. */
#ifndef LLMQ_TOOLS_CLI_OPT_COMMON_H
#define LLMQ_TOOLS_CLI_OPT_COMMON_H

#include "tools/cli/opt.h"

typedef struct {
    int64_t threads;
    bool json, help;
    int level;
} opt_common;

enum { OPT_COMMON_N = 4 };
extern const opt_row opt_common_rows[OPT_COMMON_N];
/* What stands for the option's value: "N"; NULL: it takes none. */
const char *opt_arg_text(const opt_row *r);

#endif
