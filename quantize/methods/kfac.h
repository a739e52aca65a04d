/* quantize/methods/kfac.h - second-order rounding with the statistics of a linear's inputs and of
 * the gradients at its outputs.
 *
 * GPTQ minimizes the change of a linear's outputs, all outputs alike. Here an output counts by how
 * much the model's answer depends on it, alone and together with the others:
 *
 *     loss = tr(G D H D^T),   D = W - Q,   H = mean x x^T,   G = mean g g^T
 *
 * g is the gradient of log-likelihood at the linear's output for answers drawn from the model
 * itself (calib/fisher.h), so G x H is the Kronecker approximation of the curvature of the KL
 * divergence. G is kept in blocks of KFAC_BLOCK outputs; blocks are independent.
 *
 * In a block each column is rounded with feedback from both sides: from the columns done (as GPTQ,
 * through the Cholesky factor of H^-1) and from the rows done in this column (through the unit
 * triangular factor of G). Then coordinate descent on the loss: rounds of refitting every group's
 * scale by least squares and sweeping the codes. Both are done from grids with their ends drawn in
 * (spec.search) and from grids that cover all weights, of these the descent where the loss after the feedback is at most 4 % above
 * the others'; of what there is and of rounding to nearest each block keeps what has the least loss.
 *
 * Shapes: W [N,K] f32; H [K,K] f32; G ceil(N / B) blocks of [B,B], B = KFAC_BLOCK, of the last
 * block the upper left part.
 * Source: arXiv:1503.05671 (the approximation), arXiv:2505.22988 (rounding with it); blocks,
 * refitting and descent: ours. */
#ifndef LLMQ_QUANTIZE_METHODS_KFAC_H
#define LLMQ_QUANTIZE_METHODS_KFAC_H

#include "calib/fisher.h"
#include "quantize/methods/gptq.h"

enum { KFAC_BLOCK = FISHER_BLOCK };

typedef struct {
    grid_spec spec;
    double damp_g; /* of G, as gptq_prepare; 0 means 0.05 */
    int sweeps;    /* per round */
    int rounds;    /* of refitting scales and sweeping; 0: sweeps alone */
    int8_t *
        rest; /* [N,K], set where nothing fell back: how far off each code its best value is with all others
                      held, g / (G_nn H_kk), in the units of quantize/layer/residual.h; NULL: not wanted */
} kfac_opts;

/* b: of H, columns by falling H[k][k]. out->t.scheme: QT_UINT, regular groups that divide K. rep->loss, loss_rtn: as gptq_run's,
 * with all outputs alike. Where H or G cannot be factored: rounding to nearest, said in
 * rep; rep->nearest: blocks that it served best. Errors: LQ_ENOMEM. */
lq_status kfac_run(qz_out *out, gptq_report *rep, const float *W, const gptq_basis *b,
                   const float *G, const kfac_opts *opts, pool *p, lq_err *err);

#endif
