/* runtime/forward/forward_taps.c - layers of MIX_TAPPED on the CPU: convolutions of keys and values before attention, and of
 * what each branch gives, each channel by itself; and what queries add to scores by distance.
 *
 *     y = x + sum over j of taps_j x of the position taps - 1 - j before
 *     score of a key n positions back += f b_n, b = R_REL_BANK r, r = R_REL h of the query's head, n < rel_extent
 *
 * f is the query's own factor (arch_q_factor). Attention scales what it adds as it does q k^T, so b is divided by that. */
#include "runtime/forward/forward_impl.h"

#include "runtime/model/kv_state.h"

void fwd_tap_along(const fwd_rows *r, const model_layer *l, int64_t layer, arch_role role, float *x)
{
    int64_t N, K;
    if (!l->vec[role].w) return;
    arch_role_shape(r->c, role, &N, &K);
    const int64_t width = K / r->c->conv_taps, at = kv_state_tapped(r->whole, layer, role);
    const fwd_conv conv = { x, width, width, l->vec[role].w, NULL, false, r->state + at };
    if (!r->in_turn) fwd_conv_along(r, &conv, r->states, r->n_states);
    for (int i = 0; r->in_turn && i < r->n_states; i++) {
        memset(r->states[i].run.state + conv.state, 0,
               (size_t)((r->c->conv_taps - 1) * width) * sizeof *x);
        fwd_conv_along(r, &conv, &r->states[i], 1);
    }
}

/* The last column is of all distances from rel_extent on. */
static void scale_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t layer = *(const int64_t *)arg, H = r->c->heads, E = r->c->rel_extent;
    for (int64_t t = row; t < row + n; t++) {
        const float f = arch_q_factor(r->c, layer, r->row_pos[t]) / (float)r->c->attn_scale;
        for (int64_t h = 0; h < H; h++) {
            float *b = r->dist_q + (t * H + h) * (E + 1);
            k_scale(b, f, E);
            b[E] = 0;
        }
    }
}

size_t fwd_relative_scratch(const arch_config *c, int64_t R, int threads)
{
    return c->rel_dims ? mm_scratch_bytes(R * c->heads, c->rel_dims, 1, threads) : 0;
}

void fwd_relative(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    const arch_config *c = r->c;
    const mm_out o = fwd_out(&l->lin[R_REL_BANK], r->dist_q, c->rel_extent + 1, false);
    mm_run(&o, 1, r->rel, c->rel_dims, r->R * c->heads, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, scale_rows, &layer);
}
