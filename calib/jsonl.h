/* calib/jsonl.h - calibration data as JSON lines, one document each:
 *
 *     {"text": "..."}                      tokenized without special tokens
 *     {"messages": [...], "tools": [...]}  rendered and encoded by the model's chat template, which
 *                                          writes the special tokens; tools: optional
 *     {"ids": [1, 2]} or [1, 2]            taken as they are
 *
 * The documents follow one another in one stream. EOS is put between two documents where the first
 * is text or a conversation and does not end with an EOS already: a model that never sees the end
 * of a document while its ranges are chosen does not end well (documents of ids are left to their
 * author). A line with several of the keys: ids before messages before text. */
#ifndef LLMQ_CALIB_JSONL_H
#define LLMQ_CALIB_JSONL_H

#include "formats/source/source.h"
#include "runtime/tokenizer/tok.h"

/* A growing list of ids. Zero is empty; free(ids). */
typedef struct {
    int32_t *ids;
    size_t n, cap;
    bool given; /* some of it came as ids, not as text */
} cal_stream;

lq_status cal_stream_add(cal_stream *s, const int32_t *ids, size_t n, lq_err *err);

/* tok may be NULL when all lines hold ids. src: the model, of which EOS and chat template are taken
 * (NULL: no EOS between, no messages). free(s->ids), also after an error. Errors: LQ_EFORMAT (names
 * the line), LQ_EVALUE (the template refuses a conversation), LQ_ENOENT (a text or conversation,
 * and no tokenizer or template), LQ_ENOMEM. */
lq_status cal_read_jsonl(cal_stream *s, const char *text, size_t bytes, const tok_tokenizer *tok,
                         const src_source *src, lq_err *err);

#endif
