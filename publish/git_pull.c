/* publish/git_pull.c - the files of a commit, large ones from git-lfs. */
#include "base/file.h"
#include "base/path.h"
#include "publish/git.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_POINTER = 1024 };

/* ---- what is there ---- */
/* "oid sha256:..." and "size N" where the text is a pointer. LQ_EFORMAT: a broken one. */
static lq_status read_pointer(pub_file *f, const char *text, lq_err *err)
{
    const char *oid = strstr(text, "\noid sha256:"), *size = strstr(text, "\nsize ");
    char *end = NULL;
    if (strncmp(text, LQ_LFS_POINTER, strlen(LQ_LFS_POINTER)) != 0) return LQ_OK;
    const unsigned long long bytes = size ? strtoull(size + 6, &end, 10) : 0;
    if (!oid || !size || end == size + 6 || *end != '\n' || bytes > INT64_MAX ||
        !sha_is_hex(oid + 12, strcspn(oid + 12, "\n")))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a pointer of git-lfs, found a broken one",
                       f->name);
    f->bytes = bytes;
    f->large = true;
    snprintf(f->sha256, sizeof f->sha256, "%.*s", SHA_HEX - 1, oid + 12);
    return LQ_OK;
}

static lq_status look_inside(git_repo *g, pub_file *f, lq_err *err)
{
    char object[PUB_MAX_NAME + 100];
    lq_buf text;
    if (f->bytes > MAX_POINTER) return LQ_OK;
    snprintf(object, sizeof object, "%s:%s", g->head, f->name);
    lq_status s = git_text(g, GIT("cat-file", "blob", object), &text, err);
    if (s) return s;
    lq_buf_puts(&text, "\n"); /* git_text took it */
    lq_buf_add(&text, "", 1);
    s = text.oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : read_pointer(f, text.p, err);
    free(text.p);
    return s;
}

/* In the folder itself or those of the templates and modules; what is elsewhere is not fetched. */
static bool is_ours(const char *path)
{
    const char *slash = strchr(path, '/');
    return model_file_of(path) && (!slash || model_module_path(path) ||
                                   strncmp(path, "additional_chat_templates/", 26) == 0);
}

/* "100644 blob OID    SIZE\tPATH" */
static lq_status git_pull_add_entry(pub_files *fs, const char *line, git_repo *g, lq_err *err)
{
    unsigned mode;
    unsigned long long size = 0;
    char type[16], oid[80];
    const char *tab = strchr(line, '\t');
    pub_file *f;
    if (!tab || sscanf(line, "%o %15s %79s %llu", &mode, type, oid, &size) < 3)
        return lq_fail(err, LQ_EFORMAT, "git: expected a file of a tree, found '%.100s'", line);
    const char *path = tab + 1;
    if (strstr(path, "..") || *path == '/')
        return lq_fail(err, LQ_EFORMAT, "file name: '%.100s' leads elsewhere", path);
    if (!is_ours(path)) {
        pub_say(g->o, "%.200s: is no file of a model, and stays there", path);
        return LQ_OK;
    }
    if (mode != 0100644 && mode != 0100755)
        return lq_fail(err, LQ_EFORMAT, "%.100s: expected a plain file, found a %s", path,
                       mode == 0120000 ? "link" : type);
    lq_status s = pub_add(fs, path, &f, err);
    if (s) return s;
    f->bytes = size;
    return look_inside(g, f, err);
}

static lq_status list(pub_remote *r, git_repo *g, lq_err *err)
{
    lq_buf b;
    lq_status s = git_text(g, GIT("ls-tree", "-r", "-l", "-z", g->head), &b, err);
    if (s) return s;
    for (size_t at = 0; at < b.n && !s; at += strlen(b.p + at) + 1)
        s = git_pull_add_entry(&r->files, b.p + at, g, err);
    free(b.p);
    return s;
}

static lq_status open_git(pub_remote *r, const char *where, const char *scratch, const pub_opts *o,
                          lq_err *err)
{
    git_repo *g = r->own = calloc(1, sizeof *g);
    if (!g) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = git_open(g, scratch, where, o, err);
    if (!s && !g->head[0])
        s = lq_fail(err, LQ_ENOENT, "expected a branch %s, found none", g->ref + 11);
    if (s) return s;
    snprintf(r->digest, sizeof r->digest, "%s", g->head);
    return list(r, g, err);
}

/* ---- bytes ---- */
static lq_status put_piece(void *user, const void *data, size_t n, lq_err *err)
{
    return pub_part_write(user, data, n, err);
}

static lq_status get_large(git_repo *g, const pub_file *f, pub_part *part, lq_err *err)
{
    char path[4500], include[PUB_MAX_NAME + 8];
    lq_status s = git_lfs_path(path, sizeof path, g, f->sha256, err);
    snprintf(include, sizeof include, "/%s", f->name);
    if (!s && !lq_exists(path))
        s = git_fetch(g, GIT("lfs", "fetch", "-I", include, "-X", "", "origin", g->head), err);
    if (s) return s;
    if (!lq_exists(path))
        return lq_fail(err, LQ_ENOENT, "%s: git-lfs has no object %s", f->name, f->sha256);
    const pub_file object = { .path = path, .bytes = f->bytes };
    s = pub_read(&object, pub_part_at(part), put_piece, part, g->o->job, err);
    if (s != LQ_EINTR) unlink(path);
    return s;
}

static lq_status get(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err)
{
    char object[PUB_MAX_NAME + 100];
    git_repo *g = r->own;
    if (f->large) return get_large(g, f, part, err);
    snprintf(object, sizeof object, "%s:%s", g->head, f->name);
    lq_status s = pub_part_at(part) ? pub_part_restart(part, err) : LQ_OK;
    return s ? s : git_run(g, GIT("cat-file", "blob", object), put_piece, part, err);
}

static void close_git(pub_remote *r, bool done)
{
    git_repo *g = r->own;
    if (!g) return;
    if (done)
        git_close(g);
    else
        git_leave(g);
    free(g);
}

const pub_target pub_git = { "git:", NULL, git_push, open_git, get, close_git };
