/* runtime/model/ngrams.c */
#include "runtime/model/ngrams.h"

#include "runtime/model/tables.h"

lq_status model_load_ngrams(model_ngrams **out, const model *m, int64_t layer, lq_arena *a,
                            lq_err *err)
{
    const int64_t n = arch_n_tensors(m->cfg, R_NGRAM_TABLE);
    model_ngrams *t = lq_push(a, sizeof *t);
    qt_tensor *part = t ? lq_push(a, (size_t)n * sizeof *part) : NULL;
    int64_t *first = part ? lq_push(a, (size_t)n * sizeof *first) : NULL, rows = 0;
    if (!first) return lq_fail(err, LQ_ENOMEM, "layer %lld: out of memory", (long long)layer);
    *t = (model_ngrams){ .n = n, .part = part, .first = first };
    arch_ngrams_of(&t->of, m->cfg, layer);
    lq_status s = src_check_ngrams(m->src, layer, err);
    for (int64_t i = 0; i < n && !s; i++) {
        s = model_load_rows(&part[i], m, R_NGRAM_TABLE, layer, i, a, err);
        first[i] = rows;
        rows += part[i].N;
    }
    *out = t;
    return s;
}

void model_ngrams_ready(const model_ngrams *t, const model *m)
{
    for (int64_t i = 0; t && i < t->n; i++)
        for (int p = 0; p < QT_N_PLANES; p++)
            src_scattered(m->src, t->part[i].plane[p]);
}

void model_put_ngrams(model_layer *l, int64_t part, const qt_tensor *t)
{
    l->ngrams->part[part < 0 ? 0 : part] = *t;
}

void model_ngram_row(const model_ngrams *t, int64_t row, float *dst)
{
    int64_t lo = 0, hi = t->n; /* first[lo] <= row < first[hi] */
    while (hi - lo > 1) {
        const int64_t mid = (lo + hi) / 2;
        *(t->first[mid] <= row ? &lo : &hi) = mid;
    }
    row -= t->first[lo];
    qt_dequant(dst, &t->part[lo], row, row + 1);
}
