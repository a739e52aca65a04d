/* base/out_file.h - output files that appear whole or not at all.
 *
 * The bytes go to a file without a name in the same folder (where the file system has no such
 * files: to a temporary one); committing is fsync, link, rename, fsync of the folder. */
#ifndef LLMQ_BASE_OUT_FILE_H
#define LLMQ_BASE_OUT_FILE_H

#include "base/base.h"

typedef struct lq_out lq_out;
lq_status lq_out_open(lq_out **o, const char *path, lq_err *err);
lq_status lq_out_write(lq_out *o, const void *data, size_t n, lq_err *err);
lq_status lq_out_pad(lq_out *o, size_t align, lq_err *err); /* zeros up to a multiple */
/* Replaces earlier bytes. */
lq_status lq_out_pwrite(lq_out *o, const void *data, size_t n, size_t off, lq_err *err);
size_t lq_out_size(const lq_out *o);             /* bytes written so far */
lq_status lq_out_commit(lq_out *o, lq_err *err); /* frees o, whatever happens */
void lq_out_abort(lq_out *o);                    /* removes the temporary file; NULL allowed */

/* A whole file: open, write, commit. */
lq_status lq_write_file(const char *path, const void *data, size_t n, lq_err *err);
/* The same, for its owner's eyes alone. */
lq_status lq_write_private(const char *path, const void *data, size_t n, lq_err *err);
/* All n bytes to a file that is open; `path` is for the error. */
lq_status lq_write_all(int fd, const void *data, size_t n, const char *path, lq_err *err);

/* Makes a rename or a removal of this name survive a power cut: fsync of its folder. lq_out_commit
 * does it itself. */
void lq_sync_name(const char *path);

#endif
