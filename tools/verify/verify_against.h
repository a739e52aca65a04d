/* tools/verify/verify_against.h - the second half of `llmq verify`: are a model's weights those of its
 * source, as far as its scheme can hold them? */
#ifndef LLMQ_TOOLS_VERIFY_VERIFY_AGAINST_H
#define LLMQ_TOOLS_VERIFY_VERIFY_AGAINST_H

#include "formats/source/source.h"
#include "tools/verify/verdict.h"

/* Compare every tensor of `mine` with that of the model at `path`; findings go to v. Errors as of
 * src_open for `path`; LQ_EINTR, LQ_ENOMEM. */
lq_status verify_against(verdict *v, const src_source *mine, const char *path, lq_err *err);

#endif
