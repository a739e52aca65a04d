/* quantize/job/check.h - what a quantization costs, measured on text that calibration did not see.
 *
 *     kl_mean = mean over positions of KL(source || result) of the next token, in nats
 *
 * and the perplexity of both, and how often both choose the same token. Both models run layer by
 * layer over the same windows, and each layer is read once: memory is one layer, the windows'
 * hidden states twice (on disk with `spill`) and the logits of some rows. Activations are exact and
 * sums go in the order of the windows, so the figures depend neither on threads nor on memory. They
 * are those of `llmq eval --ref` on the same windows. */
#ifndef LLMQ_QUANTIZE_JOB_CHECK_H
#define LLMQ_QUANTIZE_JOB_CHECK_H

#include "quantize/layer/state.h"
#include "quantize/tune/tune.h"

typedef struct {
    int64_t windows, tokens; /* 0: not made */
    double kl_mean, top1_agree, perplexity, ref_perplexity;
} qz_check;

enum {
    QZ_CHECK_WINDOWS = 8,
    QZ_CHECK_LOGITS = 8 << 20 /* of each model at once */
};

/* Up to `most` windows of `all` that are not among `used`, evenly spaced over those; out->n = 0:
 * there are none. Free out. Errors: LQ_ENOMEM. */
lq_status qz_check_windows(cal_samples *out, const cal_samples *all, const cal_samples *used,
                           int64_t most, lq_err *err);

/* The result. */
typedef struct {
    const qz_plan *plan;
    const qz_state *state;    /* every layer is finished */
    const tune_result *tuned; /* its tensors replace the state's; or NULL */
    src_source *other;        /* a whole model instead of all this; or NULL */
    dev *on;                  /* products and attention of layers are made there; NULL: here */
    comm *ranks;              /* each goes over its share of the windows; NULL: one process */
} qz_made;

/* Errors: LQ_EVALUE (logits that are not finite), LQ_EINTR, LQ_EIO (the disk), LQ_ENOMEM. */
lq_status qz_check_run(qz_check *c, src_source *src, const qz_made *made,
                       const cal_samples *windows, bool spill, pool *p, const lq_job *job,
                       lq_err *err);

/* As an object "check" of o, and back; a check that was not made adds nothing. */
bool qz_check_write(cJSON *o, const qz_check *c);
void qz_check_read(qz_check *c, const cJSON *o);

#endif
