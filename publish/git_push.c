/* publish/git_push.c - objects, a tree, a commit; the branch moves last. */
#include "base/out_file.h"
#include "base/path.h"
#include "publish/git.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */
static lq_status copy_piece(void *user, const void *data, size_t n, lq_err *err)
{
    return lq_out_write(user, data, n, err);
}

/* Into git-lfs' store, without a copy where the file system allows. */
static lq_status store_large(const git_repo *g, const pub_file *f, lq_err *err)
{
    char path[4500];
    struct stat st;
    lq_out *out;
    lq_status s = git_lfs_path(path, sizeof path, g, f->sha256, err);
    if (s) return s;
    if (stat(path, &st) == 0 && (uint64_t)st.st_size == f->bytes) return LQ_OK;
    unlink(path);
    if (f->path && link(f->path, path) == 0) return LQ_OK;
    s = lq_out_open(&out, path, err);
    if (s) return s;
    s = pub_read(f, 0, copy_piece, out, g->o->job, err);
    if (!s) return lq_out_commit(out, err);
    lq_out_abort(out);
    return s;
}

static void pointer(char out[300], const pub_file *f)
{
    snprintf(out, 300, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %llu\n",
             f->sha256, (unsigned long long)f->bytes);
}

/* The blob of a small file or of a pointer, by way of a file that git reads. */
static lq_status store_small(git_repo *g, const pub_file *f, lq_buf *oid, lq_err *err)
{
    char path[4400], text[300];
    lq_status s = lq_path_join(path, sizeof path, g->dir, "llmq-blob", err);
    if (s) return s;
    if (f->kind->weights) {
        pointer(text, f);
        s = lq_write_file(path, text, strlen(text), err);
    } else if (f->data) {
        s = lq_write_file(path, f->data, (size_t)f->bytes, err);
    } else {
        return git_text(g, GIT("hash-object", "-w", "--no-filters", "--", f->path), oid, err);
    }
    return s ? s : git_text(g, GIT("hash-object", "-w", "--no-filters", "--", path), oid, err);
}

static lq_status stage(git_repo *g, const pub_file *f, lq_err *err)
{
    char info[PUB_MAX_NAME + 100];
    lq_buf oid = { 0 };
    lq_status s = f->kind->weights ? store_large(g, f, err) : LQ_OK;
    if (!s) s = store_small(g, f, &oid, err);
    if (!s) snprintf(info, sizeof info, "100644,%.80s,%s", oid.p, f->name);
    free(oid.p);
    return s ? s : git_run(g, GIT("update-index", "--add", "--cacheinfo", info), NULL, NULL, err);
}

/* ---- the commit ---- */
/* Of the tree; where git does not know who we are, llmq is. */
static lq_status commit(git_repo *g, const char *tree, lq_buf *out, lq_err *err)
{
    static const char message[] = "Published by llmq";
    lq_buf who;
    const bool known = !git_text(g, GIT("var", "GIT_COMMITTER_IDENT"), &who, NULL);
    if (known) free(who.p);
    const char *args[16], **a = args;
    if (!known) {
        *a++ = "-c";
        *a++ = "user.name=llmq";
        *a++ = "-c";
        *a++ = "user.email=llmq@localhost";
    }
    *a++ = "commit-tree";
    *a++ = tree;
    *a++ = "-m";
    *a++ = message;
    if (g->head[0]) {
        *a++ = "-p";
        *a++ = g->head;
    }
    *a = NULL;
    return git_text(g, args, out, err);
}

static lq_status push_large(git_repo *g, const pub_files *fs, pub_result *r, lq_err *err)
{
    const char **args = calloc(fs->n + 5, sizeof *args);
    size_t n = 0;
    if (!args) return lq_fail(err, LQ_ENOMEM, "out of memory");
    args[n++] = "lfs";
    args[n++] = "push";
    args[n++] = "--object-id";
    args[n++] = "origin";
    for (size_t i = 0; i < fs->n; i++)
        if (fs->f[i].kind->weights) args[n++] = fs->f[i].sha256;
    lq_report(g->o->job, "git lfs push", 0, (double)pub_bytes(fs));
    lq_status s = n > 4 ? git_run(g, args, NULL, NULL, err) : LQ_OK;
    free(args);
    r->sent = pub_bytes(fs);
    return s;
}

/* Large files first, so that no commit on the remote side points at what is not there. */
static lq_status push_tree(git_repo *g, const pub_files *fs, const char *tree, pub_result *r,
                           lq_err *err)
{
    lq_buf id = { 0 };
    char refspec[400];
    lq_status s = push_large(g, fs, r, err);
    if (!s) s = commit(g, tree, &id, err);
    if (!s) snprintf(refspec, sizeof refspec, "%.80s:%s", id.p, g->ref);
    if (!s) snprintf(r->digest, sizeof r->digest, "%.79s", id.p);
    free(id.p);
    return s ? s : git_run(g, GIT("push", "-q", "--no-verify", "origin", refspec), NULL, NULL, err);
}

static lq_status push_files(git_repo *g, const pub_files *fs, pub_result *r, lq_err *err)
{
    lq_buf tree = { 0 }, old = { 0 };
    char of[100];
    lq_status s = LQ_OK;
    for (size_t i = 0; i < fs->n && !s; i++)
        s = stage(g, &fs->f[i], err);
    if (!s) s = git_text(g, GIT("write-tree"), &tree, err);
    snprintf(of, sizeof of, "%s^{tree}", g->head);
    if (!s && g->head[0]) s = git_text(g, GIT("rev-parse", of), &old, err);
    r->same = !s && old.p && strcmp(old.p, tree.p) == 0;
    if (r->same)
        snprintf(r->digest, sizeof r->digest, "%s", g->head);
    else if (!s)
        s = push_tree(g, fs, tree.p, r, err);
    free(tree.p);
    free(old.p);
    return s;
}

/* A new bare repository's HEAD may name a branch that nobody has pushed; then a clone is empty. */
static void look_at_head(git_repo *g)
{
    lq_buf b;
    if (git_ask(g, "HEAD", &b, NULL)) return;
    if (!b.n)
        pub_say(g->o,
                "git: the remote side's HEAD names no branch that is there: a clone needs `-b %s`, "
                "or there `git symbolic-ref HEAD %s`",
                g->ref + strlen("refs/heads/"), g->ref);
    free(b.p);
}

/* Where the work is done: beside the model; where that may not be written, in a folder that goes
 * with the run (`own`, else ""). */
static lq_status find_place(char dir[4300], char own[4200], const pub_opts *o, lq_err *err)
{
    char above[4300];
    own[0] = 0;
    snprintf(dir, 4300, "%s-git", o->state);
    const char *slash = strrchr(dir, '/');
    snprintf(above, sizeof above, "%.*s", slash ? (int)(slash + 1 - dir) : 1, slash ? dir : ".");
    if (lq_exists(dir) || access(above, W_OK) == 0) return LQ_OK;
    pub_say(o, "%s: %s: an interrupted upload will start over", dir, strerror(errno));
    const lq_status s = lq_temp_folder(own, 4200, err);
    if (s) return own[0] = 0, s;
    snprintf(dir, 4300, "%s/git", own);
    return LQ_OK;
}

lq_status git_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                   lq_err *err)
{
    git_repo g;
    char dir[4300], own[4200];
    lq_status s = find_place(dir, own, o, err);
    if (s) return s;
    s = git_open(&g, dir, where, o, err);
    if (!s) s = push_files(&g, fs, r, err);
    if (!s) look_at_head(&g);
    git_close(&g);
    if (*own) rmdir(own);
    return s;
}
