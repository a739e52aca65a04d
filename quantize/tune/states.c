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

/* Planes that are not the base's go to the file. */
static lq_status move_planes(qt_tensor *out, tune_states *s, const qt_tensor *base,
                             const lq_map *made, lq_err *err)
{
    lq_status st = LQ_OK;
    for (int i = 0; i < QT_N_PLANES && !st; i++) {
        qt_span *plane = &out->plane[i];
        if (!plane->bytes || plane->data == base->plane[i].data) continue;
        st = spill_put(s->fd, plane->data, plane->bytes, s->end, err);
        plane->data = made->data + (s->end - s->made_at);
        s->end += lq_round_up(plane->bytes, PLANE_ALIGN);
    }
    return st;
}

lq_status tune_states_store(qt_tensor *out, tune_states *s, tune_state *t, lq_map *made,
                            lq_arena *a, lq_err *err)
{
    if (s->fd < 0) return tune_weight_store(out, &t->w, a, err);
    lq_arena own = { 0 };
    lq_status st = made->data ? LQ_OK : map_results(s, made, err);
    if (!st) st = tune_states_get(s, t, false, err);
    if (!st) st = tune_weight_store(out, &t->w, &own, err);
    if (!st) st = move_planes(out, s, &t->w.base, made, err);
    lq_arena_free(&own);
    return st;
}
