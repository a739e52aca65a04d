/* tools/quantize_to/quantize_to.h - `llmq quantize ... --to FORMAT`: the result in a format that other engines run.
 *
 * The job writes a .llmq file beside OUT (OUT.unconverted.llmq), which a killed run goes on with; it is converted when it is
 * whole, and removed when OUT is. Bytes are those of `llmq quantize` and `llmq convert`. */
#ifndef LLMQ_TOOLS_QUANTIZE_TO_QUANTIZE_TO_H
#define LLMQ_TOOLS_QUANTIZE_TO_QUANTIZE_TO_H

#include "quantize/job/job.h"
#include "tools/cli/opt.h"

typedef struct {
    const char
        *format;     /* "llmq": OUT is the file itself; "gguf", or a layout of convert/convert.h */
    const char *mix; /* quantize/layer/mix.h, or NULL */
    const char *scheme;     /* of all linears, or NULL */
    const src_source *like; /* OUT is this GGUF file with better codes (refine.h); or NULL */
    char made[4200];        /* where the job writes */
} quantize_to;

/* The method that a format holds, or NULL. */
const char *quantize_to_method(const char *to);
/* "compressed-tensors:nvfp4", or
 * "gguf:Q4_K_M" (in a .llmq file too, where out ends so), "awq"; NULL: by out's ending, llmq or gguf. out NULL: --dry-run. LQ_EUSAGE. */
lq_status quantize_to_read(quantize_to *t, const char *to, const char *out, lq_err *err);
/* Are the weights GGUF's blocks, whatever the file? */
bool quantize_to_blocks(const quantize_to *t);
/* May the result be written there (tools/cli/outputs.h)? src was opened from `given`. LQ_EUSAGE. */
lq_status quantize_to_check(const quantize_to *t, const char *out, const src_source *src,
                            const char *given, lq_err *err);
/* Would the format hold what the options make of src, as far as schemes and shapes tell? Before any work. With
 * --bpw: which candidates, which o->bpw_without then says, and several of them in one model?
 * LQ_EUNSUPPORTED, LQ_ESHAPE: it would not; errors of qz_plan_make. */
lq_status quantize_to_fits(const quantize_to *t, const src_source *src, qz_opts *o, lq_err *err);
/* t->made to out; r: bytes and bits of the result. Errors: those of conv_to_gguf, conv_to_hf. */
lq_status quantize_to_write(const quantize_to *t, const char *out, qz_result *r, const cmd_ctx *c,
                            pool *p, lq_err *err);

#endif
