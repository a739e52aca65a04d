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

typedef struct {
    size_t at, n[2]; /* bytes of the head, the response and its items */
    api_store_log log;
} head;

static const char marks[] = { [API_LOG_OPEN] = '+', [API_LOG_ENDED] = '.' };

static void write_head(char text[HEAD], const head *h)
{
    int n = snprintf(text, HEAD, "%zu %zu", h->n[0], h->n[1]);
    if (h->log != API_NO_LOG) n += snprintf(text + n, HEAD - (size_t)n, " %c", marks[h->log]);
    snprintf(text + n, HEAD - (size_t)n, "\n");
}

/* text ends in a NUL. */
static bool read_head(head *h, const char *text)
{
    char *end;
    *h = (head){ 0 };
    h->n[0] = strtoul(text, &end, 10);
    if (*end != ' ') return false;
    h->n[1] = strtoul(end, &end, 10);
    if (*end == ' ') {
        h->log = end[1] == marks[API_LOG_OPEN]    ? API_LOG_OPEN
                 : end[1] == marks[API_LOG_ENDED] ? API_LOG_ENDED
                                                  : API_NO_LOG;
        end += h->log == API_NO_LOG ? 0 : 2;
    }
    h->at = (size_t)(end + 1 - text);
    return *end == '\n' && h->n[0] <= API_STORE_BYTES && h->n[1] <= API_STORE_BYTES;
}

static size_t log_at(const head *h) { return h->at + h->n[0] + h->n[1]; }

/* events NULL: none. */
static bool write_one(int dir, const char *id, const lq_buf *response, const lq_buf *items,
                      const lq_buf *events, api_store_log log)
{
    static atomic_uint number;
    char name[64], text[HEAD];
    if (!is_id(id)) return false;
    snprintf(name, sizeof name, "%s%ld-%u", fresh, (long)getpid(), atomic_fetch_add(&number, 1));
    write_head(text, &(head){ .n = { response->n, items->n }, .log = log });
    const int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool ok = !lq_write_all(fd, text, strlen(text), name, NULL) &&
              !lq_write_all(fd, response->p, response->n, name, NULL) &&
              !lq_write_all(fd, items->p, items->n, name, NULL) &&
              (!events || !lq_write_all(fd, events->p, events->n, name, NULL));
    ok = close(fd) == 0 && ok && renameat(dir, name, dir, id) == 0;
    if (!ok) (void)unlinkat(dir, name, 0);
    return ok;
}

void api_store_dir_put(int dir, const char *id, const lq_buf *response, const lq_buf *items,
                       const lq_buf *events, int64_t n, size_t bytes)
{
    if (write_one(dir, id, response, items, events, events ? API_LOG_OPEN : API_NO_LOG))
        trim(dir, n, bytes);
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

static bool get(int dir, const char *id, lq_buf *response, lq_buf *items, lq_buf *events,
                api_store_log *log)
{
    lq_buf b = { 0 };
    head h = { 0 };
    const int fd = is_id(id) ? openat(dir, id, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    bool ok = fd >= 0 && read_all(fd, &b);
    const size_t n = b.n;
    lq_buf_add(&b, "", 1);
    ok = ok && !b.oom && read_head(&h, b.p) &&
         (h.log == API_NO_LOG ? log_at(&h) == n : log_at(&h) <= n);
    if (ok && response) lq_buf_add(response, b.p + h.at, h.n[0]);
    if (ok && items) lq_buf_add(items, b.p + h.at + h.n[0], h.n[1]);
    if (ok && events) lq_buf_add(events, b.p + log_at(&h), n - log_at(&h));
    if (log) *log = h.log;
    lq_buf_free(&b);
    return ok && !(response && response->oom) && !(items && items->oom) && !(events && events->oom);
}

bool api_store_dir_get(int dir, const char *id, lq_buf *response, lq_buf *items)
{
    return get(dir, id, response, items, NULL, NULL);
}

/* ---- its log ---- */

/* The file of one with its head; -1: there is none. */
static int open_log(int dir, const char *id, int how, head *h)
{
    char text[HEAD + 1] = "";
    const int fd = is_id(id) ? openat(dir, id, how | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0 || (pread(fd, text, HEAD, 0) > 0 && read_head(h, text))) return fd;
    close(fd);
    return -1;
}

bool api_store_dir_add(int dir, const char *id, const char *p, size_t n)
{
    const int held = lock(dir);
    head h;
    struct stat st;
    const int fd = held < 0 ? -1 : open_log(dir, id, O_RDWR | O_APPEND, &h);
    bool ok = fd >= 0 && h.log == API_LOG_OPEN && fstat(fd, &st) == 0 &&
              (size_t)st.st_size + n <= API_STORE_BYTES;
    if (ok && lq_write_all(fd, p, n, id, NULL)) {
        ok = false;
        (void)!ftruncate(fd, st.st_size);
    }
    if (fd >= 0) close(fd);
    if (held >= 0) close(held);
    return ok;
}

bool api_store_dir_events(int dir, const char *id, size_t from, size_t most, lq_buf *out,
                          api_store_log *log)
{
    head h;
    const int fd = open_log(dir, id, O_RDONLY, &h);
    struct stat st;
    bool ok = fd >= 0 && fstat(fd, &st) == 0;
    const size_t at = ok ? log_at(&h) + from : 0, end = ok ? (size_t)st.st_size : 0;
    size_t n = ok && h.log != API_NO_LOG && at < end ? end - at : 0;
    n = n < most ? n : most;
    ok =
        ok && lq_buf_room(out, n) && (!n || pread(fd, out->p + out->n, n, (off_t)at) == (ssize_t)n);
    if (ok) {
        out->n += n;
        *log = h.log;
    }
    if (fd >= 0) close(fd);
    return ok;
}

/* ---- its end ---- */

bool api_store_dir_swap(int dir, const char *id, const lq_buf *was, const lq_buf *response,
                        const lq_buf *items)
{
    const int held = lock(dir);
    lq_buf now = { 0 }, its = { 0 }, events = { 0 };
    api_store_log log = API_NO_LOG;
    bool ok = held >= 0 && get(dir, id, &now, &its, &events, &log) && now.n == was->n &&
              memcmp(now.p, was->p, now.n) == 0;
    if (!items) items = &its;
    /* Without its log, where there is no room for both. */
    const bool logs =
        log != API_NO_LOG && response->n + items->n + events.n <= (size_t)API_STORE_BYTES;
    ok = ok && write_one(dir, id, response, items, logs ? &events : NULL,
                         logs ? API_LOG_ENDED : API_NO_LOG);
    lq_buf_free(&now);
    lq_buf_free(&its);
    lq_buf_free(&events);
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
