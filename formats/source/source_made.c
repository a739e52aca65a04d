/* formats/source/source_made.c - tensors that a source translates from what is stored: room for all of
 * them is reserved at once and takes memory only while somebody uses them. */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGN = 64 };

struct src_made {
    src_fill_fn *fill;
    const void *from;
    struct src_region *room;
    size_t off, bytes; /* in the region; whole pages */
    int users;         /* under the lock; > 0: filled */
    qt_span *reads;    /* in the arena; what fill reads of the files */
    size_t n_reads;
};

struct src_region {
    pthread_mutex_t lock;
    uint8_t *base;
    size_t bytes;
};

lq_status src_make(src_source *s, src_tensor *t, src_fill_fn *fill, const void *from, lq_err *err)
{
    qt_tensor *q = &t->t;
    lq_status st = qt_check(&q->scheme, q->N, q->K, err);
    if (st) return lq_wrap(err, st, "tensor '%.100s'", t->name);
    size_t room = 0;
    t->plain = true;
    for (int p = 0; p < QT_N_PLANES; p++) {
        const size_t want = qt_plane_bytes(&q->scheme, QT_PORTABLE, q->N, q->K, (qt_plane)p);
        if (q->plane[p].data && q->plane[p].bytes != want)
            return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': %s: expected %zu bytes, found %zu",
                           t->name, qt_plane_text((qt_plane)p), want, q->plane[p].bytes);
        if (!q->plane[p].data) room += lq_round_up(want, ALIGN);
        q->plane[p].bytes = want;
    }
    if (!room) return qt_check_view(q, err);
    assert(fill);
    t->made = lq_push(&s->arena, sizeof *t->made);
    if (!t->made) return lq_fail(err, LQ_ENOMEM, "tensor '%.100s': out of memory", t->name);
    *t->made = (src_made){ .fill = fill, .from = from, .bytes = lq_round_up(room, PAGE) };
    return LQ_OK;
}

lq_status src_made_from(src_source *s, src_tensor *t, const qt_span *reads, size_t n, lq_err *err)
{
    if (!t->made) return LQ_OK;
    t->made->reads = lq_push(&s->arena, (n + 1) * sizeof *reads);
    if (!t->made->reads) return lq_fail(err, LQ_ENOMEM, "tensor '%.100s': out of memory", t->name);
    memcpy(t->made->reads, reads, n * sizeof *reads);
    t->made->n_reads = n;
    return LQ_OK;
}

lq_status src_make_room(src_source *s, lq_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].made && !s->tensors[i].made->room) total += s->tensors[i].made->bytes;
    if (!total) return LQ_OK;
    s->region = calloc(1, sizeof *s->region);
    if (!s->region || pthread_mutex_init(&s->region->lock, NULL)) {
        free(s->region);
        s->region = NULL;
        return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    }
    void *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return lq_fail(err, LQ_ENOMEM, "%s: no room for %zu bytes of translated tensors", s->path,
                       total);
    s->region->base = p;
    s->region->bytes = total;
    size_t off = 0;
    for (size_t i = 0; i < s->n_tensors; i++) {
        src_made *m = s->tensors[i].made;
        if (!m || m->room) continue;
        m->room = s->region;
        m->off = off;
        off += m->bytes;
    }
    return LQ_OK;
}

void src_free_room(src_source *s)
{
    if (!s->region) return;
    if (s->region->base) munmap(s->region->base, s->region->bytes);
    pthread_mutex_destroy(&s->region->lock);
    free(s->region);
    s->region = NULL;
}

void src_load(qt_tensor *out, const src_source *s, const src_tensor *t)
{
    (void)s; /* the tensor may be of another's base */
    *out = t->t;
    if (!t->made) return;
    src_made *m = t->made;
    uint8_t *at = m->room->base + m->off;
    void *w[QT_N_PLANES] = { NULL };
    for (int p = 0; p < QT_N_PLANES; p++) {
        if (out->plane[p].data || !out->plane[p].bytes) continue;
        out->plane[p].data = w[p] = at;
        at += lq_round_up(out->plane[p].bytes, ALIGN);
    }
    pthread_mutex_lock(&m->room->lock);
    if (m->users++ == 0) m->fill(w, out, m->from);
    pthread_mutex_unlock(&m->room->lock);
}

void src_unload(const src_source *s, const src_tensor *t)
{
    src_made *m = t->made;
    src_release(s, t);
    if (!m) return;
    pthread_mutex_lock(&m->room->lock);
    assert(m->users > 0);
    const bool last = --m->users == 0;
    if (last) madvise(m->room->base + m->off, m->bytes, MADV_DONTNEED);
    pthread_mutex_unlock(&m->room->lock);
    for (size_t i = 0; i < m->n_reads && last; i++)
        src_drop(s, m->reads[i]);
}
