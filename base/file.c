/* base/file.c - files that are read: mapped, or whole into memory. */
#include "base/file.h"

#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static lq_status open_regular(int *fd, struct stat *st, const char *path, lq_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (*fd < 0) return lq_open_failed(err, path);
    lq_status s = LQ_OK;
    if (fstat(*fd, st) != 0)
        s = lq_open_failed(err, path);
    else if (!S_ISREG(st->st_mode))
        s = lq_fail(err, LQ_EFORMAT, "%s: expected a regular file", path);
    if (s) {
        close(*fd);
        *fd = -1;
    }
    return s;
}

lq_status lq_map_open(lq_map *m, const char *path, lq_err *err)
{
    static const uint8_t nothing[] = { 0 }; /* an empty file's bytes */
    memset(m, 0, sizeof *m);
    int fd;
    struct stat st;
    lq_status s = open_regular(&fd, &st, path, err);
    if (s) return s;
    const size_t n = (size_t)st.st_size;
    void *p = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (p == MAP_FAILED)
        s = lq_fail(err, LQ_EIO, "%s: mmap: %s", path, strerror(errno));
    else
        *m = (lq_map){ .data = n ? p : nothing, .size = n };
    close(fd);
    return s;
}

void lq_map_close(lq_map *m)
{
    if (m->size) {
        union {
            const uint8_t *c;
            void *v;
        } p = { m->data };
        munmap(p.v, m->size);
    }
    memset(m, 0, sizeof *m);
}

lq_status lq_read_file(char **data, size_t *size, const char *path, size_t max_bytes, lq_err *err)
{
    *data = NULL;
    *size = 0;
    int fd;
    struct stat st;
    lq_status s = open_regular(&fd, &st, path, err);
    if (s) return s;
    size_t n = (size_t)st.st_size, got = 0;
    char *buf = NULL;
    if (n > max_bytes) {
        s = lq_fail(err, LQ_EFORMAT, "%s: expected at most %zu bytes, found %zu", path, max_bytes,
                    n);
        goto done;
    }
    buf = malloc(n + 1);
    if (!buf) {
        s = lq_fail(err, LQ_ENOMEM, "%s: no memory for %zu bytes", path, n);
        goto done;
    }
    while (got < n) {
        ssize_t r = read(fd, buf + got, n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            s = lq_fail(err, LQ_EIO, "%s: read: %s", path, r < 0 ? strerror(errno) : "file shrank");
            goto done;
        }
        got += (size_t)r;
    }
    buf[n] = 0;
    *data = buf;
    *size = n;
    buf = NULL;
done:
    free(buf);
    close(fd);
    return s;
}

lq_status lq_refuse_stand_in(const void *data, size_t n, lq_err *err)
{
    static const char *const pages[] = { "<!DOCTYPE", "<!doctype", "<html" };
    const size_t k = strlen(LQ_LFS_POINTER);
    if (n >= k && memcmp(data, LQ_LFS_POINTER, k) == 0)
        return lq_fail(
            err, LQ_EFORMAT,
            "expected the file itself, found a pointer of git-lfs: `git lfs pull` in its "
            "folder brings the file");
    for (size_t i = 0; i < LQ_COUNT(pages); i++)
        if (n >= strlen(pages[i]) && memcmp(data, pages[i], strlen(pages[i])) == 0)
            return lq_fail(err, LQ_EFORMAT, "expected the file itself, found a page of HTML");
    return LQ_OK;
}
