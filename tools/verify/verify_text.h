/* tools/verify/verify_text.h - the small files of a model, for `llmq verify`: do tokenizer, templates and
 * generation defaults load as a server loads them? */
#ifndef LLMQ_TOOLS_VERIFY_VERIFY_TEXT_H
#define LLMQ_TOOLS_VERIFY_VERIFY_TEXT_H

#include "formats/source/source.h"
#include "tools/verify/verdict.h"

/* Findings: a malformed one. v->unfit, where it is empty: one that llmq does not know, or a
 * tokenizer that other files speak of and that is not there. v->tokenizer: there is one, and it
 * loads. LQ_ENOMEM. */
lq_status verify_text(verdict *v, const src_source *src, lq_err *err);

#endif
