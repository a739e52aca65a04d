/* quantize/tune/checkpoint.h - files from which training that was interrupted goes on.
 *
 * A file is the XXH3-128 of what follows, then pieces of memory one after another. It is there whole or not at all. What
 * the pieces are, the caller says, in the same order each time.
 *
 *     OUT.resume/tuning.answers  the original's last hidden states of all windows (f32)
 *     OUT.resume/tuning.state    how far training is, and all that it changes */
#ifndef LLMQ_QUANTIZE_TUNE_CHECKPOINT_H
#define LLMQ_QUANTIZE_TUNE_CHECKPOINT_H

#include "base/base.h"

#define CHECKPOINT_ANSWERS "tuning.answers"
#define CHECKPOINT_STATE "tuning.state"

/* The next piece: x goes to the file, or comes from it. Errors: LQ_EIO. */
typedef struct checkpoint checkpoint;
lq_status checkpoint_piece(checkpoint *c, void *x, size_t bytes, lq_err *err);
bool checkpoint_loads(const checkpoint *c); /* pieces come from the file */
/* Calls checkpoint_piece for each. *fits, true before: false, when what came is not what this run has: no more is read. */
typedef lq_status checkpoint_pieces(void *user, checkpoint *c, bool *fits, lq_err *err);

/* Errors: LQ_EIO (the disk is full, ...), LQ_ENOMEM, those of `pieces`: the file that was there stays. */
lq_status checkpoint_save(const char *dir, const char *name, checkpoint_pieces *pieces, void *user,
                          lq_err *err);
/* *found false: there is no such file, it is damaged, or it does not fit. Errors: LQ_EIO, LQ_ENOMEM, those of `pieces`. */
lq_status checkpoint_load(bool *found, const char *dir, const char *name, checkpoint_pieces *pieces,
                          void *user, lq_err *err);

#endif
