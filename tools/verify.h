/* tools/verify.h - what `llmq verify MODEL` checks, for the commands that go by it. */
#ifndef LLMQ_TOOLS_VERIFY_H
#define LLMQ_TOOLS_VERIFY_H

#include "tools/opt.h"

/* Every finding goes to stderr. LQ_ECHECK: there are some; other errors as of src_open. */
lq_status verify_model(const cmd_ctx *c, const char *path, lq_err *err);

/* The file that stands for a folder without safetensors: the one .llmq or .gguf in it; else `path`
 * as it is. LQ_EVALUE: too long. */
lq_status verify_find_model(char *out, size_t n, const char *path, lq_err *err);

#endif
