/* publish/ranged.h - a file fetched over HTTP by ranges: from the bytes that are there on, again
 * where the connection ends, from its beginning where the remote side has no ranges. */
#ifndef LLMQ_PUBLISH_RANGED_H
#define LLMQ_PUBLISH_RANGED_H

#include "publish/retry.h"

/* How requests go to one remote side. */
typedef struct {
    void *conn;
    hc_client *http;
    retry_state *retry;
    lq_status (*call)(void *conn, const hc_request *r, hc_answer *a, lq_err *err);
    /* The error of an answer that is no file. */
    lq_status (*refused)(void *conn, const hc_answer *a, lq_err *err);
} ranged_side;

/* The file at `url`, which has `bytes`, into `part`. Errors: as `call` and `refused`; LQ_EIO;
 * LQ_EINTR; LQ_EFORMAT - more bytes than that. */
lq_status ranged_get(const ranged_side *side, const char *url, uint64_t bytes, pub_part *part,
                     lq_err *err);

#endif
