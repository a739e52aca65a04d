/* tools/verify/verify_sums.h - a published folder against its SHA256SUMS, for `llmq verify`. */
#ifndef LLMQ_TOOLS_VERIFY_VERIFY_SUMS_H
#define LLMQ_TOOLS_VERIFY_VERIFY_SUMS_H

#include "formats/source/source.h"
#include "tools/verify/verdict.h"

/* Findings: a listed file that is missing or has another digest, a file of a model that is not
 * listed (llmq pull refuses both), a list that cannot be read. No folder, or none with SHA256SUMS:
 * nothing to look at. LQ_EIO, LQ_ENOMEM, LQ_EINTR. */
lq_status verify_sums(verdict *v, const char *path, lq_err *err);

/* Notes what is in the folder `path` and is no part of the model in it: other folders, weights
 * that it does not read. No folder: nothing. */
void verify_beside(verdict *v, const src_source *src, const char *path);

#endif
