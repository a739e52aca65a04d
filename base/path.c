/* base/path.c - names of files: see path.h. */
#include "base/path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* A name too long for any file system, wherever it stands: nothing is made for its sake. */
static lq_status check_names(const char *path, lq_err *err)
{
    for (const char *c = path; *c; c += strspn(c, "/")) {
        const size_t n = strcspn(c, "/");
        if (n > NAME_MAX)
            return lq_fail(err, LQ_EUSAGE,
                           "output: expected names of at most %d bytes, found %zu: %.40s...",
                           NAME_MAX, n, c);
        c += n;
    }
    return LQ_OK;
}

struct dirent *lq_next_entry(lq_status *s, DIR *d, const char *dir, lq_err *err)
{
    struct dirent *e;
    do {
        errno = 0; /* of the end and of an error the answer is the same */
        e = readdir(d);
    } while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
    if (!e && errno) *s = lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    return e;
}

lq_status lq_make_parents(const char *path, lq_err *err)
{
    lq_status s = check_names(path, err);
    char *copy = s ? NULL : strdup(path);
    if (!s && !copy) s = lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    for (char *c = copy; !s && *c; c++) {
        const bool at_end = c[strspn(c, "/")] == 0;
        if (*c != '/' || c == copy || at_end) continue;
        *c = 0;
        if (!lq_is_dir(copy) && mkdir(copy, 0777) != 0 && errno != EEXIST)
            s = lq_fail(err, LQ_EIO, "%s: no folder %s, and it cannot be made: %s", path, copy,
                        strerror(errno));
        else if (!lq_is_dir(copy))
            s = lq_fail(err, LQ_EUSAGE, "%s: expected a folder %s, found a file", path, copy);
        *c = '/';
    }
    free(copy);
    return s;
}

/* What the link at `path` names; NULL and errno EINVAL: it is none. */
static char *read_link(const char *path)
{
    char to[4200], *out = NULL;
    const ssize_t n = readlink(path, to, sizeof to - 1);
    const char *slash = strrchr(path, '/');
    if (n < 0) return NULL;
    to[n] = 0;
    if (to[0] == '/' || !slash) return strdup(to);
    return asprintf(&out, "%.*s%s", (int)(slash + 1 - path), path, to) < 0 ? NULL : out;
}

lq_status lq_out_target(char **target, const char *path, lq_err *err)
{
    enum { MAX_LINKS = 40 };
    *target = NULL;
    if (!*path) return lq_fail(err, LQ_EUSAGE, "output: expected a name, found \"\"");
    if (strcmp(path, "-") == 0)
        return lq_fail(err, LQ_EUSAGE,
                       "output: expected a name, found '-': results are not written to standard "
                       "output (./- is a file of that name)");
    if (path[0] == '~' && (!path[1] || path[1] == '/'))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a path, found a ~ that the shell has left (it begins no word "
                       "there): write \"$HOME\"%s, or ./%s for a folder of that name",
                       path, path + 1, path);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a regular file or nothing there, found a pipe, a device or "
                       "a socket",
                       path);
    char *at = strdup(path), *next = NULL;
    int links = 0;
    while (at && (next = read_link(at)) && links++ < MAX_LINKS) {
        free(at);
        at = next;
    }
    if (at && !next) return *target = at, LQ_OK;
    free(at);
    free(next);
    if (links <= MAX_LINKS) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    return lq_fail(err, LQ_EUSAGE, "%s: expected a name, found links in a circle", path);
}

/* The folder that `out` is or will be in, as its true name: of those above it the nearest that is
 * there. NULL: unknown. */
static char *folder_above(const char *out)
{
    char *at = NULL, *real = NULL;
    if (lq_out_target(&at, out, NULL)) return NULL;
    size_t n = strlen(at);
    while (n > 1 && at[n - 1] == '/')
        at[--n] = 0;
    while (!real) {
        char *slash = strrchr(at, '/');
        if (slash) slash[slash == at] = 0;
        real = realpath(slash ? at : ".", NULL);
        if (!slash || strcmp(at, "/") == 0) break;
    }
    free(at);
    return real;
}

bool lq_is_inside(const char *out, const char *dir)
{
    char *above = folder_above(out), *real = realpath(dir, NULL);
    const size_t n = real ? strlen(real) : 0;
    const bool yes = above && real && strncmp(above, real, n) == 0 &&
                     (!above[n] || above[n] == '/' || strcmp(real, "/") == 0);
    free(above);
    free(real);
    return yes;
}

bool lq_has_ending(const char *name, const char *ending)
{
    const size_t n = strlen(name), e = strlen(ending);
    return n > e && strcasecmp(name + n - e, ending) == 0;
}

lq_status lq_open_failed(lq_err *err, const char *path)
{
    const int why = errno;
    const bool denied = why == EACCES || why == EPERM || why == ENOTDIR || why == ELOOP ||
                        why == ENAMETOOLONG || why == EISDIR || why == ENXIO;
    return lq_fail(err,
                   why == ENOENT ? LQ_ENOENT
                   : denied      ? LQ_EFORMAT
                                 : LQ_EIO,
                   "%s: %s", path, strerror(why));
}

bool lq_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool lq_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool lq_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

lq_status lq_path_join(char *out, size_t n, const char *dir, const char *name, lq_err *err)
{
    size_t d = strlen(dir);
    const char *sep = d && dir[d - 1] == '/' ? "" : "/";
    int r = snprintf(out, n, "%s%s%s", dir, sep, name);
    if (r < 0 || (size_t)r >= n) return lq_fail(err, LQ_EVALUE, "%s/%s: path too long", dir, name);
    return LQ_OK;
}

const char *lq_temp_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

lq_status lq_temp_folder(char *out, size_t n, lq_err *err)
{
    const char *tmp = lq_temp_dir();
    if (lq_path_join(out, n, tmp, "llmq-XXXXXX", NULL))
        return lq_fail(err, LQ_EVALUE, "TMPDIR: expected at most %zu bytes, found %zu",
                       n - sizeof "/llmq-XXXXXX", strlen(tmp));
    if (mkdtemp(out)) return LQ_OK;
    return lq_fail(err, LQ_EIO, "%s: %s", out, strerror(errno));
}

lq_status lq_private_folder(const char *dir, lq_err *err)
{
    struct stat st;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    if (stat(dir, &st) != 0) return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return lq_fail(err, LQ_EUSAGE, "%s: expected a folder", dir);
    if (st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a folder of this user in which nobody else may write, found "
                       "mode %04o of user %lld",
                       dir, (unsigned)st.st_mode & 07777, (long long)st.st_uid);
    return LQ_OK;
}
