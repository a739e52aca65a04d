/* formats/source/source_scan.c - reading a whole source once, in windows whose pages are given back, and
 * noticing that its files changed meanwhile. */
#include "formats/source/source_impl.h"

#include "base/os.h"
#include "formats/tensor/finite.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    WINDOW = 1 << 20, /* whose pages are given back at once */
    PIECE = 1 << 16
}; /* read twice while it lies in the cache */

/* ---- every byte once ---- */

/* One plane: its hash, and where `dense` its largest magnitude as bits. */
static lq_status scan_plane(lq_hash *hash, uint32_t *most, const src_source *s, qt_span span,
                            bool dense, lq_dtype d)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return LQ_ENOMEM;
    const uint8_t *p = span.data;
    const size_t size = dense ? lq_dtype_bytes(d) : 1;
    for (size_t at = 0; at < span.bytes; at += WINDOW) {
        const size_t n = span.bytes - at < WINDOW ? span.bytes - at : WINDOW;
        for (size_t i = at, len; i < at + n; i += len) {
            len = at + n - i < PIECE ? at + n - i : PIECE;
            lq_hasher_add(h, p + i, len);
            const uint32_t m = dense ? val_largest_bits(p + i, d, len / size) : 0;
            *most = m > *most ? m : *most;
        }
        src_drop(s, (qt_span){ p + at, n });
    }
    *hash = lq_hasher_end(h);
    return LQ_OK;
}

lq_status src_scan_room(src_source *s, lq_err *err)
{
    if (!s->hashes && !s->scanned)
        s->scanned = lq_push(&s->arena, s->n_tensors * sizeof *s->scanned);
    if (!s->hashes && !s->scanned) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    return LQ_OK;
}

void src_scan(src_source *s, int64_t i)
{
    src_tensor *t = &s->tensors[i], all = *t;
    const bool dense = t->plain && t->t.scheme.kind == QT_DENSE;
    uint32_t most = 0;
    if (t->scanned || (s->hashes && !dense)) return;
    src_load(&all.t, s, t);
    lq_status st = LQ_OK;
    lq_hash unused[QT_N_PLANES], *hash = s->scanned ? s->scanned[i] : unused;
    for (int p = 0; p < QT_N_PLANES && !st; p++) {
        const qt_span span = src_plane(&all, p);
        if (span.bytes)
            st = scan_plane(&hash[p], &most, s, span, dense && p == QT_CODES, t->t.scheme.dtype);
    }
    src_unload(s, t);
    if (st) return; /* whoever asks reads again */
    if (dense) t->largest = val_of_bits(most, t->t.scheme.dtype);
    t->scanned = true;
}

void src_scan_get(src_scanned *out, const src_source *s, int64_t i)
{
    memset(out, 0, sizeof *out);
    out->scanned = s->tensors[i].scanned;
    out->largest = s->tensors[i].largest;
    if (s->scanned) memcpy(out->hash, s->scanned[i], sizeof out->hash);
}

void src_scan_put(src_source *s, int64_t i, const src_scanned *found)
{
    if (!found->scanned) return;
    s->tensors[i].scanned = true;
    s->tensors[i].largest = found->largest;
    if (s->scanned) memcpy(s->scanned[i], found->hash, sizeof found->hash);
}

/* ---- files that change ---- */
static bool same_stamp(const src_stamp *a, const src_stamp *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->sec == b->sec &&
           a->nsec == b->nsec;
}

static bool take_stamp(src_stamp *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return false;
    const struct timespec changed = os_mtime(&st);
    s->dev = (uint64_t)st.st_dev;
    s->ino = (uint64_t)st.st_ino;
    s->size = (uint64_t)st.st_size;
    s->sec = (int64_t)changed.tv_sec;
    s->nsec = (int64_t)changed.tv_nsec;
    return true;
}

lq_status src_stamp_file(src_source *s, const char *path, lq_err *err)
{
    src_stamp *more = realloc(s->stamps, (s->n_stamps + 1) * sizeof *more);
    if (more) s->stamps = more;
    const char *copy = more ? lq_push_str(&s->arena, path, strlen(path)) : NULL;
    if (!copy) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    src_stamp *one = &s->stamps[s->n_stamps];
    *one = (src_stamp){ .path = copy };
    if (!take_stamp(one, path)) return lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
    s->n_stamps++;
    return LQ_OK;
}

lq_status src_unchanged(const src_source *s, lq_err *err)
{
    s = src_base(s);
    for (size_t i = 0; i < s->n_stamps; i++) {
        src_stamp now = { 0 };
        const char *path = s->stamps[i].path;
        if (!take_stamp(&now, path))
            return lq_fail(err, LQ_EIO, "%s: changed while it was read: %s", path, strerror(errno));
        if (now.size != s->stamps[i].size)
            return lq_fail(err, LQ_EIO,
                           "%s: changed while it was read: expected %llu bytes, found %llu", path,
                           (unsigned long long)s->stamps[i].size, (unsigned long long)now.size);
        if (!same_stamp(&now, &s->stamps[i]))
            return lq_fail(err, LQ_EIO, "%s: changed while it was read: it was written to", path);
    }
    if (lq_map_lost())
        return lq_fail(err, LQ_EIO, "%s: a file became shorter or unreadable while it was read",
                       s->path);
    return LQ_OK;
}
