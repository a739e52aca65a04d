/* publish/git.h - the target "git:URL": a branch of a git remote, large files by git-lfs. For
 * git*.c.
 *
 * Work is done in a bare repository that is made for it, with git's plumbing: no work tree, so
 * nothing that a remote side names is ever checked out, no hook and no filter of it runs. */
#ifndef LLMQ_PUBLISH_GIT_H
#define LLMQ_PUBLISH_GIT_H

#include "base/json.h"
#include "publish/child.h"
#include "publish/target.h"

typedef struct {
    const pub_opts *o;
    char dir[4300]; /* the bare repository */
    char url[4200];
    char ref[300]; /* "refs/heads/main" */
    char head[80]; /* the branch's commit on the remote side, or "" */
    int lock;
} git_repo;

/* The repository at `dir` with `where` as origin; keeps the large files that an earlier run left.
 * Fetches the branch's last commit where there is one. git_close removes the repository, git_leave
 * keeps it for the next run; one of them also after an error. Errors: LQ_EUSAGE, LQ_EBUSY, LQ_EIO,
 * LQ_ENOENT (no git or git-lfs). */
lq_status git_open(git_repo *g, const char *dir, const char *where, const pub_opts *o, lq_err *err);
void git_close(git_repo *g);
void git_leave(git_repo *g);

/* git with these arguments (at most 20, NULL after them), its stdout to `out`. */
lq_status git_run(git_repo *g, const char *const *args, pub_sink *out, void *user, lq_err *err);
/* The same for what fetches into the repository: it is ended where that grows too slowly. */
lq_status git_fetch(git_repo *g, const char *const *args, lq_err *err);
/* The same, and its stdout as text without the newline at its end; free(out->data). */
lq_status git_text(git_repo *g, const char *const *args, lq_buf *out, lq_err *err);
/* What the remote side's reference `what` is, as `git ls-remote` says it; free(out->data). */
lq_status git_ask(git_repo *g, const char *what, lq_buf *out, lq_err *err);
#define GIT(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* Where git-lfs keeps an object, its folders made. */
lq_status git_lfs_path(char *out, size_t n, const git_repo *g, const char *sha256, lq_err *err);

lq_status git_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                   lq_err *err);

#endif
