/* kernels/scan.h - what layers with a state do along a sequence: a causal convolution of each channel by
 * itself, and a recurrence of a matrix. Both go position by position, so a run that is cut anywhere
 * gives the same bits.
 *
 * Sums over the K rows of a state are four interleaved partial sums, added pairwise at the end. */
#ifndef LLMQ_KERNELS_SCAN_H
#define LLMQ_KERNELS_SCAN_H

#include "kernels/core/operands.h"

LQ_C_BEGIN

/* y[t][c] = bias[c] + sum over j of w[j][c] x[t - taps + 1 + j][c], j rising; then silu of it.
 * x [T, ldx] in place, channels c0..c0+n; w, history and bias count channels from c0. history
 * [taps - 1, ld] are the inputs before x[0], oldest first, and afterwards those before x[T]. */
void k_conv(const k_conv_args *a);

/* SCAN_LANES values of one head's state, S [K][SCAN_LANES], of which `lanes` are used (the others are
 * zeros and stay so):
 *
 *     S[i]  = decay[t] S[i]                             for each of its K rows
 *     d     = beta[t] (v[t] - sum over i of k[t][i] S[i]), or beta[t] v[t]
 *     S[i] += k[t][i] d
 *     out[t] = sum over i of q[t][i] S[i]
 *
 * With the correction it is the gated delta rule (arXiv:2412.06464; a decay for each row:
 * arXiv:2510.26692), without it the state space of Mamba-2 (arXiv:2405.21060; k, v, q, beta are its
 * B, x, C, dt). out may be v. */
void k_scan(const k_scan_args *a);

/* The same of Mamba (arXiv:2312.00752), where each lane has a rate of its own for each row:
 *
 *     S[i]  = exp(step[t] rate[i]) S[i] + k[t][i] (step[t] v[t])
 *     out[t] = sum over i of q[t][i] S[i]
 *
 * k, v, q, step are its B, x, C, dt. out may be v. */
void k_select(const k_select_args *a);

/* x = log(1 + exp(x + add)), [n]; x + add itself above 20, as torch has it. */
void k_softplus(float *x, const float *add, int64_t n);

LQ_C_END

#endif
