/* tools/inflight/inflight.h - `--quantize SCHEME`: MODEL is quantized before the command runs it.
 *
 * A job of `llmq quantize` without calibration (quantize/job/job.h) writes a .llmq file, layer by layer,
 * and the command opens it in MODEL's place: bytes and answers are those of `llmq quantize`. The file is
 * FILE of --quantize-cache, or one in $TMPDIR that loses its name once it is open, so that nothing stays
 * whatever ends the process (its path is /proc/self/fd/N from then on). The job's threads have ended when
 * the command begins: `serve` gives up its rights as always. */
#ifndef LLMQ_TOOLS_INFLIGHT_INFLIGHT_H
#define LLMQ_TOOLS_INFLIGHT_INFLIGHT_H

#include "tools/cli/opt.h"

typedef struct {
    const char *scheme; /* --quantize: tools/inflight/words.h */
    const char *cache;  /* --quantize-cache */
} inflight_opts;

enum { INFLIGHT_N = 2 };
extern const opt_row inflight_rows[INFLIGHT_N];

/* Where --quantize was given: MODEL, the first argument or --model, becomes the path of the file, and
 * c->named says what it was. Errors: LQ_EUSAGE (a word, a cache without --quantize, a cache of another
 * source or recipe), LQ_EUNSUPPORTED (weights that are quantized already; no /proc), LQ_EINTR; those of
 * src_open and qz_run. */
lq_status inflight_make(cmd_ctx *c, void *opts, lq_err *err);

#endif
