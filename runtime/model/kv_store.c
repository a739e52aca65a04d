/* runtime/model/kv_store.c - see kv_store.h. */
#include "runtime/model/kv_store.h"

#include "base/clock.h"
#include "base/os.h"
#include "base/out_file.h"
#include "base/path.h"
#include "runtime/model/kv_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_TRIES = 1000, LOCK_NAP_NS = 10000000, SLACK = 32, PASSES = 4 };
static const char lock_name[] = "llmq-kv.lock", temp_name[] = "llmq-kv.tmp";

struct kv_store {
    char *dir;
    int fd, lock; /* of the folder; of llmq-kv.lock */
    size_t limit;
    uint64_t batch;     /* the number in the lock's file when the index was right */
    pthread_mutex_t mu; /* of the rest */
    kv_index index;
    uint64_t removed;
};

int64_t kvs_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

size_t kvs_least(size_t bytes) { return kvi_pages(bytes) * KVI_PAGE; }

/* ---- the folder ---- */

static void scan_entry(const kv_store *s, kv_index *x, const char *name)
{
    uint64_t key[2];
    kv_part part;
    struct stat st;
    if (!kvf_name_read(name, key, &part) || fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (S_ISREG(st.st_mode) && !st.st_size) { /* a power cut leaves such, many at a time */
        (void)unlinkat(s->fd, name, 0);
        return;
    }
    const struct timespec t = os_mtime(&st);
    (void)kvi_add(x, key, part, S_ISREG(st.st_mode) ? (size_t)st.st_size : 0,
                  (int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
}

/* The engine asks for what is known while this goes on: mu is for moments. */
static void scan(kv_store *s)
{
    kv_index fresh = { 0 };
    DIR *d = opendir(s->dir);
    for (struct dirent *e; d && (e = readdir(d));)
        scan_entry(s, &fresh, e->d_name);
    if (d) closedir(d);
    pthread_mutex_lock(&s->mu);
    kv_index old = s->index;
    s->index = fresh;
    pthread_mutex_unlock(&s->mu);
    kvi_clear(&old);
}

/* ---- room ---- */

/* Did another server use it since? */
static bool used_since(const kv_store *s, const char *name, kvi_file *f)
{
    struct stat st;
    if (fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
    const struct timespec t = os_mtime(&st);
    const int64_t used = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    const bool since = used > f->used;
    f->used = used;
    return since;
}

static bool has_room(kv_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->mu);
    const bool has = s->index.bytes + kvs_least(bytes) <= s->limit && s->index.n < KVS_FILES;
    pthread_mutex_unlock(&s->mu);
    return has;
}

static void remove_one(kv_store *s, kvi_file *f)
{
    char name[KVF_NAME];
    const kv_part part = (kv_part)(f->part - 1);
    kvf_name(name, f->key, part);
    const bool keep = used_since(s, name, f);
    if (!keep) (void)unlinkat(s->fd, name, 0);
    pthread_mutex_lock(&s->mu);
    if (keep) {
        kvi_used(&s->index, f->key, part, f->used);
    } else {
        kvi_remove(&s->index, f->key, part);
        s->removed++;
    }
    pthread_mutex_unlock(&s->mu);
}

/* A pass over the oldest, until there is room and some to spare. */
static void remove_oldest(kv_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->mu);
    kvi_file *old = kvi_copy(&s->index);
    const int64_t n = s->index.n;
    pthread_mutex_unlock(&s->mu);
    const size_t spare = bytes + s->limit / SLACK < s->limit ? bytes + s->limit / SLACK : bytes;
    if (old) kvi_sort(old, n);
    for (int64_t i = 0; old && i < n && !has_room(s, spare); i++)
        remove_one(s, &old[i]);
    free(old);
}

static bool make_room(kv_store *s, size_t bytes)
{
    for (int i = 0; i < PASSES && !has_room(s, bytes); i++)
        remove_oldest(s, bytes);
    return has_room(s, bytes);
}

/* ---- the lock ---- */

static bool is_over(const _Atomic double *until)
{
    const double t = until ? atomic_load(until) : 0;
    return t > 0 && lq_now() >= t;
}

bool kvs_begin(kv_store *s, const _Atomic double *until)
{
    uint64_t batch = 0;
    int tries = 0;
    while (flock(s->lock, LOCK_EX | LOCK_NB) != 0) {
        if (is_over(until) || (errno != EWOULDBLOCK && errno != EINTR) || ++tries > LOCK_TRIES)
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = LOCK_NAP_NS }, NULL);
    }
    if (pread(s->lock, &batch, sizeof batch, 0) != (ssize_t)sizeof batch) batch = 0;
    if (batch != s->batch) scan(s);
    s->batch = batch + 1; /* before anything changes: others look again, whatever comes */
    (void)!pwrite(s->lock, &s->batch, sizeof s->batch, 0);
    return true;
}

void kvs_end(kv_store *s) { (void)flock(s->lock, LOCK_UN); }

/* ---- opening ---- */

