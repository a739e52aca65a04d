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
    const lq_job *job;
    double before, total; /* of all files */
};

/* What an earlier run left of the file counts, as far as it goes. LQ_EIO, LQ_EINTR. */
lq_status pub_part_open(pub_part *p, lq_err *err);
/* Is it whole, and the file that was asked for? LQ_EIO: its size; LQ_ECHECK: its digest. */
lq_status pub_part_check(const pub_part *p, char digest[SHA_HEX], lq_err *err);
/* On the disk, name and all. LQ_EIO. */
lq_status pub_part_sync(pub_part *p, lq_err *err);

#endif
