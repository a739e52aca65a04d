/* calib/dense_layer.c - weights expanded to f32. */
#include "calib/dense_layer.h"

enum { ROWS = 16 };

typedef struct {
    float *W;
    const qt_tensor *t;
} work;

static void expand_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    int64_t n = item * ROWS, end = n + ROWS < w->t->N ? n + ROWS : w->t->N;
    qt_dequant(w->W + n * w->t->K, w->t, n, end);
}

void dense_expand(float *W, const qt_tensor *t, pool *p)
{
    work w = { W, t };
    pool_run(p, lq_ceil_div(t->N, ROWS), expand_item, &w);
}

static lq_status dense_layer_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for weights in f32");
}

lq_status dense_buffers(float *W[GRAD_LINEARS], const arch_config *c, lq_arena *a, lq_err *err)
{
    for (int k = 0; k < GRAD_LINEARS; k++) {
        int64_t N, K;
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        W[k] = lq_push(a, (size_t)(N * K) * sizeof(float));
        if (!W[k]) return dense_layer_no_memory(err);
    }
    return LQ_OK;
}

lq_status dense_layer(grad_layer *l, float *const W[GRAD_LINEARS], const src_source *src,
                      int64_t layer, lq_arena *a, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    memset(l, 0, sizeof *l);
    for (int k = 0; k < GRAD_LINEARS && !s; k++) {
        qt_tensor w;
        s = src_matrix(src, grad_linear_roles[k], layer, -1, &w, a, err);
        if (!s) s = src_vector(src, grad_linear_roles[k], layer, -1, true, &l->bias[k], a, err);
        if (!s) dense_expand(W[k], &w, p);
        src_matrix_done(src, grad_linear_roles[k], layer, -1);
        l->W[k] = W[k];
    }
    for (int k = 0; k < GRAD_NORMS && !s; k++)
        s = src_vector(src, grad_norm_roles[k], layer, -1, false, &l->norm[k], a, err);
    return s;
}

lq_status dense_head(kl_head *h, const src_source *src, const qt_tensor *w, lq_arena *a, pool *p,
                     lq_err *err)
{
    qt_tensor own;
    lq_status s = w ? LQ_OK : src_matrix(src, R_HEAD, -1, -1, &own, a, err);
    if (s) return s;
    if (!w) w = &own;
    float *W = lq_push(a, (size_t)(w->N * w->K) * sizeof *W);
    if (!W) return dense_layer_no_memory(err);
    dense_expand(W, w, p);
    if (w == &own) src_matrix_done(src, R_HEAD, -1, -1);
    *h = (kl_head){ W, NULL, w->N, w->K };
    return src_vector(src, R_HEAD, -1, -1, true, &h->bias, a, err);
}
