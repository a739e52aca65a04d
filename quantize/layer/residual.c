/* quantize/layer/residual.c - see residual.h. */
#include "quantize/layer/residual.h"

#include <math.h>

#include "quantize/layer/trainable.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"

bool qz_residual_fits(const qt_scheme *s)
{
    const blk_made *made = s->kind == QT_BLOCKS ? blk_made_of(blk_find(s->blocks)) : NULL;
    if (s->kind == QT_UINT) return !s->act_order && s->zero != QT_ZERO_F16;
    if (s->kind == QT_E2M1) return s->recip || s->scale_dtype != LQ_F8_E4M3;
    return made && !made->book;
}

typedef struct {
    int8_t *rest;
    const tune_weight *w;
    const void *W;
    lq_dtype d;
    float *scratch; /* [threads][K] */
    uint8_t *codes; /* likewise */
} rest_job;

static void rest_item(void *ctx, int64_t n, int thread)
{
    const rest_job *j = ctx;
    const tune_weight *w = j->w;
    const int64_t K = w->base.K, G = row_group(&w->base.scheme), ng = K / G;
    const float *row = qz_rows(j->scratch + thread * K, j->W, j->d, K, n, 1);
    const int bits = w->bits;
    uint8_t *own = j->codes + thread * K;
    const uint8_t *code = w->code ? w->code + n * K : own;
    if (!w->code) qt_unpack(own, tune_code_row(w, n), 0, K, bits);
    for (int64_t k = 0; k < K; k++) {
        const float s = w->scale[n * ng + k / G], z = w->zero[n * ng + k / G];
        const float x =
            w->table ? row[k] / s - (float)w->table[code[k]] : row[k] / s + z - (float)code[k];
        j->rest[n * K + k] = row_rest(w->table, bits, code[k], s != 0 ? x : 0);
    }
}

lq_status qz_residual_of(int8_t *rest, const qt_tensor *q, const void *W, lq_dtype d, pool *p,
                         lq_err *err)
{
    lq_arena a = { 0 };
    tune_weight w;
    rest_job j = { .rest = rest, .w = &w, .W = W, .d = d };
    lq_status s = tune_weight_init(&w, q, NULL, &a, err);
    j.scratch = s ? NULL : lq_push(&a, (size_t)pool_threads(p) * (size_t)q->K * sizeof(float));
    j.codes = s ? NULL : lq_push(&a, (size_t)pool_threads(p) * (size_t)q->K);
    if (!s && (!j.scratch || !j.codes))
        s = lq_fail(err, LQ_ENOMEM, "no memory for a row of weights");
    if (!s) pool_run(p, q->N, rest_item, &j);
    lq_arena_free(&a);
    return s;
}
