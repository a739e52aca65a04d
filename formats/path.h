/* formats/path.h - the folders that an output lies in. */
#ifndef LLMQ_FORMATS_PATH_H
#define LLMQ_FORMATS_PATH_H

#include "formats/base.h"

/* Make the missing folders above a new file or folder of this name. LQ_EIO names the one that
 * cannot be. lq_out_open does it itself. */
lq_status lq_make_parents(const char *path, lq_err *err);

#endif
