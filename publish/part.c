/* publish/part.c - a file that is fetched: see part.h. */
#include "publish/part.h"

#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t pub_part_at(const pub_part *p) { return p->at; }

static lq_status io(const pub_part *p, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s: %s", p->path, strerror(errno));
}

lq_status pub_part_restart(pub_part *p, lq_err *err)
{
    p->at = 0;
    sha_init(&p->sha);
    return ftruncate(p->fd, 0) ? io(p, err) : LQ_OK;
}

lq_status pub_part_write(pub_part *p, const void *data, size_t n, lq_err *err)
{
    const uint8_t *from = data;
    if (n > p->f->bytes - p->at)
        return lq_fail(err, LQ_EFORMAT, "%s: expected %llu bytes, found more", p->f->name,
                       (unsigned long long)p->f->bytes);
    while (n) {
        const ssize_t k = pwrite(p->fd, from, n, (off_t)p->at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return io(p, err);
        sha_add(&p->sha, from, (size_t)k);
        p->at += (uint64_t)k;
        from += k;
        n -= (size_t)k;
    }
    lq_report(p->job, p->f->name, p->before + (double)p->at, p->total);
    return lq_stopped(p->job) ? lq_fail(err, LQ_EINTR, "interrupted") : LQ_OK;
}

static lq_status rehash(void *user, const void *data, size_t n, lq_err *err)
{
    (void)err;
    pub_part *p = user;
    sha_add(&p->sha, data, n);
    p->at += n;
    return LQ_OK;
}

lq_status pub_part_open(pub_part *p, lq_err *err)
{
    struct stat st;
    p->fd = open(p->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (p->fd < 0 || fstat(p->fd, &st) != 0) return io(p, err);
    p->at = 0;
    sha_init(&p->sha);
    if ((uint64_t)st.st_size > p->f->bytes) return pub_part_restart(p, err);
    const pub_file left = { .path = p->path, .bytes = (uint64_t)st.st_size };
    return pub_read(&left, 0, rehash, p, p->job, err);
}

lq_status pub_part_check(const pub_part *p, char digest[SHA_HEX], lq_err *err)
{
    sha_state end = p->sha;
    sha_end(digest, &end);
    if (p->at != p->f->bytes)
        return lq_fail(err, LQ_EIO, "%s: expected %llu bytes, found %llu", p->f->name,
                       (unsigned long long)p->f->bytes, (unsigned long long)p->at);
    if (p->f->sha256[0] && strcmp(digest, p->f->sha256) != 0)
        return lq_fail(err, LQ_ECHECK, "%s: expected SHA-256 %s, found %s", p->f->name,
                       p->f->sha256, digest);
    return LQ_OK;
}

lq_status pub_part_sync(pub_part *p, lq_err *err)
{
    if (fsync(p->fd) != 0) return io(p, err);
    lq_sync_name(p->path);
    return LQ_OK;
}
