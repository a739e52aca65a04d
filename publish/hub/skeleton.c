/* publish/hub/skeleton.c - see skeleton.h. */
#include "publish/hub/skeleton.h"

#include "base/file.h"
#include "base/out_file.h"
#include "base/path.h"
#include "formats/gguf/gguf.h"
#include "formats/hf/model_files.h"
#include "formats/hf/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE_BYTES = 2 << 20, FIRST_BYTES = 1 << 18, NEAR_BYTES = 1 << 16, MAX_HEAD = 256 << 20 };

/* A file of the skeleton, and how much of its beginning is there. */
typedef struct {
    hub_conn *c;
    const char *commit;
    const hub_entry *e;
    const lq_job *job;
    char path[HUB_PICK + 4200];
    int fd;
    uint64_t have;
} bone;

/* ---- bytes ---- */
/* [from, to), at most the file's end. */
static lq_status bring(bone *b, uint64_t from, uint64_t to, lq_err *err)
{
    lq_status s = LQ_OK;
    if (to > b->e->bytes) to = b->e->bytes;
    while (!s && from < to) {
        uint8_t *data = NULL;
        size_t n = 0;
        const uint64_t end = to - from > PIECE_BYTES ? from + PIECE_BYTES : to;
        s = hub_get_range(&data, &n, b->c, b->commit, b->e, from, end, err);
        if (!s && n != end - from)
            s = lq_fail(err, LQ_EIO, "%s: expected %llu bytes, found %zu", b->e->path,
                        (unsigned long long)(end - from), n);
        if (!s && pwrite(b->fd, data, n, (off_t)from) != (ssize_t)n)
            s = lq_fail(err, LQ_EIO, "%s: %s", b->path, strerror(errno));
        free(data);
        from = end;
    }
    return s;
}

/* The first `to` bytes. */
static lq_status bring_head(bone *b, uint64_t to, lq_err *err)
{
    if (to > MAX_HEAD)
        return lq_fail(err, LQ_EFORMAT, "%s: expected a header of at most %d bytes, found more",
                       b->e->path, MAX_HEAD);
    if (to <= b->have) return LQ_OK;
    lq_status s = bring(b, b->have, to, err);
    b->have = to;
    return s;
}

