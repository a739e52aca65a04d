/* publish/files.c */
#include "publish/files.h"

#include "base/json.h"
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */
/* Printable, of no meaning to a shell, and the same on every file system. */
static bool plain_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("._-+=@ ()", c));
}

lq_status pub_check_name(const char *name, lq_err *err)
{
    const char *slash = strchr(name, '/'), *file = name;
    const bool module = model_module_path(name);
    if (module || (slash && strncmp(name, MODEL_TEMPLATES "/", strlen(MODEL_TEMPLATES "/")) == 0))
        file = slash + 1;
    const size_t n = strlen(file);
    const char *why = NULL;
    if (!n || strlen(name) > PUB_MAX_NAME)
        why = "a name of 1 to 200 bytes";
    else if (file[0] == '-' || file[0] == ' ' || file[n - 1] == ' ')
        why = "a name that begins with no dash and has no blank at its ends";
    for (size_t i = 0; i < n && !why; i++)
        if (!plain_byte(file[i])) why = "letters, digits and ._-+=@() alone, in no other folder";
    if (!why && (!model_file_of(file) || (file[0] == '.' && strcmp(name, PUB_ATTRIBUTES) != 0)))
        why = "a file of a model";
    if (!why && file != name && !module && !lq_has_ending(file, ".jinja"))
        why = "a template in that folder";
    return why ? lq_fail(err, LQ_EFORMAT, "file name: expected %s, found '%.100s'", why, name)
               : LQ_OK;
}

/* ---- lists ---- */
static lq_status files_no_memory(lq_err *err) { return lq_fail(err, LQ_ENOMEM, "out of memory"); }

static void file_free(pub_file *f)
{
    free(f->name);
    free(f->path);
    free(f->data);
}

void pub_files_free(pub_files *fs)
{
    for (size_t i = 0; i < fs->n; i++)
        file_free(&fs->f[i]);
    free(fs->f);
    *fs = (pub_files){ NULL, 0 };
}

lq_status pub_add(pub_files *fs, const char *name, pub_file **f, lq_err *err)
{
    lq_status s = pub_check_name(name, err);
    for (size_t i = 0; i < fs->n && !s; i++)
        if (strcasecmp(fs->f[i].name, name) == 0)
            s = lq_fail(err, LQ_EFORMAT, "file name: '%s' is there twice (as '%s')", name,
                        fs->f[i].name);
    if (!s && fs->n == PUB_MAX_FILES)
        s = lq_fail(err, LQ_EFORMAT, "expected at most %d files, found more", PUB_MAX_FILES);
    if (s) return s;
    pub_file *more = realloc(fs->f, (fs->n + 1) * sizeof *more);
    if (!more) return files_no_memory(err);
    fs->f = more;
    pub_file *new = &fs->f[fs->n];
    *new = (pub_file){ .name = strdup(name), .kind = model_file_of(name) };
    if (!new->name) return files_no_memory(err);
    fs->n++;
    if (f) *f = new;
    return LQ_OK;
}

lq_status pub_add_path(pub_files *fs, const char *name, const char *path, lq_err *err)
{
    struct stat st;
    pub_file *f;
    if (stat(path, &st) != 0) return lq_open_failed(err, path);
    if (!S_ISREG(st.st_mode))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a plain file, found none", path);
    lq_status s = pub_add(fs, name, &f, err);
    if (s) return s;
    f->bytes = (uint64_t)st.st_size;
    f->path = strdup(path);
    return f->path ? LQ_OK : files_no_memory(err);
}

lq_status pub_add_data(pub_files *fs, const char *name, const void *data, size_t n, lq_err *err)
{
    pub_file *f;
    lq_status s = pub_add(fs, name, &f, err);
    if (s) return s;
    f->bytes = n;
    f->data = malloc(n ? n : 1);
    if (!f->data) return files_no_memory(err);
    if (n) memcpy(f->data, data, n);
    return LQ_OK;
}

pub_file *pub_find(const pub_files *fs, const char *name)
{
    for (size_t i = 0; i < fs->n; i++)
        if (strcmp(fs->f[i].name, name) == 0) return &fs->f[i];
    return NULL;
}

void pub_remove(pub_files *fs, const char *name)
{
    pub_file *f = pub_find(fs, name);
    if (!f) return;
    file_free(f);
    memmove(f, f + 1, (size_t)(fs->f + fs->n - f - 1) * sizeof *f);
    fs->n--;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const pub_file *)a)->name, ((const pub_file *)b)->name);
}

void pub_sort(pub_files *fs)
{
    if (fs->n) qsort(fs->f, fs->n, sizeof *fs->f, by_name);
}

uint64_t pub_bytes(const pub_files *fs)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < fs->n; i++)
        sum += fs->f[i].bytes;
    return sum;
}

/* ---- bytes ---- */
enum { PIECE = 1 << 20 };

