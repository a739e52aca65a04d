/* calib/gemm_dev.h - the products of gemm.h on a device: those of backward passes, whose other work stays on the CPU.
 *
 * What a product reads goes up for it, and its result down; a matrix that is read more than once stays there
 * meanwhile (gemm_dev_keep). Sums are dev.gemm's, over k in order: OpenBLAS adds in an order of its own, so last bits are
 * others than gemm_run's. For one process: ranks share tiles that the CPU makes.
 *
 * Errors are kept, and what products give after one is unspecified: gemm_dev_check tells. */
#ifndef LLMQ_CALIB_GEMM_DEV_H
#define LLMQ_CALIB_GEMM_DEV_H

#include "calib/gemm.h"
#include "kernels/device.h"

typedef struct gemm_dev gemm_dev;

/* Borrows d. Errors: LQ_ENOMEM. */
lq_status gemm_dev_open(gemm_dev **on, dev *d, lq_err *err);
void gemm_dev_close(gemm_dev *on); /* NULL: nothing */
/* What failed since the last call; on NULL: nothing. Errors: LQ_ENOMEM, LQ_EDEVICE. */
lq_status gemm_dev_check(gemm_dev *on, lq_err *err);

/* The n floats at p (NULL: none) stay as they are until they are forgotten: they go up once. on NULL: nothing. */
void gemm_dev_keep(gemm_dev *on, const float *p, int64_t n);
void gemm_dev_forget(gemm_dev *on, const float *p);

/* gemm_run; on NULL: that. */
void gemm_dev_run(gemm_dev *on, float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N,
                  int64_t K, float beta, pool *p);

#endif
