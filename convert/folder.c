/* convert/folder.c */
#include "convert/folder.h"

#include "base/file.h"
#include "base/os.h"
#include "base/out_file.h"
#include "base/path.h"
#include "formats/hf/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIST ".llmq-files"  /* of one that is whole: the files that llmq wrote, a name a line */
#define BEGUN ".llmq-begun" /* of one that grows: what it becomes, and the same */
#define LIST_HEAD "# Written by llmq, which replaces this folder while nothing else is in it:\n"
enum { MAX_LIST = 4 << 20, TEMP_TAIL = 6 }; /* of x.tmp-XXXXXX (base/file.c) */

static lq_status io(const char *path, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
}

/* ---- what llmq wrote ---- */
typedef struct {
    char *text; /* of BEGUN, then of LIST; NULL: there is neither */
    size_t n;
    bool listed, whole; /* LIST is there; and is llmq's */
} list;

static lq_status add_list(list *l, const char *dir, const char *name, lq_err *err)
{
    char path[4200], *text = NULL;
    size_t n = 0;
    struct stat st;
    lq_status s = lq_path_join(path, sizeof path, dir, name, err);
    if (s || lstat(path, &st) != 0) return s;
    if (!S_ISREG(st.st_mode))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: holds a %s that is no plain file, and llmq did not make it: "
                       "expected another name, or remove it first",
                       dir, name);
    s = lq_read_file(&text, &n, path, MAX_LIST, err);
    char *both = s ? NULL : realloc(l->text, l->n + n + 1);
    if (!s && !both) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s) {
        memcpy(both + l->n, text, n);
        both[l->n + n] = '\n';
        l->text = both;
        l->n += n + 1;
        const size_t head = strlen(LIST_HEAD);
        l->listed = strcmp(name, LIST) == 0;
        l->whole = l->listed && n >= head && memcmp(text, LIST_HEAD, head) == 0;
    }
    free(text);
    return s;
}

/* On an error, too, to be freed. */
static lq_status read_lists(list *l, const char *dir, lq_err *err)
{
    *l = (list){ .text = NULL };
    lq_status s = add_list(l, dir, BEGUN, err);
    return s ? s : add_list(l, dir, LIST, err);
}

static bool is_line(const list *l, const char *name, size_t n)
{
    for (size_t at = 0, len; at < l->n; at += len + 1) {
        const char *end = memchr(l->text + at, '\n', l->n - at);
        len = end ? (size_t)(end - l->text) - at : l->n - at;
        if (len == n && memcmp(l->text + at, name, n) == 0) return true;
    }
    return false;
}

/* Also a file on its way to its name, which a kill left. Lists may be anybody's: what no model has
 * is not llmq's, whatever they say. */
static bool is_listed(const list *l, const char *name)
{
    static const char temp[] = ".tmp-";
    char whole[4200];
    size_t n = strlen(name);
    const size_t tail = sizeof temp - 1 + TEMP_TAIL;
    const bool on_its_way = n > tail && memcmp(name + n - tail, temp, sizeof temp - 1) == 0;
    snprintf(whole, sizeof whole, "%.*s", (int)(on_its_way ? n - tail : n), name);
    n = strlen(whole);
    return (on_its_way && strcmp(whole, LIST) == 0) ||
           ((model_file_of(whole) || model_side_file(whole)) && is_line(l, whole, n));
}

/* Does the list name a file in the folder `name`? */
static bool lists_within(const list *l, const char *name)
{
    const size_t n = strlen(name);
    for (size_t at = 0; at + n < l->n;) {
        if (memcmp(l->text + at, name, n) == 0 && l->text[at + n] == '/') return true;
        const char *end = memchr(l->text + at, '\n', l->n - at);
        if (!end) return false;
        at = (size_t)(end - l->text) + 1;
    }
    return false;
}

/* One thing in a folder of llmq's. */
typedef struct {
    int dir;          /* it lies there */
    const char *file; /* as that names it */
    const char *name; /* with the folder of templates before it */
    bool ours;        /* a plain file that the list names */
} entry;

