/* quantize/layer/lock.c - a lock file that is deleted while others may be waiting for it. */
#include "quantize/layer/lock.h"

#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4200, TRIES = 100 };

/* Is the file that was opened still the one with this name? Its last owner may have deleted it. */
static bool still_there(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

lq_status qz_lock(int *fd, const char *dir, bool shared, lq_err *err)
{
    char path[PATH];
    lq_status s = lq_path_join(path, sizeof path, dir, QZ_LOCK_NAME, err);
    *fd = -1;
    for (int i = 0; i < TRIES && !s; i++) {
        if (mkdir(dir, 0777) != 0 && errno != EEXIST)
            return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0 && errno == ENOENT) continue; /* the folder went in between */
        if (*fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
        if (flock(*fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) {
            if (still_there(*fd, path)) return LQ_OK;
        } else if (errno == EWOULDBLOCK) {
            s = lq_fail(err, LQ_EBUSY, "%s: another llmq quantize is writing this output", dir);
        } else if (errno != EINTR) {
            close(*fd); /* no locks here: go on without */
            *fd = -1;
            return LQ_OK;
        }
        close(*fd);
        *fd = -1;
    }
    return s ? s : lq_fail(err, LQ_EIO, "%s: comes and goes", path);
}

void qz_unlock(int fd, const char *dir, bool remove)
{
    char path[PATH];
    if (remove && !lq_path_join(path, sizeof path, dir, QZ_LOCK_NAME, NULL)) {
        unlink(path);
        rmdir(dir);
    }
    if (fd >= 0) close(fd);
}
