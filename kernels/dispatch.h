/* kernels/dispatch.h - the table of kernels (kernels/core/k_ops.h) that is in use. Inside kernels/ only. */
#ifndef LLMQ_KERNELS_DISPATCH_H
#define LLMQ_KERNELS_DISPATCH_H

#include "kernels/core/k_ops.h"

const k_ops *k_get(void); /* chosen by k_init (kernels/ops.h) */

#endif