static lq_status read_pieces(int fd, const pub_file *f, uint64_t off, uint8_t *buf, pub_sink *sink,
                             void *user, const lq_job *job, lq_err *err)
{
    lq_status s = LQ_OK;
    while (!s && off < f->bytes) {
        const uint64_t left = f->bytes - off;
        const ssize_t n = pread(fd, buf, left < PIECE ? (size_t)left : PIECE, (off_t)off);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return lq_fail(err, LQ_EIO, "%s: expected %llu bytes, found %s", f->path,
                           (unsigned long long)f->bytes, n ? strerror(errno) : "its end before");
        off += (uint64_t)n;
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted")
                            : sink(user, buf, (size_t)n, err);
    }
    return s;
}

lq_status pub_read(const pub_file *f, uint64_t off, pub_sink *sink, void *user, const lq_job *job,
                   lq_err *err)
{
    if (f->data) return sink(user, f->data + off, (size_t)(f->bytes - off), err);
    uint8_t *buf = malloc(PIECE);
    const int fd = buf ? open(f->path, O_RDONLY | O_CLOEXEC) : -1;
    lq_status s = !buf     ? files_no_memory(err)
                  : fd < 0 ? lq_open_failed(err, f->path)
                           : read_pieces(fd, f, off, buf, sink, user, job, err);
    if (fd >= 0) close(fd);
    free(buf);
    return s;
}

typedef struct {
    sha_state sha;
    const lq_job *job;
    double done, total;
} hashing;

static lq_status hash_piece(void *user, const void *data, size_t n, lq_err *err)
{
    (void)err;
    hashing *h = user;
    sha_add(&h->sha, data, n);
    h->done += (double)n;
    lq_report(h->job, "digests", h->done, h->total);
    return LQ_OK;
}

lq_status pub_hash(pub_files *fs, const lq_job *job, lq_err *err)
{
    hashing h = { .job = job, .total = (double)pub_bytes(fs) };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < fs->n && !s; i++) {
        if (fs->f[i].sha256[0]) continue;
        sha_init(&h.sha);
        s = pub_read(&fs->f[i], 0, hash_piece, &h, job, err);
        if (!s) sha_end(fs->f[i].sha256, &h.sha);
    }
    return s;
}

/* ---- SHA256SUMS ---- */
lq_status pub_add_sums(pub_files *fs, lq_err *err)
{
    lq_buf b = { 0 };
    pub_sort(fs);
    for (size_t i = 0; i < fs->n; i++) {
        lq_buf_puts(&b, fs->f[i].sha256);
        lq_buf_puts(&b, "  ");
        lq_buf_puts(&b, fs->f[i].name);
        lq_buf_puts(&b, "\n");
    }
    lq_status s = b.oom ? files_no_memory(err) : pub_add_data(fs, PUB_SUMS, b.p, b.n, err);
    free(b.p);
    if (!s) sha_of(pub_find(fs, PUB_SUMS)->sha256, pub_find(fs, PUB_SUMS)->data, b.n);
    pub_sort(fs);
    return s;
}

static lq_status read_line(pub_files *out, const char *line, size_t n, lq_err *err)
{
    char name[PUB_MAX_NAME + 1];
    pub_file *f;
    const size_t at = SHA_HEX + 1; /* two blanks, or one and a star, behind the digits */
    if (n <= at || n - at > PUB_MAX_NAME || !sha_is_hex(line, SHA_HEX - 1) ||
        line[SHA_HEX - 1] != ' ' || (line[SHA_HEX] != ' ' && line[SHA_HEX] != '*') ||
        memchr(line, 0, n))
        return lq_fail(err, LQ_EFORMAT, "expected 64 hex digits, two blanks and a file's name");
    snprintf(name, sizeof name, "%.*s", (int)(n - at), line + at);
    lq_status s = strcmp(name, PUB_SUMS) == 0
                      ? lq_fail(err, LQ_EFORMAT, "expected no sum of itself, found one")
                      : pub_add(out, name, &f, err);
    if (!s) snprintf(f->sha256, sizeof f->sha256, "%.*s", SHA_HEX - 1, line);
    return s;
}

lq_status pub_read_sums(pub_files *out, const char *text, size_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    size_t number = 1;
    for (size_t at = 0, len; at < n && !s; at += len + 1, number++) {
        const char *end = memchr(text + at, '\n', n - at);
        len = end ? (size_t)(end - (text + at)) : n - at;
        s = read_line(out, text + at, len, err);
    }
    if (!s && !out->n) s = lq_fail(err, LQ_EFORMAT, "expected a file's sum, found none");
    if (s) {
        pub_files_free(out);
        return lq_wrap(err, s, PUB_SUMS ": line %zu", number > 1 ? number - 1 : number);
    }
    return LQ_OK;
}

lq_status pub_check_sum(const pub_files *sums, const char *name, const char *sha256, lq_err *err)
{
    const pub_file *f = pub_find(sums, name);
    if (!f) return lq_fail(err, LQ_ECHECK, "%s: expected in " PUB_SUMS ", not found there", name);
    if (strcmp(f->sha256, sha256) != 0)
        return lq_fail(err, LQ_ECHECK, "%s: expected SHA-256 %s, found %s", name, f->sha256,
                       sha256);
    return LQ_OK;
}
