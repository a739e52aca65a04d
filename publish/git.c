/* publish/git.c - the repository in which the work is done. */
#include "publish/git.h"

#include "base/path.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK "llmq-scratch" /* in a repository that we made */
/* What git does between an answer and the next may take longer than an answer: it is given as many
 * times an answer's time. */
enum { SLACK = 10 };

/* ---- running git ---- */
static int patience(const git_repo *g) { return g->o->patience ? g->o->patience : PUB_PATIENCE; }

static lq_status run(git_repo *g, const char *const *args, const child *how, lq_err *err)
{
    char slow[60];
    snprintf(slow, sizeof slow, "http.lowSpeedTime=%d", SLACK * patience(g));
    static const char *const env[] = { "GIT_TERMINAL_PROMPT=0",
                                       "GIT_ALLOW_PROTOCOL=file:git:http:https:ssh",
                                       "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C", NULL };
    const char *const first[] = { "git",
                                  "-c",
                                  "core.hooksPath=/dev/null",
                                  "-c",
                                  "fetch.fsckObjects=true",
                                  "-c",
                                  "lfs.locksverify=false",
                                  "-c",
                                  "maintenance.auto=false",
                                  "-c",
                                  "http.lowSpeedLimit=1024",
                                  "-c",
                                  slow,
                                  "--git-dir" };
    child c = *how;
    c.env = env;
    c.job = g->o->job;
    memcpy(c.argv, first, sizeof first);
    c.argv[LQ_COUNT(first)] = g->dir;
    c.more = args;
    return child_run(&c, NULL, err);
}

lq_status git_run(git_repo *g, const char *const *args, pub_sink *out, void *user, lq_err *err)
{
    return run(g, args, &(child){ .out = out, .user = user }, err);
}

/* Bytes of all files in the repository. */
static uint64_t bytes_in(void *where)
{
    git_repo *g = where;
    char *const dirs[] = { g->dir, NULL };
    uint64_t sum = 0;
    FTS *t = fts_open(dirs, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; t && (e = fts_read(t));)
        if (e->fts_info == FTS_F) sum += (uint64_t)e->fts_statp->st_size;
    if (t) fts_close(t);
    return sum;
}

lq_status git_fetch(git_repo *g, const char *const *args, lq_err *err)
{
    return run(g, args, &(child){ .seconds = SLACK * patience(g), .carried = bytes_in, .where = g },
               err);
}

static lq_status put_text(void *user, const void *data, size_t n, lq_err *err)
{
    lq_buf *b = user;
    lq_buf_add(b, data, n);
    if (b->n > PUB_MAX_SMALL)
        return lq_fail(err, LQ_EFORMAT, "git: expected at most %d bytes, found more",
                       PUB_MAX_SMALL);
    return b->oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

static lq_status text_of(git_repo *g, const char *const *args, int seconds, lq_buf *out,
                         lq_err *err)
{
    *out = (lq_buf){ 0 };
    lq_status s = run(g, args, &(child){ .out = put_text, .user = out, .seconds = seconds }, err);
    while (!s && out->n && out->p[out->n - 1] == '\n')
        out->n--;
    if (!s) lq_buf_add(out, "", 1);
    if (s || out->oom) {
        free(out->p);
        *out = (lq_buf){ 0 };
        return s ? s : lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    out->n--;
    return LQ_OK;
}

lq_status git_text(git_repo *g, const char *const *args, lq_buf *out, lq_err *err)
{
    return text_of(g, args, 0, out, err);
}

lq_status git_ask(git_repo *g, const char *what, lq_buf *out, lq_err *err)
{
    return text_of(g, GIT("ls-remote", "--", g->url, what), SLACK * patience(g), out, err);
}

/* ---- the folder ---- */
static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    if (at->level == 1 && strcmp(path + at->base, MARK) == 0) return 0;
    (void)!(kind == FTW_DP ? rmdir(path) : unlink(path));
    return 0;
}

/* All but the mark in it, and so not itself where that is there. */
static void remove_tree(const char *dir) { nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

/* What a killed git may have left half done, its locks among it; the large files are checked before
 * they count. */
static void remove_all_but_lfs(const char *dir)
{
    char path[4400];
    lq_status s = LQ_OK;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = lq_next_entry(&s, d, dir, NULL));) {
        const char *n = e->d_name;
        if (strcmp(n, "lfs") == 0 || strcmp(n, MARK) == 0 ||
            lq_path_join(path, sizeof path, dir, n, NULL))
            continue;
        remove_tree(path);
    }
    if (d) closedir(d);
}

static bool only_mark(const char *dir)
{
    lq_status s = LQ_OK;
    DIR *d = opendir(dir);
    bool yes = d != NULL;
    for (struct dirent *e; yes && (e = lq_next_entry(&s, d, dir, NULL));)
        yes = strcmp(e->d_name, MARK) == 0;
    if (d) closedir(d);
    return yes && !s;
}

/* The mark last: a folder without it that holds something is not ours to whoever comes next. */
static void remove_folder(const char *dir)
{
    char mark[4400];
    remove_tree(dir);
    if (!only_mark(dir)) return;
    if (!lq_path_join(mark, sizeof mark, dir, MARK, NULL)) unlink(mark);
    rmdir(dir);
}

