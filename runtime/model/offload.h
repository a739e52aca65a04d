/* runtime/model/offload.h - the matrix products and attention of a pass over whole windows (fwd_layer) on a
 * device; the rest stays on the CPU. Calibration's forward pass spends its time in these.
 *
 * Weights go up as f32 when they are first used and stay until they are dropped, or until there is
 * no room for another; inputs and outputs
 * go up and down with each product. Sums are dev.gemm's, in the order of mm_run's, and DEV_ATTN_EXACT's: results
 * are the CPU's to the bit (but for the sign of zero). */
#ifndef LLMQ_RUNTIME_MODEL_OFFLOAD_H
#define LLMQ_RUNTIME_MODEL_OFFLOAD_H

#include "kernels/attn.h"
#include "kernels/device.h"
#include "kernels/mm.h"

typedef struct fwd_offload fwd_offload;

/* Borrows d. Errors: LQ_ENOMEM. */
lq_status fwd_offload_open(fwd_offload **o, dev *d, pool *p, lq_err *err);
void fwd_offload_close(fwd_offload *o); /* NULL: nothing */
/* The weights at these addresses are others from now on. */
void fwd_offload_drop(fwd_offload *o);
/* What failed since the last call. Errors: LQ_ENOMEM, LQ_EDEVICE. */
lq_status fwd_offload_check(fwd_offload *o, lq_err *err);
/* As mm_run_jobs of one job in f32, of weights that do not round their inputs or sum them in another order (g_idx,
 * outliers): else false, and nothing is done.
 * After a failure outputs are unspecified. */
bool fwd_offload_products(fwd_offload *o, const mm_job *j);
/* As attn_run over a cache in f32 whose blocks are a window's, where the device has that kind of attention: else false, and
 * nothing is done. After a failure outputs are unspecified. */
bool fwd_offload_attention(fwd_offload *o, const attn_args *a);

#endif
