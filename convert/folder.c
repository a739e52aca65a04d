/* convert/folder.c */
#include "convert/folder.h"

#include "formats/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK ".llmq-partial"                  /* in a folder that is being filled */
#define SUMS "SHA256SUMS"                     /* in one that was published */
#define TEMPLATES "additional_chat_templates" /* the one folder in a model's */

static lq_status io(const char *path, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
}

/* ---- what may be replaced ---- */
/* What lies in a model's folder; replacing it must delete nothing else. */
static bool ends_in(const char *name, const char *const *ends, size_t n_ends)
{
    for (size_t i = 0; i < n_ends; i++)
        if (lq_has_ending(name, ends[i]) || strcmp(name, ends[i]) == 0) return true;
    return false;
}

static bool is_model_file(const char *name, unsigned flags)
{
    static const char *const ends[] = { ".json",  ".safetensors", ".jinja",    ".md",
                                        ".model", "merges.txt",   "vocab.txt", ".tiktoken" };
    static const char *const published[] = { ".llmq", ".gguf", SUMS };
    return strncasecmp(name, "licen", 5) == 0 || strncasecmp(name, "notice", 6) == 0 ||
           strcmp(name, ".gitattributes") == 0 || strcmp(name, MARK) == 0 ||
           ends_in(name, ends, LQ_COUNT(ends)) ||
           ((flags & FOLDER_ARTIFACT) && ends_in(name, published, LQ_COUNT(published)));
}

/* Of a folder that convert may replace: weights that it would have written. */
static bool is_other_weights(const char *name, unsigned flags)
{
    return !(flags & FOLDER_ARTIFACT) && lq_has_ending(name, ".safetensors") &&
           strncmp(name, "model", 5) != 0;
}

/* Every entry is a plain file of a model, or (deep) the folder of templates. *known: config.json is
 * there, or of an artifact its sums. */
static lq_status check_entries(const char *dir, bool deep, unsigned flags, bool *known, bool *empty,
                               lq_err *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d && errno == ENOTDIR)
        return lq_fail(err, LQ_EUSAGE, "%s: expected folders above it, found a file", dir);
    if (!d) return errno == ENOENT ? LQ_OK : io(dir, err);
    lq_status s = LQ_OK;
    while (!s && (e = lq_next_entry(&s, d, dir, err))) {
        struct stat st;
        char sub[4200];
        *empty = false;
        *known = *known || strcmp(e->d_name, flags & FOLDER_ARTIFACT ? SUMS : "config.json") == 0;
        const bool there = fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (deep && there && S_ISDIR(st.st_mode) && strcmp(e->d_name, TEMPLATES) == 0) {
            s = lq_path_join(sub, sizeof sub, dir, e->d_name, err);
            if (!s) s = check_entries(sub, false, flags, known, empty, err);
        } else if (!is_model_file(e->d_name, flags) || is_other_weights(e->d_name, flags) ||
                   !there || !S_ISREG(st.st_mode)) {
            s = lq_fail(err, LQ_EUSAGE, "%s: holds %s, which a model folder does not", dir,
                        e->d_name);
        }
    }
    closedir(d);
    return s;
}

/* A line of sums ends in " NAME" or "*NAME". */
static bool is_named(const lq_map *sums, const char *name)
{
    const char *text = (const char *)sums->data, *end = text + sums->size;
    const size_t n = strlen(name);
    for (const char *at = text; at < end && (at = memmem(at, (size_t)(end - at), name, n)); at++) {
        const char *after = at + n;
        const bool begins = at > text && (at[-1] == ' ' || at[-1] == '*');
        if (begins && (after == end || *after == '\n' || *after == '\r')) return true;
    }
    return false;
}

/* Every file of a published folder is one that its sums name. */
static lq_status check_named(const char *dir, lq_err *err)
{
    char path[4200];
    lq_map sums;
    lq_status s = lq_path_join(path, sizeof path, dir, SUMS, err);
    if (!s) s = lq_map_open(&sums, path, err);
    if (s) return s;
    DIR *d = opendir(dir);
    if (!d) s = io(dir, err);
    for (struct dirent *e; !s && (e = lq_next_entry(&s, d, dir, err));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, SUMS) != 0 &&
            strcmp(e->d_name, TEMPLATES) != 0 && !is_named(&sums, e->d_name))
            s = lq_fail(err, LQ_EUSAGE, "%s: holds %s, which its " SUMS " does not name", dir,
                        e->d_name);
    if (d) closedir(d);
    lq_map_close(&sums);
    return s;
}