static uint64_t le_at(const bone *b, off_t at)
{
    uint8_t p[8] = { 0 };
    uint64_t v = 0;
    if (pread(b->fd, p, sizeof p, at) != sizeof p) return UINT64_MAX; /* a shorter file */
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* ---- where the header of each format is ---- */
/* Of quantized layouts what is looked at when they are opened, besides tensors of a few bytes. */
static bool is_value(const st_tensor *t)
{
    static const char *const parts[] = { "g_idx", "qzeros", "zero_point", "quant_state" };
    bool named = t->bytes <= 64;
    for (size_t i = 0; i < LQ_COUNT(parts) && !named; i++)
        named = strstr(t->name, parts[i]) != NULL;
    return named;
}

typedef struct {
    uint64_t from, to;
} range;

static int by_from(const void *a, const void *b)
{
    const range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Ranges that are near to each other come together. */
static lq_status bring_ranges(bone *b, range *r, size_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    qsort(r, n, sizeof *r, by_from);
    for (size_t i = 0, k; i < n && !s; i = k) {
        uint64_t to = r[i].to;
        for (k = i + 1; k < n && r[k].from <= to + NEAR_BYTES; k++)
            to = r[k].to;
        s = bring(b, r[i].from, to, err);
        lq_report(b->job, b->e->path, (double)k, (double)n);
    }
    return s;
}

static lq_status bring_values(bone *b, lq_err *err)
{
    st_file f;
    size_t n = 0;
    if (st_open(&f, b->path, NULL))
        return LQ_OK; /* what is wrong with it is said by who opens it */
    range *r = calloc(f.n + 1, sizeof *r);
    for (size_t i = 0; r && i < f.n; i++) {
        const uint64_t at = (uint64_t)(f.tensors[i].data - f.map.data);
        if (f.tensors[i].bytes && is_value(&f.tensors[i]))
            r[n++] = (range){ at, at + f.tensors[i].bytes };
    }
    st_close(&f);
    lq_status s = r ? bring_ranges(b, r, n, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    free(r);
    return s;
}

/* Its length in 8 bytes, and it. */
static lq_status safetensors_head(bone *b, lq_err *err)
{
    lq_status s = bring_head(b, FIRST_BYTES, err);
    const uint64_t n = s ? 0 : le_at(b, 0);
    if (!s) s = bring_head(b, n < UINT64_MAX - 8 ? n + 8 : n, err);
    return s ? s : bring_values(b, err);
}

/* Its length is said nowhere: it is parsed until it ends within what is there. */
static lq_status gguf_head(bone *b, lq_err *err)
{
    for (uint64_t n = FIRST_BYTES;; n *= 4) {
        gguf_file f;
        lq_status s = bring_head(b, n, err);
        if (s) return s;
        s = gguf_open(&f, b->path, NULL);
        const bool whole = !s && f.head_bytes <= b->have;
        if (!s) gguf_close(&f);
        if (whole || (s && s != LQ_EFORMAT) || n >= b->e->bytes || n >= MAX_HEAD / 4) return LQ_OK;
    }
}

/* A preamble, and the header at the file's end (docs/formats/llmq.md). */
static lq_status llmq_head(bone *b, lq_err *err)
{
    lq_status s = bring_head(b, 64, err);
    if (s) return s;
    const uint64_t at = le_at(b, 16), n = le_at(b, 24);
    if (at > b->e->bytes || n > b->e->bytes - at || n > MAX_HEAD) return LQ_OK; /* as above */
    return bring(b, at, at + n, err);
}

static lq_status all_of_it(bone *b, lq_err *err) { return bring_head(b, b->e->bytes, err); }

static const struct {
    const char *ending;
    lq_status (*head)(bone *b, lq_err *err);
} formats[] = { { ".safetensors", safetensors_head },
                { ".gguf", gguf_head },
                { ".llmq", llmq_head },
                { ".json", all_of_it } };

/* ---- the folder ---- */
static const char *name_of_entry(const hub_entry *e)
{
    const char *slash = strrchr(e->path, '/');
    return slash ? slash + 1 : e->path;
}

/* Of a tokenizer: what is planned from headers needs none. */
static bool is_tokenizer(const char *name)
{
    static const char *const begin[] = { "tokenizer", "vocab", "added_tokens", "special_tokens",
                                         "tekken" };
    for (size_t i = 0; i < LQ_COUNT(begin); i++)
        if (strncmp(name, begin[i], strlen(begin[i])) == 0 && !model_file_of(name)->weights)
            return true;
    return false;
}

static lq_status make_bone(const char *dir, hub_conn *c, const char *commit, const hub_entry *e,
                           lq_err *err)
{
    size_t i = 0;
    bone b = { .c = c, .commit = commit, .e = e, .job = c->retry.o->job };
    const char *name = name_of_entry(e);
    while (i < LQ_COUNT(formats) && !lq_has_ending(name, formats[i].ending))
        i++;
    if (i == LQ_COUNT(formats) || is_tokenizer(name)) return LQ_OK;
    snprintf(b.path, sizeof b.path, "%s/%s", dir, name);
    b.fd = open(b.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (b.fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", b.path, strerror(errno));
    lq_status s = ftruncate(b.fd, (off_t)e->bytes) == 0
                      ? formats[i].head(&b, err)
                      : lq_fail(err, LQ_EIO, "%s: %s", b.path, strerror(errno));
    close(b.fd);
    return s;
}

lq_status skeleton_make(char *dir, size_t n, hub_conn *c, const char *commit, const hub_tree *t,
                        lq_err *err)
{
    lq_status s = lq_temp_folder(dir, n, err);
    if (s) dir[0] = 0;
    for (size_t i = 0; i < t->n && !s; i++)
        if (t->e[i].wanted) s = make_bone(dir, c, commit, &t->e[i], err);
    return s;
}

void skeleton_drop(const char *dir)
{
    DIR *d = *dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (!d) return;
    closedir(d);
    rmdir(dir);
}
