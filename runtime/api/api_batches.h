/* runtime/api/api_batches.h - batches of requests: a file's lines are answered one after the other by the
 * server's own routes, into a file of answers and a file of errors (api_files.h).
 *
 * A thread runs them, the oldest first; requests under way take at most half of the sequences that may
 * run, so that others are answered meanwhile. Answers have the order of their requests. */
#ifndef LLMQ_RUNTIME_API_API_BATCHES_H
#define LLMQ_RUNTIME_API_API_BATCHES_H

#include "runtime/api/api_files.h"

typedef struct api api;
typedef struct api_batches api_batches;

/* With those of the files' folder, if they have one: what had not ended goes on. LQ_ENOMEM: or no thread;
 * LQ_EIO. */
lq_status api_batches_open(api_batches **s, api *a, lq_err *err);
/* After the engine's end. NULL allowed. */
void api_batches_close(api_batches *s);
/* No request of a batch begins after it. NULL allowed. */
void api_batches_stop(api_batches *s);

#endif
