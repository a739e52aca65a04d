/* quantize/methods/gptq_dev.h - GPTQ's rounding of rows on a GPU: what quantize/methods/gptq.c does
 * with the grids that it has chosen. Codes are those of the CPU, except where another order of a
 * sum moves a weight across the boundary between two codes.
 *
 * A failure of the device is found by the next call that returns a status. */
#ifndef LLMQ_QUANTIZE_METHODS_GPTQ_DEV_H
#define LLMQ_QUANTIZE_METHODS_GPTQ_DEV_H

#include "kernels/device.h"
#include "quantize/methods/grid.h"

typedef struct gptq_dev gptq_dev;

/* Room there for `rows` rows at a time of K inputs in groups of G; H, U [K,K], imp [K], perm [K] go
 * up. d is borrowed. Errors: LQ_ENOMEM, LQ_EDEVICE. */
typedef struct {
    const float *H, *U, *imp;
    const int32_t *perm;
    int64_t K, G, rows;
} gptq_dev_basis;
lq_status gptq_dev_open(gptq_dev **g, dev *d, const gptq_dev_basis *b, lq_err *err);
void gptq_dev_close(gptq_dev *g);

/* One batch of n rows; all host memory, rows of K or of K / G. */
typedef struct {
    const float *W, *w;            /* as they are; in the order of perm */
    const uint8_t *rtn;            /* codes of plain rounding, with grids pr */
    const grid_param *pr, *params; /* params: GPTQ's */
    uint8_t *codes;                /* out */
    double *plain, *loss;          /* out [n]: of rtn, of codes */
    int64_t n;
    int sweeps;
    float most; /* largest code */
} gptq_dev_rows;
lq_status gptq_dev_run(gptq_dev *g, const gptq_dev_rows *r, lq_err *err);

#endif
