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
/* Copies, in the place of what has this id. Without memory, or too large, it is not kept. */
void api_store_put(api_store *s, const char *id, const lq_buf *response, const lq_buf *items);
/* In one step: where the response of this id is `was`, it becomes this one, and so its items (NULL: they stay). False:
 * it is another by now, or gone, or it could not be kept. s may be NULL. */
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
