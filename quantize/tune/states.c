/* quantize/tune/states.c - see states.h. */
#include "quantize/tune/states.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calib/spill.h"

enum { PLANE_ALIGN = 64 };

lq_status tune_states_open(tune_states *s, const char *dir, lq_err *err)
{
    *s = (tune_states){ .fd = -1 };
    return dir ? spill_open(&s->fd, dir, err) : LQ_OK;
}

void tune_states_close(tune_states *s)
{
    if (s->fd >= 0) close(s->fd);
    free(s->room);
    lq_arena_free(&s->arena);
    *s = (tune_states){ .fd = -1 };
}

/* Memory of a new state: its own, or the room of all. */
static void *memory_of(tune_states *s, size_t bytes)
{
    if (s->fd < 0) return lq_push(&s->arena, bytes);
    if (bytes <= s->room_bytes) return s->room;
    free(s->room);
    s->room = malloc(bytes);
    s->room_bytes = s->room ? bytes : 0;
    return s->room;
}

lq_status tune_states_add(tune_states *s, tune_state *t, const qt_tensor *base, const int8_t *rest,
                          lq_err *err)
{
    t->bytes = tune_weight_plan(&t->w, base, rest != NULL);
    t->at = s->end;
    s->end += t->bytes.all;
    for (int i = 0; i < QT_N_PLANES; i++)
        s->most += lq_round_up(base->plane[i].bytes, PLANE_ALIGN);
    void *state = memory_of(s, t->bytes.all);
    if (!state) return lq_fail(err, LQ_ENOMEM, "no memory to train %zu bytes", t->bytes.all);
    tune_weight_at(&t->w, state);
    lq_status st = tune_weight_start(&t->w, rest, err);
    return st ? st : tune_states_put(s, t, err);
}

lq_status tune_states_get(tune_states *s, tune_state *t, bool all, lq_err *err)
{
    if (s->fd < 0) return LQ_OK;
    tune_weight_at(&t->w, s->room);
    return spill_get(s->fd, s->room, all ? t->bytes.all : t->bytes.value, t->at, err);
}

lq_status tune_states_put(const tune_states *s, const tune_state *t, lq_err *err)
{
    if (s->fd < 0) return LQ_OK;
    return spill_put(s->fd, s->room, t->bytes.all, t->at, err);
}

/* What the file will hold from its present end on. Pages come to be where they are written. */
static lq_status map_results(tune_states *s, lq_map *made, lq_err *err)
{
    const size_t bytes = s->most ? s->most : 1;
    s->end = s->made_at = lq_round_up(s->end, (size_t)sysconf(_SC_PAGESIZE));
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, s->fd, (off_t)s->end);
    if (p == MAP_FAILED)
        return lq_fail(err, LQ_ENOMEM, "what training made: cannot map it: %s", strerror(errno));
    *made = (lq_map){ p, bytes };
    return LQ_OK;
}

/* The planes of the whole tensor: its own where `part`, of base, has them. */
static lq_status start_whole(qt_tensor *out, const qt_tensor *whole, const qt_tensor *part,
                             const qt_tensor *base, tune_states *s, const lq_map *made, lq_arena *a,
                             lq_err *err)
{
    *out = *whole;
    for (int i = 0; i < QT_N_PLANES; i++) {
        qt_span *plane = &out->plane[i];
        if (!plane->bytes || part->plane[i].data == base->plane[i].data) continue;
        if (s->fd < 0) {
            plane->data = lq_push(a, plane->bytes);
            if (!plane->data) return lq_fail(err, LQ_ENOMEM, "no memory for a tuned weight");
            continue;
        }
        plane->data = made->data + (s->end - s->made_at);
        s->end += lq_round_up(plane->bytes, PLANE_ALIGN);
    }
    return LQ_OK;
}

/* `bytes` to where the result has them. */
static lq_status move_plane(const tune_states *s, const void *to, const void *from, size_t bytes,
                            const lq_map *made, lq_err *err)
{
    if (s->fd >= 0)
        return spill_put(s->fd, from, bytes,
                         s->made_at + (size_t)((const uint8_t *)to - made->data), err);
    memcpy((void *)(uintptr_t)to, from, bytes); /* of an arena: start_whole */
    return LQ_OK;
}

lq_status tune_states_store(qt_tensor *out, const qt_tensor *whole, int64_t row0, tune_states *s,
                            tune_state *t, lq_map *made, lq_arena *a, lq_err *err)
{
    const qt_tensor *base = &t->w.base;
    lq_arena own = { 0 };
    qt_tensor part, rows;
    lq_status st = s->fd < 0 || made->data ? LQ_OK : map_results(s, made, err);
    if (!st) st = tune_states_get(s, t, false, err);
    if (!st) st = tune_weight_store(&part, &t->w, &own, err);
    if (!st && row0 == 0) st = start_whole(out, whole, &part, base, s, made, a, err);
    if (!st && !qt_rows(&rows, out, row0, row0 + base->N))
        st = lq_fail(err, LQ_EUNSUPPORTED, "expected experts of whole blocks");
    for (int i = 0; i < QT_N_PLANES && !st; i++) {
        const qt_span *from = &part.plane[i];
        if (from->bytes && from->data != base->plane[i].data)
            st = move_plane(s, rows.plane[i].data, from->data, from->bytes, made, err);
    }
    lq_arena_free(&own);
    return st;
}
