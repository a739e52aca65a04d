/* calib/spill.h - hidden states that are on disk while nobody looks at them.
 *
 * A file without a name: the disk has its room back when it is closed, and after a kill. */
#ifndef LLMQ_CALIB_SPILL_H
#define LLMQ_CALIB_SPILL_H

#include "base/base.h"

/* Empty, in `dir`; the caller closes it. Errors: LQ_EIO. */
lq_status spill_open(int *fd, const char *dir, lq_err *err);
/* n floats that are `at` floats from its beginning: from x to there, or from there to x.
 * Errors: LQ_EIO (the disk is full, the file too short, ...). */
lq_status spill_put(int fd, const float *x, size_t n, size_t at, lq_err *err);
lq_status spill_get(int fd, float *x, size_t n, size_t at, lq_err *err);

#endif
