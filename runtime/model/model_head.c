/* runtime/model/model_head.c - the lengths of an output head's rows, by which Baichuan 2 divides logits. */
#include "runtime/model/model.h"

enum { TILE = 16 };

/* Of rows n0.. of a tile, to out; in double. */
static lq_status invert_lengths(float *out, const qt_tensor *head, int64_t n0, lq_arena *a,
                                lq_err *err)
{
    const int64_t K = head->K, n = head->N - n0 < TILE ? head->N - n0 : TILE;
    qt_tensor tile, rows;
    void *w[QT_N_PLANES];
    if (!tiles_rows(&tile, head, n0, n0 + n))
        return lq_fail(err, LQ_EUNSUPPORTED, "output head: expected whole tiles of 16 rows");
    lq_status s = qt_alloc(&rows, w, &tile.scheme, n, K, a, err);
    float *x = s ? NULL : lq_push(a, (size_t)(n * K) * sizeof *x);
    if (!s && !x) s = lq_fail(err, LQ_ENOMEM, "output head: out of memory");
    if (!s) s = tiles_unpack(w, &tile, err);
    if (s) return s;
    qt_dequant(x, &rows, 0, n);
    for (int64_t r = 0; r < n; r++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += (double)x[r * K + k] * (double)x[r * K + k];
        out[n0 + r] = (float)(1 / fmax(sqrt(sum), 1e-12));
    }
    return LQ_OK;
}

lq_status model_head_lengths(model *m, lq_err *err)
{
    const qt_tensor *head = &m->head.w.t;
    lq_arena scratch = { 0 };
    lq_status s = LQ_OK;
    if (!m->cfg->w.head_rows_1 || !m->head.present) return LQ_OK;
    float *all = lq_push(&m->arena, (size_t)head->N * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "output head: out of memory");
    for (int64_t n = 0; n < head->N && !s; n += TILE) {
        s = invert_lengths(all, head, n, &scratch, err);
        lq_arena_reset(&scratch, 0);
    }
    lq_arena_free(&scratch);
    m->head_factors = s ? NULL : all;
    return s;
}
