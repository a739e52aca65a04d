/* quantize/methods/awq.h - activation-aware scaling: salient inputs are scaled up before
 * rounding.
 *
 *     y = W x = (W diag(s)) (diag(1/s) x)
 *
 * W diag(s) is what gets rounded; 1/s is folded into the producer of x (a norm's weights, the rows
 * of the linear before), so the stored model needs no extra step. s comes from the inputs' mean
 * magnitudes:
 *
 *     s = m^a      or      s = m^a / v^(1-a),      then s /= sqrt(max s * min s)
 *
 * m_k = mean |x_k|, v_k = mean over rows of |w| / (largest |w| of its group). a runs over a grid of
 * 20; what is compared is the exact loss of the linears that share x,
 *
 *     loss = sum over rows of d H d^T,     d = w - Q(w s) / s,
 *
 * on at most SEARCH_ROWS evenly spaced rows of each linear. After folding, the end points of each
 * row's groups are drawn in ("clip") where that lowers d_g H_gg d_g^T, H_gg the group's block of H.
 *
 * Shapes: W [N,K] f32; H [K,K] f32 = mean x x^T (calib/stats.h).
 * Source: arXiv:2306.00978; the quadratic loss in place of running the module is ours. */
#ifndef LLMQ_QUANTIZE_METHODS_AWQ_H
#define LLMQ_QUANTIZE_METHODS_AWQ_H

#include "base/comm.h"
#include "kernels/core/pool.h"
#include "kernels/device.h"
#include "quantize/methods/grid.h"
#include "quantize/methods/out.h"

/* Rows of a linear that the search looks at, at most: a choice among 41 needs few, and each costs K^2 / 2 for each of
 * them. */
enum {
    AWQ_SEARCH_ROWS = 512,
    AWQ_SEARCH_WEIGHTS = 1 << 19, /* of all rows, where they are at least: */
    AWQ_SEARCH_LEAST = 64,
    AWQ_MAX_LINEARS = 8
};

/* Linears that read the same input. */
typedef struct {
    struct {
        const float *W;
        int64_t N, group;
        double stand_for; /* rows that these N represent, their weight in the loss; 0: N */
        grid_spec spec;
    } lin[AWQ_MAX_LINEARS];
    int n;
    int64_t K;
    const float *H, *mean_abs;
    comm *ranks;        /* each finds the losses of some candidates; NULL: one process */
    dev *on;            /* losses are summed there, where a row fits; NULL: here */
    const int32_t *tie; /* inputs k with equal tie[k] (0 <= tie < K) must share one s: v feeds
                           several heads of o. NULL: none */
} awq_site;

typedef struct {
    double alpha;         /* chosen; 0: no scaling */
    bool by_weight;       /* the second form of s */
    double before, after; /* loss on the rows looked at, without and with scaling */
} awq_report;

/* Multiply-adds of a search over one linear, about. */
double awq_search_cost(int64_t N, int64_t K);
/* The scales s [K]; all 1 when none helps. Errors: LQ_ENOMEM, LQ_EDEVICE, those of comm.h. */
lq_status awq_search(float *s, awq_report *rep, const awq_site *site, pool *p, lq_err *err);

/* W's columns times s; W's rows divided by s[row]; H for the scaled input. */
void awq_scale_columns(float *W, const float *s, int64_t N, int64_t K, pool *p);
void awq_divide_rows(float *W, const float *s, int64_t N, int64_t K, pool *p);
void awq_scale_h(float *H, const float *s, int64_t K, pool *p);

/* Round W to nearest with drawn-in groups. Groups longer than 512 compare by diag(H) only.
 * out->t.scheme: QT_UINT, regular. Errors: LQ_ENOMEM. */
lq_status awq_round(qz_out *out, const float *W, const float *H, const grid_spec *spec, pool *p,
                    lq_err *err);

#endif
