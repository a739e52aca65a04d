/* quantize/methods/awq_dev.h - the losses of AWQ's search on a GPU: sum d H d^T of each row, as awq.c's
 * gemm_quadratic, within rounding. H goes up once, differences for each choice of scales. */
#ifndef LLMQ_QUANTIZE_METHODS_AWQ_DEV_H
#define LLMQ_QUANTIZE_METHODS_AWQ_DEV_H

#include "kernels/device.h"

typedef struct awq_dev awq_dev;
/* H [K,K]; of up to `rows` rows at a time. Errors: LQ_ENOMEM, LQ_EDEVICE. */
lq_status awq_dev_open(awq_dev **a, dev *d, const float *H, int64_t K, int64_t rows, lq_err *err);
void awq_dev_close(awq_dev *a); /* NULL: nothing */
/* loss [rows] of D [rows,K]. Errors: LQ_EDEVICE. */
lq_status awq_dev_losses(awq_dev *a, double *loss, const float *D, int64_t rows, lq_err *err);

#endif
