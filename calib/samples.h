/* calib/samples.h - windows of tokens that calibration runs through the model.
 *
 * The text is tokenized once without special tokens and cut into whole windows; `n` of them are
 * chosen by the seed, and kept in the order of the text. */
#ifndef LLMQ_CALIB_SAMPLES_H
#define LLMQ_CALIB_SAMPLES_H

#include "runtime/tok.h"

typedef struct {
    int32_t *ids; /* [n][len], owned */
    int64_t n, len;
    int64_t available; /* whole windows in the text */
    lq_hash hash;      /* of n, len and the ids */
} cal_samples;

/* Fewer windows in the text than n: all of them (compare `available`). vocab: ids at or above it
 * are refused, since the model has no embedding for them. Errors: LQ_EVALUE - the text does not
 * fill one window, or an id is out of range; LQ_ENOMEM. */
lq_status cal_samples_make(cal_samples *s, const tok_tokenizer *t, const char *text, size_t bytes,
                           int64_t n, int64_t len, uint64_t seed, int64_t vocab, lq_err *err);
/* The same from ids, which are copied. */
lq_status cal_samples_from_ids(cal_samples *s, const int32_t *ids, int64_t n_ids, int64_t n,
                               int64_t len, uint64_t seed, int64_t vocab, lq_err *err);
void cal_samples_free(cal_samples *s);

#endif