/* Only files of a model, and a config.json among them unless it is empty; of an artifact SHA256SUMS
 * that names them all. */
static lq_status may_replace(const char *dir, unsigned flags, lq_err *err)
{
    bool known = false, empty = true;
    lq_status s = check_entries(dir, true, flags, &known, &empty, err);
    if (!s && !empty && !known)
        s = lq_fail(err, LQ_EUSAGE, "%s: exists and is not a %s", dir,
                    flags & FOLDER_ARTIFACT ? "published folder (no " SUMS " in it)"
                                            : "model folder");
    return !s && known && (flags & FOLDER_ARTIFACT) ? check_named(dir, err) : s;
}

/* All but the mark: a folder in which anything is left stays known as ours, whenever a kill comes.
 * False: something may be left. */
static bool remove_files(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    lq_status s = LQ_OK;
    bool all = d != NULL;
    while (d && (e = lq_next_entry(&s, d, dir, NULL)))
        if (strcmp(e->d_name, MARK) != 0) all = unlinkat(dirfd(d), e->d_name, 0) == 0 && all;
    if (d) closedir(d);
    return all && !s;
}

static bool empty_folder(const char *dir)
{
    char sub[4200];
    if (!lq_path_join(sub, sizeof sub, dir, TEMPLATES, NULL) && lq_is_dir(sub)) {
        remove_files(sub);
        rmdir(sub);
    }
    return remove_files(dir);
}

