/* quantize/methods/gptq.h - second-order rounding of one weight matrix.
 *
 * Rounds W column by column and moves each column's error onto the columns not yet rounded, so that
 * the layer's output stays close, rather than its weights:
 *
 *     loss = sum over rows n of (w_n - q_n) H (w_n - q_n)^T
 *
 * Afterwards `sweeps` passes of coordinate descent go over the codes: each moves to the grid value
 * that is best with all others held, so the loss only falls. A row that plain rounding would serve
 * better (it happens where H says little) keeps plain rounding.
 *
 * Shapes: W [N,K] f32 row-major, N outputs, K inputs; H [K,K] f32 symmetric.
 * Units:  H = mean over calibration tokens of x x^T (calib/stats.h), so loss is the mean squared
 *         change of the layer's output per token, summed over outputs.
 * Source: arXiv:2210.17323, Algorithm 1; the factor of H's inverse comes from one Cholesky
 *         factorization of the reversed matrix instead of three steps; sweeps: own. */
#ifndef LLMQ_QUANTIZE_METHODS_GPTQ_H
#define LLMQ_QUANTIZE_METHODS_GPTQ_H

#include "kernels/core/pool.h"
#include "kernels/device.h"
#include "quantize/methods/lattice.h"
#include "quantize/methods/method.h"
#include "quantize/methods/out.h"

/* What all matrices that read one input have in common: zero is none. */
typedef struct gptq_basis {
    const float *H; /* [K,K], borrowed */
    int64_t K;
    float *U;      /* [K,K], see gptq_prepare; NULL: H was not usable at any damping */
    int32_t *perm; /* [K]: columns in the order of rounding */
    int unit;     /* columns that stay together in it, whose codes are chosen together (row_unit) */
    float *imp;   /* [2 K]: diag(H), zeros where it is not finite; the same in that order */
    double damp;  /* that made H positive definite; 0 without U */
    int64_t dead; /* columns with H[k][k] == 0 */
    bool finite;
} gptq_basis;

typedef struct {
    grid_spec spec;
    bool static_groups; /* choose every group's grid before any column is rounded; without this the
                           groups follow the basis' order: where that is not the columns', out's
                           scheme must have act_order */
    int sweeps;
    dev *on; /* rows are rounded there, where groups are static and a row fits; NULL: here */
} gptq_opts;

enum { GPTQ_SWEEPS = 8 };  /* as the method takes them */
enum { GPTQ_BATCH = 512 }; /* rows at once, in f32 thrice and codes twice */

typedef struct {
    double loss;     /* as above, after this rounding */
    double loss_rtn; /* the same for rounding to nearest with the plain grids */
    double damp;     /* that made H positive definite; 0 with `fallback` */
    int64_t dead;    /* columns with H[k][k] == 0: rounded to nearest */
    int64_t nearest; /* kfac_run: blocks of outputs for which rounding to nearest was best */
    bool fallback;   /* H was not usable at any damping: rounded to nearest throughout */
} gptq_report;

/* damp: added to diag(H), as a fraction of its mean, 0 means 0.01; act_order: round the columns by
 * falling H[k][k], units of columns by their sum. H stays with the basis. U [K,K], with inverse(H' + damp *
 * mean(diag H') I) = U^T U, H'[i][j] = H[perm[i]][perm[j]] with 1 in place of zeros on the diagonal: damp grows until
 * that works. on, ranks: as of cholesky_upper. Errors: LQ_ENOMEM, those of the device, of comm.h. */
lq_status gptq_prepare(gptq_basis *b, const float *H, int64_t K, double damp, bool act_order,
                       int unit, dev *on, comm *ranks, pool *p, lq_err *err);
void gptq_basis_free(gptq_basis *b);

/* out->t.scheme: QT_UINT, groups that divide K = b->K. W is finite.
 * Errors: LQ_ENOMEM, LQ_EDEVICE. */
lq_status gptq_run(qz_out *out, gptq_report *rep, const float *W, const gptq_basis *b,
                   const gptq_opts *opts, pool *p, lq_err *err);

/* M [K / 8][8][8]: errors e [8] of a unit of columns of U cost e M e, once all later columns have made up for them. */
void gptq_unit_metrics(float *M, const float *U, int64_t K);

/* qz_method.round, .share and .scratch of this method, and of others where they lack what they need more. */
lq_status gptq_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err);
lq_status gptq_share(const qz_out *out, const qz_matrix *m, comm *ranks, pool *p, lq_err *err);
size_t gptq_scratch(const qz_room *r);

#endif
