/* tools/model_free/model_free.h - `llmq quantize --model-free`: options, the run, what it prints
 * (convert/model_free/model_free.h). */
#ifndef LLMQ_TOOLS_MODEL_FREE_MODEL_FREE_H
#define LLMQ_TOOLS_MODEL_FREE_MODEL_FREE_H

#include "quantize/methods/method.h"
#include "tools/cli/opt.h"

typedef struct {
    bool on;
    const char *to; /* a row of `quantize`; NULL: compressed-tensors */
    opt_list includes;
    size_t shard_size;
} model_free_opts;

enum { MODEL_FREE_N = 3 };
extern const opt_row model_free_rows[MODEL_FREE_N];

/* LQ_EUSAGE: options that go only with --model-free, or not with it. */
lq_status model_free_check(const cmd_ctx *c, const model_free_opts *o, lq_err *err);

typedef struct {
    const char *out; /* the folder */
    bool dry_run, resume, restart;
} model_free_place;

/* Errors: those of src_open, mf_open and mf_write. */
lq_status model_free_run(const cmd_ctx *c, const model_free_opts *o, qz_opts *q,
                         const model_free_place *where, lq_err *err);

#endif