/* ---- the folder while it grows ---- */
/* Take the lock of what lies at f->dir now. */
static lq_status lock(conv_folder *f, lq_err *err)
{
    struct stat held, named;
    f->lock = open(f->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->lock < 0) return io(f->dir, err);
    if (flock(f->lock, LOCK_EX | LOCK_NB) == 0 && fstat(f->lock, &held) == 0 &&
        stat(f->dir, &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev)
        return LQ_OK;
    close(f->lock);
    f->lock = -1;
    return lq_fail(err, LQ_EBUSY, "%s: another process is writing it", f->dir);
}

static void take_mark(const char *dir)
{
    char path[4200];
    if (!lq_path_join(path, sizeof path, dir, MARK, NULL)) unlink(path);
}

/* f->dir exists and is locked: what a killed run left goes (or stays, to be gone on with), anything
 * else is in the way. */
static lq_status clear(const conv_folder *f, lq_err *err)
{
    bool known = false, empty = true;
    lq_status s = LQ_OK;
    const bool marked = faccessat(f->lock, MARK, F_OK, 0) == 0;
    if (!marked || (f->flags & FOLDER_RESUME)) {
        s = check_entries(f->dir, true, f->flags, &known, &empty, err);
        if (!s && !empty && !marked)
            s = lq_fail(err, LQ_EUSAGE, "%s: is in the way: a folder that llmq did not begin",
                        f->dir);
    }
    if (!s && !(f->flags & FOLDER_RESUME)) empty_folder(f->dir);
    return s;
}

/* Made in one step: a kill leaves it or not. */
static lq_status put_mark(const char *dir, lq_err *err)
{
    char path[4200];
    lq_status s = lq_path_join(path, sizeof path, dir, MARK, err);
    const int fd = s ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (!s && fd < 0) s = io(path, err);
    if (fd >= 0) close(fd);
    return s;
}

/* f->target and f->dir, behind links. Of a folder that is there its true name: neither a link nor
 * "." can change places with another folder. */
static lq_status set_names(conv_folder *f, const char *target, lq_err *err)
{
    char *behind = NULL;
    lq_status s = lq_out_target(&behind, target, err);
    if (s) return s;
    char *real = lq_is_dir(behind) ? realpath(behind, NULL) : NULL;
    const char *name = real ? real : behind;
    size_t len = strlen(name);
    while (len > 1 && name[len - 1] == '/')
        len--;
    const int a = snprintf(f->target, sizeof f->target, "%.*s", (int)len, name);
    const int b = snprintf(f->dir, sizeof f->dir, "%.*s.%s", (int)len, name,
                           f->flags & FOLDER_RESUME ? "resume" : "tmp");
    free(real);
    free(behind);
    if (a < 0 || b < 0 || (size_t)b >= sizeof f->dir)
        return lq_fail(err, LQ_EUSAGE, "%.100s...: expected a shorter name", target);
    return LQ_OK;
}

/* What is mounted cannot change places either. */
static lq_status not_mounted(const char *dir, lq_err *err)
{
    struct statx st;
    if (statx(AT_FDCWD, dir, 0, 0, &st) != 0 || !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: is a mount point, which stays: expected the name of a folder in it", dir);
}

static lq_status may_create(conv_folder *f, const char *target, unsigned flags, lq_err *err)
{
    f->lock = -1;
    f->flags = flags;
    lq_status s = set_names(f, target, err);
    if (!s && lq_exists(f->target) && !lq_is_dir(f->target))
        s = lq_fail(err, LQ_EUSAGE, "%s: expected a folder's name, found a file", f->target);
    if (!s) s = may_replace(f->target, flags, err);
    return s ? s : not_mounted(f->target, err);
}

/* The nearest folder above that is there must be one. */
static lq_status check_parents(const char *path, lq_err *err)
{
    char above[4096];
    snprintf(above, sizeof above, "%s", path);
    for (char *slash; (slash = strrchr(above, '/')) && slash > above;) {
        *slash = 0;
        if (lq_is_dir(above)) break;
        if (lq_exists(above))
            return lq_fail(err, LQ_EUSAGE, "%s: expected a folder %s, found a file", path, above);
    }
    return LQ_OK;
}

lq_status folder_check(const char *target, unsigned flags, lq_err *err)
{
    conv_folder f;
    const lq_status s = may_create(&f, target, flags, err);
    return s ? s : check_parents(f.target, err);
}

lq_status folder_create(conv_folder *f, const char *target, unsigned flags, lq_err *err)
{
    lq_status s = may_create(f, target, flags, err);
    if (!s) s = lq_make_parents(f->target, err);
    if (s) return s;
    const bool made = mkdir(f->dir, 0777) == 0;
    if (!made && errno != EEXIST) return io(f->dir, err);
    s = lock(f, err);
    if (!s) s = clear(f, err);
    if (!s) s = put_mark(f->dir, err);
    if (s && made) rmdir(f->dir);
    if (s && f->lock >= 0) close(f->lock);
    return s;
}

void folder_drop(conv_folder *f)
{
    if (empty_folder(f->dir)) { /* else it stays known as ours */
        take_mark(f->dir);
        rmdir(f->dir);
    }
    close(f->lock);
}

void folder_leave(conv_folder *f) { close(f->lock); }

/* Before each step what the ones before it did is on the disk: after a power cut too a name means
 * the whole folder, and an old one is gone only where the new one is there. */
lq_status folder_publish(conv_folder *f, lq_err *err)
{
    lq_status s = LQ_OK;
    (void)fsync(f->lock); /* the names in it; the files are synced when they are written */
    if (rename(f->dir, f->target) != 0) {
        const bool full = errno == ENOTEMPTY || errno == EEXIST;
        /* the mark: so that it may go after a kill from here on */
        s = full ? put_mark(f->target, err) : io(f->target, err);
        if (!s && renameat2(AT_FDCWD, f->dir, AT_FDCWD, f->target, RENAME_EXCHANGE) != 0) {
            s = io(f->target, err);
            take_mark(f->target);
        }
        if (s) {
            folder_drop(f);
            return s;
        }
        lq_sync_name(f->target);
        conv_folder old = *f;
        if (!lock(&old, NULL)) folder_drop(&old);
    }
    lq_sync_name(f->target);
    unlinkat(f->lock, MARK, 0);
    close(f->lock);
    return LQ_OK;
}

lq_status folder_path(char *out, size_t n, const conv_folder *f, const char *name, lq_err *err)
{
    lq_status s = lq_path_join(out, n, f->dir, name, err);
    char *slash = s || !strchr(name, '/') ? NULL : strrchr(out, '/');
    if (slash) {
        *slash = 0;
        if (mkdir(out, 0777) && errno != EEXIST) s = io(out, err);
        *slash = '/';
    }
    return s;
}

lq_status folder_write(const conv_folder *f, const char *name, const void *data, size_t n,
                       lq_err *err)
{
    char path[4200];
    lq_status s = folder_path(path, sizeof path, f, name, err);
    return s ? s : lq_write_file(path, data, n, err);
}

lq_status folder_write_json(const conv_folder *f, const char *name, const cJSON *j, lq_err *err)
{
    char *text = js_print(j, true);
    if (!text) return lq_fail(err, LQ_ENOMEM, "%s: no memory", name);
    lq_status s = folder_write(f, name, text, strlen(text), err);
    free(text);
    return s;
}
