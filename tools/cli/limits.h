/* tools/cli/limits.h - what `plan` measures next to the machine's limits of kernels/bench/bench.h. */
#ifndef LLMQ_TOOLS_CLI_LIMITS_H
#define LLMQ_TOOLS_CLI_LIMITS_H

#include "formats/tensor/qtensor.h"
#include "kernels/mm.h"

/* Operations per second (2 per product) of the chosen kernels on a matrix of this scheme, at a
 * number of rows where memory is no limit. k_init was called. */
lq_status lim_matmul_flops(double *flops, const qt_scheme *s, mm_acts acts, pool *p, lq_err *err);

#endif
