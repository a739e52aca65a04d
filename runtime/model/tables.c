/* runtime/model/tables.c */
#include "runtime/model/tables.h"

#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"

/* A tiled one is turned back. */
lq_status model_load_rows(qt_tensor *out, const model *m, arch_role r, int64_t layer, int64_t part,
                          lq_arena *a, lq_err *err)
{
    const src_tensor *t = NULL;
    lq_status s = src_role(m->src, r, layer, part, &t, NULL, err);
    if (s || !t) return s;
    src_load(out, m->src, t);
    s = val_check(out, false, err);
    if (!s && t->t.layout == QT_PORTABLE) return LQ_OK;
    void *w[QT_N_PLANES];
    if (!s) s = qt_alloc(out, w, &t->t.scheme, t->t.N, t->t.K, a, err);
    if (!s) s = tiles_unpack(w, &t->t, err);
    return s ? lq_wrap(err, s, "%s: %s", src_path(m->src), t->name) : LQ_OK;
}

lq_status model_load_floats(float **out, model *m, arch_role r, int64_t n, lq_err *err)
{
    qt_tensor t = { 0 };
    lq_status s = model_load_rows(&t, m, r, -1, -1, &m->arena, err);
    if (s || !t.N) return s;
    *out = lq_push(&m->arena, (size_t)(n * t.K) * sizeof **out);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "%s: out of memory while loading", arch_role_text(r));
    qt_dequant(*out, &t, 0, n);
    return LQ_OK;
}
