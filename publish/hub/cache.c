/* publish/hub/cache.c - see cache.h. */
#include "publish/hub/cache.h"

#include "base/file.h"
#include "base/out_file.h"
#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- names ---- */
lq_status hub_cache_init(hub_cache *c, const hub_env *env, const hub_name *name, lq_err *err)
{
    char org[HUB_REPO], folder[2 * HUB_REPO + 20];
    const char *slash = strchr(name->repo, '/');
    snprintf(org, sizeof org, "%.*s", slash ? (int)(slash - name->repo) : 0, name->repo);
    snprintf(folder, sizeof folder, "models--%s%s%s", org, slash ? "--" : "",
             slash ? slash + 1 : name->repo);
    const int a = snprintf(c->dir, sizeof c->dir, "%s/%s", env->cache, folder);
    const int b = snprintf(c->locks, sizeof c->locks, "%s/.locks/%s", env->cache, folder);
    return a > 0 && b > 0 && (size_t)a < sizeof c->dir && (size_t)b < sizeof c->locks
               ? LQ_OK
               : lq_fail(err, LQ_EUSAGE, "%.200s...: too long", env->cache);
}

bool hub_cache_name(char *out, size_t n, const char *path)
{
    static const char begin[] = "models--";
    const char *snapshots = strstr(path, "/snapshots/"), *at = snapshots;
    while (at && at > path && at[-1] != '/')
        at--;
    if (!at || strncmp(at, begin, sizeof begin - 1) != 0) return false;
    at += sizeof begin - 1;
    const char *two = strstr(at, "--");
    const bool org = two && two < snapshots;
    const int len = org ? snprintf(out, n, "%.*s/%.*s", (int)(two - at), at,
                                   (int)(snapshots - two) - 2, two + 2)
                        : snprintf(out, n, "%.*s", (int)(snapshots - at), at);
    return len > 0 && (size_t)len < n;
}

void hub_cache_path(char out[HUB_PATH], const hub_cache *c, const char *commit, const char *path)
{
    snprintf(out, HUB_PATH, "%s/snapshots/%s%s%s", c->dir, commit, *path ? "/" : "", path);
}

void hub_cache_blob(char out[HUB_PATH], const hub_cache *c, const char *etag)
{
    snprintf(out, HUB_PATH, "%s/blobs/%s", c->dir, etag);
}

bool hub_cache_has(const hub_cache *c, const char *commit, const char *path, uint64_t bytes)
{
    char file[HUB_PATH];
    struct stat st;
    hub_cache_path(file, c, commit, path);
    return stat(file, &st) == 0 && S_ISREG(st.st_mode) &&
           (bytes == UINT64_MAX || (uint64_t)st.st_size == bytes);
}

/* ---- refs, lists ---- */
bool hub_cache_commit(char commit[SHA1_HEX], const hub_cache *c, const char *revision)
{
    char path[HUB_PATH], *text = NULL;
    size_t n = 0;
    snprintf(commit, SHA1_HEX, "%s", revision);
    if (hub_is_commit(revision)) return true;
    snprintf(path, sizeof path, "%s/refs/%s", c->dir, revision);
    if (lq_read_file(&text, &n, path, 64, NULL)) return false;
    text[strcspn(text, "\r\n ")] = 0;
    const bool known = hub_is_commit(text);
    if (known) memcpy(commit, text, SHA1_HEX);
    free(text);
    return known;
}

lq_status hub_cache_set(const hub_cache *c, const char *revision, const char *commit, lq_err *err)
{
    char path[HUB_PATH], now[SHA1_HEX];
    if (hub_is_commit(revision)) return LQ_OK;
    if (hub_cache_commit(now, c, revision) && strcmp(now, commit) == 0) return LQ_OK;
    snprintf(path, sizeof path, "%s/refs/%s", c->dir, revision);
    return lq_write_file(path, commit, strlen(commit), err);
}

static void list_path(char out[HUB_PATH], const hub_cache *c, const char *commit)
{
    snprintf(out, HUB_PATH, "%s/trees/%s.json", c->dir, commit);
}

bool hub_cache_tree(hub_tree *t, const hub_cache *c, const char *commit)
{
    char path[HUB_PATH];
    list_path(path, c, commit);
    return lq_exists(path) && hub_tree_read(t, path, NULL) == LQ_OK;
}

void hub_cache_keep(const hub_tree *t, const hub_cache *c, const char *commit)
{
    char path[HUB_PATH];
    list_path(path, c, commit);
    if (!lq_exists(path)) (void)hub_tree_write(t, path, NULL);
}

/* Of snapshots/COMMIT/PREFIX and below, a few folders deep. */
static lq_status look(hub_tree *t, const hub_cache *c, const char *commit, const char *prefix,
                      int depth, lq_err *err)
{
    char dir[HUB_PATH], path[HUB_PICK + 260], full[HUB_PATH];
    struct stat st;
    hub_cache_path(dir, c, commit, prefix);
    DIR *d = opendir(dir);
    lq_status s = LQ_OK;
    for (struct dirent *e; d && !s && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "/" : "", e->d_name);
        if (e->d_name[0] == '.' || !hub_path_ok(path)) continue;
        hub_cache_path(full, c, commit, path);
        if (stat(full, &st) != 0) continue;
        if (S_ISDIR(st.st_mode) && depth) s = look(t, c, commit, path, depth - 1, err);
        if (!S_ISREG(st.st_mode)) continue;
        hub_entry *one = hub_tree_add(t, path);
        if (!one) s = lq_fail(err, LQ_ENOMEM, "out of memory");
        if (one) one->bytes = (uint64_t)st.st_size;
    }
    if (d) closedir(d);
    return s;
}

lq_status hub_cache_look(hub_tree *t, const hub_cache *c, const char *commit, lq_err *err)
{
    return look(t, c, commit, "", 2, err);
}

/* ---- blobs ---- */
lq_status hub_cache_lock(int *fd, const hub_cache *c, const char *etag, const lq_job *job,
                         void (*waiting)(void *user), void *user, lq_err *err)
{
    char path[HUB_PATH];
    snprintf(path, sizeof path, "%s/%s.lock", c->locks, etag);
    *fd = -1;
    lq_status s = lq_make_parents(path, err);
    if (s) return s;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
    for (bool said = false; flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
         said = true) {
        if (!said && waiting) waiting(user);
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
    }
    return LQ_OK; /* a file system without locks: both fetch, and one name wins */
}

lq_status hub_cache_link(const hub_cache *c, const char *commit, const char *path, const char *etag,
                         lq_err *err)
{
    char name[HUB_PATH], blob[HUB_PATH], to[HUB_PATH];
    size_t n = (size_t)snprintf(to, sizeof to, "../../");
    for (const char *p = path; (p = strchr(p, '/')); p++)
        n += (size_t)snprintf(to + n, sizeof to - n, "../");
    snprintf(to + n, sizeof to - n, "blobs/%s", etag);
    hub_cache_path(name, c, commit, path);
    hub_cache_blob(blob, c, etag);
    lq_status s = lq_make_parents(name, err);
    if (s) return s;
    if (unlink(name) != 0 && errno != ENOENT)
        return lq_fail(err, LQ_EIO, "%s: %s", name, strerror(errno));
    if (symlink(to, name) == 0 || errno == EEXIST) return LQ_OK;
    /* a file system without links: the file itself, as huggingface_hub does there */
    if ((errno == EPERM || errno == EOPNOTSUPP) && rename(blob, name) == 0) return LQ_OK;
    return lq_fail(err, LQ_EIO, "%s: %s", name, strerror(errno));
}
