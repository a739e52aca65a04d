/* runtime/forward/forward_cca.c - compressed convolutional attention (arXiv:2510.04476) on the CPU: what q, k and v of a row's
 * products become before their norms.
 *
 *     z = R_CCA_CONV along the positions, each channel of [q, k] by itself
 *     y = R_CCA_HEADS along the positions of z, each head by itself; before position 0 all of [q, k] is 0
 *     q of head h = y + m_h, m_h = (q_h + k_g) / 2, g its KV head; k of g = y + mean of its m_h
 *     v = [R_V's of this position, R_V_LATE's of the one before]
 *
 * R_CCA_HEADS is a product of each head for all rows. What comes before it, each KV head with its q heads, goes from position to
 * position by itself, as does v, so that neither threads nor chunks show in the result. */
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

/* What R_CCA_HEADS reads of n heads whose channels begin at c0: of each head z of head_taps positions, this one last.
 * now: their inputs at this position, which become the last of those before, in `back`, rows of all channels. */
static void heads_at(const along *a, int64_t t, float *back, const float *now, int64_t c0,
                     int64_t n)
{
    const arch_config *c = a->r->c;
    const int64_t C = arch_cca_channels(c), D = c->head_dim, before = arch_cca_back(c);
    const float *x[BACK + 1];
    float *z = a->r->cca + (t * C + c0) * c->head_taps;
    for (int64_t h = 0; h < n; h++) {
        for (int64_t j = 0; j < before; j++)
            x[j] = back + j * C + c0 + h * D;
        x[before] = now + h * D;
        for (int64_t j = 0; j < c->head_taps; j++, z += D)
            channels_at(z, a, x + j, c0 + h * D, D);
    }
    for (int64_t j = 0; j < before; j++)
        memcpy(back + j * C + c0, j + 1 < before ? back + (j + 1) * C + c0 : now,
               (size_t)(n * D) * sizeof *back);
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

/* A KV head of a sequence with its q heads; beyond the last: v. */
static void cca_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const arch_config *c = a->r->c;
    const int64_t G = c->kv_heads, D = c->head_dim, H = c->heads, of = H / G,
                  C = arch_cca_channels(c), n = arch_cca_back(c), g = item % (G + 1),
                  late = G * c->v_dim / 2;
    const fwd_seq_state *s = &a->states[item / (G + 1)];
    float *back = s->run.state + a->state, *kept = back + n * C;
    int mark = 0;
    (void)thread;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        for (int64_t t = s->row0 + at; t < s->row0 + to; t++) {
            if (g == G) {
                late_row(a, t, kept);
                continue;
            }
            heads_at(a, t, back, a->r->q + (t * H + g * of) * D, g * of * D, of);
            heads_at(a, t, back, a->r->k + (t * G + g) * D, (H + g) * D, 1);
        }
        if (g == G) {
            fwd_copy_marked(s, mark, to, kept, 1, late, late);
            continue;
        }
        fwd_copy_marked(s, mark, to, back + g * of * D, n, of * D, C);
        fwd_copy_marked(s, mark, to, back + (H + g) * D, n, D, C);
    }
}

/* y, and the means of q and k, to q and k. */
static void join_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, H = c->heads, G = c->kv_heads, of = H / G;
    for (int64_t t = row; t < row + n; t++) {
        float *y = r->cca_out + t * (H + G) * D;
        k_add(y, l->vec[R_CCA_HEADS].bias, (H + G) * D);
        for (int64_t g = 0; g < G; g++) {
            float *q = r->q + (t * H + g * of) * D, *k = r->k + (t * G + g) * D;
            for (int64_t i = 0; i < D; i++) {
                float sum = 0;
                for (int64_t h = 0; h < of; h++) {
                    const float mean = (q[h * D + i] + k[i]) * 0.5f;
                    sum += mean;
                    q[h * D + i] = y[(g * of + h) * D + i] + mean;
                }
                k[i] = y[(H + g) * D + i] + sum / (float)of;
            }
        }
    }
}

void fwd_cca(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    const arch_config *c = r->c;
    along a = { r, l, r->in_turn ? 0 : kv->state, r->states };
    const int64_t pieces = c->kv_heads + 1, D = c->head_dim, C = arch_cca_channels(c);
    const size_t bytes =
        (size_t)(arch_cca_back(c) * C + c->kv_heads * c->v_dim / 2) * sizeof(float);
    if (!r->in_turn) pool_run(r->p, r->n_states * pieces, cca_piece, &a);
    for (int i = 0; r->in_turn && i < r->n_states; i++) {
        a.states = &r->states[i];
        memset(a.states->run.state, 0, bytes);
        pool_run(r->p, pieces, cca_piece, &a);
    }
    fwd_head_products(r, l->cca, C / D, r->cca_out, C, D, r->cca, C * c->head_taps,
                      D * c->head_taps);
    fwd_each(r, r->R, join_rows, l);
}
