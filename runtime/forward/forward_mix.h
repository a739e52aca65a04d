/* runtime/forward/forward_mix.h - where things of a layer with a state are in its rows, for the CPU
 * (forward_mixer.c) and the devices (forward_dev_mix.c). */
#ifndef LLMQ_RUNTIME_FORWARD_FORWARD_MIX_H
#define LLMQ_RUNTIME_FORWARD_FORWARD_MIX_H

#include "runtime/forward/forward_impl.h"

#define MIX_L2_EPS 1e-6f /* of q's and k's lengths, whatever the config says */

static inline bool mix_is_mamba(const arch_config *c)
{
    return c->row->mixer == MIX_MAMBA || c->row->mixer == MIX_BOTH;
}

/* Where of a row of r->mix what a role makes begins; whether there is any; the row's width. */
static inline int64_t mix_at(const fwd_rows *r, arch_role role)
{
    return r->mix_at[role - R_MIX_IN];
}
static inline bool mix_has(const fwd_rows *r, arch_role role)
{
    return mix_at(r, role + 1) > mix_at(r, role);
}
static inline int64_t mix_width(const fwd_rows *r) { return mix_at(r, R_MIX_X + 1); }

/* What the convolution works on, in place: [R, ld]; of its channels q, k and v begin at these. */
typedef struct {
    float *x;
    int64_t ld, channels, q, k, v;
} mix_view;

static inline mix_view mix_view_of(const fwd_rows *r)
{
    const arch_config *c = r->c;
    const arch_mixer m = c->row->mixer;
    const int64_t keys = c->mix_groups * c->mix_key, width = arch_mix_width(c, m);
    mix_view v = { r->mix, mix_width(r), arch_conv_channels(c, m), 0, keys, 2 * keys };
    if (c->w.mix_mixed) v.x = r->mix_conv, v.ld = v.channels;
    if (m == MIX_SELECT) { /* x, then the gate; B and C are made of it later */
        v.v = 0;
        v.k = mix_at(r, R_MIX_X) + c->mix_rank;
        v.q = v.k + keys;
    }
    if (mix_is_mamba(c)) { /* gate, then x, B, C */
        v.x = r->mix + width;
        v.v = 0;
        v.k = width;
        v.q = width + keys;
    }
    return v;
}

/* Of the norms inside such a layer. */
static inline float mix_norm_eps(const arch_config *c)
{
    return c->w.mix_eps > 0 ? c->w.mix_eps : (float)c->norm_eps;
}

/* x = scale sigmoid(x), [n] */
static inline void mix_to_sigmoids(float *x, float scale, int64_t n)
{
    k_scale(x, -1, n);
    k_exp_minus(x, x, 0, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale / (1 + x[i]);
}

/* Rows of MIX_LRU behind its convolution: x of r->mix, and r->decay, as the recurrence takes them; r->mix_out is
 * scratch. */
void fwd_lru_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n);

#endif
