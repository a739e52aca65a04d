/* calib/spill.h - what is on disk while it is not in use: hidden states, states of training.
 *
 * The file has no name, so its space is freed when it is closed and when the process is killed. */
#ifndef LLMQ_CALIB_SPILL_H
#define LLMQ_CALIB_SPILL_H

#include "base/base.h"

/* Empty, in `dir`; the caller closes it. Errors: LQ_EIO. */
lq_status spill_open(int *fd, const char *dir, lq_err *err);
/* `bytes` that are `at` bytes from its beginning: from x to there, or from there to x.
 * Errors: LQ_EIO (the disk is full, the file too short, ...). */
lq_status spill_put(int fd, const void *x, size_t bytes, size_t at, lq_err *err);
lq_status spill_get(int fd, void *x, size_t bytes, size_t at, lq_err *err);

#endif
