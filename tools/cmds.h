/* tools/cmds.h - every subcommand, in the order of `llmq --help`: one X(name) per file
 * tools/cmd_NAME.c, which defines `const cmd_row cmd_NAME`. */
#ifndef LLMQ_TOOLS_CMDS_H
#define LLMQ_TOOLS_CMDS_H

#include "tools/cli/model_opts.h"
#include "tools/cli/opt.h"
#include "tools/cli/progress.h"

// clang-format off
#define COMMANDS(X) \
    X(quantize)     \
    X(convert)      \
    X(serve)        \
    X(run)          \
    X(chat)         \
    X(batch)        \
    X(eval)         \
    X(logits)       \
    X(tokenize)     \
    X(template)     \
    X(imatrix)      \
    X(stats)        \
    X(inspect)      \
    X(verify)       \
    X(plan)         \
    X(bench)        \
    X(doctor)       \
    X(publish)      \
    X(pull)         \
    X(handover)     \
    X(completion)   \
    X(version)
// clang-format on

#define X(name) extern const cmd_row cmd_##name;
COMMANDS(X)
#undef X

#endif
