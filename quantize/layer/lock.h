/* quantize/layer/lock.h - one run at a time on one output, or shares of one.
 *
 * The lock is the kernel's (flock) on OUT.resume/state.lock: it ends with the process, however that
 * ends. The folder's other files may be complete or not. */
#ifndef LLMQ_QUANTIZE_LAYER_LOCK_H
#define LLMQ_QUANTIZE_LAYER_LOCK_H

#include "base/base.h"

#define QZ_LOCK_NAME "state.lock"

/* Makes the folder if need be and locks it; shared: with others that do so too. *fd: to be given to qz_unlock; -1 where the file system
 * knows no locks. Errors: LQ_EBUSY - another run holds it; LQ_EIO. */
lq_status qz_lock(int *fd, const char *dir, bool shared, lq_err *err);
/* With `remove` the folder goes too, if it holds nothing else. */
void qz_unlock(int fd, const char *dir, bool remove);

#endif
