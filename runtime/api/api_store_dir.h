/* runtime/api/api_store_dir.h - responses that are kept (api_store.h) in a folder, which several servers share and a
 * later one finds.
 *
 *     resp_ID     "BYTES BYTES\n", the response, its items; with a log "BYTES BYTES +\n" while it is open, then
 *                 "BYTES BYTES .\n", and the events behind the items
 *     .new-*      one that is being written: it gets its name when it is whole
 *     .lock       locked by who swaps or removes one, or adds to it
 *
 * Other names are left alone. Nothing is synced: a file that is cut off counts as missing, and whoever writes one
 * removes those beyond the bounds. Any thread, and any process. */
#ifndef LLMQ_RUNTIME_API_API_STORE_DIR_H
#define LLMQ_RUNTIME_API_API_STORE_DIR_H

#include "runtime/api/api_store.h"

/* *fd: of the folder, to be closed. Errors: lq_private_folder's. */
lq_status api_store_dir_open(int *fd, const char *dir, lq_err *err);
/* Then at most n are left, of so many bytes together. A disk that is full keeps it not. */
void api_store_dir_put(int fd, const char *id, const lq_buf *response, const lq_buf *items,
                       const lq_buf *events, int64_t n, size_t bytes);
/* As api_store_add and the others. */
bool api_store_dir_add(int fd, const char *id, const char *p, size_t n);
bool api_store_dir_events(int fd, const char *id, size_t from, size_t most, lq_buf *out,
                          api_store_log *log);
bool api_store_dir_swap(int fd, const char *id, const lq_buf *was, const lq_buf *response,
                        const lq_buf *items);
bool api_store_dir_get(int fd, const char *id, lq_buf *response, lq_buf *items);
bool api_store_dir_remove(int fd, const char *id);
/* Each one's items, the latest first, while it gives NULL; returns what it gives. */
cJSON *api_store_dir_each(int fd, cJSON *(*find)(const lq_buf *items, const char *id),
                          const char *id);

#endif
