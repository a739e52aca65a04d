/* runtime/api/api_store_dir.c - see api_store_dir.h. */
#include "runtime/api/api_store_dir.h"

#include "base/os.h"
#include "base/out_file.h"
#include "base/path.h"
#include "runtime/limits.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ID_BYTES = 100, HEAD = 64, STALE_SECONDS = 60 };
static const char fresh[] = ".new-";

lq_status api_store_dir_open(int *fd, const char *dir, lq_err *err)
{
    lq_status s = lq_private_folder(dir, err);
    *fd = s ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return !s && *fd < 0 ? lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno)) : s;
}

/* Ids come from clients: no other name of a file is one. */
static bool is_id(const char *id)
{
    size_t n = 0;
    if (strncmp(id, "resp_", 5) != 0) return false;
    for (n = 5; isalnum((unsigned char)id[n]) || id[n] == '-'; n++)
        ;
    return n > 5 && n <= ID_BYTES && !id[n];
}

/* ---- what there is ---- */

typedef struct {
    char name[ID_BYTES + 1];
    size_t bytes;
    int64_t time; /* nanoseconds */
} found;

static int latest_first(const void *a, const void *b)
{
    const found *p = a, *q = b;
    const int c = (p->time < q->time) - (p->time > q->time);
    return c ? c : strcmp(q->name, p->name);
}

/* What a server left that was killed while it wrote. */
static void tidy(int fd, const char *name, time_t written)
{
    if (strncmp(name, fresh, sizeof fresh - 1) == 0 && time(NULL) - written > STALE_SECONDS)
        (void)unlinkat(fd, name, 0);
}

/* malloc'd, the latest first; NULL: none, or no memory. */
static found *list(int dir, size_t *n)
{
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    found *all = NULL;
    size_t room = 0;
    struct stat st;
    *n = 0;
    if (!d && fd >= 0) close(fd);
    for (struct dirent *e; d && (e = lq_next_entry(&(lq_status){ LQ_OK }, d, "", NULL)) != NULL;) {
        if (fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        tidy(dir, e->d_name, st.st_mtime);
        if (!is_id(e->d_name)) continue;
        if (*n == room) {
            room = room ? 2 * room : 64;
            found *more = realloc(all, room * sizeof *all);
            if (!more) break;
            all = more;
        }
        const struct timespec t = os_mtime(&st);
        all[*n] = (found){ .bytes = (size_t)st.st_size,
                           .time = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec };
        memcpy(all[*n].name, e->d_name, strlen(e->d_name) + 1);
        ++*n;
    }
    if (d) closedir(d);
    if (*n) qsort(all, *n, sizeof *all, latest_first);
    return all;
}

/* Until the descriptor is closed; a file system without locks goes without. -1: no file. */
static int lock(int dir)
{
    const int fd = openat(dir, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
    return fd;
}

static void trim(int dir, int64_t most, size_t bytes)
{
    size_t n, sum = 0;
    found *all = list(dir, &n);
    for (size_t i = 0; i < n; i++) {
        sum += all[i].bytes;
        if ((int64_t)i >= most || sum > bytes) (void)unlinkat(dir, all[i].name, 0);
    }
    free(all);
}

/* ---- one of them ---- */

static bool write_one(int dir, const char *id, const lq_buf *response, const lq_buf *items)
{
    static atomic_uint number;
    char name[64], head[HEAD];
    if (!is_id(id)) return false;
    snprintf(name, sizeof name, "%s%ld-%u", fresh, (long)getpid(), atomic_fetch_add(&number, 1));
    snprintf(head, sizeof head, "%zu %zu\n", response->n, items->n);
    const int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool ok = !lq_write_all(fd, head, strlen(head), name, NULL) &&
              !lq_write_all(fd, response->p, response->n, name, NULL) &&
              !lq_write_all(fd, items->p, items->n, name, NULL);
    ok = close(fd) == 0 && ok && renameat(dir, name, dir, id) == 0;
    if (!ok) (void)unlinkat(dir, name, 0);
    return ok;
}

void api_store_dir_put(int dir, const char *id, const lq_buf *response, const lq_buf *items,
                       int64_t n, size_t bytes)
{
    if (write_one(dir, id, response, items)) trim(dir, n, bytes);
}

/* All of an open file; closes it. */
static bool read_all(int fd, lq_buf *b)
{
    struct stat st;
    char piece[1 << 14];
    ssize_t n = -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= API_STORE_BYTES + HEAD)
        while ((n = read(fd, piece, sizeof piece)) > 0 && b->n <= API_STORE_BYTES + HEAD)
            lq_buf_add(b, piece, (size_t)n);
    close(fd);
    return n == 0 && !b->oom;
}

bool api_store_dir_get(int dir, const char *id, lq_buf *response, lq_buf *items)
{
    lq_buf b = { 0 };
    char *end = NULL;
    size_t n[2] = { 0, 0 };
    const int fd = is_id(id) ? openat(dir, id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    bool ok = fd >= 0 && read_all(fd, &b);
    lq_buf_add(&b, "", 1);
    ok = ok && !b.oom;
    if (ok) n[0] = strtoul(b.p, &end, 10);
    ok = ok && *end == ' ';
    if (ok) n[1] = strtoul(end, &end, 10);
    ok = ok && *end == '\n';
    const size_t head = ok ? (size_t)(end + 1 - b.p) : 0;
    ok = ok && n[0] <= API_STORE_BYTES && n[1] <= API_STORE_BYTES && head + n[0] + n[1] + 1 == b.n;
    if (ok && response) lq_buf_add(response, b.p + head, n[0]);
    if (ok && items) lq_buf_add(items, b.p + head + n[0], n[1]);
    lq_buf_free(&b);
    return ok && !(response && response->oom) && !(items && items->oom);
}

bool api_store_dir_swap(int dir, const char *id, const lq_buf *was, const lq_buf *response,
                        const lq_buf *items)
{
    const int held = lock(dir);
    lq_buf now = { 0 }, its = { 0 };
    const bool ok = held >= 0 && api_store_dir_get(dir, id, &now, &its) && now.n == was->n &&
                    memcmp(now.p, was->p, now.n) == 0 &&
                    write_one(dir, id, response, items ? items : &its);
    lq_buf_free(&now);
    lq_buf_free(&its);
    if (held >= 0) close(held);
    return ok;
}

bool api_store_dir_remove(int dir, const char *id)
{
    const int held = lock(dir);
    const bool ok = is_id(id) && unlinkat(dir, id, 0) == 0;
    if (held >= 0) close(held);
    return ok;
}

cJSON *api_store_dir_each(int dir, cJSON *(*find)(const lq_buf *items, const char *id),
                          const char *id)
{
    size_t n;
    cJSON *it = NULL;
    found *all = list(dir, &n);
    for (size_t i = 0; i < n && !it; i++) {
        lq_buf items = { 0 };
        if (api_store_dir_get(dir, all[i].name, NULL, &items)) it = find(&items, id);
        lq_buf_free(&items);
    }
    free(all);
    return it;
}