lq_status kvs_open(kv_store **out, const char *dir, size_t bytes, lq_err *err)
{
    *out = NULL;
    lq_status st = lq_private_folder(dir, err);
    if (st) return st;
    kv_store *s = calloc(1, sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", dir);
    s->lock = -1;
    s->limit = bytes;
    s->batch = UINT64_MAX;
    pthread_mutex_init(&s->mu, NULL);
    s->dir = strdup(dir);
    s->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->fd >= 0)
        s->lock = openat(s->fd, lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (!s->dir) st = lq_fail(err, LQ_ENOMEM, "%s: out of memory", dir);
    if (!st && s->fd < 0) st = lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    if (!st && s->lock < 0) st = lq_fail(err, LQ_EIO, "%s/%s: %s", dir, lock_name, strerror(errno));
    if (!st && kvs_begin(s, NULL)) {
        (void)make_room(s, 0);
        kvs_end(s);
    } else if (!st) {
        scan(s); /* the writer, once it is let */
    }
    if (st)
        kvs_close(s);
    else
        *out = s;
    return st;
}

void kvs_close(kv_store *s)
{
    if (!s) return;
    if (s->lock >= 0) close(s->lock);
    if (s->fd >= 0) close(s->fd);
    kvi_clear(&s->index);
    pthread_mutex_destroy(&s->mu);
    free(s->dir);
    free(s);
}

/* ---- files ---- */

bool kvs_has(const kv_store *s, const uint64_t key[2], kv_part part)
{
    char name[KVF_NAME];
    kvf_name(name, key, part);
    return faccessat(s->fd, name, F_OK, 0) == 0;
}

bool kvs_knows(kv_store *s, const uint64_t key[2], kv_part part)
{
    pthread_mutex_lock(&s->mu);
    const bool known = kvi_find(&s->index, key, part) != NULL;
    pthread_mutex_unlock(&s->mu);
    return known;
}

static struct timespec stamp(int64_t used)
{
    return (struct timespec){ .tv_sec = used / 1000000000, .tv_nsec = used % 1000000000 };
}

void kvs_use(kv_store *s, const uint64_t key[2], kv_part part, int64_t used)
{
    char name[KVF_NAME];
    kvf_name(name, key, part);
    const struct timespec t[2] = { stamp(used), stamp(used) };
    if (utimensat(s->fd, name, t, AT_SYMLINK_NOFOLLOW) != 0) return;
    pthread_mutex_lock(&s->mu);
    kvi_used(&s->index, key, part, used);
    pthread_mutex_unlock(&s->mu);
}

static lq_status write_file(const kv_store *s, const char *name, const uint8_t *file, size_t n,
                            int64_t used, lq_err *err)
{
    const struct timespec t[2] = { stamp(used), stamp(used) };
    (void)unlinkat(s->fd, temp_name, 0); /* of one that was killed */
    const int fd =
        openat(s->fd, temp_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", s->dir, strerror(errno));
    lq_status st = lq_write_all(fd, file, n, s->dir, err);
    (void)futimens(fd, t);
    if (close(fd) != 0 && !st) st = lq_fail(err, LQ_EIO, "%s: %s", s->dir, strerror(errno));
    if (!st && renameat(s->fd, temp_name, s->fd, name) != 0)
        st = lq_fail(err, LQ_EIO, "%s: %s", s->dir, strerror(errno));
    if (st) (void)unlinkat(s->fd, temp_name, 0);
    return st;
}

/* As far as its size tells. */
static bool is_whole(const kv_store *s, const char *name, size_t n)
{
    struct stat st;
    return fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size == n;
}

lq_status kvs_put(kv_store *s, const kvf_what *w, uint8_t *file, int64_t used, bool *written,
                  lq_err *err)
{
    char name[KVF_NAME];
    const size_t n = KVF_HEAD + w->bytes;
    *written = false;
    kvf_name(name, w->key, w->part);
    if (is_whole(s, name, n)) {
        kvs_use(s, w->key, w->part, used);
        return LQ_OK;
    }
    if (!make_room(s, n))
        return lq_fail(err, LQ_EVALUE, "%s: expected room for %zu bytes, found a limit of %zu",
                       s->dir, n, s->limit);
    kvf_seal(file, w);
    const lq_status st = write_file(s, name, file, n, used, err);
    if (st) return st;
    pthread_mutex_lock(&s->mu);
    (void)kvi_add(&s->index, w->key, w->part, n, used);
    pthread_mutex_unlock(&s->mu);
    *written = true;
    return LQ_OK;
}

/* Is there exactly so much in a plain file? Then it is read. */
static bool read_whole(int fd, uint8_t *file, size_t n)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != n) return false;
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, file + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

kvs_found kvs_read(kv_store *s, const kvf_what *w, uint8_t *file, int64_t used)
{
    char name[KVF_NAME];
    const size_t n = KVF_HEAD + w->bytes;
    const struct timespec t[2] = { stamp(used), stamp(used) };
    kvf_name(name, w->key, w->part);
    const int fd = openat(s->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool missing = fd < 0 && errno != ELOOP; /* a link is nobody's of us */
    const bool good = fd >= 0 && read_whole(fd, file, n) && !kvf_check(file, n, w);
    if (good) (void)futimens(fd, t);
    if (fd >= 0) close(fd);
    if (!good && !missing) (void)unlinkat(s->fd, name, 0);
    pthread_mutex_lock(&s->mu);
    if (good)
        (void)kvi_add(&s->index, w->key, w->part, n, used);
    else
        kvi_remove(&s->index, w->key, w->part);
    pthread_mutex_unlock(&s->mu);
    return good ? KVS_READ : missing ? KVS_MISSING : KVS_DAMAGED;
}

void kvs_stats_get(kv_store *s, kvs_stats *st)
{
    pthread_mutex_lock(&s->mu);
    *st = (kvs_stats){ s->index.n, s->index.bytes, s->removed };
    pthread_mutex_unlock(&s->mu);
}
