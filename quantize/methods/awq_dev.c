/* quantize/methods/awq_dev.c - see awq_dev.h. */
#include "quantize/methods/awq_dev.h"

#include <stdlib.h>

enum { BUFFERS = 4 };

struct awq_dev {
    dev *d;
    int64_t K;
    float *H, *D, *G; /* on the device, as the loss */
    double *loss;
    void *mem[BUFFERS];
    int n_mem;
};

static void *awq_dev_take(awq_dev *a, size_t bytes)
{
    void *p = a->d->ops->alloc(a->d, bytes);
    if (p) a->mem[a->n_mem++] = p;
    return p;
}

lq_status awq_dev_open(awq_dev **out, dev *d, const float *H, int64_t K, int64_t rows, lq_err *err)
{
    const size_t k = (size_t)K, n = (size_t)rows;
    awq_dev *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a) return lq_fail(err, LQ_ENOMEM, "no memory for AWQ on %lld inputs", (long long)K);
    d->ops->bind(d);
    a->d = d;
    a->K = K;
    a->H = awq_dev_take(a, k * k * sizeof *H);
    a->D = awq_dev_take(a, n * k * sizeof *H);
    a->G = awq_dev_take(a, n * k * sizeof *H);
    a->loss = awq_dev_take(a, n * sizeof *a->loss);
    if (a->H) d->ops->upload(d, a->H, H, k * k * sizeof *H);
    const lq_status s = d->ops->sync(d, err);
    if (s)
        awq_dev_close(a);
    else
        *out = a;
    return s ? lq_wrap(err, s, "AWQ on %lld inputs", (long long)K) : LQ_OK;
}

void awq_dev_close(awq_dev *a)
{
    if (!a) return;
    while (a->n_mem)
        a->d->ops->free(a->d, a->mem[--a->n_mem]);
    free(a);
}

lq_status awq_dev_losses(awq_dev *a, double *loss, const float *D, int64_t rows, lq_err *err)
{
    const dev_ops *ops = a->d->ops;
    const int64_t K = a->K;
    ops->bind(a->d);
    ops->upload(a->d, a->D, D, (size_t)(rows * K) * sizeof *D);
    ops->gemm(a->d, &(dev_gemm_args){ .C = a->G,
                                      .A = a->D,
                                      .B = a->H,
                                      .ldc = K,
                                      .lda = K,
                                      .ldb = K,
                                      .M = rows,
                                      .N = K,
                                      .K = K });
    ops->gptq_sweep(a->d, &(dev_gptq_args){
                              .d = a->D, .g = a->G, .loss = a->loss, .N = rows, .K = K, .ng = 1 });
    ops->download(a->d, loss, a->loss, (size_t)rows * sizeof *loss);
    return ops->sync(a->d, err);
}
