/* tools/cli/gpus.h - what makers say of their GPUs, for planning without one.
 *
 * Limits, not measurements: memory bandwidth, and dense (no sparsity) bf16 products with sums in
 * f32 by the matrix units. Sources: gpus.c, a column of its table. */
#ifndef LLMQ_TOOLS_CLI_GPUS_H
#define LLMQ_TOOLS_CLI_GPUS_H

#include "base/base.h"

typedef struct {
    const char *name;   /* as --gpu takes it */
    const char *driver; /* as the driver calls it */
    double gbytes;      /* memory, in 10^9 bytes */
    double gbytes_s;    /* in 10^9 bytes a second */
    double tflops;      /* in 10^12 operations a second */
    const char *source;
} gpu_row;

/* By either name, whatever the letters' case, spaces and hyphens: "RTX4090" is "rtx-4090". NULL:
 * not in the table. */
const gpu_row *gpu_find(const char *name);
/* The same for --gpu: LQ_EUSAGE names what there is. */
lq_status gpu_choose(const gpu_row **row, const char *name, lq_err *err);

#endif
