/* convert/convert.h - a model from one container to another, without choosing new values.
 *
 *   conv_to_llmq   any source -> one .llmq file; codes are carried over, only their order changes
 *   conv_to_hf     any source -> a Hugging Face folder of plain floats (weights are dequantized)
 *
 * Both stream tensor by tensor, and what they write appears whole or not at all. */
#ifndef LLMQ_CONVERT_CONVERT_H
#define LLMQ_CONVERT_CONVERT_H

#include "formats/source.h"
#include "kernels/pool.h"

typedef struct {
    bool bit_exact;  /* every weight has the value that it has in the source */
    int64_t tensors; /* written */
    size_t bytes;    /* of all files */
} conv_report;

typedef struct {
    qt_layout layout;         /* of the layers' linears and an untied head */
    const uint8_t *tokenizer; /* tokenizer.blob to add where the source has none, or NULL */
    size_t tokenizer_bytes;
} conv_llmq_opts;

/* Errors: LQ_EIO, LQ_ENOMEM, LQ_EINTR, LQ_EFORMAT (a layout that cannot be turned back). */
lq_status conv_to_llmq(conv_report *r, const src_source *src, const char *path,
                       const conv_llmq_opts *o, pool *p, const lq_job *job, lq_err *err);

typedef struct {
    bool keep_dtype;   /* floats keep their type, quantized weights take the checkpoint's */
    lq_dtype dtype;    /* otherwise: of every float tensor */
    size_t shard_size; /* bytes of tensors per file at most (a larger tensor has its own); 0: one
                          file */
} conv_hf_opts;

/* `dir` may exist when it is empty or holds an earlier result (a config.json and no folders), which
 * is then replaced. Errors: LQ_EIO, LQ_ENOMEM, LQ_EINTR; LQ_EUSAGE - dir holds something else. */
lq_status conv_to_hf(conv_report *r, const src_source *src, const char *dir, const conv_hf_opts *o,
                     const lq_job *job, lq_err *err);

#endif
