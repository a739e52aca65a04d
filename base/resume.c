/* base/resume.c - see resume.h. */
#include "base/resume.h"

#include "base/json.h"
#include "base/out_file.h"
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE RESUME_STATE
#define LOCK "state.lock"
#define PART "part-"

enum { PATH = 4200, TRIES = 100 };

/* ---- the lock: a file that is deleted while others may be waiting for it ---- */
/* Is the file that was opened still the one with this name? Its last owner may have deleted it. */
static bool still_there(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* make: the folder too, if need be; else LQ_ENOENT where it is not there. */
static lq_status lock(resume *r, bool shared, bool make, lq_err *err)
{
    char path[PATH];
    lq_status s = lq_path_join(path, sizeof path, r->dir, LOCK, err);
    r->lock = -1;
    for (int i = 0; i < TRIES && !s; i++) {
        if (make && mkdir(r->dir, 0777) != 0 && errno != EEXIST)
            return lq_fail(err, LQ_EIO, "%s: %s", r->dir, strerror(errno));
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 && errno == ENOENT && make) continue; /* the folder went in between */
        if (fd < 0 && errno == ENOENT) return lq_fail(err, LQ_ENOENT, "%s: is gone", r->dir);
        if (fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
        if (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) {
            r->lock = fd;
            if (still_there(fd, path)) return LQ_OK;
            r->lock = -1;
        } else if (errno == EWOULDBLOCK) {
            s = lq_fail(err, LQ_EBUSY, "%s: another %s is writing this output", r->dir,
                        r->kind->command);
        } else if (errno != EINTR) {
            close(fd); /* no locks here: go on without */
            return LQ_OK;
        }
        close(fd);
    }
    return s ? s : lq_fail(err, LQ_EIO, "%s: comes and goes", path);
}

static void unlock(resume *r, bool remove)
{
    char path[PATH];
    if (remove && !lq_path_join(path, sizeof path, r->dir, LOCK, NULL)) {
        unlink(path);
        rmdir(r->dir);
    }
    if (r->lock >= 0) close(r->lock);
}

/* ---- the folder ---- */
static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool is_ours(const resume *r, const char *name)
{
    bool any = begins(name, STATE) || begins(name, "state.tmp-") || begins(name, PART);
    for (size_t i = 0; i < LQ_COUNT(r->kind->others) && r->kind->others[i] && !any; i++)
        any = begins(name, r->kind->others[i]);
    return any;
}

/* Delete our files; others stay, and with them the folder. What says whose they are goes last: a kill in between, or a part that stays, leaves no parts without it, which the next
 * run would refuse. */
static void wipe(const resume *r)
{
    DIR *d = opendir(r->dir);
    struct dirent *e;
    lq_status s = LQ_OK;
    bool all = true;
    while (d && (e = lq_next_entry(&s, d, r->dir, NULL)))
        if (is_ours(r, e->d_name) && strcmp(e->d_name, STATE) != 0)
            all = unlinkat(dirfd(d), e->d_name, 0) == 0 && all;
    if (d && all && !s) unlinkat(dirfd(d), STATE, 0);
    if (d) closedir(d);
}

static bool has_parts(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    lq_status s = LQ_OK;
    bool any = !d && errno != ENOENT; /* what cannot be read may have some */
    while (d && !any && (e = lq_next_entry(&s, d, dir, NULL)))
        any = begins(e->d_name, PART) && !strstr(e->d_name, ".tmp-");
    if (d) closedir(d);
    return any || s;
}

/* ---- whose state it is ---- */
/* Where two trees of objects differ, as "recipe.bits: 4, now 3"; at most `cap` bytes. */
static void differences(char *out, size_t cap, const char *path, const cJSON *was, const cJSON *now)
{
    if (cJSON_Compare(was, now, true) || strlen(out) + 4 > cap) return;
    if (cJSON_IsObject(was) && cJSON_IsObject(now)) {
        char deeper[128];
        const cJSON *side[] = { was, now }, *c;
        for (int i = 0; i < 2; i++)
            cJSON_ArrayForEach(c, side[i])
            {
                const cJSON *other = js_get(side[1 - i], c->string);
                if (i == 1 && other) continue; /* seen from the other side */
                snprintf(deeper, sizeof deeper, "%s%s%.60s", path, *path ? "." : "", c->string);
                differences(out, cap, deeper, i ? NULL : c, i ? c : other);
            }
        return;
    }
    if (cJSON_IsArray(was) && cJSON_IsArray(now)) {
        char deeper[128];
        const cJSON *a = was->child, *b = now->child;
        for (int i = 0; a || b; i++, a = a ? a->next : NULL, b = b ? b->next : NULL) {
            snprintf(deeper, sizeof deeper, "%s[%d]", path, i);
            differences(out, cap, deeper, a, b);
        }
        return;
    }
    char a[64], b[64];
    const size_t n = strlen(out);
    snprintf(out + n, cap - n, "%s%s: %s, now %s", n ? "; " : "", path, js_describe(a, was),
             js_describe(b, now));
}

/* Are they equal but for member `aside`? */
static bool is_same(const cJSON *was, const cJSON *now, const char *aside)
{
    if (!aside || cJSON_Compare(js_get(was, aside), js_get(now, aside), true))
        return cJSON_Compare(was, now, true);
    cJSON *a = cJSON_Duplicate(was, true), *b = cJSON_Duplicate(now, true);
    cJSON_DeleteItemFromObjectCaseSensitive(a, aside);
    cJSON_DeleteItemFromObjectCaseSensitive(b, aside);
    const bool same = a && b && cJSON_Compare(a, b, true);
    cJSON_Delete(a);
    cJSON_Delete(b);
    return same;
}

/* *same: the folder holds the state of this very run. shared: another's counts without parts too, whose shares may be at
 * work on their first. */
static lq_status compare(const resume *r, bool *same, const char *file, const cJSON *what,
                         bool shared, lq_err *err)
{
    enum { MAX_STATE = 64 << 20 };
    cJSON *was = NULL;
    char text[320] = "";
    lq_status s = LQ_OK;
    *same = !js_parse_file(&was, file, MAX_STATE, 0, NULL) && is_same(was, what, r->kind->aside);
    if (!*same && (shared || has_parts(r->dir))) {
        differences(text, sizeof text, "", was, what);
        s = lq_fail(err, LQ_EUSAGE, "%s: holds %s%s%s of another run (%s); repeat that run, or %s",
                    r->dir, shared ? "" : "finished ", r->kind->parts,
                    shared ? ", finished or at work," : "", was ? text : STATE " cannot be read",
                    shared ? "remove this folder" : r->kind->afresh);
    }
    cJSON_Delete(was);
    return s;
}

/* An empty folder of this run. */
static lq_status start(const resume *r, const char *file, const cJSON *what, lq_err *err)
{
    lq_buf text = { 0 };
    wipe(r);
    lq_status s = js_canonical(&text, what, err);
    if (!s) s = lq_write_file(file, text.p, text.n, err);
    free(text.p);
    return s;
}

/* What is written as `temp`, under its name, unless another share was sooner: that of the first stays. */
static lq_status name_first(const char *temp, const char *file, lq_err *err)
{
    if (link(temp, file) == 0 || errno == EEXIST) {
        unlink(temp);
        return LQ_OK;
    }
    /* the file system has no links */
    return rename(temp, file) == 0 ? LQ_OK : lq_fail(err, LQ_EIO, "%s: %s", file, strerror(errno));
}

/* The folder as this share, or one that began before it, started it. */
static lq_status start_shared(const char *dir, const char *file, const cJSON *what, lq_err *err)
{
    char temp[PATH];
    lq_buf text = { 0 };
    if (has_parts(dir) || lq_exists(file)) return LQ_OK;
    lq_status s = lq_path_join(temp, sizeof temp, dir, "state.tmp-XXXXXX", err);
    if (s) return s;
    const int fd = mkostemp(temp, O_CLOEXEC); /* a name of its own, on any machine */
    if (fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", temp, strerror(errno));
    close(fd);
    s = js_canonical(&text, what, err);
    if (!s) s = lq_write_file(temp, text.p, text.n, err);
    if (!s) s = name_first(temp, file, err);
    if (s) unlink(temp);
    lq_buf_free(&text);
    return s;
}

/* ---- a folder for a while ---- */
#define APART "llmq-rank-"

static bool is_own_folder(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
           st.st_uid == geteuid();
}

/* Folders of this user whose lock nobody holds: their processes were killed. */
static void sweep(const char *tmp, const resume_kind *kind)
{
    DIR *d = opendir(tmp);
    const struct dirent *e;
    lq_status s = LQ_OK;
    while (d && (e = lq_next_entry(&s, d, tmp, NULL))) {
        resume left = { .lock = -1, .kind = kind };
        if (!begins(e->d_name, APART) || !is_own_folder(dirfd(d), e->d_name) ||
            lq_path_join(left.dir, sizeof left.dir, tmp, e->d_name, NULL) ||
            lock(&left, false, false, NULL))
            continue;
        resume_close(&left, left.lock >= 0);
    }
    if (d) closedir(d);
}

lq_status resume_open_apart(resume *r, const resume_kind *kind, lq_err *err)
{
    lq_status s = LQ_OK;
    sweep(lq_temp_dir(), kind);
    for (int i = 0; i < TRIES; i++) {
        *r = (resume){ .lock = -1, .kind = kind };
        s = lq_path_join(r->dir, sizeof r->dir, lq_temp_dir(), APART "XXXXXX", err);
        if (!s && !mkdtemp(r->dir)) s = lq_fail(err, LQ_EIO, "%s: %s", r->dir, strerror(errno));
        if (!s) s = lock(r, false, false, err);
        if (s != LQ_ENOENT && s != LQ_EBUSY) break; /* else another's sweep was sooner */
    }
    if (s) r->dir[0] = 0;
    return s;
}

/* ---- */
lq_status resume_path(char *dir, size_t n, const char *out_path, lq_err *err)
{
    size_t end = strlen(out_path);
    while (end > 1 && out_path[end - 1] == '/')
        end--;
    const int len = snprintf(dir, n, "%.*s.resume", (int)end, out_path);
    if (len >= 0 && (size_t)len < n) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "%s: path too long", out_path);
}

lq_status resume_open(resume *r, bool *same, const char *out_path, const resume_kind *kind,
                      const cJSON *what, bool restart, bool shared, lq_err *err)
{
    char file[PATH];
    *same = false;
    *r = (resume){ .lock = -1, .kind = kind };
    lq_status s = resume_path(r->dir, sizeof r->dir, out_path, err);
    if (!s) s = lq_path_join(file, sizeof file, r->dir, STATE, err);
    if (!s) s = lock(r, shared, true, err);
    if (s) { /* the folder is not ours */
        r->dir[0] = 0;
        return s;
    }
    if (shared) s = start_shared(r->dir, file, what, err);
    if (!s && !restart) s = compare(r, same, file, what, shared, err);
    if (!s && !*same) s = start(r, file, what, err);
    if (s) resume_close(r, !shared && !has_parts(r->dir));
    return s;
}

void resume_close(resume *r, bool remove)
{
    if (!r->dir[0]) return;
    if (remove) wipe(r);
    unlock(r, remove);
    r->dir[0] = 0;
}
