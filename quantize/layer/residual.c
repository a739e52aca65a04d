/* quantize/layer/residual.c - see residual.h. */
#include "quantize/layer/residual.h"

#include <math.h>

#include "quantize/layer/trainable.h"

bool qz_residual_fits(const qt_scheme *s)
{
    return s->kind == QT_UINT && !s->act_order && s->zero != QT_ZERO_F16;
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
    const int64_t K = w->base.K, G = w->base.scheme.group, ng = K / G;
    const float *row = qz_rows(j->scratch + thread * K, j->W, j->d, K, n, 1);
    uint8_t *code = j->codes + thread * K;
    qt_unpack(code, tune_code_row(w, n), 0, K, w->base.scheme.bits);
    for (int64_t k = 0; k < K; k++) {
        const float s = w->scale[n * ng + k / G], z = w->zero[n * ng + k / G];
        float x = s != 0 ? (row[k] / s + z - (float)code[k]) * QZ_RESIDUAL_UNIT : 0;
        x = x > 127 ? 127 : x < -127 ? -127 : x; /* NaN goes on as 0 */
        j->rest[n * K + k] = x == x ? (int8_t)lrintf(x) : 0;
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
