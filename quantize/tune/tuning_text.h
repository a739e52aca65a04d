/* quantize/tune/tuning_text.h - the text that tuning trains on: text that the model writes itself
 * (calib/self_text.h), then that of calibration.
 *
 * Writing takes long, so the text is kept in a file until the whole run is over. */
#ifndef LLMQ_QUANTIZE_TUNE_TUNING_TEXT_H
#define LLMQ_QUANTIZE_TUNE_TUNING_TEXT_H

#include "base/comm.h"
#include "base/hash.h"
#include "calib/samples.h"
#include "formats/source/source.h"
#include "quantize/tune/tune.h"

typedef struct {
    tune_text text;
    lq_hash hash; /* of the own windows' ids */
    int32_t *ids; /* owned */
} tuning_text;

/* n windows of src's own as `seed` has them, from `file` where an earlier run left them, else drawn
 * and left there; then those of `text`. Of several ranks each draws a share, and all have the same from
 * then on. Errors: those of cal_self_write, the first of any rank for all; of writing the file, of comm.h. */
lq_status tuning_text_make(tuning_text *o, int64_t n, const cal_samples *text, src_source *src,
                           uint64_t seed, const char *file, comm *ranks, pool *p, const lq_job *job,
                           lq_err *err);
void tuning_text_free(tuning_text *o);

#endif
