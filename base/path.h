/* base/path.h - names of files: what they name, why one cannot be opened, where an output goes. */
#ifndef LLMQ_BASE_PATH_H
#define LLMQ_BASE_PATH_H

#include "base/base.h"

#include <dirent.h>

bool lq_is_dir(const char *path);
bool lq_exists(const char *path);
bool lq_same_file(const char *a, const char *b); /* both exist and are one file or folder */
/* dir + "/" + name into out[n]; LQ_EVALUE when too long. */
lq_status lq_path_join(char *out, size_t n, const char *dir, const char *name, lq_err *err);

const char *lq_temp_dir(void); /* $TMPDIR, or /tmp */
/* A new folder of this process alone, $TMPDIR/llmq-XXXXXX (or in /tmp), which the caller removes.
 * LQ_EIO, LQ_EVALUE (too long). */
lq_status lq_temp_folder(char *out, size_t n, lq_err *err);

/* A folder of this user in which nobody else may write: made if it is missing, not those above it. LQ_EUSAGE: it is
 * another, or a file; LQ_EIO. */
lq_status lq_private_folder(const char *dir, lq_err *err);

/* After a failed open of an input, from errno. LQ_ENOENT; LQ_EFORMAT: no right to it, or a name
 * that leads nowhere, so the input is wrong; LQ_EIO: the machine failed. */
lq_status lq_open_failed(lq_err *err, const char *path);
/* The next entry of the folder `dir` but "." and ".."; NULL at its end, or with *s (else left)
 * where it cannot be read on. */
struct dirent *lq_next_entry(lq_status *s, DIR *d, const char *dir, lq_err *err);
/* Make the missing folders above a new file or folder of this name. LQ_EIO names the one that
 * cannot be, LQ_EUSAGE a file that is in its place. lq_out_open does it itself. */
lq_status lq_make_parents(const char *path, lq_err *err);
/* What an output of this name replaces or makes, malloc'd: of links what the last one names, which
 * need not be there. So a link stays, and what it names is replaced. LQ_EUSAGE: "", "-", "~/...", links
 * in a circle, what is neither a file nor a folder (a pipe, a device). lq_out_open does it itself. */
lq_status lq_out_target(char **target, const char *path, lq_err *err);
/* Is `out`, which need not be there, in the folder `dir` or in one below it? Through links. */
bool lq_is_inside(const char *out, const char *dir);
/* Does a name of at least one byte more end so, in any letters' case? */
bool lq_has_ending(const char *name, const char *ending);

#endif
