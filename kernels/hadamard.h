/* kernels/hadamard.h - heads times a Hadamard matrix, on their way into a cache of few bits and out of it.
 *
 * What stands out of a head is spread over all its numbers, and they become alike: rows that share one
 * scale lose less by it (arXiv:2404.00456). q and K turned alike have the products that they had; what
 * attention gathers of a turned V is turned back. */
#ifndef LLMQ_KERNELS_HADAMARD_H
#define LLMQ_KERNELS_HADAMARD_H

#include "kernels/core/operands.h"

LQ_C_BEGIN

/* The largest power of two that divides D. */
static inline int64_t k_hadamard_order(int64_t D) { return D & -D; }
/* In place: each of H heads of D, in pieces of n = k_hadamard_order(D), times Sylvester's matrix of order
 * n / sqrt(n), which is its own inverse. Pieces of one stay as they are. */
void k_hadamard(float *x, int64_t H, int64_t D);

LQ_C_END

#endif