typedef struct {
    bool (*wanted)(void *user, const char *name); /* NULL: nothing is */
    void *user;
    bool left; /* something is */
} removing;

static lq_status remove_entry(void *user, const entry *e, lq_err *err)
{
    removing *r = user;
    (void)err;
    if (r->wanted && r->wanted(r->user, e->name)) return LQ_OK;
    if (!e->ours || unlinkat(e->dir, e->file, 0) != 0) r->left = true;
    return LQ_OK;
}

/* All that lies in the folder but the lists: what llmq wrote and what it did not, until `see` says
 * no. Nothing is reached through a name in the list, which may be anybody's. */
static lq_status walk(const char *top, const char *sub, const list *l,
                      lq_status (*see)(void *user, const entry *e, lq_err *err), void *user,
                      lq_err *err)
{
    char path[4200], name[4200];
    lq_status s = lq_path_join(path, sizeof path, top, sub, err);
    DIR *d = s ? NULL : opendir(path);
    if (!s && !d) s = io(path, err);
    for (struct dirent *e; !s && (e = lq_next_entry(&s, d, path, err));) {
        struct stat st;
        if (!*sub && (strcmp(e->d_name, LIST) == 0 || strcmp(e->d_name, BEGUN) == 0)) continue;
        snprintf(name, sizeof name, "%s%s%s", sub, *sub ? "/" : "", e->d_name);
        const bool there = fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (!there && errno == ENOENT) continue; /* it has gone meanwhile */
        if (there && S_ISDIR(st.st_mode) &&
            (strcmp(name, MODEL_TEMPLATES) == 0 || lists_within(l, name))) {
            s = walk(top, name, l, see, user, err);
            if (see == remove_entry) unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR); /* if empty */
            continue;
        }
        const bool ours = there && S_ISREG(st.st_mode) && is_listed(l, name);
        s = see(user, &(entry){ dirfd(d), e->d_name, name, ours }, err);
    }
    if (d) closedir(d);
    return s;
}

typedef struct {
    const char *dir;
    bool ours; /* the folder itself is */
    const char *whose;
} checking;

static lq_status check_entry(void *user, const entry *e, lq_err *err)
{
    const checking *c = user;
    if (!c->ours)
        return lq_fail(err, LQ_EUSAGE,
                       "%s: holds %s, and %s: expected another name, or remove it first", c->dir,
                       e->name, c->whose);
    if (e->ours) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: holds %s, which llmq did not write there: move that elsewhere, or take "
                   "another name",
                   c->dir, e->name);
}

/* The one rule of what may be replaced or emptied: what lies there llmq wrote, by the lists. */
static lq_status check_ours(const char *dir, lq_err *err)
{
    list l;
    if (!lq_is_dir(dir)) return LQ_OK;
    lq_status s = read_lists(&l, dir, err);
    checking c = { dir, l.whole,
                   l.listed ? "its " LIST " is not llmq's"
                            : "llmq did not make it (no " LIST " in it)" };
    if (!s) s = walk(dir, "", &l, check_entry, &c, err);
    free(l.text);
    return s;
}

/* What llmq wrote, whatever came beside it meanwhile. */
static void remove_files(const char *dir, removing *r)
{
    list l;
    if (read_lists(&l, dir, NULL) || walk(dir, "", &l, remove_entry, r, NULL)) r->left = true;
    free(l.text);
}

/* The lists last: a folder in which anything is left stays known as ours, whenever a kill comes. */
static void empty_folder(const char *dir)
{
    static const char *const lists[] = { LIST, BEGUN };
    char path[4200];
    removing all = { .wanted = NULL };
    remove_files(dir, &all);
    for (size_t i = 0; i < LQ_COUNT(lists) && !all.left; i++)
        if (!lq_path_join(path, sizeof path, dir, lists[i], NULL)) unlink(path);
}

/* ---- the lists while the folder grows ---- */
static lq_status folder_no_memory(lq_err *err) { return lq_fail(err, LQ_ENOMEM, "out of memory"); }

