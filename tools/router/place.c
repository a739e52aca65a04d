/* tools/router/place.c - see place.h. */
#include "tools/router/place.h"

#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char kept[] = "kept", lock[] = "lock", head[] = "llmq-";

/* All names in a folder that open at `dir` has under this name, then itself; of folders in it (depth) those in them. */
static void remove_folder(int dir, const char *name, int depth)
{
    const int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0) close(fd);
    for (struct dirent *e; d && (e = lq_next_entry(&(lq_status){ LQ_OK }, d, "", NULL)) != NULL;)
        if (unlinkat(fd, e->d_name, 0) != 0 && depth) remove_folder(fd, e->d_name, depth - 1);
    if (d) closedir(d);
    (void)unlinkat(dir, name, AT_REMOVEDIR);
}

void place_remove(const char *place) { remove_folder(AT_FDCWD, place, 1); }

/* Whether it is the place of a router that is dead; *fd: its lock, to be closed. */
static bool is_left(int tmp, const char *name, int *fd)
{
    char path[NAME_MAX + sizeof lock + 1];
    struct stat st;
    *fd = -1;
    if (strncmp(name, head, sizeof head - 1) != 0) return false;
    if (fstatat(tmp, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return false;
    snprintf(path, sizeof path, "%s/%s", name, lock);
    *fd = openat(tmp, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0;
}

static void remove_left(const char *place)
{
    char tmp[PATH_MAX];
    snprintf(tmp, sizeof tmp, "%.*s", (int)(strrchr(place, '/') - place), place);
    DIR *d = opendir(*tmp ? tmp : "/");
    for (struct dirent *e; d && (e = lq_next_entry(&(lq_status){ LQ_OK }, d, tmp, NULL)) != NULL;) {
        int fd;
        if (is_left(dirfd(d), e->d_name, &fd)) remove_folder(dirfd(d), e->d_name, 1);
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
}

lq_status place_make(char *out, size_t n, lq_err *err)
{
    char path[PATH_MAX], made[PATH_MAX];
    lq_status s = lq_temp_folder(out, n, err);
    if (s) return s;
    snprintf(path, sizeof path, "%s/%s", out, lock);
    snprintf(made, sizeof made, "%s/.%s", out, lock);
    const int fd = open(made, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); /* to the end */
    /* It has its name when it is locked: nobody takes it for a dead one's. */
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || rename(made, path) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
    remove_left(out);
    return LQ_OK;
}

lq_status place_kept(char *out, size_t n, const char *place, lq_err *err)
{
    const lq_status s = lq_path_join(out, n, place, kept, err);
    return s ? s : lq_private_folder(out, err);
}
