/* quantize/tune/self_text.h - what tuning learns from: text that the model writes itself (calib/self_text.h), and
 * behind it that of calibration.
 *
 * Writing takes long, so what was written lies in a file until the whole run is over. */
#ifndef LLMQ_QUANTIZE_TUNE_SELF_TEXT_H
#define LLMQ_QUANTIZE_TUNE_SELF_TEXT_H

#include "calib/samples.h"
#include "formats/source/source.h"
#include "quantize/tune/tune.h"

typedef struct {
    tune_text text;
    lq_hash hash; /* of the own windows' ids */
    int32_t *ids; /* owned */
} own_text;

/* n windows of src's own as `seed` has them, from `file` where an earlier run left them, else drawn
 * and left there; then those of `text`. Errors: those of cal_self_write and of writing the file. */
lq_status own_text_make(own_text *o, int64_t n, const cal_samples *text, src_source *src,
                        uint64_t seed, const char *file, pool *p, const lq_job *job, lq_err *err);
void own_text_free(own_text *o);

#endif
