/* publish/pull.c - fetch, check, resume; the same for every target. */
#include "base/file.h"
#include "base/path.h"
#include "convert/folder.h"
#include "formats/source/source.h"
#include "publish/part.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    pub_remote *r;
    conv_folder folder;
    const pub_opts *o;
    double done, total;
    bool refused; /* complete, but the caller's check says no */
} pulling;

static lq_status fetch(pulling *p, pub_file *f, lq_err *err)
{
    char digest[SHA_HEX] = "";
    pub_part part = { .f = f, .fd = -1, .job = p->o->job, .before = p->done, .total = p->total };
    lq_status s = folder_path(part.path, sizeof part.path, &p->folder, f->name, err);
    if (!s) s = pub_part_open(&part, err);
    if (!s) s = pub_part_fetch(&part, p->r, digest, err);
    if (part.fd >= 0) close(part.fd);
    p->done += (double)f->bytes;
    if (!s) snprintf(f->sha256, sizeof f->sha256, "%s", digest);
    return s;
}

/* What the artifact itself says about its files, where it does: it may name no more than there are,
 * and other sums are an error. */
static lq_status check_sums(pulling *p, pub_files *sums, lq_err *err)
{
    char path[4200], *text = NULL;
    size_t n = 0;
    pub_file *f = pub_find(&p->r->files, PUB_SUMS);
    if (!f) return LQ_OK;
    if (f->bytes > PUB_MAX_SMALL)
        return lq_fail(err, LQ_EFORMAT, PUB_SUMS ": expected at most %d bytes, found %llu",
                       PUB_MAX_SMALL, (unsigned long long)f->bytes);
    lq_status s = fetch(p, f, err);
    if (!s) s = folder_path(path, sizeof path, &p->folder, PUB_SUMS, err);
    if (!s) s = lq_read_file(&text, &n, path, PUB_MAX_SMALL, err);
    if (!s) s = pub_read_sums(sums, text, n, err);
    free(text);
    for (size_t i = 0; i < sums->n && !s; i++)
        if (!pub_find(&p->r->files, sums->f[i].name))
            s = lq_fail(err, LQ_ECHECK, PUB_SUMS " names %s, which is not there", sums->f[i].name);
    for (size_t i = 0; i < p->r->files.n && !s; i++) {
        pub_file *of = &p->r->files.f[i];
        const pub_file *sum = pub_find(sums, of->name);
        if (of == f || (of->sha256[0] && sum)) {
            if (of != f) s = pub_check_sum(sums, of->name, of->sha256, err);
        } else if (sum) {
            memcpy(of->sha256, sum->sha256, sizeof of->sha256);
        } else if (strcmp(of->name, PUB_ATTRIBUTES) != 0) {
            s = lq_fail(err, LQ_ECHECK, "%s: expected in " PUB_SUMS ", not found there", of->name);
        }
    }
    return s;
}

static lq_status check_room(const pulling *p, lq_err *err)
{
    struct statvfs v;
    struct stat st;
    uint64_t there = 0;
    char path[4200];
    for (size_t i = 0; i < p->r->files.n; i++)
        if (!lq_path_join(path, sizeof path, p->folder.dir, p->r->files.f[i].name, NULL) &&
            lstat(path, &st) == 0)
            there += (uint64_t)st.st_blocks * 512;
    const uint64_t need = pub_bytes(&p->r->files);
    if (fstatvfs(p->folder.lock, &v) != 0) return LQ_OK;
    const uint64_t room = (uint64_t)v.f_bavail * v.f_frsize + there;
    return need <= room
               ? LQ_OK
               : lq_fail(err, LQ_EIO, "%s: expected room for %llu bytes, found %llu", p->folder.dir,
                         (unsigned long long)need, (unsigned long long)room);
}

static bool is_of_artifact(void *user, const char *name)
{
    const pulling *p = user;
    return pub_find(&p->r->files, name) != NULL;
}

