/* publish/retry.h - when a request to a remote side is made again, and how often.
 *
 * Failures in a row without progress of a file are counted, and progress is a thousandth of it,
 * at least 1 MiB, or its end. So a remote side that breaks off whatever it sends is asked some
 * thousand times at most, and not for the same bytes again and again. */
#ifndef LLMQ_PUBLISH_RETRY_H
#define LLMQ_PUBLISH_RETRY_H

#include "publish/http_client.h"
#include "publish/target.h"

enum { RETRY_TRIES = 5, RETRY_STEPS = 1000, RETRY_MIN_STEP = 1 << 20 };

typedef struct {
    const pub_opts *o;
    const char *base;        /* "https://registry:5000": for messages */
    int tries;               /* since the last progress */
    int anew;                /* how often this file began anew */
    uint64_t reached, bytes; /* of this file, at the last progress; all of it */
} retry_state;

/* Is what came back from a request (its status s) worth another try? Waits before it says yes; sets
 * *s to LQ_EINTR when the wait was interrupted. */
bool retry_again(retry_state *t, lq_status *s, const hc_answer *a, lq_err *err);
/* A file of `bytes` begins; `at` of them are there, which is progress or is not. */
void retry_file(retry_state *t, uint64_t bytes);
void retry_reached(retry_state *t, uint64_t at);
/* It begins anew. LQ_EIO: once too often. */
lq_status retry_anew(retry_state *t, lq_err *err);

#endif
