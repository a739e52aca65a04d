/* publish/part.h - a file that is fetched: what of it is there, and its SHA-256 so far. Between
 * pull.c, which opens and checks it, and the targets, which write to it (publish/target.h). */
#ifndef LLMQ_PUBLISH_PART_H
#define LLMQ_PUBLISH_PART_H

#include "publish/target.h"

struct pub_part {
    const pub_file *f;
    char path[4200];
    int fd;
    uint64_t at;
    sha_state sha;
    struct sha1_ctx sha1; /* as git names it, where that is known */
    const lq_job *job;
    double before, total; /* of all files */
};

/* What an earlier run left of the file counts, as far as it goes. LQ_EIO, LQ_EINTR. */
lq_status pub_part_open(pub_part *p, lq_err *err);
/* What is missing of it from the remote side, checked, on the disk, name and all. A beginning that
 * turns out to be something else's is fetched anew, once. LQ_ECHECK: and it is gone. */
lq_status pub_part_fetch(pub_part *p, pub_remote *r, char digest[SHA_HEX], lq_err *err);

#endif