static lq_status pull_fill(pulling *p, pub_check *check, void *user, lq_err *err)
{
    pub_files sums = { NULL, 0 };
    lq_status s = check_room(p, err);
    p->total = (double)pub_bytes(&p->r->files);
    if (!s) s = check_sums(p, &sums, err);
    for (size_t i = 0; i < p->r->files.n && !s; i++)
        if (strcmp(p->r->files.f[i].name, PUB_SUMS) != 0) s = fetch(p, &p->r->files.f[i], err);
    pub_files_free(&sums);
    if (s) return s;
    folder_keep(&p->folder, is_of_artifact, p); /* an earlier run may have left another's */
    if (!check) return LQ_OK;
    s = check(user, p->folder.dir, err);
    p->refused = s != LQ_OK && s != LQ_EINTR;
    return s;
}

/* Is there anything that the next run can go on with? */
static bool worth_keeping(const pulling *p)
{
    bool any = false;
    DIR *d = p->refused ? NULL : opendir(p->folder.dir);
    for (struct dirent *e; d && (e = readdir(d));)
        any = any || model_file_of(e->d_name);
    if (d) closedir(d);
    return any;
}

static lq_status check_sizes(const pub_files *fs, lq_err *err)
{
    uint64_t sum = 0;
    if (!fs->n) return lq_fail(err, LQ_EFORMAT, "expected files of a model, found none");
    for (size_t i = 0; i < fs->n; i++) {
        if (fs->f[i].bytes > INT64_MAX - sum)
            return lq_fail(err, LQ_EFORMAT, "%s: expected a size that a disk has, found %llu",
                           fs->f[i].name, (unsigned long long)fs->f[i].bytes);
        sum += fs->f[i].bytes;
    }
    return LQ_OK;
}

/* Several models in one folder would leave open which is meant. */
static lq_status check_one_model(const pub_files *fs, lq_err *err)
{
    const char *first = NULL;
    for (size_t i = 0; i < fs->n; i++)
        if (lq_has_ending(fs->f[i].name, ".safetensors")) return LQ_OK;
    for (size_t i = 0; i < fs->n; i++) {
        if (!src_is_whole(fs->f[i].name)) continue;
        if (first)
            return lq_fail(err, LQ_EFORMAT, "expected one model, found %.200s and %.200s", first,
                           fs->f[i].name);
        first = fs->f[i].name;
    }
    return LQ_OK;
}

/* Of a target on this machine its folder; else NULL. */
static const char *folder_of(const char *arg, const char *where)
{
    if (strncmp(arg, "oci:", 4) == 0) return NULL;
    if (strncmp(where, "file://", 7) == 0) where += 7;
    return lq_is_dir(where) ? where : NULL;
}

static lq_status check_place(const char *dir, const char *arg, const char *where, lq_err *err)
{
    const char *from = folder_of(arg, where);
    if (!from || !(lq_same_file(from, dir) || lq_is_inside(dir, from))) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "%s: expected a place outside %s, which is read", dir, arg);
}

lq_status pub_pull(pub_result *result, pub_files *files, const char *arg, const char *dir,
                   const pub_opts *o, pub_check *check, void *user, lq_err *err)
{
    const char *where;
    char scratch[4200];
    pub_remote r = { .opts = o };
    pulling p = { .r = &r, .o = o };
    lq_status s = pub_target_find(&r.target, &where, arg, err);
    if (!s) s = check_place(dir, arg, where, err);
    if (!s) s = folder_create(&p.folder, dir, true, err);
    if (s) return s;
    snprintf(scratch, sizeof scratch, "%s-git", p.folder.dir);
    s = r.target->open(&r, where, scratch, o, err);
    if (!s) s = check_sizes(&r.files, err);
    if (!s) s = check_one_model(&r.files, err);
    if (s) lq_wrap(err, s, "%s", arg);
    if (!s) {
        s = pull_fill(&p, check, user, err);
        if (s && s != LQ_EINTR) lq_wrap(err, s, "%s", arg);
    }
    const bool kept = s && worth_keeping(&p);
    if (!s)
        s = folder_publish(&p.folder, err);
    else if (kept)
        folder_leave(&p.folder);
    else
        folder_drop(&p.folder);
    r.target->close(&r, !s || !kept);
    *result = (pub_result){ .same = false };
    snprintf(result->digest, sizeof result->digest, "%s", r.digest);
    *files = r.files;
    return s;
}
