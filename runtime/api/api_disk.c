/* runtime/api/api_disk.c - see api_disk.h. */
#include "runtime/api/api_disk.h"

#include "base/out_file.h"
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_NAME = 128, MAX_JSON = 1 << 20 };
static const char JSON[] = ".json";

struct api_disk {
    char *dir;
    int fd; /* of the folder; it holds the lock */
};

lq_status api_disk_open(api_disk **out, const char *dir, lq_err *err)
{
    *out = NULL;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    if (!lq_is_dir(dir)) return lq_fail(err, LQ_EUSAGE, "%s: expected a folder", dir);
    api_disk *d = calloc(1, sizeof *d);
    if (!d || !(d->dir = strdup(dir))) {
        free(d);
        return lq_fail(err, LQ_ENOMEM, "%s: out of memory", dir);
    }
    d->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    lq_status s = LQ_OK;
    if (d->fd < 0 || flock(d->fd, LOCK_EX | LOCK_NB) != 0)
        s = d->fd >= 0 && errno == EWOULDBLOCK
                ? lq_fail(err, LQ_EBUSY, "%s: another server keeps its files there", dir)
                : lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    if (s)
        api_disk_close(d);
    else
        *out = d;
    return s;
}

void api_disk_close(api_disk *d)
{
    if (!d) return;
    if (d->fd >= 0) close(d->fd);
    free(d->dir);
    free(d);
}

/* The path of NAME and an ending, malloc'd; NULL: out of memory. */
static char *path_of(const api_disk *d, const char *name, const char *ending)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s%s", d->dir, name, ending) < 0 ? NULL : path;
}

static lq_status put(const api_disk *d, const char *name, const char *ending, const void *data,
                     size_t n, lq_err *err)
{
    char *path = path_of(d, name, ending);
    lq_status s =
        path ? lq_write_private(path, data, n, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    free(path);
    return s;
}

lq_status api_disk_put(const api_disk *d, const char *name, const void *data, size_t n, lq_err *err)
{
    return put(d, name, "", data, n, err);
}

lq_status api_disk_put_json(const api_disk *d, const char *name, jw *w, lq_err *err)
{
    lq_buf_puts(&w->b, "\n");
    lq_status s = w->b.oom ? lq_fail(err, LQ_ENOMEM, "out of memory")
                           : put(d, name, JSON, w->b.p, w->b.n, err);
    jw_free(w);
    return s;
}

lq_status api_disk_map(const api_disk *d, lq_map *m, const char *name, lq_err *err)
{
    char *path = path_of(d, name, "");
    lq_status s = path ? lq_map_open(m, path, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    free(path);
    return s;
}

void api_disk_remove(const api_disk *d, const char *name, const char *ending)
{
    char *path = path_of(d, name, ending);
    if (path && unlink(path) == 0) lq_sync_name(path);
    free(path);
}

bool api_disk_rename(const api_disk *d, const char *from, const char *to)
{
    char *a = path_of(d, from, ""), *b = path_of(d, to, "");
    const bool ok = a && b && rename(a, b) == 0;
    if (ok) lq_sync_name(b);
    free(a);
    free(b);
    return ok;
}

int api_disk_append(const api_disk *d, const char *name)
{
    return openat(d->fd, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* NAME of NAME.json, if it begins so. */
static bool is_json_of(char name[MAX_NAME], const char *file, const char *prefix)
{
    const size_t n = strlen(file), k = sizeof JSON - 1;
    if (strncmp(file, prefix, strlen(prefix)) != 0 || n <= k || n >= MAX_NAME ||
        strcmp(file + n - k, JSON) != 0)
        return false;
    memcpy(name, file, n - k);
    name[n - k] = 0;
    return true;
}

static lq_status take_one(const api_disk *d, const char *file, const char *name,
                          lq_status (*take)(void *user, const char *name, const cJSON *j),
                          void *user)
{
    char *path = path_of(d, file, ""), *text = NULL;
    size_t n;
    cJSON *j = NULL;
    lq_status s = LQ_OK;
    if (!path) return LQ_ENOMEM;
    if (!lq_read_file(&text, &n, path, MAX_JSON, NULL) && !js_parse(&j, text, n, MAX_JSON, 0, NULL))
        s = take(user, name, j);
    cJSON_Delete(j);
    free(text);
    free(path);
    return s;
}

lq_status api_disk_each(const api_disk *d, const char *prefix,
                        lq_status (*take)(void *user, const char *name, const cJSON *j), void *user,
                        lq_err *err)
{
    char name[MAX_NAME];
    DIR *dir = opendir(d->dir);
    lq_status s = dir ? LQ_OK : lq_open_failed(err, d->dir);
    for (struct dirent *e; !s && (e = lq_next_entry(&s, dir, d->dir, err));)
        if (is_json_of(name, e->d_name, prefix) && take_one(d, e->d_name, name, take, user))
            s = lq_fail(err, LQ_ENOMEM, "%s: out of memory", d->dir);
    if (dir) closedir(dir);
    return s;
}

/* file- and the 32 digits of api_secret_id: what others put there stays. */
static bool is_file_id(const char *name)
{
    return strncmp(name, "file-", 5) == 0 && strlen(name) == 37 &&
           strspn(name + 5, "0123456789abcdef") == 32;
}

void api_disk_tidy(const api_disk *d)
{
    DIR *dir = opendir(d->dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!is_file_id(e->d_name)) continue;
        char *json = path_of(d, e->d_name, JSON);
        if (json && !lq_exists(json)) unlinkat(d->fd, e->d_name, 0);
        free(json);
    }
    if (dir) closedir(dir);
}
