/* quantize/methods/gptq_dev.c - a batch of rows on the device: up, block after block, down. */
#include "quantize/methods/gptq_dev.h"

#include <stdlib.h>

enum { BUFFERS = 16 };

struct gptq_dev {
    dev *d;
    gptq_dev_basis b; /* on the device */
    float *W, *w, *e, *err, *g, *params;
    double *loss;
    uint8_t *codes;
    void *mem[BUFFERS];
    int n_mem;
};

static void *gptq_dev_take(gptq_dev *g, const void *host, size_t bytes)
{
    void *p = g->d->ops->alloc(g->d, bytes);
    if (p) g->mem[g->n_mem++] = p;
    if (p && host) g->d->ops->upload(g->d, p, host, bytes);
    return p;
}

lq_status gptq_dev_open(gptq_dev **out, dev *d, const gptq_dev_basis *b, lq_err *err)
{
    const size_t K = (size_t)b->K, n = (size_t)b->rows, square = K * K * sizeof(float);
    gptq_dev *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return lq_fail(err, LQ_ENOMEM, "no memory for GPTQ on %lld inputs", (long long)b->K);
    d->ops->bind(d);
    g->d = d;
    g->b = *b;
    g->b.H = gptq_dev_take(g, b->H, square);
    g->b.U = gptq_dev_take(g, b->U, square);
    g->b.imp = gptq_dev_take(g, b->imp, K * sizeof(float));
    g->b.perm = gptq_dev_take(g, b->perm, K * sizeof(int32_t));
    g->W = gptq_dev_take(g, NULL, n * K * sizeof(float));
    g->w = gptq_dev_take(g, NULL, n * K * sizeof(float));
    g->err = gptq_dev_take(g, NULL, n * K * sizeof(float));
    g->g = gptq_dev_take(g, NULL, n * K * sizeof(float));
    g->e = gptq_dev_take(g, NULL, n * DEV_GPTQ_BLOCK * sizeof(float));
    g->params = gptq_dev_take(g, NULL, n * (K / (size_t)b->G) * sizeof(grid_param));
    g->loss = gptq_dev_take(g, NULL, n * sizeof(double));
    g->codes = gptq_dev_take(g, NULL, n * K);
    const lq_status s = d->ops->sync(d, err); /* what went up may go */
    if (s)
        gptq_dev_close(g);
    else
        *out = g;
    return s ? lq_wrap(err, s, "GPTQ on %lld inputs", (long long)b->K) : LQ_OK;
}

void gptq_dev_close(gptq_dev *g)
{
    if (!g) return;
    while (g->n_mem)
        g->d->ops->free(g->d, g->mem[--g->n_mem]);
    free(g);
}

/* g->loss: of the codes there, after `sweeps`. */
static void losses(gptq_dev *g, dev_gptq_args *a, int sweeps)
{
    const dev_ops *ops = g->d->ops;
    dev_gptq_args in = *a;
    in.w = g->W;
    in.sweeps = sweeps;
    ops->gptq_errors(g->d, &in);
    ops->gemm(g->d, &(dev_gemm_args){ .C = g->g,
                                      .A = g->err,
                                      .B = g->b.H,
                                      .ldc = a->K,
                                      .lda = a->K,
                                      .ldb = a->K,
                                      .M = a->N,
                                      .N = a->K,
                                      .K = a->K });
    ops->gptq_sweep(g->d, &in);
}

/* All columns, a block at a time, each one's errors moved onto those behind it. */
static void round_all(gptq_dev *g, dev_gptq_args *a)
{
    const int64_t K = a->K;
    for (a->k0 = 0; a->k0 < K; a->k0 = a->k1) {
        a->k1 = a->k0 + DEV_GPTQ_BLOCK < K ? a->k0 + DEV_GPTQ_BLOCK : K;
        g->d->ops->gptq_round(g->d, a);
        if (a->k1 < K)
            g->d->ops->gemm(g->d, &(dev_gemm_args){ .C = g->w + a->k1,
                                                    .A = g->e,
                                                    .B = g->b.U + a->k0 * K + a->k1,
                                                    .ldc = K,
                                                    .lda = DEV_GPTQ_BLOCK,
                                                    .ldb = K,
                                                    .M = a->N,
                                                    .N = K - a->k1,
                                                    .K = a->k1 - a->k0,
                                                    .beta = 1 });
    }
}

lq_status gptq_dev_run(gptq_dev *g, const gptq_dev_rows *r, lq_err *err)
{
    const dev_ops *ops = g->d->ops;
    const size_t n = (size_t)r->n, K = (size_t)g->b.K, ng = K / (size_t)g->b.G;
    dev_gptq_args a = { .w = g->w,
                        .e = g->e,
                        .d = g->err,
                        .g = g->g,
                        .loss = g->loss,
                        .codes = g->codes,
                        .U = g->b.U,
                        .H = g->b.H,
                        .imp = g->b.imp,
                        .params = g->params,
                        .perm = g->b.perm,
                        .N = r->n,
                        .K = g->b.K,
                        .ng = (int64_t)ng,
                        .most = r->most };
    ops->bind(g->d);
    ops->upload(g->d, g->W, r->W, n * K * sizeof *r->W);
    ops->upload(g->d, g->codes, r->rtn, n * K);
    ops->upload(g->d, g->params, r->pr, n * ng * sizeof *r->pr);
    losses(g, &a, 0);
    ops->download(g->d, r->plain, g->loss, n * sizeof *r->plain);
    ops->upload(g->d, g->params, r->params, n * ng * sizeof *r->params);
    ops->upload(g->d, g->w, r->w, n * K * sizeof *r->w);
    round_all(g, &a);
    losses(g, &a, r->sweeps);
    ops->download(g->d, r->loss, g->loss, n * sizeof *r->loss);
    ops->download(g->d, r->codes, g->codes, n * K);
    return ops->sync(g->d, err);
}
