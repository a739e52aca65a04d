/* tools/verify/verify.h - what `llmq verify MODEL` checks, for the commands that go by it. */
#ifndef LLMQ_TOOLS_VERIFY_VERIFY_H
#define LLMQ_TOOLS_VERIFY_VERIFY_H

#include "tools/cli/opt.h"

/* Every finding goes to stderr, and why llmq cannot run it, where it cannot. sums: look at a
 * folder's SHA256SUMS too. LQ_ECHECK: there are findings; other errors as of src_open. */
lq_status verify_model(const cmd_ctx *c, const char *path, bool sums, lq_err *err);

#endif
