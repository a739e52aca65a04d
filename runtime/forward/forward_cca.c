/* runtime/forward/forward_cca.c - compressed convolutional attention (arXiv:2510.04476) on the CPU: what q, k and v of a row's
 * products become before their norms.
 *
 *     z = R_CCA_CONV along the positions, each channel of [q, k] by itself
 *     y = R_CCA_HEADS along the positions of z, each head by itself; before position 0 all of [q, k] is 0
 *     q of head h = y + m_h, m_h = (q_h + k_g) / 2, g its KV head; k of g = y + mean of its m_h
 *     v = [R_V's of this position, R_V_LATE's of the one before]
 *
 * Each KV head with its q heads goes from position to position by itself, as does v, so that neither threads nor chunks
 * show in the result. */
#include "runtime/forward/forward_mix.h"

#include "runtime/model/kv_state.h"

typedef struct {
    const fwd_rows *r;
    const model_layer *l;
    int64_t state; /* where the layer's begins in a sequence's */
    const fwd_seq_state *states;
} along;

enum { BACK = 2 * (CONV_MAX_TAPS - 1) };

/* D channels from c0 of z at a position whose inputs are x[0 .. taps - 1], oldest first. */
static void channels_at(float *z, const along *a, const float *const *x, int64_t c0, int64_t D)
{
    const arch_config *c = a->r->c;
    const model_vector *w = &a->l->vec[R_CCA_CONV];
    const int64_t C = arch_cca_channels(c);
    memcpy(z, w->bias + c0, (size_t)D * sizeof *z);
    for (int64_t j = 0; j < c->conv_taps; j++)
        for (int64_t i = 0; i < D; i++)
            z[i] += w->w[j * C + c0 + i] * x[j][i];
}

/* y of a head whose channels begin at c0; now: its inputs at this position, and in `back`, rows of C, those before. */
static void head_at(float *y, float *z, const along *a, const float *now, const float *back,
                    int64_t c0)
{
    const arch_config *c = a->r->c;
    const int64_t C = arch_cca_channels(c), D = c->head_dim, n = arch_cca_back(c);
    const model_vector *w = &a->l->vec[R_CCA_HEADS];
    const float *x[BACK + 1];
    for (int64_t j = 0; j < n; j++)
        x[j] = back + j * C + c0;
    x[n] = now;
    memcpy(y, w->bias + c0, (size_t)D * sizeof *y);
    for (int64_t j = 0; j < c->head_taps; j++) {
        channels_at(z, a, x + j, c0, D);
        fwd_block_row(y, z, w->w + (c0 * c->head_taps + j * D) * D, y, D);
    }
}

/* The position's inputs become the last of those before. */
static void keep_inputs(float *back, int64_t n, int64_t C, const float *now, int64_t width)
{
    for (int64_t j = 0; j < n; j++)
        memcpy(back + j * C, j + 1 < n ? back + (j + 1) * C : now, (size_t)width * sizeof *back);
}

/* A KV head g and its q heads at a row. */
static void group_row(const along *a, int64_t t, int64_t g, float *back, float *y, float *z)
{
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, H = c->heads, of = H / c->kv_heads, C = arch_cca_channels(c),
                  n = arch_cca_back(c), q0 = g * of * D, k0 = (H + g) * D;
    float *q = r->q + t * H * D + q0, *k = r->k + (t * c->kv_heads + g) * D;
    for (int64_t h = 0; h < of; h++)
        head_at(y + h * D, z, a, q + h * D, back, q0 + h * D);
    head_at(y + of * D, z, a, k, back, k0);
    keep_inputs(back + q0, n, C, q, of * D);
    keep_inputs(back + k0, n, C, k, D);
    for (int64_t i = 0; i < D; i++) {
        float sum = 0;
        for (int64_t h = 0; h < of; h++) {
            const float mean = (q[h * D + i] + k[i]) * 0.5f;
            sum += mean;
            q[h * D + i] = y[h * D + i] + mean;
        }
        k[i] = y[of * D + i] + sum / (float)of;
    }
}

/* v's second half at a row and what is kept of the one before change places. */
static void late_row(const along *a, int64_t t, float *kept)
{
    const int64_t n = a->r->c->kv_heads * a->r->c->v_dim / 2;
    float *v = a->r->v + (2 * t + 1) * n;
    for (int64_t i = 0; i < n; i++) {
        const float now = v[i];
        v[i] = kept[i];
        kept[i] = now;
    }
}

/* A KV head of a sequence; beyond the last: v. */
static void cca_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const arch_config *c = a->r->c;
    const int64_t G = c->kv_heads, D = c->head_dim, of = c->heads / G, C = arch_cca_channels(c),
                  n = arch_cca_back(c), g = item % (G + 1), late = G * c->v_dim / 2;
    const fwd_seq_state *s = &a->states[item / (G + 1)];
    float *back = s->run.state + a->state, *kept = back + n * C;
    float *y = a->r->cca + s->row0 * fwd_cca_width(c) + g * (of + 2) * D;
    int mark = 0;
    (void)thread;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        for (int64_t t = s->row0 + at; t < s->row0 + to; t++)
            if (g < G)
                group_row(a, t, g, back, y, y + (of + 1) * D);
            else
                late_row(a, t, kept);
        if (g == G) {
            fwd_copy_marked(s, mark, to, kept, 1, late, late);
            continue;
        }
        fwd_copy_marked(s, mark, to, back + g * of * D, n, of * D, C);
        fwd_copy_marked(s, mark, to, back + (c->heads + g) * D, n, D, C);
    }
}

void fwd_cca(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    along a = { r, l, r->in_turn ? 0 : kv->state, r->states };
    const int64_t pieces = r->c->kv_heads + 1;
    const size_t bytes =
        (size_t)(arch_cca_back(r->c) * arch_cca_channels(r->c) + r->c->kv_heads * r->c->v_dim / 2) *
        sizeof(float);
    if (!r->in_turn) pool_run(r->p, r->n_states * pieces, cca_piece, &a);
    for (int i = 0; r->in_turn && i < r->n_states; i++) {
        a.states = &r->states[i];
        memset(a.states->run.state, 0, bytes);
        pool_run(r->p, pieces, cca_piece, &a);
    }
}
