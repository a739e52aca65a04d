/* quantize/methods/dev_row.h - what a method's kernels hold of a row on a GPU. */
#ifndef LLMQ_QUANTIZE_METHODS_DEV_ROW_H
#define LLMQ_QUANTIZE_METHODS_DEV_ROW_H

#include "kernels/device.h"

/* Do a row's K floats fit in a block's shared memory, with what else a block has there? */
static inline bool qz_dev_row_fits(const dev *d, int64_t K)
{
    enum { OTHERS = 1024 }; /* bytes */
    return (size_t)K * sizeof(float) + OTHERS <= d->shared_per_block;
}

#endif
