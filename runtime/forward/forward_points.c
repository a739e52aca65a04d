/* runtime/forward/forward_points.c - where a layer's linears read, for those who go through it in stages; see
 * forward.h. */
#include "runtime/forward/forward_impl.h"

/* Does it attend, or run a state along, or both from one input, or neither? */
static bool is_simple(arch_mixer m)
{
    return m == MIX_ATTENTION || m == MIX_NONE || arch_mixer_scans(m);
}

bool fwd_has_points(const arch_config *c, int64_t layer)
{
    const arch_layer *l = &c->layer[layer];
    return !c->w.norm_stays && !c->asides && is_simple(l->mixer) && !fwd_streams_width(c) &&
           !c->route && !fwd_by_token(c) && fwd_first_point(c, layer) != FWD_AT_END;
}

bool fwd_points_to_end(const arch_config *c, int64_t layer)
{
    return !c->w.parallel && !c->layer[layer].moe && c->layer[layer].mixer != MIX_BOTH;
}

bool fwd_has_point(const arch_config *c, int64_t layer, fwd_point at)
{
    const arch_layer *l = &c->layer[layer];
    if (at == FWD_AT_END) return true;
    if (at == FWD_AT_Q_B || at == FWD_AT_KV_B)
        return arch_has(c, at == FWD_AT_Q_B ? R_Q_B : R_KV_B, layer);
    if (at == FWD_AT_O) return l->mixer != MIX_NONE && l->mixer != MIX_BOTH;
    return at > FWD_AT_O ? !l->no_mlp && fwd_points_to_end(c, layer) : l->mixer != MIX_NONE;
}

fwd_point fwd_first_point(const arch_config *c, int64_t layer)
{
    return fwd_has_point(c, layer, FWD_AT_QKV) ? FWD_AT_QKV : fwd_next_point(c, layer, FWD_AT_QKV);
}

fwd_point fwd_next_point(const arch_config *c, int64_t layer, fwd_point at)
{
    do
        at++;
    while (!fwd_has_point(c, layer, at));
    return at;
}

int64_t fwd_point_width(const arch_config *c, int64_t layer, fwd_point at)
{
    const arch_config *own = arch_at(c, layer);
    const int64_t made =
        fwd_scans(c, layer) ? arch_mix_width(own, c->layer[layer].mixer) : arch_o_width(own);
    const int64_t width[FWD_N_POINTS] = {
        [FWD_AT_QKV] = c->hidden, [FWD_AT_Q_B] = arch_q_width(own), [FWD_AT_KV_B] = own->kv_lora,
        [FWD_AT_O] = made,        [FWD_AT_MLP] = c->hidden,         [FWD_AT_DOWN] = own->ffn
    };
    return width[at];
}
