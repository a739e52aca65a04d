/* base/out_file.c - output that appears whole or not at all. */
#include "base/out_file.h"

#include "base/os.h"
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- output ----
 * Where the file system can, the bytes go to a file without a name, which gets the temporary name
 * only to be renamed: a process that is killed leaves nothing behind, or in that moment a file that
 * nobody holds locked, which the next commit removes. */
enum {
    OUT_BUF = 1 << 20,
    TEMP_TAIL = 6,        /* the XXXXXX */
    ON_ITS_WAY = 32 << 20 /* written to the system before it is asked to begin with the disk */
};

struct lq_out {
    int fd;
    size_t size, fill; /* bytes so far, of which `fill` still lie in buf */
    size_t begun;      /* of which the disk has been asked to take these */
    char *path, *temp;
    bool named;    /* temp is there */
    bool nameless; /* it began without a name, and is locked */
    uint8_t *buf;
};

static void out_free(lq_out *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->named) unlink(o->temp);
    free(o->path);
    free(o->temp);
    free(o->buf);
    free(o);
}

/* The folder of a path, malloc'd. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

static int open_nameless(const char *path, mode_t mode)
{
    char *dir = folder_of(path);
    int fd = dir && os_can_link() ? os_open_nameless(dir, O_WRONLY, mode) : -1;
    free(dir);
    return fd;
}

static void open_temp(lq_out *o, mode_t mode)
{
    if (asprintf(&o->temp, "%s.tmp-XXXXXX", o->path) < 0) {
        o->temp = NULL;
        errno = ENOMEM;
        return;
    }
    o->fd = open_nameless(o->path, mode);
    o->nameless = o->fd >= 0 && flock(o->fd, LOCK_EX | LOCK_NB) == 0;
    if (o->fd >= 0) return;
    o->fd = mkostemp(o->temp, O_CLOEXEC);
    o->named = o->fd >= 0;
    mode_t mask = umask(0);
    umask(mask);
    if (o->named && fchmod(o->fd, mode & ~mask) != 0) { /* keep 0600: not worth failing for */
    }
}

/* Give a file without a name its temporary one. */
static bool link_temp(lq_out *o)
{
    char *end = o->temp + strlen(o->temp) - TEMP_TAIL;
    for (unsigned i = 0; !o->named && i < 1000; i++) {
        snprintf(end, TEMP_TAIL + 1, "%06x", ((unsigned)getpid() * 1000 + i) & 0xffffff);
        o->named = os_link_nameless(o->fd, o->temp);
        if (!o->named && errno != EEXIST) break;
    }
    return o->named;
}

static lq_status check_target(const char *path, lq_err *err)
{
    const char *slash = strrchr(path, '/');
    if (lq_is_dir(path) || (slash && !slash[1]))
        return lq_fail(err, LQ_EUSAGE, "%s: expected a file's name, found a folder's", path);
    return lq_make_parents(path, err);
}

static lq_status open_out(lq_out **out, const char *path, mode_t mode, lq_err *err)
{
    *out = NULL;
    lq_out *o = calloc(1, sizeof *o);
    if (!o) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    o->fd = -1;
    lq_status s = lq_out_target(&o->path, path, err);
    if (!s) s = check_target(o->path, err);
    if (!s && !(o->buf = malloc(OUT_BUF))) s = lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    if (!s) {
        open_temp(o, mode);
        if (o->fd < 0) s = lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
    }
    if (s)
        out_free(o);
    else
        *out = o;
    return s;
}

lq_status lq_out_open(lq_out **out, const char *path, lq_err *err)
{
    return open_out(out, path, 0666, err);
}

lq_status lq_write_all(int fd, const void *data, size_t n, const char *path, lq_err *err)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0)
            return lq_fail(err, LQ_EIO, "%s: write: %s", path,
                           w < 0 ? strerror(errno) : "no progress");
        p += w;
        n -= (size_t)w;
    }
    return LQ_OK;
}

