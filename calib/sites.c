/* calib/sites.c - the table of sites. */
#include "calib/sites.h"

static const struct {
    arch_role role;
    cal_site site;
} sites[] = {
    { R_Q, CAL_ATTN },
    { R_K, CAL_ATTN },
    { R_V, CAL_ATTN },
    { R_QKV, CAL_ATTN },
    { R_ATTN_GATE, CAL_ATTN },
    { R_V_LATE, CAL_ATTN },
    { R_REL, CAL_ATTN },
    { R_Q_A, CAL_ATTN },
    { R_KV_A, CAL_ATTN },
    { R_INDEX_K, CAL_ATTN },
    { R_INDEX_W, CAL_ATTN },
    { R_INDEX_GATE, CAL_ATTN },
    { R_SPARSE_KV, CAL_ATTN },
    { R_SPARSE_GATE, CAL_ATTN },
    { R_HEAVY_KV, CAL_ATTN },
    { R_HEAVY_GATE, CAL_ATTN },
    { R_Q_B, CAL_Q_B },
    { R_INDEX_Q, CAL_Q_B },
    { R_KV_B, CAL_KV_B },
    { R_HEAD_GATE, CAL_ATTN },
    { R_MIX_IN, CAL_ATTN },
    { R_MIX_Q, CAL_ATTN },
    { R_MIX_K, CAL_ATTN },
    { R_MIX_V, CAL_ATTN },
    { R_MIX_GATE, CAL_ATTN },
    { R_MIX_GATE_DOWN, CAL_ATTN },
    { R_MIX_BA, CAL_ATTN },
    { R_MIX_B, CAL_ATTN },
    { R_MIX_A, CAL_ATTN },
    { R_MIX_A_DOWN, CAL_ATTN },
    { R_O, CAL_O },
    { R_O_A, CAL_O_A },
    { R_MIX_OUT, CAL_MIX_OUT },
    { R_GATE, CAL_MLP },
    { R_UP, CAL_MLP },
    { R_GATE_UP, CAL_MLP },
    { R_DOWN, CAL_DOWN },
    { R_ROUTER, CAL_MLP },
    { R_SHARED_ROUTER, CAL_MLP },
    { R_SHARED_GATE, CAL_MLP },
    { R_SHARED_UP, CAL_MLP },
    { R_SHARED_GATE_UP, CAL_MLP },
    { R_SHARED_DOWN, CAL_SHARED_DOWN },
    { R_EXPERT_GATE, CAL_EXPERT_IN },
    { R_EXPERT_UP, CAL_EXPERT_IN },
    { R_EXPERT_GATE_UP, CAL_EXPERT_IN },
    { R_EXPERT_DOWN, CAL_EXPERT_DOWN },
};

/* One norm feeds attention and MLP. */
static bool one_input(const arch_config *c) { return c->w.parallel && !arch_has(c, R_MLP_NORM, 0); }

/* Does it read the residual and the embedding together? */
static bool of_pair(const arch_config *c, arch_role r) { return c->asides && r >= R_Q && r <= R_V; }

bool cal_site_of(cal_site *site, const arch_config *c, arch_role r)
{
    for (size_t i = 0; i < LQ_COUNT(sites); i++) {
        if (sites[i].role != r) continue;
        if (r == R_INDEX_Q && c->w.mla && c->w.q_gated) return false;         /* it reads a part */
        if (r == R_INDEX_Q && arch_name_of(c, R_INDEX_IN_NORM)) return false; /* its own input */
        *site = sites[i].site == CAL_MLP && one_input(c) ? CAL_ATTN : sites[i].site;
        if (r == R_INDEX_Q && !c->q_lora) *site = CAL_ATTN;
        if (of_pair(c, r)) *site = CAL_PAIR;
        if (r == R_ROUTER &&
            ((c->w.dense_beside && !c->w.shortcut) || c->latent || c->route || c->row->early))
            *site = CAL_EXPERTS;
        return true;
    }
    return false;
}

int64_t cal_site_width(const arch_config *c, cal_site s)
{
    if (s == CAL_EXPERTS) return arch_expert_width(c);
    if (s == CAL_PAIR) return c->asides ? 2 * c->hidden : 0;
    for (size_t i = 0; i < LQ_COUNT(sites); i++) {
        int64_t N, K;
        if (sites[i].site != s || !arch_name_of(c, sites[i].role) || of_pair(c, sites[i].role))
            continue;
        arch_role_shape(c, sites[i].role, &N, &K);
        return K;
    }
    return 0;
}

cal_site cal_site_at(const arch_config *c, int64_t layer, fwd_point at)
{
    static const cal_site sites_at[FWD_AT_END] = {
        [FWD_AT_QKV] = CAL_ATTN, [FWD_AT_Q_B] = CAL_Q_B, [FWD_AT_KV_B] = CAL_KV_B,
        [FWD_AT_O] = CAL_O,      [FWD_AT_MLP] = CAL_MLP, [FWD_AT_DOWN] = CAL_DOWN
    };
    return at == FWD_AT_O && arch_mixer_scans(c->layer[layer].mixer) ? CAL_MIX_OUT : sites_at[at];
}

fwd_point cal_point_of(const arch_config *c, int64_t layer, arch_role r)
{
    const fwd_point first = fwd_first_point(c, layer);
    cal_site site;
    for (fwd_point at = first; at < FWD_AT_END; at = fwd_next_point(c, layer, at))
        if (cal_site_of(&site, c, r) && cal_site_at(c, layer, at) == site) return at;
    return fwd_points_to_end(c, layer) ? first : FWD_AT_END;
}

bool cal_at_point(const arch_config *c, int64_t layer, cal_site s)
{
    for (fwd_point at = fwd_first_point(c, layer); at < FWD_AT_END;
         at = fwd_next_point(c, layer, at))
        if (cal_site_at(c, layer, at) == s) return true;
    return false;
}
