/* publish/child.h - another program, without a shell between. */
#ifndef LLMQ_PUBLISH_CHILD_H
#define LLMQ_PUBLISH_CHILD_H

#include "publish/files.h"

enum { CHILD_ARGS = 32 };

typedef struct {
    const char *argv[CHILD_ARGS + 1]; /* argv[0] is looked up in PATH; ends with NULL */
    const char *const *more;          /* arguments after them, ends with NULL; NULL: none */
    const char *const *env;           /* "NAME=value" besides ours, ends with NULL */
    pub_sink *out;                    /* what it writes to stdout; NULL: it goes nowhere */
    void *user;
    int seconds; /* in which it must end; with `carried` carry 1 KiB for each; 0: no limit */
    uint64_t (*carried)(void *where); /* bytes that it has fetched so far; or NULL */
    void *where;
    const lq_job *job;
} child;

/* Run it to its end. LQ_ENOENT: no such program; LQ_EIO: it ended with another code than 0, and err
 * has its last words, or it was ended for want of progress; what `out` returns; LQ_EINTR: it was
 * ended because the job stops. *code (may be NULL): its exit code, -1 where it has none. */
lq_status child_run(const child *c, int *code, lq_err *err);

#endif
