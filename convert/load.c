/* convert/load.c */
#include "convert/load.h"

#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"

#include <stdlib.h>

enum { PART = 4 }; /* tiles of an item */

typedef struct {
    void *const *w;
    const qt_tensor *t;
    uint8_t *scratch;
    int64_t tiles;
} unpacking;

static void unpack_part(void *ctx, int64_t item, int thread)
{
    const unpacking *u = ctx;
    const int64_t from = item * PART, end = from + PART < u->tiles ? from + PART : u->tiles;
    tiles_unpack_part(u->w, u->t, from, end, u->scratch + (size_t)thread * tiles_scratch(u->t));
}

lq_status conv_untile(qt_tensor *q, const qt_tensor *tiled, pool *p, lq_arena *a, lq_err *err)
{
    void *w[QT_N_PLANES];
    const int64_t tiles = lq_ceil_div(tiled->N, TILE_N);
    uint8_t *scratch = malloc((size_t)pool_threads(p) * tiles_scratch(tiled));
    lq_status s = scratch ? qt_alloc(q, w, &tiled->scheme, tiled->N, tiled->K, a, err)
                          : lq_fail(err, LQ_ENOMEM, "no memory for tiles");
    if (!s) {
        pool_run(p, lq_ceil_div(tiles, PART), unpack_part,
                 &(unpacking){ w, tiled, scratch, tiles });
        tiles_unpack_shared(w, tiled);
    }
    free(scratch);
    return s;
}

lq_status conv_load(qt_tensor *q, const src_source *src, const src_tensor *t, pool *p, lq_arena *a,
                    lq_err *err)
{
    qt_tensor stored;
    src_load(&stored, src, t);
    *q = stored;
    lq_status s = val_check(&stored, true, err);
    return s || q->layout != QT_TILE16 ? s : conv_untile(q, &stored, p, a, err);
}

void conv_unload(const src_source *src, const src_tensor *t, lq_arena *a)
{
    src_unload(src, t);
    lq_arena_free(a);
}