static lq_status flush(lq_out *o, lq_err *err)
{
    lq_status s = lq_write_all(o->fd, o->buf, o->fill, o->path, err);
    if (!s) o->fill = 0;
    return s;
}

/* The disk works while the rest is made, and the sync at the end waits for little. Errors show
 * there. */
static void begin_sync(lq_out *o)
{
    const size_t written = o->size - o->fill;
    if (written - o->begun < ON_ITS_WAY) return;
    os_begin_sync(o->fd, o->begun, written - o->begun);
    o->begun = written;
}

lq_status lq_out_write(lq_out *o, const void *data, size_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    if (o->fill + n > OUT_BUF) s = flush(o, err);
    if (s) return s;
    begin_sync(o);
    if (n >= OUT_BUF) {
        s = lq_write_all(o->fd, data, n, o->path, err);
    } else if (n) {
        memcpy(o->buf + o->fill, data, n);
        o->fill += n;
    }
    if (!s) o->size += n;
    return s;
}

lq_status lq_out_pad(lq_out *o, size_t align, lq_err *err)
{
    static const uint8_t zeros[4096];
    size_t n = lq_round_up(o->size, align) - o->size;
    lq_status s = LQ_OK;
    for (size_t k; n && !s; n -= k) {
        k = n < sizeof zeros ? n : sizeof zeros;
        s = lq_out_write(o, zeros, k, err);
    }
    return s;
}

lq_status lq_out_pwrite(lq_out *o, const void *data, size_t n, size_t off, lq_err *err)
{
    lq_status s = flush(o, err);
    const uint8_t *p = data;
    while (n && !s) {
        ssize_t w = pwrite(o->fd, p, n, (off_t)off);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return lq_fail(err, LQ_EIO, "%s: write: %s", o->path, strerror(errno));
        p += w;
        off += (size_t)w;
        n -= (size_t)w;
    }
    return s;
}

size_t lq_out_size(const lq_out *o) { return o->size; }

/* Files with a temporary name of this output whose process is gone: it would hold them locked. */
static void remove_stale(const lq_out *o)
{
    char *dir = folder_of(o->temp);
    const char *slash = strrchr(o->temp, '/'), *base = slash ? slash + 1 : o->temp;
    const size_t n = strlen(base) - TEMP_TAIL;
    DIR *d = dir && o->nameless ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, base, n) != 0 || strlen(e->d_name) != n + TEMP_TAIL) continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(d), e->d_name, 0);
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
    free(dir);
}

void lq_sync_name(const char *path)
{
    char *dir = folder_of(path);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems refuse it; the file itself is already safe */
        close(fd);
    }
    free(dir);
}

lq_status lq_out_commit(lq_out *o, lq_err *err)
{
    lq_status s = flush(o, err);
    if (!s) {
        if (fsync(o->fd) != 0 || !(o->named || link_temp(o))) {
            s = lq_fail(err, LQ_EIO, "%s: %s", o->path, strerror(errno));
        } else if (rename(o->temp, o->path) != 0) {
            s = lq_fail(err, LQ_EIO, "%s: rename: %s", o->path, strerror(errno));
        } else {
            o->named = false;
            lq_sync_name(o->path);
            remove_stale(o);
        }
    }
    out_free(o);
    return s;
}

void lq_out_abort(lq_out *o)
{
    if (o) out_free(o);
}

static lq_status write_whole(const char *path, const void *data, size_t n, mode_t mode, lq_err *err)
{
    lq_out *o;
    lq_status s = open_out(&o, path, mode, err);
    if (s) return s;
    s = lq_out_write(o, data, n, err);
    if (s) {
        lq_out_abort(o);
        return s;
    }
    return lq_out_commit(o, err);
}

lq_status lq_write_file(const char *path, const void *data, size_t n, lq_err *err)
{
    return write_whole(path, data, n, 0666, err);
}

lq_status lq_write_private(const char *path, const void *data, size_t n, lq_err *err)
{
    return write_whole(path, data, n, 0600, err);
}
