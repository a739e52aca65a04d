/* quantize/mixed/sensitivity.h - what rounding a weight costs the model, predicted for many schemes at once.
 *
 *     effect = 1/2 tr(G D H D^T),   D = W - Q,   H = mean x x^T,   G = mean g g^T
 *
 * With G the curvature of the model's answers at the linear's outputs (calib/fisher.h) it is the
 * second-order prediction of the KL divergence per token, in nats, that the rounded weight alone
 * brings about. Without G it is half the mean squared change of the outputs, without H half the
 * squared change of the weights: then only the ratios between a tensor's schemes mean anything.
 *
 * Q: grids chosen by the importance diag(H), then one pass of GPTQ (no sweeps, no folding; of blocks by gptq_run), or
 * rounding to nearest where that is asked for or H has no factor. What
 * feedback gains differs from tensor to tensor by a factor of 30.
 *
 * Shapes: W [N,K] dense, portable; H [K,K] f32; G ceil(N / B) blocks of [B,B], B = FISHER_BLOCK.
 * Source: arXiv:1503.05671 (the Kronecker form); arXiv:2210.17323 (feedback);
 * arXiv:1911.03852 (mixed precision by curvature). */
#ifndef LLMQ_QUANTIZE_MIXED_SENSITIVITY_H
#define LLMQ_QUANTIZE_MIXED_SENSITIVITY_H

#include "calib/fisher.h"
#include "formats/tensor/qtensor.h"
#include "quantize/methods/grid.h"

typedef struct {
    const float *H, *G; /* or NULL */
    double damp;        /* of H, as gptq_opts */
    bool nearest;       /* no feedback */
    grid_limits limits;
} sensitivity_opts;

/* effect [n] += that of each scheme: QT_UINT with groups that divide K, QT_BLOCKS, or QT_DENSE (0). Blocks of
 * FISHER_BLOCK rows are summed in order, so nothing depends on the number of threads. Errors:
 * LQ_ENOMEM. */
lq_status sensitivity_of(double *effect, const qt_scheme *schemes, int n, const qt_tensor *W,
                         const sensitivity_opts *o, pool *p, lq_err *err);

#endif
