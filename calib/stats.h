/* calib/stats.h - what is kept of the inputs x [T,K] of a linear.
 *
 *     H = mean over tokens of w x x^T    mean_abs_k = mean |x_k|      max_abs_k = max |x_k|
 *     mean_sq_k = mean x_k^2             reached_k = tokens with |x_k| >= limit
 *     M = mean over tokens of w d x^T, where each comes with a row d [D] (cal_original in calib/forward_pass.h)
 *
 * H is summed in f32: one product per chunk of tokens as the caller hands them in, chunk after
 * chunk, each tile of H by one thread. So the figures depend on the chunks, never on the number of
 * threads. The relative error of an entry of H against the exact sum is at most about
 * 2^-24 * (tokens per chunk + chunks) of sum |x_i x_j|, far below the damping that methods add.
 *
 * w: the token's weight, 1 where none are given. Where they are and a token's is not known, it is 1, but for a token whose
 * input is more than CAL_LARGE times the median of its chunk (in |x|^2), which counts as if it were so large: on such tokens
 * (a text's first, on which attention rests) answers depend little. */
#ifndef LLMQ_CALIB_STATS_H
#define LLMQ_CALIB_STATS_H

#include "kernels/core/pool.h"
#include "kernels/device.h"

#include "calib/sites.h"

#define CAL_TOKEN_UNKNOWN (-1.0F) /* a weight */
enum { CAL_LARGE = 8 };

typedef struct {
    int64_t K, tokens;
    const float *weight; /* of the tokens, in the order that they come in; NULL: 1. Borrowed */
    float *
        weighed; /* [rows][K], [rows][D]: a chunk's x and d times the roots of their weights; then [2 rows]: |x|^2, and in order */
    int64_t weighed_rows;
    float *H;                 /* [K,K] symmetric, or NULL; both triangles after cal_stats_finish */
    int64_t D;                /* 0: no M */
    float *M;                 /* [D,K], or NULL */
    double *sum_abs, *sum_sq; /* [K] */
    int64_t *reached;         /* [K] */
    float *mean_abs, *max_abs, *mean_sq;
    float limit; /* 0: every token reaches it */
    dev *on;     /* H is summed there, by dev.gemm, in another order; NULL: here */
    float *H_on, *M_on, *x_on, *d_on; /* [K,K]; [D,K]; a chunk, and its d */
    int64_t x_rows;
    /* Several ranks (calib/share.h): */
    int part,
        parts; /* a share of the sums is made here: of H and M every tile t with t mod parts = part; 0: all are */
    bool elsewhere; /* H is with another rank */
    double shrink;  /* that was added to H's diagonal; 0: nothing */
} cal_stats;

/* Zero, or reuse what is there when K is the same. `on` is borrowed until cal_stats_free; NULL: the
 * CPU. Errors: LQ_ENOMEM. */
lq_status cal_stats_init(cal_stats *s, int64_t K, bool want_h, dev *on, lq_err *err);
void cal_stats_free(cal_stats *s);
/* Rows of D floats will come along, where H is wanted. Errors: LQ_ENOMEM. */
lq_status cal_stats_match(cal_stats *s, int64_t D, lq_err *err);
/* One chunk: x [T,K], rows ldx apart. T < 2^31. Errors: LQ_ENOMEM, where there are weights. */
lq_status cal_stats_add(cal_stats *s, const float *x, int64_t ldx, int64_t T, pool *p, lq_err *err);
/* The same with d [T,D], rows ldd apart; NULL: none, nothing is added to M. */
lq_status cal_stats_add_with(cal_stats *s, const float *x, int64_t ldx, const float *d, int64_t ldd,
                             int64_t T, pool *p, lq_err *err);
/* Part `part`'s inputs are from .. to, of the other sums. */
void cal_stats_columns(const cal_stats *s, int part, int64_t *from, int64_t *to);
/* The tiles of H, as they are in the lower triangle, and of M, that are rank `part`'s of s->parts: into box, or from it; NULL:
 * neither. Returns how many floats they are. */
size_t cal_stats_tiles(cal_stats *s, int part, float *box, bool from_box);
/* Errors: LQ_ENOMEM, LQ_EDEVICE (of what was done there). */
lq_status cal_stats_finish(cal_stats *s, lq_err *err);
/* A [n,n], rows ld apart, a mean over tokens: its diagonal gets 4 n / tokens of the diagonal's mean, and that is returned. With few
 * tokens for each input what two inputs have in common is mostly chance, and rounding would follow it. Source: Ledoit and
 * Wolf, A well-conditioned estimator for large-dimensional covariance matrices (2004). */
double cal_shrink(float *A, int64_t n, int64_t ld, int64_t tokens);
/* So H, once. */
void cal_stats_shrink(cal_stats *s);
/* The first input that was NaN or Inf somewhere; -1: none. */
int64_t cal_stats_bad(const cal_stats *s);

/* Of one layer: what it has once, and of some of its experts. */
typedef struct {
    cal_stats site[CAL_N_SHARED];       /* K = 0: no such site */
    cal_stats *expert[CAL_N_OF_EXPERT]; /* [site - CAL_N_SHARED][n_experts], owned */
    int64_t first, n_experts;           /* experts first .. first + n_experts */
    int64_t tokens;                     /* that went through the layer */
} cal_layer_stats;

void cal_layer_stats_free(cal_layer_stats *s);
void cal_layer_stats_shrink(cal_layer_stats *s);
/* Of the linears of a role; NULL: none (an expert outside first..). */
cal_stats *cal_stats_of(cal_layer_stats *s, const arch_config *c, arch_role r, int64_t expert);

#endif
