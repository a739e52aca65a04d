/* calib/sites.h - the linear input sites of a layer: the places whose values its linears read.
 *
 * Linears of one site share their input, so one set of statistics serves them. Which site a linear
 * reads follows from its role alone, except that a parallel layer without a norm of its own for the
 * MLP has one site for all that reads the norm. */
#ifndef LLMQ_CALIB_SITES_H
#define LLMQ_CALIB_SITES_H

#include "runtime/forward/forward.h"

typedef enum {
    CAL_ATTN,        /* q, k, v; qkv; q_a, kv_a */
    CAL_PAIR,        /* that of an aside's q, k, v */
    CAL_Q_B,         /* MLA: normed latents */
    CAL_KV_B,        /* likewise */
    CAL_O,           /* attention's output */
    CAL_O_A,         /* likewise, of each group of heads */
    CAL_MIX_OUT,     /* that of a layer with a state */
    CAL_MLP,         /* gate, up; in MoE layers the router and the shared expert's */
    CAL_DOWN,        /* activated */
    CAL_EXPERTS,     /* what is sent to experts that stand beside an MLP (dense_beside), of all
                        tokens; the router's role stands for it, though it may read another norm */
    CAL_SHARED_DOWN, /* likewise, of the shared expert */
    CAL_EXPERT_IN, /* from here on once per expert: rows of CAL_MLP (or CAL_EXPERTS) that were sent to it */
    CAL_EXPERT_DOWN, /* activated */
    CAL_N_SITES,
    CAL_N_SHARED = CAL_EXPERT_IN,
    CAL_N_OF_EXPERT = CAL_N_SITES - CAL_N_SHARED,
} cal_site;

/* False: the role reads no layer's input (norms, the head, ...). */
bool cal_site_of(cal_site *site, const arch_config *c, arch_role r);
/* Inputs at this site. */
int64_t cal_site_width(const arch_config *c, cal_site s); /* of a layer: c from arch_at */

/* Of a layer that has points (runtime/forward/forward.h): the site at each before FWD_AT_END, and the point
 * where a role's linears read. For roles that read at none it is the first, or FWD_AT_END where the layer has more than
 * its points (fwd_points_to_end). */
cal_site cal_site_at(const arch_config *c, int64_t layer, fwd_point at);
fwd_point cal_point_of(const arch_config *c, int64_t layer, arch_role r);
/* Is a site that of one of its points? */
bool cal_at_point(const arch_config *c, int64_t layer, cal_site s);

#endif
