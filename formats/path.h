/* formats/path.h - names of files: why one cannot be opened, where an output goes. */
#ifndef LLMQ_FORMATS_PATH_H
#define LLMQ_FORMATS_PATH_H

#include "formats/base.h"

/* After a failed open of an input, from errno. LQ_ENOENT; LQ_EFORMAT: no right to it, or a name
 * that leads nowhere, so the input is wrong; LQ_EIO: the machine failed. */
lq_status lq_open_failed(lq_err *err, const char *path);
/* Make the missing folders above a new file or folder of this name. LQ_EIO names the one that
 * cannot be, LQ_EUSAGE a file that is in its place. lq_out_open does it itself. */
lq_status lq_make_parents(const char *path, lq_err *err);
/* What an output of this name replaces or makes, malloc'd: of links what the last one names, which
 * need not be there. So a link stays, and what it names is replaced. A device or pipe is itself.
 * LQ_EUSAGE: "", "-", links in a circle. lq_out_open does it itself. */
lq_status lq_out_target(char **target, const char *path, lq_err *err);

#endif