static lq_status make_folder(git_repo *g, lq_err *err)
{
    char mark[4400];
    lq_status s = lq_path_join(mark, sizeof mark, g->dir, MARK, err);
    if (s) return s;
    const bool new = mkdir(g->dir, 0700) == 0;
    if (!new &&errno != EEXIST) return lq_fail(err, LQ_EIO, "%s: %s", g->dir, strerror(errno));
    if (!new && !lq_exists(mark) && rmdir(g->dir) != 0)
        return lq_fail(err, LQ_EUSAGE, "%s: is in the way: a folder that llmq did not begin",
                       g->dir);
    if (!new) mkdir(g->dir, 0700);
    /* git and what it starts inherit the lock: it is free once the last of them has ended, also
     * where we were killed and they were not. */
    g->lock = open(g->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (g->lock < 0) {
        s = lq_fail(err, LQ_EIO, "%s: %s", g->dir, strerror(errno));
        rmdir(g->dir); /* where it has no mark yet, and so nothing else */
        return s;
    }
    if (flock(g->lock, LOCK_EX | LOCK_NB) != 0) {
        close(g->lock);
        g->lock = -1;
        return lq_fail(err, LQ_EBUSY, "%s: another process is at work there", g->dir);
    }
    remove_all_but_lfs(g->dir);
    const int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", mark, strerror(errno));
    close(fd);
    return LQ_OK;
}

void git_leave(git_repo *g)
{
    if (g->lock >= 0) close(g->lock);
    g->lock = -1;
}

void git_close(git_repo *g)
{
    if (g->lock >= 0) remove_folder(g->dir);
    git_leave(g);
}

lq_status git_lfs_path(char *out, size_t n, const git_repo *g, const char *sha256, lq_err *err)
{
    const char *const parts[] = { "/lfs", "/objects", NULL, NULL };
    char part[4];
    int at = snprintf(out, n, "%s", g->dir);
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        if (!parts[i]) snprintf(part, sizeof part, "/%.2s", sha256 + 2 * (i - 2));
        at += snprintf(out + at, n - (size_t)at, "%s", parts[i] ? parts[i] : part);
        if ((size_t)at + SHA_HEX + 1 >= n) return lq_fail(err, LQ_EVALUE, "%s: too long", g->dir);
        if (mkdir(out, 0777) != 0 && errno != EEXIST)
            return lq_fail(err, LQ_EIO, "%s: %s", out, strerror(errno));
    }
    snprintf(out + at, n - (size_t)at, "/%s", sha256);
    return LQ_OK;
}

/* ---- the address ---- */
/* No option, no helper that runs commands; a path of this machine as it is from everywhere. */
static lq_status set_url(git_repo *g, const char *where, lq_err *err)
{
    bool plain = *where && *where != '-' && !strstr(where, "::");
    for (const char *c = where; *c; c++)
        plain = plain && (unsigned char)*c > ' ' && *c != 127;
    if (!plain || strlen(where) >= sizeof g->url)
        return lq_fail(err, LQ_EUSAGE, "git: expected an address or a path, found '%.100s'", where);
    char *real = strstr(where, "://") ? NULL : realpath(where, NULL);
    const int n = real ? snprintf(g->url, sizeof g->url, "file://%s", real)
                       : snprintf(g->url, sizeof g->url, "%s", where);
    free(real);
    return n > 0 && (size_t)n < sizeof g->url ? LQ_OK
                                              : lq_fail(err, LQ_EUSAGE, "git: address too long");
}

static lq_status set_ref(git_repo *g, lq_err *err)
{
    const char *b = g->o->branch ? g->o->branch : "main";
    bool ok = *b && *b != '-' && *b != '/' && strlen(b) < 250 && !strstr(b, "..") &&
              b[strlen(b) - 1] != '/';
    for (const char *c = b; *c; c++)
        ok = ok && (isalnum((unsigned char)*c) || strchr("._-/", *c));
    if (!ok)
        return lq_fail(err, LQ_EUSAGE, "--branch: expected a branch's name, found '%.100s'", b);
    snprintf(g->ref, sizeof g->ref, "refs/heads/%s", b);
    return LQ_OK;
}

/* The remote side's commit, and its content. */
static lq_status fetch(git_repo *g, lq_err *err)
{
    lq_buf b;
    lq_status s = git_ask(g, g->ref, &b, err);
    if (s) return s;
    const size_t n = strcspn(b.p, "\t");
    if (n < b.n && n < sizeof g->head) snprintf(g->head, sizeof g->head, "%.*s", (int)n, b.p);
    free(b.p);
    return g->head[0]
               ? git_fetch(g, GIT("fetch", "-q", "--depth", "1", "--no-tags", "origin", g->ref),
                           err)
               : LQ_OK;
}

lq_status git_open(git_repo *g, const char *dir, const char *where, const pub_opts *o, lq_err *err)
{
    *g = (git_repo){ .o = o, .lock = -1 };
    lq_status s = snprintf(g->dir, sizeof g->dir, "%s", dir) < (int)sizeof g->dir
                      ? LQ_OK
                      : lq_fail(err, LQ_EVALUE, "%.100s...: too long", dir);
    if (!s) s = set_url(g, where, err);
    if (!s) s = set_ref(g, err);
    if (!s) s = make_folder(g, err);
    if (!s) s = git_run(g, GIT("init", "-q", "--bare"), NULL, NULL, err);
    if (!s) s = git_run(g, GIT("lfs", "version"), NULL, NULL, err);
    if (!s) s = git_run(g, GIT("remote", "add", "origin", g->url), NULL, NULL, err);
    return s ? s : fetch(g, err);
}
