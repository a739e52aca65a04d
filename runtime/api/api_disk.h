/* runtime/api/api_disk.h - a folder that keeps files and batches of clients, so that a restart finds them
 * again (--file-store-dir).
 *
 *     file-ID            a file's bytes
 *     file-ID.json       what is known of it; a file without is no file, and goes
 *     batch_ID.json      a batch
 *     batch_ID.*.part    answers of a batch that runs, a line each
 *
 * A file appears whole or not at all (base/out_file.h); .part files grow. One server at a time, by a lock
 * on the folder. Other names are left alone. Any thread. */
#ifndef LLMQ_RUNTIME_API_API_DISK_H
#define LLMQ_RUNTIME_API_API_DISK_H

#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"

typedef struct api_disk api_disk;

/* Makes the folder, not those above it. LQ_EBUSY: another server has it; LQ_EIO, LQ_EUSAGE: it is a
 * file; LQ_ENOMEM. */
lq_status api_disk_open(api_disk **d, const char *dir, lq_err *err);
void api_disk_close(api_disk *d); /* NULL allowed */

lq_status api_disk_put(const api_disk *d, const char *name, const void *data, size_t n,
                       lq_err *err);
/* NAME.json of what w holds, which is freed. */
lq_status api_disk_put_json(const api_disk *d, const char *name, jw *w, lq_err *err);
lq_status api_disk_map(const api_disk *d, lq_map *m, const char *name, lq_err *err);
/* The next two leave it at that where they fail: who opens the folder again sees what is there. */
void api_disk_remove(const api_disk *d, const char *name, const char *ending);
bool api_disk_rename(const api_disk *d, const char *from, const char *to);
/* To append to; -1: errno. */
int api_disk_append(const api_disk *d, const char *name);
/* Each NAME.json whose name begins so, to `take`; those that cannot be read are passed over. LQ_EIO,
 * LQ_ENOMEM. */
lq_status api_disk_each(const api_disk *d, const char *prefix,
                        lq_status (*take)(void *user, const char *name, const cJSON *j), void *user,
                        lq_err *err);
/* Removes the file-* that have no JSON. */
void api_disk_tidy(const api_disk *d);

#endif
