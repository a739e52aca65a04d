/* calib/spill.c - see spill.h. */
#include "calib/spill.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int unnamed_file(const char *dir)
{
    int fd = os_open_nameless(dir, O_RDWR, 0600);
    if (fd >= 0) return fd;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/state.tmp-XXXXXX", dir);
    if (n < 0 || (size_t)n >= sizeof path) return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

lq_status spill_open(int *fd, const char *dir, lq_err *err)
{
    *fd = unnamed_file(dir);
    if (*fd >= 0) return LQ_OK;
    return lq_fail(err, LQ_EIO, "%s: cannot make a file for states: %s", dir, strerror(errno));
}

/* The file has no name, but the system knows its folder. */
static lq_status failed(int fd, ssize_t k, lq_err *err)
{
    const char *why = k < 0 ? strerror(errno) : "file too short";
    char at[400];
    os_path_of(fd, at, sizeof at);
    char *slash = strrchr(at, '/');
    *(slash ? slash : at) = 0;
    return lq_fail(err, LQ_EIO, "%s%sstates on disk: %s", at, slash ? ": " : "", why);
}

lq_status spill_put(int fd, const void *x, size_t bytes, size_t at, lq_err *err)
{
    const uint8_t *from = x;
    for (size_t done = 0; done < bytes;) {
        const ssize_t k = pwrite(fd, from + done, bytes - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return failed(fd, k, err);
        done += (size_t)k;
    }
    return LQ_OK;
}

lq_status spill_get(int fd, void *x, size_t bytes, size_t at, lq_err *err)
{
    uint8_t *to = x;
    for (size_t done = 0; done < bytes;) {
        const ssize_t k = pread(fd, to + done, bytes - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return failed(fd, k, err);
        done += (size_t)k;
    }
    return LQ_OK;
}
