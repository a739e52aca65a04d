/* calib/jsonl.h - calibration data as JSON lines: {"text": "..."}, {"ids": [1, 2]} or [1, 2].
 *
 * Texts are tokenized without special tokens; lines follow one another in one stream of ids, from
 * which windows are cut (calib/samples.h). */
#ifndef LLMQ_CALIB_JSONL_H
#define LLMQ_CALIB_JSONL_H

#include "runtime/tok.h"

/* t may be NULL when all lines hold ids. free() the ids. Errors: LQ_EFORMAT (names the line),
 * LQ_ENOENT (a text, and no tokenizer), LQ_ENOMEM. */
lq_status cal_read_jsonl(int32_t **ids, int64_t *n, const char *text, size_t bytes,
                         const tok_tokenizer *t, lq_err *err);

#endif
