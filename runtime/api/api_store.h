/* runtime/api/api_store.h - responses that are kept for later requests, in memory or in a folder (api_store_dir.h):
 * the latest n of them and at most API_STORE_BYTES; the oldest goes first. Any thread. */
#ifndef LLMQ_RUNTIME_API_API_STORE_H
#define LLMQ_RUNTIME_API_API_STORE_H

#include "base/buf.h"
#include "base/json.h"

typedef struct api_store api_store;

/* dir NULL: in memory. LQ_ENOMEM, LQ_EUSAGE, LQ_EIO. */
lq_status api_store_open(api_store **s, int64_t n, const char *dir, lq_err *err);
void api_store_close(api_store *s); /* NULL allowed */
/* Copies, in the place of what has this id. Without memory, or too large, it is not kept. events: it has a log, open,
 * which begins with this; NULL: it has none. */
void api_store_put(api_store *s, const char *id, const lq_buf *response, const lq_buf *items,
                   const lq_buf *events);
/* To an open log, all or nothing. False: there is none of this id (any more), or it could not be kept. s may be NULL. */
bool api_store_add(api_store *s, const char *id, const char *p, size_t n);
/* At most `most` bytes of the log from byte `from` on, added to out. False: there is none of this id, or no memory.
 * s may be NULL. */
typedef enum { API_NO_LOG, API_LOG_OPEN, API_LOG_ENDED } api_store_log;
bool api_store_events(api_store *s, const char *id, size_t from, size_t most, lq_buf *out,
                      api_store_log *log);
/* In one step: where the response of this id is `was`, it becomes this one, and so its items (NULL: they stay); its log
 * ends. False: it is another by now, or gone, or it could not be kept. s may be NULL. */
bool api_store_swap(api_store *s, const char *id, const lq_buf *was, const lq_buf *response,
                    const lq_buf *items);
/* What was put, to be free'd; NULL for an argument: not wanted. False: there is none of this id, or
 * no memory. s may be NULL. */
bool api_store_get(api_store *s, const char *id, lq_buf *response, lq_buf *items);
/* The item of this id in any of the kept talks, to be cJSON_Delete'd. NULL: there is none, or no
 * memory. s may be NULL. */
cJSON *api_store_item(api_store *s, const char *id);
bool api_store_remove(api_store *s, const char *id);

#endif
