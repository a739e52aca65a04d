/* base/file.h - input files: mapped, or read whole into memory. */
#ifndef LLMQ_BASE_FILE_H
#define LLMQ_BASE_FILE_H

#include "base/base.h"

/* A file mapped for reading, privately. */
typedef struct {
    const uint8_t *data; /* NULL when closed; never after opening, not even of an empty file */
    size_t size;
} lq_map;
/* Errors: LQ_ENOENT, LQ_EIO; LQ_EFORMAT - a folder, a pipe, a device. */
lq_status lq_map_open(lq_map *m, const char *path, lq_err *err);
void lq_map_close(lq_map *m);

/* A small file into the heap, NUL-terminated; free() it. Errors: as above; LQ_EFORMAT - more than
 * max_bytes; LQ_ENOMEM. */
lq_status lq_read_file(char **data, size_t *size, const char *path, size_t max_bytes, lq_err *err);

/* How a pointer begins that git-lfs keeps in a file's place. */
#define LQ_LFS_POINTER "version https://git-lfs.github.com/spec/v1\n"
/* LQ_EFORMAT, and what: a download left something else in a file's place. LQ_OK: nothing known. */
lq_status lq_refuse_stand_in(const void *data, size_t n, lq_err *err);

#endif