static lq_status put_text(int fd, const char *path, const char *text, size_t n, lq_err *err)
{
    if (fd < 0) return io(path, err);
    lq_status s = lq_write_all(fd, text, n, path, err);
    return s || fsync(fd) == 0 ? s : io(path, err);
}

/* `text` and a newline, behind what stands there or, with O_TRUNC, in its place. */
static lq_status put_begun(const conv_folder *f, int how, const char *before, const char *text,
                           lq_err *err)
{
    lq_buf b = { 0 };
    lq_buf_puts(&b, before);
    lq_buf_puts(&b, text);
    lq_buf_puts(&b, "\n");
    const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | how;
    const int fd = b.oom ? -1 : openat(f->lock, BEGUN, flags, 0666);
    lq_status s = b.oom ? folder_no_memory(err) : put_text(fd, f->dir, b.p, b.n, err);
    if (fd >= 0) close(fd);
    free(b.p);
    return s;
}

/* Before the file is there: so a kill leaves nothing that the list does not name. What a kill left
 * of an earlier line ends at the newline before this one. */
static lq_status add_name(const conv_folder *f, const char *name, lq_err *err)
{
    return put_begun(f, O_APPEND, "\n", name, err);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The first line. */
static void head_of(char *head, size_t n, const conv_folder *f)
{
    snprintf(head, n, "# Begun by llmq, to become: %s", last_part(f->target));
}

/* That the folder `st` describes is replaced: it lies at f->dir then, until it is gone. */
static void replaces(char *line, size_t n, const struct stat *st)
{
    snprintf(line, n, "# In place of %llu:%llu", (unsigned long long)st->st_dev,
             (unsigned long long)st->st_ino);
}

typedef struct {
    const char *dir;
    char **v;
    size_t n;
} names;

static lq_status keep_name(void *user, const entry *e, lq_err *err)
{
    names *to = user;
    if (!e->ours) return check_entry(&(checking){ to->dir, true, NULL }, e, err);
    char **more = realloc(to->v, (to->n + 1) * sizeof *more);
    if (!more) return folder_no_memory(err);
    to->v = more;
    to->v[to->n] = strdup(e->name);
    return to->v[to->n++] ? LQ_OK : folder_no_memory(err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of the names those whose files are there, in their order: the folder is whole. LQ_EUSAGE: it
 * holds something else. */
static lq_status end_list(const conv_folder *f, lq_err *err)
{
    list l;
    char path[4200];
    names of = { f->dir, NULL, 0 };
    lq_buf b = { 0 };
    lq_status s = read_lists(&l, f->dir, err);
    if (!s) s = walk(f->dir, "", &l, keep_name, &of, err);
    if (!s && of.n) qsort(of.v, of.n, sizeof *of.v, by_name);
    lq_buf_puts(&b, LIST_HEAD);
    for (size_t i = 0; i < of.n; i++) {
        if (!s) lq_buf_puts(&b, of.v[i]);
        if (!s) lq_buf_puts(&b, "\n");
        free(of.v[i]);
    }
    if (!s && b.oom) s = folder_no_memory(err);
    if (!s) s = lq_path_join(path, sizeof path, f->dir, LIST, err);
    if (!s) s = lq_write_file(path, b.p, b.n, err);
    free(of.v);
    free(b.p);
    free(l.text);
    return s;
}

/* ---- the folder while it grows ---- */
/* Take the lock of what lies at f->dir now. */
static lq_status lock(conv_folder *f, lq_err *err)
{
    struct stat held, named = { 0 };
    f->lock = open(f->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->lock < 0 && (errno == ENOTDIR || errno == ELOOP))
        return lq_fail(err, LQ_EUSAGE, "%s: is in the way: expected nothing there, or a folder",
                       f->dir);
    if (f->lock < 0) return io(f->dir, err);
    const bool locked = flock(f->lock, LOCK_EX | LOCK_NB) == 0;
    const bool seen = fstat(f->lock, &held) == 0 && (stat(f->dir, &named) == 0 || errno == ENOENT);
    lq_status s = LQ_OK;
    if (!seen)
        s = io(f->dir, err);
    else if (!locked || held.st_nlink == 0 || held.st_ino != named.st_ino ||
             held.st_dev != named.st_dev)
        s = lq_fail(err, LQ_EBUSY, "%s: another process is writing it", f->dir);
    if (!s) return s;
    close(f->lock);
    f->lock = -1;
    return s;
}

/* Was what lies at f->dir begun for this target? */
static bool is_begun(const conv_folder *f, const list *l)
{
    char head[4200];
    head_of(head, sizeof head, f);
    const size_t n = strlen(head);
    return l->n > n && memcmp(l->text, head, n) == 0 && l->text[n] == '\n';
}

/* Or is it what was replaced when a kill came? */
static lq_status is_replaced(bool *yes, const conv_folder *f, lq_err *err)
{
    char line[64];
    struct stat st;
    list l;
    *yes = false;
    if (fstat(f->lock, &st) != 0 || !lq_is_dir(f->target)) return LQ_OK;
    replaces(line, sizeof line, &st);
    lq_status s = read_lists(&l, f->target, err);
    *yes = !s && is_line(&l, line, strlen(line));
    free(l.text);
    return s;
}

/* A name of ours is no file of ours where it is one of two: what is written there would be in both.
 */
static lq_status unlink_shared(void *user, const entry *e, lq_err *err)
{
    struct stat st;
    (void)user;
    if (!e->ours || fstatat(e->dir, e->file, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_nlink < 2)
        return LQ_OK;
    return unlinkat(e->dir, e->file, 0) == 0 ? LQ_OK : io(e->name, err);
}

/* f->dir exists and is locked: what a killed run left goes (or stays, to be gone on with), anything
 * else is in the way. */
static lq_status folder_begin(const conv_folder *f, lq_err *err)
{
    list l;
    bool replaced = false;
    char head[4200];
    lq_status s = read_lists(&l, f->dir, err);
    const bool begun = !s && is_begun(f, &l), go_on = begun && f->resume;
    if (!s && !begun) s = is_replaced(&replaced, f, err);
    checking c = { f->dir, begun || replaced, "llmq did not begin it for that name" };
    if (!s) s = walk(f->dir, "", &l, check_entry, &c, err);
    if (!s && go_on) s = walk(f->dir, "", &l, unlink_shared, NULL, err);
    free(l.text);
    if (s || go_on) return s;
    empty_folder(f->dir);
    head_of(head, sizeof head, f);
    return put_begun(f, O_TRUNC, head, "", err);
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
    const int b =
        snprintf(f->dir, sizeof f->dir, "%.*s.%s", (int)len, name, f->resume ? "resume" : "tmp");
    free(real);
    free(behind);
    if (a < 0 || b < 0 || (size_t)b >= sizeof f->dir)
        return lq_fail(err, LQ_EUSAGE, "%.100s...: expected a shorter name", target);
    const char *last = last_part(f->target);
    const size_t n = strlen(last), more = (size_t)(b - a) + strlen("-git"); /* publish/git.h */
    if (n <= NAME_MAX && n + more > NAME_MAX)
        return lq_fail(err, LQ_EUSAGE,
                       "output: expected a folder's name of at most %zu bytes, found %zu: %.40s...",
                       NAME_MAX - more, n, last);
    return LQ_OK;
}

/* What is mounted cannot change places either. */
static lq_status not_mounted(const char *dir, lq_err *err)
{
    if (!os_is_mount(dir)) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: is a mount point, which stays: expected the name of a folder in it", dir);
}

/* Files in it could not be removed once another folder has its name. */
static lq_status not_protected(const char *dir, lq_err *err)
{
    char sub[4200];
    lq_status s = lq_path_join(sub, sizeof sub, dir, MODEL_TEMPLATES, err);
    const char *const both[] = { dir, sub };
    for (size_t i = 0; i < LQ_COUNT(both) && !s; i++)
        if (lq_is_dir(both[i]) && access(both[i], W_OK | X_OK) != 0)
            s = lq_fail(err, LQ_EIO, "%s: %s: expected a folder that may be replaced", both[i],
                        strerror(errno));
    return s;
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

/* Nor what somebody is in: it would be there no more. */
static lq_status not_worked_in(const char *dir, lq_err *err)
{
    if (!lq_is_dir(dir) || !lq_is_inside(".", dir)) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: is the working folder or above it, which stays: expected the name of "
                   "another",
                   dir);
}

static lq_status may_create(conv_folder *f, const char *target, bool resume, lq_err *err)
{
    f->lock = -1;
    f->resume = resume;
    lq_status s = set_names(f, target, err);
    if (!s && lq_exists(f->target) && !lq_is_dir(f->target))
        s = lq_fail(err, LQ_EUSAGE, "%s: expected a folder's name, found a file", f->target);
    if (!s) s = not_worked_in(f->target, err);
    if (!s) s = check_parents(f->target, err);
    if (!s) s = check_ours(f->target, err);
    if (!s) s = not_protected(f->target, err);
    return s ? s : not_mounted(f->target, err);
}

lq_status folder_check(const char *target, lq_err *err)
{
    conv_folder f;
    return may_create(&f, target, false, err);
}

lq_status folder_create(conv_folder *f, const char *target, bool resume, lq_err *err)
{
    lq_status s = may_create(f, target, resume, err);
    if (!s) s = lq_make_parents(f->target, err);
    if (s) return s;
    const bool made = mkdir(f->dir, 0777) == 0;
    if (!made && errno != EEXIST) return io(f->dir, err);
    s = lock(f, err);
    const bool busy = s == LQ_EBUSY; /* then it is another's */
    if (!s) s = folder_begin(f, err);
    if (s && made && !busy) {
        empty_folder(f->dir);
        rmdir(f->dir);
    }
    if (s && f->lock >= 0) close(f->lock);
    return s;
}

void folder_drop(conv_folder *f)
{
    empty_folder(f->dir);
    rmdir(f->dir); /* when it is empty */
    close(f->lock);
}

void folder_leave(conv_folder *f) { close(f->lock); }

/* The old folder goes, but for what came into it since it was looked at. */
static lq_status exchange(conv_folder *f, lq_err *err)
{
    char line[64];
    struct stat st;
    lq_status s = check_ours(f->target, err);
    if (!s && stat(f->target, &st) != 0) s = io(f->target, err);
    if (s) return s;
    replaces(line, sizeof line, &st);
    s = add_name(f, line, err);
    (void)fsync(f->lock);
    if (!s && !os_exchange(f->dir, f->target)) s = io(f->target, err);
    if (s) return s;
    lq_sync_name(f->target);
    conv_folder old = *f;
    if (!lock(&old, NULL)) folder_drop(&old);
    return LQ_OK;
}

/* Before each step what the ones before it did is on the disk: after a power cut too a name means
 * the whole folder, and an old one is gone only where the new one is there. BEGUN goes when nothing
 * lies at f->dir any more: until then what does is known as this run's. */
lq_status folder_publish(conv_folder *f, lq_err *err)
{
    lq_status s = end_list(f, err);
    (void)fsync(f->lock); /* the names in it; the files are synced when they are written */
    if (!s && rename(f->dir, f->target) != 0)
        s = errno == ENOTEMPTY || errno == EEXIST ? exchange(f, err) : io(f->target, err);
    if (s && !f->resume) {
        folder_drop(f);
        return s;
    }
    if (!s) lq_sync_name(f->target);
    if (!s && !lq_exists(f->dir)) unlinkat(f->lock, BEGUN, 0);
    folder_leave(f);
    return s;
}

void folder_keep(const conv_folder *f, bool (*wanted)(void *user, const char *name), void *user)
{
    remove_files(f->dir, &(removing){ wanted, user, false });
}

lq_status folder_path(char *out, size_t n, const conv_folder *f, const char *name, lq_err *err)
{
    lq_status s = lq_path_join(out, n, f->dir, name, err);
    if (!s) s = add_name(f, name, err);
    const size_t top = strlen(f->dir) + 1;
    for (char *slash = out + top; !s && (slash = strchr(slash, '/')); slash++) {
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
