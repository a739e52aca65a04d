/* tools/quantize_to/refine.h - `llmq quantize X.gguf --refine --ref SRC`: a GGUF file that somebody made, with better
 * codes.
 *
 * Every matrix keeps its type, and the file its size and metadata; codes and scales are chosen again from the
 * unquantized weights, by the method that is asked for. The job makes a model with X's schemes (qz_opts.like), which
 * is converted to GGUF; OUT is X with the tensors of that file in the place of its own. What no method makes is
 * copied from X. */
#ifndef LLMQ_TOOLS_QUANTIZE_TO_REFINE_H
#define LLMQ_TOOLS_QUANTIZE_TO_REFINE_H

#include "formats/source/source.h"
#include "quantize/methods/method.h"
#include "tools/cli/opt.h"

typedef struct {
    bool on;
    const char *ref;
} refine_opts;

/* --refine without --ref and the inverse, and options that say what X says. LQ_EUSAGE. */
lq_status refine_check(const cmd_ctx *c, const refine_opts *o, lq_err *err);
/* X, into q->like and its hash; src_close it. Errors: LQ_EUSAGE (no GGUF file, or one in parts; nothing in it that
 * a method makes; --fold beside what stays), those of src_open. */
lq_status refine_open(qz_opts *q, const char *path, const cmd_ctx *c, lq_err *err);
/* Is src what q->like was made of: tensors, shapes, tokens, and about the same weights? Errors: LQ_EUSAGE says
 * what differs; those of src_matrix. */
lq_status refine_fits(const qz_opts *q, const src_source *src, lq_err *err);
/* out: `like` with the tensors of the GGUF file `made`. Errors: LQ_EIO, LQ_ENOMEM; LQ_EUNSUPPORTED: a tensor came
 * out in another type. */
lq_status refine_write(const char *out, const src_source *like, const char *made, lq_err *err);

#endif
