/* publish/dir.c - the target "dir:PATH": a folder as Hugging Face's hub wants it. */
#include "base/file.h"
#include "base/out_file.h"
#include "base/path.h"
#include "convert/folder.h"
#include "publish/target.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- writing ---- */
typedef struct {
    lq_out *out;
    sha_state sha;
    const pub_opts *o;
    double done, total;
} copying;

static lq_status copy_piece(void *user, const void *data, size_t n, lq_err *err)
{
    copying *c = user;
    sha_add(&c->sha, data, n);
    c->done += (double)n;
    lq_report(c->o->job, "copy", c->done, c->total);
    return lq_out_write(c->out, data, n, err);
}

static lq_status copy(copying *c, const conv_folder *folder, const pub_file *f, lq_err *err)
{
    char path[4200], digest[SHA_HEX];
    lq_status s = folder_path(path, sizeof path, folder, f->name, err);
    if (!s) s = lq_out_open(&c->out, path, err);
    if (s) return s;
    sha_init(&c->sha);
    s = pub_read(f, 0, copy_piece, c, c->o->job, err);
    sha_end(digest, &c->sha);
    if (!s && strcmp(digest, f->sha256) != 0)
        s = lq_fail(err, LQ_EIO, "%s: has changed while it was read", f->path);
    if (!s) return lq_out_commit(c->out, err);
    lq_out_abort(c->out);
    return s;
}

static lq_status dir_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                          lq_err *err)
{
    conv_folder folder;
    copying c = { .o = o, .total = (double)pub_bytes(fs) };
    const pub_file *sums = pub_find(fs, PUB_SUMS);
    lq_status s = folder_create(&folder, where, false, err);
    if (s) return s;
    for (size_t i = 0; i < fs->n && !s; i++)
        s = copy(&c, &folder, &fs->f[i], err);
    if (s) {
        folder_drop(&folder);
        return s;
    }
    snprintf(r->digest, sizeof r->digest, "sha256:%s", sums->sha256);
    r->sent = pub_bytes(fs);
    return folder_publish(&folder, err);
}

/* ---- reading: the files that SHA256SUMS names ---- */
static lq_status size_of(pub_file *f, const char *dir, lq_err *err)
{
    char path[4200];
    struct stat st;
    lq_status s = lq_path_join(path, sizeof path, dir, f->name, err);
    if (s) return s;
    if (stat(path, &st) != 0) return lq_fail(err, LQ_ENOENT, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a plain file, found none", path);
    f->bytes = (uint64_t)st.st_size;
    f->path = strdup(path);
    return f->path ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

static lq_status open_dir(pub_remote *r, const char *where, const char *scratch, const pub_opts *o,
                          lq_err *err)
{
    (void)scratch;
    (void)o;
    char path[4200], *text = NULL, digest[SHA_HEX];
    size_t n;
    pub_file *sums;
    lq_status s = lq_path_join(path, sizeof path, where, PUB_SUMS, err);
    if (!s) s = lq_read_file(&text, &n, path, PUB_MAX_SMALL, err);
    if (!s) s = pub_read_sums(&r->files, text, n, err);
    if (!s) sha_of(digest, text, n);
    free(text);
    if (!s) s = pub_add(&r->files, PUB_SUMS, &sums, err);
    if (s) return s;
    memcpy(sums->sha256, digest, sizeof digest);
    snprintf(r->digest, sizeof r->digest, "sha256:%s", digest);
    for (size_t i = 0; i < r->files.n && !s; i++)
        s = size_of(&r->files.f[i], where, err);
    return s;
}

static lq_status put_piece(void *user, const void *data, size_t n, lq_err *err)
{
    return pub_part_write(user, data, n, err);
}

static lq_status get(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err)
{
    return pub_read(f, pub_part_at(part), put_piece, part, r->opts->job, err);
}

static void close_dir(pub_remote *r, bool done)
{
    (void)r;
    (void)done;
}

const pub_target pub_dir = { "dir:", folder_check, dir_push, open_dir, get, close_dir };
