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

static void part_begin(pub_part *p)
{
    p->at = 0;
    sha_init(&p->sha);
    sha1_git_init(&p->sha1, p->f->bytes);
}

static void part_add(pub_part *p, const void *data, size_t n)
{
    sha_add(&p->sha, data, n);
    if (p->f->git_sha1[0]) sha1_update(&p->sha1, n, data);
    p->at += n;
}

lq_status pub_part_restart(pub_part *p, lq_err *err)
{
    part_begin(p);
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
        part_add(p, from, (size_t)k);
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
    part_add(p, data, n);
    return LQ_OK;
}

lq_status pub_part_open(pub_part *p, lq_err *err)
{
    struct stat st;
    p->fd = open(p->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (p->fd < 0 || fstat(p->fd, &st) != 0) return io(p, err);
    part_begin(p);
    if ((uint64_t)st.st_size > p->f->bytes) return pub_part_restart(p, err);
    const pub_file left = { .path = p->path, .bytes = (uint64_t)st.st_size };
    return pub_read(&left, 0, rehash, p, p->job, err);
}

static lq_status check_one(const pub_part *p, const char *kind, const char *want, const char *found,
                           lq_err *err)
{
    if (!*want || strcmp(want, found) == 0) return LQ_OK;
    return lq_fail(err, LQ_ECHECK, "%s: expected %s %s, found %s", p->f->name, kind, want, found);
}

/* Is it whole, and the file that was asked for? LQ_EIO: its size; LQ_ECHECK: its digest. */
static lq_status part_check(const pub_part *p, char digest[SHA_HEX], lq_err *err)
{
    char git[SHA1_HEX];
    sha_state end = p->sha;
    struct sha1_ctx end1 = p->sha1;
    sha_end(digest, &end);
    sha1_end(git, &end1);
    if (p->at != p->f->bytes)
        return lq_fail(err, LQ_EIO, "%s: expected %llu bytes, found %llu", p->f->name,
                       (unsigned long long)p->f->bytes, (unsigned long long)p->at);
    lq_status s = check_one(p, "SHA-256", p->f->sha256, digest, err);
    return s ? s : check_one(p, "git's SHA-1", p->f->git_sha1, git, err);
}

static lq_status part_sync(pub_part *p, lq_err *err)
{
    if (fsync(p->fd) != 0) return io(p, err);
    lq_sync_name(p->path);
    return LQ_OK;
}

lq_status pub_part_fetch(pub_part *p, pub_remote *r, char digest[SHA_HEX], lq_err *err)
{
    const bool resumed = p->at > 0;
    const bool unknown = p->at == p->f->bytes && !p->f->sha256[0] && !p->f->git_sha1[0];
    lq_status s = resumed && unknown ? pub_part_restart(p, err) : LQ_OK;
    if (!s && p->at < p->f->bytes) s = r->target->get(r, p->f, p, err);
    if (!s) s = part_check(p, digest, err);
    if (s == LQ_ECHECK && resumed) {
        s = pub_part_restart(p, err);
        if (!s) s = r->target->get(r, p->f, p, err);
        if (!s) s = part_check(p, digest, err);
    }
    if (s == LQ_ECHECK) unlink(p->path);
    return s ? s : part_sync(p, err);
}
